"""Functions: the benchmark of the paper (Canal, its section IV-D).

`8k`: messages of 8 KB, persistent, one producer, one function that notes the time and returns, as
in the paper; from the first publish until the last is handled and committed, all acknowledged. In
turns with it: a function that publishes a small result for each (`publishing`), the same messages
with no function (`plain`), and RabbitMQ with MQTT, a consumer calling a Python function for each
message, with clients that add nothing to the protocol (`rabbitmq`) and with Paho (`paho`). The
paper, a network apart and on its machines: 260 messages a second with a function, 416 without,
RabbitMQ 175.

What is promised differs: RabbitMQ delivers at least once and forgets a message when it is consumed;
here each takes effect exactly once and stays in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable

import skerry
from bench import function_many, function_rabbitmq
from bench.function_play import PATIENCE, SCALE, Play, message, playing
from bench.harness import (
    ROUNDS,
    Benchmark,
    Figure,
    compared,
    interleave,
    measured,
    percentile,
    progress,
)
from bench.stage import SIZES

MESSAGES = int(20_000 * SCALE)
WINDOW = 4096
"""Unacknowledged messages at most, for ours."""
MQTT_WINDOW = 1000
"""And for MQTT, where more made it slower (tried: 100 to 4096)."""
PAHO_WINDOW = 100
LATENCY_RATE, LATENCY_EVENTS = 200, int(600 * SCALE)


# The paper's experiment


async def _publish(client: skerry.Client, topic: str) -> int:
    """Publish all messages; return when that began. All are acknowledged then."""
    data, last = message(SIZES["8k"]), message(SIZES["8k"], last=True)
    began = time.monotonic_ns()
    async with client.publisher(topic, window=WINDOW) as publisher:
        for _ in range(MESSAGES - 1):
            await publisher.send(data)
        await publisher.send(last)
    return began


async def _plain(play: Play, topic: str) -> float:
    began = await _publish(play.client, topic)
    seconds = (time.monotonic_ns() - began) / 1e9
    await play.stage.check(topic, MESSAGES)
    return seconds


async def _with_function(play: Play, topic: str, handler: str) -> float:
    async with play.function(topic, handler) as name, play.done() as said:
        before = await play.client.latest_index("results")
        began = await _publish(play.client, topic)
        last = await said()  # what it publishes is behind what it committed
        seconds = (time.monotonic_ns() - began) / 1e9
        if last.function != name or last.now < began:
            raise RuntimeError(f"{last.function} told of another run than that of {name}")
        if handler == "note":
            if last.handled != MESSAGES:
                raise RuntimeError(f"{last.handled} messages were handled, not {MESSAGES}")
        else:
            async with asyncio.timeout(PATIENCE):
                while (found := await play.client.latest_index("results")) < before + MESSAGES:
                    await asyncio.sleep(0.005)
            if found != before + MESSAGES:
                raise RuntimeError(f"{found - before} results, not {MESSAGES}")
            seconds = (time.monotonic_ns() - began) / 1e9
    return seconds


async def _experiment(with_broker: bool) -> list[Figure]:
    async with contextlib.AsyncExitStack() as stack:
        play = await stack.enter_async_context(playing())

        async def ours(run: Callable[[Play, str], Awaitable[float]]) -> float:
            async with play.stage.topic() as topic:
                return MESSAGES / await run(play, topic)

        variants: dict[str, Callable[[], Awaitable[float]]] = {
            "skerry": lambda: ours(lambda play, topic: _with_function(play, topic, "note")),
            "publishing": lambda: ours(lambda play, topic: _with_function(play, topic, "answer")),
            "plain": lambda: ours(_plain),
        }
        if with_broker:
            progress("function.8k: starting RabbitMQ")
            port = await stack.enter_async_context(function_rabbitmq.running_broker())
            data, last = message(SIZES["8k"]), message(SIZES["8k"], last=True)
            runs = 0

            async def broker(kind: function_rabbitmq.Kind, window: int) -> float:
                nonlocal runs
                runs += 1
                topic = f"bench-{runs}"
                return MESSAGES / await function_rabbitmq.run(
                    kind, port, topic, data, last, MESSAGES, window
                )

            variants["rabbitmq"] = lambda: broker("bare", MQTT_WINDOW)
            variants["paho"] = lambda: broker("paho", PAHO_WINDOW)
        samples = await interleave("function.8k", variants)
    figures = [
        measured(
            "function.8k.msgs_s", samples["skerry"], "msgs/s",
            "8 KB, persistent, a function that notes the time; the paper: 260",
        ),
        measured(
            "function.8k.publishing.msgs_s", samples["publishing"], "msgs/s",
            "the function publishes a small result for each",
        ),
        compared(
            "function.8k.vs_plain", samples, "plain",
            "the same messages with no function; the paper: 260 / 416 = 0.63",
        ),
    ]  # fmt: skip
    if with_broker:
        figures += [
            compared(
                "function.8k.vs_rabbitmq", samples, "rabbitmq",
                "MQTT, QoS 1, clients with nothing around the protocol; the paper: 260 / 175 = 1.5",
            ),
            compared("function.8k.vs_rabbitmq_paho", samples, "paho", "the same with Paho's"),
        ]  # fmt: skip
    return figures


# How long it takes


async def _latency() -> list[Figure]:
    late: list[float] = []
    async with playing() as play:

        async def p50() -> float:
            async with play.stage.topic() as topic, play.function(topic, "note"):
                async with play.done() as said:
                    start = time.monotonic()
                    for number in range(LATENCY_EVENTS):
                        pause = start + number / LATENCY_RATE - time.monotonic()
                        await asyncio.sleep(max(pause, 0))
                        is_last = number == LATENCY_EVENTS - 1
                        await play.client.publish(topic, message(SIZES["8k"], is_last))
                    taken = [nanoseconds / 1e6 for nanoseconds in (await said()).taken]
                if len(taken) != LATENCY_EVENTS:
                    raise RuntimeError(f"{len(taken)} were handled, not {LATENCY_EVENTS}")
            late.append(percentile(taken, 99))
            return percentile(taken, 50)

        samples = await interleave("function.8k.latency", {"skerry": p50})
    note = f"8 KB, {LATENCY_RATE}/s, from the call of publish to the handler"
    return [
        measured("function.8k.latency_p50_ms", samples["skerry"], "ms", note),
        measured("function.8k.latency_p99_ms", late[-ROUNDS:], "ms", note),
    ]


def _benchmarks() -> list[Benchmark]:
    """The comparison with RabbitMQ is part of the same run where there is one."""
    own = ["function.8k.msgs_s", "function.8k.publishing.msgs_s", "function.8k.vs_plain"]
    rabbitmq = ["function.8k.vs_rabbitmq", "function.8k.vs_rabbitmq_paho"]
    with_broker = function_rabbitmq.unavailable() is None
    run = functools.partial(_experiment, with_broker)
    if with_broker:
        return [Benchmark([*own, *rabbitmq], run)]
    return [Benchmark(own, run), Benchmark(rabbitmq, run, function_rabbitmq.unavailable)]


BENCHMARKS = [
    *_benchmarks(),
    Benchmark(["function.8k.latency_p50_ms", "function.8k.latency_p99_ms"], _latency),
    *function_many.BENCHMARKS,
]
