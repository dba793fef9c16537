"""Exactly once through source, state and sink, while driver and engine are killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from skerry import Client
from skerry.testing import LocalSite
from tests.conftest import until

EVENTS = 30_000
KILLS = 3


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_totals_are_exact_whatever_is_killed(
    client: Client, site: LocalSite, tmp_path: Path
) -> None:
    await client.create_topic("a")
    await client.create_topic("b")
    chance = random.Random(4)
    command = [sys.executable, "-m", "tests.spark.totals", str(site.data), str(tmp_path)]
    log = (tmp_path / "log").open("wb")

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, start_new_session=True, stdout=log, stderr=log)

    async def publish() -> None:
        async with client.publisher("a") as publisher:
            for n in range(EVENTS):
                await publisher.send(b"%d" % n)
                if n % 500 == 0:
                    await asyncio.sleep(0.2)

    async def grew() -> bool:
        return await client.latest_index("b") > before

    driver = start()
    publishing = asyncio.create_task(publish())
    try:
        for _ in range(KILLS):
            before = await client.latest_index("b")
            await until(grew, 200)
            await asyncio.sleep(chance.uniform(0.0, 0.5))
            site.kill_engine()
            await asyncio.sleep(chance.uniform(0.0, 0.5))
            end(driver)
            driver = start()
        await publishing
        await until(lambda: complete(client), 240)
    finally:
        end(driver)
        publishing.cancel()
        log.close()
    expected = {r: [n for n in range(EVENTS) if n % 7 == r] for r in range(7)}
    last = {row["rest"]: (row["count"], row["sum"]) for row in await totals(client)}
    assert last == {rest: (len(numbers), sum(numbers)) for rest, numbers in expected.items()}
    # A total never stands still, so one that comes twice was written twice.
    written = Counter((row["rest"], row["count"]) for row in await totals(client))
    assert max(written.values()) == 1


async def totals(client: Client) -> list[dict[str, int]]:
    """What the pipeline wrote."""
    return [json.loads(event.data) async for event in client.read("b")]


async def complete(client: Client) -> bool:
    """Whether the newest totals add up to all events."""
    last = {row["rest"]: row["count"] for row in await totals(client)}
    return sum(last.values()) >= EVENTS


def end(driver: subprocess.Popen[bytes]) -> None:
    """Kill a driver with its JVM, as the loss of its machine would."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
