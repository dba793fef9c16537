"""Feeds and subscriptions by query, at one site and between sites."""

from __future__ import annotations

import asyncio
from typing import Any

from skerry import Client
from skerry.feeds.subscription import QuerySubscription
from skerry.model.feeds import Joined, Left, Received
from skerry.testing import LocalFabric, LocalSite

ROOM = 'Location/Building = "Soda" and Location/Room = "410"'


async def take(found: QuerySubscription, count: int) -> list[Any]:
    """The next items, in short: what happened, and to which feed or with which payload."""
    items: list[Any] = []
    async with asyncio.timeout(20):
        while len(items) < count:
            item = await anext(found)
            if isinstance(item, Received):
                items.append(item.event.data.decode())
            else:
                items.append((type(item).__name__, item.feed.id))
    return items


async def test_events_of_matching_feeds_arrive_as_feeds_come_change_and_go(client: Client) -> None:
    async with client.query(ROOM) as found:
        async with await client.feed({"Location/Building": "Soda", "Location/Room": "410"}) as feed:
            await feed.publish("1")
            assert await take(found, 2) == [("Joined", feed.id), "1"]
            async with await client.feed({"Location/Building": "Soda"}) as other:
                await other.publish("not this")
                await other.publish("2", change={"Location/Room": "410"})
                assert await take(found, 2) == [("Joined", other.id), "2"]
                await feed.set({"Location/Room": "415"})
                await feed.publish("elsewhere")
                await other.publish("3")
                assert await take(found, 2) == [("Left", feed.id), "3"]
                await feed.publish("4", change={"Location/Room": "410"})
                assert await take(found, 2) == [("Joined", feed.id), "4"]
            assert await take(found, 1) == [("Left", other.id)]
        assert await take(found, 1) == [("Left", feed.id)]
    assert await client.feeds() == []


async def test_queries_span_sites_and_events_cross_a_link_only_if_they_match() -> None:
    async with (
        LocalFabric(["hub", "farm", "lab"]) as fabric,
        fabric.connect("farm") as farm,
        fabric.connect("lab") as lab,
        lab.query('kind = "temp" and not room = "410"') as found,
        await farm.feed({"kind": "temp", "room": "409"}) as near,
        await farm.feed({"kind": "temp", "room": "410"}) as far,
    ):
        for n in range(20):
            await near.publish(f"near {n}")
            await far.publish(f"far {n}")
        assert await take(found, 21) == [("Joined", near.id), *[f"near {n}" for n in range(20)]]
        await far.publish("far 20", change={"room": "411"})
        await near.publish("gone", change={"room": "410"})
        items = await take(found, 3)
        assert sorted(map(str, items)) == sorted(
            map(str, [("Joined", far.id), "far 20", ("Left", near.id)])
        )
        assert items.index(("Joined", far.id)) < items.index("far 20")


async def test_a_feed_goes_on_when_its_log_moves_and_fails_over() -> None:
    async with (
        LocalFabric(["hub", "farm", "lab"]) as fabric,
        fabric.connect("farm") as farm,
        fabric.connect("hub") as hub,
        fabric.connect("hub", "admin") as admin,
    ):
        feed = await farm.feed({"room": "410"}, permanent=True)
        await admin.set_topic("feeds/farm/log", replicas=2, ack="quorum")
        numbers: list[str] = []
        async with hub.query('room = "410"') as found:

            async def read() -> None:
                async for item in found:
                    match item:
                        case Received(event=event):
                            numbers.append(event.data.decode())

            reading = asyncio.create_task(read())
            for n in range(50):
                await feed.publish(str(n))
            await admin.move_topic("feeds/farm/log", "lab")
            for n in range(50, 100):
                await feed.publish(str(n))
            await fabric.crash("lab")
            for n in range(100, 150):
                await feed.publish(str(n))
            async with asyncio.timeout(20):
                while len(numbers) < 150:
                    await asyncio.sleep(0.01)
            reading.cancel()
        assert numbers == [str(n) for n in range(150)]


async def read_some(client: Client, count: int, **options: Any) -> list[Any]:
    """What the durable query `q` has next; acknowledged, item by item."""
    items: list[Any] = []
    async with client.query('room = "410"', durable="q", **options) as found, asyncio.timeout(20):
        while len(items) < count:
            item = await anext(found)
            found.ack(item)
            match item:
                case Received(event=event):
                    items.append(event.data.decode())
                case Joined(feed=feed) | Left(feed=feed):
                    items.append((type(item).__name__, feed.metadata.get("name")))
    return items


async def test_a_durable_query_gives_what_feeds_published_while_they_matched(
    client: Client,
) -> None:
    stays = await client.feed({"room": "410", "name": "stays"})
    leaves = await client.feed({"room": "410", "name": "leaves"})
    comes = await client.feed({"room": "409", "name": "comes"})
    items = await read_some(client, 2)
    assert sorted(items) == [("Joined", "leaves"), ("Joined", "stays")]
    await stays.publish("s1")
    await leaves.publish("l1")
    await comes.publish("not yet")
    await leaves.publish("not any more", change={"room": "411"})
    await comes.publish("c1", change={"room": "410"})
    await stays.publish("gone for a while", change={"room": "412"})
    await stays.publish("s2", change={"room": "410"})
    items = await read_some(client, 8)
    assert [item for item in items if isinstance(item, str) and item[0] == "s"] == ["s1", "s2"]
    assert set(items) == {
        ("Joined", "stays"), "s1", "s2",
        ("Joined", "leaves"), "l1", ("Left", "leaves"),
        ("Joined", "comes"), "c1",
    }  # fmt: skip
    await comes.publish("c2")
    assert set(await read_some(client, 3)) == {("Joined", "stays"), ("Joined", "comes"), "c2"}


async def test_what_was_not_acknowledged_comes_again(client: Client, site: LocalSite) -> None:
    feed = await client.feed({"room": "410", "name": "a"}, permanent=True)
    async with site.connect() as reader:
        found = await reader.query('room = "410"', durable="q")
        for n in range(3):
            await feed.publish(str(n))
        assert await take(found, 4) == [("Joined", feed.id), "0", "1", "2"]
        # Nothing is acknowledged, and the client vanishes.
    assert await read_some(client, 4) == [("Joined", "a"), "0", "1", "2"]
