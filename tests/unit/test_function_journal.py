"""The journal against a naive model: thousands of random schedules of writes, deliveries, crashes
and take-overs. State and outputs must come out as if nothing had ever gone wrong."""

from __future__ import annotations

import random

import pytest

from skerry.functions.journal import (
    CLAIM,
    Journal,
    Kept,
    Output,
    Position,
    Progress,
    Record,
    output_id,
    place_of,
    slot_of,
)

EVENTS = 24
KEYS = 4


@pytest.fixture(autouse=True)
def few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few that they are used again and again."""
    monkeypatch.setattr("skerry.functions.journal.SLOTS", 4)


IDS = {event: output_id("f", 1, "in", event, 7, 0, 0) for event in range(1, EVENTS + 1)}


class Refused(Exception):
    """The engine refuses a write: the last claim is another one."""


class Topic:
    """What the engine keeps of a journal: the last event of each sub-topic, and who may write."""

    def __init__(self) -> None:
        self.last: dict[str, tuple[int, object]] = {}
        self.index = 0

    def write(self, place: str, what: object, claim: int) -> int:
        if self.last.get(CLAIM, (0, None))[0] != claim:
            raise Refused
        self.index += 1
        self.last[place] = (self.index, what)
        return self.index

    def read(self) -> Journal:
        events = [what for _, what in sorted(self.last.values(), key=lambda kept: kept[0])]
        return Journal.of(
            (what for what in events if isinstance(what, Record)),
            (what for what in events if isinstance(what, Kept)),
        )


def handle(event: int, state: dict[str, bytes], run: int) -> tuple[str, bytes | None, bytes]:
    """A handler that is not deterministic: what it publishes tells which run it was. Every seventh
    event removes its key."""
    key = f"k{event % KEYS}"
    if event % 7 == 6:
        return key, None, b"%d removed in run %d" % (event, run)
    number = int(state.get(key, b"0")) + 1
    return key, b"%d" % number, b"%d is %d in run %d" % (event, number, run)


class Host:
    """One host, which may be slow, be replaced without knowing, and crash anywhere."""

    def __init__(self, topic: Topic, destination: dict[str, Output], name: int) -> None:
        self._topic = topic
        self._destination = destination
        self._run = name
        seen = topic.last.get(CLAIM, (0, None))[0]
        self._claim = topic.write(CLAIM, name, seen)
        self.journal = topic.read()
        self._due = [  # what an earlier host may not have delivered
            (number, [output for output in record.outputs if output.id not in destination])
            for number, record in sorted(self.journal.unsettled.items())
        ]
        self._delivered = self._due[0][0] - 1 if self._due else self.journal.number
        self._dirty = {key for record in self.journal.unsettled.values() for key in record.state}
        self._kept = self.journal.settled

    def commit(self, events: int) -> bool:
        """Handle some events and write one record; whether there was anything to do."""
        journal = self.journal
        first = journal.progress.log.index
        last = min(first + events, EVENTS)
        if first == last or not journal.has_room:
            return False
        state = dict(journal.state)
        changes: dict[str, bytes | None] = {}
        outputs = []
        for event in range(first + 1, last + 1):
            key, value, text = handle(event, state, self._run)
            changes[key] = value
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
            outputs.append(Output("out", text, IDS[event]))
        record = Record(
            journal.number + 1, journal.settled, Progress(Position(last)), changes, tuple(outputs)
        )
        self._topic.write(slot_of(record.number), record, self._claim)
        journal.written(record)
        self._due.append((record.number, list(outputs)))
        self._dirty |= changes.keys()
        return True

    def deliver(self) -> bool:
        """Publish one output; the log refuses an id that it has."""
        while self._due and not self._due[0][1]:
            self._delivered = self._due.pop(0)[0]
        if not self._due:
            return False
        output = self._due[0][1].pop(0)
        self._destination.setdefault(output.id, output)
        return True

    def keep(self, some: int) -> None:
        """Write down the values of some changed keys."""
        number = self.journal.number
        for key in sorted(self._dirty)[:some]:
            self._topic.write(
                place_of(key), Kept(key, self.journal.state.get(key), number), self._claim
            )
            self._dirty.discard(key)
        if not self._dirty:
            self._kept = number

    def settle(self) -> None:
        """Let go of what is delivered and written down."""
        while self._due and not self._due[0][1]:
            self._delivered = self._due.pop(0)[0]
        delivered = self._delivered if self._due else self.journal.number
        self.journal.settle(min(delivered, self._kept))


def naive() -> dict[str, bytes]:
    """The state as one run without any fault leaves it."""
    state: dict[str, bytes] = {}
    for event in range(1, EVENTS + 1):
        key, value, _ = handle(event, state, 0)
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value
    return state


def expected(event: int) -> bytes:
    """What is published for an event, but for the run."""
    state: dict[str, bytes] = {}
    for before in range(1, event + 1):
        key, value, text = handle(before, state, 0)
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value
    return text.rpartition(b" ")[0]


EXPECTED = [expected(event) for event in range(1, EVENTS + 1)]


def schedule(seed: int) -> tuple[dict[str, Output], Journal, int]:
    """One random history; what was published, the journal at the end, and how many hosts it took.

    Hosts that are replaced go on for a while without knowing it.
    """
    chance = random.Random(seed)
    topic = Topic()
    destination: dict[str, Output] = {}
    hosts = [Host(topic, destination, 1)]
    names = 1
    trouble = chance.choice((0.02, 0.1, 0.2))
    while True:
        host = chance.choice(hosts)
        try:
            match chance.choice(("commit", "deliver", "deliver", "keep", "settle")):
                case "commit":
                    host.commit(chance.randint(1, 5))
                case "deliver":
                    host.deliver()
                case "keep":
                    host.keep(chance.randint(1, KEYS))
                case "settle":
                    host.settle()
        except Refused:
            hosts.remove(host)
        if not hosts or chance.random() < trouble:
            names += 1
            if chance.random() < 0.5:
                hosts.clear()  # a crash; else the old ones do not know yet
            hosts.append(Host(topic, destination, names))
        last = hosts[-1].journal
        if last.progress.log.index == EVENTS and len(destination) == EVENTS:
            return destination, topic.read(), names


@pytest.mark.parametrize("block", range(8))
def test_every_effect_happens_once_whatever_crashes(block: int) -> None:
    hosts = 0
    for seed in range(block * 300, block * 300 + 300):
        destination, journal, names = schedule(seed)
        hosts += names
        texts = [output.data.rpartition(b" ")[0] for output in destination.values()]
        assert sorted(texts) == sorted(EXPECTED), f"seed {seed}"
        assert journal.state == naive(), f"seed {seed}"
    assert hosts > 1000  # else nothing was taken over, and nothing is proved


def test_the_model_notices_a_journal_that_settles_too_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A test that cannot fail proves nothing."""
    monkeypatch.setattr(Host, "settle", lambda self: self.journal.settle(self.journal.number))

    def is_wrong(seed: int) -> bool:
        chance = random.Random(seed)
        topic = Topic()
        destination: dict[str, Output] = {}
        for name in range(1, 60):
            host = Host(topic, destination, name)
            for _ in range(chance.randint(1, 12)):
                host.commit(2)
                if chance.random() < 0.5:
                    host.deliver()
                host.settle()
        return len(destination) < EVENTS or topic.read().state != naive()

    assert any(is_wrong(seed) for seed in range(20))


def test_a_slot_is_not_used_again_before_its_record_is_settled() -> None:
    journal = Journal()
    for number in range(1, 4 + 1):
        assert journal.has_room
        journal.written(Record(number, 0, Progress(Position(number))))
    assert not journal.has_room
    journal.settle(1)
    assert journal.has_room
    with pytest.raises(ValueError, match="does not follow"):
        journal.written(Record(99, 0, Progress()))


def test_ids_tell_apart_what_differs() -> None:
    ids = {
        output_id("f", 1, "in", 5, 7, 0, 0),
        output_id("g", 1, "in", 5, 7, 0, 0),
        output_id("f", 2, "in", 5, 7, 0, 0),
        output_id("f", 1, "in/a", 5, 7, 0, 0),
        output_id("f", 1, "in", 6, 7, 0, 0),
        output_id("f", 1, "in", 5, 8, 0, 0),
        output_id("f", 1, "in", 5, 7, 1, 0),
        output_id("f", 1, "in", 5, 7, 0, 1),
    }
    assert len(ids) == 8
    assert output_id("f", 1, "in", 5, 7, 0, 0) in ids
