"""Fixtures: one small Spark session for all tests of this folder."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import skerry.spark
from skerry.testing import LocalSite

PATIENCE = 300.0
"""Seconds to wait for what Spark does: to start one query takes 20 on a machine that is busy."""

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""What makes a JVM that lives for seconds start sooner."""
os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK)  # for commands too, which are processes

SMALL = {
    "spark.sql.shuffle.partitions": 1,
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    "spark.driver.extraJavaOptions": QUICK,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of this folder the time that a busy machine takes to start a session."""
    for item in items:
        here = item.path.is_relative_to(Path(__file__).parent)
        if here and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(2 * PATIENCE))


@pytest.fixture(scope="session", autouse=True)
def end_of_spark() -> Iterator[None]:
    """Stop what the last test left."""
    yield
    if (session := SparkSession.getActiveSession()) is not None:
        session.stop()


@pytest.fixture
def spark() -> Any:
    """A session with two cores and nothing to spare: the one of the test before, unless that one
    stopped it, as pipelines do at their end."""
    return skerry.spark.session("tests", master="local[2]", memory="700m", config=SMALL)


@pytest.fixture
def table(spark: Any, site: LocalSite) -> Callable[..., Any]:
    """A table over topics of `site`: `table("t", start=5)`."""

    def make(topic: str, schema: str | None = None, **options: Any) -> Any:
        reader = spark.read.format("skerry").option("data", str(site.data)).option("topic", topic)
        for name, value in options.items():
            reader = reader.option(name, value)
        return (reader.schema(schema) if schema else reader).load()

    return make


async def rows(frame: Any, *columns: str) -> list[tuple[Any, ...]]:
    """What a table holds, in the order of its indexes if it has them. The site of a test lives in
    the test's own loop, so nobody may wait for Spark in there."""
    chosen = frame.select(*columns) if columns else frame

    def collect() -> list[tuple[Any, ...]]:
        return [tuple(row) for row in chosen.collect()]

    return await asyncio.to_thread(collect)
