"""Topics as streams: offsets, limits, and what may happen to a topic under a query."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from skerry import Client
from skerry.testing import LocalFabric, LocalSite
from tests.conftest import until
from tests.live.faults import freeze
from tests.spark.conftest import PATIENCE


class Query:
    """A query that appends what it reads to a folder; run it again to go on."""

    def __init__(self, spark: Any, folder: Path, data: Path, **options: Any) -> None:
        self.spark = spark
        self.folder = folder
        self.options = {"data": str(data), "start": "earliest", **options}
        self.query: Any = None

    def start(self, **changes: Any) -> Any:
        """Follow the topic."""
        self.query = self._writer(changes).start(str(self.folder / "out"))
        return self.query

    def once(self, **changes: Any) -> None:
        """Read what there is, and stop."""
        writer = self._writer(changes).trigger(availableNow=True)
        self.query = writer.start(str(self.folder / "out"))
        self.query.awaitTermination()

    def _writer(self, changes: dict[str, Any]) -> Any:
        options = {**self.options, **changes}
        stream = self.spark.readStream.format("skerry").options(**options).load()
        self.schema = stream.schema
        writer = stream.writeStream.format("parquet")
        return writer.option("checkpointLocation", str(self.folder / "checkpoint"))

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """What was read so far, sorted."""
        if not (self.folder / "out").exists():
            return []
        frame = self.spark.read.schema(self.schema).parquet(str(self.folder / "out"))
        return sorted(tuple(row) for row in frame.select(*columns).collect())

    def stop(self) -> None:
        """End it."""
        if self.query is not None:
            self.query.stop()


Make = Callable[..., Query]


@pytest.fixture
async def query(spark: Any, site: LocalSite, tmp_path: Path) -> AsyncIterator[Make]:
    """Makes queries over topics of `site`, and ends them."""
    made: list[Query] = []

    def make(data: Path | None = None, **options: Any) -> Query:
        made.append(Query(spark, tmp_path / f"q{len(made)}", data or site.data, **options))
        return made[-1]

    yield make
    for one in made:
        await asyncio.to_thread(one.stop)


async def run(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Outside the loop that the site lives in."""
    return await asyncio.to_thread(function, *arguments, **options)


async def fill(client: Client, topic: str, start: int, end: int) -> None:
    """Publish the numbers from `start` to `end`."""
    async with client.publisher(topic) as publisher:
        for n in range(start, end):
            await publisher.send(b"%d" % n)


def numbers(query: Query) -> list[int]:
    """The numbers that were read."""
    return sorted(int(value) for (value,) in query.rows("value"))


async def reaches(query: Query, count: int) -> None:
    """Wait until a running query has read so many events; raise what ended it, if anything did."""

    async def enough() -> bool:
        if (error := await run(query.query.exception)) is not None:
            raise error
        return len(await run(query.rows, "index")) >= count

    await until(enough, PATIENCE)


async def test_a_query_goes_on_where_it_was(client: Client, query: Make) -> None:
    await client.create_topic("t")
    await fill(client, "t", 0, 1000)
    reading = query(topic="t")
    await run(reading.once)
    assert await run(numbers, reading) == list(range(1000))
    await fill(client, "t", 1000, 1500)
    await run(reading.once)
    await run(reading.once)
    assert await run(numbers, reading) == list(range(1500))


async def test_a_running_query_follows_and_tells_how_far_it_is(client: Client, query: Make) -> None:
    await client.create_topic("t")
    await fill(client, "t", 0, 10)
    reading = query(topic="t", start="latest")
    started = await run(reading.start)
    await run(started.processAllAvailable)
    await fill(client, "t", 10, 30)
    await run(started.processAllAvailable)
    assert await run(numbers, reading) == list(range(10, 30))
    source = (await run(lambda: started.lastProgress))["sources"][0]
    assert '"index": 30' in source["endOffset"] or '"index":30' in source["endOffset"]


async def test_a_trigger_takes_no_more_than_it_may(client: Client, query: Make) -> None:
    await client.create_topic("t")
    await fill(client, "t", 0, 100)
    reading = query(topic="t", maxRowsPerTrigger=30)
    await run(reading.once)
    sizes = [p["numInputRows"] for p in await run(lambda: reading.query.recentProgress)]
    assert [size for size in sizes if size] == [30, 30, 30, 10]
    assert await run(numbers, reading) == list(range(100))


async def test_a_pattern_waits_for_topics_and_takes_in_new_ones(
    client: Client, query: Make
) -> None:
    reading = query(topic="sensors/#", start="latest")
    started = await run(reading.start)
    await run(started.processAllAvailable)
    assert await run(lambda: started.isActive)
    await client.create_topic("sensors/a")
    await fill(client, "sensors/a", 0, 5)
    await reaches(reading, 5)
    await client.create_topic("sensors/b")
    await fill(client, "sensors/b", 5, 9)
    await reaches(reading, 9)
    assert {row[0] for row in await run(reading.rows, "topic")} == {"sensors/a", "sensors/b"}


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("deleted", "topic t was deleted while a query read it"),
        ("anew", "topic t is not the one that this query has read up to index 10"),
        ("aged", "events 11 to 25 of t aged out"),
        ("other", "checkpoint is of a query that read t, and this one reads u"),
        ("unknown", "there is no topic nope"),
        ("version", "checkpoint was not written by this version of Skerry"),
    ],
)
async def test_a_query_stops_when_its_topic_is_not_what_it_was(
    client: Client, admin: Client, query: Make, what: str, message: str
) -> None:
    await client.create_topic("t", max_events=15)
    await fill(client, "t", 0, 10)
    reading = query(topic="t")
    changes = {}
    if what != "unknown":
        await run(reading.once)
    if what == "deleted":
        await admin.delete_topic("t")
    elif what == "anew":
        await admin.delete_topic("t")
        await client.create_topic("t")
        await fill(client, "t", 0, 20)
    elif what == "aged":
        await fill(client, "t", 10, 40)
    elif what == "other":
        await client.create_topic("u")
        changes["topic"] = "u"
    elif what == "version":
        await fill(client, "t", 10, 12)
        offsets = reading.folder / "checkpoint" / "offsets"
        (offsets / ".0.crc").unlink(missing_ok=True)
        lines = (offsets / "0").read_text().splitlines()
        (offsets / "0").write_text("\n".join([*lines[:-1], '{"t": 10}']))
    else:
        changes["topic"] = "nope"
    with pytest.raises(Exception, match=message):
        await run(reading.once, **changes)


async def test_lost_data_may_be_passed_over(client: Client, admin: Client, query: Make) -> None:
    await client.create_topic("t", max_events=15)
    await fill(client, "t", 0, 10)
    reading = query(topic="t", failOnDataLoss="false")
    await run(reading.once)
    await fill(client, "t", 10, 40)
    await run(reading.once)
    assert await run(numbers, reading) == [*range(10), *range(25, 40)]
    await admin.delete_topic("t")
    await client.create_topic("t")
    await fill(client, "t", 100, 105)
    await run(reading.once)
    assert (await run(numbers, reading))[-5:] == list(range(100, 105))


async def test_an_engine_that_is_killed_under_a_query_costs_nothing(
    client: Client, site: LocalSite, query: Make
) -> None:
    await client.create_topic("t")
    reading = query(topic="t", maxRowsPerTrigger=1000)
    await run(reading.start)
    for n in range(4):
        await fill(client, "t", n * 1000, n * 1000 + 1000)
        site.kill_engine()
    await reaches(reading, 4000)
    assert await run(numbers, reading) == list(range(4000))


async def test_a_topic_moves_and_fails_over_under_a_query(query: Make) -> None:
    async with (
        LocalFabric(["hub", "farm", "lab"]) as fabric,
        fabric.connect("hub") as client,
        fabric.connect("hub", "admin") as admin,
    ):
        await client.create_topic("t", home="farm", replicas=2, ack="quorum")
        reading = query(fabric["hub"].data, topic="t", maxRowsPerTrigger=500)
        await run(reading.start)
        await fill(client, "t", 0, 1000)
        await admin.move_topic("t", "lab")
        await fill(client, "t", 1000, 2000)
        home = (await client.topic("t")).home
        assert home == "lab"
        await fabric.crash("lab")
        await fill(client, "t", 2000, 3000)
        assert (await client.topic("t")).home != "lab"
        await reaches(reading, 3000)
        assert await run(numbers, reading) == list(range(3000))
        await run(reading.stop)


async def test_nothing_is_read_before_a_quorum_holds_it(query: Make) -> None:
    """A home that is ahead of its replicas may be lost, and with it what only it has."""
    # However long Spark takes: a home that hears nobody goes on, and nobody starts an engine that
    # is frozen anew.
    async with LocalFabric(["hub", "farm", "lab"], hang_timeout=600.0) as fabric:
        async with fabric.connect("farm") as client:
            await client.create_topic("t", home="farm", replicas=2, on_partition="continue")
            await fill(client, "t", 0, 100)
            reading = query(fabric["farm"].data, topic="t")
            started = await run(reading.start)
            await reaches(reading, 100)
            for replica in ("hub", "lab"):
                await freeze(fabric[replica])
            await fill(client, "t", 100, 200)
            assert await client.latest_index("t") == 200
            await run(started.processAllAvailable)
            assert await run(numbers, reading) == list(range(100))
            await run(reading.stop)
        await fabric.crash("farm")
        for replica in ("hub", "lab"):
            fabric[replica].thaw_engine()
        async with fabric.connect("hub") as client:
            await fill(client, "t", 200, 299)
            await client.publish("t", b"299", ack="quorum")
            await run(reading.once, data=str(fabric["hub"].data))
            log = [(event.index, event.data) async for event in client.read("t")]
        assert await run(reading.rows, "index", "value") == log
        assert {int(value) for _, value in log} >= {*range(100), *range(200, 300)}
