"""Where a site is, as its samples tell: the state machine behind a coordinate.

    sample (peer, its coordinate, round-trip time)
      │ refused: a time that is none, a coordinate that is no place           counted
      ▼
    latency filter of the peer: a low one of its last few
      ▼
    doubted?  it claims to be where, by what we measured, it cannot be: left out  counted
      ▼
    own error: moves towards how wrong the estimate was, the more so the surer the peer is
      ▼
    moved?  most peers stray, one after the other: forget what was before      counted
      ▼
    fit over all remembered peers, gravity
      ▼
    not a number anywhere: begin anew                                          counted

No single sample can do much harm. Its pull is bounded (`fit.improve`), its weight hardly depends on
what the peer claims, and it is one of up to 32. A peer that lies spoils estimates to itself. One
that claims to be far away is left out altogether: two peers cannot be farther apart than the way
from the one to the other through here. So of two claims that contradict this one is wrong, and a
peer whose claim contradicts those of most others is doubted.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from skerry.coords.coordinate import (
    DIMENSIONS,
    ERROR_MOST,
    HEIGHT_LEAST,
    REACH,
    Coordinate,
    between,
    is_sound,
)
from skerry.coords.fit import Place, Pull, improve
from skerry.coords.latency import LatencyFilter
from skerry.coords.settings import DEFAULTS, CoordinateSettings

if TYPE_CHECKING:
    from random import Random

SHORTEST = 1e-6
"""Seconds. No round trip is shorter; a clock that says so is wrong. Serf's bound as well."""
_SCATTER = 0.001
"""Seconds. How far from the origin sites begin, each in another direction."""


class Counts(msgspec.Struct):
    """What went wrong, since the start."""

    samples: int = 0
    """Taken in; the others tell what was not, or was lost."""
    bad_rtt: int = 0
    """Refused: negative, zero, longer than 10 s, or not a number."""
    bad_coordinate: int = 0
    """Refused: the peer's coordinate is no place."""
    doubted: int = 0
    """Left out: the peer's coordinate contradicts those of most others."""
    resets: int = 0
    """Begun anew because a number was none."""
    moves: int = 0
    """Forgot what was measured before, because this site is elsewhere now."""


class Peer(msgspec.Struct):
    """What is remembered of a peer."""

    filter: LatencyFilter
    coordinate: Coordinate
    rtt: float
    """What the filter made of the round-trip times."""
    at: float
    """When it was measured last."""
    is_doubted: bool = False


class Position:
    """The position of one site. `begin` is where to look first, such as where it was before."""

    def __init__(
        self,
        random: Random,
        begin: Coordinate | None = None,
        settings: CoordinateSettings = DEFAULTS,
    ) -> None:
        self.counts = Counts()
        self.peers: dict[str, Peer] = {}
        """Those remembered, by name, the one measured last at the end."""
        self._random = random
        self._settings = settings
        self._strays: list[str] = []
        self._reset()
        if begin is not None and is_sound(begin):
            self._place = Place(begin.vector, begin.height + begin.adjustment)

    @property
    def coordinate(self) -> Coordinate:
        """Where the site is now."""
        vector, offset = self._place
        height = max(offset, HEIGHT_LEAST)
        return Coordinate(vector, height, self._error, offset - height)

    def observe(self, peer: str, coordinate: Coordinate, rtt: float, now: float) -> bool:
        """Take in that `peer`, which says to be at `coordinate`, answered after `rtt` seconds.
        False: this was refused, and counted."""
        if not SHORTEST <= rtt <= REACH:  # so for NaN, too
            self.counts.bad_rtt += 1
            return False
        if not is_sound(coordinate):
            self.counts.bad_coordinate += 1
            return False
        self.counts.samples += 1
        known = self._remember(peer, coordinate, rtt, now)
        known.is_doubted = self._is_doubted(known)
        if known.is_doubted:
            self.counts.doubted += 1
            return True
        self._judge(peer, known)
        self._fit()
        if not is_sound(self.coordinate):
            self.counts.resets += 1
            self._reset()
        return True

    def heard(self, peer: str, coordinate: Coordinate) -> None:
        """A peer says that it is elsewhere now; what was measured stays as it is."""
        if not is_sound(coordinate):
            self.counts.bad_coordinate += 1
        elif (known := self.peers.get(peer)) is not None:
            known.coordinate = coordinate

    def forget(self, peer: str) -> None:
        """What was measured to `peer` holds no longer: it is gone, or it came back elsewhere."""
        self.peers.pop(peer, None)

    def _reset(self) -> None:
        spread = self._direction()
        self._place = Place(tuple(_SCATTER * one for one in spread), HEIGHT_LEAST)
        self._error = ERROR_MOST
        self._strays.clear()

    def _direction(self) -> list[float]:
        while True:
            drawn = [self._random.gauss(0.0, 1.0) for _ in range(DIMENSIONS)]
            if (length := math.hypot(*drawn)) > 0:
                return [one / length for one in drawn]

    def _remember(self, peer: str, coordinate: Coordinate, rtt: float, now: float) -> Peer:
        settings = self._settings
        known = self.peers.pop(peer, None)
        if known is None or now - known.at > settings.age:
            latency = LatencyFilter(settings.window, settings.rank)
            known = Peer(latency, coordinate, rtt, now)
        known.rtt, known.coordinate, known.at = known.filter.add(rtt), coordinate, now
        self.peers[peer] = known
        oldest = next(iter(self.peers))
        if len(self.peers) > settings.memory or now - self.peers[oldest].at > settings.age:
            del self.peers[oldest]
        return known

    def _is_doubted(self, peer: Peer) -> bool:
        """Whether what it claims contradicts most of the others, or what was measured."""
        slack, detour = self._settings.slack, self._settings.detour
        vector, rtt = peer.coordinate.vector, peer.rtt
        if peer.coordinate.height > detour * rtt + slack:
            return True
        contradicted = sum(
            math.dist(vector, other.coordinate.vector) > detour * (rtt + other.rtt) + slack
            for other in self.peers.values()
        )
        return 2 * contradicted > len(self.peers) - 1

    def _judge(self, name: str, peer: Peer) -> None:
        """Learn from a sample how wrong estimates are, and whether we have moved."""
        settings = self._settings
        wrong = min(
            abs(between(self.coordinate, peer.coordinate) - peer.rtt) / peer.rtt, ERROR_MOST
        )
        theirs = peer.coordinate.error + settings.doubt
        if wrong <= max(settings.stray, 3 * self._error):
            self._strays.clear()
        elif name not in self._strays:
            self._strays.append(name)
        if len(self._strays) >= min(settings.strays, len(self.peers) // 2 + 1) > 1:
            self.counts.moves += 1
            self.peers = {one: self._afresh(self.peers[one]) for one in self._strays}
            self._strays.clear()
            self._error = ERROR_MOST
        gain = settings.gain * self._error / (self._error + theirs)
        self._error += gain * (wrong - self._error)

    def _afresh(self, peer: Peer) -> Peer:
        latency = LatencyFilter(self._settings.window, self._settings.rank)
        latency.add(peer.rtt)
        return Peer(latency, peer.coordinate, peer.rtt, peer.at)

    def _fit(self) -> None:
        settings = self._settings
        pulls = [
            Pull(
                peer.coordinate.vector,
                peer.coordinate.height + peer.coordinate.adjustment,
                peer.rtt,
                (peer.rtt + settings.near) ** -settings.steepness
                / (peer.coordinate.error + settings.doubt),
            )
            for peer in self.peers.values()
            if not peer.is_doubted
        ]
        # Few peers cannot outvote one: what three say against a fourth may be the old truth.
        least = max(settings.robust_least, 1 / len(self.peers))
        bound = min(max(settings.robust_part * self._error, least), settings.robust_most)
        passes = max(settings.memory // len(self.peers), 1)
        step = settings.step
        if self._error > settings.warm:
            passes, step = settings.warm_passes, 1.0
        passes = min(passes, settings.warm_passes)
        for _ in range(passes):
            self._place = improve(self._place, pulls, step, bound, self._direction)
        self._fall()

    def _fall(self) -> None:
        """Give way to gravity."""
        vector, offset = self._place
        left = 1.0 - min(math.hypot(*vector) / self._settings.gravity**2, 0.5)
        self._place = Place(tuple([left * one for one in vector]), offset)
