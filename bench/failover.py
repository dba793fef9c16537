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

import msgspec

from bench.cluster import Cluster, publish, running_cluster
from bench.fabric import DELAY, PATIENCE, Fabric, running_fabric
from bench.harness import Benchmark, Figure, compared, interleave, measured, tidy
from skerry.model.topic import Ack
from skerry.testing.wan import Wan

HUB, VICTIM, LAB = SITES = ["hub", "farm", "lab"]
"""The coordination site, the one whose engine is killed, a third."""
RATE = 500
"""Events per second."""
DATA = b"x" * 128
BEFORE = 0.5
"""Seconds of publishing before the kill."""
AFTER = 1.0
"""Seconds after it in which gaps count."""
ROUNDS = 7
WAN_ROUNDS = 5
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


class Case(msgspec.Struct, frozen=True):
    """A topic, and the publisher that it has."""

    near: str
    """Where the publisher is."""
    following: str
    """Where the next home is; not where the publisher is, which would be quicker."""
    ack: Ack = "home"


HOME = Case(LAB, HUB)
QUORUM = Case(LAB, HUB, "quorum")
FROM_HUB = Case(HUB, LAB)


class Failover:
    """A fabric whose topics lose their home again and again, all by the same kill."""

    def __init__(self, fabric: Fabric, cases: Sequence[Case]) -> None:
        self._fabric = fabric
        self._cases = cases
        self._topics: dict[Case, str] = {}
        self._sent = dict.fromkeys(cases, 0)
        self._idle_since = 0.0
        self.gaps: dict[Case, list[float]] = {case: [] for case in cases}
        """Milliseconds; the warm-up first."""

    async def open(self) -> None:
        """Make a topic for each case."""
        for case in self._cases:
            self._topics[case] = await self._fabric.create(
                home=[VICTIM, case.following], replicas=2
            )

    async def round(self) -> float:
        """Kill the home under its publishers; return the gap of the first case."""
        await asyncio.sleep(max(self._idle_since + IDLE - BEFORE - time.monotonic(), 0))
        acks = {case: Acks() for case in self._cases}
        async with asyncio.TaskGroup() as group:
            publishing = [
                group.create_task(self._publish(case, acks[case])) for case in self._cases
            ]
            await asyncio.sleep(BEFORE)
            killed = await self._fabric.kill_engine(VICTIM)
            await asyncio.sleep(AFTER)
            for one in acks.values():
                await one.wait_past(killed)
                one.stop = True
            await asyncio.gather(*publishing)
        for case, topic in self._topics.items():
            self.gaps[case].append(acks[case].gap(killed))
            await self._fabric.move(topic, VICTIM)
            await self._check(topic, self._sent[case])
        self._idle_since = time.monotonic()
        return self.gaps[self._cases[0]][-1]

    async def _publish(self, case: Case, acks: Acks) -> None:
        async def work() -> int:
            async with (
                self._fabric.connect(case.near) as client,
                client.publisher(self._topics[case], ack=case.ack) as publisher,
            ):

                async def send() -> None:
                    (await publisher.send(DATA)).add_done_callback(acks.note)

                return await acks.paced(send, RATE)

        self._sent[case] += await self._fabric.at(case.near, work)

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
    async with (
        running_fabric(SITES) as fabric,
        running_fabric(SITES) as another,
        running_cluster() as cluster,
    ):
        # The figure that counts has its kills for itself: several topics share the processors.
        one, more = Failover(fabric, [HOME]), Failover(another, [QUORUM, FROM_HUB])
        await one.open()
        await more.open()
        samples = await interleave(
            "failover",
            {"skerry": one.round, "others": more.round, "r3": Baseline(cluster).round},
            ROUNDS,
        )
    gaps = {case: values[1:] for case, values in (one.gaps | more.gaps).items()}
    quorum = compared("", {"skerry": gaps[QUORUM], "r3": samples["r3"]}, "r3").value
    about = f"loopback, {RATE}/s, a home and two replicas, SIGKILL of the home's engine; "
    return [
        measured(
            "failover.gap_ms", gaps[HOME], "ms",
            about + f"ack=home; the longest of all {tidy(max(gaps[HOME]))}",
        ),
        measured("failover.quorum_gap_ms", gaps[QUORUM], "ms", "the same with ack=quorum"),
        measured(
            "failover.from_hub_gap_ms", gaps[FROM_HUB], "ms",
            "the same with the publisher at the coordination site and the next home at the third",
        ),
        compared(
            "failover.vs_r3", samples, "r3",
            "failover.gap_ms to that of a JetStream stream with three replicas; aim 0.01; "
            f"with ack=quorum {quorum:g}",
        ),
    ]  # fmt: skip


async def _wan() -> list[Figure]:
    async with running_fabric(SITES, DELAY) as fabric:
        failover = Failover(fabric, [HOME])
        await failover.open()
        samples = await interleave("failover.wan_gap_ms", {"skerry": failover.round}, WAN_ROUNDS)
    note = f"{1000 * DELAY:.0f} ms one way between all sites, else as failover.gap_ms"
    return [measured("failover.wan_gap_ms", samples["skerry"], "ms", note)]


BENCHMARKS = [
    Benchmark(
        [
            "failover.gap_ms",
            "failover.quorum_gap_ms",
            "failover.from_hub_gap_ms",
            "failover.vs_r3",
        ],
        _failover,
    ),
    Benchmark(["failover.wan_gap_ms"], _wan, Wan.unavailable),
]
