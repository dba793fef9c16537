"""How the fabric grows: with topics at a site, with the size of a log, with sites.

Each part goes through its steps in rising order, a fresh fabric for each, and fits a power law to
what came out: an exponent of 0 does not grow, 1 grows alike, 2 with the square. A part begins no
step when its time is over or when the machine lacks the memory that the step before it lets expect;
it says so, and what it has counts. All sites share this machine: the absolute figures are upper
bounds, the exponents are what this is for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import psutil

import skerry
from bench.fabric import Fabric, Sent, copy_time, running_fabric, until
from bench.harness import Benchmark, Figure, chosen, grown, progress
from bench.stage import MB

TOPICS, QUICK_TOPICS = (100, 1_000, 10_000), (20, 60, 200)
SIZES, QUICK_SIZES = (10, 100, 1_000, 2_000), (2, 8, 32)
"""MB of a log."""
MOST_SITES, QUICK_SITES = (3, 8, 16, 32), (3, 5, 8)
BUDGET, QUICK_BUDGET = 1_200.0, 50.0
"""Seconds after which a part begins no further step."""
SPARE = 0.5
"""Share of the free memory that a step may be expected to take."""
AT_ONCE = 16
IDLE, QUICK_IDLE = 20.0, 5.0
"""Seconds that sites are watched while nothing is asked of them."""
HUB, HOME, NEXT = SITES = ["hub", "a", "b"]

Measures = dict[str, float]


async def _steps(
    part: str, steps: Sequence[int], measure: Callable[[int], Awaitable[Measures]]
) -> tuple[dict[str, dict[int, float]], str]:
    """Measure at each step; what came out by name and step, and a word on what was left out."""
    found: dict[str, dict[int, float]] = {}
    began = time.monotonic()
    budget = QUICK_BUDGET if chosen.quick else BUDGET
    used = 0.0
    before = 0
    for step in steps:
        expected = used * step / before if before else 0.0
        free = psutil.virtual_memory().available
        reason = ""
        if before and time.monotonic() - began > budget:
            reason = f"more than {budget:.0f} s had gone by"
        elif expected > SPARE * free:
            reason = f"it would take about {expected / MB:,.0f} MB of {free / MB:,.0f} free"
        if reason:
            progress(f"scale.{part}: from {step:,} on left out: {reason}")
            return found, f"from {step:,} on left out, as {reason}"
        progress(f"scale.{part}: {step:,}")
        measures = await measure(step)
        used, before = measures.pop("used", 0.0), step
        for name, value in measures.items():
            found.setdefault(name, {})[step] = value
        told = ", ".join(f"{name} {value:.3g}" for name, value in measures.items())
        progress(f"scale.{part}: {step:,}: {told}")
    return found, ""


def _figures(
    part: str, about: dict[str, tuple[str, str]], found: dict[str, dict[int, float]], left_out: str
) -> list[Figure]:
    return [
        grown(
            f"scale.{part}.{name}", found[name], unit,
            "; ".join(text for text in (note, left_out) if text),
        )
        for name, (unit, note) in about.items()
    ]  # fmt: skip


# Topics at a site

TOPICS_ABOUT = {
    "engine_kb": ("KB", "memory of the home's engine for each topic, topics without events"),
    "recovery_s": ("s", "SIGKILL of an engine with a copy of each, until it answers for the last"),
    "failover_s": ("s", "the home of all is lost, until all have another"),
}


async def _topics(count: int) -> Measures:
    names = [f"scale-{number:05d}" for number in range(count)]
    async with running_fabric(SITES) as fabric:
        _, empty = fabric.memory_mb(HOME)
        await fabric.asked(HUB, lambda client: _create(client, names))
        await fabric.settled(names[-1], 120)
        full = sum(fabric.memory_mb(HOME)), sum(fabric.memory_mb(NEXT))
        _, engine = fabric.memory_mb(HOME)
        killed = await fabric.kill_engine(NEXT)
        await _answers(fabric, NEXT, names[-1])
        recovery = time.monotonic() - killed
        await fabric.settled(names[-1], 300)
        await fabric.kill(HOME)
        killed = time.monotonic()

        async def all_left() -> bool:
            try:
                found = await fabric.asked(HUB, lambda client: client.topics())
            except skerry.SkerryError:
                return False  # it has too much to do to answer
            return all(topic.home != HOME for topic in found)

        await until(all_left, f"{count} topics to fail over", 600)
        failover = time.monotonic() - killed
    return {
        "engine_kb": 1024 * (engine - empty) / count,
        "recovery_s": recovery,
        "failover_s": failover,
        "used": sum(full) * MB,
    }


async def _create(client: skerry.Client, names: Sequence[str]) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> None:
        async with room:
            await client.create_topic(name, home=[HOME, NEXT], replicas=1)

    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(one(name))


async def _answers(fabric: Fabric, site: str, topic: str) -> None:
    async def does() -> bool:
        try:
            await fabric.asked(site, lambda client: client.latest_index(topic), "sdk")
        except skerry.SkerryError:
            return False
        return True

    await until(does, f"the engine of {site}", 300)


# The size of a log

SIZE_ABOUT = {
    "move_s": ("s", "a move of the home to its replica's site"),
    "failover_ms": ("ms", "SIGKILL of the home's engine, until the next event is acknowledged"),
    "first_ms": ("ms", "subscribing from index 1 where there is no copy, until the first event"),
}


async def _size(megabytes: int) -> Measures:
    size = megabytes * 1_000_000
    patience = copy_time(size)
    async with running_fabric(SITES) as fabric:
        topic = await fabric.create(home=[HOME, NEXT], replicas=1)
        await fabric.fill(topic, size)

        async def first(client: skerry.Client) -> float:
            began = time.monotonic()
            async with client.subscribe(topic, from_index=1) as events:
                await anext(events)
            return 1000 * (time.monotonic() - began)

        first_ms = await fabric.asked(HUB, first, "sdk")
        began = time.monotonic()
        await fabric.asked(HUB, lambda client: client.move_topic(topic, NEXT))
        move = time.monotonic() - began
        await fabric.settled(topic, patience)

        async def publish(client: skerry.Client) -> float:
            await client.publish(topic, b"before", ack="home")
            killed = await fabric.kill_engine(NEXT)
            await client.publish(topic, b"after", ack="home", timeout=110)
            return 1000 * (time.monotonic() - killed)

        failover_ms = await fabric.asked(HUB, publish, "sdk")
        await fabric.settled(topic, patience)
    return {"move_s": move, "failover_ms": failover_ms, "first_ms": first_ms}


# Sites

SITES_ABOUT = {
    "cpu_percent": ("%", "of one core for each site, idle"),
    "memory_mb": ("MB", "agent and engine of one site, the mean of all"),
    "traffic_kb_s": ("KB/s", "messages between sites for each site, idle"),
    "join_s": ("s", "from the start of the last site until it has joined"),
}


async def _sites(count: int) -> Measures:
    names = [HUB, *(f"site{number:02d}" for number in range(1, count))]
    async with running_fabric(names, patience=120) as fabric:
        await asyncio.sleep(2)  # what joining left to do
        sent = Sent(fabric)
        seconds = QUICK_IDLE if chosen.quick else IDLE
        await sent.look()
        sent.total = 0
        began, processor = time.monotonic(), fabric.processor_s()
        await asyncio.sleep(seconds)
        percent = 100 * (fabric.processor_s() - processor) / (time.monotonic() - began) / count
        await sent.look()
        taken = time.monotonic() - began
        memory = sum(sum(fabric.memory_mb(name)) for name in names)
    return {
        "cpu_percent": percent,
        "memory_mb": memory / count,
        "traffic_kb_s": sent.total / 1000 / taken / count,
        "join_s": fabric.joined[names[-1]],
        "used": memory * MB,
    }


def _benchmark(
    part: str,
    about: dict[str, tuple[str, str]],
    steps: Sequence[int],
    quick: Sequence[int],
    measure: Callable[[int], Awaitable[Measures]],
) -> Benchmark:
    async def run() -> list[Figure]:
        found, left_out = await _steps(part, quick if chosen.quick else steps, measure)
        return _figures(part, about, found, left_out)

    return Benchmark([f"scale.{part}.{name}" for name in about], run)


BENCHMARKS = [
    _benchmark("topics", TOPICS_ABOUT, TOPICS, QUICK_TOPICS, _topics),
    _benchmark("size", SIZE_ABOUT, SIZES, QUICK_SIZES, _size),
    _benchmark("sites", SITES_ABOUT, MOST_SITES, QUICK_SITES, _sites),
]
