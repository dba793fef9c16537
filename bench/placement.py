"""How long a plan takes: a hundred thousand topics over 200 sites, a million over 1000.

The hard case: homes were hashed, so that three of four topics break their bound at once, all are
ranked over all sites, and many sites fill up on the way. The everyday case: one topic in a hundred
breaks its bound. `spark` reads the topics from Parquet, ranks them by `mapInArrow`, and makes the
same moves, which is checked. `matrix` is what one would write first with numpy: the rows of the
distances of each topic's first publishers and subscribers, added, and the best five by
`argpartition`; it takes nobody else into account, counts nothing, minds no capacity, chooses no
replicas and chooses nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil
import pyarrow.parquet

import skerry.spark
from bench.harness import Benchmark, Figure, Samples, compared, interleave, measured, progress
from bench.placement_world import NOW, make, settle
from bench.spark_memory import PARTS, look
from bench.stage import MB
from skerry.errors import EngineMissing
from skerry.placement import Plan, PolicySettings, Sites, Topics, plan
from skerry.placement.arrow import to_arrow
from skerry.placement.geometry import distances
from skerry.placement.rank import rank
from skerry.spark.java import find_java
from skerry.spark.placement import plan as plan_by_spark

SMALL = (100_000, 200)
LARGE = (int(os.environ.get("PLACEMENT_TOPICS", "1000000")), 1000)
ROUNDS = int(os.environ.get("PLACEMENT_ROUNDS", "5"))
SETTINGS = PolicySettings(max_in_flight=None)
CORES = os.cpu_count() or 1


class Stage:
    """One size: its tables, and what is measured on them. Variants return seconds."""

    def __init__(self, topics: int, sites: int) -> None:
        progress(f"placement: {topics:,} topics")
        self.topics, self.sites = make(topics, sites)
        cause = np.zeros(topics, np.int8)
        best = rank(self.topics, self.sites, SETTINGS, cause, CORES).candidates().site[:, 0]
        best = np.where(best < 0, self.topics.home, best)
        self.settled = settle(self.topics, self.sites, best)
        self.made: Plan | None = None

    def note(self) -> str:
        """What was planned."""
        assert self.made is not None
        topics, sites = len(self.topics), len(self.sites)
        return f"{topics:,} × {sites:,}, {len(self.made):,} moves, {CORES} threads"

    async def skerry(self) -> float:
        """The hard case."""
        began = time.perf_counter()
        self.made = plan(self.topics, self.sites, SETTINGS, NOW, threads=CORES)
        return time.perf_counter() - began

    async def steady(self) -> float:
        """The everyday case."""
        began = time.perf_counter()
        plan(self.settled, self.sites, SETTINGS, NOW, threads=CORES)
        return time.perf_counter() - began

    async def matrix(self) -> float:
        """What one would write first."""
        began = time.perf_counter()
        best_five(self.topics, self.sites)
        return time.perf_counter() - began


class BySpark:
    """The same tables as a file, and a session."""

    def __init__(self, stage: Stage, folder: str) -> None:
        self.stage = stage
        self.memory: list[float] = []
        """MB at most of each run: the JVM, its workers, and what the driver takes besides."""
        self.parts = ""
        progress("placement: Spark")
        self.spark = skerry.spark.session("bench", master=f"local[{CORES}]", memory="2g")
        path = str(Path(folder) / f"{len(stage.topics)}.parquet")
        pyarrow.parquet.write_table(to_arrow(stage.topics), path, row_group_size=50_000)
        self.frame = self.spark.read.parquet(path).repartition(2 * CORES).persist()
        self.frame.count()

    async def run(self) -> float:
        """The hard case; checks that the moves are the same."""
        with Watch(PARTS, partial(look, os.getpid()), 0.2) as watch:
            began = time.perf_counter()
            made = plan_by_spark(self.frame, self.stage.sites, SETTINGS, NOW)
            took = time.perf_counter() - began
        self.memory.append(sum(watch.most.values()))
        self.parts = ", ".join(f"{part} {size:.0f}" for part, size in watch.most.items())
        here = self.stage.made
        assert here is not None
        assert (made.rows[made.plan.topic] == here.topic).all()
        assert (made.plan.to == here.to).all()
        assert (made.plan.replicas == here.replicas).all()
        return took


class Watch:
    """Looks at memory while something runs: the most that each of the parts takes, in MB, besides
    what this process had before."""

    def __init__(self, parts: Sequence[str], look: Callable[[], Sequence[float]], every: float):
        self.most = dict.fromkeys(parts, 0.0)
        self._look = look
        self._every = every
        self._before = look()[0]
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            own, *others = self._look()
            for part, size in zip(self.most, (own - self._before, *others), strict=True):
                self.most[part] = max(self.most[part], size)
            if self._end.wait(self._every):
                return


def best_five(topics: Topics, sites: Sites) -> Any:
    """Five near sites of each topic, the nearest among them, by a matrix in pieces."""
    found = np.empty((len(topics), 5), np.int64)
    ways = distances(sites)
    for start in range(0, len(topics), 2000):
        part = slice(start, start + 2000)
        total = np.zeros(len(sites), np.float32)
        for clients in (topics.producers, topics.consumers):
            row = np.minimum(clients.first[:-1][part], len(clients.site) - 1)
            total = total + (ways[clients.site[row]] + clients.access[row, None])
        found[part] = np.argpartition(total, 4, axis=1)[:, :5]
    return found


def growth(size: tuple[int, int]) -> float:
    """MB that a plan takes at most besides its tables; measured in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_growth, size)


def _growth(topics: int, sites: int) -> float:
    tables = make(topics, sites)
    process = psutil.Process()
    with Watch(["own"], lambda: [process.memory_info().rss / MB], 0.005) as watch:
        plan(*tables, SETTINGS, NOW)
    return watch.most["own"]


async def _small() -> list[Figure]:
    stage = Stage(*SMALL)
    with tempfile.TemporaryDirectory() as folder:
        spark = BySpark(stage, folder)
        variants = {"skerry": stage.skerry, "matrix": stage.matrix, "spark": spark.run}
        samples = await interleave("placement.100k", variants, ROUNDS)
        spark.frame.unpersist()
    return [
        measured("placement.100k_s", samples["skerry"], "s", stage.note()),
        *_costs("placement.100k", SMALL, samples, spark),
        compared("placement.100k.vs_matrix", samples, "matrix", "time; it ranks, we plan"),
    ]


async def _large() -> list[Figure]:
    stage = Stage(*LARGE)
    with tempfile.TemporaryDirectory() as folder:
        spark = BySpark(stage, folder)
        variants = {"skerry": stage.skerry, "steady": stage.steady, "matrix": stage.matrix,
                    "spark": spark.run}  # fmt: skip
        samples = await interleave("placement.1m", variants, min(3, ROUNDS))
        spark.frame.unpersist()
    return [
        measured("placement.1m_s", samples["skerry"], "s", stage.note()),
        measured("placement.1m_steady_s", samples["steady"], "s", "1 % break their bound"),
        *_costs("placement.1m", LARGE, samples, spark),
        compared("placement.1m.vs_matrix", samples, "matrix", "time; it ranks, we plan"),
    ]


def _costs(id: str, size: tuple[int, int], samples: Samples, spark: BySpark) -> list[Figure]:
    progress(f"{id}: memory")
    by_spark = (
        f"local[{CORES}], heap 2 GB, the table of topics in it; of that {spark.parts} MB; the "
        "driver's besides the tables"
    )
    return [
        measured(f"{id}_mb", [growth(size)], "MB", "in one process, at most, besides the tables"),
        measured(f"{id}_spark_s", samples["spark"], "s", "the same moves"),
        measured(f"{id}_spark_mb", spark.memory, "MB", by_spark),
    ]


def _unavailable() -> str | None:
    try:
        find_java()
    except EngineMissing as error:
        return error.what
    return None


BENCHMARKS = [
    Benchmark(
        [
            "placement.100k_s",
            "placement.100k_mb",
            "placement.100k_spark_s",
            "placement.100k_spark_mb",
            "placement.100k.vs_matrix",
        ],
        _small,
        _unavailable,
    ),
    Benchmark(
        [
            "placement.1m_s",
            "placement.1m_steady_s",
            "placement.1m_mb",
            "placement.1m_spark_s",
            "placement.1m_spark_mb",
            "placement.1m.vs_matrix",
        ],
        _large,
        _unavailable,
    ),
]
