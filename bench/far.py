"""Sites half a second away: what a satellite's link, or a bad day of one, leaves of the fabric.

Three sites on an emulated wide-area network. The time of a quorum publish is compared with the
round trip of the same path, as a bare TCP connection measures it in the same round.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import skerry
from bench.fabric import Fabric, running_fabric
from bench.harness import Benchmark, Figure, chosen, compared, interleave, measured, progress
from skerry.errors import OutcomeUnknown
from skerry.testing.wan import Wan

HUB, FARM, LAB = SITES = ["hub", "farm", "lab"]
FAR = 0.5
NEARER = 0.25
"""Seconds one way."""
WORST_DELAY, WORST_JITTER, WORST_LOSS = 0.2, 0.6, 0.01
"""500 ± 300 ms, and one packet in a hundred lost."""
PATIENCE = 120.0
EVENTS = 60
"""Published one after the other, at an even pace, over the worst network."""
PACE = 0.5
ROUNDS = 5
PORT = 7000


async def _distant() -> list[Figure]:
    joined, created = [], []
    rounds = 1 if chosen.quick else 3
    for number in range(rounds):
        progress(f"far.join_s: round {number + 1} of {rounds}")
        async with running_fabric([HUB, FARM], FAR, patience=PATIENCE) as fabric:
            joined.append(fabric.joined[FARM])
            began = time.monotonic()
            await fabric.asked(
                HUB, lambda client: client.create_topic("t", home=FARM, replicas=1, ack="quorum")
            )
            created.append(time.monotonic() - began)
    about = f"{1000 * FAR:.0f} ms one way"
    return [
        measured(
            "far.join_s", joined, "s", f"{about}; a new site, from its start until it has joined"
        ),
        measured("far.create_s", created, "s", f"{about}; home there and a replica here"),
    ]


class _Path:
    """A quorum publish at the home, and a round trip to the replica, in milliseconds."""

    def __init__(self, fabric: Fabric, topic: str) -> None:
        self._fabric = fabric
        self._topic = topic

    async def publish(self) -> float:
        async def work() -> float:
            async with self._fabric.connect(HUB) as client:
                await client.publish(self._topic, b"x" * 128, ack="quorum")  # finds the way
                began = time.monotonic()
                await client.publish(self._topic, b"x" * 128, ack="quorum")
                return 1000 * (time.monotonic() - began)

        return await self._fabric.at(HUB, work)

    async def path(self) -> float:
        assert self._fabric.wan is not None
        address = self._fabric.wan.address(FARM)

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readexactly(1))
            writer.close()

        async def ask() -> float:
            reader, writer = await asyncio.open_connection(address, PORT)
            began = time.monotonic()
            writer.write(b"x")
            await reader.readexactly(1)
            taken = 1000 * (time.monotonic() - began)
            writer.close()
            return taken

        server = await self._fabric.at(FARM, lambda: asyncio.start_server(echo, address, PORT))
        try:
            return await self._fabric.at(HUB, ask)
        finally:

            async def close() -> None:
                server.close()

            await self._fabric.at(FARM, close)


async def _quorum() -> list[Figure]:
    async with running_fabric([HUB, FARM], NEARER, patience=PATIENCE) as fabric:
        path = _Path(fabric, await fabric.create(home=HUB, replicas=1))
        samples = await interleave(
            "far.quorum_vs_path", {"skerry": path.publish, "path": path.path},
            2 if chosen.quick else ROUNDS,
        )  # fmt: skip
    note = f"publish at the home to its replica {1000 * NEARER:.0f} ms away (one way); aim 1"
    return [compared("far.quorum_vs_path", samples, "path", note)]


async def _worst() -> list[Figure]:
    count = EVENTS // 6 if chosen.quick else EVENTS

    async def publish(client: skerry.Client) -> int:
        acknowledged = 0

        async def one(number: int) -> None:
            nonlocal acknowledged
            with contextlib.suppress(OutcomeUnknown):
                await client.publish("t", b"%d" % number, ack="quorum")
                acknowledged += 1

        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(one(number))
                await asyncio.sleep(PACE)
        return acknowledged

    progress("far.published_ratio")
    async with running_fabric(
        SITES, WORST_DELAY, jitter=WORST_JITTER, loss=WORST_LOSS, patience=PATIENCE
    ) as fabric:
        await fabric.asked(
            HUB, lambda client: client.create_topic("t", home=FARM, replicas=2, ack="quorum")
        )
        acknowledged = await fabric.asked(HUB, publish, "sdk")
    note = (
        f"{count} publishes at level quorum, one each {PACE:g} s, 500 ± 300 ms one way with "
        f"{100 * WORST_LOSS:g} % loss; the share that was acknowledged; aim 1"
    )
    return [measured("far.published_ratio", [acknowledged / count], "ratio", note)]


BENCHMARKS = [
    Benchmark(["far.join_s", "far.create_s"], _distant, Wan.unavailable),
    Benchmark(["far.quorum_vs_path"], _quorum, Wan.unavailable),
    Benchmark(["far.published_ratio"], _worst, Wan.unavailable),
]
