"""The leader: makes topics, moves them, and replaces homes that are lost.

It runs beside the origin of the coordination store. Everything that it does is a compare-and-set on
a topic's entry, so that a second leader, or one that was held up, does no harm: one of them wins,
the other starts over with what it sees then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from skerry.directory.store import Store
from skerry.engine.link import Down
from skerry.errors import (
    BadSetting,
    Conflict,
    FabricError,
    MoveFailed,
    SkerryError,
    TopicExists,
    TopicOverlap,
    Unavailable,
    UnknownSite,
)
from skerry.fabric.links import Links
from skerry.fabric.promotion import State, elect, may_cut_over, next_epoch
from skerry.fabric.tasks import Tasks
from skerry.log.topics import unknown_topic
from skerry.model.control import CreateRequest, MoveRequest
from skerry.model.fabric import (
    LinkRecord,
    Presence,
    SiteRecord,
    TopicEntry,
    site_key,
    topic_key,
    up_key,
)
from skerry.model.names import check_topic, is_within, stream_of
from skerry.model.topic import TopicSettings

log = logging.getLogger("skerry.fabric")

FREEZE = 5.0
"""Seconds that a home stays shut for a move before it opens again by itself."""
PRECOPY = 60.0
"""Seconds that the new home may take to get the log before the move is given up."""
NEAR = 0
"""Events that the new home may lack, of those that the old one had a moment before, when that one
is shut. A copy that was just told to follow another holder may take two seconds to begin."""
SEAL_TIME = 1.0
"""Seconds to wait for members' answers in an election; those whose link is down are not asked."""
ALONE = 2.5
"""Seconds after which one observer is enough. By then a home that lost its members as well has shut
itself, if its topic says `stop`; one that lost only us does so when they are sealed."""
ARRIVAL = 2.0
"""Seconds that a new topic waits for sites that are known and not heard yet."""
ABSENT = 3.0
"""Seconds that a site with homes may take to appear after the leader started."""
RETRY = 0.3
"""Seconds before a lost home that could not be replaced is tried again."""
SETTLE_TIME = 5.0

Ask = Callable[..., Awaitable[bytes]]


class SealRequest(msgspec.Struct):
    """Asks a member to seal copies: names and epochs."""

    topics: list[tuple[str, int]]


class FreezeRequest(msgspec.Struct):
    """Asks a home to shut for a move."""

    name: str
    epoch: int
    lease: float = FREEZE


class Lost(msgspec.Struct):
    """An observer cannot reach a site, or can again."""

    site: str
    observer: str
    how: str
    """`refused`: nobody listens there; `closed`, `silent`; or `heard`: it is back."""


class Leader:
    """Decides for the whole fabric."""

    def __init__(self, site: str, store: Store, links: Links, ask: Ask) -> None:
        self._site = site
        self._store = store
        self._links = links
        self._ask = ask
        self._making = asyncio.Lock()
        self._moving: dict[str, asyncio.Lock] = {}
        self._lost: dict[str, dict[str, str]] = {}
        """For each site: who cannot reach it, and how that was noticed."""
        self._since: dict[str, float] = {}
        """Since when nobody of ours has heard a site."""
        self.dead: set[str] = set()
        self._sealed: set[str] = set()
        """Topics whose members were asked to seal, and that have no new epoch yet."""
        self._failing: dict[str, asyncio.Task[None]] = {}
        self._tasks = Tasks("the leader's work")

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()

    # What is known

    def entries(self) -> dict[str, TopicEntry]:
        """Every topic's entry, by name."""
        return {e.name: e for e in self._store.all("topic.", TopicEntry).values()}

    def sites(self) -> dict[str, SiteRecord]:
        """Every site, by name."""
        return self._store.all("site.", SiteRecord)

    def is_there(self, site: str) -> bool:
        """Whether a site can be asked now."""
        return site == self._site or (site in self._links.up and site not in self.dead)

    def _entry(self, name: str) -> TopicEntry:
        entry = self._store.get(topic_key(check_topic(name)), TopicEntry)
        if entry is None:
            raise unknown_topic(name)
        return entry

    def _check_site(self, site: str) -> SiteRecord:
        record = self._store.get(site_key(site), SiteRecord)
        if record is None:
            raise UnknownSite(
                f"the fabric has no site {site!r}",
                f"There are: {', '.join(sorted(self.sites()))}.",
            )
        return record

    # Topics

    async def create(self, request: CreateRequest) -> TopicEntry:
        """Make a topic; a second creation with the same settings finds the first."""
        name = check_topic(request.name)
        settings = settings_of(name, request.settings).check()
        async with self._making:
            known = self._store.get(topic_key(name), TopicEntry)
            if known is not None:
                _check_same(known, settings)
                return known
            self._check_overlap(name)
            home = self._choose_home(settings, request.site)
            await self._wait_for_sites(settings.replicas + 1)
            members = self._choose_members(home, settings)
            # Beyond any epoch that a deleted topic of this name had: a site that was away must see
            # that its log is not this one's.
            epoch = (self._store.get(f"gone.{stream_of(name)}", int) or 0) + 1
            entry = TopicEntry(
                name=name,
                home=home,
                epoch=epoch,
                lineage=((epoch, 0),),
                members=members,
                settings=settings,
            )
            # The home first: an entry stands only for a log that is there.
            await self._settle_at(home, entry)
            try:
                await self._store.put(topic_key(name), entry)
            except Conflict:
                return self._entry(name)
        await self._settle_all(entry)
        return entry

    def _check_overlap(self, name: str) -> None:
        for other in self.entries():
            if is_within(name, other):
                raise TopicOverlap(
                    f"{name} is already a sub-topic of {other} and shares its log",
                    f"Publish to {name} as it is; to give it a log of its own, delete {other}.",
                )
            if is_within(other, name):
                raise TopicOverlap(
                    f"{name} would take in the existing topic {other}",
                    f"Choose another name, or delete {other} first.",
                )

    async def _wait_for_sites(self, count: int) -> None:
        """Sites that have just joined, or are just back, may be a moment from being heard."""
        deadline = asyncio.get_running_loop().time() + ARRIVAL
        known = [name for name, record in self.sites().items() if not record.draining]
        while sum(map(self.is_there, known)) < min(count, len(known)):
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(0.02)

    def _choose_home(self, settings: TopicSettings, asked_from: str) -> str:
        for site in settings.prefer:
            self._check_site(site)
        candidates = [*settings.prefer, asked_from, self._site]
        for site in candidates:
            record = self._store.get(site_key(site), SiteRecord)
            if record is not None and self.is_there(site) and not record.draining:
                return site
        raise Unavailable("no site can take the topic now", "Look with `skerry sites`.")

    def _choose_members(
        self, home: str, settings: TopicSettings, avoid: Iterable[str] = ()
    ) -> tuple[str, ...]:
        """The home and its replicas. With a list of sites those; else the nearest to the home, or
        the farthest from each other, as far as round-trip times are known."""
        count = settings.replicas
        if settings.spread not in ("distributed", "colocated"):
            named = [site.strip() for site in settings.spread.split(",") if site.strip()]
            for site in named:
                self._check_site(site)
            others = [site for site in named if site != home]
            if len(others) < count:
                raise BadSetting(
                    f"{count} replicas were asked for, and {len(others)} sites named for them",
                    "Name more sites with --spread, or ask for fewer replicas.",
                )
            return (home, *others[:count])
        out = {home, *avoid}
        free = [
            name
            for name, record in self.sites().items()
            if name not in out and self.is_there(name) and not record.draining
        ]
        if len(free) < count:
            raise BadSetting(
                f"{count} replicas need {count + 1} sites that are up; there are {len(free) + 1}",
                "Let more sites join, or ask for fewer replicas.",
            )
        chosen = [home]
        for _ in range(count):
            far = {site: min(self._distance(site, other) for other in chosen) for site in free}
            pick = max if settings.spread == "distributed" else min
            best = pick(sorted(free), key=lambda site: far[site])
            chosen.append(best)
            free.remove(best)
        return tuple(chosen)

    def _distance(self, one: str, other: str) -> float:
        """Seconds between two sites: as one of them measured it, or through the hub."""
        for a, b in ((one, other), (other, one)):
            presence = self._store.get(up_key(a), Presence)
            if presence is not None and b in presence.rtt:
                return presence.rtt[b]
        if self._site in (one, other):
            return self._links.rtt.get(other if one == self._site else one, 0.0)
        return self._links.rtt.get(one, 0.0) + self._links.rtt.get(other, 0.0)

    async def change(self, request: CreateRequest) -> TopicEntry:
        """Change settings of a topic; the number of replicas as well."""
        for _ in range(5):
            entry = self._entry(request.name)
            whole = {**msgspec.to_builtins(entry.settings), **request.settings}
            settings = settings_of(entry.name, whole).check()
            for site in settings.prefer:
                self._check_site(site)
            members = entry.members
            if {"replicas", "spread"} & request.settings.keys():
                members = self._choose_members(entry.home, settings)
            fresh = msgspec.structs.replace(entry, settings=settings)
            try:
                if fresh != entry:
                    await self._store.put(topic_key(entry.name), fresh)
            except Conflict:
                continue
            if set(members) != set(entry.members):
                return await self.move(MoveRequest(entry.name, entry.home, list(members)))
            await self._settle_all(fresh)
            return fresh
        raise Conflict(f"{request.name} is being changed by somebody else", "Try again.")

    async def delete(self, name: str) -> None:
        """Delete a topic everywhere; a site that is away deletes its copy when it is back."""
        entry = self._entry(name)
        await self._store.put(f"gone.{entry.stream}", entry.epoch)
        await self._store.delete(topic_key(name))
        for key in self._store.all(f"sub.{entry.stream}.", object):
            with contextlib.suppress(SkerryError):
                await self._store.delete(f"sub.{entry.stream}.{key}")

    # Moves

    async def move(self, request: MoveRequest) -> TopicEntry:
        """Move a topic's home, or change its members: the new home is ready before the cut."""
        lock = self._moving.setdefault(request.name, asyncio.Lock())
        async with lock:
            entry = self._entry(request.name)
            to = request.to or entry.home
            record = self._check_site(to)
            members = _members_after(entry, to, request.members)
            for site in members:
                self._check_site(site)
                if site not in entry.members and not self.is_there(site):
                    raise MoveFailed(
                        f"site {site} is not there", "Look with `skerry sites`; start it first."
                    )
            if not self.is_there(to):
                raise MoveFailed(f"site {to} is not there", "Look with `skerry sites`.")
            if record.draining and to != entry.home:
                raise MoveFailed(f"site {to} is being drained", "Choose another site.")
            if to == entry.home and set(members) == set(entry.members):
                return entry
            if not self.is_there(entry.home):
                raise MoveFailed(
                    f"the home of {entry.name}, {entry.home}, is not there",
                    "It is replaced by itself if the topic has replicas.",
                )
            try:
                return await self._move(entry, members)
            except (SkerryError, Down) as error:
                what = error.what if isinstance(error, SkerryError) else "the engine is away"
                raise MoveFailed(
                    f"{entry.name} was not moved: {what}", "Nothing is lost; try again."
                ) from None

    async def _move(self, entry: TopicEntry, members: tuple[str, ...]) -> TopicEntry:
        await self._precopy(entry, members)
        frozen = False
        try:
            body = FreezeRequest(entry.name, entry.epoch)
            last = msgspec.json.decode(
                await self._ask(entry.home, "peer.freeze", body, timeout=FREEZE / 2), type=int
            )
            frozen = True
            young = await self._wait_for(entry, members, last)
            current = self._store.get(topic_key(entry.name), TopicEntry)
            if current != entry:
                raise Conflict(f"{entry.name} was changed meanwhile")
            fresh = next_epoch(entry, members, last, young)
            settings = msgspec.structs.replace(entry.settings, replicas=len(members) - 1)
            fresh = msgspec.structs.replace(fresh, settings=settings)
            await self._store.put(topic_key(entry.name), fresh)
        except BaseException:
            if frozen:  # it opens again by itself; sooner is better
                self._tasks.spawn(self._reopen(entry))
            raise
        await self._settle_at(fresh.home, fresh)
        self._tasks.spawn(self._settle_all(fresh))
        return fresh

    async def _reopen(self, entry: TopicEntry) -> None:
        """A move failed behind the freeze: the same home goes on in a new epoch."""
        with contextlib.suppress(SkerryError):
            data = await self._ask(entry.home, "peer.state", {"name": entry.name})
            state = msgspec.json.decode(data, type=State)
            current = self._store.get(topic_key(entry.name), TopicEntry)
            if current == entry:
                await self._store.put(
                    topic_key(entry.name), next_epoch(entry, entry.members, state.last)
                )

    async def _precopy(self, entry: TopicEntry, members: tuple[str, ...]) -> None:
        """Have the members that are new get the log, while the home goes on."""
        fresh = [site for site in members if site not in entry.members]
        wanted = msgspec.structs.replace(entry, members=(*entry.members, *fresh))
        for site in fresh:
            await self._ask(site, "peer.prepare", wanted, timeout=SETTLE_TIME)
        deadline = asyncio.get_running_loop().time() + PRECOPY
        behind = set(members) - {entry.home}
        behind = {site for site in behind if site in fresh or site == members[0]}
        while behind:
            home = await self._state(entry.home, entry.name)
            if home is None:
                raise MoveFailed(f"{entry.home} has no log of {entry.name}")
            for site in list(behind):
                state = await self._state(site, entry.name)
                if state is None:  # it is just replacing a log of its own
                    await self._ask(site, "peer.prepare", wanted, timeout=SETTLE_TIME)
                elif state.last >= home.last - NEAR:
                    behind.discard(site)
            if asyncio.get_running_loop().time() > deadline:
                raise MoveFailed(f"{', '.join(sorted(behind))} did not get the log in time")
            if behind:
                await asyncio.sleep(0.02)

    async def _state(self, site: str, name: str) -> State | None:
        data = await self._ask(site, "peer.state", {"name": name})
        return msgspec.json.decode(data, type=State | None)

    async def _wait_for(self, entry: TopicEntry, members: tuple[str, ...], last: int) -> bool:
        """Until the new home, and enough of the next members, hold the frozen log. Whether the new
        home is young."""

        async def reached(site: str) -> State | None:
            with contextlib.suppress(SkerryError):
                body = {"name": entry.name, "last": last, "timeout": FREEZE / 2}
                data = await self._ask(site, "peer.reached", body, timeout=FREEZE / 2 + 0.5)
                return msgspec.json.decode(data, type=State | None)
            return None

        asked = {asyncio.create_task(reached(site)): site for site in members}
        states: dict[str, State] = {}
        try:
            for done in asyncio.as_completed(list(asked)):
                state = await done
                if state is not None and state.label == entry.epoch:
                    states[state.site] = state
                ready = members[0] in states and states[members[0]].last >= last
                if ready and may_cut_over(members, states, last):
                    return states[members[0]].young
        finally:
            for task in asked:
                task.cancel()
        raise MoveFailed("the next home did not get the last events in time")

    # Loss of a site

    def observe(self, report: Lost) -> None:
        """Somebody noticed that a site is away, or back."""
        if report.site == self._site:
            return
        seen = self._lost.setdefault(report.site, {})
        if report.how == "heard":
            seen.pop(report.observer, None)
            if not seen or report.observer == self._site:
                self._lost.pop(report.site, None)
                self._since.pop(report.site, None)
                if report.site in self.dead:
                    self.dead.discard(report.site)
                    log.warning("site %s is back", report.site)
            return
        seen[report.observer] = report.how
        self._judge(report.site)

    def look(self, now: float) -> None:
        """Judge anew, with the time that has passed; and notice sites that never came."""
        for site in self.sites():
            if site == self._site or site in self._links.up:
                self._since.pop(site, None)
                continue
            since = self._since.setdefault(site, now)
            if now - since > ABSENT:
                self._lost.setdefault(site, {}).setdefault(self._site, "absent")
            self._judge(site, now - since)
        for site in list(self.dead):
            if site not in self._links.up:
                self.fail_over(site)

    def _judge(self, site: str, away: float = 0.0) -> None:
        seen = self._lost.get(site, {})
        if site not in self.dead and self._is_confirmed(site, seen, away):
            self.dead.add(site)
            log.warning(
                "site %s is lost (%s)",
                site, ", ".join(f"{who}: {how}" for who, how in sorted(seen.items())),
            )  # fmt: skip
            self.fail_over(site)

    def _is_confirmed(self, site: str, seen: dict[str, str], away: float) -> bool:
        """A refused connection is proof. Anything else needs a second observer, if there is one
        that is linked to the site, or time."""
        if "refused" in seen.values():
            return True
        if self._site in seen and away > ALONE:
            return True
        observers = {self._site}
        for record in self._store.all("link.", LinkRecord).values():
            pair = {record.dialer, record.acceptor}
            if site in pair:
                observers |= {other for other in pair - {site} if self.is_there(other)}
        return self._site in seen and len(seen) >= min(2, len(observers))

    def fail_over(self, site: str) -> None:
        """Replace every home at `site`."""
        task = self._failing.get(site)
        if task is None or task.done():
            self._failing[site] = self._tasks.spawn(self._fail_over(site))

    async def _fail_over(self, site: str) -> None:
        while site in self.dead:
            entries = [
                entry
                for entry in self.entries().values()
                if entry.home == site and len(entry.members) > 1
            ]
            if not entries:
                return
            try:
                done = await self.elect(entries, {site})
            except (SkerryError, Down) as error:
                log.warning("homes of %s could not be replaced yet: %s", site, error)
                done = 0
            if done < len(entries):
                await asyncio.sleep(RETRY)
        # It is back before it was replaced: members that were sealed for the next epoch follow it
        # again only in one.
        entries = [e for e in self.entries().values() if e.home == site and len(e.members) > 1]
        with contextlib.suppress(SkerryError, Down):
            await self.elect([e for e in entries if e.name in self._sealed], set())

    async def elect(self, entries: list[TopicEntry], barred: set[str]) -> int:
        """Seal the members of `entries` and give each topic the best of them as its home. Returns
        for how many that was possible."""
        asked: dict[str, list[tuple[str, int]]] = {}
        for entry in entries:
            for member in entry.members:
                if member not in barred and self.is_there(member):
                    asked.setdefault(member, []).append((entry.name, entry.epoch + 1))
        self._sealed |= {entry.name for entry in entries}
        answers = await asyncio.gather(*(self._seal(site, names) for site, names in asked.items()))
        states: dict[str, list[State]] = {}
        for answer in answers:
            for name, state in answer.items():
                states.setdefault(name, []).append(state)
        fresh: list[TopicEntry] = []
        for entry in entries:
            decision = elect(
                entry.lineage,
                entry.members,
                states.get(entry.name, []),
                entry.settings.prefer,
                barred | {s for s, r in self.sites().items() if r.draining},
            )
            if decision is not None:
                young = any(s.site == decision.home and s.young for s in states[entry.name])
                fresh.append(next_epoch(entry, decision.members, decision.base, young))
        won = await asyncio.gather(*(self._announce(entry) for entry in fresh))
        return sum(won)

    async def renew(self, name: str) -> None:
        """Give a topic a new epoch, because members were sealed for one that never came."""
        entry = self._entry(name)
        if self.is_there(entry.home):
            await self.elect([entry], set())

    async def _seal(self, site: str, topics: list[tuple[str, int]]) -> dict[str, State]:
        try:
            data = await self._ask(site, "peer.seal", SealRequest(topics), timeout=SEAL_TIME)
        except SkerryError:
            return {}
        return msgspec.json.decode(data, type=dict[str, State])

    async def _announce(self, entry: TopicEntry) -> bool:
        revision = self._store.revision(topic_key(entry.name))
        current = self._store.get(topic_key(entry.name), TopicEntry)
        if current is None or current.epoch != entry.epoch - 1:
            return False
        try:
            await self._store.put(topic_key(entry.name), entry, revision=revision)
        except (Conflict, Unavailable):
            return False
        self._sealed.discard(entry.name)
        log.warning(
            "%s: home is %s now, epoch %d from index %d on",
            entry.name, entry.home, entry.epoch, entry.base,
        )  # fmt: skip
        with contextlib.suppress(SkerryError, Down):
            await self._settle_at(entry.home, entry)
        return True

    # Whole sites

    async def drain(self, site: str) -> list[str]:
        """Move every home and replica away from `site`; return the topics that moved."""
        record = self._check_site(site)
        if site == self._site:
            raise BadSetting(
                "the coordination site cannot be drained: it keeps the fabric's directory",
                "Move single topics away with `skerry topic move`.",
            )
        if not record.draining:
            await self._store.put(site_key(site), msgspec.structs.replace(record, draining=True))
        todo = [entry for entry in self.entries().values() if site in entry.members]
        gate = asyncio.Semaphore(16)

        async def leave(entry: TopicEntry) -> str:
            async with gate:
                others = [member for member in entry.members if member != site]
                free = [
                    name
                    for name, other in self.sites().items()
                    if name not in entry.members and self.is_there(name) and not other.draining
                ]
                while len(others) < len(entry.members) and free:
                    others.append(free.pop(0))
                if not others:
                    raise MoveFailed(f"no other site can take {entry.name}")
                home = entry.home if entry.home != site else others[0]
                await self.move(MoveRequest(entry.name, home, others))
                return entry.name

        return sorted(await asyncio.gather(*(leave(entry) for entry in todo)))

    async def remove(self, site: str) -> None:
        """Strike a site from the fabric: its keys are refused from now on."""
        self._check_site(site)
        if site == self._site:
            raise BadSetting(
                "the coordination site cannot be removed: it keeps the fabric's directory",
                "Remove the other sites, or begin another fabric.",
            )
        held = sorted(entry.name for entry in self.entries().values() if site in entry.members)
        if held:
            raise FabricError(
                f"site {site} still has {len(held)} topics, such as {held[0]}",
                f"Move them first with `skerry site drain {site}`, or delete them.",
            )
        with contextlib.suppress(SkerryError):
            await self._ask(site, "peer.removed")
        for key, record in self._store.all("link.", LinkRecord).items():
            if site in (record.dialer, record.acceptor):
                await self._store.delete("link." + key)
        await self._store.delete(site_key(site))
        with contextlib.suppress(SkerryError):
            await self._store.delete(up_key(site))
        await self._links.settle()
        with contextlib.suppress(SkerryError, Down):
            await self._links.drop(site)

    # Telling sites

    async def _settle_at(self, site: str, entry: TopicEntry) -> None:
        await self._ask(site, "peer.settle", entry, timeout=SETTLE_TIME)

    async def _settle_all(self, entry: TopicEntry) -> None:
        async def settle(site: str) -> None:
            with contextlib.suppress(SkerryError):
                await self._settle_at(site, entry)

        await asyncio.gather(*(settle(site) for site in entry.members if self.is_there(site)))


def settings_of(name: str, given: dict[str, Any]) -> TopicSettings:
    """Settings as they came over the wire."""
    try:
        return msgspec.convert(given, TopicSettings, strict=True)
    except msgspec.ValidationError as error:
        raise BadSetting(f"the settings of {name} are wrong: {error}") from None


def _check_same(known: TopicEntry, settings: TopicSettings) -> None:
    differences = known.settings.differences(settings)
    if differences:
        raise TopicExists(
            f"topic {known.name} exists with other settings: "
            + "; ".join(f"{k} is {a}, not {b}" for k, (a, b) in differences.items()),
            f"Change it with `skerry topic set {known.name}`, or create it with the same settings.",
            differences,
        )


def _members_after(entry: TopicEntry, to: str, asked: list[str] | None) -> tuple[str, ...]:
    """The next members, the home first. A home that moves to a site without a copy takes the place
    of the old one; one that moves to a replica changes places with it."""
    if asked is not None:
        return (to, *[site for site in asked if site != to])
    others = [site for site in entry.members if site not in (to, entry.home)]
    if to in entry.members and to != entry.home:
        others.append(entry.home)
    elif to == entry.home:
        return entry.members
    return (to, *others)
