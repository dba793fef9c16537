"""The pipelines of examples/pipelines, each run with a restart between any two steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skerry import Client
from skerry.testing import LocalSite
from tests.spark.pipelines import EXAMPLES, Pipelines, publish, results


@pytest.fixture
def pipelines(spark: Any, site: LocalSite, tmp_path: Path) -> Pipelines:
    """Of a fresh site."""
    return Pipelines(spark, site.data, tmp_path)


async def create(client: Client, *topics: str) -> None:
    """Create topics."""
    for topic in topics:
        await client.create_topic(topic)


async def test_windowed_averages_with_watermark(client: Client, pipelines: Pipelines) -> None:
    averages = pipelines.load(EXAMPLES / "averages.py")
    await create(client, "sensors", "averages")
    await publish(
        client, "sensors",
        {"sensor": "roof", "at": 0, "degrees": 10.0},
        {"sensor": "roof", "at": 30, "degrees": 20.0},
        {"sensor": "hall", "at": 59, "degrees": 5.0},
        {"sensor": "roof", "at": 61, "degrees": 99.0},
    )  # fmt: skip
    status = await pipelines.run(averages)
    assert (status.rows, status.state_rows, status.lag_events) == (4, 3, 0)
    assert await results(client, "averages") == []  # the first minute is not over for certain
    await publish(client, "sensors", {"sensor": "roof", "at": 200, "degrees": 0.0})
    await pipelines.run(averages)
    await publish(client, "sensors", {"sensor": "hall", "at": 3, "degrees": 1000.0})  # too late
    status = await pipelines.run(averages)
    assert (status.rows, status.state) == (6, "done")
    found = {(row["sensor"], row["start"][11:16]): row for row in await results(client, "averages")}
    assert {key: (row["mean"], row["readings"]) for key, row in found.items()} == {
        ("roof", "12:00"): (15.0, 2), ("hall", "12:00"): (5.0, 1), ("roof", "12:01"): (99.0, 1)
    }  # fmt: skip


async def test_two_topics_joined(client: Client, pipelines: Pipelines) -> None:
    paid = pipelines.load(EXAMPLES / "joined.py")
    await create(client, "orders", "payments", "paid")
    await publish(
        client, "orders", {"order": 1, "at": 0, "item": "tea"}, {"order": 2, "at": 5, "item": "jam"}
    )
    await pipelines.run(paid)
    await publish(
        client, "payments", {"order": 2, "at": 20, "sum": 4.5}, {"order": 9, "at": 9, "sum": 1.0}
    )
    await pipelines.run(paid)
    await publish(client, "payments", {"order": 1, "at": 300, "sum": 3.0})  # too late for its order
    status = await pipelines.run(paid)
    assert await results(client, "paid") == [{"order": 2, "item": "jam", "sum": 4.5}]
    assert set(status.topics) == {"orders", "payments"}


async def test_a_stateful_session_detector(client: Client, pipelines: Pipelines) -> None:
    visits = pipelines.load(EXAMPLES / "visits.py")
    await create(client, "clicks", "visits")
    await publish(client, "clicks", *({"user": "ann", "at": at} for at in (0, 10, 25)))
    await publish(client, "clicks", {"user": "bob", "at": 5})
    await pipelines.run(visits)
    assert await results(client, "visits") == []
    await publish(client, "clicks", {"user": "ann", "at": 40}, {"user": "ann", "at": 200})
    await publish(client, "clicks", {"user": "bob", "at": 500})
    await pipelines.run(visits)
    found = await results(client, "visits")
    assert sorted(found, key=lambda row: row["user"]) == [
        {"user": "ann", "seconds": 40.0, "clicks": 4},
        {"user": "bob", "seconds": 0.0, "clicks": 1},
    ]


async def test_totals_of_all_that_was_published(client: Client, pipelines: Pipelines) -> None:
    totals = pipelines.load(EXAMPLES / "totals.py")
    await create(client, "sensors", "alarms", "totals")
    for n in range(5):
        await client.publish("sensors/field", str(n))
        await client.publish("alarms/door", str(2 * n))
    await pipelines.run(totals)
    await client.publish("sensors/field", "10")
    await pipelines.run(totals)
    last = {row["publisher"]: row for row in await results(client, "totals")}
    assert last == {
        "sensors/field": {"publisher": "sensors/field", "events": 6, "sum": 20, "missing": 5},
        "alarms/door": {"publisher": "alarms/door", "events": 5, "sum": 20, "missing": 4},
    }
