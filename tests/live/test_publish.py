"""Publishing: one event, many in flight, exactly once, and what is refused."""

from __future__ import annotations

import asyncio
import time

import pytest

from skerry import Client, errors
from skerry.client.client import WRITERS
from skerry.config import ClientSettings
from skerry.testing import LocalFabric, LocalSite
from tests.conftest import until
from tests.live.faults import freeze


async def test_indexes_grow_by_one_from_one(client: Client) -> None:
    await client.create_topic("t")
    assert [await client.publish("t", "x") for _ in range(3)] == [1, 2, 3]
    assert await client.latest_index("t") == 3


async def test_an_event_carries_what_it_was_published_with(client: Client) -> None:
    await client.create_topic("t")
    await client.publish("t/sub", b"\x00\xff", key="k1", headers={"unit": "°C"}, id="me-1")
    event = await client.get("t", 1)
    assert (event.topic, event.index, event.data) == ("t/sub", 1, b"\x00\xff")
    assert (event.key, event.headers, event.id) == ("k1", {"unit": "°C"}, "me-1")


async def test_a_repeated_id_adds_nothing_and_returns_the_first_index(client: Client) -> None:
    await client.create_topic("t")
    assert [await client.publish("t", "x", id="same") for _ in range(3)] == [1, 1, 1]
    assert (await client.topic("t")).events == 1


async def test_a_repeated_id_adds_nothing_after_an_engine_crash(
    site: LocalSite, client: Client
) -> None:
    await client.create_topic("t")
    assert await client.publish("t", "x", id="same") == 1
    site.kill_engine()
    assert await client.publish("t", "x", id="same") == 1
    assert await client.publish("t", "y") == 2


async def test_many_more_topics_than_publishers_are_kept_for_can_be_published_to_at_once() -> None:
    async with LocalFabric(["hub"]) as fabric, fabric.connect("hub") as client:
        await client.create_topic("t")
        topics = [f"t/{number}" for number in range(2 * WRITERS)]
        for turn in range(2):
            indexes = await asyncio.gather(*(client.publish(topic, "x") for topic in topics))
            first = turn * len(topics) + 1
            assert sorted(indexes) == list(range(first, first + len(topics)))
        assert {event.topic async for event in client.read("t")} == set(topics)
        assert len(client._open.writers) <= WRITERS, "they are kept no longer than they are used"


async def test_after_a_standstill_nothing_overtakes_what_may_be_lost() -> None:
    """While the program does something else for a while, a link may lose an event and come back:
    what is sent next goes out once the event before it is acknowledged."""
    async with LocalFabric(["lab", "farm"]) as fabric, fabric.connect("lab") as client:
        await client.create_topic("t", home="farm")
        publisher = client.publisher("t")
        assert await (await publisher.send("0")) == 1
        part = fabric.agent("lab").fabric
        assert part is not None
        seen: list[bytes] = []
        watcher = part.copies._jetstream.connection
        sid = watcher.subscribe("s.farm.>", lambda subject, reply, head, data: seen.append(data))
        await freeze(fabric["farm"])
        acks = [await publisher.send("1")]
        await until(lambda: b"1" in seen)
        before = len(seen)
        time.sleep(0.6)  # the loop stands still
        acks.append(await publisher.send("2"))
        await until(lambda: len(seen) > before)
        assert set(seen) == {b"1"}
        fabric["farm"].thaw_engine()
        assert [await ack for ack in acks] == [2, 3]
        assert b"2" in seen
        watcher.unsubscribe(sid)
        publisher.close()


async def test_an_unknown_topic_is_said_at_once(client: Client) -> None:
    with pytest.raises(errors.UnknownTopic, match="no topic nope") as caught:
        await client.publish("nope/x", "x")
    assert "skerry topic create nope" in caught.value.advice


async def test_large_events_go_and_too_large_ones_are_refused(client: Client) -> None:
    await client.create_topic("t")
    await client.create_topic("small", max_event_bytes=1000)
    data = bytes(range(256)) * 4 * 1024 * 7
    assert await client.publish("t", data) == 1
    assert (await client.get("t", 1)).data == data
    assert [e.data async for e in client.read("t")] == [data]
    with pytest.raises(errors.EventTooLarge, match="8384512"):
        await client.publish("t", b"x" * 8_388_609)
    with pytest.raises(errors.EventTooLarge, match="larger than its topic takes"):
        await client.publish("small", b"x" * 1001)
    async with client.publisher("t") as publisher:
        with pytest.raises(errors.EventTooLarge):
            await publisher.send(b"x" * 8_388_609)
    assert await client.latest_index("small") == 0
    assert await client.latest_index("t") == 1


async def test_what_cannot_be_published_is_refused(client: Client) -> None:
    await client.create_topic("t")
    for bad in (7, None, {"a": 1}):
        with pytest.raises(errors.BadSetting):
            await client.publish("t", bad)  # type: ignore[arg-type]
    with pytest.raises(errors.BadSetting):
        await client.publish("t", "x", headers={"Nats-Rollup": "all"})
    assert await client.latest_index("t") == 0


async def test_an_event_ends_with_its_lifespan(client: Client) -> None:
    await client.create_topic("t")
    await client.publish("t", "stays")
    await client.publish("t", "goes", lifespan=1)
    await client.publish("t", "stays too")

    async def gone() -> bool:
        return (await client.topic("t")).events == 2

    await until(gone)
    with pytest.raises(errors.AgedOut, match="lifespan"):
        await client.get("t", 2)
    assert [e.index async for e in client.read("t")] == [1, 3]
    async with client.subscribe("t", from_index=1) as subscription:
        assert [(await anext(subscription)).index for _ in range(2)] == [1, 3]


async def test_a_publisher_acknowledges_each_event_with_its_index(client: Client) -> None:
    await client.create_topic("t")
    async with client.publisher("t", window=64) as publisher:
        acks = [await publisher.send(str(n), topic="t/x" if n % 2 else None) for n in range(500)]
        assert publisher.in_flight <= 64
    assert [ack.result() for ack in acks] == list(range(1, 501))
    assert [int(e.data) async for e in client.read("t")] == list(range(500))
    assert len([e async for e in client.read("t/x")]) == 250


async def test_a_publisher_stays_on_its_topic(client: Client) -> None:
    await client.create_topic("t")
    async with client.publisher("t") as publisher:
        with pytest.raises(errors.BadSetting, match="no sub-topic"):
            await publisher.send("x", topic="tt")


async def test_a_publisher_reports_what_was_refused(client: Client) -> None:
    await client.create_topic("small", max_event_bytes=1000)
    publisher = client.publisher("small")
    good, bad, also_good = [await publisher.send(d) for d in (b"x", b"x" * 2000, b"y")]
    with pytest.raises(errors.PublishFailed) as caught:
        await publisher.flush()
    assert caught.value.count == 1
    assert isinstance(caught.value.first, errors.EventTooLarge)
    assert (good.result(), also_good.result()) == (1, 2)
    assert isinstance(bad.exception(), errors.EventTooLarge)


async def test_a_publisher_to_an_unknown_topic_fails_loudly(client: Client) -> None:
    with pytest.raises(errors.PublishFailed, match="no topic nope"):
        async with client.publisher("nope") as publisher:
            await publisher.send("x")


async def test_a_publisher_holds_back_when_the_engine_is_silent(site: LocalSite) -> None:
    """Its memory is bounded by the window, and every event is stored once the engine goes on."""
    async with site.connect() as client:
        await client.create_topic("t")
        await freeze(site)
        async with client.publisher("t", window=32) as publisher:
            sent = 0

            async def send() -> None:
                nonlocal sent
                for n in range(100):
                    await publisher.send(str(n))
                    sent += 1

            sending = asyncio.create_task(send())
            await until(lambda: sent == 32)
            for _ in range(20):
                await asyncio.sleep(0)
            assert publisher.in_flight == 32
            site.thaw_engine()
            await sending
        assert [int(e.data) async for e in client.read("t")] == list(range(100))


async def test_bytes_in_flight_are_bounded_too(site: LocalSite) -> None:
    async with site.connect() as client:
        await client.create_topic("t")
        await freeze(site)
        async with client.publisher("t", window_bytes=100_000) as publisher:
            sending = [asyncio.create_task(publisher.send(b"x" * 10_000)) for _ in range(30)]
            await until(lambda: publisher.in_flight >= 10)
            for _ in range(20):
                await asyncio.sleep(0)
            assert publisher.in_flight == 10
            site.thaw_engine()
            await asyncio.gather(*sending)
        assert await client.latest_index("t") == 30


async def test_an_unknown_outcome_is_said_in_bounded_time(site: LocalSite) -> None:
    """The engine freezes and stays so: both ways of publishing raise, neither waits for ever."""
    settings = ClientSettings(timeout=1.0, ping_interval=0.2, connect_timeout=0.3)
    async with site.connect() as client, site.connect(settings=settings, timeout=1.0) as hasty:
        await client.create_topic("t")
        await freeze(site)
        try:
            with pytest.raises(errors.OutcomeUnknown, match="not acknowledged") as caught:
                await hasty.publish("t", "x", id="once")
            assert "once" in caught.value.advice
            with pytest.raises(errors.PublishFailed):
                async with hasty.publisher("t") as publisher:
                    ack = await publisher.send("y")
            assert isinstance(ack.exception(), errors.OutcomeUnknown)
        finally:
            site.thaw_engine()
        await client.publish("t", "x", id="once")
        assert [e.data async for e in client.read("t")].count(b"x") == 1


async def test_closing_the_client_ends_what_is_in_flight(site: LocalSite) -> None:
    client = site.connect(timeout=2)
    await client.open()
    await client.create_topic("t")
    await freeze(site)
    publisher = client.publisher("t")
    ack = await publisher.send("x")
    await client.close()
    assert isinstance(ack.exception(), errors.OutcomeUnknown)
    with pytest.raises(errors.SkerryError):
        await publisher.send("y")
    with pytest.raises(errors.SkerryError):
        await client.publish("t", "y")


async def test_timeouts_beyond_the_duplicate_window_are_refused(site: LocalSite) -> None:
    with pytest.raises(errors.BadSetting, match="timeout"):
        site.connect(timeout=500)
    async with site.connect() as client:
        await client.create_topic("t")
        with pytest.raises(errors.BadSetting, match="timeout"):
            await client.publish("t", "x", timeout=500)
        with pytest.raises(errors.BadSetting, match="timeout"):
            client.publisher("t", timeout=500)
        assert await client.latest_index("t") == 0


async def test_a_client_must_be_opened(site: LocalSite) -> None:
    with pytest.raises(errors.Unavailable, match="not connected"):
        await site.connect().publish("t", "x")
