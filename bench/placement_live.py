"""Placement at work: how soon a topic follows its clients, and what monitoring costs.

`placement.react_s`: a swarm (200 events/s of 1 KB, as ePulsar's UAVs) goes from one zone to another
over an emulated network, and its bound of 40 ms is broken. From the first late event to the first
that is in time again at the new home, at the default monitoring period of 5 s.

`placement.record.…_bytes`: the record of a site with ten topics, with so many clients of each that
tell what they use.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from functools import partial

import msgspec

import skerry
from bench.fabric import Fabric, running_fabric, until
from bench.harness import Benchmark, Figure, measured, progress, tidy
from skerry.model.placement import PERIOD, TopicUse, Usage, usage_subject
from skerry.testing.wan import Wan

HUB, *ZONES = SITES = ["hub", "a", "b"]
DELAY = 0.03
"""Seconds one way: from another zone and back an event takes 60 ms."""
BOUND = 0.04
RATE = 200
SIZE = 1024
ROUNDS = 5
CLIENTS = (10, 100, 1000)
TOPICS = 10


class Swarm:
    """Clients that publish and subscribe in one zone, and when their events were late."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self.late: float | None = None
        """When the first late event came."""
        self.in_time: float | None = None
        """When one came in time after that."""

    async def fly(self, zone: str) -> None:
        """Until cancelled."""
        await self._fabric.at(zone, partial(self._fly, zone))

    async def _fly(self, zone: str) -> None:
        async with (
            self._fabric.connect(zone) as one,
            self._fabric.connect(zone) as other,
            other.subscribe("swarm") as events,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(self._publish(one))
            async for event in events:
                now = time.monotonic_ns()
                took = (now - int(event.data.partition(b" ")[0])) / 1e9
                if took > BOUND and self.in_time is None:
                    self.late = self.late or now / 1e9
                elif took <= BOUND and self.late is not None and self.in_time is None:
                    self.in_time = now / 1e9

    async def _publish(self, client: skerry.Client) -> None:
        async with client.publisher("swarm") as publisher:
            while True:
                await publisher.send((b"%d " % time.monotonic_ns()).ljust(SIZE, b"x"))
                await asyncio.sleep(1 / RATE)


async def _react() -> list[Figure]:
    taken: list[float] = []
    moves: list[float] = []
    async with running_fabric(SITES, DELAY, idle=True) as fabric:

        async def prepare(admin: skerry.Client) -> None:
            await admin.create_topic("swarm", home=ZONES[0], latency=BOUND)
            await admin.set_placement("auto", cool_down=1.0)

        await fabric.asked(HUB, prepare)
        await _settle(fabric)
        for number in range(ROUNDS):
            progress(f"placement.react: round {number + 1} of {ROUNDS}")
            swarm = Swarm(fabric)
            flying = asyncio.create_task(swarm.fly(ZONES[(number + 1) % 2]))

            async def done(flying: asyncio.Task[None] = flying, swarm: Swarm = swarm) -> bool:
                if flying.done():
                    flying.result()
                return swarm.in_time is not None

            await until(done, "the swarm's topic to follow it")
            assert swarm.late is not None
            assert swarm.in_time is not None
            taken.append(swarm.in_time - swarm.late)
            await asyncio.sleep(2.0)  # it rests for one second after each move
            status = await fabric.asked(HUB, lambda admin: admin.placement_status())
            assert len(status.results) == number + 1, status.results
            moves.append(status.results[0].seconds)
            flying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await flying
    note = (
        f"from the first late event to the first in time, period {PERIOD:g} s, {1000 * DELAY:.0f} "
        f"ms one way; of it the move {tidy(statistics.median(moves))} s"
    )
    return [measured("placement.react_s", taken, "s", note)]


async def _settle(fabric: Fabric) -> None:
    """Until sites know where they are, and have told."""

    async def known() -> bool:
        pairs = await fabric.asked(HUB, lambda client: client.rtt())
        right = 2000 * DELAY
        return all(p.estimate_ms and abs(p.estimate_ms - right) < 0.1 * right for p in pairs)

    async def told() -> bool:
        return not (await fabric.asked(HUB, lambda client: client.placement_plan())).silent

    await until(known, "coordinates", 120)
    await until(told, "the first records")


async def _bytes() -> list[Figure]:
    figures = []
    async with running_fabric([HUB, "a"], idle=True) as fabric:

        async def prepare(admin: skerry.Client) -> None:
            for number in range(TOPICS):
                await admin.create_topic(f"building/{number}/temp", home=HUB)
            await admin.set_placement(period=1.0)

        await fabric.asked(HUB, prepare)
        for clients in CLIENTS:
            progress(f"placement.record: {clients} clients a topic")
            size = await fabric.asked("a", partial(_told, clients), "sdk")
            note = f"of a site, a record each {PERIOD:g} s; {TOPICS} topics"
            figures.append(measured(f"placement.record.{clients}_bytes", [float(size)], "B", note))
    return figures


async def _told(clients: int, client: skerry.Client) -> int:
    """The size of a record once the leader knows of all clients."""
    assert client._opened is not None
    connection = client._opened.connection
    uses = [
        TopicUse(f"building/{n}/temp", True, 1, 50, 9000, 50, 0.01, 0.01, 0.02)
        for n in range(TOPICS)
    ]
    while True:
        for number in range(clients):
            usage = Usage(f"client-{number}", 0.001, uses)
            connection.publish(usage_subject("a"), msgspec.msgpack.encode(usage))
        await asyncio.sleep(0.5)
        found = (await client.placement_explain("building/0/temp")).clients
        if [at.producers for at in found] == [clients]:
            sites = {site.site: site for site in (await client.placement_status()).sites}
            return sites["a"].record_bytes


BENCHMARKS = [
    Benchmark(["placement.react_s"], _react, Wan.unavailable),
    Benchmark([f"placement.record.{clients}_bytes" for clients in CLIENTS], _bytes),
]
