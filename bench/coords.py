"""How well coordinates tell round-trip times, how soon, and at what cost; next to Serf's.

Both algorithms are given the same samples, in networks that are drawn at random and, where the
environment names them (`SKERRY_PLANETLAB`), measured ones: see `bench/worlds.py`. A round is a
seed. The errors are those over all pairs, most of which never measured each other.

The live figures are those of eight real sites on an emulated WAN after a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import statistics
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any
from unittest import mock

from bench.harness import Benchmark, Figure, Samples, compared, measured, percentile, progress
from bench.worlds import OURS, SERF, Kind, Matrix, Run, rounds_until, worlds
from skerry.coords import Coordinate, Known, Position, between
from skerry.coords.coordinate import DIMENSIONS
from skerry.engine.handshake import handshake
from skerry.fabric.distances import Distances
from skerry.testing import Wan, WanFabric

SEEDS = range(1, 6)
EARLY, LATE = 100, 300
"""Samples that each site has taken: the first minutes, and the long run."""
GOAL = 0.1
"""Converged: half of all pairs are estimated within this part of the truth."""
CONVERGING = ("random", "eight", "eight-clustered")
"""Worlds in which both come that far."""
SITES = ["hub", *(f"site{n}" for n in range(1, 8))]
LIVE_SECONDS = 60.0
KINDS = {"skerry": OURS, "serf": SERF}


def _mean(values: list[float]) -> float:
    """The geometric mean: no world outweighs the others."""
    return math.exp(statistics.fmean(map(math.log, values)))


def _errors(kind: Kind, drawn: dict[str, Matrix], seed: int) -> dict[str, float]:
    """Median and 90th percentile, early and late, over all worlds."""
    found: dict[str, list[float]] = {}
    for world in drawn.values():
        run = Run(kind, world, seed)
        for when, rounds in (("early", EARLY), ("late", LATE - EARLY)):
            run.go(rounds)
            median, p90 = run.errors()
            found.setdefault(f"{when} median", []).append(median)
            found.setdefault(f"{when} p90", []).append(p90)
    return {name: _mean(values) for name, values in found.items()}


async def _accuracy() -> list[Figure]:
    samples: dict[str, Samples] = {}
    names: list[str] = []
    for number, seed in enumerate(SEEDS, 1):
        drawn = worlds(seed)
        names = list(drawn)
        for name, kind in KINDS.items():
            progress(f"coords: {name}, round {number} of {len(SEEDS)}")
            found = _errors(kind, drawn, seed)
            goals = [float(rounds_until(kind, drawn[world], seed, GOAL)) for world in CONVERGING]
            found["rounds"] = _mean(goals)
            for what, value in found.items():
                samples.setdefault(what, {}).setdefault(name, []).append(value)

    def told(what: str) -> str:
        ours, serfs = (100 * statistics.median(samples[what][name]) for name in KINDS)
        return f"{ours:.1f} % against {serfs:.1f} %"

    about = f"relative error after {EARLY} samples a site; {', '.join(names)}"
    return [
        compared("coords.median_vs_serf", samples["early median"], "serf", f"{about}; "
                 f"{told('early median')}"),
        compared("coords.p90_vs_serf", samples["early p90"], "serf", told("early p90")),
        compared("coords.late_median_vs_serf", samples["late median"], "serf",
                 f"after {LATE} samples: {told('late median')}"),
        compared("coords.late_p90_vs_serf", samples["late p90"], "serf", told("late p90")),
        compared("coords.convergence_vs_serf", samples["rounds"], "serf",
                 f"samples a site until half of the pairs are right within {GOAL:.0%}; "
                 f"{', '.join(CONVERGING)}"),
    ]  # fmt: skip


async def _cost() -> list[Figure]:
    times = [_sample_us(32) for _ in range(5)]
    few = [_sample_us(7) for _ in range(5)]
    return [
        measured("coords.sample_us", times, "µs", "processor time of a sample, 32 peers known; "
                 f"with 7 peers {statistics.median(few):.0f}"),
        measured("coords.memory_kb", [_memory_kb()], "KB", "a position, and what 1 000 sites tell"),
    ]  # fmt: skip


def _peers(count: int) -> list[Coordinate]:
    random = Random(1)
    return [
        Coordinate(tuple(random.gauss(0, 0.03) for _ in range(DIMENSIONS)), 0.002, 0.1)
        for _ in range(count)
    ]


def _sample_us(peers: int, samples: int = 2000) -> float:
    position, places = Position(Random(1)), _peers(peers)
    truth = Coordinate(height=0.003)
    for warm in (True, False):
        began = time.process_time()
        for number in range(samples):
            place = places[number % peers]
            position.observe(f"s{number % peers}", place, between(truth, place), float(number / 10))
        if not warm:
            break
    return (time.process_time() - began) / samples * 1e6


def _memory_kb() -> float:
    tracemalloc.start()
    position = Position(Random(1))
    told = {f"site{n}": Known(place, {"hub": 0.02}) for n, place in enumerate(_peers(1000))}
    for number, (name, known) in enumerate(told.items()):
        assert known.coordinate is not None
        position.observe(name, known.coordinate, 0.02, float(number))
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return size / 1024


# Live


class Meter:
    """Processor time that a class' methods take, in whatever thread."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls = 0

    def wrap(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, metered."""

        def metered(*given: Any) -> Any:
            began = time.thread_time()
            try:
                return work(*given)
            finally:
                self.seconds += time.thread_time() - began
                self.calls += 1

        return metered


def _draw_network(random: Random) -> dict[tuple[str, str], float]:
    """Milliseconds between sites on a plane, 10 to 150, with access lines."""
    places = {site: (random.uniform(0, 100), random.uniform(0, 100)) for site in SITES}
    lines = {site: random.uniform(2, 10) for site in SITES}
    return {
        (one, other): math.dist(places[one], places[other]) + lines[one] + lines[other]
        for one, other in itertools.combinations(SITES, 2)
    }


async def _live() -> list[Figure]:
    truth = _draw_network(Random(8))
    meter = Meter()
    progress("coords: eight sites on a WAN")
    async with contextlib.AsyncExitStack() as stack:
        for name in ("_observe", "_hear", "measured"):
            metered = meter.wrap(getattr(Distances, name))
            stack.enter_context(mock.patch.object(Distances, name, metered))
        fabric = await stack.enter_async_context(WanFabric(SITES))
        for (one, other), rtt in truth.items():
            await fabric.wan.set(one, other, delay=rtt / 2000)
        meter.seconds = 0.0
        began = time.monotonic()
        history: dict[int, tuple[float, float]] = {}
        worst: list[tuple[float, float]] = []
        for after in (10, 20, 30, int(LIVE_SECONDS)):
            await asyncio.sleep(began + after - time.monotonic())
            worst = await _look(fabric, truth)
            relative = [error for _, error in worst]
            history[after] = (percentile(relative, 50), percentile(relative, 90))
        wall = time.monotonic() - began
        probes = sum(
            site.site.fabric.distances.position.counts.samples
            for site in fabric.sites.values()
            if site.site.fabric
        )
    course = ", ".join(f"{s} s {100 * m:.1f}/{100 * p:.1f} %" for s, (m, p) in history.items())
    handshakes = await _handshake_us()
    share = 100 * (meter.seconds + probes * handshakes / 1e6) / wall / len(SITES)
    bad = sum(ms > 3.5 and part > 0.05 for ms, part in worst)
    return [
        measured("coords.live_median", [100 * percentile([p for _, p in worst], 50)], "%",
                 f"relative error of all pairs of eight sites after a minute; {course}"),
        measured("coords.live_p90", [100 * percentile([p for _, p in worst], 90)], "%",
                 f"{bad} of {len(truth)} pairs are wrong by more than 5 % and 3.5 ms"),
        measured("coords.live_worst_ms", [max(ms for ms, _ in worst)], "ms"),
        measured("coords.agent_percent", [share], "%",
                 "of a core for each agent in its first minute, as if each sample were a probe"),
    ]  # fmt: skip


async def _look(
    fabric: WanFabric, truth: dict[tuple[str, str], float]
) -> list[tuple[float, float]]:
    """The error of each estimate: milliseconds, and part of the truth."""

    async def ask(site: Any) -> Any:
        async with site.connect() as client:
            return await client.rtt()

    found = []
    for pair in await fabric.run(SITES[0], ask):
        right = truth.get((pair.site, pair.peer)) or truth[pair.peer, pair.site]
        wrong = math.inf if pair.estimate_ms is None else abs(pair.estimate_ms - right)
        found.append((wrong, wrong / right))
    return found


async def _handshake_us(count: int = 300) -> float:
    """Processor time of a probe, at both ends."""
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ask = partial(handshake, address, 5.0)
        await ask()
        began = time.process_time()
        for _ in range(count):
            await ask()
        return (time.process_time() - began) / count * 1e6


BENCHMARKS = [
    Benchmark(
        [
            "coords.median_vs_serf",
            "coords.p90_vs_serf",
            "coords.late_median_vs_serf",
            "coords.late_p90_vs_serf",
            "coords.convergence_vs_serf",
        ],
        _accuracy,
    ),
    Benchmark(["coords.sample_us", "coords.memory_kb"], _cost),
    Benchmark(
        [
            "coords.live_median",
            "coords.live_p90",
            "coords.live_worst_ms",
            "coords.agent_percent",
        ],
        _live,
        Wan.unavailable,
    ),
]
