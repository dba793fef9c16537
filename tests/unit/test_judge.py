"""The judge of the fault campaigns: a bad history for each rule, beside it a good one that is only
just allowed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from skerry.log.durable import ACKED_KEPT
from tests.soak.check import Destroyed, Promise, Stored, Told, check_log, excused
from tests.soak.judge import Ack, Delivery, Judge


def ack(
    number: int,
    index: int,
    *,
    time: float = 1.0,
    began: float | None = None,
    epoch: int = 1,
    publisher: str = "p",
    level: str = "quorum",
) -> Ack:
    began = time - 0.1 if began is None else began
    return Ack("t", level, publisher, number, index, epoch, began, time)


def live(
    index: int, payload: str, stamp: int = 0, time: float = 1.0, session: str = "1"
) -> Delivery:
    return Delivery("r", "t", session, index, payload, stamp, time)


def durable(
    index: int, payload: str, deliveries: int = 1, stamp: int = 0, session: str = "1"
) -> Delivery:
    return Delivery("d", "t", session, index, payload, stamp, 1.0, deliveries)


def judged(*told: Ack | Delivery) -> list[str]:
    """The rules that a history breaks, each of them once."""
    judge = Judge()
    for one in told:
        judge.acknowledged(one) if isinstance(one, Ack) else judge.delivered(one)
    return [violation.partition(":")[0] for violation in judge.violations]


def either_way(*told: Ack | Delivery) -> list[str]:
    """The same for two writers, whose files may be read in any order."""
    found = judged(*told)
    assert judged(*reversed(told)) == found
    return found


def test_a_good_history_breaks_no_rule() -> None:
    told: list[Ack | Delivery] = []
    for number in range(10):
        told += [ack(number, number + 1), live(number + 1, f"p:{number}", number)]
        told.append(durable(number + 1, f"p:{number}", stamp=number))
    assert judged(*told) == []


def test_two_events_acknowledged_at_quorum_under_one_index_are_noticed() -> None:
    assert either_way(ack(0, 5), ack(0, 5, publisher="q")) == ["one event"]
    assert either_way(ack(0, 5), ack(0, 5, publisher="q", level="home")) == []


def test_an_acknowledgement_of_an_earlier_epoch_for_a_publish_begun_later_is_noticed() -> None:
    new = ack(0, 7, epoch=2, time=10.0, publisher="q")
    assert either_way(new, ack(0, 5, epoch=1, began=10.1, time=10.3)) == ["one home"]
    assert either_way(new, ack(0, 5, epoch=1, began=9.9, time=10.3)) == []


def test_the_home_of_a_later_epoch_is_known_by_any_of_its_acknowledgements() -> None:
    new = ack(0, 7, epoch=3, time=10.0, publisher="q", level="home")
    assert either_way(new, ack(0, 5, epoch=1, began=10.1, time=10.3)) == ["one home"]


def test_a_home_that_shuts_late_is_counted_at_level_home() -> None:
    judge = Judge()
    judge.acknowledged(ack(0, 7, epoch=2, time=10.0, publisher="q"))
    judge.acknowledged(ack(0, 5, epoch=1, began=10.1, time=10.3, level="home"))
    assert judge.violations == []
    assert judge.counts["late at level home"] == 1


def test_acknowledgements_at_quorum_against_a_publishers_order_are_noticed() -> None:
    assert either_way(ack(0, 5), ack(1, 4)) == ["ack order"]
    assert either_way(ack(0, 4), ack(1, 5)) == []


def test_an_event_that_a_live_reader_misses_is_noticed() -> None:
    assert judged(live(1, "p:0"), live(3, "p:2")) == ["gap"]
    assert judged(live(1, "p:0"), live(3, "p:2", session="2")) == []


@pytest.mark.parametrize("numbers", [(1, 0), (0, 0), (0, 2, 1)])
def test_a_publishers_events_out_of_order_or_twice_in_a_live_reader_are_noticed(
    numbers: Sequence[int],
) -> None:
    told = [live(index, f"p:{number}", index) for index, number in enumerate(numbers, 1)]
    acks = [ack(number, 0, level="home") for number in set(numbers)]
    assert judged(*told, *acks) == judged(*acks, *told) == ["order"]
    assert judged(*told) == (["order"] if len(set(numbers)) < len(numbers) else [])


def test_an_index_below_where_a_live_reader_began_is_noticed() -> None:
    assert judged(live(5, "p:4"), live(4, "p:3")) == ["order"]


def test_a_live_reader_that_is_given_the_very_same_event_again_is_noticed() -> None:
    told = [live(1, "p:0", 10), live(2, "p:1", 11)]
    assert judged(*told, live(2, "p:1", 11)) == ["twice"]
    assert judged(*told, live(2, "p:1", 99)) == []  # stored anew by the next home


def test_a_live_reader_may_go_back_to_what_took_the_place_of_lost_events() -> None:
    told = [live(1, "p:0", 10), live(2, "q:0", 11), live(3, "p:1", 12)]
    back = [live(2, "p:1", 20), live(3, "q:0", 21), live(4, "p:2", 22)]
    assert judged(*told, *back) == []


def test_a_reader_that_is_given_another_event_for_one_a_quorum_had_is_noticed() -> None:
    had, other = live(1, "p:0", 10, time=1.0), live(1, "q:0", 20, time=5.0)
    safe = ack(0, 1, time=2.0)
    assert judged(safe, had, other) == ["changed"]
    assert judged(had, safe, other) == ["changed"]
    assert judged(had, other, safe) == ["changed"]
    assert judged(had, other, ack(0, 1, time=2.0, level="home")) == []
    assert judged(had, other, ack(0, 1, time=6.0)) == []  # lost, and stored there again later
    told = [durable(1, "p:0", stamp=10), durable(1, "q:0", stamp=20)]
    assert judged(ack(0, 1, time=0.5), *told) == ["changed"]


def test_a_durable_reader_is_not_given_again_what_it_acknowledged_in_one_subscription() -> None:
    told = [durable(1, "p:0"), durable(2, "p:1")]
    assert judged(*told, durable(1, "p:0", 2)) == ["twice"]
    assert judged(*told, durable(1, "p:0", 1, session="2")) == []
    assert judged(*told, durable(1, "p:0", 1, stamp=9)) == []
    assert judged(*told, durable(1, "q:0", 1, stamp=9), durable(1, "p:0", 1)) == []  # two logs


def test_a_durable_reader_remembers_as_much_as_the_subscription_does() -> None:
    many = [durable(index, f"p:{index}") for index in range(1, ACKED_KEPT + 2)]
    assert judged(*many, durable(1, "p:1", 2)) == []
    assert judged(*many, durable(3, "p:3", 2)) == ["twice"]


def test_a_durable_reader_may_be_given_events_late_which_is_counted() -> None:
    judge = Judge()
    for one in (durable(1, "p:0"), durable(3, "p:2"), durable(2, "p:1")):
        judge.delivered(one)
    assert judge.violations == []
    assert judge.counts["overtaken"] == 1


@pytest.mark.parametrize(
    "log", [["p:0", "p:1", "p:2"], ["p:0", "q:0"], ["p:0"]], ids=["more", "another", "less"]
)
def test_a_live_reader_that_ends_with_other_than_the_log_is_noticed(log: list[str]) -> None:
    judge = Judge()
    for index, payload in enumerate(["p:0", "p:1"], 1):
        judge.delivered(live(index, payload, index))
    right = [Stored(1, "a", "p:0"), Stored(2, "b", "p:1")]
    judge.ended("r", {"t": right})
    assert judge.violations == []
    judge.ended("r", {"t": [Stored(n, "x", payload) for n, payload in enumerate(log, 1)]})
    assert [violation.partition(":")[0] for violation in judge.violations] == ["end"]


def test_a_live_reader_that_was_given_nothing_is_noticed() -> None:
    judge = Judge()
    judge.ended("r", {"t": [Stored(1, "a", "p:0")]})
    assert [violation.partition(":")[0] for violation in judge.violations] == ["end"]


def test_a_violation_is_told_once_and_counted_each_time() -> None:
    judge = Judge()
    for time in (10.3, 10.4):
        judge.acknowledged(ack(0, 7, epoch=2, time=10.0, publisher="q"))
        judge.acknowledged(ack(0, 5, epoch=1, began=10.1, time=time))
    assert len(judge.violations) == 1
    assert judge.counts["broken: one home"] > 1


# What is gone with a destroyed site


def told(level: str, *times: float, sites: Sequence[str] = ()) -> Told:
    promises = [Promise(time, f"p:{number}", number + 1) for number, time in enumerate(times)]
    return Told("t", level, promises, sites=list(sites))


LOST = Destroyed("farm", 100.0)


def test_what_a_quorum_had_is_not_gone_with_a_site() -> None:
    one = told("quorum", 99.0, sites=["farm"])
    assert excused("t", [], [one], LOST) == []
    assert "is lost" in check_log("t", [], [one], excused("t", [], [one], LOST))[0]


def test_what_the_home_alone_had_is_gone_if_its_publisher_ended() -> None:
    one = told("home", 98.0, 99.0)
    gone = excused("t", [], [one], LOST)
    assert [promise.payload for promise in gone] == ["p:0", "p:1"]
    assert check_log("t", [], [one], gone) == []


def test_what_the_home_alone_had_is_stored_again_by_a_publisher_that_lives() -> None:
    one = told("home", 98.0, 99.0, 200.0)
    assert excused("t", [Stored(1, "x", "p:2")], [one], LOST) == []


def test_what_was_acknowledged_after_the_loss_is_there() -> None:
    assert excused("t", [], [told("home", 101.0)], LOST) == []


def test_what_was_in_the_outbox_of_a_lost_site_may_be_gone_and_of_no_other() -> None:
    assert len(excused("t", [], [told("outbox", 99.0, sites=["farm", "lab"])], LOST)) == 1
    assert excused("t", [], [told("outbox", 99.0, sites=["lab"])], LOST) == []
