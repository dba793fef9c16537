"""How long publishers wait while many topics move to another site, over a wide-area network.

128 topics with one publisher each, spread over the three sites, each sending at an even pace. All
homes move from one site to another, 16 at a time. A publisher's pause is the longest time between
two acknowledgements from when the moves began until they were done; nothing is taken off it, also
not the pace.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from functools import partial

import skerry
from bench.fabric import DELAY, Fabric, running_fabric
from bench.failover import Acks
from bench.harness import Benchmark, Figure, measured, percentile, progress, tidy
from skerry.testing.wan import Wan

HUB, FROM, TO = SITES = ["hub", "a", "b"]
TOPICS = 128
AT_ONCE = 16
RATE = 10
"""Events per second of each publisher. All of it shares two cores with seven processes."""
DATA = b"x" * 128
BEFORE = 1.5
"""Seconds of publishing before the moves, which give the usual gap."""
AFTER = 1.0
ROUNDS = 3


class Moving:
    """Topics, and a publisher for each."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self.topics = [f"move-{number:03d}" for number in range(TOPICS)]
        self.acks: dict[str, Acks] = {}

    async def create(self) -> None:
        """Make the topics, at home at `FROM`."""

        async def work(client: skerry.Client) -> None:
            await asyncio.gather(*(client.create_topic(topic) for topic in self.topics))

        await self._fabric.asked(FROM, work)

    def site(self, topic: str) -> str:
        """Where the publisher of a topic is."""
        return SITES[self.topics.index(topic) % len(SITES)]

    async def publish(self) -> None:
        """Publish everywhere until `stop`."""
        self.acks = {topic: Acks() for topic in self.topics}
        async with asyncio.TaskGroup() as group:
            for site in SITES:
                group.create_task(self._fabric.at(site, partial(self._publish, site)))

    async def _publish(self, site: str) -> None:
        async with self._fabric.connect(site) as client, asyncio.TaskGroup() as group:
            for number, topic in enumerate(self.topics):
                if self.site(topic) == site:
                    group.create_task(self._publish_one(client, topic, number / TOPICS / RATE))

    async def _publish_one(self, client: skerry.Client, topic: str, delay: float) -> None:
        acks = self.acks[topic]
        await asyncio.sleep(delay)
        async with client.publisher(topic) as publisher:

            async def send() -> None:
                (await publisher.send(DATA)).add_done_callback(acks.note)

            await acks.paced(send, RATE)

    async def move(self, to: str) -> float:
        """Move them all; return the seconds that it took."""

        async def work(client: skerry.Client) -> float:
            began = time.monotonic()
            moves = dict.fromkeys(self.topics, to)
            results = await client.move_topics(moves, at_once=AT_ONCE)
            for result in results.values():
                if isinstance(result, skerry.SkerryError):
                    raise result
            return time.monotonic() - began

        return await self._fabric.asked(HUB, work)


async def _move() -> list[Figure]:
    p50: list[float] = []
    p99: list[float] = []
    each: list[float] = []
    usual: list[float] = []
    pauses: dict[str, list[float]] = {site: [] for site in SITES}
    async with running_fabric(SITES, DELAY) as fabric:
        moving = Moving(fabric)
        await moving.create()
        for number in range(ROUNDS):
            progress(f"move: round {number + 1} of {ROUNDS}")
            async with asyncio.TaskGroup() as group:
                publishing = group.create_task(moving.publish())
                await asyncio.sleep(BEFORE)
                began = time.monotonic()
                seconds = await moving.move(FROM if number % 2 else TO)
                await asyncio.sleep(AFTER)
                for acks in moving.acks.values():
                    acks.stop = True
                await publishing
            found = {topic: moving.acks[topic].gap(began) for topic in moving.topics}
            p50.append(percentile(list(found.values()), 50))
            p99.append(percentile(list(found.values()), 99))
            each.append(1000 * seconds / TOPICS)
            for topic, pause in found.items():
                pauses[moving.site(topic)].append(pause)
                with contextlib.suppress(ValueError):
                    usual.append(moving.acks[topic].gap(until=began))
    note = (
        f"{TOPICS} topics of one publisher each at {RATE}/s, {AT_ONCE} at a time, "
        f"{1000 * DELAY:.0f} ms one way; longest gap, {tidy(statistics.median(usual))} usual; "
        "publishers at "
        + ", ".join(f"{site}: {tidy(statistics.median(pauses[site]))}" for site in SITES)
    )
    return [
        measured("move.pause_p50_ms", p50, "ms", note),
        measured("move.pause_p99_ms", p99, "ms"),
        measured("move.per_topic_ms", each, "ms", f"wall time of all moves / {TOPICS}"),
    ]


BENCHMARKS = [
    Benchmark(
        ["move.pause_p50_ms", "move.pause_p99_ms", "move.per_topic_ms"], _move, Wan.unavailable
    )
]
