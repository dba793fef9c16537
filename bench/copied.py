"""How many bytes cross between sites when a log changes its home, to the size of the log.

The topic has its home at one site and a replica at another, which hold the same. Nothing is
published meanwhile, so nothing would have to be copied: every byte is the price of the change. What
crosses is read from the engines' links, in both directions of all of them.
"""

from __future__ import annotations

from bench.fabric import Sent, copy_time, running_fabric
from bench.harness import Benchmark, Figure, chosen, measured, progress

HUB, FROM, TO = SITES = ["hub", "a", "b"]


async def _move() -> list[Figure]:
    size = chosen.size_mb * 1_000_000
    async with running_fabric(SITES) as fabric:
        topic = await fabric.create(home=[FROM, TO], replicas=1)
        progress(f"move.copied_ratio: {chosen.size_mb} MB")
        await fabric.fill(topic, size)
        sent = Sent(fabric)
        async with sent.counted():
            await fabric.move(topic, TO, copy_time(size))
            await fabric.move(topic, FROM, copy_time(size))
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
            await fabric.settled(topic, copy_time(size))
    note = (
        f"a log of {chosen.size_mb:,} MB with two replicas, SIGKILL of the home's engine; until "
        "the former home counts again; aim 0"
    )
    return [measured("failover.copied_ratio", [sent.total / size], "ratio", note)]


BENCHMARKS = [
    Benchmark(["move.copied_ratio"], _move),
    Benchmark(["failover.copied_ratio"], _failover),
]
