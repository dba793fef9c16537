"""A stream from topic to topic, and a table, in each kind of session that there is."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import skerry.spark
from skerry import Client, errors
from skerry.testing import LocalSite
from tests.spark.cluster import cluster, connect_server

EVENTS = 300
WHOLE = f"rows {EVENTS} sum {sum(range(EVENTS))} late {EVENTS - 10}"
"""What the program prints when each event arrived once. The stream has two tasks, so that their
rows may mix."""


async def round_trip(client: Client, site: LocalSite, folder: Path, kind: str, url: str) -> str:
    """Fill a topic, run the program in a session of its own, return what it printed."""
    await client.create_topic("a")
    await client.create_topic("b")
    async with client.publisher("a") as publisher:
        for n in range(EVENTS):
            await publisher.send(str(n))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.spark.roundtrip", kind, url,
        str(site.data), str(folder / "checkpoint"),
        cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-3000:]
    assert await client.latest_index("b") == EVENTS
    return out.decode()


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_standalone_cluster_with_two_workers(
    client: Client, site: LocalSite, tmp_path: Path
) -> None:
    up = cluster(tmp_path)
    url = await asyncio.to_thread(up.__enter__)
    try:
        out = await round_trip(client, site, tmp_path, "master", url)
    finally:
        await asyncio.to_thread(up.__exit__, None, None, None)
    assert WHOLE in out
    executors = list(tmp_path.glob("app-*/*/stderr"))
    assert len(executors) == 2  # one at each worker


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_spark_connect(client: Client, site: LocalSite, tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    up = connect_server(tmp_path)
    url = await asyncio.to_thread(up.__enter__)
    try:
        out = await round_trip(client, site, tmp_path, "remote", url)
    finally:
        await asyncio.to_thread(up.__exit__, None, None, None)
    assert f"{WHOLE} kind pyspark.sql.connect" in out


def test_what_is_no_server_is_said() -> None:
    pytest.importorskip("grpc")
    with pytest.raises(errors.BadSetting, match="is no Spark Connect server"):
        skerry.spark.session(remote="host:15002")
    with pytest.raises(errors.BadSetting, match="both say where Spark runs"):
        skerry.spark.session(master="local[1]", remote="sc://host")
