"""What a home stored and too few replicas have yet: kept for the next home."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from skerry.log.frames import InFlight

EVENTS = 65536
BYTES = 64 * 1024 * 1024
"""What a publisher keeps at the most of what its caller does not wait for; the oldest go first."""


class Kept:
    """Events in the order of sending, each with the index that the home gave it.

    Those whose home is lost, and that the next one lacks, are `lost` until that one has stored
    them: `take_beyond` takes them out, `lose_beyond` keeps them as that.
    """

    def __init__(self) -> None:
        self._events: dict[int, tuple[int, InFlight]] = {}
        self.bytes = 0
        """Of those that a home has."""
        self.lost: dict[int, InFlight] = {}
        """Newer than all that a home has, until it stores one of them again."""

    def __len__(self) -> int:
        return len(self._events) + len(self.lost)

    def items(self) -> Iterable[tuple[int, tuple[int, InFlight]]]:
        """Numbers, and the indexes and events."""
        return self._events.items()

    def add(self, number: int, index: int, event: InFlight) -> None:
        """Keep an event that was just acknowledged."""
        self._events[number] = (index, event)
        self.bytes += len(event[1])

    def trim(self) -> bool:
        """Let the oldest go that are too many; whether there were any."""
        trims = len(self._events) > EVENTS or self.bytes > BYTES
        while len(self._events) > EVENTS or self.bytes > BYTES:
            self._pop(next(iter(self._events)))
        return trims

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
        return lost

    def lose_beyond(self, fork: int) -> None:
        """What is not part of the history any more has to be stored again."""
        self.lost = self.take_beyond(fork) | self.lost

    def stamp(self, now: float) -> None:
        """What is lost is known not to be stored at time `now`: as if it had been sent then."""
        self.lost = {n: (ack, frame, now, topic) for n, (ack, frame, _, topic) in self.lost.items()}

    def clear(self) -> dict[int, InFlight]:
        """Let go of everything."""
        events = {number: event for number, (_, event) in self._events.items()} | self.lost
        self._events.clear()
        self.lost.clear()
        self.bytes = 0
        return events

    def oldest(self) -> InFlight | None:
        """The first of them."""
        return next((event for _, event in self._events.values()), None)

    def _pop(self, number: int) -> None:
        self.bytes -= len(self._events.pop(number)[1][1])
