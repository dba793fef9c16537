"""What is brought home and what is left, and that nothing ends it, without an engine."""

from __future__ import annotations

import asyncio
import logging
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from skerry.config import SiteSettings
from skerry.engine.conf import Inbound, Wiring
from skerry.engine.jetstream import ApiError
from skerry.engine.link import Down
from skerry.errors import EventTooLarge, StorageFull, Unavailable
from skerry.fabric import links
from skerry.fabric.links import Links
from skerry.fabric.salvage import STORED_HEADER, There, is_unfit, kept_as, restored
from skerry.fabric.tails import Tails
from skerry.model.event import Event, reply_of
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
    tails = Tails(cast(Any, engine), *cast(Any, (None, None, None)))
    with pytest.raises(Unavailable):
        await tails._store("r~t", [event(0)])


class Engine:
    """An operator of an engine that takes any configuration. `refusals` are raised by `drop`."""

    def __init__(self) -> None:
        self.refusals: list[Exception] = []
        self.dropped: list[str] = []

    def watch(self, on_link: object) -> None:
        return None

    async def reload(self) -> None:
        return None

    async def drop(self, name: str) -> None:
        if self.refusals:
            raise self.refusals.pop()
        self.dropped.append(name)


def links_of(engine: Engine, tmp_path: Any) -> Links:
    connection = SimpleNamespace(subscribe=lambda *_: None, publish=lambda *_: None)
    settings = SiteSettings(site="hub", data=tmp_path, link_idle=0.001)
    return Links(*cast(Any, (connection, engine, settings, None, None, None, None)))


async def test_links_are_made_on_after_any_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection to the engine may be lost, and the disk may be full."""
    errors = [Down(), OSError(28, "No space left on device"), Unavailable("away")]
    made = links_of(Engine(), tmp_path)
    goes_on = asyncio.Event()

    async def tend(self: Links) -> None:
        if errors:
            raise errors.pop()
        goes_on.set()

    monkeypatch.setattr(Links, "_tend", tend)
    made._store = cast(Any, object())
    task = asyncio.create_task(made._keep_wired())
    waiting = asyncio.create_task(goes_on.wait())
    with caplog.at_level(logging.WARNING):
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    assert not task.done()
    task.cancel()
    assert "No space left" in caplog.text


async def test_who_may_not_dial_any_more_is_dropped_at_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    engine = Engine()
    made = links_of(engine, tmp_path)
    wirings = [Wiring(), Wiring(inbound=(Inbound("lab", "key"),))]
    monkeypatch.setattr(Links, "wiring", lambda self, locked: wirings[-1])
    monkeypatch.setattr(links, "write_conf", lambda *_: None)
    await made.settle()
    wirings.pop()
    engine.refusals = [Down()]
    with pytest.raises(Down):
        await made.settle()
    await made.settle()
    await made.settle()
    assert engine.dropped == ["lab"]


async def test_a_full_disk_keeps_nobody_from_being_told_of_a_record(tmp_path: Any) -> None:
    """The store tells others after us."""

    def save(path: object) -> None:
        raise OSError(28, "No space left on device")

    made = links_of(Engine(), tmp_path)
    made._folder = cast(Any, SimpleNamespace(path=tmp_path))
    made._membership = cast(
        Any, SimpleNamespace(coordination="hub", seeds={"lab": "seed"}, save=save)
    )
    made._on_record("link.hub.lab", None)
    assert made._membership.seeds == {}


def test_silence_counts_from_when_a_link_is_up(tmp_path: Any) -> None:
    """After an outage the peer was not heard for long: a new link is not ended for that, with all
    that is under way on it, before the first heartbeat comes."""
    links = links_of(Engine(), tmp_path)
    links._heard["hub"] = (time.monotonic() - 100, 5.0)
    links._on_engine("hub", True)
    heard, clock = links._heard["hub"]
    assert time.monotonic() - heard < 50
    assert clock == 0.0, "what it said before the outage measures nothing"
    links._heard["hub"] = (heard, 7.0)
    links._on_engine("hub", True)
    assert links._heard["hub"] == (heard, 7.0), "the engine may tell twice"
