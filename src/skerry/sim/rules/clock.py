"""Virtual time: it passes only from one call to the next."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")

Call = tuple[int, int, Callable[..., None], tuple[object, ...]]
"""When, the how-manieth, what, with what."""


class Clock:
    """Calls happen in the order of their time; those of one moment in the order of asking."""

    def __init__(self) -> None:
        self.now = 0
        """Milliseconds since the beginning."""
        self._calls: list[Call] = []
        self._asked = 0

    def after(self, delay: int, call: Callable[P, None], *args: P.args, **none: P.kwargs) -> None:
        """Make a call in `delay` milliseconds."""
        self._asked += 1
        due: Call = (self.now + delay, self._asked, call, args)
        heapq.heappush(self._calls, due)

    def run(self, until: int) -> None:
        """Let time pass up to `until`."""
        calls = self._calls
        while calls and calls[0][0] <= until:
            self.now, _, call, args = heapq.heappop(calls)
            call(*args)
        self.now = until
