"""Tables and streams written to topics: each row once, whatever is run again."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import skerry.spark
from skerry import Client
from skerry.engine.jetstream import JetStream
from skerry.testing import LocalFabric, LocalSite
from tests.conftest import until
from tests.spark.conftest import PATIENCE


async def run(function: Callable[..., Any], *arguments: Any) -> Any:
    """Outside the loop that the site lives in."""

    def work() -> Any:
        if (spark := SparkSession._instantiatedSession) is not None:
            skerry.spark.register(spark)  # this is a thread of our own
        return function(*arguments)

    return await asyncio.to_thread(work)


async def fill(client: Client, topic: str, start: int, end: int) -> None:
    """Publish the numbers from `start` to `end`."""
    async with client.publisher(topic) as publisher:
        for n in range(start, end):
            await publisher.send(b"%d" % n)


PROBE = b"probe"


async def values(client: Client, topic: str) -> list[str]:
    """What a topic holds, without what `forget_ids` put there."""
    return [event.data.decode() async for event in client.read(topic) if event.data != PROBE]


def copy(spark: Any, data: Path, checkpoint: Path | None, **options: Any) -> None:
    """Copy topic `a` to topic `b`, as far as it goes now."""
    source = spark.readStream.format("skerry").options(data=str(data), topic="a", start="earliest")
    frame = source.options(**options).load().select("value")
    writer = frame.writeStream.format("skerry").options(data=str(data), topic="b")
    if checkpoint is None:
        writer = writer.queryName("copy")
    else:
        writer = writer.option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def forget_last_commit(checkpoint: Path) -> Path:
    """Make Spark run its last batch again, as after a driver that died before it was done with it;
    return the file that tells when that batch began."""
    last = max(int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    return checkpoint / "offsets" / f"{last}"


async def test_a_table_is_written_with_all_its_columns(
    spark: Any, client: Client, site: LocalSite
) -> None:
    await client.create_topic("t")
    await client.create_topic("u")
    schema = "topic STRING, sub_topic STRING, key STRING, headers MAP<STRING,STRING>, value STRING"
    rows = [("t", "x/y", "k", {"unit": "C"}, "1"), ("u", None, None, None, "2")]

    def write() -> None:
        frame = spark.createDataFrame(rows, schema)
        frame.write.format("skerry").option("data", str(site.data)).mode("append").save()

    await run(write)
    (first,) = [event async for event in client.read("t")]
    assert (first.topic, first.key, first.headers, first.data) == (
        "t/x/y", "k", {"unit": "C"}, b"1"
    )  # fmt: skip
    assert await values(client, "u") == ["2"]


async def test_rows_that_say_the_same_are_all_written(
    spark: Any, client: Client, site: LocalSite
) -> None:
    await client.create_topic("t")

    def write() -> None:
        frame = spark.range(1000).selectExpr("cast(id % 3 as string) as value")
        frame.write.format("skerry").options(data=str(site.data), topic="t").mode("append").save()

    await run(write)
    assert Counter(await values(client, "t")) == {"0": 334, "1": 333, "2": 333}


async def test_a_stream_is_written_once_across_runs(
    spark: Any, client: Client, site: LocalSite, tmp_path: Path
) -> None:
    await client.create_topic("a")
    await client.create_topic("b")
    for n in range(3):
        await fill(client, "a", n * 1000, n * 1000 + 1000)
        await run(copy, spark, site.data, tmp_path)
        forget_last_commit(tmp_path)  # so each run begins with the batch before
    assert sorted(map(int, await values(client, "b"))) == list(range(3000))


async def test_a_batch_that_is_run_again_after_the_log_forgot_is_not_doubled(
    spark: Any, client: Client, admin: Client, site: LocalSite, tmp_path: Path
) -> None:
    await client.create_topic("a")
    await client.create_topic("b")
    await fill(client, "a", 0, 3000)
    await run(copy, spark, site.data, tmp_path)
    await forget_ids(client, admin, "b")
    await fill(client, "b", 10_000, 10_010)  # somebody else writes there too
    offsets = forget_last_commit(tmp_path)
    text = offsets.read_text()
    began = int(json.loads(text.splitlines()[1])["batchTimestampMs"])
    offsets.write_text(text.replace(str(began), str(began - 200_000)))
    offsets.with_name(f".{offsets.name}.crc").unlink(missing_ok=True)
    await run(copy, spark, site.data, tmp_path)
    found = sorted(map(int, await values(client, "b")))
    assert found == [*range(3000), *range(10_000, 10_010)]


async def test_without_the_checkpoint_the_log_would_have_doubled_it(
    spark: Any, client: Client, admin: Client, site: LocalSite, tmp_path: Path
) -> None:
    """What the test before this one relies on: the log itself has forgotten. Here Spark knows where
    the checkpoint is, and the sink does not."""
    await client.create_topic("a")
    await client.create_topic("b")
    await fill(client, "a", 0, 50)
    key = "spark.sql.streaming.checkpointLocation"
    spark.conf.set(key, str(tmp_path))
    try:
        await run(copy, spark, site.data, None)
        await forget_ids(client, admin, "b")
        forget_last_commit(tmp_path / "copy")
        await run(copy, spark, site.data, None)
    finally:
        spark.conf.unset(key)
    assert len(await values(client, "b")) == 100


async def forget_ids(client: Client, admin: Client, topic: str) -> None:
    """Have the log forget the ids that it has seen, as it does after two minutes."""
    jetstream = JetStream(admin._open.connection)
    info = await jetstream.stream(f"t~{topic}")
    assert info is not None
    seen = await client.publish(topic, PROBE, id="probe")

    async def has_forgotten() -> bool:
        return await client.publish(topic, PROBE, id="probe") > seen

    for window in (100_000_000, 120_000_000_000):
        await jetstream.call(
            f"STREAM.UPDATE.t~{topic}", {**info["config"], "duplicate_window": window}
        )
        if window == 100_000_000:  # the engine looks through its ids at its own pace
            await until(has_forgotten, PATIENCE)


async def test_a_stream_is_written_across_a_fabric(spark: Any, tmp_path: Path) -> None:
    async with LocalFabric(["hub", "farm"]) as fabric, fabric.connect("hub") as client:
        await client.create_topic("a", home="hub")
        await client.create_topic("b", home="farm", replicas=1, ack="quorum")
        await fill(client, "a", 0, 500)
        await run(copy, spark, fabric["hub"].data, tmp_path)
        async with fabric.connect("farm") as there:
            assert sorted(map(int, await values(there, "b"))) == list(range(500))


async def test_a_batch_that_broke_off_is_written_once_though_the_new_home_forgot(
    spark: Any, tmp_path: Path
) -> None:
    """The ids that a home knows are those that its engine has seen since it started. The duplicate
    window is not over, and the log would take the rows of the first attempt a second time."""
    async with LocalFabric(["hub", "farm", "lab"]) as fabric, fabric.connect("hub") as client:
        await client.create_topic("a", home="hub")
        await client.create_topic("b", home="farm", replicas=2, ack="quorum", max_event_bytes=1000)
        await fill(client, "a", 0, 100)
        await run(copy, spark, fabric["hub"].data, tmp_path)
        await fill(client, "a", 100, 400)
        await client.publish("a", b"400".ljust(2000))
        with pytest.raises(Exception, match="larger than its topic takes"):
            await run(copy, spark, fabric["hub"].data, tmp_path)
        written = await client.latest_index("b")
        assert written > 100
        for name in ("hub", "lab"):
            await _restart_engine(fabric[name])
        await until(lambda: _has(fabric, "lab", written))
        await fabric.crash("farm")

        async def taken_over() -> bool:
            entry = await client._open.routes.find("b")
            return entry is not None and entry.home != "farm" and entry.forgetful

        await until(taken_over, PATIENCE)
        async with fabric.connect("hub", "admin") as admin:
            await admin.set_topic("b", max_event_bytes=3000)
        await run(copy, spark, fabric["hub"].data, tmp_path)
        assert sorted(map(int, await values(client, "b"))) == list(range(401))


async def _restart_engine(site: LocalSite) -> None:
    """Kill an engine, and wait until the site has another and answers."""
    before = site.site.engine.pid
    site.kill_engine()
    await until(lambda: site.site.engine.pid not in (None, before), PATIENCE)
    async with site.connect() as client:
        await client.topic("b")


async def _has(fabric: LocalFabric, name: str, index: int) -> bool:
    async with fabric.connect(name) as client:
        return await client.latest_index("b") >= index


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("value", {"topic": "nope"}, "there is no topic nope"),
        ("value", {}, "nothing says which topic to write to"),
        ("value", {"topic": "t", "ack": "outbox"}, "is one of home, quorum, not 'outbox'"),
        ("id", {"topic": "t"}, "takes no column 'id'"),
        ("id as value", {"topic": "t"}, "column 'value' is binary or string, not bigint"),
        ("value as key", {"topic": "t"}, "column value is missing"),
        ("value", {"topic": "t", "user": "plain", "timeout": "2"}, "Permissions Violation"),
        ("repeat(value, 4000) as value", {"topic": "t"}, "larger than its topic takes"),
    ],
)
async def test_what_is_wrong_is_said(
    spark: Any,
    client: Client,
    site: LocalSite,
    columns: str,
    options: dict[str, str],
    message: str,
) -> None:
    await client.create_topic("t", max_event_bytes=1000)

    def write() -> None:
        frame = spark.range(1).selectExpr("id", "cast(id as string) as value")
        writer = frame.selectExpr(columns).write.format("skerry").option("data", str(site.data))
        writer.options(**options).mode("append").save()

    with pytest.raises(Exception, match=re.escape(message)):
        await run(write)


async def test_a_site_that_is_full_is_said(spark: Any) -> None:
    async with LocalSite(max_store=2_000_000) as site, site.connect() as client:
        await client.create_topic("t")

        def write() -> None:
            frame = spark.range(50_000).selectExpr("repeat(cast(id as string), 50) as value")
            writer = frame.write.format("skerry").options(data=str(site.data), topic="t")
            writer.mode("append").save()

        with pytest.raises(Exception, match="the site has no room left"):
            await run(write)
