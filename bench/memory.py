"""What a site and a publisher keep in memory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time

import psutil
import uvloop

import skerry
from bench.harness import ROUNDS, Benchmark, Figure, measured, progress
from bench.stage import MB, SIZES, running_site

SETTLE = 2.0
"""Seconds between the site's first answer and the look at its memory."""
FREEZES = 3
LOAD = 10.0
"""Seconds of publishing as fast as it goes."""
FROZEN = 8.0
"""Seconds that the engine is frozen for. After 6 to 7 s the client takes the connection for lost,
and only then fills its window to the brim; after some 16 s the site would kill the engine."""


async def _idle() -> list[Figure]:
    values = []
    for number in range(ROUNDS):
        progress(f"site.idle_mb: round {number + 1} of {ROUNDS}")
        async with running_site() as stage, stage.topic():
            await asyncio.sleep(SETTLE)
            values.append(stage.memory_mb())
    note = "`skerry up` and its engine, one topic, no events"
    return [measured("site.idle_mb", values, "MB", note)]


async def _load() -> list[Figure]:
    progress("site.load_mb: one run")
    count, data = 0, b"x" * SIZES["1k"]
    async with running_site() as stage, stage.topic() as topic:
        async with skerry.connect(stage.sdk) as client, client.publisher(topic) as publisher:
            until = time.monotonic() + LOAD
            while time.monotonic() < until:
                await publisher.send(data)
                count += 1
        used = stage.memory_mb()
        await stage.check(topic, count)
    note = f"after {LOAD:.0f} s of publishing, {count:,} events of 1 KB; grows with each id kept"
    return [measured("site.load_mb", [used], "MB", note)]


async def _client() -> list[Figure]:
    values = []
    wire = logging.getLogger("skerry.wire")
    wire.setLevel(logging.ERROR)  # that the connection is lost and comes back is meant here
    for number in range(FREEZES):
        progress(f"publisher.client_mb: round {number + 1} of {FREEZES}")
        async with running_site() as stage, stage.topic() as topic:
            # In a process of its own, so that nothing freed before hides the growth.
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "bench.memory", str(stage.data), topic,
                stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            out, _ = await child.communicate()
            values.append(float(out))
    wire.setLevel(logging.NOTSET)
    note = "growth under a frozen engine, 8 KB events, the default window of 4096 events and 32 MB"
    return [measured("publisher.client_mb", values, "MB", note)]


async def fill_window(data: str, topic: str) -> float:
    """Publish to a frozen engine until `send` waits; return by how many MB this process grew."""
    logging.getLogger("skerry.wire").setLevel(logging.ERROR)
    process = psutil.Process()
    async with skerry.connect(data, timeout=20) as client:
        engine = (await client.status()).engine_pid
        assert engine is not None
        async with client.publisher(topic) as publisher:
            await (await publisher.send(b"x"))
            before = process.memory_info().rss
            os.kill(engine, signal.SIGSTOP)
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FROZEN):
                        while True:
                            await publisher.send(os.urandom(SIZES["8k"]))
                after = process.memory_info().rss
            finally:
                os.kill(engine, signal.SIGCONT)
    return (after - before) / MB


BENCHMARKS = [
    Benchmark(["site.idle_mb"], _idle),
    Benchmark(["site.load_mb"], _load),
    Benchmark(["publisher.client_mb"], _client),
]

if __name__ == "__main__":
    print(uvloop.run(fill_window(*sys.argv[1:])))
