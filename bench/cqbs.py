"""The benchmarks of the CQBS paper (its section V), with its figures beside ours.

The paper's machines were small ones in a cloud, a network apart; ours are processes on one machine.
So the figures are not to be divided by each other; what can be compared is how they change with the
load, and what happens when the coordinator is lost.

`forward.N`: N publishers at 5 messages a second, ten to a subscriber, one site; how long from
publishing to the subscriber. `change`: 500 queries at three sites, each matching a tenth of 1000
feeds; from the moment when a publisher begins to change its metadata to when a subscriber is told.
`origin_lost`: the same while the coordination site is killed: the longest that a change made after
it took to be told. `system`: 30 subscribers and 360 publishers at three sites, whose metadata
changes every 30 to 60 seconds; from publishing to the subscriber.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import statistics
import sys
import time

import uvloop

import skerry
from bench.fabric import Fabric, running_fabric
from bench.harness import Benchmark, Figure, measured, percentile, progress
from bench.stage import running_site
from skerry.feeds.feed import FeedHandle
from skerry.feeds.subscription import QuerySubscription
from skerry.model.feeds import Joined, Received

RATE = 5.0
"""Messages a second of each publisher."""
SECONDS = float(os.environ.get("CQBS_SECONDS", "15"))
SITES = ("hub", "farm", "lab")
QUERIES, FEEDS, GROUPS = 500, 1000, 10
CHANGES = 60
PAPER = {10: 4.85, 100: 4.77, 1000: 8.87}


async def _publish_on(feeds: list[FeedHandle], until: float, chance: random.Random) -> None:
    """Publish the time, each feed at its rate, at moments of its own."""

    async def run(feed: FeedHandle) -> None:
        await asyncio.sleep(chance.uniform(0, 1 / RATE))
        due = time.monotonic()
        while due < until:
            await feed.send(b"%d" % time.monotonic_ns())
            due += 1 / RATE
            await asyncio.sleep(max(due - time.monotonic(), 0))

    await asyncio.gather(*map(run, feeds))


async def _times(found: QuerySubscription, into: list[float], begin: float) -> None:
    """How long events took, in ms, for ever."""
    async for item in found:
        now = time.monotonic_ns()
        if isinstance(item, Received) and time.monotonic() > begin:
            into.append((now - int(item.event.data)) / 1e6)


# Forwarding at one site


def _forward(publishers: int) -> Benchmark:
    id = f"cqbs.forward.{publishers}.p95_ms"

    async def run() -> list[Figure]:
        progress(f"{id}: one run of {SECONDS:.0f} s")
        times: list[float] = []
        async with (
            running_site() as stage,
            skerry.connect(stage.sdk) as client,
            contextlib.AsyncExitStack() as stack,
        ):
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "bench.cqbs", str(stage.data), str(publishers),
                stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            assert child.stdout is not None
            await child.stdout.readline()  # all are registered
            begin = time.monotonic() + 2
            reading = []
            for group in range(max(publishers // 10, 1)):
                found = await stack.enter_async_context(client.query(f"group = {group}"))
                reading.append(asyncio.create_task(_times(found, times, begin)))
            await child.wait()
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
        note = (
            f"mean {statistics.mean(times):.2f} ms over {len(times)} events; the paper's p95, on "
            f"its machines: {PAPER[publishers]} ms"
        )
        return [measured(id, [percentile(times, 95)], "ms", note)]

    return Benchmark([id], run)


async def _publish(data: str, publishers: int) -> None:
    """The publishers of `forward`, in a process of their own."""
    async with skerry.connect(data) as client:
        feeds = [await client.feed({"group": n // 10, "n": n}) for n in range(publishers)]
        print("ready", flush=True)
        await _publish_on(feeds, time.monotonic() + SECONDS + 2, random.Random(1))


# Changes


class _Crowd:
    """Feeds and subscribers at three sites."""

    def __init__(self, fabric: Fabric, stack: contextlib.AsyncExitStack) -> None:
        self.fabric = fabric
        self.stack = stack
        self.clients: dict[str, skerry.Client] = {}
        self.feeds: list[FeedHandle] = []
        self.began: dict[str, int] = {}
        """When each feed's last change began."""
        self.told: list[tuple[int, float]] = []
        """When a change began, and after how many ms a subscriber was told."""

    async def fill(self, sites: tuple[str, ...]) -> None:
        for site in sites:
            self.clients[site] = await self.stack.enter_async_context(self.fabric.connect(site))
        for n in range(FEEDS):
            client = self.clients[sites[n % len(sites)]]
            self.feeds.append(await client.feed({"group": n % GROUPS, "n": n}))
        for n in range(QUERIES):
            client = self.clients[sites[n % len(sites)]]
            # Each query is another one, so that none shares another's work.
            found = await self.stack.enter_async_context(
                client.query(f"group = {n % GROUPS} and not n = {FEEDS + n}")
            )
            self.stack.callback(asyncio.create_task(self._listen(found)).cancel)

    async def _listen(self, found: QuerySubscription) -> None:
        async for item in found:
            if isinstance(item, Joined) and item.feed.id in self.began:
                began = self.began[item.feed.id]
                self.told.append((began, (time.monotonic_ns() - began) / 1e6))

    async def change(self, chance: random.Random, count: int) -> None:
        for _ in range(count):
            feed = chance.choice(self.feeds)
            group = (int(str(feed.metadata["group"])) + chance.randrange(1, GROUPS)) % GROUPS
            before = len(self.told)
            self.began[feed.id] = time.monotonic_ns()
            await feed.set({"group": group})
            async with asyncio.timeout(30):
                while len(self.told) < before + QUERIES // GROUPS:
                    await asyncio.sleep(0.005)
            await asyncio.sleep(chance.uniform(0.05, 0.5))


async def _change() -> list[Figure]:
    chance = random.Random(2)
    async with running_fabric(SITES) as fabric, contextlib.AsyncExitStack() as stack:
        crowd = _Crowd(fabric, stack)
        progress("cqbs.change: registering")
        await crowd.fill(SITES)
        progress("cqbs.change: changing")
        await crowd.change(chance, CHANGES)
        times = [took for _, took in crowd.told]
    note = f"{len(times)} notifications; the paper: mean 24.7, p95 57.3 ms; replicated 95.5, 191.2"
    return [
        measured("cqbs.change_mean_ms", [statistics.mean(times)], "ms", note),
        measured("cqbs.change_p95_ms", [percentile(times, 95)], "ms"),
    ]


async def _origin_lost() -> list[Figure]:
    chance = random.Random(3)
    async with running_fabric(SITES) as fabric, contextlib.AsyncExitStack() as stack:
        crowd = _Crowd(fabric, stack)
        progress("cqbs.origin_lost: registering")
        await crowd.fill(SITES[1:])
        progress("cqbs.origin_lost: changing")
        await crowd.change(chance, CHANGES // 3)
        moment = time.monotonic_ns()
        await fabric.kill(SITES[0])
        await crowd.change(chance, CHANGES // 3)
        before = max(took for began, took in crowd.told if began < moment)
        after = max(took for began, took in crowd.told if began > moment)
    note = f"the longest before the loss was {before:.1f} ms; the paper: about 15 s of silence"
    return [measured("cqbs.origin_lost_ms", [after], "ms", note)]


# The whole


async def _system() -> list[Figure]:
    chance = random.Random(4)
    times: list[float] = []
    seconds = 4 * SECONDS
    slots = 30
    async with running_fabric(SITES) as fabric, contextlib.AsyncExitStack() as stack:
        progress(f"cqbs.system: one run of {seconds:.0f} s")
        clients = [await stack.enter_async_context(fabric.connect(site)) for site in SITES]
        feeds = [await clients[n % 3].feed({"slot": n // 3 % slots, "n": n}) for n in range(360)]
        begin = time.monotonic() + 2
        for slot in range(slots):
            found = await stack.enter_async_context(clients[slot % 3].query(f"slot = {slot}"))
            stack.callback(asyncio.create_task(_times(found, times, begin)).cancel)
        until = begin + seconds

        async def change(feed: FeedHandle) -> None:
            while True:
                await asyncio.sleep(chance.uniform(30, 60) * min(seconds / 60, 1))
                await feed.set({"slot": chance.randrange(slots)})

        for feed in feeds:
            stack.callback(asyncio.create_task(change(feed)).cancel)
        await _publish_on(feeds, until, chance)
        await asyncio.sleep(1)
    note = f"{len(times)} events; the paper: mean 129.6 ms, p95 7.59 ms"
    return [
        measured("cqbs.system_mean_ms", [statistics.mean(times)], "ms", note),
        measured("cqbs.system_p95_ms", [percentile(times, 95)], "ms"),
    ]


BENCHMARKS = [
    *map(_forward, PAPER),
    Benchmark(["cqbs.change_mean_ms", "cqbs.change_p95_ms"], _change),
    Benchmark(["cqbs.origin_lost_ms"], _origin_lost),
    Benchmark(["cqbs.system_mean_ms", "cqbs.system_p95_ms"], _system),
]

if __name__ == "__main__":
    uvloop.run(_publish(sys.argv[1], int(sys.argv[2])))
