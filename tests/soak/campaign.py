"""The order of things: build a fabric, load it, hurt it, heal it, check it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

import skerry
from skerry.config import ClientSettings
from skerry.engine.address import find_address
from skerry.engine.jetstream import JetStream
from skerry.engine.process import free_port
from skerry.engine.wire import Connection
from skerry.errors import SkerryError
from skerry.log.segments import chain_of
from skerry.model.names import TAIL_PREFIX, stream_of
from skerry.model.topic import Topic
from skerry.testing.wan import Wan
from tests.soak import check
from tests.soak.check import Destroyed, Stored, Told
from tests.soak.judge import Judge
from tests.soak.plan import Fault, draw, draw_hard
from tests.soak.process import Disk, Network, Place, SiteProcess, end, until
from tests.soak.tail import Tail, ack_of, delivery_of

DELAY = 0.002
"""Seconds one way between sites: enough to be a network, short enough for a small machine."""
START = 40.0
CONVERGE = 60.0
RESUME = 45.0
"""Seconds to start, to converge, and for every publisher to go on once all is healed."""
CATCH_UP = 60.0
"""Seconds for readers to have everything in the end."""
REPLACE = 90.0
"""Seconds to strike a lost site and to have another in its place."""
LEVELS = ("quorum", "home", "outbox")
BURST_WINDOW = 1024
BURST_MOST = 20_000
"""A publisher at full rate: what it may have in flight, and how many events it sends."""
DISK_MB = 512
"""Of a site's own disk, and one more for each second of the campaign."""
SPARE = "spare"
"""The site that takes the place of a destroyed one."""
LOOK = 0.5
"""Seconds between two looks of the judge at what was written down."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a campaign is."""

    seed: int
    sites: int = 3
    faults: int = 100
    seconds: float = 120.0
    """Over so long the faults are spread."""
    wan: bool = True
    rate: float = 100.0
    """Events per second of each publisher."""
    hard: bool = True
    """Also faults that last, and of publishers, disks, distances, and a site lost for good."""
    keep: bool = False
    """Keep the folder also if all is well."""


class Report(msgspec.Struct, kw_only=True):
    """What came of it."""

    seed: int
    sites: int
    cuts: bool
    """Whether there was a network to cut."""
    faults: dict[str, int]
    skipped: int = 0
    moves: dict[str, int] = {}
    acknowledged: dict[str, int] = {}
    unknown: dict[str, int] = {}
    stored: dict[str, int] = {}
    longest_gap: dict[str, float] = {}
    received: dict[str, int] = {}
    repeated: dict[str, int] = {}
    judged: dict[str, int] = {}
    """What the judge counted while the campaign ran."""
    notes: list[str] = []
    violations: list[str] = []
    seconds: float = 0.0
    folder: str = ""


class Load(msgspec.Struct):
    """A process that publishes or subscribes."""

    name: str
    site: str
    module: str
    spec: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None
    is_burst: bool = False
    """Whether it publishes at full rate and ends before the campaign does."""

    @property
    def is_down(self) -> bool:
        """Whether it was killed."""
        return self.process is not None and self.process.poll() is not None


def topics_for(sites: int) -> dict[str, int]:
    """Each topic's number of replicas."""
    many = 4 if sites >= 5 else 2
    return {"alpha": 2, "beta": many, "gamma": 1}


class Campaign:
    """One campaign, in a folder of its own."""

    def __init__(self, options: Options, reason: str | None) -> None:
        self.options = options
        self.names = ["hub", *(f"site{n}" for n in range(1, options.sites))]
        self.topics = topics_for(options.sites)
        self.has_network = reason is None and options.wan
        self.root = Path(tempfile.mkdtemp(prefix=f"skerry-soak-{options.seed}-"))
        self.logs = self.root / "logs"
        self.logs.mkdir()
        self.report = Report(
            seed=options.seed, sites=options.sites, cuts=self.has_network, faults={}
        )
        if not self.has_network:
            why = reason or "asked for by --no-wan"
            self.report.notes.append(f"on loopback, without cuts: {why}")
        self._began = time.monotonic()
        self._log = (self.root / "campaign.log").open("w")
        self._network: Network
        self._sites: dict[str, SiteProcess] = {}
        self._places: dict[str, Place] = {}
        self._loads: list[Load] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._done: Counter[str] = Counter()
        self._moves: Counter[str] = Counter()
        self._judge = Judge()
        self._tails: dict[Path, Tail] = {}
        self._disks: dict[str, Disk] = {}
        self._active: list[Fault] = []
        self._killing: set[str] = set()
        """Publishers that are being killed and started anew."""
        self._moving: set[str] = set()
        """Those of a destroyed site, until they are started at the one in its place."""
        self._now: dict[str, str] = {}
        """The site that replaced a destroyed one."""
        self._destroyed: Destroyed | None = None
        self._replacing: asyncio.Task[None] | None = None
        reason_disks = Disk.unavailable() if options.hard else "not asked for"
        self._can_fill = reason_disks is None
        if options.hard and not self._can_fill:
            self.report.notes.append(f"no disk is full: {reason_disks}")

    def note(self, text: str) -> None:
        """Write down what happens, with the time as the sites' logs write it."""
        stamp = time.strftime("%H:%M:%S") + f",{int(time.time() * 1000) % 1000:03d}"
        self._log.write(f"{stamp} {time.monotonic() - self._began:7.2f}  {text}\n")
        self._log.flush()

    async def run(self) -> Report:
        """All of it. Never raises for what the product does wrong: that is in the report."""
        try:
            async with contextlib.AsyncExitStack() as stack:
                wan = None
                if self.has_network:
                    wan = await stack.enter_async_context(Wan([*self.names, SPARE], delay=DELAY))
                self._network = Network(wan)
                stack.callback(self._unmount)
                stack.push_async_callback(self._stop)
                await self._build()
                self._start_load()
                watching = asyncio.create_task(self._watch())
                try:
                    await self._hurt()
                    await self._judge_all()
                finally:
                    watching.cancel()
                    [failed] = await asyncio.gather(watching, return_exceptions=True)
                if isinstance(failed, Exception):
                    raise failed
        finally:
            self.report.seconds = round(time.monotonic() - self._began, 1)
            self.report.faults = dict(sorted((+self._done).items()))
            self.report.moves = dict(sorted(self._moves.items()))
            self.report.judged = dict(sorted(self._judge.counts.items()))
            self._log.close()
            if self.report.violations or self.options.keep:
                self.report.folder = str(self.root)
            else:
                shutil.rmtree(self.root, ignore_errors=True)
        return self.report

    # Building

    async def _build(self) -> None:
        first = self.names[0]
        for name in self.names:
            await self._add(name, None if name == first else await self._token())
            self._must(await until("start of sites", START, self._unready))
        self._must(await until("links of sites", START, self._unlinked))
        for number, (topic, replicas) in enumerate(self.topics.items()):
            home = self.names[number % len(self.names)]
            await self._places[first].run(self._create(topic, home, replicas))
        self.note("built")

    async def _add(self, name: str, token: str | None) -> None:
        """Start a new site, which joins by its token; the first begins the fabric."""
        if name not in self._places:
            self._places[name] = Place(self._network, name)
        if self._can_fill and token is not None:
            disk = self._disks[name] = Disk(self.root / name, DISK_MB + int(self.options.seconds))
            await asyncio.to_thread(disk.mount)
        address = self._network.address(name)
        self._sites[name] = site = SiteProcess(
            self._network,
            {
                "site": name,
                "data": str(self.root / name),
                "host": address,
                "port": 4222 if self.has_network else free_port(address),
                "link_port": 7422 if self.has_network else free_port(address),
                "tier": "hub" if token is None else "edge",
                "token": token,
                "begins": token is None,
                "ready": str(self.root / f"{name}.ready"),
            },
            self.logs,
            self.note,
        )
        site.start()

    def _unmount(self) -> None:
        for disk in self._disks.values():
            disk.unmount(keep=bool(self.report.violations or self.options.keep))

    def _must(self, hangs: str) -> None:
        if hangs:
            raise RuntimeError(f"{hangs}; see {self.root}")

    async def _unready(self) -> str:
        return ", ".join(name for name, site in self._sites.items() if not site.is_ready)

    async def _unlinked(self) -> str:
        async def look() -> str:
            async with self._admin(self.names[0]) as admin:
                return ", ".join(site.site for site in await admin.sites() if not site.up)

        return await self._places[self.names[0]].run(look())

    async def _token(self) -> str:
        async def ask() -> str:
            async with self._admin(self.names[0]) as admin:
                return await admin.join_token()

        return await self._places[self.names[0]].run(ask())

    def _admin(self, site: str, timeout: float = 20.0) -> skerry.Client:
        return skerry.connect(self._sites[site].data, user="admin", timeout=timeout)

    async def _create(self, topic: str, home: str, replicas: int) -> None:
        async with self._admin(self.names[0]) as admin:
            await admin.create_topic(topic, home=home, replicas=replicas)

    # Load

    def _start_load(self) -> None:
        rng = random.Random(f"load {self.options.seed}")
        data = {name: self._connection(name) for name in self.names}
        for topic in self.topics:
            for level in LEVELS:
                site, other = rng.sample(self.names, 2)
                name = f"{topic}-{level}"
                spec = {
                    "name": name,
                    "topic": topic,
                    "level": level,
                    "rate": self.options.rate,
                    "incarnation": 0,
                    "sites": [site, other],
                    "targets": [data[site], data[other]],
                    "out": str(self.root / f"{name}.told"),
                }
                self._loads.append(Load(name, site, "publisher", spec))
        for number, site in enumerate(self.names):
            other = rng.choice([name for name in self.names if name != site])
            name = f"durable-{site}"
            spec = {
                "name": name,
                "topics": list(self.topics),
                # Some stay at their site, some go to another when their own is away.
                "targets": [data[site], data[other]] if number % 2 else [data[site]],
                "out": str(self.root / f"{name}.got"),
                "live": str(self.root / f"live-{site}.got"),
            }
            self._loads.append(Load(name, site, "subscriber", spec))
        for load in self._loads:
            self._start(load)

    def _connection(self, name: str) -> str:
        """The connection file of a site as its clients have it: a copy, which outlives the site."""
        copy = self.root / f"{name}.json"
        if not copy.exists():
            shutil.copyfile(self._sites[name].data / "credentials" / "sdk.json", copy)
        return str(copy)

    def _start(self, load: Load) -> None:
        self.note(f"{load.module} {load.name} at {load.site}: {load.spec['targets']}")
        load.process = self._network.start(
            load.site, load.module, load.spec, self.logs / f"{load.name}.log"
        )

    def _start_anew(self, load: Load) -> None:
        """Start a publisher or subscriber that was killed."""
        if load.module == "publisher":
            load.spec["incarnation"] += 1
        self._start(load)

    def _of(self, module: str) -> list[Load]:
        return [load for load in self._loads if load.module == module]

    def _told(self) -> dict[str, Told]:
        found = {}
        for load in self._of("publisher"):
            told = check.read_told(Path(load.spec["out"]), load.spec["topic"], load.spec["level"])
            told.sites = load.spec["sites"]
            found[load.name] = told
        return found

    # The judge

    async def _watch(self) -> None:
        """Tell the judge what is written down, and tell of what it finds, until cancelled."""
        while True:
            self._look()
            await asyncio.sleep(LOOK)

    def _look(self) -> None:
        for load in self._loads:
            if load.module == "publisher":
                for line in self._new(load.spec["out"]):
                    if ack := ack_of(line, load.spec["topic"], load.spec["level"]):
                        self._judge.acknowledged(ack)
            else:
                for kind in ("out", "live"):
                    reader = Path(load.spec[kind]).stem
                    for line in self._new(load.spec[kind]):
                        self._judge.delivered(delivery_of(line, reader))
        self._tell()

    def _new(self, path: str) -> list[str]:
        return self._tails.setdefault(Path(path), Tail(Path(path))).lines()

    def _tell(self) -> None:
        """Take over what the judge found since."""
        for violation in self._judge.violations:
            self._complain(violation)
        self._judge.violations.clear()

    # Harm

    def _plan(self) -> list[Fault]:
        options = self.options
        hard: list[Fault] = []
        if options.hard:
            publishers = [load.name for load in self._of("publisher")]
            hard = draw_hard(
                options.seed, self.names, publishers, options.seconds,
                self.has_network, self._can_fill,
            )  # fmt: skip
        usual = draw(
            options.seed, self.names, list(self.topics),
            options.faults, options.seconds, self.has_network, hard,
        )  # fmt: skip
        return sorted([*usual, *hard], key=lambda fault: fault.at)

    async def _hurt(self) -> None:
        self._complain(await until("first events", 30, self._silent_since(0.0)))
        loop = asyncio.get_running_loop()
        began = loop.time()
        for fault in self._plan():
            await asyncio.sleep(max(began + fault.at - loop.time(), 0))
            task = asyncio.create_task(self._do(fault))
            if fault.kind == "destroy":
                self._replacing = task  # is never left halfway
                continue
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(self._ended)
        await asyncio.sleep(max(began + self.options.seconds - loop.time(), 0))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._complain(f"the campaign itself failed: {type(error).__name__}: {error}")

    async def _do(self, fault: Fault) -> None:
        self.note(str(fault))
        self._done[fault.kind] += 1
        self._active.append(fault)
        try:
            if not await self._harm(fault):  # there is nothing to hurt at this moment
                self._done[fault.kind] -= 1
                self.report.skipped += 1
                self.note(f"skipped: {fault}")
        finally:
            self._active.remove(fault)

    async def _harm(self, fault: Fault) -> bool:
        name = self._now.get(fault.site, fault.site)
        if name not in self._sites:  # destroyed, and not replaced yet
            return False
        site = self._sites[name]
        wan = self._network.wan
        match fault.kind:
            case "kill-publisher":
                return await self._kill_publisher(fault)
            case "burst":
                return await self._burst(fault)
            case "full-disk":
                return await self._fill(name, fault.seconds)
            case "far":
                return await self._far(name, fault)
            case "destroy":
                return await self._destroy(fault.site)
            case "kill-engine":
                return site.signal("engine", signal.SIGKILL) is not None
            case "kill-agent":
                return site.kill(fault.seconds)
            case "stop-engine" | "stop-agent":
                which = fault.kind.removeprefix("stop-")
                pid = site.signal(which, signal.SIGSTOP)
                await asyncio.sleep(fault.seconds)
                if pid is not None and pid == (site.engine if which == "engine" else site.agent):
                    site.signal(which, signal.SIGCONT)
                return pid is not None
            case "cut" | "isolate":
                assert wan is not None
                other = self._now.get(fault.other, fault.other) or None
                if other == name:
                    return False
                await wan.cut(name, other)
                await asyncio.sleep(fault.seconds)
                await wan.heal(name, other)
                self.note(f"healed {name} {fault.other}")
                return True
            case _:
                return await self._ask(fault)

    async def _kill_publisher(self, fault: Fault) -> bool:
        load = next(load for load in self._loads if load.name == fault.other)
        if load.process is None or load.is_down:
            return False
        self._killing.add(load.name)
        load.process.kill()
        await asyncio.sleep(fault.seconds)
        if load.name not in self._moving:
            self._start_anew(load)
            self._killing.discard(load.name)
        return True

    async def _burst(self, fault: Fault) -> bool:
        """A publisher at full rate, for a while."""
        rng = random.Random(f"burst {self.options.seed} {fault.at}")
        topic, level = rng.choice(list(self.topics)), rng.choice(LEVELS)
        site = rng.choice([name for name in self.names if self._sites[name].is_ready] or [""])
        if not site:
            return False
        name = f"burst{self._done['burst']}-{topic}-{level}"
        spec = {
            "name": name, "topic": topic, "level": level, "rate": 0, "incarnation": 0,
            "window": BURST_WINDOW, "most": BURST_MOST, "sites": [site],
            "targets": [self._connection(site)], "out": str(self.root / f"{name}.told"),
        }  # fmt: skip
        load = Load(name, site, "publisher", spec, is_burst=True)
        self._loads.append(load)
        self._start(load)
        await asyncio.sleep(fault.seconds)
        assert load.process is not None
        load.process.terminate()
        return True

    async def _fill(self, name: str, seconds: float) -> bool:
        disk, site = self._disks.get(name), self._sites[name]
        if disk is None or not site.is_ready:
            return False
        site.is_full = True
        await asyncio.to_thread(disk.fill)
        try:
            await asyncio.sleep(seconds)
        finally:
            disk.make_room()
            self.note(f"room again at {name}")
        await asyncio.sleep(5.0)  # for a start that failed to be tried again
        site.is_full = False
        return True

    async def _far(self, name: str, fault: Fault) -> bool:
        assert self._network.wan is not None
        others = [other for other in self.names if other != name]
        await self._network.wan.move(name, dict.fromkeys(others, fault.delay))
        await asyncio.sleep(fault.seconds)
        await self._network.wan.move(name, dict.fromkeys(others, DELAY))
        self.note(f"{name} is near again")
        return True

    async def _destroy(self, name: str) -> bool:
        """Lose a site for good, have a new one in its place, and strike the lost one."""
        loads = [load for load in self._loads if load.site == name and not load.is_burst]
        self._moving = {load.name for load in loads}
        site = self._sites.pop(name)
        self._destroyed = Destroyed(name, await site.destroy())
        for failure in site.failures:
            self._complain(failure)
        for load in self._loads:
            if load.site == name and load.process is not None and not load.is_down:
                load.process.kill()
        self._now[name] = SPARE
        self.names.remove(name)
        if (disk := self._disks.pop(name, None)) is not None:
            disk.unmount()
        self.note(f"destroyed {name}")
        first = self.names[0]

        async def strike() -> str:
            async def work() -> str:
                try:
                    async with self._admin(first, 10) as admin:
                        if name in {site.site for site in await admin.sites()}:
                            await admin.drain_site(name)
                            await admin.remove_site(name)
                except (SkerryError, TimeoutError) as error:
                    return f"{type(error).__name__}: {error}"
                return ""

            return await self._places[first].run(work())

        async def join() -> str:
            try:
                await self._add(SPARE, await self._token())
            except (SkerryError, TimeoutError) as error:
                return f"{type(error).__name__}: {error}"
            return ""

        # The new one comes first: what the lost one had needs a place to go to.
        self._complain(await until(f"a token for {SPARE}", REPLACE, join, 1.0))
        self.names.append(SPARE)
        self._complain(await until(f"start of {SPARE}", START, self._unready))
        self._complain(await until(f"striking {name}", REPLACE, strike, 1.0))
        self.note(f"{SPARE} is in the place of {name}")
        old, new = self._connection(name), self._connection(SPARE)
        for load in loads:
            load.site = SPARE
            load.spec["targets"] = [new if t == old else t for t in load.spec["targets"]]
            load.spec["sites"] = [*load.spec.get("sites", []), SPARE]
            self._start_anew(load)
        self._moving.clear()
        return True

    async def _ask(self, fault: Fault) -> bool:
        """Have a topic moved, or a site drained."""
        there = [name for name, site in self._sites.items() if site.is_ready]
        if not there:
            return False

        async def ask(via: str) -> str:
            try:
                async with asyncio.timeout(30), self._admin(via, 10) as admin:
                    if fault.kind == "drain":
                        site = self._now.get(fault.site, fault.site)
                        return f"drained: {await admin.drain_site(site)}"
                    to = self._now.get(fault.site, fault.site)
                    entry = await admin.move_topic(fault.other, to)
                    return f"moved to {entry.home} in epoch {entry.epoch}"
            except (SkerryError, TimeoutError) as error:
                return f"failed: {type(error).__name__}: {error}"

        outcome = await self._places[there[0]].run(ask(there[0]))
        self.note(f"{fault.kind} {fault.site} {fault.other} via {there[0]}: {outcome}")
        self._moves[outcome.split()[0].rstrip(":")] += 1
        return True

    # Judgement

    def _complain(self, what: str) -> None:
        """Tell of a violation at once, with what was going on."""
        if what:
            under_way = ", ".join(str(fault).strip() for fault in self._active) or "nothing"
            text = (
                f"{what} [told at {time.monotonic() - self._began:.1f} s; under way: {under_way}]"
            )
            self.note(f"VIOLATION {text}")
            print(f"VIOLATION {text}", file=sys.stderr, flush=True)
            self.report.violations.append(text)

    async def _judge_all(self) -> None:
        await self._heal()
        self._complain(await until("restart of sites", START, self._unready))
        for site in self._sites.values():
            site.is_full = False
        self._complain(
            await until("publishers go on", RESUME, self._silent_since(time.time()), 0.5)
        )
        await self._end_publishers()
        hangs = await until("convergence", CONVERGE, self._unsettled, 0.5)
        self._complain(hangs)
        told = self._told()
        self._count(told)
        self._look()
        if not self._judge.counts["with their epoch"]:
            self._complain("no acknowledgement came with its epoch: the judge saw no homes")
        for site in self._sites.values():
            self.report.violations += site.failures
        try:
            await self._check(told)
        except (SkerryError, TimeoutError) as error:
            self._complain(f"the logs cannot be read: {type(error).__name__}: {error}")

    async def _heal(self) -> None:
        self.note("healing")
        if self._replacing is not None:
            await self._replacing
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if (wan := self._network.wan) is not None:
            for site in self.names:
                others = [name for name in self.names if name != site]
                for other in (None, *others):
                    await wan.heal(site, other)
                await wan.move(site, dict.fromkeys(others, DELAY))
        for process in self._sites.values():
            process.thaw()
        for load in self._loads:
            if load.name in self._killing and load.is_down:
                self._start_anew(load)
        self._killing.clear()

    def _silent_since(self, moment: float) -> Any:
        async def look() -> str:
            silent = []
            for load in self._of("publisher"):
                if load.is_burst:
                    continue
                told = check.read_told(Path(load.spec["out"]), "", "")
                if not told.acknowledged or told.acknowledged[-1].time <= moment:
                    silent.append(load.name)
            return ", ".join(silent)

        return look

    async def _end_publishers(self) -> None:
        self.note("ending publishers")

        async def stop(load: Load) -> None:
            assert load.process is not None
            if (code := load.process.poll()) is not None:
                if not load.is_burst:  # its site may have been destroyed, and it with it
                    self._complain(f"publisher {load.name} ended by itself with code {code}")
            elif not await end(load.process, 45):
                self._complain(f"publisher {load.name} did not end within 45 s")

        await asyncio.gather(*(stop(load) for load in self._of("publisher")))

    async def _unsettled(self) -> str:
        """What keeps the fabric from being settled; raw, as the engines tell it."""
        try:
            async with asyncio.timeout(15):
                entries = await self._places[self.names[0]].run(self._entries())
                streams = {
                    name: await self._places[name].run(self._streams(name)) for name in self.names
                }
        except (SkerryError, TimeoutError) as error:
            return f"{type(error).__name__}: {error}"
        hangs = []
        for topic, entry in entries.items():
            kinds = {site: _kind(_active(topic, found)) for site, found in streams.items()}
            members = [entry.home, *entry.replicas]
            homes = [site for site, (kind, _) in kinds.items() if kind in ("home", "frozen")]
            lasts = {site: kinds.get(site, ("destroyed", -1)) for site in members}
            if (
                homes != [entry.home]
                or lasts[entry.home][0] != "home"
                or len({last for _, last in lasts.values()}) != 1
            ):
                hangs.append(f"{topic} epoch {entry.epoch} home {entry.home}: {kinds}")
        for site, found in streams.items():
            hangs += [f"{site} has {name}" for name in found if name.startswith(TAIL_PREFIX)]
            if waiting := found.get("outbox", {}).get("state", {}).get("messages", 0):
                hangs.append(f"outbox of {site} holds {waiting}")
        return "; ".join(hangs)

    async def _entries(self) -> dict[str, Topic]:
        async with self._admin(self.names[0], 5) as admin:
            return {topic.name: topic for topic in await admin.topics()}

    async def _streams(self, site: str) -> dict[str, dict[str, Any]]:
        async with self._raw(site) as jetstream:
            return {info["config"]["name"]: info for info in await jetstream.streams()}

    @contextlib.asynccontextmanager
    async def _raw(self, site: str) -> AsyncIterator[JetStream]:
        address = find_address(self._sites[site].data, "admin")
        connection = await Connection.open([address], ClientSettings(timeout=5), "soak")
        try:
            yield JetStream(connection)
        finally:
            await connection.close()

    async def _read(self, site: str, topic: str) -> list[Stored]:
        async with self._admin(site) as client, asyncio.timeout(60):
            return [
                Stored(event.index, str(event.id), event.data.decode())
                async for event in client.read(topic)
            ]

    def _count(self, told: dict[str, Told]) -> None:
        report = self.report
        for name, one in told.items():
            report.acknowledged.setdefault(one.level, 0)
            report.acknowledged[one.level] += len(one.acknowledged)
            report.unknown.setdefault(one.level, 0)
            report.unknown[one.level] += len(one.unknown)
            report.longest_gap[name] = round(one.longest_gap(), 2)

    async def _check(self, told: dict[str, Told]) -> None:
        entries = await self._places[self.names[0]].run(self._entries())
        logs: dict[str, list[Stored]] = {}
        for topic, entry in entries.items():
            copies = {
                site: await self._places[site].run(self._read(site, topic))
                for site in (entry.home, *entry.replicas)
                if site in self._sites
            }
            if entry.home not in copies:
                self._complain(f"{topic} has its home at {entry.home}, which was destroyed")
                continue
            logs[topic] = copies[entry.home]
            self.report.stored[topic] = len(logs[topic])
            found = check.check_copies(topic, entry.home, copies)
            gone = []
            if self._destroyed is not None:
                gone = check.excused(topic, logs[topic], list(told.values()), self._destroyed)
            if gone:
                site = self._destroyed.site if self._destroyed else ""
                self.report.notes.append(f"{len(gone)} events of {topic} went with {site}, as told")
            found += check.check_log(topic, logs[topic], list(told.values()), gone)
            for violation in found:
                self._complain(violation)
        await self._check_subscribers(logs)

    async def _check_subscribers(self, logs: dict[str, list[Stored]]) -> None:
        def missing() -> list[str]:
            found = []
            for load in self._of("subscriber"):
                received = check.read_received(Path(load.spec["out"]))
                for topic, events in logs.items():
                    found += check.check_received(load.name, topic, events, received[topic])
            return found

        live = [Path(load.spec["live"]).stem for load in self._of("subscriber")]

        async def look() -> str:
            self._look()
            behind = [
                text
                for reader in live
                for topic, events in logs.items()
                if (text := self._judge.lacks(reader, topic, events))
            ]
            return "; ".join(missing() + behind)

        if await until("subscribers", CATCH_UP, look, 0.5):
            for violation in missing():
                self._complain(violation)
            for reader in live:
                self._judge.ended(reader, logs)
            self._tell()
        for load in self._of("subscriber"):
            assert load.process is not None
            if (code := load.process.poll()) is not None:
                self._complain(f"subscriber {load.name} ended by itself with code {code}")
            received = check.read_received(Path(load.spec["out"]))
            self.report.received[load.name] = sum(map(len, received.values()))
            self.report.repeated[load.name] = sum(map(check.repeats, received.values()))
            for topic, events in logs.items():
                if extra := check.check_phantoms(load.name, topic, events, received[topic]):
                    self.report.notes.append(extra)

    async def _stop(self) -> None:
        self.note("stopping")
        tasks = [*self._tasks, *([self._replacing] if self._replacing else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        processes = [load.process for load in self._loads if load.process is not None]
        await asyncio.gather(*(end(process, 5) for process in processes))
        await asyncio.gather(*(site.stop() for site in self._sites.values()))
        for place in self._places.values():
            place.close()


def _active(topic: str, found: dict[str, Any]) -> dict[str, Any] | None:
    """The active segment of a log."""
    signpost = found.get(stream_of(topic))
    return None if signpost is None else found.get(chain_of(topic, signpost)[-1].stream)


def _kind(info: dict[str, Any] | None) -> tuple[str, int]:
    if info is None:
        return "none", 0
    config, last = info["config"], int(info["state"]["last_seq"])
    if config.get("mirror"):
        return "copy", last
    subject = str((config.get("subjects") or [""])[0])
    return ("frozen" if subject.startswith("_frozen.") else "home"), last
