"""How many events a second get from a publisher to a live subscriber of the same site.

A topic of a fabric whose home is there, against core NATS on the same engine: publish and
subscribe, nothing stored and nothing acknowledged, by the raw protocol. The clock runs from the
first publish until the last event was delivered. Publisher and subscriber share a process and have
a connection each; at most `WINDOW` events are under way in either variant.
"""

from __future__ import annotations

import asyncio
import time

import skerry
from bench.fabric import Fabric, running_fabric
from bench.harness import Benchmark, Figure, compared, interleave, measured
from bench.rawproto import RawClient, deliver
from bench.stage import SIZES
from skerry.engine.address import find_address

HUB, SITE = SITES = ["hub", "farm"]
SIZE = "1k"
EVENTS = 40_000
WINDOW = 4096


async def _skerry(fabric: Fabric, topic: str) -> float:
    data, count, seen = b"x" * SIZES[SIZE], 0, 0

    async def publish(client: skerry.Client) -> None:
        async with client.publisher(topic, window=WINDOW) as publisher:
            for _ in range(EVENTS):
                await publisher.send(data)

    async with (
        fabric.connect(SITE) as reader,
        fabric.connect(SITE) as writer,
        reader.subscribe(topic) as subscription,
        asyncio.TaskGroup() as group,
    ):
        began = time.perf_counter()
        group.create_task(publish(writer))
        async for event in subscription:
            count += 1
            seen += len(event.data)
            if count == EVENTS:
                break
        seconds = time.perf_counter() - began
    _check(seen)
    return seconds


async def _core(fabric: Fabric) -> float:
    seen = 0

    def take(data: bytes) -> None:
        nonlocal seen
        seen += len(data)

    address = find_address(fabric.data(SITE), "admin")
    writer, reader = await RawClient.open(address), await RawClient.open(address)
    try:
        seconds = await deliver(writer, reader, b"x" * SIZES[SIZE], EVENTS, WINDOW, take)
    finally:
        writer.close()
        reader.close()
    _check(seen)
    return seconds


def _check(seen: int) -> None:
    if seen != SIZES[SIZE] * EVENTS:
        raise RuntimeError(f"{seen} bytes were delivered, not {SIZES[SIZE] * EVENTS}")


async def _local() -> list[Figure]:
    async with running_fabric(SITES) as fabric:

        async def ours() -> float:
            return EVENTS / await _skerry(fabric, await fabric.create(home=SITE))

        async def core() -> float:
            return EVENTS / await _core(fabric)

        samples = await interleave(f"local.{SIZE}", {"skerry": ours, "core": core})
    note = "stored, acknowledged and delivered, against delivered only; 1 KB"
    return [
        measured(f"local.{SIZE}", samples["skerry"], "events/s"),
        compared("local.vs_core", samples, "core", note),
    ]


BENCHMARKS = [Benchmark([f"local.{SIZE}", "local.vs_core"], _local)]
