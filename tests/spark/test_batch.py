"""Topics as tables."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from skerry import Client
from skerry.testing import LocalSite
from tests.live.chains import ChainByHand
from tests.spark.conftest import rows

Table = Callable[..., Any]


async def fill(client: Client, topic: str, count: int) -> None:
    """Publish 0, 1, 2, …"""
    async with client.publisher(topic) as publisher:
        for n in range(count):
            await publisher.send(b"%d" % n)


async def test_every_column_says_what_was_published(client: Client, table: Table) -> None:
    await client.create_topic("t")
    before = datetime.now(UTC)
    await client.publish("t", b"\x00\xff", id="mine-7")
    await client.publish("t/roof/temp", "21.5", key="k", headers={"unit": "C"})
    found = await rows(table("t").orderBy("index"))
    assert [row[:3] for row in found] == [("t", None, 1), ("t", "roof/temp", 2)]
    assert [row[4:] for row in found] == [
        (None, {}, "mine", b"\x00\xff"),
        ("k", {"unit": "C"}, None, b"21.5"),
    ]
    assert all(abs((row[3].astimezone(UTC) - before).total_seconds()) < 60 for row in found)


async def test_a_long_log_is_read_whole_in_pieces(client: Client, table: Table) -> None:
    await client.create_topic("t")
    await fill(client, "t", 50_000)
    frame = table("t", partitions=2)
    assert frame.rdd.getNumPartitions() == 2
    found = await rows(frame, "index", "value")
    assert sorted(found) == [(n + 1, b"%d" % n) for n in range(50_000)]


async def test_start_and_end_are_indexes_or_times(client: Client, table: Table) -> None:
    await client.create_topic("t")
    await fill(client, "t", 5)
    middle = (await client.get("t", 3)).time.isoformat()

    async def indexes(**options: Any) -> list[int]:
        return sorted(row[0] for row in await rows(table("t", **options), "index"))

    assert await indexes(start=2, end=4) == [2, 3, 4]
    assert await indexes(start="latest") == []
    assert (await indexes(start=middle))[-1] == 5
    assert 3 in await indexes(end=middle)
    assert await indexes(start="2100-01-01") == []
    assert await indexes(end="2000-01-01") == []
    assert await indexes(end=99) == [1, 2, 3, 4, 5]


async def test_patterns_read_many_topics_and_sub_topics(client: Client, table: Table) -> None:
    for topic in ("sensors/a", "sensors/b", "other"):
        await client.create_topic(topic)
    for topic in ("sensors/a", "sensors/a/x", "sensors/b/x", "sensors/b/y", "other"):
        await client.publish(topic, topic)

    async def values(pattern: str) -> set[str]:
        return {row[0].decode() for row in await rows(table(pattern), "value")}

    every = {"sensors/a", "sensors/a/x", "sensors/b/x", "sensors/b/y"}
    assert await values("sensors/#") == every
    assert await values("sensors/+/x") == {"sensors/a/x", "sensors/b/x"}
    assert await values("#") == every | {"other"}
    assert await values("sensors/b/y") == {"sensors/b/y"}
    assert await values("nothing/#") == set()


async def test_filters_on_topic_index_and_time_reach_the_log(client: Client, table: Table) -> None:
    await client.create_topic("a")
    await client.create_topic("b")
    await fill(client, "a", 10)
    await fill(client, "b", 10)
    time = (await client.get("a", 9)).time.isoformat()
    frame = table("#")
    assert await rows(frame.where("topic = 'a' and index > 3 and index < 6"), "topic", "index") == [
        ("a", 4),
        ("a", 5),
    ]
    late = await rows(frame.where(f"topic = 'a' and time >= '{time}'"), "index")
    assert (10,) in late
    plan = frame.where("index = 3")._jdf.queryExecution().executedPlan().toString()
    assert "(index" not in plan.replace("isnotnull(index", "")
    assert await rows(
        frame.where("topic in ('b', 'c') and value = cast('7' as binary)"), "index"
    ) == [(8,)]


async def test_columns_that_are_not_asked_for_are_not_made(client: Client, table: Table) -> None:
    await client.create_topic("t")
    await fill(client, "t", 3)
    assert await rows(table("t", schema="value BINARY, index LONG").orderBy("index")) == [
        (b"0", 1), (b"1", 2), (b"2", 3)
    ]  # fmt: skip


async def test_an_engine_that_is_killed_meanwhile_costs_nothing(
    client: Client, site: LocalSite, table: Table
) -> None:
    await client.create_topic("t")
    await fill(client, "t", 60_000)
    reading = asyncio.create_task(rows(table("t", partitions=2), "index"))
    for _ in range(3):
        await asyncio.sleep(0.3)
        site.kill_engine()
    assert sorted(await reading) == [(n + 1,) for n in range(60_000)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "nope"}, "there is no topic nope"),
        ({"topic": "t", "bogus": "1"}, "no option 'bogus'"),
        ({"topic": "t", "start": "2"}, "events 2 to 5 of t aged out"),
        ({"topic": "t", "format": "json"}, "format json needs a schema"),
    ],
)
async def test_what_is_wrong_is_said(
    client: Client, table: Table, options: dict[str, str], message: str
) -> None:
    await client.create_topic("t", max_events=5)
    await fill(client, "t", 10)
    topic = options.pop("topic")

    def read() -> None:
        table(topic, **options).collect()

    with pytest.raises(Exception, match=message):
        await asyncio.to_thread(read)


async def test_a_start_that_aged_out_may_be_passed_over(client: Client, table: Table) -> None:
    await client.create_topic("t", max_events=5)
    await fill(client, "t", 10)
    found = await rows(table("t", start=2, failOnDataLoss="false"), "index")
    assert sorted(found) == [(6,), (7,), (8,), (9,), (10,)]


async def test_a_chain_of_segments_is_one_table(
    client: Client, admin: Client, table: Table
) -> None:
    await client.create_topic("t")
    log = ChainByHand(admin, "t")
    await fill(client, "t", 102)
    middle = (await client.get("t", 100)).time.isoformat()
    await log.roll(100)  # the last two are not part of the history
    await fill(client, "t", 20)
    await log.roll()
    await fill(client, "t", 5)
    expected = [*range(100), *range(20), *range(5)]
    for partitions in (1, 3):
        found = sorted(await rows(table("t", partitions=partitions), "index", "value"))
        assert found == [(n + 1, b"%d" % value) for n, value in enumerate(expected)]
    found = sorted(await rows(table("t", start=99, end=102), "index", "value"))
    assert found == [(99, b"98"), (100, b"99"), (101, b"0"), (102, b"1")]
    assert len(await rows(table("t", start=middle))) == 26
    await log.jetstream.call("STREAM.PURGE.t~t")  # it aged out
    assert sorted(await rows(table("t"), "index")) == [(n,) for n in range(101, 126)]
