"""Feeds that publish to a topic of their own choice."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from skerry import Client, Received
from skerry.feeds.subscription import QuerySubscription

BEGINNING = datetime.fromtimestamp(0, UTC)
QUERY = 'kind = "temp"'


async def payloads(found: QuerySubscription, count: int) -> list[str]:
    """The payloads of the next events."""
    taken: list[str] = []
    async with asyncio.timeout(60):
        while len(taken) < count:
            item = await anext(found)
            if isinstance(item, Received):
                taken.append(item.event.data.decode())
    return taken


async def test_a_query_begins_with_the_next_event(client: Client) -> None:
    await client.create_topic("t")
    await client.publish("t", "before there was a feed")
    feed = await client.feed({"kind": "temp"}, topic="t", permanent=True)
    await feed.publish("before the query")
    async with client.query(QUERY) as found:
        await feed.publish("1")
        await feed.publish("2")
        assert await payloads(found, 2) == ["1", "2"]


async def test_a_query_from_a_time_begins_there_whenever_the_feed_changed(client: Client) -> None:
    await client.create_topic("t")
    feed = await client.feed({"kind": "temp"}, topic="t", permanent=True)
    await feed.publish("1")
    await feed.set({"room": "410"})
    await feed.publish("2")
    async with client.query(QUERY, from_time=BEGINNING) as found:
        await feed.publish("3")
        assert await payloads(found, 3) == ["1", "2", "3"]


async def test_a_query_outlives_that_a_topic_is_deleted(client: Client, admin: Client) -> None:
    await client.create_topic("t")
    gone = await client.feed({"kind": "temp"}, topic="t", permanent=True)
    stays = await client.feed({"kind": "temp"}, permanent=True)
    async with client.query(QUERY) as found:
        await gone.publish("1")
        assert await payloads(found, 1) == ["1"]
        await admin.delete_topic("t")
        await stays.publish("2")
        assert await payloads(found, 1) == ["2"]
        await stays.publish("3")
        assert await payloads(found, 1) == ["3"]
