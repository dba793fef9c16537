"""A publisher's sending against a dumb model of a fabric, through random schedules.

The model has one home at a time, with one replica, and a line between publisher and home that is
cut, swallows what is under way, and comes back. Homes are lost and replaced by their replica, which
may have forgotten ids; former homes go on for a while. At the end everything is healed, and:

- every ticket was settled, once;
- what was acknowledged is in the log, at level `quorum` and, as the publisher lives, at `home`;
- nothing is there twice, and everything is in the order in which it was sent;
- never did more wait than the window allows.

Each of some rules is also left out, and some schedule must notice.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from skerry.config import DUPLICATE_WINDOW
from skerry.engine import lines
from skerry.log.kept import Kept
from skerry.log.sending import Recall, Retry, Sending, Write
from skerry.model.fabric import Step, TopicEntry
from skerry.model.topic import Ack, TopicSettings
from tests.unit.test_sending import NOBODY, REFUSED, Ticket

WINDOW = 8
SECONDS = [0.01, 0.1, 0.3, 1.0, 8.0, 35.0, 130.0]
LOOK = 0.05


class Home:
    """A log that refuses ids which it has taken lately."""

    def __init__(self, log: list[int], forgets: bool, now: float) -> None:
        self.log = log
        self._known = (
            {} if forgets else {number: (place + 1, now) for place, number in enumerate(log)}
        )

    def store(self, number: int, now: float) -> int:
        """Take an event; return its index."""
        index, when = self._known.get(number, (0, 0.0))
        if not index or now - when > DUPLICATE_WINDOW:
            self.log.append(number)
            index = len(self.log)
            self._known[number] = (index, now)
        return index


class World(RuleBasedStateMachine):
    """A publisher, its line, and a topic's homes."""

    @initialize(level=st.sampled_from(["home", "quorum"]))
    def begin(self, level: Ack) -> None:
        self.now = 1000.0
        self.ticked = self.now
        self.entry = TopicEntry(
            name="t", home="a", epoch=1, lineage=(Step(1, 0),), members=("a", "b"),
            settings=TopicSettings(ack=level),
        )  # fmt: skip
        self.homes = {1: Home([], False, self.now)}
        """The homes of epochs: the last one, and those before it that go on."""
        self.replica: list[int] = []
        self.told = self.entry
        """What the publisher knows."""
        self.line = "up"
        self.missing = 0
        """After how many more attempts a line that is cut comes back; negative: later."""
        self.is_up = True
        self.out: list[tuple[int, int, int]] = []
        """Under way to homes: aim, epoch, number."""
        self.back: list[tuple[int, int, int | bytes]] = []
        """Under way to the publisher: aim, number, index or refusal."""
        self.aim = (0, 1)
        self.refuses = False
        self.stored: set[int] = set()
        """What any home took, ever."""
        self.refused: set[int] = set()
        """What no home takes, whenever it is sent."""
        self.questions: list[tuple[Recall, dict[str, int] | None]] = []
        """What was asked, and what the home says."""
        self.retry: float | None = None
        self.tickets: list[Ticket] = []
        self.sending = Sending("t", None, WINDOW, 10**6, 30.0, is_up=True)
        self.sending.on_located(self.entry, "here", self.now)
        self._carry_out()

    # What the driver does

    def _carry_out(self) -> None:
        for ticket, index in self.sending.told.items():
            ticket.set_result(index)
        for ticket, error in self.sending.failed.items():
            ticket.set_exception(error)
        self.sending.told, self.sending.failed = {}, {}
        actions, self.sending.actions = self.sending.actions, []
        for action in actions:
            if isinstance(action, Write):
                for ticket, *_ in action.events:
                    assert isinstance(ticket, Ticket)
                    self._write(ticket.number)
            elif isinstance(action, Recall):
                self.questions.append((action, self._found(action)))
            elif isinstance(action, Retry):
                self.retry = self.now + action.after
            elif action == "aim":
                assert self.sending.entry is not None
                self.aim = (self.aim[0] + 1, self.sending.entry.epoch)

    def _write(self, number: int) -> None:
        assert self.sending.phase in ("probing", "free")
        if self.is_up and self.line == "up":
            self.out.append((*self.aim, number))
        elif self.is_up and self.line == "noticed":
            self.back.append((self.aim[0], number, NOBODY))
            self.missing -= 1
            if not self.missing:
                self.line = "up"

    # What happens

    @rule(count=st.integers(1, 6))
    def send(self, count: int) -> None:
        for _ in range(count):
            if not self.sending.takes:
                return
            number = len(self.tickets)
            ticket = Ticket(number)
            self.tickets.append(ticket)
            head = b"%b%d\r\n\r\n" % (lines.ID, number)
            frame = lines.pub("s.a.1.t", b"x", b"_I.%d" % number, head)
            if self.sending.on_send(number, (ticket, frame, self.now, "t"), self.now):
                self._write(number)
            self._carry_out()

    def homes_take(self, count: int) -> None:
        for aim, epoch, number in self.out[:count]:
            home = self.homes.get(epoch)
            answer: int | bytes = NOBODY
            if self.refuses and number not in self.stored:
                self.refuses = False
                self.refused.add(number)
            if home is not None and number in self.refused:
                answer = REFUSED
            elif home is not None:
                answer = home.store(number, self.now)
                self.stored.add(number)
            self.back.append((aim, number, answer))
        del self.out[:count]

    def answers_arrive(self, count: int) -> None:
        arrived, self.back = self.back[:count], self.back[count:]
        for aim, number, answer in arrived:
            if aim != self.aim[0]:
                continue
            if isinstance(answer, int):
                self.sending.on_answers({number: answer}, self.now)
            elif answer is NOBODY:
                self.sending.on_refusal(number, answer, b"", self.now)
            else:
                self.sending.on_refusal(number, b"", answer, self.now)
            self._carry_out()

    @rule(
        taken=st.integers(0, 8),
        answered=st.integers(0, 8),
        followed=st.integers(0, 8),
        reported=st.booleans(),
    )
    def it_flows(self, taken: int, answered: int, followed: int, reported: bool) -> None:
        self.homes_take(taken)
        self.answers_arrive(answered)
        self.the_replica_follows(followed)
        if reported:
            self.the_replica_reports()

    @rule()
    def the_home_refuses_one(self) -> None:
        self.refuses = True

    def the_replica_follows(self, count: int) -> None:
        log = self.homes[self.entry.epoch].log
        self.replica = log[: len(self.replica) + count]

    def the_replica_reports(self) -> None:
        if self.is_up and self.told is self.entry:
            self.sending.on_report(len(self.replica))
            self._carry_out()

    @rule(seconds=st.sampled_from(SECONDS))
    def time_passes(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + (LOOK if seconds < 10 else 1.0), end)
            if seconds > 1:  # nothing is under way for as long as that
                self.homes_take(1000)
                self.answers_arrive(1000)
            if self.retry is not None and self.now >= self.retry:
                self.retry = None
                self.sending.on_retry(self.now)
            self.sending.on_look(self.now)
            self._carry_out()
            if self.now - self.ticked >= 1.0:
                self.ticked = self.now
                if self.sending.is_overdue(self.now):
                    self.sending.fail_all("no acknowledgement")
                self.sending.on_tick(self.now)
            self._carry_out()

    @rule(cut=st.booleans())
    def the_loop_stands_still(self, cut: bool) -> None:
        """The line may go and come back meanwhile: it takes longer than a publisher is patient."""
        if cut and self.line == "up":
            self.out.clear()
            self.back.clear()
        self.now += self.sending._suspect + 0.1

    @rule(unnoticed=st.integers(0, 4), meanwhile=st.integers(0, 4))
    def the_line_is_cut(self, unnoticed: int, meanwhile: int) -> None:
        """What is under way is swallowed, and what is sent until the cut is noticed."""
        if self.line == "up":
            self.line = "swallows"
            self.out.clear()
            self.back.clear()
            self.send(unnoticed)
            self.line, self.missing = "noticed", -1
            self.send(meanwhile)

    @rule(missing=st.integers(0, 4))
    def the_line_is_back(self, missing: int) -> None:
        """It takes longer to come back than a publisher takes to notice; and it may be back in the
        middle of what is written in one go."""
        if self.line == "noticed":
            for _ in range(400):
                if self.sending.phase != "free" or not self.sending.in_flight:
                    break
                self.time_passes(LOOK)
            if missing:
                self.missing = missing
            else:
                self.line = "up"

    @rule(delivered=st.integers(0, 5), answered=st.integers(0, 5))
    def the_connection_is_lost(self, delivered: int, answered: int) -> None:
        if self.is_up:
            self.homes_take(delivered)
            self.answers_arrive(answered)
            self.is_up = False
            self.out.clear()
            self.back.clear()
            self.sending.on_down()
            self._carry_out()

    @rule(seconds=st.sampled_from(SECONDS))
    def the_connection_is_back(self, seconds: float) -> None:
        if not self.is_up:
            self.time_passes(seconds)
            self.is_up = True
            self.sending.on_up("here", self.now)
            self._carry_out()

    @rule(forgets=st.booleans(), lingers=st.booleans(), heard=st.booleans())
    def the_home_is_lost(self, forgets: bool, lingers: bool, heard: bool) -> None:
        """Its replica takes over. The former home may go on, and knows nothing of that."""
        old, base = self.entry, len(self.replica)
        if not lingers:
            del self.homes[old.epoch]
        self.homes[old.epoch + 1] = Home(list(self.replica), forgets, self.now)
        self.entry = msgspec.structs.replace(
            old,
            home=old.members[1],
            members=old.members[::-1],
            epoch=old.epoch + 1,
            lineage=(*old.lineage, Step(old.epoch + 1, base)),
            forgetful=forgets,
        )
        if heard:
            self.the_publisher_hears_of_it()

    @rule()
    def the_publisher_hears_of_it(self) -> None:
        if self.is_up and self.told is not self.entry:
            self.told = self.entry
            self.homes = {self.entry.epoch: self.homes[self.entry.epoch]}
            self.sending.on_route(self.entry, self.now)
            self._carry_out()

    def _found(self, question: Recall) -> dict[str, int] | None:
        home = self.homes.get(question.entry.epoch)
        if home is None or not self.is_up or self.line != "up":
            return None
        last = len(home.log) if question.last is None else question.last
        ids = home.log[question.first - 1 : last]
        return {str(n): home.log.index(n) + 1 for n in ids if str(n) in question.wanted}

    @rule(late=st.booleans())
    def a_home_says_what_it_has(self, late: bool) -> None:
        """Of two homes that were asked, the one that does not matter any more may be first."""
        if self.questions:
            self.sending.on_recalled(*self.questions.pop(0 if late else -1), self.now)
            self._carry_out()

    # What must hold

    @invariant()
    def no_more_waits_than_the_window_allows(self) -> None:
        if hasattr(self, "sending"):
            assert len(self.sending.in_flight) + len(self.sending.waits) <= WINDOW

    @invariant()
    def logs_are_in_order_and_hold_nothing_twice(self) -> None:
        for home in getattr(self, "homes", {}).values():
            assert home.log == sorted(set(home.log))

    def teardown(self) -> None:
        if not hasattr(self, "sending"):
            return
        self.the_line_is_back(0)
        self.the_connection_is_back(0.1)
        self.the_publisher_hears_of_it()
        self.refuses = False
        for _ in range(200):
            self.homes_take(1000)
            self.answers_arrive(1000)
            self.a_home_says_what_it_has(late=False)
            self.the_replica_follows(1000)
            self.the_replica_reports()
            self.time_passes(0.1)
            if self.sending.is_idle:
                break
        assert self.sending.is_idle
        log = self.homes[self.entry.epoch].log
        self.logs_are_in_order_and_hold_nothing_twice()
        for ticket in self.tickets:
            assert ticket.done()
            if ticket.error is None:
                assert ticket.number in log, "it was acknowledged"


Schedules: Any = World.TestCase
Schedules.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def goes_well(seed: int) -> bool:
    """Whether a random schedule keeps every promise. It is one where much flows."""
    dice = random.Random(seed)

    def some(most: int) -> int:
        return dice.randint(0, most)

    def maybe() -> bool:
        return dice.random() < 0.5

    world = World()
    happens: dict[Callable[[], None], int] = {
        lambda: world.send(1 + some(5)): 3,
        lambda: world.it_flows(some(8), some(8), some(8), maybe()): 4,
        lambda: world.the_home_refuses_one(): 1,
        lambda: world.time_passes(dice.choice(SECONDS)): 1,
        lambda: world.the_loop_stands_still(maybe()): 1,
        lambda: world.the_line_is_cut(some(4), some(4)): 1,
        lambda: world.the_line_is_back(some(4)): 1,
        lambda: world.the_connection_is_lost(some(5), some(5)): 1,
        lambda: world.the_connection_is_back(dice.choice(SECONDS)): 1,
        lambda: world.the_home_is_lost(maybe(), maybe(), maybe()): 1,
        lambda: world.the_publisher_hears_of_it(): 1,
        lambda: world.a_home_says_what_it_has(maybe()): 1,
    }
    try:
        world.begin(dice.choice(["home", "quorum"]))
        for happen in dice.choices(list(happens), list(happens.values()), k=40):
            happen()
            world.no_more_waits_than_the_window_allows()
            world.logs_are_in_order_and_hold_nothing_twice()
        world.teardown()
    except AssertionError:
        return False
    return True


def test_every_schedule_keeps_the_promises() -> None:
    assert [seed for seed in range(2000) if not goes_well(seed)] == []


@pytest.mark.parametrize(
    ("of", "rule", "instead"),
    [
        (Sending, "_take_back", lambda self, fork: None),
        (Sending, "_look_back", lambda self, now, after=0.0: None),
        (Sending, "_probe", lambda self, now: self._go_on()),
        (Sending, "_to_store", lambda self: iter([*self.in_flight.values()][::-1])),
        (Sending, "on_look", lambda self, now: None),
        (Sending, "on_report", lambda self, held: self.waits.clear()),
        (Kept, "lose_beyond", lambda self, fork: self.take_beyond(fork)),
    ],
)
def test_a_rule_that_is_left_out_is_noticed(
    monkeypatch: pytest.MonkeyPatch, of: type, rule: str, instead: Callable[..., object]
) -> None:
    monkeypatch.setattr(of, rule, instead)
    assert not all(goes_well(seed) for seed in range(2000))
