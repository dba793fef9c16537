"""Links are looked after whatever fails, without an engine."""

from __future__ import annotations

import asyncio
import logging
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from skerry.config import SiteSettings
from skerry.engine.conf import Inbound, Wiring
from skerry.engine.link import Down
from skerry.errors import Unavailable
from skerry.fabric import links
from skerry.fabric.links import Links


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
