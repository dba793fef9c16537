"""One trial: a fabric of sites that run what ships, publishers, readers and faults, from one seed.

Faults come for some seconds; then all is healed, and the fabric must come to rest. It is judged
all the while (`skerry.sim.verdict`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from itertools import combinations
from random import Random
from typing import Any

import msgspec

from skerry.client.client import Client
from skerry.config import ClientSettings
from skerry.errors import AgedOut, SkerryError, Unavailable, UnknownTopic
from skerry.log.append import Publisher
from skerry.log.follow import Subscription
from skerry.model.promotion import LINEAGE_KEPT
from skerry.model.topic import Ack, OnPartition
from skerry.sim.agent import Agent, stand_ins
from skerry.sim.engine import Engine, Network
from skerry.sim.faults import Faults
from skerry.sim.jetstream import Message, Stream
from skerry.sim.loop import Loop, Process, running, virtual
from skerry.sim.verdict import KEY, STREAM, TOPIC, Verdict

ACTIVE = (*(1.0, 2.0, 4.0, 8.0) * 10, 100.0)
"""Seconds in which faults begin: in some trials they come one upon the other."""
WAYS = (*(0.001, 0.005, 0.02, 0.05) * 5, 0.25, 0.5)
"""Seconds between two sites, one way."""
QUIET = 60.0
"""Seconds after the last of them in which the fabric must have come to rest."""
STUCK = 6.0
"""Seconds for which a publisher waits at the most while enough is there, if ways are short."""
LOOK = 0.25
LEVELS: tuple[Ack, ...] = ("quorum", "quorum", "home", "outbox")
CUT_OFF: tuple[OnPartition, ...] = ("stop", "stop", "continue")
BUSY = (0.0, 0.01, 0.04)
CALM = (0.2, 0.5)
"""Seconds between two events of a publisher: around each fault, and else."""
DURABLES = 0.4
"""The share of trials that have a durable subscription."""
LIMITS = (None, None, None, 20, 100)
"""How many events the topic keeps."""
ACK_WAIT = 1.0
"""Seconds after which it is given again what it has not acknowledged."""
THINS = 3
"""Sub-topics that a publisher writes to by turns, if only the last events of each are kept."""


class Outcome(msgspec.Struct):
    """What a trial came to."""

    seed: int
    violation: str | None
    trace: list[str]
    epochs: int
    acked: int
    took: float
    """Virtual seconds."""
    settled: float
    """Of these, after the last fault."""
    longest: float
    """Seconds that a publisher waited while enough was there."""


class Writer:
    """A publisher program."""

    def __init__(self, trial: Trial, name: str, site: str, level: Ack) -> None:
        self.name = name
        self.site = site
        self.level = level
        self.waits = 0
        self.progressed = 0.0
        """When it was told of an event last, or began to wait."""
        self.is_done = False
        self.count = 0
        self.burst = 0
        """Events that it sends without a pause."""
        self.process = Process(name, site)
        self.publisher: Publisher | None = None
        self._trial = trial

    @property
    def stored(self) -> int:
        """How many events the home has acknowledged, that wait for replicas."""
        return len(self.publisher._sending.waits) if self.publisher is not None else 0

    async def run(self) -> None:
        """Publish at some pace, until the faults are over."""
        trial = self._trial
        client = Client([trial.agents[self.site].address("sdk")], ClientSettings(), self.name)
        await client.open()
        while not self.is_done:
            with contextlib.suppress(UnknownTopic, Unavailable):  # made a moment ago, far away
                await self._publish(client)
            await asyncio.sleep(0.1)

    async def _publish(self, client: Client) -> None:
        trial = self._trial
        self.publisher = publisher = client.publisher(TOPIC, ack=self.level, timeout=100.0)
        async with publisher:
            while not trial.is_healed or self.count < 3:
                self.count += 1
                data = f"{self.name}:{self.count}".encode()
                topic = f"{TOPIC}/{self.name}{self.count % THINS}" if trial.verdict.thins else None
                future = await publisher.send(data, topic=topic)
                if not self.waits:
                    self.progressed = trial.loop.time()
                self.waits += 1
                future.add_done_callback(partial(self._told, data))
                if self.burst:
                    self.burst -= 1
                    continue
                if trial.busy.is_set():
                    await asyncio.sleep(trial.random.choice(BUSY))
                else:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(trial.random.choice(CALM)):
                            await trial.busy.wait()
            with contextlib.suppress(SkerryError):
                await publisher.flush()
        self.is_done = True

    def kill(self) -> None:
        """End it in its midst."""
        self.process.is_alive = False
        self.is_done, self.waits = True, 0
        self._trial.net.engines[self.site].hang_up(self.process)

    def _told(self, data: bytes, done: asyncio.Future[int]) -> None:
        self.waits -= 1
        entry = self.publisher._sending.entry if self.publisher is not None else None
        if done.cancelled() or done.exception() is not None or entry is None:
            self._trial.note(f"{data.decode()} failed: {done.exception()}")
            return
        self.progressed = self._trial.loop.time()
        if self._trial.is_verbose:
            self._trial.note(f"{data.decode()} is acknowledged at {done.result()}")
        self._trial.verdict.on_acked(data, self.level, done.result(), entry.epoch)


class Reader:
    """A program that follows the topic."""

    def __init__(self, trial: Trial, site: str) -> None:
        self.site = site
        self.had: dict[int, tuple[bytes, int]] = {}
        """Events, and when they were stored: that tells two apart that say the same."""
        self.last = 0
        self._trial = trial
        self._process = Process("reader", site)

    def start(self) -> None:
        """Run it, from the first event on. (Were it to go on at an index, it could not know whether
        what it had before is still what the log has.)"""
        self.had.clear()
        self.last = 0
        self._process = Process("reader", self.site)
        self._process.context().run(self._trial.loop.create_task, self.run())

    def kill(self) -> None:
        """End it in its midst."""
        self._process.is_alive = False
        self._trial.net.engines[self.site].hang_up(self._process)

    async def run(self) -> None:
        """Read all, and check it as it comes."""
        trial = self._trial
        start = self.last + 1
        while True:
            client = Client([trial.agents[self.site].address("sdk")], ClientSettings(), "reader")
            try:
                await client.open()
                async with client.subscribe(TOPIC, from_index=start) as events:
                    async for event in events:
                        self._take(event.index, bytes(event.data), event.timestamp_ns)
            except AgedOut as error:
                start, self.last = error.first, error.first - 1
                if not trial.verdict.forgets:
                    trial.verdict.fail(f"the reader at {self.site}: {error}")
            except SkerryError:
                self.had.clear()  # see `start`
                self.last, start = 0, 1
            await client.close()
            await asyncio.sleep(0.5)

    def _take(self, index: int, data: bytes, stamp: int) -> None:
        fail, verdict = self._trial.verdict.fail, self._trial.verdict
        # A gap in the log of a copy that has become the home nobody can tell from lifespans' ends.
        is_told = not verdict.limit or verdict.entry.home != self.site
        if index > self.last + 1 and not verdict.thins and is_told:
            fail(f"the reader at {self.site} gets {index} after {self.last}")
        had = self.had.get(index)
        if had == (data, stamp):
            fail(f"the reader at {self.site} gets {data!r} at {index} again")
        if had and data != had[0] == verdict.kept.get(index, (b"",))[0]:
            fail(f"the reader at {self.site} had {had[0]!r} at {index}, which was "
                 f"acknowledged, and now gets {data!r}")  # fmt: skip
        for gone in range(index + 1, self.last + 1):
            self.had.pop(gone, None)
        self.had[index] = data, stamp
        self.last = index


class DurableReader:
    """A program that reads by a durable subscription, and acknowledges what it is given: mostly at
    once, sometimes later, sometimes not before it comes again. It may be started elsewhere."""

    def __init__(self, trial: Trial, site: str) -> None:
        self.site = site
        self.given: set[tuple[int, bytes]] = set()
        """All that it was ever given: indexes and events."""
        self._trial = trial
        self._random = Random(f"{trial.seed}/durable")
        self._process = Process("durable", site)

    def start(self) -> None:
        """Run it."""
        self._process = Process("durable", self.site)
        self._process.context().run(self._trial.loop.create_task, self._run())

    def kill(self) -> None:
        """End it in its midst; what it was given and did not acknowledge is for the next."""
        self._process.is_alive = False
        self._trial.net.engines[self.site].hang_up(self._process)

    async def _run(self) -> None:
        trial, start = self._trial, 1
        while True:
            client = Client([trial.agents[self.site].address("sdk")], ClientSettings(), "durable")
            try:
                await client.open()
                window = self._random.choice((2, 10, 100))
                async with client.subscribe(
                    TOPIC, durable="d", from_index=start, ack_wait=ACK_WAIT, window=window
                ) as events:
                    await self._read(events)
            except AgedOut as error:
                start = error.first
                if not trial.verdict.forgets:
                    trial.verdict.fail(f"the durable reader at {self.site}: {error}")
            except SkerryError as error:
                trial.note(f"the durable subscription ends: {error.what}", self.site)
            await client.close()
            await asyncio.sleep(0.5)

    async def _read(self, events: Subscription) -> None:
        trial, random = self._trial, self._random
        done: set[tuple[int, int]] = set()
        async for event in events:
            place = event.index, event.timestamp_ns
            told = f"the durable reader gets {bytes(event.data)!r} at {place[0]}"
            if trial.is_verbose:
                trial.note(told, self.site)
            if place in done:
                trial.verdict.fail(f"{told} again, which it has acknowledged")
            self.given.add((event.index, bytes(event.data)))
            what = 1.0 if trial.is_healed else random.random()
            if what < 0.05:
                continue  # forgotten: it comes again
            if what < 0.1:
                events.reject(event, random.choice((0.0, 0.1)))
                continue
            if what < 0.2:
                await asyncio.sleep(random.choice((0.01, 0.3)))
            events.ack(event)
            done.add(place)


class Trial(logging.Handler):
    """Runs one; what ships logs into its trace."""

    lineages: tuple[int, ...] = (LINEAGE_KEPT, LINEAGE_KEPT, 2)
    """How many epochs topics remember: sometimes so few that logs have to be copied anew."""
    looks = (0.01, 0.1)
    """Seconds between two looks of a replica at its copy; what ships looks ten times as often."""

    def __init__(
        self, seed: int, is_verbose: bool = False, only: Collection[int] | None = None
    ) -> None:
        super().__init__(logging.INFO if is_verbose else logging.WARNING)
        self.seed = seed
        self.only = only
        """Which of the planned faults to do, by number; None: all."""
        self.planned = 0
        self.random = Random(seed)
        self.is_verbose = is_verbose
        self.trace: list[str] = []
        self.agents: dict[str, Agent] = {}
        self.publishers: list[Writer] = []
        self.readers: list[Reader] = []
        self.durables: list[DurableReader] = []
        self.is_healed = False
        self.busy = asyncio.Event()
        self._busy_until = 0.0
        self.misled = 0
        """How often the leader believes what is not so."""
        self.longest = 0.0
        """Seconds that a publisher has waited while enough was there."""
        self.verdict = Verdict(self)
        self.on_moment: Callable[[str, str], None] = lambda *_: None
        """Told what a site does just now: something at which a fault may come at the worst time."""
        self._settled = 0.0

    def note(self, text: str, who: str = "") -> None:
        """Write down what happens."""
        self.trace.append(f"{self.loop.time():8.3f} {who:3} {text}")

    def hurry(self, seconds: float = 0.3) -> None:
        """Have publishers say more than else, for a while."""
        self._busy_until = max(self._busy_until, self.loop.time() + seconds)
        self.busy.set()
        self.loop.call_later(seconds, self._calm_down, context=self.loop.world)

    def _calm_down(self) -> None:
        if self.loop.time() >= self._busy_until:
            self.busy.clear()

    def emit(self, record: logging.LogRecord) -> None:
        process = running()
        self.note(record.getMessage().replace("\n", " "), process.name if process else "")

    def run(self) -> Outcome:
        """Run it to its end, or to the first violation."""
        self.loop = loop = Loop()
        logger = logging.getLogger("skerry")
        before = logger.level, logger.propagate
        logger.addHandler(self)
        logger.setLevel(self.level)
        logger.propagate = False
        try:
            lineage = Random(self.seed).choice(self.lineages)
            with virtual(loop, self.seed), stand_ins(*self.looks, lineage):
                self.net = loop.net = Network(loop, Random(self.seed + 1))
                loop.run(self._run())
        finally:
            logger.removeHandler(self)
            logger.setLevel(before[0])
            logger.propagate = before[1]
        for fault in loop.faults:
            self.note(f"nobody caught {fault}")
            self.verdict.fail(f"nobody caught: {fault}")
        verdict = self.verdict
        return Outcome(
            self.seed, verdict.violation, self.trace, len(verdict.entries), len(verdict.acked),
            loop.time(), self._settled, self.longest,
        )  # fmt: skip

    def spawn(self, name: str, host: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a program."""
        return Process(name, host).context().run(self.loop.create_task, work)

    async def _run(self) -> None:
        self.over = asyncio.Event()
        await self.story()

    async def story(self) -> None:
        """What happens; this one is drawn from the seed."""
        random = self.random
        sites = "abcde"[: random.choice((3, 3, 4, 5))]
        self.net.usual = random.choice(WAYS)
        self.net.loss = random.choice((0.0, 0.0, 0.02))
        members = random.sample(sites, random.choice((2, 2, 3, 3, len(sites))))
        keep = random.choice((None, None, None, None, 1, 2))
        extra = Random(f"{self.seed}/extra")
        limit = extra.choice(LIMITS) if keep is None else None
        await self.found(sites, members, keep, limit)
        for name in "pq"[: random.choice((1, 2))]:
            self.write(name, random.choice(sites), random.choice(LEVELS))
        self.read(random.choice(sites))
        if extra.random() < DURABLES:
            self.read_durably(extra.choice(sites))
        faults = Faults(self)
        active = random.choice(ACTIVE)
        self.planned = faults.plan(active, self.only)
        watch = self.loop.create_task(self._watch())
        await self.pause(active + 0.5)
        self.note("HEAL")
        self.is_healed = True
        faults.heal()
        await self.rest()
        watch.cancel()

    async def found(
        self, sites: str, members: list[str], keep: int | None = None, limit: int | None = None
    ) -> None:
        """Have sites join a fabric, and make the topic; the first member is its home."""
        self.note(f"{len(sites)} sites, {self.net.usual} s apart; members {members}; keep {keep}, "
                  f"at most {limit}")  # fmt: skip
        await self.join(sites)
        work = self.make("a", members, self.random.choice(CUT_OFF), keep, limit)
        await self.spawn("maker", "a", work)

    async def join(self, sites: Sequence[str]) -> None:
        """Have sites join a fabric; the first of them coordinates."""
        net = self.net
        net.on_report = self.verdict.on_report
        net.on_call = self._on_call
        for site in sites:
            net.engines[site] = engine = Engine(net, site, net.random)
            engine.on_stored = self._on_stored
            self.agents[site] = Agent(net, engine, 0.8)
        net.tend()
        hub = self.agents[sites[0]]
        hub.found()
        await hub.start()
        for site in sites[1:]:
            await self.agents[site].start(hub.token())

    def _on_stored(self, engine: Engine, stream: Stream, one: Message) -> None:
        self.verdict.on_stored(engine, stream, one)
        if one.subject == KEY:
            self.on_moment("entry", engine.site)
        elif stream.name.startswith(STREAM):
            self.on_moment("event", engine.site)

    def _on_call(self, site: str, call: str) -> None:
        self.on_moment(call, site)

    async def make(
        self, site: str, members: list[str], on_partition: OnPartition, keep: int | None = None,
        limit: int | None = None,
    ) -> None:  # fmt: skip
        """Make the topic, as a client of `site`."""
        self.verdict.thins, self.verdict.limit = keep is not None, limit
        address = self.agents[site].address("admin")
        async with Client([address], ClientSettings(), "maker") as maker:
            await maker.create_topic(
                TOPIC, home=members[0], replicas=len(members) - 1, spread=",".join(members[1:]),
                on_partition=on_partition, keep_last=keep, max_events=limit,
            )  # fmt: skip

    def write(self, name: str, site: str, level: Ack) -> None:
        """Run a publisher."""
        self.note(f"publisher {name} at {site}, level {level}")
        writer = Writer(self, name, site, level)
        self.publishers.append(writer)
        writer.process.context().run(self.loop.create_task, writer.run())

    def read(self, site: str) -> None:
        """Run a reader."""
        self.readers.append(Reader(self, site))
        self.readers[-1].start()

    def read_durably(self, site: str) -> None:
        """Run a reader with a durable subscription."""
        self.note(f"a durable reader at {site}")
        self.durables.append(DurableReader(self, site))
        self.durables[-1].start()

    async def pause(self, seconds: float) -> None:
        """Wait, unless it is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.over.wait()

    async def until(self, condition: Callable[[], object], timeout: float = 60.0) -> None:
        """Wait for something; it is a violation if it does not come."""
        deadline = self.loop.time() + timeout
        while not condition() and not self.over.is_set():
            if self.loop.time() > deadline:
                self.verdict.fail(f"this did not happen: {condition}")
            await asyncio.sleep(0.001)

    async def rest(self) -> None:
        """Have publishers end, wait until nothing moves any more, and judge the end."""
        self.is_healed = True
        began = self.loop.time()
        while not self.over.is_set():
            if self.verdict.unsettled() is None or self.loop.time() - began > QUIET:
                self._settled = self.loop.time() - began
                self.verdict.finish()
                return
            await self.pause(LOOK)

    async def _watch(self) -> None:
        """See whether publishers get on while they can: since when has a majority of the topic's
        members been there and connected, with the coordination site and the publisher's? A home
        that the coordination site sees is not replaced, so it has to be among them."""
        since: dict[frozenset[str], float] = {}
        most = STUCK + 40 * self.net.usual
        while True:
            await asyncio.sleep(LOOK)
            now = self.loop.time()
            members = self.verdict.entry.members
            if self.misled:
                since.clear()
            kept = {members[0]} if self._is_clear({"a", members[0]}) else set[str]()
            before, since = since, {}
            for one in self.publishers:
                clear = now
                for some in combinations(members, len(members) // 2 + 1):
                    needed = frozenset({"a", one.site, *some, *kept})
                    if self._is_clear(needed):
                        since[needed] = before.get(needed, now)
                        clear = min(clear, since[needed])
                if one.waits:
                    self.longest = max(self.longest, now - max(clear, one.progressed))
                    if self.longest > most:
                        self.verdict.fail(f"{one.name} waits for {most:.1f} s, for {one.waits}")

    def _is_clear(self, needed: Collection[str]) -> bool:
        """Whether these sites are there, and hear each other."""
        for site in needed:
            agent = self.agents[site]
            if agent.process is None or agent.process.missed is not None or not agent.is_open:
                return False
            if not agent.engine.is_well or agent.is_doubted:
                return False
        return not any(here in needed and there in needed for here, there in self.net.cut)
