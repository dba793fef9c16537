"""How many stored events a second one reader gets, from the beginning of a log.

The consumer is made before the clock starts, and has the same settings for every variant. Skerry's
variant looks at the index and the data of every event, and so does `raw`, a callback called out of
the receive loop; nats-py's only at the data, because there asking for an index costs extra. `scan`
is the raw loop with nothing to call: it skips from message to message and counts.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from functools import partial

from nats.aio.client import Client as NatsClient
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

import skerry
from bench.harness import Benchmark, Figure, compared, interleave, measured, progress
from bench.rawproto import RawClient
from bench.stage import SIZES, Stage, running_site
from skerry.model.names import stream_of

EVENTS = {"128b": 60_000, "1k": 40_000, "8k": 10_000}


async def _skerry(stage: Stage, topic: str, size: int, events: int) -> float:
    expected = seen = 0
    async with (
        skerry.connect(stage.sdk) as client,
        client.subscribe(topic, from_index=1) as subscription,
    ):
        began = time.perf_counter()
        async for event in subscription:
            expected += 1
            if event.index != expected:
                raise RuntimeError(f"event {event.index} came instead of {expected}")
            seen += len(event.data)
            if expected == events:
                break
        seconds = time.perf_counter() - began
    _check(seen, size * events)
    return seconds


async def _raw(stage: Stage, topic: str, size: int, events: int) -> float:
    expected = seen = 0

    def take(index: int, data: bytes) -> None:
        nonlocal expected, seen
        expected += 1
        if index != expected:
            raise RuntimeError(f"event {index} came instead of {expected}")
        seen += len(data)

    seconds = await _pull(stage, topic, events, take)
    _check(seen, size * events)
    return seconds


async def _scan(stage: Stage, topic: str, size: int, events: int) -> float:
    return await _pull(stage, topic, events, None)


async def _pull(
    stage: Stage, topic: str, events: int, take: Callable[[int, bytes], None] | None
) -> float:
    async with stage.nats() as maker:
        consumer = await _consumer(maker, topic)
    client = await RawClient.open(stage.sdk)
    try:
        return await client.pull(stream_of(topic), consumer, events, take)
    finally:
        client.close()


async def _natspy(stage: Stage, topic: str, size: int, events: int) -> float:
    count = seen = 0
    async with stage.nats() as client:
        consumer = await _consumer(client, topic)
        subscription = await client.jetstream().pull_subscribe_bind(consumer, stream_of(topic))
        began = time.perf_counter()
        while count < events:
            messages = await subscription.fetch(500)
            for message in messages:
                count += 1
                seen += len(message.data)
        seconds = time.perf_counter() - began
    _check(seen, size * events)
    return seconds


async def _consumer(client: NatsClient, topic: str) -> str:
    """Make a consumer like the one that `client.subscribe` makes."""
    name = f"bench-{secrets.token_hex(8)}"
    config = ConsumerConfig(
        name=name,
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=1,
        ack_policy=AckPolicy.NONE,
        mem_storage=True,
        inactive_threshold=60,
        num_replicas=1,
    )
    await client.jetstream().add_consumer(stream_of(topic), config)
    return name


def _check(seen: int, bytes: int) -> None:
    if seen != bytes:
        raise RuntimeError(f"{seen} bytes were read, {bytes} are stored")


VARIANTS = {"skerry": _skerry, "raw": _raw, "scan": _scan, "natspy": _natspy}


def _benchmark(id: str, size: int, events: int) -> Benchmark:
    async def run() -> list[Figure]:
        async with running_site() as stage, stage.topic() as topic:
            progress(f"{id}: filling a topic")
            async with stage.admin.publisher(topic) as publisher:
                for _ in range(events):
                    await publisher.send(b"x" * size)
            await stage.check(topic, events)

            async def rate(name: str) -> float:
                return events / await VARIANTS[name](stage, topic, size, events)

            samples = await interleave(id, {name: partial(rate, name) for name in VARIANTS})
        return [
            measured(id, samples["skerry"], "events/s"),
            compared(f"{id}.vs_raw", samples, "raw"),
            compared(f"{id}.vs_scan", samples, "scan"),
            compared(f"{id}.vs_natspy", samples, "natspy"),
        ]

    return Benchmark([id, f"{id}.vs_raw", f"{id}.vs_scan", f"{id}.vs_natspy"], run)


BENCHMARKS = [_benchmark(f"subscribe.{name}", SIZES[name], EVENTS[name]) for name in SIZES]
