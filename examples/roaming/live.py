"""A scenario with real clients, at real sites, on an emulated wide-area network.

All sites' agents and all clients run in one process, a thread for the network of each site; engines
are processes of their own. So there is one clock: an event carries the moment of its publishing,
and its latency is what has passed when a subscriber gets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import random
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np

from examples.roaming.simulate import STEP, Moved, Run, hashed_homes
from examples.roaming.world import Part, World, distances
from skerry import Client
from skerry.log.follow import Subscription
from skerry.model.placement import MOVES, Mode, MoveReport
from skerry.placement.gauge import Gauge, Reading
from skerry.placement.tables import Array
from skerry.testing import LocalSite, WanFabric

PATIENCE = 120.0
"""Seconds after which what is waited for has failed."""
SURE = 0.1
"""The share by which round trips as sites estimate them may be wrong when it begins."""
TURN = 0.0005
"""Seconds that a thread has the interpreter while others want it."""
BEAT = 0.02
"""Seconds between two looks whether the machine is held up."""
KEPT = 1000
"""Events that a topic keeps: moves are short."""

Say = Callable[[str], None]


class Heard:
    """When events came, and how long they had taken, by topic and ear."""

    def __init__(self) -> None:
        self.events: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        """Nanoseconds, both."""
        self.beats: list[tuple[float, float]] = []
        """When a timer came, and how much too late; seconds."""

    async def beat(self, site: LocalSite) -> None:
        """Look whether timers come in time, until cancelled."""
        while True:
            due = time.monotonic() + BEAT
            await asyncio.sleep(BEAT)
            now = time.monotonic()
            self.beats.append((now, now - due))


class Measured(Run, frozen=True, kw_only=True):
    """What came of a run; latencies are medians of the events that came in a step."""

    worst: Array
    """(steps, lines): ms."""
    count: Array
    """Events that came."""
    late: Array
    """Those of them that took longer than the bound."""
    failed: list[str]
    """Moves that failed, and why."""
    held_up: Array
    """(steps,): ms by which a timer in the thread of some site came too late, at the most."""


class Seat:
    """A client that goes from site to site. There it has a connection of its own, publishes so many
    events a second to each of its topics, and subscribes."""

    def __init__(self, fabric: WanFabric, heard: Heard, rate: float, size: int) -> None:
        self._fabric = fabric
        self._heard = heard
        self._pause = 1.0 / rate
        self._size = size
        self._wanted: Part | None = None
        self._has: Part | None = None
        self._client: Client | None = None
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._settling: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    def want(self, part: Part | None) -> None:
        """Do this from now on; None: leave."""
        self._wanted = part
        if part != self._has and (self._settling is None or self._settling.done()):
            self._settling = asyncio.create_task(self._settle())

    async def settled(self) -> None:
        """Wait until it does what it should."""
        if self._settling is not None:
            await self._settling
        self.check()

    def check(self) -> None:
        """Raise what went wrong."""
        if self._settling is not None and self._settling.done():
            self._settling.result()
        if self._failure is not None:
            raise self._failure

    async def _settle(self) -> None:
        while (part := self._wanted) != self._has:
            if self._has is not None and (part is None or part.site != self._has.site):
                await self._fabric.run(self._has.site, self._leave)
            if part is not None:
                await self._fabric.run(part.site, partial(self._play, part))
            self._has = part

    async def _play(self, part: Part, site: LocalSite) -> None:
        if self._client is None:
            client = site.connect()
            await client.open()
            self._client = client
        wanted = {("publish", topic) for topic in part.publishes}
        wanted |= {("subscribe", topic) for topic in part.subscribes}
        await self._end([key for key in self._tasks if key not in wanted])
        new = sorted(wanted - self._tasks.keys())
        topics = [topic for what, topic in new if what == "subscribe"]
        opened = await asyncio.gather(*map(self._subscribe, topics))
        for topic, events in zip(topics, opened, strict=True):
            self._spawn(("subscribe", topic), self._listen(events, part.ear))
        for what, topic in new:
            if what == "publish":
                self._spawn((what, topic), self._publish(self._client, topic))

    async def _subscribe(self, topic: str) -> Subscription:
        assert self._client is not None
        return await self._client.subscribe(topic)

    def _spawn(self, key: tuple[str, str], work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[key] = asyncio.create_task(work)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and self._failure is None:
            self._failure = task.exception()

    async def _end(self, keys: list[tuple[str, str]]) -> None:
        ending = [self._tasks.pop(key) for key in keys]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _leave(self, site: LocalSite) -> None:
        await self._end(list(self._tasks))
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _publish(self, client: Client, topic: str) -> None:
        clock = asyncio.get_running_loop().time
        async with client.publisher(topic) as publisher:
            # Who begins together shall not publish together.
            due = clock() + self._pause * random.random()
            while True:
                await asyncio.sleep(max(due - clock(), 0.0))
                await publisher.send((b"%d " % time.monotonic_ns()).ljust(self._size, b"x"))
                due = max(due + self._pause, clock() - 1.0)  # after a stall, do not catch up on all

    async def _listen(self, events: Subscription, ear: str) -> None:
        took = self._heard.events[events.topic, ear]
        async with events:
            async for event in events:
                now = time.monotonic_ns()
                took.append((now, now - int(event.data[:20].split(b" ", 1)[0])))


@contextlib.asynccontextmanager
async def running_world(world: World, say: Say, seed: int) -> AsyncIterator[WanFabric]:
    """Sites as far from each other as the world says, which know it, and topics at hashed homes."""
    names = [world.hub, *world.sites] if world.hub else list(world.sites)
    away = distances(world)
    delays = {
        (world.sites[one], world.sites[other]): float(away[one, other]) / 1000
        for one, other in itertools.combinations(range(len(world.sites)), 2)
    }
    with _machines_of_their_own():
        async with WanFabric(names, delay=world.hub_delay / 1000, delays=delays) as fabric:
            say(f"{len(names)} sites are up; they find out how far from each other they are")
            await _until_sure(fabric, {pair: 2000 * way for pair, way in delays.items()})
            homes = hashed_homes(world, seed)

            async def create(site: LocalSite) -> None:
                async with site.connect() as client:
                    for topic, home in zip(world.topics, homes, strict=True):
                        await client.create_topic(
                            topic,
                            home=world.sites[home],
                            max_events=KEPT,
                            latency=world.bound / 1000,
                        )

            await fabric.run(names[0], create)
            yield fabric


@contextlib.contextmanager
def _machines_of_their_own() -> Iterator[None]:
    """Have each site take its machine, which it shares with all others, for one that has little to
    do: else all would be overloaded at once, and no topic could go anywhere. And have threads take
    turns more often than every 5 ms, for which sites would wait for each other on an event's way,
    and none collect garbage, for which all would stand still."""
    reading = Reading((4.0, 8e9, 1e9, 1e12, float("inf")), (0.1, 1e8, 0.0, 1e9, 0.0))
    real, turn = Gauge.read, sys.getswitchinterval()
    Gauge.read = lambda *_: reading  # type: ignore[method-assign]
    sys.setswitchinterval(TURN)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        sys.setswitchinterval(turn)
        Gauge.read = real  # type: ignore[method-assign]


async def _until_sure(fabric: WanFabric, trips: dict[tuple[str, str], float]) -> None:
    """Wait until sites know their distances, given as round trips in ms."""

    async def sure(site: LocalSite) -> None:
        async with asyncio.timeout(PATIENCE), site.connect() as client:
            while True:
                found = {
                    frozenset((pair.site, pair.peer)): pair.estimate_ms or np.inf
                    for pair in await client.rtt()
                }
                if all(
                    abs(found.get(frozenset(pair), np.inf) - trip) < SURE * trip
                    for pair, trip in trips.items()
                ):
                    return
                await asyncio.sleep(0.2)

    await fabric.run(fabric.names[0], sure)


async def play(
    fabric: WanFabric, world: World, seconds: float, rate: float, mode: Mode
) -> Measured:
    """Have the clients at work for so long, with placement in this mode."""
    steps = round(seconds / STEP)
    heard = Heard()
    seats: defaultdict[str, Seat] = defaultdict(
        lambda: Seat(fabric, heard, rate, int(world.event_bytes))
    )
    hub = fabric.names[0]
    began, wall = 0.0, 0.0
    beating = [asyncio.create_task(fabric.run(name, heard.beat)) for name in fabric.names]
    try:
        for step in range(steps):
            world.step(STEP)
            for name, part in world.parts().items():
                seats[name].want(part)
            if step == 0:
                await asyncio.gather(*(seat.settled() for seat in seats.values()))
                await fabric.run(hub, partial(_set_mode, mode, world.margin))
                began, wall = time.monotonic(), time.time()
            await asyncio.sleep(began + (step + 1) * STEP - time.monotonic())
            for seat in seats.values():
                seat.check()
    finally:
        for task in beating:
            task.cancel()
        for seat in seats.values():
            seat.want(None)
        await asyncio.gather(
            *beating, *(seat.settled() for seat in seats.values()), return_exceptions=True
        )
    reports = await fabric.run(hub, partial(_moves_since, wall))
    return _measured(world, heard, began, steps, reports)


async def _set_mode(mode: Mode, margin: float, site: LocalSite) -> None:
    async with site.connect("admin") as admin:
        await admin.set_placement(mode, margin=margin)


async def _moves_since(wall: float, site: LocalSite) -> list[tuple[float, MoveReport]]:
    """Reports of moves, and how many seconds after `wall` each ended."""
    async with site.connect() as client:
        return [
            (event.timestamp_ns / 1e9 - wall, msgspec.json.decode(event.data, type=MoveReport))
            async for event in client.read(MOVES)
            if event.timestamp_ns / 1e9 > wall
        ]


def _measured(
    world: World, heard: Heard, began: float, steps: int, reports: list[tuple[float, MoveReport]]
) -> Measured:
    lines = world.lines()
    shape = (steps, len(lines))
    median, worst = np.full(shape, np.nan), np.full(shape, np.nan)
    count, late = np.zeros(shape, int), np.zeros(shape, int)
    for column, line in enumerate(lines):
        events = np.array(heard.events[world.topics[line.topic], line.ear]).reshape(-1, 2)
        row = np.floor((events[:, 0] / 1e9 - began) / STEP).astype(int)
        for step in np.unique(row[(row >= 0) & (row < steps)]):
            took = events[row == step, 1] / 1e6
            median[step, column], worst[step, column] = np.median(took), took.max()
            count[step, column], late[step, column] = len(took), (took > world.bound).sum()
    held_up = np.zeros(steps)
    for at, late_by in heard.beats:
        if 0 <= (step := int((at - began) // STEP)) < steps:
            held_up[step] = max(held_up[step], 1000 * late_by)
    topics, sites = list(world.topics), fabric_sites(world)
    moves = [
        Moved(at, topics.index(one.topic), sites.index(one.source), sites.index(one.target),
              one.reason, one.seconds)
        for at, one in reports
        if one.outcome == "moved"
    ]  # fmt: skip
    failed = [f"{r.topic} to {r.target}: {r.why}" for _, r in reports if r.outcome == "failed"]
    return Measured(
        bound=world.bound, seconds=np.arange(steps) * STEP, latency=median, moves=moves,
        worst=worst, count=count, late=late, failed=failed, held_up=held_up,
    )  # fmt: skip


def fabric_sites(world: World) -> list[str]:
    """The sites of the world, and then the one that only coordinates."""
    return [*world.sites, *([world.hub] if world.hub else [])]
