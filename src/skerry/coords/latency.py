"""Samples of one round trip, rid of noise."""

from __future__ import annotations

from collections import deque

from skerry.coords.settings import DEFAULTS


class LatencyFilter:
    """The last few samples of one peer. The `rank`-th least counts; of few, the least."""

    def __init__(self, window: int = DEFAULTS.window, rank: int = DEFAULTS.rank) -> None:
        self._samples: deque[float] = deque(maxlen=window)
        self._rank = rank

    def add(self, rtt: float) -> float:
        """Take a sample in; return what counts now."""
        self._samples.append(rtt)
        return sorted(self._samples)[self._rank if len(self._samples) > 3 else 0]
