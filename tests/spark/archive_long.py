"""`python -m tests.spark.archive_long [--events 2000000] [--kills 10]`: the archive at length.

Publishes while an archive runs and its driver is killed at random moments, in the middle of a
batch and behind one. Then compares the archive with the topic row by row (index, time, key and
payload, by a hash), and the union of archive and topic while publishing goes on. Prints figures;
ends with an error if a row is missing, doubled or different.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import skerry.spark
from skerry import Client
from skerry.archive.folder import Archive, holder
from skerry.archive.table import open_table
from skerry.testing import LocalSite
from tests.live.commandline import SKERRY, environment
from tests.spark.conftest import SMALL

TOPICS = ("s/a", "s/b")
HASH = "xxhash64(index, time, key, value)"


class Driver:
    """`skerry archive start` in a process group of its own, to be killed."""

    def __init__(self, data: Path, folder: Path, log: Path) -> None:
        self.command = [SKERRY, "archive", "start", "s/#", "--to", str(folder)]
        self.command += ["--trigger", "500ms", "--memory", "700m"]
        self.environment = environment(data)
        self.log = log
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, with its output behind what was there."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, env=self.environment, start_new_session=True, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """Kill it with its JVM, as the loss of its machine would."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """End it in order."""
        assert self.process is not None
        while holder(self.folder) != self.process.pid:  # before, nobody listens to signals
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        self.process.terminate()
        return self.process.wait(120)


async def publish(client: Client, first: int, last: int, pause: float = 0.0) -> None:
    """Publish the numbers from `first` to before `last` over the topics."""
    async with client.publisher(TOPICS[0]) as a, client.publisher(TOPICS[1]) as b:
        for n in range(first, last):
            await (a, b)[n % 2].send(b"%0128d" % n, key=str(n % 97))
            if pause and n % 500 == 0:
                await asyncio.sleep(pause)


async def held(folder: Path) -> int:
    """Rows of the archive, by its table."""

    def count() -> int:
        try:
            files = open_table(Archive.open(folder)).snapshot().files
        except Exception:
            return 0
        return sum(file.rows for file in files)

    return await asyncio.to_thread(count)


async def grown(folder: Path, beyond: int, driver: Driver, seconds: float = 300) -> int:
    """Wait until the archive has more than `beyond` rows."""
    deadline = time.monotonic() + seconds
    while (now := await held(folder)) <= beyond:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{now} rows, waiting for more than {beyond}; see {driver.log}")
        await asyncio.sleep(0.05)
    return now


async def at_work(folder: Path, driver: Driver, starts: int) -> None:
    """Wait until the driver that was started last has a batch in work, or has done one."""
    deadline = time.monotonic() + 300
    checkpoint, before = folder / "_skerry" / "checkpoint", await held(folder)
    while driver.log.read_text().count("archiving s/#") < starts:
        assert time.monotonic() < deadline, driver.log.read_text()
        await asyncio.sleep(0.02)
    while not (checkpoint / "offsets").is_dir():
        await asyncio.sleep(0.02)
    while await held(folder) <= before:
        planned, done = (
            max((int(f.name) for f in (checkpoint / kind).glob("[0-9]*")), default=-1)
            for kind in ("offsets", "commits")
        )
        if planned > done:
            return
        assert time.monotonic() < deadline, driver.log.read_text()
        await asyncio.sleep(0.01)


def summary(frame: Any) -> list[tuple[Any, ...]]:
    """By topic: rows, distinct indexes, first, last, sum of indexes, and of the rows' hashes."""
    from pyspark.sql.functions import expr

    grouped = frame.groupBy("topic").agg(
        *[
            expr(text)
            for text in (
                "count(1)", "count(distinct index)", "min(index)", "max(index)", "sum(index)",
                f"sum(cast({HASH} AS decimal(38, 0)))",
            )
        ]
    )  # fmt: skip
    return sorted(tuple(row) for row in grouped.collect())


async def check(events: int, kills: int, seed: int, out: Path) -> dict[str, Any]:
    """Do it all; return figures. Raises `AssertionError` if anything is not exact."""
    chance = random.Random(seed)
    folder, log = out / "archive", out / "log"
    figures: dict[str, Any] = {"events": events, "kills": kills, "load": os.getloadavg()[0]}
    async with LocalSite() as site, site.connect() as client:
        driver = Driver(site.data, folder, log)
        for topic in TOPICS:
            await client.create_topic(topic)
        edges = [events * n // (kills + 1) for n in range(kills + 2)]
        began = time.monotonic()
        driver.start()
        try:
            for n in range(kills):
                before = await held(folder)
                publishing = asyncio.create_task(publish(client, edges[n], edges[n + 1]))
                await at_work(folder, driver, n + 1)
                if n % 2:
                    await grown(folder, before, driver)
                await asyncio.sleep(chance.uniform(0.0, 0.5))
                driver.kill()
                driver.start()
                await publishing
            await publish(client, edges[-2], edges[-1])
            await grown(folder, events - 1, driver, 900)
            figures["seconds"] = round(time.monotonic() - began, 1)
            figures["stopped"] = await asyncio.to_thread(driver.stop)
        finally:
            driver.kill()
        spark = await asyncio.to_thread(
            skerry.spark.session, "long", master="local[2]", memory="1g", config=SMALL
        )
        options = {"data": str(site.data)}

        def live() -> Any:
            skerry.spark.register(spark)
            return spark.read.format("skerry").options(**options).option("topic", "s/#").load()

        def both(alone: bool) -> Any:
            skerry.spark.register(spark)
            return skerry.spark.history(spark, archive=folder, live=not alone, **options)

        began = time.monotonic()
        expected = await asyncio.to_thread(lambda: summary(live()))
        figures["topic_read_s"] = round(time.monotonic() - began, 1)
        began = time.monotonic()
        assert await asyncio.to_thread(lambda: summary(both(True))) == expected
        figures["archive_read_s"] = round(time.monotonic() - began, 1)
        assert sum(row[1] for row in expected) == events
        assert all(row[1] == row[2] == row[4] for row in expected)
        # While publishing goes on the union has no gap and no double, and ends beyond the archive.
        publishing = asyncio.create_task(
            publish(client, events, events + max(events // 20, 2000), 0.02)
        )
        for _ in range(3):
            rows = await asyncio.to_thread(lambda: summary(both(False)))
            assert all(row[1] == row[2] == row[4] for row in rows)
        await publishing
        expected = await asyncio.to_thread(lambda: summary(live()))
        assert await asyncio.to_thread(lambda: summary(both(False))) == expected
        figures["union_rows"] = sum(row[1] for row in expected)
        await asyncio.to_thread(spark.stop)
    files = open_table(Archive.open(folder)).snapshot().files
    figures["files"], figures["bytes"] = len(files), sum(file.bytes for file in files)
    plain = {file.path for file in files}
    figures["strays"] = sum(
        str(f.relative_to(folder)) not in plain for f in folder.glob("topic=*/**/*.parquet")
    )
    figures["sha"] = hashlib.sha256(repr(expected).encode()).hexdigest()[:12]
    return figures


def main() -> int:
    """Run it with the arguments of this process."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.archive_long")
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="archive-") as out:
        figures = asyncio.run(check(arguments.events, arguments.kills, arguments.seed, Path(out)))
    print(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
