"""What becomes of a site between its promise and its part in the epoch that it promised."""

from __future__ import annotations

import msgspec
import pytest

from skerry import Client
from skerry.errors import FabricError
from skerry.fabric.copies import Copies
from skerry.fabric.leader import Leader
from skerry.fabric.logs import Logs
from skerry.fabric.streams import Local
from skerry.model.fabric import TopicEntry
from skerry.model.promotion import Copy
from tests.conftest import until
from tests.live.fabrics import check_all, contents
from tests.live.test_failover import home_of
from tests.live.test_rolls import MEMBERS, four_sites, local_at, part_of, streams_at


async def make(client: Client) -> None:
    await client.create_topic("t", home="a", replicas=2, spread=["b", "c"])


async def test_the_log_of_a_deleted_topic_is_no_part_of_one_that_was_moved_since() -> None:
    """A site comes back with it when the topic of the same name has had several epochs."""
    async with four_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        await make(client)
        await client.publish("t", "old", ack="quorum")
        await fabric.crash("a")

        async def is_replaced() -> bool:
            return await home_of(fabric, "t") != "a"

        await until(is_replaced, 60)
        await client.delete_topic("t")
        await client.create_topic("t", home="b", replicas=1, spread=["c"])
        await client.publish("t", "new", ack="quorum")
        await client.move_topic("t", "c")
        await fabric.start("a")

        async def is_gone() -> bool:
            return not await streams_at(fabric, "a")

        await until(is_gone, 60)
        await check_all(fabric, "t", ["b", "c"], ["new"])


async def test_a_home_whose_engine_started_since_it_was_chosen_says_that_it_forgot_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It told that it knows them when it promised. Publishers are to ask what it has."""
    announce = Leader._announce
    chosen: list[TopicEntry] = []

    async with four_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:

        async def restart_first(self: Leader, entry: TopicEntry) -> bool:
            if not chosen:
                chosen.append(entry)
                await fabric.crash(entry.home)
                await fabric.start(entry.home)
            return await announce(self, entry)

        await make(client)
        await client.publish("t", "x", ack="quorum", id="1")
        for site in MEMBERS:
            part_of(fabric, site).copies.young_until = 0.0  # long ago
        monkeypatch.setattr(Leader, "_announce", restart_first)
        await fabric.crash("a")
        assert await client.publish("t", "y", ack="quorum") == 2
        assert not chosen[0].forgetful
        entry = part_of(fabric, chosen[0].home).copies.entry("t")
        assert entry is not None
        assert entry.home == chosen[0].home
        assert entry.forgetful


async def test_a_home_that_went_on_in_another_stream_since_it_was_chosen_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The entry names its stream, for those who read there."""
    announce = Leader._announce
    chosen: list[TopicEntry] = []

    async def name_another(self: Leader, entry: TopicEntry) -> bool:
        if not chosen:
            chosen.append(entry)
            entry = msgspec.structs.replace(entry, segment=entry.segment + 7)
        return await announce(self, entry)

    async with four_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        await make(client)
        monkeypatch.setattr(Leader, "_announce", name_another)
        await fabric.crash("a")
        assert await client.publish("t", "x", ack="quorum") == 1
        entry = part_of(fabric, chosen[0].home).copies.entry("t")
        assert entry is not None
        assert entry.home == chosen[0].home
        assert entry.stream == local_at(fabric, entry.home).stream


async def beyond_a_base(client: Client) -> None:
    """Make a topic whose copies have a base to reach."""
    await client.create_topic("t", home="a", replicas=1, spread=["b"])
    await client.publish("t", "x", ack="quorum")
    await client.move_topic("t", "b")


async def test_a_copy_whose_mark_is_refused_once_is_marked_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody else looks for that until the next epoch."""
    real = Logs.write_marks
    refused: list[Copy] = []

    async def write_marks(self: Logs, local: Local, copy: Copy | None = None) -> None:
        if self.site == "c" and copy is not None and copy.label and not refused:
            refused.append(copy)
            raise FabricError("there is no room")
        await real(self, local, copy)

    async with four_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        await beyond_a_base(client)
        monkeypatch.setattr(Logs, "write_marks", write_marks)
        async with fabric.connect("c") as reader:
            assert await contents(reader, "t") == [b"x"]
            await until(lambda: bool(refused))
            await until(lambda: local_at(fabric, "c").copy.label == 2)
            await until(lambda: local_at(fabric, "c").delivers)


async def test_a_copy_that_is_sealed_tells_all_that_it_has_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has the base, and nobody has marked that yet."""

    async def wait(self: Copies, local: Local, epoch: int) -> None:
        return None

    async with four_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        await beyond_a_base(client)
        monkeypatch.setattr(Copies, "_catch_up", wait)
        async with fabric.connect("c") as reader:
            assert await contents(reader, "t") == [b"x"]
            local = local_at(fabric, "c")
            assert local.copy.label == 0
            state = await part_of(fabric, "c").copies.seal("t", 3)
            assert state is not None
            assert (state.label, state.last) == (2, 1)
            info = (await streams_at(fabric, "c"))[local.stream]
            assert info["config"]["metadata"]["skerry.label"] == "2"
