"""The controller: folds the records of all sites, plans, and has plans carried out.

It runs beside the leader. It keeps nothing that matters in memory only: settings and pins are in
the store, records and results in topics, and after a restart it reads the newest of them. A second
controller, or one that was held up, does no harm: every move is a compare-and-set on the topic's
epoch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from typing import Any

import msgspec

from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.engine.wire import Connection
from skerry.errors import BadSetting, SkerryError, UnknownTopic
from skerry.fabric.fabric import Fabric
from skerry.fabric.leader import Leader
from skerry.fabric.tasks import Tasks
from skerry.log.append import Publisher
from skerry.log.read import Reader
from skerry.log.route import Routes
from skerry.log.topics import unknown_topic
from skerry.model.control import CreateRequest, MoveRequest, TopicName
from skerry.model.event import Event
from skerry.model.fabric import SiteRecord as KnownSite
from skerry.model.fabric import TopicEntry as Entry
from skerry.model.fabric import site_key
from skerry.model.names import topic_of_stream
from skerry.model.placement import (
    MOVES,
    PLANS,
    RECORDS,
    SETTINGS_KEY,
    Explanation,
    Move,
    MoveReport,
    PinRequest,
    PlacementSettings,
    PlacementStatus,
    PlanAnswer,
    PlanRecord,
    SetRequest,
    pin_key,
)
from skerry.model.records import read
from skerry.placement import explain
from skerry.placement.about import explained, site_loads
from skerry.placement.decide import CONFIRM, Standing, as_entries, decision, policy_settings
from skerry.placement.executor import Decision, Executor
from skerry.placement.monitor import STALE, Groups, Monitor, whole_tables
from skerry.placement.policy import Plan, plan
from skerry.placement.records import unpack
from skerry.placement.settings import PolicySettings
from skerry.placement.tables import Sites, Topics

log = logging.getLogger("skerry.placement")

KEPT = 3600.0
"""Seconds that records, results and plans are kept."""
GATHER = 0.05
"""Seconds for which records that come together are gathered."""
SHARE = 0.2
"""The part of the time that planning may take: with many topics, and records of many sites that
come all the time, plans are made less often."""
FIRST_WAIT = 8.0
"""Seconds after its start for which it waits for the records of all sites that are there."""
AGAIN = 0.5
"""Seconds before a topic that could not be followed is tried again."""
RESULTS = 50


class Known(msgspec.Struct, frozen=True):
    """All that a plan is made of."""

    topics: Topics
    sites: Sites
    groups: Groups
    settings: PolicySettings
    now: float


class Controller:
    """Placement for the whole fabric, at the site that leads."""

    def __init__(self, part: Fabric, leader: Leader, connection: Connection) -> None:
        self.monitor = Monitor()
        self.record_bytes: dict[str, int] = {}
        self.executor = Executor(self._move, self._done)
        self.results: deque[MoveReport] = deque(maxlen=RESULTS)
        self._part = part
        self._store = part.store
        self._leader = leader
        self._connection = connection
        jetstream = JetStream(connection)
        self._routes = Routes(jetstream)
        self._reader = Reader(jetstream, self._routes)
        self._moved_at: dict[str, float] = {}
        self._homes: dict[str, str] = {}
        self._began = connection.now()
        self._standing = Standing()
        self._fresh = asyncio.Event()
        self._spark: list[Move] = []
        self._results: Publisher | None = None
        self._making = asyncio.Lock()
        self._tasks = Tasks("placement")

    # Life

    def start(self) -> None:
        """Follow records and results; plan in mode `auto`. The topics must be there."""
        self._homes = {name: entry.home for name, entry in self._leader.entries().items()}
        self._store.watch("topic.", self._on_entry)
        self._store.watch("site.", self._on_site)
        self._store.watch(SETTINGS_KEY, lambda key, value: self._fresh.set())
        for topic, take in (
            (RECORDS, self._on_record), (MOVES, self._on_result), (PLANS, self._on_plan)
        ):  # fmt: skip
            self._tasks.spawn(self._follow(topic, take))
        self._tasks.spawn(self._run())

    async def close(self) -> None:
        """Stop; moves under way are given up."""
        await self._tasks.close()
        await self.executor.close()
        if self._results is not None:
            self._results.close()

    @property
    def settings(self) -> PlacementSettings:
        """As the store has them."""
        return self._store.get(SETTINGS_KEY, PlacementSettings) or PlacementSettings()

    def _now(self) -> float:
        return self._connection.now()

    # What comes in

    async def _follow(self, topic: str, take: Any) -> None:
        """Events of a topic, those of the last hour for results, and of the last periods for what
        is soon stale."""
        while True:
            with contextlib.suppress(SkerryError, Down):
                past = KEPT if topic == MOVES else STALE * self.settings.period
                index = await self._first_since(topic, time.time() - past)
                async with await self._reader.subscribe(topic, from_index=index) as events:
                    async for event in events:
                        take(event)
            await asyncio.sleep(AGAIN)

    async def _first_since(self, topic: str, when: float) -> int:
        """The index of the first event that is not older, or of the next one."""
        _, first, latest = await self._reader.bounds(topic)
        low, high = first, latest + 1
        while low < high:
            middle = (low + high) // 2
            with contextlib.suppress(SkerryError):
                if (await self._reader.get(topic, middle)).timestamp_ns / 1e9 >= when:
                    high = middle
                    continue
            low = middle + 1
        return low

    def _arrived(self, event: Event) -> float:
        """When an event was stored here, by the event loop's clock."""
        age = time.time() - event.timestamp_ns / 1e9
        return self._now() - min(max(age, 0.0), KEPT)

    def _on_record(self, event: Event) -> None:
        try:
            record = unpack(event.data)
            if event.topic != f"{RECORDS}/{record.site}":
                raise BadSetting(f"{event.topic} tells of {record.site}")
        except BadSetting as error:
            self.monitor.fates["refused"] += 1
            log.warning("a record was refused: %s", error.what)
            return
        if self._store.get(site_key(record.site), KnownSite) is None:
            self.monitor.fates["refused"] += 1  # of a site that was removed
            return
        if self.monitor.fold(record, self._arrived(event)) == "taken":
            self.record_bytes[record.site] = len(event.data)
            self._fresh.set()

    def _on_result(self, event: Event) -> None:
        """A result, ours or another controller's, or of before a restart."""
        report = read(event.data, MoveReport, f"{event.topic} #{event.index}")
        if report is None or report.outcome == "dropped" or report in self.results:  # it was ours
            return
        self.results.appendleft(report)
        self._note(report, self._arrived(event))

    def _on_plan(self, event: Event) -> None:
        """A plan of Spark's; the newest counts."""
        plan = read(event.data, PlanRecord, f"{event.topic} #{event.index}")
        if plan is not None:
            self._spark = plan.moves
            self._fresh.set()

    def _on_entry(self, key: str, value: bytes | None) -> None:
        """Whoever moved a topic: for a while it stays."""
        name = topic_of_stream(key.removeprefix("topic."))
        if name is None:
            return
        if value is None:
            self._homes.pop(name, None)
            self._moved_at.pop(name, None)
            return
        entry = self._store.get(key, Entry)
        if entry is None:
            return
        home = entry.home
        if self._homes.get(name, home) != home:
            self._moved_at[name] = self._now()
        self._homes[name] = home

    def _on_site(self, key: str, value: bytes | None) -> None:
        if value is None:
            self.monitor.forget(key.removeprefix("site."))
            self.record_bytes.pop(key.removeprefix("site."), None)

    # Plans

    def known(self) -> Known:
        """The tables as of now."""
        settings, now = self.settings, self._now()
        policy = policy_settings(settings)
        pinned = {name for stream in self._store.keys("pin.") if (name := topic_of_stream(stream))}
        entries = as_entries(
            self._leader.entries().values(), pinned, self._moved_at, self.executor.moving
        )
        topics, sites, groups = whole_tables(self.monitor, entries, now, STALE * settings.period)
        for row, name in enumerate(sites.names.tolist()):
            record = self._store.get(site_key(name), KnownSite)
            sites.up[row] &= record is not None and self._leader.is_there(name)
            sites.draining[row] |= record is not None and record.draining
        return Known(topics, sites, groups, policy, now)

    async def plan(self) -> PlanAnswer:
        """What would be done now."""
        await self._ready()
        known = self.known()
        made = await self._made(known)
        return PlanAnswer(
            mode=self.settings.mode,
            moves=list(explain.moves(made, known.topics, known.sites, known.settings)),
            stays=list(explain.stays(made, known.topics, known.sites, known.settings, known.now)),
            topics=len(known.topics),
            reporting=[str(name) for name in known.sites.names[known.sites.up]],
            silent=sorted(set(self._leader.sites()) - self._reporting(known)),
        )

    async def _made(self, known: Known) -> Plan:
        return await asyncio.to_thread(plan, known.topics, known.sites, known.settings, known.now)

    @staticmethod
    def _reporting(known: Known) -> set[str]:
        return {str(name) for name in known.sites.names[known.sites.up]}

    async def _ready(self) -> None:
        """Wait, at first, until every site that is there has reported."""
        while self._now() < self._began + FIRST_WAIT:
            there = {site for site in self._leader.sites() if self._leader.is_there(site)}
            if there <= self.monitor.newest.keys():
                return
            await asyncio.sleep(0.05)

    async def apply(self) -> list[MoveReport]:
        """Plan, and carry it out."""
        answer = await self.plan()
        futures = self.executor.decide(self._decisions(answer.moves, "apply"))
        return list(await asyncio.gather(*futures))

    def _decisions(self, moves: list[Move], by: str) -> list[Decision]:
        entries = self._leader.entries()
        found = (decision(m, entries[m.topic], by) for m in moves if m.topic in entries)
        return [one for one in found if one is not None]

    async def _run(self) -> None:
        """In mode `auto`, and in mode `spark`: plan whenever something is new, and while decisions
        have yet to stand."""
        took = 0.0
        while True:
            step = max(self.settings.period * CONFIRM, GATHER)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(step):
                    await self._fresh.wait()
            await asyncio.sleep(max(GATHER, took / SHARE))
            settings = self.settings
            if not self._fresh.is_set() and not self._standing.waits:
                continue
            self._fresh.clear()
            began = time.monotonic()
            try:
                self.executor.at_once = settings.at_once
                if settings.mode == "auto" and self.monitor.newest:
                    await self._automatically(step)
                elif settings.mode == "spark":
                    await self._as_told()
            except SkerryError as error:
                log.warning("no plan this time: %s", error)
            took = time.monotonic() - began

    async def _automatically(self, step: float) -> None:
        known = self.known()
        made = await self._made(known)
        moves = list(explain.moves(made, known.topics, known.sites, known.settings))
        rows, topics = made.topic, known.topics
        publish, subscribe = topics.producers.only[rows], topics.consumers.only[rows]
        alone = (publish == made.to) & (subscribe == made.to)
        # What waits for its turn has been decided, and stays so if the plan has it still.
        sure = set(topics.names[rows[alone]].tolist()) | self.executor.waiting
        ready = self._standing.stood(moves, known.now, step * 0.9, sure)
        self.executor.decide(self._decisions(ready, "auto"))

    async def _as_told(self) -> None:
        """Carry out Spark's newest plan, but for what rests, is pinned, or is on its way."""
        moves, self._spark = self._spark, []
        if not moves:
            return
        known = self.known()
        settings, topics = known.settings, known.topics
        rested = dict(
            zip(topics.names.tolist(), (known.now - topics.moved_at).tolist(), strict=True)
        )
        pinned = set(topics.names[topics.pinned].tolist())
        rest = {"latency": min(settings.cool_down, settings.late_cool_down), "drain": 0.0}
        free = [
            move
            for move in moves
            if move.topic not in pinned
            and rested.get(move.topic, -1.0) >= rest.get(move.cause, settings.cool_down)
        ]
        self.executor.decide(self._decisions(free, "spark"))

    # Moves

    async def _move(self, decided: Decision) -> Entry:
        members = None if decided.members is None else list(decided.members)
        request = MoveRequest(decided.topic, decided.target, members, decided.epoch)
        return await self._leader.move(request, asked=False)

    def _done(self, report: MoveReport) -> None:
        self._note(report, self._now())
        if report.outcome != "dropped":
            self.results.appendleft(report)
        level = logging.INFO if report.outcome != "failed" else logging.WARNING
        log.log(
            level, "%s from %s to %s: %s %s", report.topic, report.source, report.target,
            report.outcome, report.why,
        )  # fmt: skip
        self._tasks.spawn(self._tell(report))

    def _note(self, report: MoveReport, when: float) -> None:
        """Whatever moved stays for a while, and what failed to as well."""
        if report.outcome != "dropped":
            self._moved_at[report.topic] = max(when, self._moved_at.get(report.topic, when))

    async def _tell(self, report: MoveReport) -> None:
        try:
            if self._results is None:
                self._results = Publisher(self._connection, self._routes, MOVES, ack="home")
            await self._results.send(msgspec.json.encode(report))
        except (SkerryError, Down) as error:
            log.warning("what became of %s is not written down: %s", report.topic, error)

    # What people ask

    async def explain(self, request: TopicName) -> Explanation:
        """Why a topic is where it is. Raises `UnknownTopic`."""
        await self._ready()
        entry = self._leader.entries().get(request.name)
        if entry is None:
            raise unknown_topic(request.name)
        known = self.known()
        made = await self._made(known)
        if request.name not in known.topics.names.tolist():
            raise UnknownTopic(f"{request.name} is Skerry's own, and is not placed")
        silent = set(self._leader.sites()) - self._reporting(known)
        return explained(request.name, known.topics, known.sites, known.groups, known.settings,
                         made, known.now, silent)  # fmt: skip

    def status(self) -> PlacementStatus:
        """How placement is."""
        entries = self._leader.entries().values()
        settings, now = self.settings, self._now()
        pins = (topic_of_stream(stream) for stream in self._store.keys("pin."))
        return PlacementStatus(
            settings=settings,
            running=True,
            sites=site_loads(
                self.monitor, sorted(self._leader.sites()), self.record_bytes, now,
                STALE * settings.period,
            ),
            moving=self.executor.moving,
            queued=len(self.executor.waiting),
            pinned=sorted(name for name in pins if name),
            bounded=sum(entry.settings.latency is not None for entry in entries),
            fates=dict(self.monitor.fates),
            results=list(self.results),
        )  # fmt: skip

    async def pin(self, request: PinRequest) -> None:
        """Keep a topic where it is, or let it go."""
        if request.name not in self._leader.entries():
            raise unknown_topic(request.name)
        key = pin_key(request.name)
        if request.pinned:
            await self._store.put(key, True)
        elif self._store.get(key, bool) is not None:
            await self._store.delete(key)


async def prepare(leader: Leader, site: str) -> None:
    """Make the topics of placement, at the leader's own `site`."""
    for name in (RECORDS, MOVES, PLANS):
        settings = {"max_age": KEPT, "max_bytes": 256 * 2**20}
        await leader.create(CreateRequest(name, settings, site))


def changed(settings: PlacementSettings, request: SetRequest) -> PlacementSettings:
    """Settings with what a request changes. Raises `BadSetting`."""
    own = {k: v for k, v in request.changes.items() if k in ("mode", "period", "at_once")}
    policy = {**settings.policy, **{k: v for k, v in request.changes.items() if k not in own}}
    whole = {
        **msgspec.to_builtins(settings),
        **own,
        "policy": {name: value for name, value in policy.items() if value is not None},
    }
    try:
        made = msgspec.convert(whole, PlacementSettings, strict=True).check()
    except msgspec.ValidationError as error:
        raise BadSetting(f"the settings of placement are wrong: {error}") from None
    policy_settings(made)
    return made
