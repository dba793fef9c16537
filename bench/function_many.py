"""Functions: what starting one costs, and how a hundred on one topic do."""

from __future__ import annotations

import asyncio
import time

from bench.function_play import SCALE, Play, Said, message, playing
from bench.harness import ROUNDS, Benchmark, Figure, measured, progress
from bench.stage import MB, SIZES

COLD_ROUNDS, WARM_STARTS = 5, 15
IDLE = 1.0
"""Seconds without an event before a warm start."""
CROWD, CROWD_EVENTS = 100, int(300 * SCALE)


async def _cold() -> list[Figure]:
    """Deploy the first function of a site, and the next one."""
    first: list[float] = []
    second: list[float] = []
    for number in range(COLD_ROUNDS):
        progress(f"function.cold_start: round {number + 1} of {COLD_ROUNDS}")
        async with playing() as play:
            for taken in (first, second):
                async with play.stage.topic() as topic:
                    name = f"cold-{len(first)}-{len(second)}"
                    began = time.monotonic_ns()
                    await play.deploy(name, topic, "note")
                    said = await play.handled(topic, message(SIZES["8k"], last=True))
                    taken.append((said.now - began) / 1e6)
                    await play.stage.admin.remove_function(name)
    note = "from the call of deploy until the first event is in the handler; nothing to install"
    return [
        measured("function.cold_start_ms", second, "ms", note),
        measured("function.first_start_ms", first, "ms", "the same for a site's first function"),
    ]


async def _warm() -> list[Figure]:
    taken = []
    async with playing() as play, play.stage.topic() as topic, play.function(topic, "note"):
        for number in range(WARM_STARTS):
            progress(f"function.warm_start: round {number + 1} of {WARM_STARTS}")
            await asyncio.sleep(IDLE)
            said = await play.handled(topic, message(SIZES["8k"], last=True))
            taken.append(said.taken[-1] / 1e6)
    note = f"from the call of publish to the handler, {IDLE:g} s after the last event"
    return [measured("function.warm_start_ms", taken, "ms", note)]


# Many functions


def _memory(play: Play) -> float:
    """MB of the site with all its processes; what several share counts once."""
    return sum(float(p.memory_full_info().pss) for p in play.stage.processes()) / MB


def _check(all_said: list[Said], began: int, events: int) -> None:
    """Every function must have told once, of this round, and of every event of it."""
    if len({said.function for said in all_said}) != CROWD:
        raise RuntimeError("some functions told twice, others not at all")
    if any(said.now < began for said in all_said):
        raise RuntimeError("a function told of an earlier round")
    if handled := {said.handled for said in all_said} - {events}:
        raise RuntimeError(f"functions handled {handled} events, not {events}")


async def _crowd() -> list[Figure]:
    rates = []
    async with playing() as play, play.stage.topic() as topic:
        await play.deploy("crowd-000", topic, "note")
        await play.handled(topic, message(64, last=True))
        before = _memory(play)
        async with play.done() as said:
            for number in range(1, CROWD):
                progress(f"function.{CROWD}: deploying {number + 1} of {CROWD}")
                await play.deploy(f"crowd-{number:03d}", topic, "note")
            # All are there when all have told of one event.
            began = time.monotonic_ns()
            await play.client.publish(topic, message(64, last=True))
            _check([await said() for _ in range(CROWD)], began, 1)
            memory = (_memory(play) - before) / (CROWD - 1)
            for number in range(ROUNDS):
                progress(f"function.{CROWD}: round {number + 1} of {ROUNDS}")
                began = time.monotonic_ns()
                async with play.client.publisher(topic) as publisher:
                    for _ in range(CROWD_EVENTS - 1):
                        await publisher.send(message(SIZES["1k"]))
                    await publisher.send(message(SIZES["1k"], last=True))
                all_said = [await said() for _ in range(CROWD)]
                rates.append(CROWD * CROWD_EVENTS / ((time.monotonic_ns() - began) / 1e9))
                _check(all_said, began, CROWD_EVENTS)
    return [
        measured(
            f"function.{CROWD}.msgs_s", rates, "msgs/s",
            f"{CROWD} functions on one topic, 1 KB: events handled by all of them together",
        ),
        measured(
            f"function.{CROWD}.mb_each", [memory], "MB",
            "what a function more takes, idle; pages that processes share are divided among them",
        ),
    ]  # fmt: skip


BENCHMARKS = [
    Benchmark(["function.cold_start_ms", "function.first_start_ms"], _cold),
    Benchmark(["function.warm_start_ms"], _warm),
    Benchmark([f"function.{CROWD}.msgs_s", f"function.{CROWD}.mb_each"], _crowd),
]
