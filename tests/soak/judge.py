"""An online judge: it is told what publishers and readers write down, as they do, and says at once
when that breaks a promise. Pure: no files, no clock. All times are of one machine.

What is told may come in any order between writers, as their files are read in turns; of one writer
it comes in the order it was written. So each rule that looks at two writers is checked from both.

    rule        what breaks it
    one event   two events acknowledged at level `quorum` under one index
    one home    an event acknowledged at level `quorum` in epoch e, though its publish began when
                another was acknowledged in a later epoch already
    ack order   a publisher's later event acknowledged at level `quorum` under an earlier index
    gap         a live reader is not given the next index
    order       a live reader is given a publisher's events out of order, or one of them twice
    twice       a reader is given the very same event (index and time) again: a live one, or a
                durable one that has acknowledged it, within one subscription
    changed     a reader is given another event under an index whose event it had, and which had
                been acknowledged at level `quorum`
    end         at the end a live reader does not have what the log has

An index may go back where `docs/guarantees.md` allows it, and there alone:

- *Not all that is read stays.* Events that a home alone had are lost with it. A live subscription
  then goes back to where both logs agree, and is given what took their place. Only events that no
  quorum has can be lost, so never one that was acknowledged at that level.
- *At least once.* A durable subscription is given again what it did not acknowledge. Opened anew,
  it may be given again what it did: its place is written down every 5 s. While two logs differ, its
  client may go from one to the other and back; of an index it knows the last event alone. So the
  order of indexes is not judged for durable readers, and `overtaken` counts first deliveries behind
  later ones.
- An event of unknown outcome that a former home has is brought home when that is back, behind newer
  ones. So `order` is judged for what was acknowledged.
- At level `home` a home that is cut off takes events for a while after it was replaced; they are
  added to the log's end. So `one home` is judged at level `quorum`; `late` counts the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from skerry.log.durable import ACKED_KEPT
from tests.soak.check import Stored


class Ack(msgspec.Struct, frozen=True):
    """An event was acknowledged."""

    topic: str
    level: str
    publisher: str
    number: int
    index: int
    """0: not known."""
    epoch: int
    """0: not known."""
    began: float
    time: float

    @property
    def payload(self) -> str:
        """What the event says."""
        return f"{self.publisher}:{self.number}"


class Delivery(msgspec.Struct, frozen=True):
    """A reader was given an event."""

    reader: str
    topic: str
    session: str
    """Another one for each subscription that it opened."""
    index: int
    payload: str
    stamp: int
    """When the home stored it: tells events apart that have the same index."""
    time: float
    deliveries: int = 0
    """0: a live subscription."""


class _Epochs(msgspec.Struct):
    """What was acknowledged in each epoch of a topic."""

    first: dict[int, Ack] = {}
    """By its time, at any level but `outbox`."""
    last: dict[int, Ack] = {}
    """By the beginning of its publish, at level `quorum`."""


class _View(msgspec.Struct):
    """What one reader has of a topic."""

    session: str = ""
    first: int = 1
    """The index of `had[0]`; live readers only."""
    had: list[tuple[str, int]] = []
    """Payload and stamp, without gaps; live readers only."""
    highest: dict[str, int] = {}
    """Each publisher's newest number in `had`."""
    given: dict[int, tuple[str, int]] = {}
    """By index, the last that was given, of all sessions."""
    acknowledged: dict[int, int] = {}
    """Index and stamp, of this session, the last `ACKED_KEPT`; durable readers only."""
    top: int = 0


class Judge:
    """Says what is wrong. `violations` grows as it goes; each is told once."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        """What is no violation and worth knowing."""
        self._quorum: dict[tuple[str, int], Ack] = {}
        self._epochs: dict[str, _Epochs] = {}
        self._newest: dict[str, Ack] = {}
        self._views: dict[tuple[str, str], _View] = {}
        self._changed: dict[tuple[str, int], list[tuple[Delivery, str]]] = {}
        self._told: set[tuple[object, ...]] = set()
        self._acked: set[tuple[str, str]] = set()
        self._late: dict[tuple[str, str], list[tuple[str, tuple[object, ...]]]] = {}
        """What came out of order and is not acknowledged yet, by topic and payload."""

    def _complain(self, rule: str, text: str, *case: object) -> None:
        """Tell of a violation, unless one of the same case was told."""
        self.counts[f"broken: {rule}"] += 1
        if (rule, *case) not in self._told:
            self._told.add((rule, *case))
            self.violations.append(f"{rule}: {text}")

    # Publishers

    def acknowledged(self, ack: Ack) -> None:
        """A publisher was told that an event is safe."""
        self.counts["acknowledged"] += 1
        event = ack.topic, ack.payload
        self._acked.add(event)
        for text, case in self._late.pop(event, ()):
            self._complain("order", text, *case)
        if ack.epoch:
            self.counts["with their epoch"] += 1
            self._check_home(ack)
        if ack.level == "quorum" and ack.index:
            self._check_index(ack)
            self._check_ack_order(ack)

    def _check_index(self, ack: Ack) -> None:
        place = ack.topic, ack.index
        other = self._quorum.setdefault(place, ack)
        if other.payload != ack.payload:
            self._complain(
                "one event",
                f"{ack.topic} {ack.index} is {other.payload}, acknowledged at {other.time:.3f}, "
                f"and {ack.payload}, at {ack.time:.3f}",
                *place,
            )
        for delivery, before in self._changed.get(place, ()):
            self._check_changed(delivery, before)

    def _check_ack_order(self, ack: Ack) -> None:
        other = self._newest.get(ack.publisher, ack)
        if (other.number - ack.number) * (other.index - ack.index) < 0:
            self._complain(
                "ack order",
                f"{ack.payload} has index {ack.index}, and {other.payload} index {other.index}",
                ack.publisher,
            )
        if ack.number >= other.number:
            self._newest[ack.publisher] = ack

    def _check_home(self, ack: Ack) -> None:
        epochs = self._epochs.setdefault(ack.topic, _Epochs())
        first = epochs.first.setdefault(ack.epoch, ack)
        if ack.time < first.time:
            epochs.first[ack.epoch] = ack
        later = [one for e, one in epochs.first.items() if e > ack.epoch and one.time < ack.began]
        if ack.level != "quorum":
            self.counts["late at level home"] += bool(later)
        else:
            last = epochs.last.setdefault(ack.epoch, ack)
            if ack.began > last.began:
                epochs.last[ack.epoch] = ack
            for one in later:
                self._tell_homes(ack, one)
        for epoch, last in epochs.last.items():
            if epoch < ack.epoch and ack.time < last.began:
                self._tell_homes(last, ack)

    def _tell_homes(self, old: Ack, new: Ack) -> None:
        self._complain(
            "one home",
            f"{old.payload} ({old.topic}) was acknowledged in epoch {old.epoch} at {old.time:.3f}; "
            f"its publish began at {old.began:.3f}, when {new.payload} had been acknowledged in "
            f"epoch {new.epoch}, at {new.time:.3f}",
            old.topic, old.epoch, new.epoch,
        )  # fmt: skip

    # Readers

    def delivered(self, got: Delivery) -> None:
        """A reader was given an event."""
        view = self._views.setdefault((got.reader, got.topic), _View())
        if view.session != got.session:
            view.session = got.session
            view.first, view.had = got.index, []
            view.highest, view.acknowledged = {}, {}
        before = view.given.get(got.index)
        view.given[got.index] = got.payload, got.stamp
        if before is not None and before[0] != got.payload:
            self.counts["replaced"] += 1
            self._changed.setdefault((got.topic, got.index), []).append((got, before[0]))
            self._check_changed(got, before[0])
        if got.deliveries:
            self._durable(view, got, before)
        else:
            self._live(view, got)

    def _check_changed(self, got: Delivery, before: str) -> None:
        ack = self._quorum.get((got.topic, got.index))
        if ack is not None and ack.payload == before and ack.time < got.time:
            self._complain(
                "changed",
                f"{got.reader} had {before} at {got.topic} {got.index}, which was acknowledged at "
                f"level quorum at {ack.time:.3f}, and was given {got.payload} there at "
                f"{got.time:.3f}",
                got.reader, got.topic, got.index,
            )  # fmt: skip

    def _durable(self, view: _View, got: Delivery, before: tuple[str, int] | None) -> None:
        if view.acknowledged.get(got.index) == got.stamp:
            self._complain("twice", _again(got), got.reader, got.topic, got.session)
        view.acknowledged[got.index] = got.stamp
        if len(view.acknowledged) > ACKED_KEPT:
            del view.acknowledged[next(iter(view.acknowledged))]
        is_first = got.deliveries == 1 and before is None
        self.counts["overtaken"] += is_first and got.index < view.top
        view.top = max(view.top, got.index)

    def _live(self, view: _View, got: Delivery) -> None:
        case = got.reader, got.topic, got.session
        due = view.first + len(view.had)
        if got.index > due:
            self._complain(
                "gap", f"{got.reader} was given {got.topic} {got.index} where {due} was due at "
                f"{got.time:.3f}", *case,
            )  # fmt: skip
            view.first, view.had, view.highest = got.index, [], {}
        elif got.index < view.first:
            self._complain(
                "order", f"{got.reader} began {got.topic} at {view.first} and was given "
                f"{got.index} at {got.time:.3f}", *case,
            )  # fmt: skip
            view.first, view.had, view.highest = got.index, [], {}
        elif got.index < due:
            self.counts["went back"] += 1
            place = got.index - view.first
            if view.had[place] == (got.payload, got.stamp):
                self._complain("twice", _again(got), *case)
            del view.had[place:]
            view.highest = {}
            for payload, _ in view.had:
                name, _, number = payload.rpartition(":")
                view.highest[name] = int(number)
        name, _, number = got.payload.rpartition(":")
        if int(number) <= view.highest.get(name, -1):
            text = (
                f"{got.reader} was given {got.payload} at {got.topic} {got.index} behind "
                f"{name}:{view.highest[name]}, at {got.time:.3f}"
            )
            is_twice = any(payload == got.payload for payload, _ in view.had)
            if is_twice or (got.topic, got.payload) in self._acked:
                self._complain("order", text, *case, name)
            else:
                late = self._late.setdefault((got.topic, got.payload), [])
                late.append((text, (*case, name)))
        view.highest[name] = max(view.highest.get(name, -1), int(number))
        view.had.append((got.payload, got.stamp))

    # The end

    def lacks(self, reader: str, topic: str, events: Sequence[Stored]) -> str:
        """What a live reader has other than the log, in its last subscription; empty: nothing."""
        view = self._views.get((reader, topic))
        if view is None:
            return f"{reader} was given nothing of {topic}" if events else ""
        log: Mapping[int, str] = {event.index: event.payload for event in events}
        for index, (payload, _) in enumerate(view.had, view.first):
            if log.get(index) != payload:
                there = log.get(index, "nothing")
                return f"{reader} has {payload} at {topic} {index}, the log {there}"
        last = view.first + len(view.had) - 1
        latest = events[-1].index if events else 0
        return f"{reader} has {topic} to {last}, the log {latest}" if last < latest else ""

    def ended(self, reader: str, logs: Mapping[str, Sequence[Stored]]) -> None:
        """Everything is over; a live reader ought to have what the logs hold."""
        for topic, events in logs.items():
            if text := self.lacks(reader, topic, events):
                self._complain("end", text, reader, topic)


def _again(got: Delivery) -> str:
    return (
        f"{got.reader} was given {got.payload} at {got.topic} {got.index} a second time, at "
        f"{got.time:.3f}"
    )
