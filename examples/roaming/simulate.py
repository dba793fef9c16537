"""`python -m examples.roaming.simulate uav|mmog`: clients move, and topics move after them.

The scenarios of ePulsar's section 5.8 in virtual time, through all of `skerry.placement`: sites sum
up their clients, pack records, the controller folds them, makes a plan and carries it out. What is
counted is E(t), the latency of the worst pair of a topic, twice a second. `--svg` draws it. Beside
it stand homes by *hashing*, which stay, and by *all pairs*: an oracle that knows every client's way
and moves each late topic at once, but no more often than records come.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import numpy as np

from skerry.model.placement import PERIOD
from skerry.placement import (
    Monitor,
    PolicySettings,
    SiteRecord,
    TopicEntry,
    explain,
    pack,
    plan,
    tables,
    unpack,
)
from skerry.placement.records import topic_columns
from skerry.placement.tables import Array

STEP = 0.5
"""Seconds of virtual time."""
MOVE = 0.5
"""Seconds that a move takes. A cut-over is 4 to 65 ms; the rest is copying a short log."""

Clients = tuple[Array, Array, Array]
"""Topic, position and height, a row for each client that takes part in a topic. The position is
that of the client's site, the height its way to it."""


Rule = PolicySettings | Literal["hashing", "all-pairs"]
"""How homes are chosen: by `skerry.placement`, or as the module says."""
RULES: dict[str, Rule] = {
    "placement": PolicySettings(),
    "hashing": "hashing",
    "all-pairs": "all-pairs",
}


class Scenario(Protocol):
    """Sites, topics, and clients that move."""

    sites: list[str]
    position: Array
    height: Array
    topics: list[str]
    bound: float
    rate: tuple[Array, Array]
    """Events/s in and out, of each topic."""
    event_bytes: float

    def step(self, seconds: float) -> None:
        """Let the clients move."""
        ...

    def clients(self) -> tuple[Clients, Clients]:
        """Publishers and subscribers now."""
        ...


class Moved(msgspec.Struct, frozen=True):
    """A move that ended."""

    at: float
    topic: int
    source: int
    target: int
    reason: str
    took: float = 0.0
    """Seconds, until `at`."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What happened."""

    bound: float
    seconds: Array
    latency: Array
    """(steps, topics): ms of the worst pair; nan where there is none."""
    moves: list[Moved]

    @property
    def violations(self) -> float:
        """Share of topics and time above the bound, of those with a latency."""
        return float((self.latency[np.isfinite(self.latency)] > self.bound).mean())

    @property
    def longest(self) -> float:
        """Seconds that a topic was above its bound without a break."""
        most = spell = np.zeros(self.latency.shape[1])
        for late in self.latency > self.bound:
            spell = (spell + STEP) * late
            most = np.maximum(most, spell)
        return float(most.max())


def hashed_homes(scenario: Scenario, seed: int) -> Array:
    """A site for each topic, wherever its clients are."""
    rng = np.random.default_rng((seed, 99))
    return rng.integers(0, len(scenario.sites), len(scenario.topics))


def simulate(scenario: Scenario, seconds: float, rule: Rule, seed: int = 0) -> Run:
    """Run a scenario; homes are hashed at first."""
    fabric = _Fabric(scenario, hashed_homes(scenario, seed), rule)
    latency = []
    steps = round(seconds / STEP)
    for number in range(steps):
        scenario.step(STEP)
        latency.append(fabric.step(number * STEP))
    return Run(
        bound=scenario.bound,
        seconds=np.arange(steps) * STEP,
        latency=np.array(latency),
        moves=fabric.moves,
    )


class _Fabric:
    def __init__(self, scenario: Scenario, home: Array, rule: Rule) -> None:
        self.scenario = scenario
        self.home = home
        self.rule = rule
        self.moved_at: dict[int, float] = {}
        self.under_way: dict[int, tuple[float, int, str]] = {}
        self.monitor = Monitor()
        self.number = 0
        self.moves: list[Moved] = []

    def step(self, now: float) -> Array:
        """End moves, report and plan if it is time; return E(t) of each topic."""
        for topic, (ends, target, reason) in list(self.under_way.items()):
            if ends <= now:
                del self.under_way[topic]
                self._moved(Moved(now, topic, int(self.home[topic]), target, reason, MOVE))
        if now % PERIOD == 0.0:
            if isinstance(self.rule, PolicySettings):
                self._report(now)
                self._plan(now, self.rule)
            elif self.rule == "all-pairs":
                self._by_all_pairs(now)
        return self._worst(self.home)

    def _moved(self, move: Moved) -> None:
        self.moves.append(move)
        self.home[move.topic] = move.target
        self.moved_at[move.topic] = move.at

    def _worst(self, home: Array) -> Array:
        scenario = self.scenario
        total = np.zeros(len(scenario.topics))
        for topic, at, height in scenario.clients():
            site = home[topic]
            away = np.sqrt(((at - scenario.position[site]) ** 2).sum(axis=1))
            farthest = np.full(len(total), -np.inf)
            np.maximum.at(farthest, topic, away + height + scenario.height[site])
            total += farthest
        return np.where(np.isfinite(total), total, np.nan)

    def _by_all_pairs(self, now: float) -> None:
        """The oracle."""
        sites = range(len(self.scenario.sites))
        worst = np.array([self._worst(np.full(len(self.home), site)) for site in sites])
        is_late = worst[self.home, np.arange(len(self.home))] > self.scenario.bound
        for topic in np.flatnonzero(is_late).tolist():
            source, target = int(self.home[topic]), int(worst[:, topic].argmin())
            if target != source:
                self._moved(Moved(now, topic, source, target, "least worst pair"))

    def _report(self, now: float) -> None:
        """Each site's agent: sum up its own clients, and tell of the topics that are there."""
        self.number += 1
        scenario = self.scenario
        kinds = scenario.clients()
        for row, site in enumerate(scenario.sites):
            columns: dict[str, Any] = {}
            used = self.home == row
            for kind, (topic, at, height) in zip(("producer", "consumer"), kinds, strict=True):
                here = (at == scenario.position[row]).all(axis=1)
                number = np.bincount(topic[here], minlength=len(used))
                access = np.zeros(len(used))
                np.maximum.at(access, topic[here], height[here])
                columns |= {f"{kind}s": number, f"{kind}_access": access}
                used = used | (number > 0)
            mine = np.flatnonzero(used)
            rates = [np.where(self.home == row, rate, 0.0)[mine] for rate in scenario.rate]
            total = float(sum(rate.sum() for rate in rates))
            size = scenario.event_bytes
            nothing = np.zeros(len(mine))
            packed = topic_columns(
                [scenario.topics[topic] for topic in mine], rate_in=rates[0], rate_out=rates[1],
                event_bytes=np.full(len(mine), size), stored_bytes=np.full(len(mine), 1e6),
                publish_ms=nothing, deliver_ms=nothing, deliver_most_ms=nothing,
                **{name: column[mine] for name, column in columns.items()},
            )  # fmt: skip
            record = SiteRecord(
                site=site, started=1, number=self.number,
                position=tuple(scenario.position[row].tolist()), height=float(scenario.height[row]),
                capacity=(8.0, 16e9, 1e9, 1e12, float("inf")),
                load=(total / 2e5, 1e9, total * size, 1e9, total), topics=packed,
            )  # fmt: skip
            self.monitor.fold(unpack(pack(record)), now)

    def _plan(self, now: float, settings: PolicySettings) -> None:
        """The controller."""
        scenario = self.scenario
        row_of = {name: row for row, name in enumerate(scenario.topics)}
        entries = [
            TopicEntry(
                name=name,
                home=scenario.sites[self.home[row]],
                bound_ms=scenario.bound,
                moved_at=self.moved_at.get(row),
                moving_to=scenario.sites[self.under_way[row][1]] if row in self.under_way else None,
            )
            for row, name in enumerate(scenario.topics)
        ]
        topics, sites = tables(self.monitor, entries, now)
        made = plan(topics, sites, settings, now)
        for move in explain.moves(made, topics, sites, settings):
            target = scenario.sites.index(move.target)
            self.under_way[row_of[move.topic]] = now + MOVE, target, move.reason


def main(arguments: list[str] | None = None) -> int:
    """Run a scenario by each rule, and say what came out."""
    from examples.roaming.scenarios import SCENARIOS
    from examples.roaming.svg import draw

    parser = argparse.ArgumentParser(
        prog="python -m examples.roaming.simulate", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("scenario", choices=sorted(SCENARIOS))
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="virtual (600, as in the paper)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--svg", type=Path, help="draw the latency over time into this file")
    parser.add_argument("--moves", action="store_true", help="print every move and its reason")
    options = parser.parse_args(arguments)
    make = SCENARIOS[options.scenario]
    runs = {
        name: simulate(make(options.seed), options.seconds, rule, options.seed)
        for name, rule in RULES.items()
    }
    topics = make(options.seed).topics
    if options.moves:
        for move in runs["placement"].moves:
            print(f"{move.at:7.1f} s  {topics[move.topic]}: {move.reason}")
    for name, run in runs.items():
        late = run.latency[np.isfinite(run.latency)]
        print(
            f"{options.scenario} by {name}: {run.violations:.2%} of the time above "
            f"{run.bound:g} ms, for {run.longest:g} s at most; median {np.median(late):.1f} ms, "
            f"99 % below {np.percentile(late, 99):.1f} ms; {len(run.moves)} moves"
        )
    if options.svg:
        run = runs["placement"]
        title = f"{options.scenario}: worst latency of each topic, one way"
        options.svg.write_text(
            draw(title, run.seconds, run.latency, run.bound, [move.at for move in run.moves])
        )
        print(f"drawn: {options.svg}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
