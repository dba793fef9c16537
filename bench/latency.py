"""How long one event takes: to be acknowledged, and to reach a live subscriber."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import skerry
from bench.harness import Benchmark, Figure, compared, interleave, measured, percentile
from bench.stage import SIZES, Stage, running_site
from skerry.model.names import write_subject

PUBLISH_RATE, PUBLISH_EVENTS = 500, 1_000
DELIVER_RATE, DELIVER_EVENTS = 200, 400
UNPACED_EVENTS = 2_000

Publish = Callable[[bytes], Awaitable[object]]


@contextlib.asynccontextmanager
async def _skerry(stage: Stage, topic: str) -> AsyncIterator[Publish]:
    async with skerry.connect(stage.sdk) as client:
        yield lambda data: client.publish(topic, data)


@contextlib.asynccontextmanager
async def _natspy(stage: Stage, topic: str) -> AsyncIterator[Publish]:
    async with stage.nats() as client:
        stream, subject = client.jetstream(), write_subject(stage.sdk.site, topic)
        yield lambda data: stream.publish(
            subject, data, headers={"Nats-Msg-Id": secrets.token_hex(8)}
        )


CLIENTS = {"skerry": _skerry, "natspy": _natspy}


async def _publishing(publish: Publish, events: int, rate: float) -> list[float]:
    """Milliseconds of each of `events` publishes, one after another; `rate` 0: without a pause."""
    data, taken = b"x" * SIZES["1k"], []
    start = time.perf_counter()
    for number in range(events):
        if rate:
            await asyncio.sleep(max(start + number / rate - time.perf_counter(), 0))
        began = time.perf_counter()
        await publish(data)
        taken.append(1000 * (time.perf_counter() - began))
    return taken


async def _delivery(stage: Stage, topic: str) -> list[float]:
    """Milliseconds from the call of `publish` to the event in the hands of a live subscriber."""
    filler, taken = b"x" * (SIZES["8k"] - 20), []
    async with (
        skerry.connect(stage.sdk) as reader,
        skerry.connect(stage.sdk) as writer,
        reader.subscribe(topic) as subscription,
    ):

        async def publish() -> None:
            start = time.perf_counter()
            for number in range(DELIVER_EVENTS):
                await asyncio.sleep(max(start + number / DELIVER_RATE - time.perf_counter(), 0))
                await writer.publish(topic, b"%020d" % time.perf_counter_ns() + filler)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(publish())
            async for event in subscription:
                taken.append((time.perf_counter_ns() - int(event.data[:20])) / 1e6)
                if len(taken) == DELIVER_EVENTS:
                    break
    return taken


async def _publish_latency() -> list[Figure]:
    late: list[float] = []  # the 99th percentile of each round, the warm-up first
    async with running_site() as stage:

        async def p50(name: str, events: int, rate: float) -> float:
            async with stage.topic() as topic, CLIENTS[name](stage, topic) as publish:
                taken = await _publishing(publish, events, rate)
                await stage.check(topic, events)
            late.append(percentile(taken, 99))
            return percentile(taken, 50)

        unpaced = await interleave(
            "publish.latency, unpaced",
            {name: partial(p50, name, UNPACED_EVENTS, 0) for name in CLIENTS},
        )
        late.clear()
        paced = await interleave(
            f"publish.latency, {PUBLISH_RATE}/s",
            {"skerry": partial(p50, "skerry", PUBLISH_EVENTS, PUBLISH_RATE)},
        )
    note = f"1 KB, one after another, {PUBLISH_RATE}/s"
    return [
        measured("publish.latency.p50_ms", paced["skerry"], "ms", note),
        measured("publish.latency.p99_ms", late[1:], "ms", note),
        measured("publish.latency.unpaced_p50_ms", unpaced["skerry"], "ms"),
        compared("publish.latency.vs_natspy", unpaced, "natspy", "p50, unpaced; lower is better"),
    ]


async def _deliver_latency() -> list[Figure]:
    late: list[float] = []  # the 99th percentile of each round, the warm-up first
    async with running_site() as stage:

        async def p50() -> float:
            async with stage.topic() as topic:
                taken = await _delivery(stage, topic)
            late.append(percentile(taken, 99))
            return percentile(taken, 50)

        samples = await interleave("deliver.latency", {"skerry": p50})
    note = f"8 KB, {DELIVER_RATE}/s, from the call of publish to the live subscriber"
    return [
        measured("deliver.latency.p50_ms", samples["skerry"], "ms", note),
        measured("deliver.latency.p99_ms", late[1:], "ms", note),
    ]


BENCHMARKS = [
    Benchmark(
        [
            "publish.latency.p50_ms",
            "publish.latency.p99_ms",
            "publish.latency.unpaced_p50_ms",
            "publish.latency.vs_natspy",
        ],
        _publish_latency,
    ),
    Benchmark(["deliver.latency.p50_ms", "deliver.latency.p99_ms"], _deliver_latency),
]
