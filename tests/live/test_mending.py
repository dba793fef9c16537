"""Putting segments in order: what fails half-way is finished, and what counts is not removed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skerry import Client
from skerry.directory.store import Store
from skerry.errors import FabricError, StorageFull
from skerry.fabric.durables import Durables
from skerry.fabric.following import Following
from skerry.fabric.logs import Logs
from skerry.fabric.mending import Mending
from skerry.fabric.relay import Question
from skerry.fabric.streams import Local, weld_config
from skerry.log.segments import Chain, Extent, find_consumer, look, look_at_chain
from skerry.model.fabric import subscription_key
from skerry.model.names import stream_of
from skerry.testing import LocalFabric
from tests.conftest import until
from tests.live.fabrics import check_all, contents
from tests.live.test_failover import names
from tests.live.test_rolls import (
    MEMBERS,
    four_sites,
    local_at,
    never_welds,
    part_of,
    split,
    until_whole,
)

__all__ = ["never_welds"]


async def with_durable(fabric: LocalFabric, client: Client, count: int = 3) -> None:
    """Topic `t` at home at `a` with some events, and the durable subscription `d` there, which has
    acknowledged the first."""
    await client.create_topic("t", home="a", replicas=2, spread=["b", "c"])
    for name in names(count):
        await client.publish("t", name, ack="quorum")
    async with fabric.connect("a") as reader:
        async with reader.subscribe("t", durable="d", from_index=1) as subscription:
            subscription.ack(await anext(subscription))
        await until(lambda: is_at(fabric, 2))


async def is_at(fabric: LocalFabric, index: int) -> bool:
    """Whether the durable subscription at `a` goes on with `index`."""
    jetstream = part_of(fabric, "a").copies._jetstream
    chain = await look_at_chain(jetstream, "t")
    found = await find_consumer(jetstream, chain or (), "d")
    return found is not None and bool(found[1]["ack_floor"]["stream_seq"] == index - 1)


async def check_durable(fabric: LocalFabric, *expected: str) -> None:
    """The durable subscription at `a` is on the segment that the signpost names, and gives what is
    left."""
    jetstream, local = part_of(fabric, "a").copies._jetstream, local_at(fabric, "a")
    assert await look_at_chain(jetstream, "t") == local.chain
    assert await jetstream.consumer(local.stream, "d") is not None
    async with (
        fabric.connect("a") as reader,
        reader.subscribe("t", durable="d", from_index=1) as subscription,
    ):
        assert [bytes((await anext(subscription)).data).decode() for _ in expected] == [*expected]


async def extent(fabric: LocalFabric, site: str) -> Extent | None:
    """The log as who reads at a site finds it."""
    return await look(part_of(fabric, site).copies._jetstream, "t")


@pytest.mark.parametrize("welds", [False, True])
async def test_a_log_that_lacks_what_its_holder_let_go_begins_behind_that(
    monkeypatch: pytest.MonkeyPatch, welds: bool
) -> None:
    """A former home comes back when its successor has let go of what follows on its log. What it
    has before that would be read as if nothing were missing; also if that was copied already."""
    answer, take_in, begin = Following._answer, Mending._take_in, Mending.begin
    is_copied = asyncio.Event()
    last = 80

    async def wait(self: Following, question: Question) -> tuple[str, str] | None:
        if self._site == "a" and question.stream == stream_of("t", 1):
            await is_copied.wait()
        return await answer(self, question)

    async def take_in_twice(self: Mending, local: Local, *arguments: Any) -> None:
        await take_in(self, local, *arguments)
        is_copied.set()

        async def has_last() -> bool:
            return await self._last(local.stream) == last

        await until(has_last)
        await take_in(self, local, *arguments)

    def begin_or_not(self: Mending, local: Local) -> None:
        if welds or self._logs.site != "a":
            begin(self, local)

    monkeypatch.setattr(Following, "_answer", wait)
    monkeypatch.setattr(Mending, "_take_in", take_in_twice)
    monkeypatch.setattr(Mending, "begin", begin_or_not)
    if not welds:
        is_copied.set()
    async with four_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        await client.create_topic("t", home="a", replicas=2, spread=["b", "c"], max_events=20)
        for name in names(20):
            await client.publish("t", name, ack="quorum")
        await fabric.crash("a")
        for number in range(20, last):
            lifespan = 1 if 65 <= number < 70 else None
            await client.publish("t", f"n-{number}", ack="quorum", lifespan=lifespan)
        kept = [f"n-{number}" for number in range(60, last) if not 65 <= number < 70]

        async def are_over() -> bool:
            async with fabric.connect("b") as reader:
                return len(await contents(reader, "t")) == len(kept)

        await until(are_over)
        await fabric.start("a")

        async def has_all() -> bool:
            found = await extent(fabric, "a")
            return found is not None and found.last == last

        await until(has_all)
        if welds:
            await until_whole(fabric, ["a"])
        found = await extent(fabric, "a")
        assert found is not None
        assert found.first == 61
        assert local_at(fabric, "a").is_split is not welds
        async with fabric.connect("a") as reader:
            assert [data.decode() for data in await contents(reader, "t")] == kept


@pytest.mark.parametrize("step", ["list", "move", "drop"])
async def test_a_weld_that_fails_half_way_is_finished(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The log is one stream by then: readers are to find it, and the segments are to go."""
    owner, name = {
        "list": (Logs, "_list"),
        "move": (Durables, "weld"),
        "drop": (Logs, "drop"),
    }[step]
    real, left = getattr(owner, name), [FabricError("the test says no")] * 2

    async def fail(self: Any, *arguments: Any) -> None:
        local = arguments[0]
        is_welded = not isinstance(local, Local) or (local.is_welded and not local.is_split)
        if self.site == "a" and is_welded and left:
            raise left.pop()
        await real(self, *arguments)

    monkeypatch.setattr(owner, name, fail)
    async with four_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        await with_durable(fabric, client)
        await client.move_topic("t", "b")
        await until(lambda: not left)
        await until_whole(fabric, ["a"])
        await until(lambda: not local_at(fabric, "a").is_mending)
        await check_all(fabric, "t", MEMBERS, names(3))
        await check_durable(fabric, *names(3)[1:])


async def test_a_site_leads_only_once_the_indexes_of_events_that_are_over_are_taken(
    never_welds: pytest.MonkeyPatch,
) -> None:
    """Also if that fails at first: no other event gets one of them."""
    real, left = Mending._fill_up, [TimeoutError()]

    async def fail(self: Mending, *arguments: Any) -> None:
        if left:
            raise left.pop()
        await real(self, *arguments)

    async with four_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        await split(fabric, client)
        last = await client.publish("t", "soon over", ack="quorum", lifespan=1)
        logs = part_of(fabric, "a").copies.logs

        async def is_over() -> bool:
            return await logs.newest(local_at(fabric, "a").stream) == last - 1

        await until(is_over)
        await fabric.crash("b")
        never_welds.undo()
        never_welds.setattr(Mending, "_fill_up", fail)
        await fabric.start("c")
        assert await client.publish("t", "next", ack="quorum") == last + 1
        assert not left


@pytest.mark.parametrize("hub", ["silent", "full"])
async def test_a_weld_does_not_wait_for_the_hub(monkeypatch: pytest.MonkeyPatch, hub: str) -> None:
    """How far subscriptions are is written down there; to go on, the site needs nobody."""
    real, key = Store.put, subscription_key("t", "d")

    async def put(self: Store, name: str, *arguments: Any, **named: Any) -> int:
        if self.site == "a" and name == key:
            if hub == "full":
                raise StorageFull("the test says no")
            await asyncio.Event().wait()
        return await real(self, name, *arguments, **named)

    async with four_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        await with_durable(fabric, client)
        monkeypatch.setattr(Store, "put", put)
        await client.move_topic("t", "b")
        await until_whole(fabric, ["a"])
        monkeypatch.undo()
        await check_durable(fabric, *names(3)[1:])


async def test_what_was_left_over_and_has_become_the_log_stays(
    never_welds: pytest.MonkeyPatch,
) -> None:
    """A site may weld before it has settled: the stream gets the name of one that a crash left."""
    async with four_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        count = await split(fabric, client)
        copies, local = part_of(fabric, "a").copies, local_at(fabric, "a")
        entry, left = copies.entry("t"), stream_of("t", local.segment)
        assert entry is not None
        await copies._jetstream.call(f"STREAM.CREATE.{left}", weld_config(local, entry, left))
        copies.load((await copies.streams()).values())
        never_welds.undo()
        copies.mending.begin(local)
        await until_whole(fabric, ["a"])
        assert local.stream == left
        made = (await copies.streams())[left]["created"]
        await copies.reconcile()
        assert (await copies.streams())[left]["created"] == made
        async with fabric.connect("a") as reader:
            assert [data.decode() for data in await contents(reader, "t")] == names(count)


async def test_what_a_crash_left_of_a_weld_is_removed(
    never_welds: pytest.MonkeyPatch,
) -> None:
    """A stream that was to become the log, and is nothing."""
    async with four_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        await split(fabric, client)
        copies, local = part_of(fabric, "a").copies, local_at(fabric, "a")
        entry, left = copies.entry("t"), stream_of("t", local.segment)
        assert entry is not None
        await copies._jetstream.call(f"STREAM.CREATE.{left}", weld_config(local, entry, left))
        copies.load((await copies.streams()).values())
        await copies.reconcile()
        assert left not in await copies.streams()


async def test_a_kill_in_the_midst_of_a_weld_loses_no_subscription(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log is one stream, and its readers were not moved yet."""
    is_welding = asyncio.Event()

    async def wait(self: Durables, name: str, old: Chain, new_stream: str) -> None:
        is_welding.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Durables, "weld", wait)
    async with four_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        await with_durable(fabric, client)
        await client.move_topic("t", "b")
        await is_welding.wait()
        await fabric.crash("a")
        monkeypatch.undo()
        await fabric.start("a")
        await until_whole(fabric, ["a"])
        await check_durable(fabric, *names(3)[1:])


@pytest.mark.parametrize("looks", [1000, 3])
async def test_a_log_whose_events_end_by_themselves_is_welded(
    monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """Each stream lets go of them at a moment of its own, so the new one may have fewer: where they
    age out, for as long as it lasts; else for a moment, because lifespans end."""
    count = Mending._count
    fewer = [1] * looks

    async def count_fewer(self: Mending, stream: str) -> int:
        is_target = stream in self._parts
        return await count(self, stream) - (is_target and bool(fewer) and fewer.pop())

    monkeypatch.setattr(Mending, "_count", count_fewer)
    async with four_sites() as fabric, fabric.connect("hub", "admin") as client:
        age = 3600.0 if looks > 3 else None
        await client.create_topic("t", home="a", replicas=2, spread=["b", "c"], max_age=age)
        for name in names(3):
            await client.publish("t", name, ack="quorum")
        await client.move_topic("t", "b")
        await until_whole(fabric)
        await check_all(fabric, "t", MEMBERS, names(3))
