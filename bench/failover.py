"""How long publishers wait when the home of their topic dies.

A publisher sends at an even pace; its gap is the longest time between two acknowledgements from the
kill on, over the second that follows. The engine of the home gets SIGKILL; it is neither at the
coordination site nor where the publisher is. Then the home is moved back for the next kill.

The baseline is a JetStream stream with three replicas: its leader gets SIGKILL, the publisher is at
another server, and sends again what is not acknowledged within 100 ms.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence

from bench.cluster import Cluster, publish, running_cluster
from bench.fabric import DELAY, PATIENCE, Fabric, running_fabric
from bench.harness import Benchmark, Figure, Samples, compared, interleave, measured, tidy
from skerry.model.topic import Ack
from skerry.testing.wan import Wan

HUB, VICTIM, NEAR = SITES = ["hub", "farm", "lab"]
"""The coordination site, the one whose engine is killed, the publisher's."""
RATE = 500
"""Events per second."""
DATA = b"x" * 128
BEFORE = 0.5
"""Seconds of publishing before the kill."""
AFTER = 1.0
"""Seconds after it in which gaps count."""
ROUNDS = 7
IDLE = 2.5
"""Seconds between two changes of a topic's home. An engine connects a mirror at most every two
seconds, so that a replica follows a home that comes sooner late."""


class Acks:
    """When events were acknowledged."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.stop = False

    def note(self, future: asyncio.Future[int]) -> None:
        """One was."""
        if not future.cancelled() and future.exception() is None:
            self.times.append(time.monotonic())

    async def paced(self, send: Callable[[], Awaitable[object]], rate: float) -> int:
        """Send at an even pace until told to stop; return how many were sent. What was missed is
        not made good."""
        due, count = time.monotonic(), 0
        while not self.stop:
            await send()
            count += 1
            due = max(due + 1 / rate, time.monotonic() - 1 / rate)
            await asyncio.sleep(max(due - time.monotonic(), 0))
        return count

    async def wait_past(self, moment: float) -> None:
        """Wait until something was acknowledged after `moment`."""
        async with asyncio.timeout(PATIENCE):
            while not self.times or self.times[-1] <= moment:
                await asyncio.sleep(0.01)

    def gap(self, since: float = 0.0, until: float = math.inf) -> float:
        """Milliseconds of the longest gap that ends between these two moments."""
        pairs = zip(self.times, self.times[1:], strict=False)
        return 1000 * max(after - before for before, after in pairs if since < after < until)


class Failover:
    """A fabric whose topics lose their home again and again."""

    def __init__(self, fabric: Fabric, levels: Sequence[Ack]) -> None:
        self._fabric = fabric
        self._levels = levels
        self._topics: dict[Ack, str] = {}
        self._sent: dict[Ack, int] = dict.fromkeys(levels, 0)
        self._idle_since = 0.0
        self.gaps: dict[Ack, list[float]] = {level: [] for level in levels}
        """Milliseconds; of the warm-up too."""

    async def open(self) -> None:
        """Make a topic for each level."""
        for level in self._levels:
            self._topics[level] = await self._fabric.create(home=[VICTIM, HUB], replicas=2)

    async def round(self) -> float:
        """Kill the home under its publishers; return the gap of the first level."""
        await asyncio.sleep(max(self._idle_since + IDLE - BEFORE - time.monotonic(), 0))
        acks = {level: Acks() for level in self._levels}
        async with asyncio.TaskGroup() as group:
            publishing = [
                group.create_task(self._publish(level, acks[level])) for level in self._levels
            ]
            await asyncio.sleep(BEFORE)
            killed = await self._fabric.kill_engine(VICTIM)
            await asyncio.sleep(AFTER)
            for one in acks.values():
                await one.wait_past(killed)
                one.stop = True
            await asyncio.gather(*publishing)
        for level, topic in self._topics.items():
            self.gaps[level].append(acks[level].gap(killed))
            await self._fabric.move(topic, VICTIM)
            await self._check(topic, self._sent[level])
        self._idle_since = time.monotonic()
        return self.gaps[self._levels[0]][-1]

    async def _publish(self, level: Ack, acks: Acks) -> None:
        async def work() -> int:
            async with (
                self._fabric.connect(NEAR) as client,
                client.publisher(self._topics[level], ack=level) as publisher,
            ):

                async def send() -> None:
                    (await publisher.send(DATA)).add_done_callback(acks.note)

                return await acks.paced(send, RATE)

        self._sent[level] += await self._fabric.at(NEAR, work)

    async def _check(self, topic: str, events: int) -> None:
        found = await self._fabric.asked(HUB, lambda client: client.latest_index(topic))
        if found != events:
            raise RuntimeError(f"{topic} holds {found} events, {events} were acknowledged")


class Baseline:
    """A replicated stream that loses its leader again and again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._sent = 0

    async def round(self) -> float:
        """Kill the leader under the publisher; return the gap in milliseconds."""
        leader = await self._cluster.settled()
        acks, name = Acks(), secrets.token_hex(4)
        async with self._cluster.connect(self._cluster.other(leader)) as client:

            async def send() -> None:
                await publish(client, DATA, f"{name}-{len(acks.times)}")
                acks.times.append(time.monotonic())

            async with asyncio.TaskGroup() as group:
                publishing = group.create_task(acks.paced(send, RATE))
                await asyncio.sleep(BEFORE)
                killed = self._cluster.kill(leader)
                await acks.wait_past(killed + 0.1)
                acks.stop = True
                self._sent += await publishing
        self._cluster.start(leader)
        await self._cluster.settled()
        stored = (await self._cluster.info()).state.messages
        if stored != self._sent:
            raise RuntimeError(f"the stream holds {stored} events, {self._sent} were acknowledged")
        return acks.gap(killed)


async def _failover() -> list[Figure]:
    async with running_fabric(SITES) as fabric, running_cluster() as cluster:
        failover, baseline = Failover(fabric, ["home", "quorum"]), Baseline(cluster)
        await failover.open()
        samples = await interleave(
            "failover", {"skerry": failover.round, "r3": baseline.round}, ROUNDS
        )
    quorum: Samples = {"skerry": failover.gaps["quorum"][1:], "r3": samples["r3"]}
    ratio = compared("", quorum, "r3").value
    about = f"loopback, {RATE}/s, home and two replicas, SIGKILL of the home's engine; "
    return [
        measured(
            "failover.gap_ms", samples["skerry"], "ms",
            about + f"ack=home; longest of all {tidy(max(samples['skerry']))}",
        ),
        measured("failover.quorum_gap_ms", quorum["skerry"], "ms", about + "ack=quorum"),
        compared(
            "failover.vs_r3", samples, "r3",
            f"ms to ms of JetStream with three replicas; aim 0.01; with ack=quorum {ratio:g}",
        ),
    ]  # fmt: skip


async def _wan() -> list[Figure]:
    async with running_fabric(SITES, DELAY) as fabric:
        failover = Failover(fabric, ["home"])
        await failover.open()
        samples = await interleave("failover.wan_gap_ms", {"skerry": failover.round}, ROUNDS)
    note = f"{1000 * DELAY:.0f} ms one way between all sites, else as failover.gap_ms"
    return [measured("failover.wan_gap_ms", samples["skerry"], "ms", note)]


BENCHMARKS = [
    Benchmark(["failover.gap_ms", "failover.quorum_gap_ms", "failover.vs_r3"], _failover),
    Benchmark(["failover.wan_gap_ms"], _wan, Wan.unavailable),
]
