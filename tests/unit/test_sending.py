"""A publisher's sending, driven by hand: schedules that take sites and seconds otherwise."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skerry.config import DUPLICATE_WINDOW
from skerry.engine import lines
from skerry.errors import FabricError, OutcomeUnknown, SkerryError, StorageFull
from skerry.log import sending as rules
from skerry.log.frames import InFlight
from skerry.log.sending import Action, LastValues, Phase, Recall, Retry, Sending, Write
from skerry.model.fabric import TopicEntry
from skerry.model.topic import Ack, TopicSettings

NOBODY = b"NATS/1.0 503\r\n\r\n"
FULL = b'{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"}}'
REFUSED = (
    b'{"error":{"code":400,"err_code":10060,"description":"expected sequence does not match"}}'
)


class Ticket:
    """What a caller waits with. It is told once."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.index = 0
        self.error: BaseException | None = None
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, result: int) -> None:
        self._settle()
        self.index = result

    def set_exception(self, exception: BaseException) -> None:
        self._settle()
        self.error = exception

    def exception(self) -> BaseException | None:
        return self.error

    def _settle(self) -> None:
        assert not self._done, f"{self.number} was settled before"
        self._done = True


def entry(epoch: int = 1, base: int = 0, home: str = "a", **other: object) -> TopicEntry:
    """A topic with one replica, unless told otherwise; each epoch before began at 0."""
    lineage = tuple((each, 0) for each in range(1, epoch))
    fields = {"members": (home, "z"), "settings": TopicSettings(ack="home"), **other}
    return msgspec.convert(
        {"name": "t", "home": home, "epoch": epoch, "lineage": (*lineage, (epoch, base)),
         **msgspec.to_builtins(fields)},
        TopicEntry,
    )  # fmt: skip


class Driver:
    """Carries out what a `Sending` wants, by writing it down."""

    def __init__(
        self,
        topic: TopicEntry | None = None,
        *,
        ack: Ack | None = None,
        window: int = 100,
        window_bytes: int = 10**6,
        timeout: float = 30.0,
        alone: bool = False,
    ) -> None:
        self.now = 1000.0
        self.sending = Sending("t", ack, window, window_bytes, timeout, is_up=True)
        self.tickets: list[Ticket] = []
        self.written: list[int] = []
        """The numbers of what was written since it was last looked."""
        self.actions: list[Action] = []
        """The others."""
        if alone or topic is not None:
            self.sending.on_located(topic, "here", self.now)
            self.carry_out()

    @property
    def phase(self) -> Phase:
        return self.sending.phase

    def event(self, number: int, identity: str = "") -> InFlight:
        ticket = Ticket(number)
        self.tickets.append(ticket)
        head = b"%b%b\r\n\r\n" % (lines.ID, (identity or f"p-{number}").encode())
        return ticket, lines.pub("s.a.1.t", b"x", b"_I.%d" % number, head), self.now, "t"

    def send(self, count: int = 1) -> list[Ticket]:
        first = len(self.tickets)
        for number in range(first, first + count):
            if self.sending.on_send(number, self.event(number), self.now):
                self.written.append(number)
            self.carry_out()
        return self.tickets[first:]

    def send_as(self, identity: str) -> Ticket:
        """Send one with an id that its caller gives."""
        number = len(self.tickets)
        if self.sending.on_send(number, self.event(number, identity), self.now, identity):
            self.written.append(number)
        self.carry_out()
        return self.tickets[number]

    def carry_out(self) -> None:
        for ticket, index in self.sending.told.items():
            ticket.set_result(index)
        for ticket, error in self.sending.failed.items():
            ticket.set_exception(error)
        self.sending.told, self.sending.failed = {}, {}
        for action in self.sending.actions:
            if isinstance(action, Write):
                for ticket, *_ in action.events:
                    assert isinstance(ticket, Ticket)
                    self.written.append(ticket.number)
            else:
                self.actions.append(action)
        self.sending.actions = []

    def looked(self) -> list[int]:
        """What was written since this was last asked."""
        written, self.written = self.written, []
        return written

    def answer(self, *numbers: int, first: int = 1) -> None:
        """The home stored these, from index `first` on."""
        answers = {number: first + place for place, number in enumerate(numbers)}
        self.sending.on_answers(answers, self.now)
        self.carry_out()

    def refuse(self, number: int, head: bytes = b"", data: bytes = b"") -> None:
        self.sending.on_refusal(number, head, data, self.now)
        self.carry_out()

    def route(self, topic: TopicEntry) -> None:
        self.actions.clear()
        self.sending.on_route(topic, self.now)
        self.carry_out()

    def report(self, held: int) -> None:
        self.sending.on_report(held)
        self.carry_out()

    def passes(self, seconds: float, *, looks: bool = True) -> None:
        """Time passes; the publisher looks and ticks meanwhile."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 0.05, end)
            if looks:
                self.sending.on_look(self.now)
        self.tick()

    def tick(self) -> None:
        if self.sending.is_overdue(self.now):
            self.sending.fail_all("no acknowledgement")
        self.sending.on_tick(self.now)
        self.carry_out()

    def question(self) -> Recall:
        """What was last asked of the home."""
        return [action for action in self.actions if isinstance(action, Recall)][-1]

    def recalled(self, question: Recall, found: dict[str, int] | None) -> None:
        self.sending.on_recalled(question, found, self.now)
        self.carry_out()

    def last_values(self, found: dict[str, int]) -> None:
        self.sending.on_last_values(found, self.now)
        self.carry_out()


def free(topic: TopicEntry | None = None, **settings: Any) -> Driver:
    """A driver whose way is free: its first event was acknowledged, and a replica has it."""
    driver = Driver(topic or entry(), **settings)
    driver.send()
    driver.answer(0)
    driver.report(1)
    assert driver.phase == "free"
    driver.looked()
    return driver


def in_phase(phase: Phase, **settings: Any) -> Driver:
    """A driver with one event in flight, in a phase."""
    driver = free(**settings)
    driver.send()
    if phase == "away":
        driver.sending.on_down()
    elif phase == "recalling":
        driver.route(entry(2, 1, forgetful=True))
    elif phase == "probing":
        driver.route(entry(2, 1))
    elif phase == "pausing":
        driver.refuse(1, NOBODY)
    assert driver.phase == phase
    driver.looked()
    return driver


PHASES: list[Phase] = ["away", "recalling", "probing", "pausing", "free"]


# The way


def test_the_first_goes_alone_and_the_rest_once_it_is_acknowledged() -> None:
    driver = Driver(entry())
    driver.send(3)
    assert driver.looked() == [0]
    driver.answer(0)
    assert driver.looked() == [1, 2]
    driver.send()
    assert driver.looked() == [3]


def test_without_a_fabric_all_go_at_once_and_again_in_order_when_the_connection_is_back() -> None:
    driver = Driver(alone=True)
    driver.send(3)
    assert driver.looked() == [0, 1, 2]
    driver.answer(0)
    driver.sending.on_down()
    driver.send()
    assert driver.looked() == []
    driver.sending.on_up("elsewhere", driver.now)
    driver.carry_out()
    assert (driver.phase, driver.looked()) == ("recalling", [])
    assert driver.actions[-1] == LastValues({"t"})
    driver.last_values({})  # it keeps more than these
    assert driver.looked() == [1, 2, 3]
    driver.send()
    assert driver.looked() == [4]


OWN, OTHER = "0123456789abcdef", "fedcba9876543210"


def lost(*events: tuple[str, str], condition: bytes = b"") -> Driver:
    """Without a fabric: the connection was lost and is back; events of these sub-topics, with these
    ids, are in flight, the first of them on a condition."""
    driver = Driver(alone=True)
    for number, (topic, identity) in enumerate(events):
        ticket, frame, now, _ = driver.event(number, identity)
        if condition and not number:
            frame = lines.Frame(frame.replace(b"\r\n\r\n", condition + b"\r\n\r\n", 1))
        driver.sending.on_send(number, (ticket, frame, now, topic), driver.now)
    driver.sending.on_down()
    driver.sending.on_up("here", driver.now)
    driver.carry_out()
    return driver


def test_what_a_later_event_came_for_is_not_sent_again() -> None:
    """The engine was started anew, and knows the ids of the last values alone."""
    topics = ["t/a", "t/b", "t/a", "t/a", "t/b", "t/a"]
    driver = lost(*((topic, f"{OWN}-{number}") for number, topic in enumerate(topics)))
    assert driver.actions[-1] == LastValues({"t/a", "t/b"})
    driver.last_values({f"{OWN}-3": 4, f"{OTHER}-1": 3})
    assert [ticket.index for ticket in driver.tickets] == [4, 0, 4, 4, 0, 0]
    assert driver.looked() == [1, 4, 5]


@pytest.mark.parametrize("identity", ["given", f"{OWN}-7", f"{OTHER}-1", f"x{OWN}-1"])
def test_an_id_that_its_caller_gave_says_nothing_of_what_was_sent_before(identity: str) -> None:
    """Somebody else may have sent that one."""
    driver = lost(("t", f"{OWN}-0"), ("t", identity))
    driver.last_values({identity: 4})
    assert driver.tickets[0].index == 0
    assert driver.looked()[0] == 0


def test_a_home_of_last_values_that_is_asked_has_what_went_for_a_later_event() -> None:
    """It is asked up to the newest: it may lead with more than what it was chosen for."""
    settings = TopicSettings(ack="home", keep_last=1)
    driver = free(entry(settings=settings))
    for number in (1, 2, 3):
        ticket, frame, now, _ = driver.event(number, f"{OWN}-{number}")
        driver.sending.on_send(number, (ticket, frame, now, "t/b" if number == 2 else "t/a"), now)
    driver.route(entry(2, 1, settings=settings, forgetful=True))
    assert (driver.question().first, driver.question().last) == (2, None)
    driver.looked()
    driver.recalled(driver.question(), {f"{OWN}-3": 9})
    assert [ticket.index for ticket in driver.tickets] == [1, 9, 0, 9]
    assert driver.looked() == [2]


def test_what_was_written_on_a_condition_is_judged_by_the_engine() -> None:
    ids = [("t", f"{OWN}-0"), ("t", f"{OWN}-1")]
    driver = lost(*ids, condition=b"\r\nNats-Expected-Last-Subject-Sequence:3")
    driver.last_values({f"{OWN}-1": 4})
    assert driver.looked() == [0]


def test_a_connection_that_is_lost_again_is_asked_anew() -> None:
    driver = lost(("t", f"{OWN}-0"))
    driver.sending.on_down()
    driver.send()
    driver.sending.on_up("here", driver.now)
    driver.carry_out()
    assert [type(action) for action in driver.actions].count(LastValues) == 2
    driver.last_values({})
    assert (driver.phase, driver.looked()) == ("free", [0, 1])
    driver.last_values({f"{OWN}-0": 1})  # it comes late, and says nothing any more
    assert driver.tickets[0].index == 0


def test_nothing_is_asked_once_nothing_is_in_flight() -> None:
    driver = lost(("t", f"{OWN}-0"))
    driver.sending.on_down()
    driver.passes(40)
    assert isinstance(driver.tickets[0].error, OutcomeUnknown)
    driver.sending.on_up("here", driver.now)
    driver.carry_out()
    assert driver.phase == "free"
    driver.send()
    assert driver.looked() == [1]


def test_silence_has_the_oldest_sent_again_alone_and_a_late_answer_counts() -> None:
    driver = free()
    driver.send(3)
    driver.looked()
    driver.passes(0.5)
    assert set(driver.looked()) == {1}
    assert driver.phase == "probing"
    driver.answer(1, 2, first=2)
    assert driver.looked() == [3]


def test_after_a_standstill_nothing_overtakes_what_may_be_lost() -> None:
    """The loop is blocked (FAULTS.md, H11): nobody has looked when the next one is sent."""
    driver = free()
    driver.send()
    assert driver.looked() == [1]
    driver.passes(0.6, looks=False)
    driver.send(2)
    assert driver.looked() == []
    driver.passes(0.3)
    assert driver.looked()[0] == 1
    driver.answer(1, first=2)
    assert driver.looked() == [2, 3]


def test_what_nobody_took_is_tried_again_by_and_by_and_alone() -> None:
    driver = free()
    driver.send(3)
    driver.looked()
    for number in (1, 2, 3):
        driver.refuse(number, NOBODY)
    (retry,) = [action for action in driver.actions if isinstance(action, Retry)]
    driver.sending.on_retry(driver.now)
    driver.carry_out()
    assert driver.looked() == [1]
    driver.refuse(1, NOBODY)
    again = driver.actions[-1]
    assert isinstance(again, Retry)
    assert again.after > retry.after


def test_a_retry_that_comes_when_the_way_is_free_is_ignored() -> None:
    driver = in_phase("pausing")
    driver.answer(1, first=2)
    driver.send()
    driver.looked()
    driver.sending.on_retry(driver.now)
    driver.carry_out()
    assert (driver.phase, driver.looked()) == ("free", [])


def test_a_topic_that_moves_twice_while_the_oldest_is_on_its_way() -> None:
    """Each home is sent the oldest alone; what was in flight goes once, to the last of them."""
    driver = free()
    driver.send(3)
    driver.looked()
    driver.route(entry(2, 1, home="b"))
    driver.route(entry(3, 1, home="c"))
    assert driver.looked() == [1, 1]
    assert driver.actions.count("aim") == 1
    driver.answer(1, first=2)
    assert driver.looked() == [2, 3]


# A lost home


def kept(count: int = 3) -> Driver:
    """A driver whose events the home alone has."""
    driver = free()
    tickets = driver.send(count)
    driver.answer(*range(1, count + 1), first=2)
    assert [ticket.index for ticket in tickets] == list(range(2, count + 2))
    driver.looked()
    return driver


def test_what_a_lost_home_acknowledged_is_stored_again_however_long_ago_it_was() -> None:
    """FAULTS.md, H1: the replica is away for longer than the timeout, and then the home is lost."""
    driver = kept()
    driver.passes(40)
    driver.route(entry(2, 1, home="z"))
    driver.tick()
    driver.passes(40)
    assert set(driver.looked()) == {1}
    driver.answer(1, first=2)
    assert driver.looked() == [2, 3]
    driver.send()
    driver.answer(2, 3, 4, first=3)
    driver.report(5)
    assert driver.sending.is_idle


def test_what_is_lost_goes_before_what_is_newer() -> None:
    driver = kept()
    driver.send(2)
    driver.looked()
    driver.route(entry(2, 2, home="z"))
    assert driver.looked() == [2]
    driver.answer(2, first=3)
    assert driver.looked() == [3, 4, 5]


def test_a_home_that_returns_with_fewer_events_gets_them_again_at_both_levels() -> None:
    for level in ("home", "quorum"):
        driver = free(ack=level)
        tickets = driver.send(4)
        driver.answer(1, 2, 3, 4, first=2)
        driver.report(3)
        driver.looked()
        driver.route(entry(2, 3))
        assert driver.looked() == [3]
        driver.answer(3, 4, first=4)
        driver.report(5)
        assert [ticket.index for ticket in tickets] == [2, 3, 4, 5]


def test_a_forgetful_home_is_asked_what_it_has_before_anything_is_sent() -> None:
    """FAULTS.md, H9: it has forgotten ids, and would store its events twice."""
    driver = free()
    tickets = driver.send(3)
    driver.looked()
    driver.route(entry(2, 3, forgetful=True))
    driver.send()
    assert driver.looked() == []
    question = driver.question()
    assert (question.first, question.last) == (2, 3)
    assert list(question.wanted) == ["p-1", "p-2", "p-3"]
    driver.recalled(question, {"p-1": 2, "p-2": 3})
    assert [ticket.index for ticket in tickets] == [2, 3, 0]
    assert driver.looked() == [3]
    driver.answer(3, first=4)
    assert driver.looked() == [4]


def test_what_a_caller_sends_again_is_not_stored_twice_by_a_forgetful_home() -> None:
    """Who sent it before may have been another publisher, on another machine."""
    driver = Driver(entry(2, 7, forgetful=True))
    driver.send()
    assert driver.looked() == [0], "what has an id of ours nobody has sent before"
    driver.answer(0, first=8)
    there, new = driver.send_as("there"), driver.send_as("new")
    late = driver.send()[0]
    question = driver.question()
    assert question.past
    assert question.first > 7, "not the whole log: as far back as ids are remembered"
    assert len([each for each in driver.actions if isinstance(each, Recall)]) == 1
    assert (driver.phase, driver.looked()) == ("recalling", [])
    driver.recalled(question, {"there": 3, "also": 4})
    assert (there.index, driver.looked()) == (3, [new.number])
    driver.answer(new.number, first=9)
    assert driver.looked() == [late.number]
    driver.answer(late.number, first=10)
    also, another = driver.send_as("also"), driver.send_as("another")
    assert (also.index, driver.looked()) == (4, [another.number]), "it is asked once"
    driver.answer(another.number, first=11)
    driver.passes(DUPLICATE_WINDOW + 1)
    driver.send_as("also")
    assert len(driver.looked()) == 1, "so long ago nobody may send again"


def test_a_forgetful_home_is_asked_again_until_it_says_what_it_has() -> None:
    driver = Driver(entry(2, 7, forgetful=True))
    event = driver.send_as("x")
    driver.recalled(driver.question(), None)
    question = driver.question()
    assert question.past
    driver.sending.forget(event)
    driver.recalled(question, None)
    event = driver.send_as("x")
    assert not driver.looked()
    driver.recalled(driver.question(), {"x": 5})
    assert event.index == 5


def test_what_is_there_already_is_told_at_level_quorum_though_replicas_tell_nothing_new() -> None:
    driver = Driver(entry(2, 7, forgetful=True), ack="quorum")
    driver.report(9)
    event = driver.send_as("x")
    driver.recalled(driver.question(), {"x": 5, "y": 6})
    assert event.index == 5
    assert driver.send_as("y").index == 6


def test_what_waited_in_an_outbox_is_looked_for_before_it_goes_home() -> None:
    outbox = TopicSettings(ack="outbox")
    driver = Driver(entry(2, 7, forgetful=True, settings=outbox))
    event = driver.send_as("x")
    assert driver.looked() == [0]
    driver.route(entry(2, 7, forgetful=True))
    driver.recalled(driver.question(), {"x": 5})
    assert event.index == 5


def test_a_question_about_another_home_s_events_is_not_cut_short_by_one_with_an_id() -> None:
    """Those may have been stored at any time, by whichever clock."""
    driver = free()
    driver.send(2)
    driver.route(entry(2, 3, forgetful=True))
    before = driver.question()
    driver.send_as("x")
    question = driver.question()
    assert question.past
    assert question.first == before.first == 2
    driver.recalled(question, {"p-1": 2, "x": 3})
    assert [driver.tickets[n].index for n in (1, 3)] == [2, 3]
    assert driver.looked()[-1] == 2


def test_the_next_home_is_asked_too_if_it_is_forgetful() -> None:
    driver = Driver(entry(2, 7, forgetful=True))
    driver.send_as("x")
    driver.recalled(driver.question(), {})
    assert driver.looked() == [0]
    driver.route(entry(3, 7, home="b", forgetful=True))
    question = driver.question()
    assert question.past
    assert not driver.looked()
    driver.recalled(question, {"x": 6, "y": 7})
    assert driver.tickets[0].index == 6
    assert driver.send_as("y").index == 7
    driver.route(entry(4, 8))
    driver.send_as("y")
    assert len(driver.looked()) == 1, "this one remembers"


def test_what_a_home_says_of_a_question_that_is_over_is_ignored() -> None:
    driver = free()
    (ticket,) = driver.send()
    driver.route(entry(2, 2, forgetful=True))
    late = driver.question()
    driver.route(entry(3, 1, home="z", forgetful=True))
    driver.looked()
    driver.recalled(late, {"p-1": 2})
    assert not ticket.done()
    assert (driver.phase, driver.looked()) == ("recalling", [])
    driver.recalled(driver.question(), {})
    assert driver.looked() == [1]
    driver.recalled(late, {"p-1": 2})
    assert not ticket.done()


def test_a_home_that_does_not_say_what_it_has_is_asked_again() -> None:
    driver = in_phase("recalling")
    for _ in range(3):
        question = driver.question()
        driver.recalled(question, None)
        assert driver.phase == "recalling"
        assert driver.question() is not question
        assert driver.question().after > 0
    driver.recalled(driver.question(), {})
    assert driver.looked() == [1]


def test_what_was_recalled_while_the_connection_is_lost_goes_out_when_it_is_back() -> None:
    driver = in_phase("recalling")
    driver.sending.on_down()
    driver.recalled(driver.question(), {})
    assert (driver.phase, driver.looked()) == ("away", [])
    driver.sending.on_up("here", driver.now)
    driver.carry_out()
    assert driver.looked() == [1]


def test_what_is_older_than_ids_are_remembered_is_looked_for_up_to_the_newest() -> None:
    driver = kept(2)
    driver.passes(rules.REMEMBERED + 1)
    driver.route(entry(2, 1, home="z"))
    assert driver.looked() == []
    assert driver.question().last is None
    driver.recalled(driver.question(), {"p-1": 7})
    assert driver.looked() == [2]
    driver.passes(5)
    assert driver.phase == "probing", "it is not looked for again at once"


# Levels


def test_at_level_quorum_a_caller_is_told_once_replicas_have_it() -> None:
    driver = free(ack="quorum")
    tickets = driver.send(3)
    driver.answer(1, 2, 3, first=2)
    assert not any(ticket.done() for ticket in tickets)
    driver.report(3)
    assert [ticket.done() for ticket in tickets] == [True, True, False]


def test_a_report_that_comes_before_the_answer_counts() -> None:
    driver = free(ack="quorum")
    (ticket,) = driver.send()
    driver.report(2)
    driver.answer(1, first=2)
    assert ticket.index == 2


def test_who_waits_for_replicas_is_told_when_the_home_is_enough_from_now_on() -> None:
    quorum = entry(settings=TopicSettings(ack="quorum"))
    driver = free(quorum)
    (ticket,) = driver.send()
    driver.answer(1, first=2)
    assert not ticket.done()
    driver.route(entry())
    assert ticket.index == 2
    driver.looked()
    driver.route(entry(2, 1, home="z"))
    assert driver.looked() == [1], "and it is kept for the next home"


def test_what_is_in_the_outbox_of_a_site_goes_on_there_alone() -> None:
    driver = free(ack="outbox")
    (ticket,) = driver.send()
    driver.sending.on_down()
    driver.sending.on_up("elsewhere", driver.now)
    driver.send()
    driver.passes(5)
    driver.looked()
    driver.sending.on_down()
    driver.sending.on_up("here", driver.now)
    driver.carry_out()
    assert driver.looked() == [1]
    driver.answer(1, first=9)
    assert (ticket.done(), ticket.index) == (True, 0)
    assert driver.looked() == [2]


# Limits


@pytest.mark.parametrize("phase", PHASES)
def test_the_window_holds_in_every_phase(phase: Phase) -> None:
    driver = in_phase(phase, window=5)
    while driver.sending.takes:
        driver.send()
    assert len(driver.sending.in_flight) == 5
    driver.sending.forget(driver.tickets[-1])
    assert driver.sending.takes


@pytest.mark.parametrize("phase", PHASES)
def test_what_takes_too_long_is_told_in_every_phase(phase: Phase) -> None:
    driver = in_phase(phase, timeout=5.0)
    (waiting,) = driver.tickets[1:]
    driver.passes(6)
    assert isinstance(waiting.error, OutcomeUnknown)
    assert driver.sending.is_idle
    assert driver.sending.takes


@pytest.mark.parametrize("phase", PHASES)
def test_what_cannot_be_stored_is_told_in_every_phase_and_it_goes_on(phase: Phase) -> None:
    driver = in_phase(phase)
    error = FabricError("no link can lead there", "")
    driver.sending.give_up(error)
    driver.carry_out()
    assert driver.tickets[1].error is error
    driver.looked()
    driver.send()
    assert driver.looked() == ([2] if phase in ("probing", "pausing", "free") else [])


@pytest.mark.parametrize("phase", PHASES)
def test_closing_settles_everything_in_every_phase(phase: Phase) -> None:
    driver = in_phase(phase)
    driver.sending.on_close(driver.now)
    driver.carry_out()
    assert all(ticket.done() for ticket in driver.tickets)
    assert driver.actions[-1] == "end"
    assert not driver.sending.takes


@pytest.mark.parametrize("phase", PHASES)
def test_a_topic_that_is_deleted_is_looked_for_anew_in_every_phase(phase: Phase) -> None:
    driver = in_phase(phase)
    driver.sending.on_gone(driver.now)
    driver.carry_out()
    assert all(ticket.done() for ticket in driver.tickets)
    assert not driver.sending.takes
    driver.sending.on_up("here", driver.now)
    driver.sending.on_located(entry(home="b"), "here", driver.now)
    driver.carry_out()
    driver.looked()
    driver.send(2)
    assert driver.looked() == [2]


def test_a_publisher_is_in_use_wherever_its_events_are() -> None:
    """FAULTS.md, H14: one that is not may be closed."""
    driver = Driver(entry(), ack="home")
    assert driver.sending.is_idle
    driver.send()
    assert not driver.sending.is_idle, "in flight"
    driver.answer(0)
    assert not driver.sending.is_idle, "kept"
    driver.route(entry(2, 0, home="z"))
    assert not driver.sending.is_idle, "lost"
    driver.answer(0)
    driver.report(1)
    assert driver.sending.is_idle
    driver = free(ack="quorum")
    driver.send()
    driver.answer(1, first=2)
    assert not driver.sending.is_idle, "waiting"


def test_what_is_lost_and_finds_no_room_is_tried_until_there_is_some() -> None:
    driver = kept(2)
    (waiting,) = driver.send()
    driver.route(entry(2, 1, home="z"))
    driver.refuse(1, data=FULL)
    assert isinstance(waiting.error, StorageFull)
    assert driver.phase == "pausing"
    driver.looked()
    driver.sending.on_retry(driver.now)
    driver.carry_out()
    assert driver.looked() == [1]
    driver.answer(1, first=2)
    assert driver.looked() == [2]


def test_a_closed_publisher_ends_when_replicas_have_all_or_after_a_while() -> None:
    for waits in (False, True):
        driver = kept()
        driver.sending.on_close(driver.now)
        driver.carry_out()
        assert "end" not in driver.actions
        if waits:
            driver.passes(rules.LINGER + 0.1)
        else:
            driver.report(4)
            driver.passes(0.05)
        assert "end" in driver.actions


def test_what_a_home_refuses_is_told_with_its_reason() -> None:
    driver = free()
    (ticket,) = driver.send()
    driver.refuse(1, data=REFUSED)
    assert isinstance(ticket.error, SkerryError)
    assert driver.sending.is_idle


# Found while the rules were taken out of the publisher


@pytest.mark.parametrize("limit", [{"window": 5}, {"window_bytes": 5 * 54}])
def test_what_waits_for_replicas_takes_room_in_the_window(limit: dict[str, Any]) -> None:
    """Also while events are sent in one go, with no answer between them."""
    driver = free(ack="quorum", **limit)
    driver.send(3)
    driver.answer(1, 2, 3, first=2)
    while driver.sending.takes:
        driver.send()
    assert len(driver.sending.waits) == 3
    assert len(driver.sending.in_flight) == 2


def test_a_refusal_frees_the_way_as_an_acknowledgement_does() -> None:
    """Else each one refused would cost the patience for silence, which doubles."""
    driver = Driver(entry())
    tickets = driver.send(3)
    driver.refuse(0, data=REFUSED)
    assert driver.looked() == [0, 1, 2]
    driver.refuse(1, data=REFUSED)
    driver.answer(2)
    assert [ticket.error is None for ticket in tickets] == [False, False, True]


@pytest.mark.parametrize("phase", ["probing", "pausing", "free"])
def test_after_a_timeout_the_next_one_goes_alone(phase: Phase) -> None:
    """The way was not found free: a link that comes back may swallow one and deliver the next."""
    driver = in_phase(phase, timeout=5.0)
    driver.passes(6)
    driver.looked()
    driver.send(3)
    assert driver.looked() == [2]
    driver.answer(2, first=2)
    assert driver.looked() == [3, 4]


def test_who_waits_for_replicas_that_a_topic_has_no_more_is_told() -> None:
    driver = free(ack="quorum")
    (ticket,) = driver.send()
    driver.answer(1, first=2)
    assert not ticket.done()
    driver.route(entry(2, 2, members=("a",)))
    assert ticket.index == 2
    assert driver.sending.is_idle


def test_a_topic_that_leaves_the_outbox_is_published_to_at_any_site() -> None:
    driver = free(entry(settings=TopicSettings(ack="outbox")))
    driver.route(entry(2, 1))
    driver.sending.on_down()
    driver.sending.on_up("elsewhere", driver.now)
    driver.send()
    assert driver.looked() == [1]


def test_a_closed_publisher_ends_when_its_topic_is_deleted() -> None:
    driver = kept()
    driver.sending.on_close(driver.now)
    driver.sending.on_gone(driver.now)
    driver.carry_out()
    assert "end" in driver.actions


def test_what_replicas_had_of_a_deleted_topic_says_nothing_of_the_next_of_its_name() -> None:
    driver = free(ack="quorum")
    driver.report(50)
    driver.sending.on_gone(driver.now)
    driver.sending.on_located(entry(), "here", driver.now)
    driver.carry_out()
    (ticket,) = driver.send()
    driver.answer(1)
    assert not ticket.done()
    driver.report(1)
    assert ticket.index == 1


def test_who_does_not_know_the_outcome_is_told_the_id_that_the_event_bears() -> None:
    driver = in_phase("free", timeout=5.0)
    driver.passes(6)
    error = driver.tickets[1].error
    assert isinstance(error, OutcomeUnknown)
    assert "its id is p-1." in error.advice


def test_after_a_timeout_that_came_before_any_doubt_the_next_one_goes_alone() -> None:
    """The way is so long that the publisher is patient for longer than its callers are."""
    driver = in_phase("free", timeout=5.0)
    driver.passes(6, looks=False)
    assert driver.tickets[1].done()
    driver.send(3)
    assert driver.looked() == [2]
