"""Pipelines in a real session: checks of their results, changes of their code, failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import skerry
from skerry import Client, errors
from skerry.spark.jobs import Folder, Status
from skerry.spark.pipeline import Pipeline
from skerry.testing import LocalSite
from tests.conftest import until
from tests.spark.pipelines import Pipelines, results


@pytest.fixture
async def pipelines(spark: Any, site: LocalSite, client: Client, tmp_path: Path) -> Pipelines:
    """Of a fresh site with topics `a` and `b`."""
    await client.create_topic("a")
    await client.create_topic("b")
    return Pipelines(spark, site.data, tmp_path)


def counts(
    schema: str = "k STRING, n LONG",
    by: str = "k",
    keep: str = "n >= 0",
    sink: str = "b",
    source: str = "a",
) -> Pipeline:
    """A pipeline with state: counts of a key by the minute."""

    def made(events: Any) -> Any:
        windows = events.where(keep).withWatermark("time", "0 seconds")
        grouped = windows.groupBy("time", by).count()
        return grouped.selectExpr("to_json(struct(*)) AS value")

    return skerry.pipeline(
        source=source, sink=sink, format="json", schema=f"{schema}, time TIMESTAMP", name="counts"
    )(made)


@pytest.mark.parametrize(
    ("made_of", "schema", "message"),
    [
        (lambda e: None, None, "returns nothing, not a DataFrame"),
        (lambda e: 5, None, "returns int, not a DataFrame"),
        (lambda e: e.sparkSession.range(1), None, "returns a table, not a stream"),
        (lambda e: e.select("key"), None, "cannot be written: the column value is missing"),
        (lambda e: e.selectExpr("value", "1 AS n"), None, "the sink takes no column 'n'"),
        (lambda e: e.selectExpr("1 AS value"), None, "is binary or string, not int"),
        (lambda e: e.select("degrees"), None, "fails: AnalysisException: [UNRESOLVED_COLUMN"),
        (lambda e: 1 / 0, None, "fails: ZeroDivisionError: division by zero"),
        (lambda e: e, "n NUMBER", "the source a of p failed"),
        (lambda e: e, "index STRING", "the column 'index' is int64, not string"),
    ],
)
async def test_what_a_function_returns_is_checked_first(
    pipelines: Pipelines, made_of: Callable[[Any], Any], schema: str | None, message: str
) -> None:
    format = "json" if schema else "binary"
    made = skerry.pipeline(source="a", sink="b", name="p", format=format, schema=schema)(made_of)
    with pytest.raises(errors.SkerryError) as caught:
        await pipelines.run(made)
    assert message in caught.value.what
    assert "started" not in pipelines.notes.said


async def test_a_change_that_its_state_does_not_fit_is_refused(
    pipelines: Pipelines, client: Client
) -> None:
    for n in range(3):
        await client.publish("a", json.dumps({"k": "x", "n": n}))
    await pipelines.run(counts())
    for change, message in [
        ({"by": "n"}, "is of other state: it was `Aggregate"),
        ({"schema": "k LONG, n LONG"}, "(k bigint"),
        ({"sink": "b/c"}, "is of one that writes to b, not b/c"),
        ({"source": "a/#"}, "is of one that reads a, not a/#"),
    ]:
        with pytest.raises(errors.CheckpointMismatch) as caught:
            await pipelines.run(counts(**change))
        assert message in caught.value.what
        assert "--fresh" in caught.value.advice
    await client.publish("a", json.dumps({"k": "x", "n": 1}))
    # A filter, and a column more, change nothing that is stored.
    status = await pipelines.run(counts(keep="n > 0", schema="k STRING, n LONG, more STRING"))
    assert status.rows == 4
    status = await pipelines.run(counts(by="n"), fresh=True)
    assert status.rows == 4


async def test_a_checkpoint_that_nobody_owns_up_to_is_refused(
    pipelines: Pipelines, client: Client
) -> None:
    await client.publish("a", "1")
    copy = skerry.pipeline(source="a", sink="b", name="p")(lambda events: events.select("value"))
    await pipelines.run(copy)
    (pipelines.root / "p" / "shape.json").unlink()
    with pytest.raises(errors.CheckpointMismatch, match="nothing says which pipeline wrote"):
        await pipelines.run(copy)


async def test_a_pipeline_waits_for_what_its_pattern_means(
    pipelines: Pipelines, client: Client
) -> None:
    copy = skerry.pipeline(source="later/#", sink="b", name="p")(lambda e: e.select("value"))
    running = asyncio.create_task(pipelines.run(copy, once=False))
    try:
        await until(lambda: "started" in pipelines.notes.said, 100)
        assert pipelines.notes.said[0] == "no topic matches later/# yet; waiting for one"
        await client.create_topic("later")
        await client.publish("later/x", "1")

        async def arrived() -> bool:
            return await client.latest_index("b") == 1

        await until(arrived, 100)
        await until(lambda: bool(pipelines.notes.batches), 100)
    finally:
        pipelines.stop.ask()
        status = await running
    assert (status.state, status.rows, pipelines.notes.batches) == ("stopped", 1, [(0, 1)])
    told = [row for row in await results(client, "pipelines/p") if row["batch"] == 0]
    assert (told[0]["rows"], told[0]["topics"]) == (1, {"later": {"events": 0, "seconds": 0.0}})
    assert told[-1]["state"] == "stopped"


async def test_a_function_that_fails_on_data_is_said_and_loses_nothing(
    pipelines: Pipelines, client: Client
) -> None:
    await client.publish("a", "0")

    def divide(events: Any) -> Any:
        return events.selectExpr("cast(10 / cast(cast(value AS STRING) AS INT) AS STRING) AS value")

    def mended(events: Any) -> Any:
        return events.selectExpr("'none' AS value")

    declared = skerry.pipeline(source="a", sink="b", name="p")
    with pytest.raises(errors.PipelineFailed, match="DIVIDE_BY_ZERO"):
        await pipelines.run(declared(divide))
    await pipelines.run(declared(mended))
    assert [event.data async for event in client.read("b")] == [b"none"]


async def test_the_lag_of_a_pipeline_that_crashes_is_what_it_has_not_read(
    pipelines: Pipelines, client: Client
) -> None:
    """No batch of such a run is ever done."""

    def divide(events: Any) -> Any:
        return events.selectExpr("cast(10 / cast(cast(value AS STRING) AS INT) AS STRING) AS value")

    divided = skerry.pipeline(source="a", sink="b", name="p")(divide)

    async def crash() -> tuple[int, int]:
        with pytest.raises(errors.PipelineFailed, match="DIVIDE_BY_ZERO"):
            await pipelines.run(divided)
        status = Folder(pipelines.root, "p").read("status", Status)
        assert status is not None
        told = [row for row in await results(client, "pipelines/p") if row["state"] == "failed"]
        assert told[-1]["topics"]["a"]["events"] == status.lag_events
        return status.lag_events, told[-1]["lag_events"]

    for value in ("1", "1", "0"):
        await client.publish("a", value)
    assert await crash() == (3, 3)  # without a checkpoint it begins with the first event
    await pipelines.run(
        skerry.pipeline(source="a", sink="b", name="p")(lambda e: e.selectExpr("'none' AS value"))
    )
    for value in ("1", "0"):
        await client.publish("a", value)
    assert await crash() == (2, 2)


def written_as(file: Path, value: str) -> Path:
    """A file with the pipeline `p`, which writes `value`."""
    file.write_text(
        "import skerry\n"
        '@skerry.pipeline(source="a", sink="b", name="p")\n'
        f"def p(events): return events.selectExpr({value!r})\n"
    )
    return file


async def test_code_does_not_change_within_a_batch_that_is_half_written(
    pipelines: Pipelines, client: Client, site: LocalSite, tmp_path: Path
) -> None:
    """Rows are known by what they say. What the code before wrote would stay beside the new."""
    async with site.connect("admin") as admin:
        await admin.set_topic("b", max_event_bytes=1000)
    async with client.publisher("a") as publisher:
        for n in range(300):
            await publisher.send(b"%d" % n)
        await publisher.send(b"300".ljust(2000))
    zero = written_as(tmp_path / "zero.py", "cast(1 / (length(value) - 2000) AS STRING) AS value")
    one = written_as(tmp_path / "one.py", "value")
    two = written_as(tmp_path / "two.py", "concat('x', trim(cast(value AS STRING))) AS value")

    with pytest.raises(errors.PipelineFailed, match="DIVIDE_BY_ZERO"):
        await pipelines.run(zero)
    # It has written nothing, so other code may do the batch; that breaks off half-way.
    with pytest.raises(errors.SkerryError, match="larger than its topic takes"):
        await pipelines.run(one)
    count = await client.latest_index("b")
    assert count > 100

    with pytest.raises(
        errors.CheckpointMismatch, match="batch 0 of the pipeline p is not done"
    ) as e:
        await pipelines.run(two)
    assert f"{count:,} rows that the code before made of it are in b" in e.value.what
    assert "--redo" in e.value.advice
    with pytest.raises(errors.SkerryError, match="larger than its topic takes"):
        await pipelines.run(one)  # the code that began it may go on
    assert await client.latest_index("b") == count

    await pipelines.run(two, redo=True)
    values = [event.data.decode() async for event in client.read("b")]
    assert values[count:] == [f"x{n}" for n in range(301)]
    await client.publish("a", "301")
    await pipelines.run(one)  # between batches code may change
    assert await client.latest_index("b") == count + 302


async def test_a_sink_that_is_full_is_said(spark: Any, tmp_path: Path) -> None:
    async with LocalSite(max_store=2_000_000) as site, site.connect() as client:
        await client.create_topic("a")
        await client.create_topic("b")
        await client.publish("a", "x" * 1000)
        big = skerry.pipeline(source="a", sink="b", name="p")(
            lambda e: e.selectExpr("explode(array_repeat(value, 5000)) AS value")
        )
        with pytest.raises(errors.StorageFull, match="no room left"):
            await Pipelines(spark, site.data, tmp_path).run(big)
