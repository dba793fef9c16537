"""What a function did with a log, so that each effect happens once. Pure, no I/O.

Theory of operation. Everything that handling some events changes is one *record*: where the
function is in the log, the new values of its state, and the events it publishes. So a record either
counts with all it holds or not at all, whoever crashed.

    handled ──commit──▶ written ──publish──▶ delivered ─┐
                           │                            ├─▶ settled: its slot may be used again
                           └──write down values──▶ kept ┘

One writer. Who begins writes a *claim* to the sub-topic `w`, on the condition that the last claim
is the one it has seen, and then reads the journal. Every write behind that has the condition that
the last claim is still its own: of two hosts that believe to be in charge the earlier is refused,
by the engine, and nothing that it writes later can be behind what the other one read.

The journal is a topic that keeps the last event of each sub-topic. Records are numbered and go to
`SLOTS` sub-topics in turn, `r/<number mod SLOTS>`; each value of the state, now and then, to
`k/<hash of its key>`, with the number of the record as of which it is true. So a journal is as
large as the state, plus the last records. A record says up to which number everything before it is
*settled*; a slot is used again only behind that. Whoever takes over has all values and all records
that are not settled: it applies the latter to the former, and publishes their events again, under
the same ids, except those that are there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

SLOTS = 64
"""Records between the oldest one that is not settled and the newest, at the most."""


class Output(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event that a handler published."""

    topic: str
    data: bytes
    id: str
    key: str | None = None
    headers: dict[str, str] = {}
    hops: int = 0


class Position(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far a function is with a log: the last index that it is done with."""

    index: int = 0
    epoch: int = 0
    """Of which history of the log that index is."""


class Progress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a function is, with its log and with what it was asked to do again."""

    log: Position = Position()
    again: int = 0
    """The last request that is done."""
    partly: int = 0
    """The last index of the next request that is done."""


class Record(msgspec.Struct, frozen=True, array_like=True):
    """What handling some events changed."""

    number: int
    settled: int
    progress: Progress
    state: dict[str, bytes | None] = {}
    """New values; None: the key is gone."""
    outputs: tuple[Output, ...] = ()
    marks: dict[str, Position] = {}
    """For each topic whose log the outputs go to, a place in it that all of them are behind: who
    looks for them later begins there. No clock is needed for it."""


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """A value of the state, true as of record `number` and all before it."""

    key: str
    value: bytes | None
    number: int


CLAIM = "w"
"""The sub-topic of the claim."""


def slot_of(number: int) -> str:
    """The sub-topic of record `number`."""
    return f"r/{number % SLOTS}"


def place_of(key: str) -> str:
    """The sub-topic of a key of the state."""
    return f"k/{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}"


def output_id(
    function: str, version: int, log: str, index: int, time_ns: int, ordinal: int, again: int
) -> str:
    """The id of what a handler published: the same however often it is run on that event. `again`
    is the request to handle the event once more, 0 for the first time. When the event was stored
    is part of it: a topic that is deleted and made anew has other events at the same indexes."""
    text = "\0".join(map(str, (function, version, log, index, time_ns, ordinal, again)))
    return "fn-" + hashlib.blake2b(text.encode(), digest_size=18).hexdigest()


class Journal:
    """What the journal says, from its records and values; and what the next record must be."""

    def __init__(self) -> None:
        self.number = 0
        """The last record; 0: there is none."""
        self.progress = Progress()
        self.state: dict[str, bytes] = {}
        self.settled = 0
        self.unsettled: dict[int, Record] = {}

    @classmethod
    def of(cls, records: Iterable[Record], values: Iterable[Kept]) -> Journal:
        """Read one: its records, in whatever order, and its values."""
        journal = cls()
        known: dict[str, int] = {}
        for kept in values:
            known[kept.key] = kept.number
            if kept.value is not None:
                journal.state[kept.key] = kept.value
        for record in sorted(records, key=lambda record: record.number):
            journal.number = record.number
            journal.progress = record.progress
            journal.settled = record.settled
            journal.unsettled[record.number] = record
            for key, value in record.state.items():
                if known.get(key, 0) < record.number:
                    _apply(journal.state, key, value)
        journal.settle(journal.settled)
        return journal

    @property
    def has_room(self) -> bool:
        """Whether the next record's slot is free."""
        return self.number + 1 - SLOTS <= self.settled

    def written(self, record: Record) -> None:
        """`record` was written."""
        if record.number != self.number + 1:
            raise ValueError(f"record {record.number} does not follow {self.number}")
        self.number, self.progress = record.number, record.progress
        for key, value in record.state.items():
            _apply(self.state, key, value)
        self.unsettled[record.number] = record

    def settle(self, number: int) -> None:
        """All records up to `number` are delivered, and the state is written down as of then."""
        self.settled = max(self.settled, number)
        for old in [old for old in self.unsettled if old <= number]:
            del self.unsettled[old]


def _apply(state: dict[str, bytes], key: str, value: bytes | None) -> None:
    if value is None:
        state.pop(key, None)
    else:
        state[key] = value
