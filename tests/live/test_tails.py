"""What a segment holds beyond the history is put aside and brought home, whatever comes between."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from skerry import Client
from skerry.engine.jetstream import JetStream
from skerry.errors import FabricError
from skerry.fabric.peers import is_held
from skerry.fabric.salvage import salvage
from skerry.fabric.streams import Local
from skerry.fabric.tails import Tails
from skerry.model.event import Event
from skerry.testing import LocalFabric
from tests.conftest import until
from tests.live.fabrics import contents
from tests.live.test_replicas import has, log_at
from tests.live.test_rolls import part_of

SEGMENT = "t~t~~5"


class Former:
    """A site that has, beside its topic `t`, a segment of a log of `t` that it once led."""

    def __init__(self, fabric: LocalFabric, client: Client) -> None:
        self.client = client
        copies = part_of(fabric, "hub").copies
        self.tails: Tails = copies.tails
        self.jetstream: JetStream = copies._jetstream
        self.local = Local("t", "hub")
        self.local.places = [(5, 1), (6, 100)]

    async def write(self, events: list[tuple[str, str]], root: int = 0) -> None:
        """Have the segment hold events, by topic and payload. Their ids are their payloads."""
        config = {
            "name": SEGMENT,
            "storage": "file",
            "subjects": ["x.>"],
            "subject_transform": {"src": "x.>", "dest": "e.>"},
            "metadata": {"skerry.home": "hub", "skerry.root": str(root)},
        }
        await self.jetstream.call(f"STREAM.CREATE.{SEGMENT}", config)
        for topic, data in events:
            head = f"NATS/1.0\r\nNats-Msg-Id:{data[:100]}\r\n\r\n".encode()
            await self.jetstream.ask(f"x.{topic.replace('/', '.')}", data.encode(), head)

    async def cut(self, end: int) -> None:
        """Have the segment end at an index."""
        self.local.ends = {5: end}
        await self.tails.cut(self.local)

    async def lose_segment(self) -> None:
        """As if the log here were made anew."""
        await self.jetstream.call(f"STREAM.DELETE.{SEGMENT}")
        self.local.ends = {}

    async def bring_home(self) -> list[str]:
        """Bring home what there is; return what the topic holds then."""
        self.tails.bring_home(self.local)
        await until(lambda: "t" not in self.tails.kept)
        assert not await self.tails._all("t")
        return [data.decode() for data in await contents(self.client, "t")]


@asynccontextmanager
async def former_home(**settings: Any) -> AsyncIterator[Former]:
    async with LocalFabric(["hub"]) as fabric, fabric.connect("hub", "admin") as client:
        await client.create_topic("t", home="hub", **settings)
        yield Former(fabric, client)


@pytest.fixture
def fails_half_way(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Tails are stored, and nobody writes down that they are complete; undo it to have it so."""
    store = Tails._store

    async def fail(self: Tails, name: str, events: list[Event]) -> None:
        await store(self, name, events)
        raise FabricError("the test says no")

    monkeypatch.setattr(Tails, "_store", fail)
    return monkeypatch


async def test_last_values_that_are_newer_stay_the_last() -> None:
    """The home may have had the older one too, and have removed it: nobody can tell any more."""
    async with former_home(keep_last=1) as site:
        await site.write([("t/s", "old"), ("t/r", "alone")])
        await site.client.publish("t/s", "new")
        await site.cut(0)
        assert await site.bring_home() == ["new", "alone"]


async def test_of_last_values_that_are_brought_home_the_newest_stays() -> None:
    """Of two tails the earlier one came later than the events of the other were published."""
    async with former_home(keep_last=1) as site:
        await site.write([("t/s", "one"), ("t/s", "two")])
        await site.cut(1)
        await site.cut(0)
        assert await site.bring_home() == ["two"]


async def test_what_is_older_than_all_that_is_kept_is_left_out() -> None:
    """Else it would take the place of newer ones."""
    async with former_home(max_events=2) as site:
        await site.write([("t", "old")])
        for data in ("aged out", "new", "newer"):
            await site.client.publish("t", data)
        await site.cut(0)
        assert await site.bring_home() == ["new", "newer"]


async def test_what_is_older_is_brought_home_where_nothing_aged_out() -> None:
    async with former_home(max_events=9) as site:
        await site.write([("t", "old")])
        await site.client.publish("t", "new")
        await site.cut(0)
        assert await site.bring_home() == ["new", "old"]


@pytest.mark.parametrize("settings", [{}, {"max_events": 9}])
async def test_an_event_that_its_topic_does_not_take_any_more_holds_up_none(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with former_home(max_event_bytes=200, **settings) as site:
        await site.write([("t", "x" * 500), ("t", "small")])
        await site.cut(0)
        assert await site.bring_home() == ["small"]
    assert "index 1, id xxx" in caplog.text


async def test_a_segment_that_is_to_end_earlier_is_cut_again() -> None:
    """While its first tail waits. What lies earlier goes home first."""
    async with former_home() as site:
        await site.write([("t", str(number)) for number in range(1, 8)])
        await site.cut(5)
        await site.cut(3)
        await site.cut(3)
        assert len(await site.tails._all("t")) == 2
        assert await site.bring_home() == ["4", "5", "6", "7"]


async def test_a_tail_that_is_not_complete_is_made_anew(fails_half_way: pytest.MonkeyPatch) -> None:
    """Also if the segment is to end earlier by then."""
    async with former_home() as site:
        await site.write([("t", str(number)) for number in range(1, 8)])
        with pytest.raises(FabricError):
            await site.cut(5)
        fails_half_way.undo()
        await site.cut(3)
        assert len(await site.tails._all("t")) == 1
        assert await site.bring_home() == ["4", "5", "6", "7"]


async def test_a_tail_whose_segment_is_gone_is_as_complete_as_can_be(
    fails_half_way: pytest.MonkeyPatch,
) -> None:
    async with former_home() as site:
        await site.write([("t", "alone")])
        with pytest.raises(FabricError):
            await site.cut(0)
        await site.lose_segment()
        assert await site.bring_home() == ["alone"]


async def test_a_tail_of_a_topic_that_was_deleted_goes_complete_or_not(
    fails_half_way: pytest.MonkeyPatch,
) -> None:
    async with former_home() as site:
        await site.client.delete_topic("t")
        await site.client.create_topic("t", home="hub")
        await site.write([("t", "of another topic")], root=1)
        with pytest.raises(FabricError):
            await site.cut(0)
        site.local.ends = {}  # as the log went with its topic
        assert await site.bring_home() == []


@pytest.fixture
def storing(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Whether a tail is about to be stored, and whether it may."""
    store, is_storing, may_store = Tails._store, asyncio.Event(), asyncio.Event()

    async def wait(self: Tails, name: str, events: list[Event]) -> None:
        is_storing.set()
        await may_store.wait()
        await store(self, name, events)

    monkeypatch.setattr(Tails, "_store", wait)
    return is_storing, may_store


async def test_a_tail_that_is_just_made_goes_with_its_topic(
    storing: tuple[asyncio.Event, asyncio.Event],
) -> None:
    async with former_home() as site, asyncio.TaskGroup() as group:
        await site.write([("t", "over")])
        cutting = group.create_task(site.cut(0))
        await storing[0].wait()
        forgetting = group.create_task(site.tails.forget("t"))
        # To ask for this takes longer than `forget`, did it not wait.
        await site.tails._all("t")
        await site.tails._all("t")
        storing[1].set()
        await asyncio.gather(cutting, forgetting)
        assert not await site.tails._all("t")
        assert "t" not in site.tails.kept


async def test_a_segment_that_is_to_end_earlier_while_it_is_cut_loses_nothing(
    storing: tuple[asyncio.Event, asyncio.Event],
) -> None:
    """Another home was chosen meanwhile, and the whole segment is none of the log's any more."""
    async with former_home() as site, asyncio.TaskGroup() as group:
        await site.write([("t", str(number)) for number in range(1, 8)])
        cutting = group.create_task(site.cut(5))
        await storing[0].wait()
        site.local.places, site.local.ends = [(6, 1)], {5: 0}
        storing[1].set()
        await cutting
        await site.tails.cut(site.local)
        assert await site.bring_home() == ["1", "2", "3", "4", "5", "6", "7"]


async def test_a_tail_that_was_seen_as_it_was_made_is_brought_home_whole(
    storing: tuple[asyncio.Event, asyncio.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was empty when it was looked at; then it is complete, and its segment is gone."""
    look, is_seen = Tails._all, asyncio.Event()

    async def see(self: Tails, name: str) -> list[dict[str, Any]]:
        found = await look(self, name)
        is_seen.set()
        return found

    async with former_home() as site, asyncio.TaskGroup() as group:
        site.local.places = [(6, 100)]
        await site.write([("t", "alone")])
        cutting = group.create_task(site.cut(0))
        await storing[0].wait()
        monkeypatch.setattr(Tails, "_all", see)
        site.tails.bring_home(site.local)
        await is_seen.wait()
        storing[1].set()
        await cutting
        assert await site.jetstream.stream(SEGMENT) is None
        assert await site.bring_home() == ["alone"]


async def test_what_a_former_home_brought_stays_with_it_until_enough_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one that took it is lost for good before its replica is back."""
    looks: list[bool] = []

    async def look(*args: Any) -> bool:
        looks.append(await is_held(*args))
        return looks[-1]

    async with LocalFabric(["hub", "farm", "lab", "barn"]) as fabric:

        async def bring(*args: Any) -> tuple[int, int]:
            if "barn" in fabric.sites and not looks:
                await fabric.crash("barn")
            return await salvage(*args)

        monkeypatch.setattr("skerry.fabric.tails.is_held", look)
        monkeypatch.setattr("skerry.fabric.tails.salvage", bring)
        async with fabric.connect("hub", "admin") as admin:
            await admin.create_topic("t", home="farm", replicas=1, spread="lab")
            await admin.publish("t", "all have this", ack="quorum")
            await fabric.crash("lab")
            async with fabric.connect("hub") as client:
                assert await client.publish("t", "only farm has this", ack="home") == 2
            await fabric.crash("farm")
            await fabric.start("lab")
            assert await admin.publish("t", "x") == 2
            topic = await admin.set_topic("t", replicas=1, spread="barn")
            assert (topic.home, topic.replicas) == ("lab", ("barn",))
            await has(fabric["barn"], "t", 2)
            await fabric.start("farm")
            await has(fabric["lab"], "t", 3)
            await until(lambda: len(looks) >= 3)
            assert not any(looks)
            await fabric.crash("lab")
            shutil.rmtree(fabric.root / "lab")
            await fabric.start("barn")
            await has(fabric["barn"], "t", 3)
            log = [data for _, data in await log_at(fabric["barn"], "t")]
            assert log == [b"all have this", b"x", b"only farm has this"]
