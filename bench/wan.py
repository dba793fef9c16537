"""What Skerry adds to the time that light takes, over an emulated wide-area network.

The clock is the same at all sites, so one-way times can be measured. The emulation itself takes a
little longer than it was told to; how much, a bare TCP connection tells in the same run.
"""

from __future__ import annotations

import asyncio
import statistics
import time

from bench.fabric import DELAY, Fabric, running_fabric
from bench.harness import Benchmark, Figure, interleave, measured, tidy
from skerry.model.topic import Ack
from skerry.testing.wan import Wan

HOME, AWAY = SITES = ["a", "b"]
RATE = 50
"""Events per second."""
EVENTS = 100
"""Of a round, that are delivered one way."""
TRIPS = 15
"""Of a round, that are published one after another."""
DATA_SIZE = 128
ROUNDS = 5
PORT = 7000


def _stamp() -> bytes:
    return (b"%d " % time.monotonic_ns()).ljust(DATA_SIZE, b"x")


def _since(data: bytes) -> float:
    """Milliseconds since the stamp was made."""
    return (time.monotonic_ns() - int(data.partition(b" ")[0])) / 1e6


class Path:
    """The two sites, and what is measured between them. All in milliseconds, medians."""

    def __init__(self, fabric: Fabric, topic: str, replicated: str) -> None:
        self._fabric = fabric
        self._topic = topic
        self._replicated = replicated

    async def bare(self) -> float:
        """One way, by a TCP connection and nothing else."""
        taken: list[float] = []
        done = asyncio.Event()
        assert self._fabric.wan is not None
        address = self._fabric.wan.address(AWAY)

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while len(taken) < EVENTS:
                taken.append(_since(await reader.readexactly(DATA_SIZE)))
            writer.close()
            done.set()

        async def listen() -> asyncio.Server:
            return await asyncio.start_server(take, address, PORT)

        async def send() -> None:
            _, writer = await asyncio.open_connection(address, PORT)
            for _ in range(EVENTS):
                writer.write(_stamp())
                await asyncio.sleep(1 / RATE)
            writer.close()

        async def finish(server: asyncio.Server) -> None:
            await done.wait()
            server.close()
            await server.wait_closed()

        server = await self._fabric.at(AWAY, listen)
        await self._fabric.at(HOME, send)
        await self._fabric.at(AWAY, lambda: finish(server))
        return statistics.median(taken)

    async def one_way(self) -> float:
        """From the call of `publish` at the home to a live subscriber at the other site."""
        opened = asyncio.get_running_loop().create_future()
        here = asyncio.get_running_loop()

        async def read() -> list[float]:
            taken: list[float] = []
            async with (
                self._fabric.connect(AWAY) as client,
                client.subscribe(self._topic) as subscription,
            ):
                here.call_soon_threadsafe(opened.set_result, None)
                async for event in subscription:
                    taken.append(_since(event.data))
                    if len(taken) == EVENTS:
                        break
            return taken

        async def write() -> None:
            async with (
                self._fabric.connect(HOME) as client,
                client.publisher(self._topic) as publisher,
            ):
                for _ in range(EVENTS):
                    await publisher.send(_stamp())
                    await asyncio.sleep(1 / RATE)

        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._fabric.at(AWAY, read))
            await opened
            await self._fabric.at(HOME, write)
        return statistics.median(reading.result())

    async def quorum(self) -> float:
        """From `publish` at the home until the replica at the other site has it as well."""
        return await self._published(HOME, self._replicated, "quorum")

    async def home(self) -> float:
        """From `publish` at the other site until the home has it."""
        return await self._published(AWAY, self._topic, "home")

    async def _published(self, site: str, topic: str, ack: Ack) -> float:
        async def work() -> list[float]:
            taken: list[float] = []
            async with self._fabric.connect(site) as client:
                for _ in range(TRIPS):
                    began = time.monotonic()
                    await client.publish(topic, bytes(DATA_SIZE), ack=ack)
                    taken.append(1000 * (time.monotonic() - began))
            return taken

        return statistics.median(await self._fabric.at(site, work))


async def _wan() -> list[Figure]:
    async with running_fabric(SITES, DELAY) as fabric:
        path = Path(
            fabric,
            await fabric.create(home=HOME),
            await fabric.create(home=HOME, replicas=1),
        )
        samples = await interleave(
            "wan",
            {
                "bare": path.bare,
                "one way": path.one_way,
                "quorum": path.quorum,
                "home": path.home,
            },
            ROUNDS,
        )
    delay = 1000 * DELAY
    over = [value - delay for value in samples["one way"]]
    bare = tidy(statistics.median(samples["bare"]) - delay)
    return [
        measured(
            "wan.overhead_ms", over, "ms",
            f"publish at the home to a live subscriber at another site, {RATE}/s, less the path's "
            f"{delay:.0f} ms; a bare TCP connection on the same path: {bare:g}",
        ),
        measured(
            "wan.quorum_ms", samples["quorum"], "ms",
            f"publish at the home, acknowledged by home and replica; {2 * delay:.0f} at least",
        ),
        measured(
            "wan.home_ms", samples["home"], "ms",
            f"publish at another site, acknowledged by the home; {2 * delay:.0f} at least",
        ),
    ]  # fmt: skip


BENCHMARKS = [
    Benchmark(["wan.overhead_ms", "wan.quorum_ms", "wan.home_ms"], _wan, Wan.unavailable),
]
