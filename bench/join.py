"""How long it takes until thousands of endpoints that join at once are connected with each other.

Half of the endpoints are publishers, half subscribers, of the SDK and with all that one has: a
consumer of its own at the engine, an inbox and a place in the order of its own. They speak of 1 000
sub-topics of 20 topics, whose homes are at two sites in turn; the publishers of a sub-topic are at
one site, its subscribers at the other. Topics and the connections (32 at each site, shared) are
there before; sites do not have a copy of each other's topics yet.

At a signal all of them begin at once. Each publisher publishes one event. The clock stops when
every subscriber has got one, and every publisher its acknowledgement. Subscribers begin at the
first event, so that none misses what was published before it was there.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time

import msgspec
import psutil
import uvloop

import skerry
from bench.fabric import Fabric, running_fabric
from bench.harness import Benchmark, Figure, measured, progress
from bench.stage import MB
from skerry.log.append import Publisher
from skerry.log.follow import Subscription

SITES = ["hub", "farm"]
TOPICS = 20
SUB_TOPICS = 1_000
CONNECTIONS = 32
"""At each site."""
ROUNDS = 3
PATIENCE = 120.0
READY = b"ready\n"


class Spec(msgspec.Struct):
    """The endpoints of a site: the sub-topic of each."""

    data: str
    publishers: list[str]
    subscribers: list[str]


class Outcome(msgspec.Struct):
    """What a site's endpoints tell."""

    done: float
    """When the last of them was connected."""
    memory_mb: float


async def _publisher(client: skerry.Client, topic: str) -> Publisher:
    publisher = client.publisher(topic)
    await (await publisher.send(b"here"))
    return publisher


async def _subscriber(client: skerry.Client, topic: str) -> Subscription:
    subscription = await client.subscribe(topic, from_index=1, window=64)
    await anext(subscription)
    return subscription


async def endpoints(spec: Spec) -> None:
    """Be the endpoints of a site: connect, wait for the signal, join, tell."""
    clients = [skerry.connect(spec.data, timeout=PATIENCE - 20) for _ in range(CONNECTIONS)]
    await asyncio.gather(*(client.open() for client in clients))
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)

    def client(number: int) -> skerry.Client:
        return clients[number % CONNECTIONS]

    async with asyncio.timeout(PATIENCE):
        kept = await asyncio.gather(
            *(_subscriber(client(n), topic) for n, topic in enumerate(spec.subscribers)),
            *(_publisher(client(n), topic) for n, topic in enumerate(spec.publishers)),
        )
    outcome = Outcome(time.monotonic(), psutil.Process().memory_info().rss / MB)
    assert len(kept) == len(spec.subscribers) + len(spec.publishers)
    sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
    sys.stdout.flush()
    await asyncio.Event().wait()  # until we are killed


async def _join(count: int) -> tuple[float, float]:
    """Let `count` endpoints join a fresh fabric; return seconds, and MB of the endpoints."""
    async with running_fabric(SITES) as fabric:

        async def create(client: skerry.Client) -> None:
            for number in range(TOPICS):
                await client.create_topic(f"join-{number:02d}", home=SITES[number % 2])

        await fabric.asked(SITES[0], create)
        processes = [await _start(fabric, site, count) for site in SITES]
        try:
            for process in processes:
                assert process.stdout is not None
                if await process.stdout.readline() != READY:
                    raise RuntimeError("endpoints could not connect")
            began = time.monotonic()
            for process in processes:
                _signal(process)
            outcomes = await asyncio.gather(*map(_outcome, processes))
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await asyncio.gather(*(process.wait() for process in processes))
    return max(o.done for o in outcomes) - began, sum(o.memory_mb for o in outcomes)


async def _start(fabric: Fabric, site: str, count: int) -> asyncio.subprocess.Process:
    mine = SITES.index(site)
    topics = [number % SUB_TOPICS for number in range(count // 2)]
    names = [f"join-{number % TOPICS:02d}/part-{number:04d}" for number in topics]
    # Home, publisher and subscriber of a sub-topic are at sites in all four ways.
    here = [number // TOPICS % 2 == mine for number in topics]
    spec = Spec(
        str(fabric.data(site)),
        publishers=[name for name, is_mine in zip(names, here, strict=True) if is_mine],
        subscribers=[name for name, is_mine in zip(names, here, strict=True) if not is_mine],
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.join", stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(spec) + b"\n")
    return process


def _signal(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")


async def _outcome(process: asyncio.subprocess.Process) -> Outcome:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise RuntimeError("endpoints failed to join; what they said is above")
    return msgspec.json.decode(line, type=Outcome)


def _benchmark(id: str, count: int) -> Benchmark:
    async def run() -> list[Figure]:
        seconds, memory = [], 0.0
        for number in range(ROUNDS):
            progress(f"{id}: round {number + 1} of {ROUNDS}")
            taken, memory = await _join(count)
            seconds.append(taken)
        note = (
            f"{count // 2:,} publishers and {count // 2:,} subscribers at two sites, "
            f"{SUB_TOPICS:,} sub-topics of {TOPICS} topics; the endpoints take {memory:.0f} MB"
        )
        return [measured(id, seconds, "s", note)]

    return Benchmark([id], run)


BENCHMARKS = [_benchmark("join.2k_s", 2_000), _benchmark("join.10k_s", 10_000)]

if __name__ == "__main__":
    uvloop.run(endpoints(msgspec.json.decode(sys.stdin.readline(), type=Spec)))
