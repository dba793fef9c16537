"""The coordinate that applications see: it changes only when something has changed.

A position moves a little with every sample. Whoever decides by it (where a topic should live) must
not decide anew each time, and what is told to all sites costs traffic; Ledlie, Gardner and Seltzer
(2007) therefore keep the two apart.
"""

from __future__ import annotations

import math

from skerry.coords.coordinate import Coordinate

LEAST = 0.0005
"""Seconds. Smaller moves are noise: agents answer within half a millisecond of each other."""
PART = 0.01
"""And so are those below this part of the usual round-trip time from here: well below the errors of
estimates, which are 5 % and more between real hosts."""
SURER = 0.5
"""A coordinate is also told when its error has come down, or gone up, by this factor."""


class Steady:
    """A coordinate that follows a position by steps that mean something."""

    def __init__(self) -> None:
        self.coordinate: Coordinate | None = None
        """As it is told to others; None before the first sample."""
        self.changes = 0

    def follow(self, now: Coordinate, usual: float) -> bool:
        """The position is at `now`, where round trips usually take `usual` seconds. Whether that
        changed the coordinate."""
        if self.coordinate is not None and not _differs(self.coordinate, now, usual):
            return False
        self.coordinate = now
        self.changes += 1
        return True


def _differs(told: Coordinate, now: Coordinate, usual: float) -> bool:
    moved = math.dist(told.vector, now.vector)
    moved += abs(told.height + told.adjustment - now.height - now.adjustment)
    if moved > max(LEAST, PART * usual):
        return True
    return not SURER * told.error <= now.error <= told.error / SURER
