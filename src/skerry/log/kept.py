"""What a home acknowledged and too few replicas have yet: kept for the next home."""

from __future__ import annotations

from collections.abc import Iterator

from skerry.log.frames import InFlight

EVENTS = 65536
BYTES = 64 * 1024 * 1024
"""What a publisher keeps at the most of what its caller does not wait for; the oldest go first."""


class Kept:
    """Events in the order of sending, each with the index that the home gave it."""

    def __init__(self) -> None:
        self._events: dict[int, tuple[int, InFlight]] = {}
        self.bytes = 0
        self.last = 0
        """The highest index that was kept in the topic's history as it is now."""

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[tuple[int, InFlight]]:
        return iter(self._events.values())

    def add(self, number: int, index: int, event: InFlight) -> None:
        """Keep an event that was just acknowledged."""
        self._events[number] = (index, event)
        self.bytes += len(event[1])
        self.last = max(self.last, index)

    def trim(self) -> None:
        """Let the oldest go that are too many."""
        while len(self._events) > EVENTS or self.bytes > BYTES:
            self._pop(next(iter(self._events)))

    def release(self, safe: int) -> Iterator[tuple[int, InFlight]]:
        """Let go of the oldest, up to index `safe`."""
        while self._events:
            number, (index, event) = next(iter(self._events.items()))
            if index > safe:
                return
            self._pop(number)
            yield index, event

    def take_beyond(self, fork: int) -> dict[int, InFlight]:
        """Take out what is not part of the history any more: the indexes above `fork`."""
        lost = {number: event for number, (index, event) in self._events.items() if index > fork}
        for number in lost:
            self._pop(number)
        self.last = min(self.last, fork)
        return lost

    def clear(self) -> list[tuple[int, int, InFlight]]:
        """Let go of everything: numbers, indexes and events."""
        events = [(number, index, event) for number, (index, event) in self._events.items()]
        self._events.clear()
        self.bytes = 0
        return events

    def oldest(self) -> InFlight | None:
        """The first of them."""
        return next((event for _, event in self._events.values()), None)

    def _pop(self, number: int) -> None:
        self.bytes -= len(self._events.pop(number)[1][1])
