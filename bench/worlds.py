"""Networks to find coordinates in, and how well they are found there.

A world is a matrix of round-trip times in seconds; 0 where nothing is known. In a round each site
measures one other, drawn at random: the truth, some noise that only ever adds, and now and then a
spike. Ours and Serf's get the very same samples in the same order."""

from __future__ import annotations

import gzip
import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol

from bench.serf import SerfPosition
from bench.serf import distance as serf_distance
from skerry.coords import Position, between

Matrix = list[list[float]]

NOISE = 0.05
"""Standard deviation of the noise, a part of the truth; its absolute value is added."""
SPIKES = 0.02
"""Probability of a sample that takes up to ten times as long."""
PLANETLAB = "SKERRY_PLANETLAB"
"""The environment variable that names a folder with measured matrices, `rtt-*.txt.gz`, in ms."""


class Errors(NamedTuple):
    """Relative errors over all pairs."""

    median: float
    p90: float


class Finder(Protocol):
    """What finds the coordinate of one site."""

    @property
    def coordinate(self) -> Any:
        """Where it is."""

    def observe(self, peer: str, other: Any, rtt: float, now: float) -> bool:
        """Take a sample in."""


class Kind(NamedTuple):
    """A way to find coordinates."""

    make: Callable[[Random], Finder]
    distance: Callable[[Any, Any], float]


OURS = Kind(Position, between)
SERF = Kind(SerfPosition, serf_distance)


def spread(count: int, random: Random, size: float = 0.1, access: float = 0.01) -> Matrix:
    """Sites anywhere on a plane, each behind an access line of its own."""
    places = [(random.random() * size, random.random() * size) for _ in range(count)]
    lines = [random.random() * access for _ in range(count)]

    def rtt(i: int, j: int) -> float:
        return math.dist(places[i], places[j]) + lines[i] + lines[j] + 1e-4

    return _symmetric(count, rtt)


def clustered(count: int, random: Random, detours: float = 0.15, groups: int = 0) -> Matrix:
    """Towns far apart with sites close together, and routes that are not straight."""
    groups = groups or max(3, count // 8)
    towns = [[random.random() * 0.15 for _ in range(3)] for _ in range(groups)]
    places = [[x + random.gauss(0, 0.002) for x in towns[i % groups]] for i in range(count)]
    lines = [random.expovariate(1 / 0.003) for _ in range(count)]

    def rtt(i: int, j: int) -> float:
        straight = math.dist(places[i], places[j]) + lines[i] + lines[j] + 2e-4
        return straight * math.exp(random.gauss(0, detours))

    return _symmetric(count, rtt)


def star(count: int, random: Random, line: float = 0.04) -> Matrix:
    """All behind lines of the same length to one switch, as ePulsar's Figure 3a."""
    return _symmetric(count, lambda i, j: 2 * line)


def planetlab(count: int, random: Random) -> dict[str, Matrix]:
    """Hosts of each measured matrix, drawn at random; none unless the environment names them."""
    folder = os.environ.get(PLANETLAB)
    found = {}
    for file in sorted(Path(folder).glob("rtt-*.txt.gz")) if folder else []:
        with gzip.open(file, "rt") as lines:
            rows = [[float(x) for x in line.split()] for line in lines if line.strip()]
        hosts = random.sample(range(len(rows)), min(count, len(rows)))
        found[file.name.split(".")[0]] = _measured(rows, hosts)
    return found


def _measured(rows: Matrix, hosts: list[int]) -> Matrix:
    def rtt(i: int, j: int) -> float:
        ways = [x for x in (rows[hosts[i]][hosts[j]], rows[hosts[j]][hosts[i]]) if x > 0]
        return sum(ways) / len(ways) / 1000 if ways else 0.0

    return _symmetric(len(hosts), rtt)


def _symmetric(count: int, rtt: Callable[[int, int], float]) -> Matrix:
    matrix = [[0.0] * count for _ in range(count)]
    for i in range(count):
        for j in range(i):
            matrix[i][j] = matrix[j][i] = rtt(i, j)
    return matrix


class Run:
    """Sites that find their coordinates in a world."""

    def __init__(
        self,
        kind: Kind,
        world: Matrix,
        seed: int,
        *,
        noise: float = NOISE,
        spikes: float = SPIKES,
    ) -> None:
        self.world = world
        self.sites = [kind.make(Random(f"{seed}-{i}")) for i in range(len(world))]
        self.now = 0
        self._kind = kind
        self._noise = noise
        self._spikes = spikes
        self._random = Random(seed)

    def go(self, rounds: int, tell: Callable[[int, Any], Any] = lambda site, place: place) -> None:
        """Let each site measure one other, so many times. `tell` makes of a site's coordinate what
        it tells others."""
        for _ in range(rounds):
            self.now += 1
            for number, site in enumerate(self.sites):
                peer = self._peer(number)
                place = tell(peer, self.sites[peer].coordinate)
                site.observe(f"s{peer}", place, self._sample(number, peer), float(self.now))

    def _peer(self, site: int) -> int:
        while True:
            peer = self._random.randrange(len(self.world))
            if self.world[site][peer] > 0:
                return peer

    def _sample(self, site: int, peer: int) -> float:
        rtt = self.world[site][peer] * (1 + abs(self._random.gauss(0, self._noise)))
        return (
            rtt * (1 + 9 * self._random.random()) if self._random.random() < self._spikes else rtt
        )

    def errors(self, sites: Iterable[int] | None = None) -> Errors:
        """How wrong they are now, over all pairs of `sites`."""
        chosen = list(range(len(self.world)) if sites is None else sites)
        places = [site.coordinate for site in self.sites]
        wrong = sorted(
            abs(self._kind.distance(places[i], places[j]) - self.world[i][j]) / self.world[i][j]
            for i in chosen
            for j in chosen
            if j < i and self.world[i][j] > 0
        )
        return Errors(wrong[len(wrong) // 2], wrong[len(wrong) * 9 // 10])


def rounds_until(kind: Kind, world: Matrix, seed: int, goal: float, most: int = 300) -> int:
    """After how many rounds the median error is below `goal` for the first time, or `most`."""
    run = Run(kind, world, seed)
    while run.now < most:
        run.go(1)
        if run.errors().median < goal:
            break
    return run.now


def worlds(seed: int) -> dict[str, Matrix]:
    """The worlds that figures are about."""
    random = Random(seed)
    return {
        "random": spread(50, random),
        "clustered": clustered(60, random),
        "eight": spread(8, random),
        "eight-clustered": clustered(8, random, detours=0.05),
        **planetlab(100, random),
    }


def middle(values: Sequence[float]) -> float:
    """The median."""
    return sorted(values)[len(values) // 2]
