"""How many acknowledged events a second one producer gets stored."""

from __future__ import annotations

import asyncio
import secrets
import time
from functools import partial

import skerry
from bench.harness import Benchmark, Figure, compared, interleave, measured
from bench.rawproto import RawClient
from bench.stage import SIZES, Stage, running_site
from skerry.model.names import write_subject
from skerry.model.topic import Durability

WINDOW = 4096
"""Unacknowledged events at most, for every variant: the default of `client.publisher`."""

EVENTS = {"128b": 30_000, "1k": 30_000, "8k": 16_000}
POWER_EVENTS = 3_000


async def _skerry(stage: Stage, topic: str, data: bytes, events: int) -> float:
    async with skerry.connect(stage.sdk) as client:
        began = time.perf_counter()
        async with client.publisher(topic) as publisher:
            acks = [await publisher.send(data) for _ in range(events)]
        seconds = time.perf_counter() - began
    if [ack.result() for ack in acks] != list(range(1, events + 1)):
        raise RuntimeError("acknowledged with other indexes than 1, 2, 3, …")
    return seconds


async def _raw(stage: Stage, topic: str, data: bytes, events: int) -> float:
    client = await RawClient.open(stage.sdk)
    try:
        return await client.publish(write_subject(stage.sdk.site, topic), data, events, WINDOW)
    finally:
        client.close()


async def _natspy(stage: Stage, topic: str, data: bytes, events: int) -> float:
    async with stage.nats() as client:
        stream = client.jetstream(publish_async_max_pending=WINDOW)
        subject, name = write_subject(stage.sdk.site, topic), secrets.token_hex(8)
        began = time.perf_counter()
        acks = [
            await stream.publish_async(subject, data, headers={"Nats-Msg-Id": f"{name}-{number}"})
            for number in range(events)
        ]
        answers = await asyncio.gather(*acks)
        seconds = time.perf_counter() - began
    if answers[-1].seq != events:
        raise RuntimeError("acknowledged with other indexes than 1, 2, 3, …")
    return seconds


VARIANTS = {"skerry": _skerry, "raw": _raw, "natspy": _natspy}


def _benchmark(id: str, size: str, events: int, durability: Durability) -> Benchmark:
    data = b"x" * SIZES[size]

    async def run() -> list[Figure]:
        async with running_site(durability) as stage:

            async def rate(name: str) -> float:
                async with stage.topic() as topic:
                    seconds = await VARIANTS[name](stage, topic, data, events)
                    await stage.check(topic, events)
                return events / seconds

            samples = await interleave(id, {name: partial(rate, name) for name in VARIANTS})
        return [
            measured(id, samples["skerry"], "events/s"),
            compared(f"{id}.vs_raw", samples, "raw"),
            compared(f"{id}.vs_natspy", samples, "natspy"),
        ]

    return Benchmark([id, f"{id}.vs_raw", f"{id}.vs_natspy"], run)


BENCHMARKS = [
    *(_benchmark(f"publish.{size}", size, EVENTS[size], "process") for size in SIZES),
    *(_benchmark(f"publish.{size}.power", size, POWER_EVENTS, "power") for size in SIZES),
]
