"""Following a topic: live, from an index, from a time, durable; slow readers; crashes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from skerry import Client, Subscription, errors
from skerry.testing import LocalSite
from tests.conftest import beside, until


async def take(subscription: Subscription, count: int) -> list[bytes]:
    """The payloads of the next `count` events."""
    async with asyncio.timeout(20):
        return [(await anext(subscription)).data for _ in range(count)]


async def test_a_live_subscription_begins_now(client: Client) -> None:
    await client.create_topic("t")
    await client.publish("t", "before")
    async with client.subscribe("t") as subscription:
        await client.publish("t", "after")
        assert await take(subscription, 1) == [b"after"]


async def test_it_can_begin_at_an_index_or_at_a_time(client: Client) -> None:
    await client.create_topic("t")
    for n in range(3):
        await client.publish("t", str(n))
    middle = datetime.now(UTC)
    await client.publish("t", "3")
    async with client.subscribe("t", from_index=2) as subscription:
        assert await take(subscription, 3) == [b"1", b"2", b"3"]
    async with client.subscribe("t", from_time=middle) as subscription:
        assert await take(subscription, 1) == [b"3"]
    async with client.subscribe("t", from_index=5) as subscription:
        await client.publish("t", "4")
        assert await take(subscription, 1) == [b"4"]
    with pytest.raises(errors.BadIndex):
        await client.subscribe("t", from_index=1, from_time=middle)


async def test_a_sub_topic_can_be_followed_alone(client: Client) -> None:
    await client.create_topic("t")
    async with client.subscribe("t/a") as subscription:
        for topic in ("t", "t/b", "t/a", "t/ab", "t/a/x"):
            await client.publish(topic, topic)
        assert await take(subscription, 2) == [b"t/a", b"t/a/x"]


async def test_closing_ends_the_iteration_and_the_consumer(client: Client) -> None:
    await client.create_topic("t")
    subscription = await client.subscribe("t")
    reading = asyncio.create_task(anext(subscription, None))
    await asyncio.sleep(0)
    await subscription.close()
    assert await reading is None

    async def gone() -> bool:
        return (await client.topic("t")).subscriptions == 0

    await until(gone)


async def test_a_live_subscription_survives_engine_crashes_without_gap_or_double(
    site: LocalSite, client: Client
) -> None:
    await client.create_topic("t")
    async with client.subscribe("t") as subscription:
        for round_ in range(3):
            for n in range(50):
                await client.publish("t", f"{round_}-{n}")
            site.kill_engine()
        await client.publish("t", "end")
        expected = [b"%d-%d" % (r, n) for r in range(3) for n in range(50)]
        assert await take(subscription, 151) == [*expected, b"end"]


async def test_it_survives_a_crash_before_its_first_event(site: LocalSite, client: Client) -> None:
    """What is stored during the outage counts as new too."""
    await client.create_topic("t")
    async with client.subscribe("t") as subscription:
        site.kill_engine()
        async with site.connect() as other:
            await other.publish("t", "meanwhile")
        assert await take(subscription, 1) == [b"meanwhile"]


async def test_a_durable_subscription_resumes_where_it_was(client: Client) -> None:
    await client.create_topic("t")
    async with client.subscribe("t", durable="d") as subscription:
        for n in range(5):
            await client.publish("t", str(n))
        for _ in range(3):
            subscription.ack(await anext(subscription))
    await client.publish("t", "5")
    async with client.subscribe("t", durable="d", ack_wait=0.5) as subscription:
        events = [await anext(subscription) for _ in range(3)]
        assert sorted(e.data for e in events) == [b"3", b"4", b"5"]


async def test_closing_gives_back_what_was_fetched_and_not_handed_out(client: Client) -> None:
    await client.create_topic("t")
    async with client.publisher("t") as publisher:
        for n in range(500):
            await publisher.send(b"%d" % n + b" " * 1000)
    left = set(range(500))
    for _ in range(5):
        start = client.subscribe("t", durable="d", from_index=1, ack_wait=600)
        async with start as subscription:
            event = await asyncio.wait_for(anext(subscription), 20)
            subscription.ack(event)
            left.remove(int(event.data))
    async with client.subscribe("t", durable="d", ack_wait=600) as subscription:
        assert set(map(int, await take(subscription, 495))) == left


async def test_what_is_not_acknowledged_comes_again(client: Client) -> None:
    await client.create_topic("t")
    await client.publish("t", "x")
    async with client.subscribe("t", durable="d", from_index=1, ack_wait=0.3) as subscription:
        first = await anext(subscription)
        again = await anext(subscription)
        assert (first.index, again.index) == (1, 1)
        assert not first.redelivered
        assert again.redelivered
        subscription.reject(again)
        third = await anext(subscription)
        assert third.deliveries >= 3
        subscription.ack(third)
        await client.publish("t", "y")
        assert (await anext(subscription)).data == b"y"


async def test_what_came_again_while_it_was_worked_on_is_not_handed_out_once_acknowledged(
    client: Client,
) -> None:
    await client.create_topic("t")
    await client.publish("t", "x")
    async with client.subscribe("t", durable="d", from_index=1, ack_wait=0.3) as subscription:
        event = await anext(subscription)
        async with asyncio.timeout(20):
            while not subscription._held:
                await asyncio.sleep(0.01)
        subscription.ack(event)
        await client.publish("t", "y")
        assert (await anext(subscription)).data == b"y"


async def test_an_engine_crash_does_not_hold_a_durable_subscription_up(
    site: LocalSite, client: Client
) -> None:
    """What was on its way when the engine died comes at once, not after `ack_wait`."""
    await client.create_topic("t")
    async with client.subscribe("t", durable="d", ack_wait=600, window=64) as subscription:
        async with client.publisher("t") as publisher:
            for n in range(2000):
                await publisher.send(b"%d" % n)
                if n % 400 == 200:
                    site.kill_engine()
        seen: set[int] = set()
        async with asyncio.timeout(30):
            while len(seen) < 2000:
                event = await anext(subscription)
                seen.add(event.index)
                subscription.ack(event)


async def test_the_window_bounds_what_is_in_flight(client: Client) -> None:
    await client.create_topic("t")
    async with client.subscribe("t", durable="d", window=4) as subscription:
        for n in range(20):
            await client.publish("t", str(n))
        events = [await anext(subscription) for _ in range(4)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(subscription), 0.3)
        subscription.ack(events[0])
        assert (await asyncio.wait_for(anext(subscription), 10)).data == b"4"


async def test_only_durable_subscriptions_acknowledge(client: Client) -> None:
    await client.create_topic("t")
    await client.publish("t", "x")
    async with client.subscribe("t", from_index=1) as subscription:
        with pytest.raises(errors.BadSetting):
            subscription.ack(await anext(subscription))


async def test_a_durable_name_belongs_to_one_sub_topic(client: Client) -> None:
    await client.create_topic("t")
    async with client.subscribe("t/a", durable="d"):
        with pytest.raises(errors.SubscriptionError, match="another sub-topic"):
            await client.subscribe("t/b", durable="d")
    with pytest.raises(errors.BadName):
        await client.subscribe("t", durable="a.b")


async def test_a_durable_subscription_can_be_removed(client: Client) -> None:
    await client.create_topic("t")
    async with client.subscribe("t", durable="d") as subscription:
        await client.unsubscribe("t", "d")
        with pytest.raises(errors.SubscriptionError, match="was removed"):
            await take(subscription, 1)
    with pytest.raises(errors.SubscriptionError, match="no durable"):
        await client.unsubscribe("t", "d")


async def test_two_readers_share_a_durable_subscription(client: Client) -> None:
    """Each event goes to one of them."""
    await client.create_topic("t")
    async with (
        client.subscribe("t", durable="d", window=10) as one,
        client.subscribe("t", durable="d", window=10) as two,
    ):
        seen: list[int] = []

        async def work(subscription: Subscription) -> None:
            async for event in subscription:
                seen.append(event.index)
                subscription.ack(event)

        async with beside(work(one), work(two)):
            for n in range(100):
                await client.publish("t", str(n))
            await until(lambda: len(seen) >= 100)
    assert sorted(seen) == list(range(1, 101))


CRASHING_READER = """
import asyncio, os, signal, sys, skerry
async def main():
    async with skerry.connect(sys.argv[1]) as client:
        subscription = await client.subscribe("t", durable="d", ack_wait=0.5)
        async for event in subscription:
            print(event.index, flush=True)
            if event.index == 40:
                os.kill(os.getpid(), signal.SIGKILL)
            subscription.ack(event)
            await asyncio.sleep(0.001)
asyncio.run(main())
"""


async def test_a_reader_that_is_killed_resumes_with_what_it_had_not_acknowledged(
    site: LocalSite, client: Client
) -> None:
    await client.create_topic("t")
    async with client.subscribe("t", durable="d", ack_wait=0.5):
        pass
    for n in range(1, 101):
        await client.publish("t", str(n))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CRASHING_READER, str(site.data), stdout=subprocess.PIPE
    )
    output, _ = await process.communicate()
    before = [int(line) for line in output.split()]
    assert process.returncode == -9
    assert before == list(range(1, 41))
    after: set[int] = set()
    async with client.subscribe("t", durable="d", ack_wait=0.5) as subscription:
        async for event in subscription:
            after.add(event.index)
            subscription.ack(event)
            if len(after | set(before[:-1])) == 100:
                break
    assert set(range(40, 101)) <= after


async def test_a_reader_that_lags_behind_retention_is_told(client: Client) -> None:
    await client.create_topic("t", max_events=50)
    async with client.subscribe("t", window=10) as subscription:
        for n in range(500):
            await client.publish("t", str(n))
        with pytest.raises(errors.AgedOut, match="aged out before") as caught:
            await take(subscription, 500)
        assert caught.value.first == 451


async def test_a_durable_subscription_counts_what_aged_out(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await client.create_topic("t", max_events=10)
    async with client.subscribe("t", durable="d"):
        pass
    for n in range(30):
        await client.publish("t", str(n))
    async with client.subscribe("t", durable="d") as subscription:
        assert subscription.missed == 20
        assert (await anext(subscription)).index == 21
    assert "20 events of t aged out" in caplog.text


async def test_a_deleted_topic_ends_its_subscriptions(client: Client, admin: Client) -> None:
    await client.create_topic("t")
    async with (
        client.subscribe("t") as live,
        client.subscribe("t", durable="d") as durable,
    ):
        await admin.delete_topic("t")
        for subscription in (live, durable):
            with pytest.raises(errors.UnknownTopic):
                await asyncio.wait_for(anext(subscription), 30)


async def test_an_outage_that_lasts_is_said(site: LocalSite) -> None:
    async with site.connect() as admin:
        await admin.create_topic("t")
    client = site.connect(timeout=1.0)
    async with client, client.subscribe("t") as subscription:
        await site.site.close()
        with pytest.raises(errors.Unavailable, match="not reached"):
            await asyncio.wait_for(anext(subscription), 20)


async def test_bad_windows_are_refused(client: Client) -> None:
    await client.create_topic("t")
    for window in (0, -1, 10**6):
        with pytest.raises(errors.BadSetting):
            await client.subscribe("t", window=window)
    with pytest.raises(errors.BadSetting):
        await client.subscribe("t", durable="d", ack_wait=0)
