"""Placement by Spark makes the moves that placement in one process makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from bench.placement_world import NOW, make
from skerry.placement import Clients, PolicySettings, explain, plan
from skerry.placement.arrow import from_arrow, to_arrow
from skerry.spark.placement import plan as plan_by_spark
from tests.unit.naive_placement import random_tables


def test_a_table_survives_arrow() -> None:
    topics, _ = random_tables(3, topics=50, sites=5)
    back, rows = from_arrow(to_arrow(topics))
    assert rows.tolist() == list(range(50))
    for name in topics.__struct_fields__:
        there, here = getattr(back, name), getattr(topics, name)
        if isinstance(here, Clients):
            assert all(
                (getattr(there, n) == getattr(here, n)).all() for n in here.__struct_fields__
            )
        else:
            assert (there == here).all()
    part, rows = from_arrow(to_arrow(topics).slice(10, 7).combine_chunks())
    assert part.names.tolist() == topics.names[10:17].tolist()
    some = topics.producers.take(np.arange(10, 17))
    assert (part.producers.first == some.first).all()
    assert (part.producers.access == some.access).all()
    assert rows.tolist() == list(range(10, 17))


@pytest.mark.parametrize("limit", [None, 40])
def test_spark_makes_the_same_moves(spark: Any, tmp_path: Path, limit: int | None) -> None:
    topics, sites = make(3000, 40)
    moving = np.where(np.arange(3000) % 100 == 5, topics.home[::-1], -1).astype("i4")
    topics = msgspec.structs.replace(topics, moving_to=moving)
    sites = msgspec.structs.replace(sites, draining=np.arange(40) == 7)
    settings = PolicySettings(max_in_flight=limit)
    # Parts of odd sizes, not in order: nothing may depend on how the table is divided.
    for number, (start, end) in enumerate([(1700, 3000), (0, 13), (13, 1700)]):
        part = to_arrow(topics).slice(start, end - start)
        pa.parquet.write_table(part, tmp_path / f"{number}.parquet")
    frame = spark.read.parquet(str(tmp_path)).repartition(3)
    here = plan(topics, sites, settings, NOW)
    made = plan_by_spark(frame, sites, settings, NOW)
    words = list(explain.moves(here, topics, sites, settings))
    assert words == list(explain.moves(made.plan, made.topics, sites, settings))
    stays = list(explain.stays(here, topics, sites, settings, NOW))
    assert stays == list(explain.stays(made.plan, made.topics, sites, settings, NOW))
    assert made.rows[made.plan.topic].tolist() == here.topic.tolist()
    assert len(words) == (10 if limit else len(words)) > 5
    assert {move.cause for move in words} >= ({"drain"} if limit else {"drain", "latency"})
