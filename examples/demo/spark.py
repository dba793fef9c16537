"""The last act: a pipeline of Spark over all that was published."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from examples.demo.parties import Publisher
from examples.demo.screen import Screen
from skerry import Client
from skerry.errors import EngineMissing, get_extra
from skerry.spark.java import find_java
from skerry.testing import LocalSite

FILE = Path(__file__).parents[1] / "pipelines" / "totals.py"
SMALL = (
    "--master", "local[2]", "--memory", "700m",
    "--conf", "spark.sql.shuffle.partitions=1",
    "--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)  # fmt: skip
UNFIT = 8
"""The exit code for a machine without what Spark needs."""


async def total_up(
    screen: Screen, site: LocalSite, client: Client, publishers: Sequence[Publisher]
) -> int:
    """Act 6: run `examples/pipelines/totals.py` until it has caught up; return the exit code."""
    screen.say("act 6: a Spark pipeline adds up all events, and writes its totals to a topic")
    try:
        if importlib.util.find_spec("pyspark") is None:
            raise EngineMissing("PySpark is not installed", get_extra("spark"))
        await asyncio.to_thread(find_java)
    except EngineMissing as error:
        return skip(screen, str(error))
    await client.create_topic("totals")
    command = ["pipeline", "run", str(FILE), "--once", "--connect", str(site.data), *SMALL]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "skerry.cli", *command,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    if process.returncode == UNFIT:
        return skip(screen, err.decode())
    for line in out.decode().splitlines():
        screen.say(f"  {line}")
    if process.returncode != 0:
        screen.say(f"[bold red]the pipeline failed[/]\n{err.decode()}")
        return 1
    return await show(screen, client, publishers)


def skip(screen: Screen, why: str) -> int:
    """Say that there will be no such act; that is no failure."""
    screen.say(f"  left out. {why.strip()}")
    return 0


async def show(screen: Screen, client: Client, publishers: Sequence[Publisher]) -> int:
    """Compare the totals with what was acknowledged; return the exit code."""
    rows = [json.loads(event.data) async for event in client.read("totals")]
    last = {row["publisher"]: row for row in rows}
    table = Table("publisher", title="totals by Spark, as the topic holds them", min_width=78)
    for column in ("events", "sum", "missing", "acknowledged"):
        table.add_column(column, justify="right")
    faults = 0
    for publisher in publishers:
        row = last.get(publisher.topic, {"events": 0, "sum": 0, "missing": 0})
        expected = (publisher.acked, sum(range(publisher.acked)), 0)
        is_right = (row["events"], row["sum"], row["missing"]) == expected
        faults += not is_right
        verdict = "[green]ok" if is_right else "[bold red]WRONG"
        table.add_row(
            publisher.topic, f"{row['events']:,}", f"{row['sum']:,}", f"{row['missing']:,}",
            f"{publisher.acked:,} {verdict}",
        )  # fmt: skip
    screen.console.print(table)
    return 1 if faults else 0
