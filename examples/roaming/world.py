"""What a scenario of `simulate` has to be besides, to be played with real clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec
import numpy as np

from examples.roaming.simulate import STEP, Run, Scenario
from skerry.placement.tables import Array


class Part(msgspec.Struct, frozen=True):
    """What one client does now."""

    site: str
    publishes: frozenset[str]
    subscribes: frozenset[str]
    ear: str = ""
    """Where what it hears is counted: with all else that is heard of that topic and has the same
    ear."""


class Line(msgspec.Struct, frozen=True):
    """What is measured together, and drawn as one line: a topic as it is heard by one ear."""

    topic: int
    ear: str = ""
    site: int | None = None
    """The site that it is heard at; None: wherever the subscribers are."""


class Panel(msgspec.Struct, frozen=True):
    """A part of the picture."""

    title: str
    shown: dict[int, Array]
    """Topics, and mask over the steps: when each is to be seen."""
    ear: str = ""
    labels: tuple[str, ...] = ()
    """What the topics are called, in the same order."""


class World(Scenario, Protocol):
    """A scenario with names for its clients."""

    hub: str | None
    """A site beside the others that coordinates; None: the first of them does."""
    hub_delay: float
    """ms one way."""
    margin: float
    """Share of the bound by which topics are to stay below it; see `PolicySettings`."""

    def parts(self) -> dict[str, Part]:
        """What each client does now, by name."""
        ...

    def lines(self) -> list[Line]:
        """What is measured."""
        ...

    def panels(self, steps: int) -> list[Panel]:
        """What the picture shows. This lets the clients move."""
        ...


Maker = Callable[[], World]
"""Makes the same world each time."""


class Trace(msgspec.Struct, frozen=True):
    """Where the clients of every topic were, step by step."""

    publishes: Array
    """bool (steps, topics, sites)."""
    subscribes: Array

    @property
    def came(self) -> Array:
        """bool (steps, topics): whether clients came to a site where the topic had none of their
        kind before. Only then can its latency grow without a move."""
        both = np.stack([self.publishes, self.subscribes])
        before = np.zeros_like(both)
        before[:, 1:] = both[:, :-1]
        came: Array = (both & ~before).any(axis=(0, 3))
        return came

    def heard(self, lines: list[Line]) -> Array:
        """bool (steps, lines): whether somebody hears of it."""
        ways = [
            self.subscribes[:, line.topic].any(axis=1)
            if line.site is None
            else self.subscribes[:, line.topic, line.site]
            for line in lines
        ]
        return np.stack(ways, axis=1)


def site_of(scenario: Scenario, position: Array) -> Array:
    """The sites at which clients are, by row."""
    rows: Array = (position[:, None, :] == scenario.position).all(axis=2).argmax(axis=1)
    return rows


def trace(world: Scenario, steps: int) -> Trace:
    """Let the clients move, and write down where they are."""
    found = np.zeros((2, steps, len(world.topics), len(world.sites)), bool)
    for step in range(steps):
        world.step(STEP)
        for kind, (topic, position, _) in enumerate(world.clients()):
            found[kind, step, topic, site_of(world, position)] = True
    return Trace(found[0], found[1])


def distances(world: Scenario) -> Array:
    """ms one way between sites."""
    gap = world.position[:, None, :] - world.position
    away: Array = np.sqrt((gap * gap).sum(axis=2))
    return away


def homes_of(run: Run, first: Array) -> Array:
    """(steps, topics): where topics were, from where they were at `first`."""
    homes = np.tile(first, (len(run.seconds), 1))
    for move in run.moves:
        homes[run.seconds >= move.at, move.topic] = move.target
    return homes


def latency_of(world: Scenario, where: Trace, homes: Array, lines: list[Line]) -> Array:
    """(steps, lines): what the worst pair of each line takes if homes are these (steps, topics), by
    the ways alone; nan where nobody hears."""
    away = distances(world)
    steps = np.arange(len(homes))
    found = np.full((len(homes), len(lines)), np.nan)
    for column, line in enumerate(lines):
        way = away[homes[:, line.topic]]
        there = np.where(where.publishes[:, line.topic], way, 0.0).max(axis=1)
        if line.site is None:
            back = np.where(where.subscribes[:, line.topic], way, 0.0).max(axis=1)
        else:
            back = way[steps, line.site]
        found[:, column] = there + back
    return np.where(where.heard(lines), found, np.nan)
