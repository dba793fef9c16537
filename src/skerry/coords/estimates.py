"""What is known of the round-trip time between two sites."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from skerry.coords.coordinate import Coordinate, between


class Known(msgspec.Struct, frozen=True):
    """What a site tells of itself: where it is, and what it measured lately, in seconds."""

    coordinate: Coordinate | None = None
    rtt: Mapping[str, float] = {}


class Estimate(msgspec.Struct, frozen=True):
    """The round-trip time between two sites, in seconds."""

    rtt: float | None
    """By their coordinates; None while one of them has none."""
    error: float | None
    """By how much that is usually wrong, to both sides."""
    measured: float | None
    """As one of the two measured it last; None: neither did within the last minutes."""
    measured_by: str | None

    @property
    def best(self) -> float | None:
        """What was measured, or else the estimate."""
        return self.rtt if self.measured is None else self.measured


def estimate(one: str, other: str, known: Mapping[str, Known]) -> Estimate:
    """What is known of the way from `one` to `other` and back, the same in both directions: what
    the first of them by name has measured goes before what the second has."""
    if one == other:
        return Estimate(0.0, 0.0, None, None)
    nothing = Known()
    here, there = known.get(one, nothing), known.get(other, nothing)
    rtt = error = None
    if here.coordinate is not None and there.coordinate is not None:
        rtt = between(here.coordinate, there.coordinate)
        error = rtt * (here.coordinate.error + there.coordinate.error) / 2
    for site, peer in sorted([(one, other), (other, one)]):
        measured = known.get(site, nothing).rtt.get(peer)
        if measured is not None:
            return Estimate(rtt, error, measured, site)
    return Estimate(rtt, error, None, None)
