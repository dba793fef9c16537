"""One trial: a fabric of sites that run what ships, publishers, readers and faults, from one seed.

Faults come for `ACTIVE` seconds; then all is healed, and the fabric must come to rest. It is judged
all the while (`skerry.sim.verdict`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from random import Random
from typing import Any

import msgspec

from skerry.client.client import Client
from skerry.config import ClientSettings
from skerry.errors import SkerryError
from skerry.fabric.losses import Lost
from skerry.log.append import Publisher
from skerry.model.topic import Ack, OnPartition
from skerry.sim.agent import Agent, stand_ins
from skerry.sim.engine import Engine, Network
from skerry.sim.loop import Loop, Process, running, virtual
from skerry.sim.verdict import TOPIC, Verdict

ACTIVE = 8.0
"""Seconds in which faults begin."""
QUIET = 60.0
"""Seconds after the last of them in which the fabric must have come to rest."""
STUCK = 20.0
"""Seconds without an acknowledgement, though nothing is in the way."""
LOOK = 0.25
LEVELS: tuple[Ack, ...] = ("quorum", "quorum", "home")
CUT_OFF: tuple[OnPartition, ...] = ("stop", "stop", "continue")
BUSY = (0.0, 0.004, 0.016)
CALM = (0.1, 0.3)
"""Seconds between two events of a publisher: for a while after each fault, and else."""


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


class Writer:
    """A publisher program."""

    def __init__(self, trial: Trial, name: str, site: str, level: Ack) -> None:
        self.name = name
        self.site = site
        self.level = level
        self.waits = 0
        self.is_done = False
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
        number = 0
        self.publisher = publisher = client.publisher(TOPIC, ack=self.level, timeout=100.0)
        async with publisher:
            while not trial.is_healed or number < 3:
                number += 1
                data = f"{self.name}:{number}".encode()
                future = await publisher.send(data)
                self.waits += 1
                future.add_done_callback(partial(self._told, data))
                is_busy = trial.loop.time() < trial.busy_until
                await asyncio.sleep(trial.random.choice(BUSY if is_busy else CALM))
            with contextlib.suppress(SkerryError):
                await publisher.flush()
        self.is_done = True

    def kill(self) -> None:
        """End it in its midst."""
        self.process.is_alive = False
        self.is_done, self.waits = True, 0
        for client in list(self._trial.net.engines[self.site].clients):
            if client.process is self.process:
                client.end(None)

    def _told(self, data: bytes, done: asyncio.Future[int]) -> None:
        self.waits -= 1
        entry = self.publisher._sending.entry if self.publisher is not None else None
        if done.cancelled() or done.exception() is not None or entry is None:
            self._trial.note(f"{data.decode()} failed: {done.exception()}")
            return
        self._trial.progressed = self._trial.loop.time()
        if self._trial.is_verbose:
            self._trial.note(f"{data.decode()} is acknowledged at {done.result()}")
        self._trial.verdict.on_acked(data, self.level, done.result(), entry.epoch)


class Reader:
    """A program that follows the topic."""

    def __init__(self, trial: Trial, site: str) -> None:
        self.site = site
        self.had: list[tuple[bytes, int]] = []
        """Events, and when they were stored: that tells two apart that say the same."""
        self._trial = trial

    async def run(self) -> None:
        """Read all, and check it as it comes."""
        trial = self._trial
        while True:
            client = Client([trial.agents[self.site].address("sdk")], ClientSettings(), "reader")
            with contextlib.suppress(SkerryError):
                await client.open()
                async with client.subscribe(TOPIC, from_index=len(self.had) + 1) as events:
                    async for event in events:
                        self._take(event.index, bytes(event.data), event.timestamp_ns)
            await client.close()
            await asyncio.sleep(0.5)

    def _take(self, index: int, data: bytes, stamp: int) -> None:
        fail, had, kept = self._trial.verdict.fail, self.had, self._trial.verdict.kept
        if index > len(had) + 1:
            fail(f"the reader at {self.site} gets {index} after {len(had)}")
        if index <= len(had) and had[index - 1] == (data, stamp):
            fail(f"the reader at {self.site} gets {data!r} at {index} again")
        if index <= len(had) and data != had[index - 1][0] == kept.get(index, (b"",))[0]:
            fail(f"the reader at {self.site} had {had[index - 1][0]!r} at {index}, which was "
                 f"acknowledged, and now gets {data!r}")  # fmt: skip
        had[index - 1 :] = [(data, stamp)]


class Trial(logging.Handler):
    """Runs one; what ships logs into its trace."""

    def __init__(self, seed: int, is_verbose: bool = False) -> None:
        super().__init__(logging.INFO if is_verbose else logging.WARNING)
        self.seed = seed
        self.random = Random(seed)
        self.is_verbose = is_verbose
        self.trace: list[str] = []
        self.agents: dict[str, Agent] = {}
        self.publishers: list[Writer] = []
        self.readers: list[Reader] = []
        self.is_healed = False
        self.busy_until = 0.0
        self.progressed = 0.0
        self.clear = 0.0
        """Since when all that publishers need is there."""
        self.verdict = Verdict(self)
        self._settled = 0.0

    def note(self, text: str, who: str = "") -> None:
        """Write down what happens."""
        self.trace.append(f"{self.loop.time():8.3f} {who:3} {text}")

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
            with virtual(loop, self.seed), stand_ins():
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
            loop.time(), self._settled,
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
        self.net.usual = random.choice((0.001, 0.005, 0.02, 0.05))
        members = random.sample(sites, random.choice((2, 3, 3, 3, len(sites))))
        await self.found(sites, members)
        for name in "pq"[: random.choice((1, 2))]:
            self.write(name, random.choice(sites), random.choice(LEVELS))
        self.read(random.choice(sites))
        faults = Faults(self)
        faults.plan()
        watch = self.loop.create_task(self._watch())
        await self._pause(ACTIVE + 1.0)
        self.note("HEAL")
        self.is_healed = True
        faults.heal()
        await self.rest()
        watch.cancel()

    async def found(self, sites: str, members: list[str]) -> None:
        """Have sites join a fabric, and make the topic; the first member is its home."""
        self.note(f"{len(sites)} sites, {self.net.usual} s apart; members {members}")
        await self.join(sites)
        work = self.make("a", members, self.random.choice(CUT_OFF))
        await self.spawn("maker", "a", work)

    async def join(self, sites: Sequence[str]) -> None:
        """Have sites join a fabric; the first of them coordinates."""
        net = self.net
        for site in sites:
            net.engines[site] = engine = Engine(net, site, net.random)
            engine.on_stored = self.verdict.on_stored
            self.agents[site] = Agent(net, engine, 0.8)
        net.tend()
        hub = self.agents[sites[0]]
        hub.found()
        await hub.start()
        for site in sites[1:]:
            await self.agents[site].start(hub.token())

    async def make(self, site: str, members: list[str], on_partition: OnPartition) -> None:
        """Make the topic, as a client of `site`."""
        address = self.agents[site].address("admin")
        async with Client([address], ClientSettings(), "maker") as maker:
            await maker.create_topic(
                TOPIC, home=members[0], replicas=len(members) - 1, spread=",".join(members[1:]),
                on_partition=on_partition,
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
        self.spawn("reader", site, self.readers[-1].run())

    async def _pause(self, seconds: float) -> None:
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
            await self._pause(LOOK)

    async def _watch(self) -> None:
        """See whether publishers get on while they can."""
        self.progressed = self.clear = self.loop.time()
        while True:
            await asyncio.sleep(LOOK)
            now = self.loop.time()
            if not self._is_clear() or not any(one.waits for one in self.publishers):
                self.clear = now
            if now - max(self.clear, self.progressed) > STUCK:
                why = [f"{one.name}: {one.waits}" for one in self.publishers]
                self.verdict.fail(f"nothing is acknowledged for {STUCK} s; {why} wait")

    def _is_clear(self) -> bool:
        """Whether the coordination site, all members, and the publishers' sites are there and
        connected."""
        needed = {"a", *self.verdict.entry.members, *(one.site for one in self.publishers)}
        return (
            all(self.agents[site].process is not None for site in needed)
            and not any(set(pair) <= needed for pair in self.net.cut)
            and all(self.agents[site].engine.is_up for site in needed)
        )


class Faults:
    """What goes wrong, and what people do meanwhile."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._random = trial.random
        self._net = trial.net
        self._undo: list[Callable[[], None]] = []
        self._has_cut_power = False

    def plan(self) -> None:
        """Spread some faults over the active time."""
        kinds: list[tuple[Callable[[], None], int]] = [
            (self.kill, 3), (self.kill_home, 4), (self.kill_engine, 3), (self.cut_power, 2),
            (self.cut_pair, 2), (self.cut_one_way, 2), (self.isolate, 2), (self.isolate_home, 2),
            (self.slow, 4), (self.stop, 2), (self.lag, 1), (self.move, 4), (self.suspect, 6),
            (self.kill_publisher, 2), (self.be_slow, 4),
        ]  # fmt: skip
        count = self._random.choice((2, 4, 6, 9, 14))
        calls, weights = [one for one, _ in kinds], [weight for _, weight in kinds]
        when = 0.0
        for call in self._random.choices(calls, weights, k=count):
            if not when or self._random.random() < 0.5:
                when = self._random.random() * ACTIVE
            else:  # soon after another
                when += self._random.choice((0.01, 0.1, 0.5)) * self._random.random()
            self._after(when, call)

    def heal(self) -> None:
        """Undo all."""
        while self._undo:
            self._undo.pop()()

    def _after(self, delay: float, call: Callable[[], None]) -> None:
        def ring() -> None:
            if not self._trial.is_healed:
                call()
                self._trial.busy_until = self._trial.loop.time() + 0.5

        self._trial.loop.call_later(delay, ring, context=self._trial.loop.world)

    def _for_a_while(self, undo: Callable[[], None]) -> None:
        def once() -> None:
            if undo in self._undo:
                self._undo.remove(undo)
                undo()

        self._undo.append(undo)
        self._after(
            self._random.choice((0.05, 0.5, 2.0, 6.0)) * (0.5 + self._random.random()), once
        )

    def _site(self) -> str:
        return self._random.choice(list(self._trial.agents))

    def _home(self) -> str:
        return self._trial.verdict.entry.home

    def _kill(self, site: str, power: bool = False) -> None:
        agent = self._trial.agents[site]
        if agent.process is None:
            return
        self._trial.note(f"FAULT kill {site}{' by a power cut' if power else ''}")
        agent.kill(power=power)

        def start() -> None:
            if agent.process is None:
                self._trial.note(f"start {site}")
                agent.start()

        self._for_a_while(start)

    def kill(self) -> None:
        """Any site."""
        self._kill(self._site())

    def kill_home(self) -> None:
        """The home."""
        self._kill(self._home())

    def kill_engine(self) -> None:
        """An engine alone; its agent starts it anew."""
        site = self._site()
        self._trial.note(f"FAULT kill the engine of {site}")
        self._trial.agents[site].kill_engine()

    def cut_power(self) -> None:
        """Once, and not at the coordination site: the log's newest stream loses some messages.
        (A gap between two segments nobody notices yet.)"""
        site = self._site()
        if self._has_cut_power or site == "a" or self._trial.agents[site].process is None:
            return
        self._has_cut_power = True
        self._kill(site, power=True)
        streams = self._net.engines[site].streams
        newest = max((name for name in streams if name.startswith("t~")), default="")
        count = self._random.choice((0, 1, 2, 5))
        if newest and count:
            self._trial.note(f"{newest} at {site} loses {count} of {streams[newest].last}")
            streams[newest].lose(count)
        self._trial.verdict.forgive()

    def _cut(self, pairs: list[tuple[str, str]]) -> None:
        self._trial.note(f"FAULT cut {', '.join(f'{a}→{b}' for a, b in pairs)}")
        for pair in pairs:
            self._net.set_cut(*pair, True)

        def mend() -> None:
            self._trial.note(f"mend {', '.join(f'{a}→{b}' for a, b in pairs)}")
            for pair in pairs:
                self._net.set_cut(*pair, False)

        self._for_a_while(mend)

    def cut_pair(self) -> None:
        """Two sites, both ways."""
        a, b = self._random.sample(list(self._trial.agents), 2)
        self._cut([(a, b), (b, a)])

    def cut_one_way(self) -> None:
        """Two sites, one way."""
        a, b = self._random.sample(list(self._trial.agents), 2)
        self._cut([(a, b)])

    def _isolate(self, site: str) -> None:
        others = [other for other in self._trial.agents if other != site]
        self._cut([pair for other in others for pair in ((site, other), (other, site))])

    def isolate(self) -> None:
        """Any site from all."""
        self._isolate(self._site())

    def isolate_home(self) -> None:
        """The home from all."""
        self._isolate(self._home())

    def slow(self) -> None:
        """A way takes long."""
        a, b = self._random.sample(list(self._trial.agents), 2)
        way = self._random.choice((0.05, 0.2, 0.5))
        self._trial.note(f"FAULT {a} to {b} takes {way} s")
        self._net.ways[a, b] = self._net.ways[b, a] = way

        def mend() -> None:
            self._net.ways.pop((a, b), None)
            self._net.ways.pop((b, a), None)

        self._for_a_while(mend)

    def stop(self) -> None:
        """An agent stands still."""
        agent = self._trial.agents[self._site()]
        process = agent.process
        if process is None or process.missed is not None:
            return
        self._trial.note(f"FAULT stop the agent of {agent.site}")
        self._trial.loop.stop_process(process)
        self._for_a_while(lambda: self._trial.loop.cont_process(process))

    def suspect(self) -> None:
        """The leader is told that nobody listens at the home, and later that somebody does."""
        home, leading = self._home(), self._trial.agents["a"]
        if home == "a" or leading.fabric is None or leading.process is None:
            return
        self._trial.note(f"FAULT the leader is told that {home} is lost")

        def tell(how: str) -> None:
            if leading.fabric is not None and leading.process is not None:
                leader = leading.fabric.leader
                assert leader is not None
                leading.process.context().run(leader.observe, Lost(home, "a", how))

        tell("refused")
        self._for_a_while(lambda: tell("heard"))

    def be_slow(self) -> None:
        """An engine answers its clients late."""
        engine = self._net.engines[self._site()]
        engine.slowness = self._random.choice((0.002, 0.01, 0.05))
        self._trial.note(f"FAULT {engine.site} answers {engine.slowness} s late")
        self._for_a_while(lambda: setattr(engine, "slowness", 0.0))

    def kill_publisher(self) -> None:
        """A publisher goes, with what it has not sent yet."""
        running = [one for one in self._trial.publishers if not one.is_done]
        if len(running) > 1:
            self._trial.note(f"FAULT kill publisher {running[0].name}")
            running[0].kill()

    def lag(self) -> None:
        """An engine stores late."""
        engine = self._net.engines[self._site()]
        engine.lag = self._random.choice((0.01, 0.1, 0.4))
        self._trial.note(f"FAULT {engine.site} stores {engine.lag} s late")
        self._for_a_while(lambda: setattr(engine, "lag", 0.0))

    def move(self) -> None:
        """Somebody moves the topic."""
        to, asked = self._site(), self._site()
        others = [site for site in self._trial.agents if site != to]
        replicas = None
        if self._random.random() < 0.3:
            replicas = self._random.sample(others, self._random.choice((1, 2, 2)))
        self._trial.note(f"FAULT move to {to}, replicas {replicas}, asked at {asked}")

        async def move() -> None:
            address = self._trial.agents[asked].address("admin")
            with contextlib.suppress(SkerryError):
                async with Client([address], ClientSettings(timeout=10.0), "mover") as client:
                    await client.move_topic(TOPIC, to, replicas=replicas)
                    self._trial.note(f"moved to {to}")

        self._trial.spawn("mover", asked, move())
