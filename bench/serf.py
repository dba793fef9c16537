"""Serf's network coordinates, to compare with: written anew from their published description and
constants (hashicorp/serf, `coordinate/`), and from the papers that it names.

Vivaldi with eight dimensions and a height, an adjustment term over the last 20 samples, a median
latency filter of 3 samples a peer, and gravity."""

from __future__ import annotations

import math
from collections import deque
from random import Random
from typing import NamedTuple

DIMENSIONS = 8
ERROR_MAX = 1.5
CE = 0.25
CC = 0.25
ADJUSTMENT_WINDOW = 20
HEIGHT_MIN = 10e-6
LATENCY_WINDOW = 3
GRAVITY_RHO = 150.0
ZERO = 1e-6
LONGEST = 10.0


class SerfCoordinate(NamedTuple):
    """A place, as Serf has it."""

    vector: tuple[float, ...] = (0.0,) * DIMENSIONS
    height: float = HEIGHT_MIN
    error: float = ERROR_MAX
    adjustment: float = 0.0


def raw_distance(one: SerfCoordinate, other: SerfCoordinate) -> float:
    """Without adjustments."""
    return math.dist(one.vector, other.vector) + one.height + other.height


def distance(one: SerfCoordinate, other: SerfCoordinate) -> float:
    """Seconds there and back."""
    raw = raw_distance(one, other)
    adjusted = raw + one.adjustment + other.adjustment
    return adjusted if adjusted > 0 else raw


class SerfPosition:
    """The position of one node."""

    def __init__(self, random: Random) -> None:
        self.coordinate = SerfCoordinate()
        self._random = random
        self._residuals = deque([0.0] * ADJUSTMENT_WINDOW, ADJUSTMENT_WINDOW)
        self._latencies: dict[str, deque[float]] = {}

    def observe(self, peer: str, other: SerfCoordinate, rtt: float, now: float) -> bool:
        """Take a sample in."""
        if not 0 <= rtt <= LONGEST:
            return False
        latencies = self._latencies.setdefault(peer, deque(maxlen=LATENCY_WINDOW))
        latencies.append(rtt)
        rtt = max(sorted(latencies)[len(latencies) // 2], ZERO)
        self._vivaldi(other, rtt)
        self._residuals.append(rtt - raw_distance(self.coordinate, other))
        adjustment = sum(self._residuals) / (2 * ADJUSTMENT_WINDOW)
        self.coordinate = self.coordinate._replace(adjustment=adjustment)
        origin = SerfCoordinate()
        self._push(-((distance(origin, self.coordinate) / GRAVITY_RHO) ** 2), origin)
        if not all(map(math.isfinite, (*self.coordinate.vector, *self.coordinate[1:]))):
            self.coordinate = SerfCoordinate()
        return True

    def _vivaldi(self, other: SerfCoordinate, rtt: float) -> None:
        here = self.coordinate
        expected = distance(here, other)
        wrongness = abs(expected - rtt) / rtt
        weight = here.error / max(here.error + other.error, ZERO)
        error = CE * weight * wrongness + here.error * (1 - CE * weight)
        self.coordinate = here._replace(error=min(error, ERROR_MAX))
        self._push(CC * weight * (rtt - expected), other)

    def _push(self, force: float, other: SerfCoordinate) -> None:
        here = self.coordinate
        length = math.dist(here.vector, other.vector)
        height = here.height
        if length > ZERO:
            unit = [(a - b) / length for a, b in zip(here.vector, other.vector, strict=True)]
            height = max((here.height + other.height) * force / length + here.height, HEIGHT_MIN)
        else:
            drawn = [self._random.random() - 0.5 for _ in range(DIMENSIONS)]
            unit = [one / math.hypot(*drawn) for one in drawn]
        vector = tuple([a + force * b for a, b in zip(here.vector, unit, strict=True)])
        self.coordinate = here._replace(vector=vector, height=height)
