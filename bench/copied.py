"""How many bytes cross between sites when a log changes its home, to the size of the log.

The topic has its home at one site and a replica at another, which hold the same. Nothing is
published meanwhile, so nothing would have to be copied: every byte is the price of the change. What
crosses is read from the engines' links, in both directions of all of them.

A change is over when all members count and nothing crosses any more. That they count is not enough:
a former home does so for a moment with the log that it has, and only then begins to copy it anew.
"""

from __future__ import annotations

import asyncio

from bench.fabric import Fabric, Sent, copy_time, running_fabric
from bench.harness import Benchmark, Figure, chosen, measured, progress

HUB, FROM, TO = SITES = ["hub", "a", "b"]


QUIET = 6.0
"""Seconds in which next to nothing crosses, once a change is over."""
NOTHING = 0.001
"""Of the log's size: what agents say to each other meanwhile."""


async def _over(fabric: Fabric, topic: str, sent: Sent, size: int) -> None:
    """Wait until a change of home is over."""
    while True:
        await fabric.settled(topic, copy_time(size))
        before = sent.total
        await asyncio.sleep(QUIET)
        if sent.total - before < NOTHING * size:
            return await fabric.settled(topic, copy_time(size))


async def _move() -> list[Figure]:
    size = chosen.size_mb * 1_000_000
    async with running_fabric(SITES) as fabric:
        topic = await fabric.create(home=[FROM, TO], replicas=1)
        progress(f"move.copied_ratio: {chosen.size_mb} MB")
        await fabric.fill(topic, size)
        sent = Sent(fabric)
        async with sent.counted():
            for site in (TO, FROM):
                await fabric.move(topic, site, copy_time(size))
                await _over(fabric, topic, sent, size)
    note = f"a log of {chosen.size_mb:,} MB, moved to its replica's site and back; aim 0"
    return [measured("move.copied_ratio", [sent.total / size], "ratio", note)]


async def _failover() -> list[Figure]:
    size = chosen.size_mb * 1_000_000
    async with running_fabric(SITES) as fabric:
        topic = await fabric.create(home=[FROM, TO], replicas=2)
        progress(f"failover.copied_ratio: {chosen.size_mb} MB")
        await fabric.fill(topic, size)
        sent = Sent(fabric)
        async with sent.counted():
            await fabric.kill_engine(FROM)
            await fabric.lost(topic, FROM, copy_time(size))
            await _over(fabric, topic, sent, size)
    note = (
        f"a log of {chosen.size_mb:,} MB with two replicas, SIGKILL of the home's engine; until "
        "the former home counts again and nothing is copied any more; aim 0"
    )
    return [measured("failover.copied_ratio", [sent.total / size], "ratio", note)]


BENCHMARKS = [
    Benchmark(["move.copied_ratio"], _move),
    Benchmark(["failover.copied_ratio"], _failover),
]
