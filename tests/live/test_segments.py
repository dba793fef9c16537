"""Reading a log that is a chain of segments: one after the other, and while the chain changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from skerry import Client, Subscription, errors
from skerry.engine.jetstream import JetStream
from skerry.fabric.durables import Durables
from skerry.log import durable, live
from skerry.log.durable import DurableSubscription
from skerry.log.follow import Start
from skerry.log.live import LiveSubscription
from skerry.log.segments import Extent, delete_consumer, find_consumer, make_consumer
from skerry.log.topics import stream_config
from skerry.model.event import Event, index_of
from skerry.model.fabric import Step, TopicEntry
from skerry.model.topic import TopicSettings
from skerry.testing import LocalFabric, LocalSite
from tests.conftest import until
from tests.live.chains import ChainByHand


@pytest.fixture
async def log(client: Client, admin: Client) -> ChainByHand:
    """The log of the topic `t`, which is empty."""
    await client.create_topic("t")
    return ChainByHand(admin, "t")


async def publish(client: Client, *payloads: str, topic: str = "t") -> None:
    for payload in payloads:
        await client.publish(topic, payload)


async def take(subscription: Subscription, count: int, *, ack: bool = False) -> list[str]:
    """The payloads of the next `count` events."""
    taken = []
    async with asyncio.timeout(20):
        for _ in range(count):
            event = await anext(subscription)
            taken.append(f"{event.index} {event.data.decode()}")
            if ack:
                subscription.ack(event)
    return taken


async def read(client: Client, topic: str = "t", *bounds: int) -> list[str]:
    return [f"{event.index} {event.data.decode()}" async for event in client.read(topic, *bounds)]


async def as_in_a_fabric() -> None:
    """What a subscription in a fabric asks its agent for is there."""


# One after the other


async def test_a_log_of_several_segments_is_read_as_one(client: Client, log: ChainByHand) -> None:
    await publish(client, "a", "b")
    await log.roll()
    await publish(client, "c", "d")
    await log.roll()
    await publish(client, "e")
    whole = ["1 a", "2 b", "3 c", "4 d", "5 e"]
    assert await read(client) == whole
    assert await read(client, "t", 2, 4) == whole[1:4]
    assert [(await client.get("t", index)).data for index in range(1, 6)] == [
        b"a", b"b", b"c", b"d", b"e",
    ]  # fmt: skip
    assert await client.latest_index("t") == 5
    with pytest.raises(errors.NotYet):
        await client.get("t", 6)
    async with client.subscribe("t", from_index=2) as subscription:
        assert await take(subscription, 4) == whole[1:]


async def test_a_segment_that_is_empty_yet_ends_where_the_one_before_ends(
    client: Client, log: ChainByHand
) -> None:
    await publish(client, "a", "b")
    await log.roll()
    assert await client.latest_index("t") == 2
    assert await read(client) == ["1 a", "2 b"]
    async with client.subscribe("t", from_index=3) as subscription:
        await publish(client, "c")
        assert await take(subscription, 1) == ["3 c"]


async def test_a_subscription_by_time_begins_in_the_segment_of_that_time(
    client: Client, log: ChainByHand
) -> None:
    await publish(client, "a")
    times = [datetime.now(UTC)]
    await publish(client, "b")
    await log.roll()
    times.append(datetime.now(UTC))
    await publish(client, "c")
    times.append(datetime.now(UTC))
    for begin, expected in zip(times, (["2 b", "3 c"], ["3 c"], []), strict=True):
        async with client.subscribe("t", from_time=begin) as subscription:
            assert await take(subscription, len(expected)) == expected
    async with client.subscribe("t", from_time=times[-1]) as subscription:
        await publish(client, "d")
        assert await take(subscription, 1) == ["4 d"]


async def test_a_new_subscription_begins_in_the_active_segment(
    client: Client, log: ChainByHand
) -> None:
    await publish(client, "a")
    await log.roll()
    async with client.subscribe("t") as live, client.subscribe("t", durable="d") as durable:
        await publish(client, "b")
        assert await take(live, 1) == ["2 b"]
        assert await take(durable, 1) == ["2 b"]


async def test_what_a_frozen_segment_holds_beyond_its_end_is_given_to_nobody(
    client: Client, log: ChainByHand
) -> None:
    await publish(client, "a")
    assert (await client.get("t", 1)).data == b"a"  # where it looks is known now
    since = datetime.now(UTC)
    await publish(client, "b", "lost", "lost too")
    await log.roll(2)
    held = (await log.info("t~t"))["state"]
    assert held["last_seq"] == 4, "what is not part of the history is still there"
    assert await client.latest_index("t") == 2
    await publish(client, "c")
    history = ["1 a", "2 b", "3 c"]
    assert await read(client) == history
    async with client.subscribe("t", from_index=1) as subscription:
        assert await take(subscription, 3) == history
    async with client.subscribe("t", from_time=since) as subscription:
        assert await take(subscription, 2) == history[1:]
    async with client.subscribe("t", from_index=1, durable="d") as durable:
        assert await take(durable, 3, ack=True) == history
        await publish(client, "d")
        assert await take(durable, 1, ack=True) == ["4 d"]
    async with client.subscribe("t", from_index=4) as subscription:
        assert await take(subscription, 1) == ["4 d"]

    async def is_read_from_the_history() -> bool:
        return (await client.get("t", 3)).data == b"c"

    await until(is_read_from_the_history)
    assert (await client.get("t", 4)).data == b"d"


async def test_the_latest_of_a_sub_topic_is_found_in_a_frozen_segment(
    client: Client, log: ChainByHand
) -> None:
    for topic in ("t/a", "t/b", "t", "t/a/x", "t/b", "t/c"):  # 1 to 6
        await client.publish(topic, topic)
    await log.roll(4)  # 5 and 6 are not part of the history
    await client.publish("t", "5")
    assert await client.latest_index("t/a") == 4
    assert await client.latest_index("t/b") == 2
    assert await client.latest_index("t/c") == 0
    assert await read(client, "t/a") == ["1 t/a", "4 t/a/x"]
    async with client.subscribe("t/b", from_index=1) as subscription:
        await client.publish("t/b", "6")
        assert await take(subscription, 2) == ["2 t/b", "6 6"]


async def test_segments_that_aged_out_are_left_behind(client: Client, log: ChainByHand) -> None:
    await publish(client, "a", "b")
    await log.roll()
    await publish(client, "c")
    await log.roll()
    await publish(client, "d")
    await log.jetstream.call("STREAM.PURGE.t~t")  # as its age limit would
    assert await read(client) == ["3 c", "4 d"]
    with pytest.raises(errors.AgedOut) as error:
        await client.get("t", 2)
    assert error.value.first == 3
    with pytest.raises(errors.AgedOut):
        await client.subscribe("t", from_index=1)
    await log.jetstream.call("STREAM.PURGE.t~t~~1")
    assert await read(client) == ["4 d"]


async def test_a_reader_learns_that_a_segment_aged_out_under_it(
    client: Client, log: ChainByHand
) -> None:
    await publish(client, *map(str, range(1, 11)))
    await log.roll()
    await publish(client, "11")
    async with client.subscribe("t", from_index=1, window=2) as subscription:
        assert await take(subscription, 1) == ["1 1"]
        await log.jetstream.call("STREAM.PURGE.t~t")
        with pytest.raises(errors.AgedOut):
            await take(subscription, 11)


# While the chain changes


async def test_a_live_subscription_goes_on_where_the_log_is_rolled_and_welded(
    client: Client, log: ChainByHand
) -> None:
    async with client.subscribe("t") as subscription, client.subscribe("t/s") as sub:
        await publish(client, "a", "b")
        assert await take(subscription, 2) == ["1 a", "2 b"]
        await log.roll()
        await publish(client, "c")
        await publish(client, "s", topic="t/s")
        assert await take(subscription, 2) == ["3 c", "4 s"]
        assert await take(sub, 1) == ["4 s"]
        await log.weld()
        await publish(client, "e")
        await publish(client, "s", topic="t/s")
        assert await take(subscription, 2) == ["5 e", "6 s"]
        assert await take(sub, 1) == ["6 s"]
    assert await read(client) == ["1 a", "2 b", "3 c", "4 s", "5 e", "6 s"]
    assert (await client.get("t", 2)).data == b"b"


async def test_a_slow_reader_of_the_history_misses_nothing_when_segments_are_welded(
    client: Client, log: ChainByHand
) -> None:
    history = [str(n) for n in range(1, 41)]
    await publish(client, *history[:20])
    await log.roll()
    await publish(client, *history[20:])
    async with client.subscribe("t", from_index=1, window=4) as subscription:
        assert await take(subscription, 3) == [f"{n} {n}" for n in history[:3]]
        await log.weld()
        assert await take(subscription, 37) == [f"{n} {n}" for n in history[3:]]


async def test_a_reader_that_was_given_lost_events_is_given_what_took_their_place(
    client: Client, log: ChainByHand
) -> None:
    jetstream = JetStream(client._open.connection)
    subscription = LiveSubscription(jetstream, "t", "t", Start(index=1), settle=as_in_a_fabric)
    async with await subscription.open():
        await publish(client, "a", "b", "lost", "lost too")
        assert await take(subscription, 4) == ["1 a", "2 b", "3 lost", "4 lost too"]
        await log.roll(2)
        await publish(client, "c", "d", "e")
        assert await take(subscription, 3) == ["3 c", "4 d", "5 e"]


async def test_lost_events_that_nobody_was_given_yet_are_given_to_nobody(
    client: Client, log: ChainByHand
) -> None:
    jetstream = JetStream(client._open.connection)
    subscription = LiveSubscription(jetstream, "t", "t", Start(index=1), settle=as_in_a_fabric)
    async with await subscription.open():
        await publish(client, "a", "b", "lost", "lost too")
        await until(lambda: len(subscription._held) == 4)
        await log.freeze_and_list(2)
        await publish(client, "c", "d", "e")
        subscription._repair()
        await until(lambda: subscription._held[-1].data == b"e")
        assert await take(subscription, 5) == ["1 a", "2 b", "3 c", "4 d", "5 e"]


async def test_segments_that_are_emptied_while_a_reader_compares_take_nothing_back(
    client: Client, log: ChainByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An emptied segment has no events: that does not mean that the reader's were lost."""
    find, welds = LiveSubscription._agreed, [log.weld]

    async def weld_first(self: LiveSubscription, *arguments: Any) -> int:
        if welds:
            await welds.pop()()
        return await find(self, *arguments)

    monkeypatch.setattr(LiveSubscription, "_agreed", weld_first)
    jetstream = JetStream(client._open.connection)
    subscription = LiveSubscription(jetstream, "t", "t", Start(index=1), settle=as_in_a_fabric)
    async with await subscription.open():
        await publish(client, "a", "b", "lost", "lost too")
        assert await take(subscription, 4) == ["1 a", "2 b", "3 lost", "4 lost too"]
        await log.freeze_and_list(2)
        await publish(client, "c", "d", "e")
        subscription._repair()
        assert await take(subscription, 3) == ["3 c", "4 d", "5 e"]
    assert not welds


async def test_a_reader_whose_topic_was_deleted_and_made_anew_is_told(
    client: Client, admin: Client, log: ChainByHand
) -> None:
    """Be the new one shorter than what the reader has read."""
    born = TopicEntry(
        name="t",
        home="local",
        epoch=4,
        members=("local",),
        lineage=(Step(4, 0),),
        settings=TopicSettings(),
    )

    async def settle() -> TopicEntry:
        return born

    jetstream = JetStream(client._open.connection)
    subscription = LiveSubscription(jetstream, "t", "t", Start(index=1), settle=settle)
    subscription.epoch = 3
    async with await subscription.open():
        await publish(client, "a", "b")
        assert await take(subscription, 2) == ["1 a", "2 b"]
        await admin.delete_topic("t")
        await client.create_topic("t")
        await publish(client, "new")
        with pytest.raises(errors.UnknownTopic):
            await take(subscription, 1)


async def test_a_read_goes_on_behind_a_segment_however_long_the_next_one_takes(
    client: Client, log: ChainByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not take the end of a segment for that of the log."""
    is_making, may_make = asyncio.Event(), asyncio.Event()
    create = LiveSubscription._create

    async def wait(self: LiveSubscription, name: str, config: dict[str, Any]) -> dict[str, Any]:
        if self._segment.is_active:
            is_making.set()
            await may_make.wait()
        return await create(self, name, config)

    monkeypatch.setattr(LiveSubscription, "_create", wait)
    await publish(client, "a", "b")
    await log.roll()
    await publish(client, "c")
    taken = []
    async for event in client.read("t"):
        taken.append(event.data)
        if not may_make.is_set():
            await is_making.wait()
            asyncio.get_running_loop().call_later(0.05, may_make.set)
    assert taken == [b"a", b"b", b"c"]


async def test_a_reader_waits_for_a_log_that_is_behind_it(
    client: Client, log: ChainByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not take events for lost that are not there yet, and read them once more."""
    monkeypatch.setattr(live, "CATCH_UP_MOST", 0.02)
    looks, look = [], LiveSubscription._look

    async def count(self: LiveSubscription) -> Extent | None:
        looks.append(self)
        return await look(self)

    monkeypatch.setattr(LiveSubscription, "_look", count)
    subscription = LiveSubscription(
        JetStream(client._open.connection), "t", "t", Start(index=1), window=10,
        settle=as_in_a_fabric,
    )  # fmt: skip
    async with await subscription.open():
        await publish(client, "a", "b", "c")
        assert await take(subscription, 3) == ["1 a", "2 b", "3 c"]
        new = {"name": "t~t~~1", "storage": "file", "allow_direct": True}
        await log.jetstream.call("STREAM.CREATE.t~t~~1", new | {"subjects": ["_frozen.x"]})
        await log.write([(1, 1)])
        subscription._repair()
        await until(lambda: len(looks) > 10)
        await log.jetstream.call("STREAM.DELETE.t~t~~1")
        await log.jetstream.call("STREAM.CREATE.t~t~~1", new | {"mirror": {"name": "t~t"}})
        await publish(client, "d")
        assert await take(subscription, 1) == ["4 d"]


async def test_a_read_does_not_wait_for_a_log_that_need_not_come_so_far(
    site: LocalSite, client: Client, log: ChainByHand
) -> None:
    """What it read was lost with its home, and nothing was published since."""
    async with site.connect(timeout=1) as impatient:
        subscription = LiveSubscription(
            JetStream(impatient._open.connection), "t", "t/s", Start(index=1),
            settle=as_in_a_fabric,
        )  # fmt: skip
        await publish(client, "a", "b", topic="t/s")
        await publish(client, "c")
        async with await subscription.open():
            events = subscription.drain(3)
            assert (await anext(events)).index == 1
            await log.freeze_and_list(1)
            subscription._repair()
            async with asyncio.timeout(20):
                assert [event.index async for event in events] == [2]


async def test_a_durable_subscription_goes_on_where_the_log_is_rolled_and_welded(
    client: Client, log: ChainByHand
) -> None:
    async with client.subscribe("t", durable="d") as subscription:
        await publish(client, "a", "b")
        assert await take(subscription, 2, ack=True) == ["1 a", "2 b"]
        await acknowledged(log, 2)
        await log.roll()
        await publish(client, "c", "d")
        assert await take(subscription, 2, ack=True) == ["3 c", "4 d"]
        await acknowledged(log, 4)
        await log.weld()
        await publish(client, "e")
        assert await take(subscription, 1, ack=True) == ["5 e"]
        await acknowledged(log, 5)
    async with client.subscribe("t", durable="d") as subscription:
        await publish(client, "f")
        assert await take(subscription, 1) == ["6 f"]


async def acknowledged(log: ChainByHand, index: int) -> None:
    """Wait until the engine knows that all up to `index` is acknowledged."""

    async def is_known() -> bool:
        infos = [await log.jetstream.consumer(s.stream, "d") for s in await log.chain()]
        return any(info and info["ack_floor"]["stream_seq"] >= index for info in infos)

    await until(is_known)


async def test_a_durable_subscription_leaves_a_frozen_segment_when_all_is_acknowledged(
    client: Client, log: ChainByHand
) -> None:
    await publish(client, "a", "b", "c")
    async with client.subscribe("t", durable="d", from_index=1) as subscription:
        await acknowledged(log, 0)
    await log.roll()
    await publish(client, "d")
    assert await log.consumers() == {"t~t": ["d"], "t~t~~1": []}
    async with client.subscribe("t", durable="d") as subscription:
        events = [await anext(subscription) for _ in range(3)]
        assert [event.index for event in events] == [1, 2, 3]
        for event in events[:2]:
            subscription.ack(event)
        await acknowledged(log, 2)
        subscription.reject(events[2])
    async with client.subscribe("t", durable="d") as subscription:
        assert await log.consumers() == {"t~t": ["d"], "t~t~~1": []}
        assert await take(subscription, 2, ack=True) == ["3 c", "4 d"]
        assert await log.consumers() == {"t~t": [], "t~t~~1": ["d"]}


async def test_what_was_not_acknowledged_comes_again_behind_a_roll(
    client: Client, log: ChainByHand
) -> None:
    await publish(client, "a", "b", "c", "lost")
    async with client.subscribe("t", durable="d", from_index=1) as subscription:
        events = [await anext(subscription) for _ in range(4)]
        subscription.ack(events[0])
        subscription.ack(events[2])
        await acknowledged(log, 1)
    await log.roll(3)
    await publish(client, "d")
    async with client.subscribe("t", durable="d") as subscription:
        # The third was acknowledged out of order, to a reader that is no more.
        assert await take(subscription, 3, ack=True) == ["2 b", "3 c", "4 d"]


async def test_readers_who_share_a_durable_subscription_leave_a_segment_together(
    client: Client, log: ChainByHand
) -> None:
    await publish(client, *map(str, range(1, 21)))
    async with client.subscribe("t", durable="d", from_index=1):
        pass
    await log.roll()
    await publish(client, *map(str, range(21, 41)))
    taken: list[int] = []

    async def work() -> None:
        async with client.subscribe("t", durable="d", window=4) as subscription:
            async for event in subscription:
                taken.append(event.index)
                subscription.ack(event)

    workers = [asyncio.create_task(work()) for _ in range(2)]
    try:
        await until(lambda: len(set(taken)) == 40)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    order = [1 if index > 20 else 0 for index in taken]
    assert order == sorted(order), "nothing of the next segment before all of this one"


async def test_a_durable_subscription_is_removed_from_whichever_segment_it_is_on(
    client: Client, log: ChainByHand
) -> None:
    await publish(client, "a")
    async with client.subscribe("t", durable="early", from_index=1):
        pass
    await log.roll()
    async with client.subscribe("t", durable="late"):
        pass
    assert await log.consumers() == {"t~t": ["early"], "t~t~~1": ["late"]}
    for name in ("early", "late"):
        await client.unsubscribe("t", name)
        with pytest.raises(errors.SubscriptionError):
            await client.unsubscribe("t", name)
    assert await log.consumers() == {"t~t": [], "t~t~~1": []}


async def test_a_durable_subscriber_at_work_is_told_when_its_segment_is_frozen(
    client: Client, log: ChainByHand
) -> None:
    jetstream = JetStream(client._open.connection)
    subscription = DurableSubscription(
        jetstream, "t", "t", Start(), name="d", settle=as_in_a_fabric
    )
    async with await subscription.open():
        await publish(client, "a", "b", "c", "lost")
        given = [await anext(subscription) for _ in range(4)]
        assert [event.index for event in given] == [1, 2, 3, 4]
        for event in (given[0], given[2], given[3]):
            subscription.ack(event)
        await acknowledged(log, 1)
        await log.roll(3)
        await publish(client, "d")
        # Of what was acknowledged nothing comes again.
        assert await take(subscription, 1, ack=True) == ["2 b"]
        assert await take(subscription, 1, ack=True) == ["4 d"]


async def test_a_durable_subscriber_that_asks_for_nothing_learns_that_its_segment_is_frozen(
    client: Client, log: ChainByHand
) -> None:
    """It works off what it has, and has no request open when the engine would tell it."""
    await publish(client, "a", "b", "c", "d")
    subscription = DurableSubscription(
        JetStream(client._open.connection), "t", "t", Start(index=1), name="d", window=4,
        settle=as_in_a_fabric,
    )  # fmt: skip
    async with await subscription.open():
        assert await take(subscription, 1, ack=True) == ["1 a"]
        await acknowledged(log, 1)
        assert not subscription._pull.is_open
        await log.roll()
        await publish(client, "e")
        assert await take(subscription, 4, ack=True) == ["2 b", "3 c", "4 d", "5 e"]


async def test_a_durable_subscription_that_moves_on_finds_the_log_welded(
    client: Client, log: ChainByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment that it was to go on in is gone before it is there."""
    welds = [log.weld]

    async def weld_first(*arguments: Any) -> None:
        if welds:
            await welds.pop()()
        await make_consumer(*arguments)

    monkeypatch.setattr(durable, "make_consumer", weld_first)
    await publish(client, "a")
    subscription = DurableSubscription(
        JetStream(client._open.connection), "t", "t", Start(index=1), name="d",
        settle=as_in_a_fabric,
    )  # fmt: skip
    async with await subscription.open():
        event = await anext(subscription)
        await log.roll()
        await publish(client, "b")
        while event.index == 1:  # what is not acknowledged comes again behind a roll
            subscription.ack(event)
            async with asyncio.timeout(20):
                event = await anext(subscription)
        assert event.data == b"b"
    assert not welds


async def test_a_durable_subscription_that_fails_to_open_leaves_nothing_behind(
    client: Client, log: ChainByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: DurableSubscription) -> None:
        raise errors.Unavailable("the test says no")

    await publish(client, "a")
    async with client.subscribe("t", durable="d", from_index=1) as subscription:
        event = await anext(subscription)
        await log.roll()
    monkeypatch.setattr(DurableSubscription, "_begin", fail)
    subscription = DurableSubscription(
        JetStream(client._open.connection), "t", "t", Start(), name="d", settle=as_in_a_fabric
    )
    with pytest.raises(errors.Unavailable):
        await subscription.open()
    assert event.index == 1
    left = [task for task in subscription._under_way() if task is not None]
    await asyncio.gather(*left, return_exceptions=True)
    assert all(task.cancelled() for task in left)


@pytest.mark.parametrize("durable", ["", "fresh", "there"])
@pytest.mark.parametrize("welded", [False, True])
async def test_a_chain_that_changes_while_a_subscription_opens_is_looked_at_again(
    client: Client, log: ChainByHand, durable: str, welded: bool
) -> None:
    await publish(client, "a", "b", "lost", "lost too")
    before = await log.chain()
    if durable == "there":
        async with client.subscribe("t", durable="d", from_index=1):
            pass
    await log.freeze_and_list(2)
    await publish(client, "c", "d")
    if welded:
        before = await log.chain()
        await log.weld()
    place = (JetStream(client._open.connection), "t", "t", Start(index=1))
    subscription: Subscription = LiveSubscription(*place, chain=before)
    if durable:
        subscription = DurableSubscription(*place, name="d", chain=before)
    async with await subscription.open():
        assert await take(subscription, 4, ack=bool(durable)) == ["1 a", "2 b", "3 c", "4 d"]
        await publish(client, "e")
        assert await take(subscription, 1, ack=bool(durable)) == ["5 e"]


async def test_events_that_wait_here_are_not_given_twice_behind_a_roll(
    client: Client, log: ChainByHand
) -> None:
    jetstream = JetStream(client._open.connection)
    await publish(client, "a", "b", "c")
    subscription = DurableSubscription(
        jetstream, "t", "t", Start(index=1), name="d", settle=as_in_a_fabric
    )
    async with await subscription.open():
        await until(lambda: len(subscription._held) == 3)
        first = subscription._created
        await log.roll()
        await until(lambda: subscription._created != first)
        await publish(client, "d")
        assert await take(subscription, 4, ack=True) == ["1 a", "2 b", "3 c", "4 d"]


async def test_a_consumer_that_is_just_being_made_has_more_than_the_engine_says(
    client: Client, log: ChainByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that nothing is pending, to one of forty who ask meanwhile (ADR 10); here to all."""
    find = find_consumer

    async def early(*arguments: Any) -> Any:
        found = await find(*arguments)
        if found is None or found[1]["delivered"]["consumer_seq"]:
            return found
        return found[0], {**found[1], "num_pending": 0}

    monkeypatch.setattr(durable, "find_consumer", early)
    await publish(client, "a", "b", "c", topic="t/x")
    place = (JetStream(client._open.connection), "t", "t/x", Start(index=1))
    async with await DurableSubscription(*place, name="d", settle=as_in_a_fabric).open() as reader:
        await until(lambda: len(reader._held) == 3)
        first = reader._created
        await log.roll()
        await until(lambda: reader._created != first)
        await publish(client, "d", topic="t/x/y")
        assert await take(reader, 4, ack=True) == ["1 a", "2 b", "3 c", "4 d"]


async def test_what_the_engine_sends_twice_at_once_is_given_once(
    client: Client, log: ChainByHand
) -> None:
    """What was given back may come right behind itself."""
    place = (JetStream(client._open.connection), "t", "t", Start())
    subscription = DurableSubscription(*place, name="d")
    async with await subscription.open():
        replies = [b"$JS.ACK.t~t.d.%d.%d.%d.7.0" % one for one in ((1, 1, 1), (1, 2, 2), (2, 1, 3))]
        came = [Event(b"e.t", index_of(reply), b"", b"x", reply) for reply in replies]
        subscription._take(came, 3, 0)
        assert [event.index for event in subscription._held] == [1, 2]


async def test_what_waits_here_for_too_long_is_not_given_twice(
    client: Client, log: ChainByHand
) -> None:
    await publish(client, "a", "b", "c")
    async with client.subscribe("t", durable="d", from_index=1, ack_wait=0.1) as subscription:

        async def is_sent_again() -> bool:
            consumer = await log.jetstream.consumer("t~t", "d")
            return consumer is not None and bool(consumer["num_redelivered"])

        await until(is_sent_again)
        await publish(client, "d")
        assert await take(subscription, 4, ack=True) == ["1 a", "2 b", "3 c", "4 d"]


async def test_a_consumer_that_is_made_anew_again_and_again_loses_and_repeats_nothing(
    client: Client, log: ChainByHand
) -> None:
    count = 3000
    given: list[int] = []
    jetstream, segment = JetStream(client._open.connection), (await log.chain())[-1]
    subscription = DurableSubscription(
        jetstream, "t", "t", Start(index=1), name="d", settle=as_in_a_fabric, window=100
    )

    async def publish_all() -> None:
        async with client.publisher("t", window=20) as publisher:
            for number in range(count):
                await publisher.send(str(number))

    async def make_anew() -> None:
        while not publishing.done():
            info = await log.jetstream.consumer(segment.stream, "d")
            assert info is not None
            await delete_consumer(log.jetstream, segment.stream, "d")
            floor = info["ack_floor"]["stream_seq"]
            await make_consumer(log.jetstream, segment.stream, "d", info["config"], floor + 1)

    async with await subscription.open(), asyncio.timeout(60):
        publishing = asyncio.create_task(publish_all())
        changing = asyncio.create_task(make_anew())
        while len(set(given)) < count:
            event = await anext(subscription)
            given.append(event.index)
            subscription.ack(event)
        await asyncio.gather(publishing, changing)
    assert given == list(range(1, count + 1))


async def test_a_consumer_that_was_left_gives_nothing_more(
    client: Client, log: ChainByHand
) -> None:
    """While a log is welded there are two for a moment, and what was asked for is still open."""
    await publish(client, "a")
    subscription = DurableSubscription(
        JetStream(client._open.connection), "t", "t", Start(index=1), name="d",
        settle=as_in_a_fabric,
    )  # fmt: skip
    async with await subscription.open():
        assert await take(subscription, 1, ack=True) == ["1 a"]
        welded = {"name": "t~t~~1", "mirror": {"name": "t~t"}, "storage": "file"}
        await log.jetstream.call("STREAM.CREATE.t~t~~1", welded)
        left = await log.jetstream.consumer("t~t", "d")
        assert left is not None
        await make_consumer(log.jetstream, "t~t~~1", "d", left["config"], 2)
        await log.write([(1, 1)])
        first = subscription._created
        subscription._repair()
        await until(lambda: subscription._created != first)
        await publish(client, "b")
        async with asyncio.timeout(20):
            event = await anext(subscription)
        assert (event.index, event.reply[:15]) == (2, b"$JS.ACK.t~t~~1.")


# What the agent does for durable subscriptions


@pytest.fixture
async def agent_log() -> AsyncIterator[tuple[Durables, Client, ChainByHand]]:
    """The durable subscriptions of a site in a fabric, and a log there that is no topic yet."""
    async with LocalFabric(["hub"]) as fabric, fabric.connect("hub", "admin") as admin:
        part = fabric.agent("hub").fabric
        assert part is not None
        log = ChainByHand(admin, "x")
        config = stream_config("hub", "x", TopicSettings(), epoch=9)
        await log.jetstream.call("STREAM.CREATE.t~x", config)
        yield part.copies.durables, admin, log


async def fill(log: ChainByHand, count: int) -> None:
    for _ in range(count):
        await log.jetstream.ask("s.hub.9.x", b"")


async def consume(log: ChainByHand, name: str, floor: int) -> None:
    """Make a durable consumer that has acknowledged all up to `floor`."""
    stream = (await log.chain())[-1].stream
    config = {"durable_name": name, "ack_policy": "explicit", "max_ack_pending": 100}
    await make_consumer(log.jetstream, stream, name, config, floor + 1)


async def floors(log: ChainByHand) -> dict[str, dict[str, int]]:
    """Of each segment, the durable consumers and where they are."""
    return {
        segment.stream: {
            info["name"]: info["ack_floor"]["stream_seq"]
            for info in await log.jetstream.consumers(segment.stream)
        }
        for segment in await log.chain()
    }


async def test_durable_subscriptions_are_made_anew_where_they_go_on(
    agent_log: tuple[Durables, Client, ChainByHand],
) -> None:
    durables, _, log = agent_log
    await fill(log, 6)
    await consume(log, "behind", 2)
    await consume(log, "done", 4)
    await consume(log, "astray", 6)
    made = (await log.jetstream.call("CONSUMER.INFO.t~x.behind"))["created"]
    live = {"stream_name": "t~x", "config": {"name": "live", "ack_policy": "none"}}
    await log.jetstream.call("CONSUMER.CREATE.t~x.live", live)
    await log.freeze_and_list(4)
    chain = await durables._chain("x")
    await durables.roll("x", chain[:-1], chain)
    assert await floors(log) == {"t~x": {"behind": 2}, "t~x~~1": {"done": 4, "astray": 4}}
    again = (await log.jetstream.call("CONSUMER.INFO.t~x.behind"))["created"]
    assert again != made, "who reads there is told"

    await fill(log, 3)
    old = await log.chain()
    await log.write([(2, 1)])
    config = {**(await log.info("t~x~~1"))["config"], "name": "t~x~~2", "subjects": ["_new"]}
    await log.jetstream.call("STREAM.CREATE.t~x~~2", config)
    await durables.weld("x", old, "t~x~~2")
    assert [await log.jetstream.consumers(segment.stream) for segment in old] == [[], []]
    names = {info["name"]: info["config"] for info in await log.jetstream.consumers("t~x~~2")}
    assert {name: config["opt_start_seq"] for name, config in names.items()} == {
        "behind": 3, "done": 5, "astray": 5,
    }  # fmt: skip


async def test_where_a_subscription_is_is_known_on_any_segment(
    agent_log: tuple[Durables, Client, ChainByHand],
) -> None:
    durables, _, log = agent_log
    await fill(log, 4)
    await consume(log, "first", 1)
    await consume(log, "astray", 4)
    await log.freeze_and_list(3)
    await fill(log, 2)
    await consume(log, "second", 4)
    assert {name: record.floor for name, record in (await durables.save("x")).items()} == {
        "first": 1, "astray": 3, "second": 4,
    }  # fmt: skip
    await durables.checkpoint()
    record = await durables.take("x", "first")
    assert record is not None
    assert record.floor == 1
    assert await durables.take("x", "first") is None
    await durables.restore("x", {"first": msgspec.structs.replace(record, floor=3)})
    assert await floors(log) == {"t~x": {"astray": 4}, "t~x~~1": {"first": 3, "second": 4}}


async def test_a_subscription_that_was_removed_to_be_made_anew_is_where_its_consumer_is(
    agent_log: tuple[Durables, Client, ChainByHand],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If that failed, it is made from what is remembered; later that is not so any more."""
    durables, _, log = agent_log
    await fill(log, 6)
    await consume(log, "d", 2)
    entry = TopicEntry(
        name="x", home="hub", epoch=9, members=("hub",), lineage=(Step(9, 0),),
        settings=TopicSettings(),
    )  # fmt: skip
    chain = await durables._chain("x")

    async def fail(self: Durables, *arguments: Any) -> None:
        raise errors.Unavailable("the test says no")

    with monkeypatch.context() as patch:
        patch.setattr(Durables, "_make", fail)
        with pytest.raises(errors.Unavailable):
            await durables.roll("x", chain, chain)
    assert await floors(log) == {"t~x": {}}
    await durables.fetch(entry, "d")
    assert await floors(log) == {"t~x": {"d": 2}}
    await delete_consumer(log.jetstream, "t~x", "d")
    await consume(log, "d", 5)
    record = await durables.take("x", "d")
    assert record is not None
    assert record.floor == 5
