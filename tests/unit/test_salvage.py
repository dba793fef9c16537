"""What is brought home and what is left, and that nothing ends it, without an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from skerry.engine.jetstream import ApiError
from skerry.engine.link import Down
from skerry.engine.wire import Reply
from skerry.errors import EventTooLarge, StorageFull, Unavailable
from skerry.fabric.salvage import STORED_HEADER, Lacked, There, is_unfit, kept_as, restored
from skerry.fabric.tails import Tails
from skerry.model.event import Event, reply_of
from skerry.model.fabric import Step, TopicEntry
from skerry.model.topic import TopicSettings

SECOND = 1_000_000_000
NOW = 1_790_000_000 * SECOND


def event(when: float, *lines: str, topic: str = "t/s", index: int = 7) -> Event:
    """One that was stored `when` seconds from now."""
    head = "\r\n".join(["NATS/1.0", *lines, "", ""]).encode()
    subject = f"e.{topic.replace('/', '.')}".encode()
    return Event(subject, index, head, b"data", reply_of(index, NOW + int(when * SECOND)))


def test_a_tail_keeps_all_of_an_event() -> None:
    """Its time too, and headers of the user's that are called as one of ours."""
    before = event(-100, "Nats-Msg-Id:id", "Index:12", "Kept-Index:3", "Skerry-Key:k")
    subject, head = kept_as("r~t", before)
    kept = Event(subject.encode(), 1, head, before.data, reply_of(1, NOW))
    after = restored("r~t", kept)
    assert (after.topic, after.index, after.data) == ("t/s", 7, b"data")
    assert after._head == before._head
    assert after.headers == {"Index": "12", "Kept-Index": "3"}
    assert after.timestamp_ns == before.timestamp_ns


@pytest.mark.parametrize("newer", [1, 2, 3])
def test_as_many_newer_ones_as_are_kept_take_the_place_of_an_event(newer: int) -> None:
    there = There(TopicSettings(keep_last=2), has_let_go=True, now=NOW)
    for when in range(newer):
        there.add(event(when + 1))
        there.add(event(when + 1, topic="t/r"))
        there.add(event(-when - 1))
    assert there.is_past(event(0)) == (newer >= 2)
    assert not there.is_past(event(0, topic="t/q"))


def test_of_one_publisher_s_events_the_one_with_the_higher_number_is_newer() -> None:
    """A home that was cut off stores what waited on its links when they are mended. Meanwhile their
    publisher has sent that elsewhere, and more behind it."""
    mine, other = "0123456789abcdef", "fedcba9876543210"
    there = There(TopicSettings(keep_last=1), has_let_go=False, now=NOW)
    there.add(event(-10, f"Nats-Msg-Id:{mine}-12"))
    assert there.is_past(event(0, f"Nats-Msg-Id:{mine}-9"))
    assert not there.is_past(event(-20, f"Nats-Msg-Id:{mine}-13"))
    # Whatever else has an id says nothing by it.
    for identity in (f"{other}-9", f"{mine}-9x", f"x{mine}-9", "order-9"):
        assert not there.is_past(event(0, f"Nats-Msg-Id:{identity}"))
        assert there.is_past(event(-20, f"Nats-Msg-Id:{identity}"))


@pytest.mark.parametrize("has_let_go", [False, True])
def test_a_home_that_has_a_later_event_was_given_the_earlier_ones(has_let_go: bool) -> None:
    """It has let go of them meanwhile. They look newer than all that it has, for they came here
    over a link that was cut."""
    mine, other = "0123456789abcdef", "fedcba9876543210"
    there = There(TopicSettings(max_events=10), has_let_go, now=NOW)
    there.add(event(-10, f"Nats-Msg-Id:{mine}-12"))
    assert there.is_past(event(0, f"Nats-Msg-Id:{mine}-9")) == has_let_go
    for identity in (f"{mine}-13", f"{other}-9", f"{mine}-9x"):
        assert not there.is_past(event(0, f"Nats-Msg-Id:{identity}"))


def test_the_events_of_two_publishers_are_in_one_order() -> None:
    """Of these the first is the oldest, whenever it was stored, for the second came after it."""
    mine, other = "0123456789abcdef", "fedcba9876543210"
    there = There(TopicSettings(keep_last=2), has_let_go=False, now=NOW)
    there.add(event(-10, f"Nats-Msg-Id:{mine}-12"))
    there.add(event(-5, f"Nats-Msg-Id:{other}-5"))
    assert there.is_past(event(0, f"Nats-Msg-Id:{mine}-9"))
    assert not there.is_past(event(0, f"Nats-Msg-Id:{mine}-13"))
    assert not there.is_past(event(-7, f"Nats-Msg-Id:{mine}-13"))


def test_what_was_brought_home_is_as_old_as_it_was() -> None:
    there = There(TopicSettings(keep_last=1), has_let_go=False, now=NOW)
    there.add(event(5, f"{STORED_HEADER}:{NOW - 10 * SECOND}"))
    assert not there.is_past(event(0))
    assert there.is_past(event(-20))
    assert there.is_past(event(1, f"{STORED_HEADER}:{NOW - 20 * SECOND}"))


@pytest.mark.parametrize("limit", [{"max_events": 9}, {"max_bytes": 999}, {"max_age": 3600.0}])
@pytest.mark.parametrize("has_let_go", [False, True])
def test_what_is_older_than_the_first_has_aged_out(limit: Any, has_let_go: bool) -> None:
    there = There(TopicSettings(**limit), has_let_go, NOW)
    assert not there.is_past(event(-9))
    there.add(event(-5))
    there.add(event(-1))
    assert there.is_past(event(-9)) == has_let_go
    assert not there.is_past(event(-3))


def test_what_is_too_old_has_aged_out() -> None:
    """Also if nothing is left at the home."""
    there = There(TopicSettings(max_age=3600.0), has_let_go=False, now=NOW)
    assert there.is_past(event(-3700))
    assert not there.is_past(event(-3500))


def test_without_limits_nothing_has_aged_out() -> None:
    there = There(TopicSettings(), has_let_go=True, now=NOW)
    there.add(event(5))
    assert not there.is_past(event(-1e6))


class Duplicate:
    """The connection to a home that has taken each event before."""

    async def request(self, *_: object, **__: object) -> Reply:
        return Reply(0, b"", b'{"stream":"t~t","domain":"a","seq":5,"duplicate":true}')


async def test_what_the_home_had_before_does_not_hide_what_it_has_since() -> None:
    """Else all that follow would be refused for ever: it has newer ones of the sub-topic."""
    settings = TopicSettings(keep_last=2)
    entry = TopicEntry(
        name="t", home="a", epoch=1, lineage=(Step(1, 0),), born=1, members=("a",),
        settings=settings,
    )  # fmt: skip
    one, newest = Lacked(entry, "id", event(0)), {"e.t.s": 9}
    one.tie(newest)
    await one.send(cast(Any, Duplicate()))
    assert one.index == 5
    assert newest == {"e.t.s": 9}


def test_refusals_of_an_event_and_of_the_state_of_a_site_are_told_apart() -> None:
    assert is_unfit(EventTooLarge("it is"))
    assert is_unfit(ApiError(10097, "header size exceeds maximum allowed of 64k"))
    assert not is_unfit(StorageFull("it is"))
    assert not is_unfit(ApiError(10039, "jetstream not enabled"))


@pytest.mark.parametrize("error", [TimeoutError(), Down()])
async def test_an_engine_that_does_not_say_that_it_stored_is_unavailable(error: Exception) -> None:
    """That is an error which all who cut a log know how to wait for."""

    async def request(*_: object, **__: object) -> None:
        raise error

    engine = SimpleNamespace(connection=SimpleNamespace(request=request))
    tails = Tails(cast(Any, engine), *cast(Any, (None, None, None, None)))
    with pytest.raises(Unavailable):
        await tails._store("r~t", [event(0)])
