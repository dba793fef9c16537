"""Many topics, many sub-topics, and a subscriber that stops reading."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from skerry import Client, Publisher
from skerry.testing import LocalSite
from tests.conftest import until

TOPICS = int(os.environ.get("SKERRY_TOPICS", "1100"))
"""More than the engine lists in one answer, also by name. With 10 000 it takes a minute."""
SUB_TOPICS = 10_000
AT_ONCE = 64


async def create_all(client: Client, count: int) -> None:
    """Create topics, some at a time."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await client.create_topic(f"room/{number}")

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_thousands_of_topics_are_kept_across_a_restart(tmp_path: Path) -> None:
    names = {f"room/{number}" for number in range(TOPICS)}
    last = f"room/{TOPICS - 1}"
    async with LocalSite(data=tmp_path) as site, site.connect() as client:
        await create_all(client, TOPICS)
        assert {topic.name for topic in await client.topics()} == names
        assert (await client.status()).topics == TOPICS
        assert await client.publish(last, "before") == 1
        assert [event.data async for event in client.read(last)] == [b"before"]
    async with LocalSite(data=tmp_path) as site, site.connect() as client:
        assert {topic.name for topic in await client.topics()} == names
        assert (await client.status()).topics == TOPICS
        assert await client.publish(last, "after") == 2
        assert [event.data async for event in client.read(last)] == [b"before", b"after"]


async def test_ten_thousand_sub_topics_share_one_log(client: Client) -> None:
    await client.create_topic("building")
    async with client.publisher("building") as publisher:
        for number in range(SUB_TOPICS):
            await publisher.send(str(number), topic=f"building/floor{number % 100}/{number}")
    topic = await client.topic("building")
    assert (topic.events, topic.latest_index) == (SUB_TOPICS, SUB_TOPICS)
    assert [topic.name for topic in await client.topics()] == ["building"]
    [event] = [event async for event in client.read("building/floor7/4207")]
    assert (event.index, event.data) == (4208, b"4207")
    floor = [int(event.data) async for event in client.read("building/floor7")]
    assert floor == list(range(7, SUB_TOPICS, 100))
    assert await client.latest_index("building/floor7") == 9908


async def publish_some(publisher: Publisher, count: int) -> None:
    for _ in range(count):
        await publisher.send(os.urandom(1024))
    await publisher.flush()


@pytest.mark.parametrize("durable", [None, "mine"], ids=["live", "durable"])
async def test_a_subscriber_that_stops_reading_harms_nobody_and_misses_nothing(
    client: Client, site: LocalSite, durable: str | None
) -> None:
    """All on one connection, so that one that does not read could block the others."""
    window, count = 100, 5000
    await client.create_topic("t")
    async with (
        client.subscribe("t", window=window, durable=durable) as stopped,
        client.subscribe("t") as lively,
        client.publisher("t") as publisher,
    ):
        await publisher.send("first")
        first = await anext(stopped)
        if durable:
            stopped.ack(first)
        most_held = 0
        for _ in range(count // 500):
            await publish_some(publisher, 500)
            most_held = max(most_held, len(stopped._held))
        seen = [await anext(lively) for _ in range(count + 1)]
        assert [event.index for event in seen] == list(range(1, count + 2))
        await until(lambda: len(stopped._held) >= window // 2)  # it was given what it can hold
        assert max(most_held, len(stopped._held)) <= window

        rest = []
        for _ in range(count):
            rest.append(event := await anext(stopped))
            await asyncio.sleep(0)  # let more come in, as a reader with work to do would
            most_held = max(most_held, len(stopped._held))
            if durable:
                stopped.ack(event)
        assert [event.index for event in rest] == list(range(2, count + 2))
        assert [event.data for event in rest] == [event.data for event in seen[1:]]
        assert most_held <= window


async def test_a_subscriber_that_stops_reading_holds_few_large_events(client: Client) -> None:
    """The window counts bytes too: at most one and a half times 32 MB, however few events."""
    await client.create_topic("t")
    size = 1024 * 1024
    async with (
        client.subscribe("t", window=1000) as stopped,
        client.subscribe("t") as lively,
        client.publisher("t") as publisher,
    ):
        for _ in range(200):
            await publisher.send(bytes(size))
        await anext(stopped)
        for _ in range(200):  # it was given as much, had it asked for it
            await anext(lively)
        await until(lambda: len(stopped._held) >= 8)
        assert len(stopped._held) <= 49
        rest = [await anext(stopped) for _ in range(199)]
        assert [event.index for event in rest] == list(range(2, 201))


async def test_a_client_that_reads_nothing_from_its_socket_harms_nobody(
    site: LocalSite, client: Client
) -> None:
    """A client whose event loop does not run reads nothing from its socket at all."""
    await client.create_topic("t")
    async with site.connect() as hung, hung.subscribe("t", window=50) as stopped:
        link = hung._open.connection._link
        assert link is not None
        link.transport.pause_reading()
        async with client.subscribe("t") as lively, client.publisher("t") as publisher:
            await publish_some(publisher, 5000)
            assert [(await anext(lively)).index for _ in range(5000)] == list(range(1, 5001))
        link.transport.resume_reading()
        assert [(await anext(stopped)).index for _ in range(5000)] == list(range(1, 5001))
