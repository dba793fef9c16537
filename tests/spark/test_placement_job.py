"""Placement as a streaming job makes the moves of the leader, and the leader carries them out."""

from __future__ import annotations

import asyncio
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from skerry.model.placement import PlacementSettings
from skerry.placement import (
    Monitor,
    PolicySettings,
    SiteRecord,
    TopicEntry,
    explain,
    pack,
    plan,
    tables,
)
from skerry.placement.gauge import Gauge
from skerry.placement.records import topic_columns
from skerry.spark.placement_job import PlacementJob
from tests.conftest import until
from tests.live import commandline
from tests.live.placements import Teller, idle, placed
from tests.spark.conftest import PATIENCE

PERIOD = 5.0


def records(seed: int, sites: int, topics: int) -> list[SiteRecord]:
    """What sites all over a continent report, in any order, and some of it twice."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(sites):
        names = sorted(rng.choice([f"t{n:03}" for n in range(topics)], topics // 3, replace=False))
        count = len(names)
        columns: dict[str, Any] = {
            name: np.rint(rng.exponential(5, count))
            for name in ("producers", "consumers", "producer_access", "consumer_access", "rate_in",
                         "rate_out", "event_bytes", "stored_bytes", "publish_ms", "deliver_ms",
                         "deliver_most_ms")
        }  # fmt: skip
        record = SiteRecord(
            site=f"s{number:02}", started=1, number=1,
            position=tuple(rng.uniform(-30, 30, 8).tolist()), height=float(rng.exponential(2)),
            capacity=(4.0, 8e9, 1e8, 1e11, float("inf")),
            load=(float(rng.uniform(0, 4)), 1e9, 1e6, 1e9, 500.0),
            draining=number == sites - 1, topics=topic_columns([str(n) for n in names], **columns),
        )  # fmt: skip
        found += [record] * int(rng.integers(1, 3))
    rng.shuffle(found)
    return found


def entries(found: list[SiteRecord], topics: int) -> list[TopicEntry]:
    """Topics whose homes are where somebody knows them."""
    homes: dict[str, str] = {}
    for record in sorted(found, key=lambda one: one.site):
        homes |= dict.fromkeys(record.topics.names, record.site)
    return [
        TopicEntry(name=name, home=home, bound_ms=60.0 + 10 * (n % 5), pinned=n % 17 == 0)
        for n, (name, home) in enumerate(sorted(homes.items()))
    ]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_records_make_the_same_moves(spark: Any, seed: int) -> None:
    found = records(seed, sites=12, topics=60)
    listed = entries(found, 60)
    job, monitor = PlacementJob(spark, "unused"), Monitor()
    began = datetime(2026, 11, 15, 12, 0, tzinfo=UTC).timestamp()
    times = [began + number / 10 for number in range(len(found))]
    job.fold(
        (datetime.fromtimestamp(when, UTC), pack(record))
        for when, record in zip(times, found, strict=True)
    )
    for when, record in zip(times, found, strict=True):
        monitor.fold(record, when)
    topics, sites = tables(monitor, listed, times[-1], 3 * PERIOD)
    settings = PolicySettings()
    here = plan(topics, sites, settings, times[-1])
    expected = list(explain.moves(here, topics, sites, settings))
    assert job.plan(listed, PlacementSettings(period=PERIOD)) == expected
    assert {move.cause for move in expected} >= {"drain", "latency"}


async def test_the_command_plans_and_the_leader_carries_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gauge, "read", idle)
    monkeypatch.setattr(commandline, "DEADLINE", PATIENCE)
    async with placed() as (fabric, admin):
        await admin.create_topic("t", home="hub", latency=0.02)
        await admin.set_placement(period=60.0)
        await admin.placement_plan()
        teller = Teller(admin)

        arguments = (
            "placement", "spark", "--json", "--master", "local[1]", "--memory", "600m",
            "--conf", "spark.sql.shuffle.partitions=1",
            "--checkpoint", str(tmp_path / "checkpoint"),
        )  # fmt: skip
        with commandline.running(fabric.root / "hub", tmp_path / "out", *arguments) as command:

            async def moved() -> bool:
                assert command.process.poll() is None, command.err
                await teller.tell_all(fabric, hub={"t": (0, 0)}, farm={"t": (1, 1)})
                # The directory tells of a move before the leader is done with it, and reports.
                is_told = bool((await admin.placement_status()).results)
                return is_told and (await admin.topic("t")).home == "farm"

            await until(moved, PATIENCE)
            status = await admin.placement_status()
            assert status.settings.mode == "spark"
            (report,) = status.results
            assert (report.by, report.outcome, report.cause) == ("spark", "moved", "latency")
            code = await asyncio.to_thread(command.stop, signal.SIGINT)
        assert code == 0, command.err
        batches = [msgspec.json.decode(line) for line in command.out.splitlines()]
        assert any(batch["moves"] == 1 and batch["topics"] == 1 for batch in batches)
        assert all(batch["problem"] is None for batch in batches)
        assert "the mode of placement is spark" in command.err
        assert "skerry placement auto on" in command.err
