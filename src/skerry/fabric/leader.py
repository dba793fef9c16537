"""The leader: makes topics, moves them, and replaces homes that are lost.

It runs beside the origin of the coordination store. Everything that it does is a compare-and-set on
a topic's entry, so that a second leader, or one that was held up, does no harm: one of them wins,
the other starts over with what it sees then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable

import msgspec

from skerry.directory.store import Store
from skerry.engine.link import Down
from skerry.errors import (
    BadSetting,
    Conflict,
    FabricError,
    MoveFailed,
    SkerryError,
    Unavailable,
    UnknownSite,
)
from skerry.fabric.links import Links
from skerry.fabric.losses import Losses, Lost
from skerry.fabric.moves import SETTLE_TIME, Ask, Moves
from skerry.fabric.placement import (
    check_apart,
    choose_members,
    members_after,
    members_filled,
    members_without,
    named_sites,
)
from skerry.fabric.tasks import Tasks
from skerry.log.topics import unknown_topic
from skerry.model.control import CreateRequest, MoveRequest
from skerry.model.demands import check_overlap, check_same, settings_of
from skerry.model.fabric import (
    LinkRecord,
    Presence,
    SiteRecord,
    Step,
    TopicEntry,
    site_key,
    topic_key,
    up_key,
)
from skerry.model.names import SiteText, TopicText, check_topic, stream_of
from skerry.model.placement import pin_key
from skerry.model.promotion import State, elect, next_epoch, read_quorum
from skerry.model.topic import TopicSettings

log = logging.getLogger("skerry.fabric")

SEAL_TIME = 1.0
"""Seconds to wait for members' answers in an election; those whose link is down are not asked."""
ARRIVAL = 2.0
"""Seconds that a new topic waits for sites that are known and not heard yet, beside the way."""
FILL = 5.0
"""Seconds between looks for topics that lack replicas, of which there is one when a site can take
topics that could not. A look at 10 000 topics takes 0.1 s."""
RETRY = 0.3
"""Seconds before a lost home that could not be replaced is tried again."""


class SealRequest(msgspec.Struct):
    """Asks a member to seal copies: names and epochs."""

    topics: list[tuple[TopicText, int]]


class RenewRequest(msgspec.Struct):
    """Asks for `epoch` of a topic, or a later one, with none of `barred` as its home."""

    name: TopicText
    epoch: int
    barred: list[SiteText] = []


class Leader:
    """Decides for the whole fabric."""

    def __init__(self, site: str, store: Store, links: Links, ask: Ask) -> None:
        self._site = site
        self._store = store
        self._links = links
        self._ask = ask
        self._making = asyncio.Lock()
        self._striking: dict[str, asyncio.Task[None]] = {}
        self._moving: dict[str, asyncio.Lock] = {}
        self._moves = Moves(store, ask)
        self._losses = Losses(site, self._observers, links.silence, links.way)
        self.dead = self._losses.dead
        self._sealed: set[str] = set()
        """Topics whose members were asked to seal, and that have no new epoch yet."""
        self._failing: dict[str, asyncio.Task[None]] = {}
        self._offered: set[str] = set()
        """Sites that were offered to topics which lack replicas, and can still take some."""
        self._filled = 0.0
        self._tasks = Tasks("the leader's work")

    async def close(self) -> None:
        """Stop."""
        await self._moves.close()
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
                check_same(name, known.settings, settings)
                return known
            check_overlap(name, self.entries())
            best = [site for site in settings.prefer if site not in self.dead][:1]
            await self._wait_for_sites(settings.replicas + 1, best)
            home = self._choose_home(settings, request)
            members = self._choose_members(home, settings)
            # Beyond any epoch that a deleted topic of this name had: a site that was away must see
            # that its log is not this one's.
            gone = self._store.get(f"gone.{stream_of(name)}", int) or 0
            epoch = max(gone + 1, request.epoch)
            entry = TopicEntry(
                name=name,
                home=home,
                epoch=epoch,
                lineage=(Step(epoch, 0),),
                born=epoch,
                members=members,
                settings=settings,
            )
            # The home first: an entry stands only for a log that is there. One that is there has
            # its entry before it is taken in, or it would belong to the fabric and to no topic.
            if request.home is None:
                await self._settle_at(home, entry)
            try:
                await self._store.put(topic_key(name), entry)
            except Conflict:
                return self._entry(name)
        await self._settle_all(entry)
        return entry

    async def _wait_for_sites(self, count: int, named: Iterable[str] = ()) -> None:
        """Sites that have just joined, or are just back, may be a moment from being heard. Wait for
        so many, and for those that are named, unless they are lost."""
        known = [name for name, record in self.sites().items() if not record.draining]
        way = max((self._links.way(site) for site in known if site not in self.dead), default=0.0)
        deadline = asyncio.get_running_loop().time() + ARRIVAL + 2 * way
        awaited = set(named) & set(known)

        def are_there() -> bool:
            return sum(map(self.is_there, known)) >= min(count, len(known)) and all(
                site in self.dead or self.is_there(site) for site in awaited
            )

        while not are_there() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)

    def _choose_home(self, settings: TopicSettings, request: CreateRequest) -> str:
        for site in settings.prefer:
            self._check_site(site)
        if request.home is not None:
            if self.is_there(request.home):
                return request.home
            raise Unavailable(f"site {request.home}, which has the log, is not heard now")
        for site in [*settings.prefer, request.site, self._site]:
            record = self._store.get(site_key(site), SiteRecord)
            if record is not None and self.is_there(site) and not record.draining:
                return site
        raise Unavailable("no site can take the topic now", "Look with `skerry sites`.")

    def _choose_members(self, home: str, settings: TopicSettings) -> tuple[str, ...]:
        for site in named_sites(settings) or ():
            self._check_site(site)
        return choose_members(home, settings, self._free(), self._site, self._rtt(), self._shy())

    def _rtt(self) -> dict[str, dict[str, float]]:
        """How far apart sites are, as each measured it."""
        rtt = {name: presence.rtt for name, presence in self._store.all("up.", Presence).items()}
        rtt[self._site] = self._links.rtt
        return rtt

    def _shy(self) -> set[str]:
        """The sites that only dial out."""
        return {name for name, record in self.sites().items() if record.link is None}

    def _free(self) -> list[str]:
        """The sites that may be given a topic now."""
        return [
            name
            for name, record in self.sites().items()
            if self.is_there(name) and not record.draining
        ]

    async def change(self, request: CreateRequest) -> TopicEntry:
        """Change settings of a topic; the number of replicas as well."""
        if {"replicas", "spread"} & request.settings.keys():
            settings = _changed(self._entry(request.name), request)
            await self._wait_for_sites(settings.replicas + 1)
        for _ in range(5):
            entry = self._entry(request.name)
            settings = _changed(entry, request)
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
        entry, gone = self._entry(name), 0
        while entry.epoch > gone:  # whoever was away takes a log from beyond that for another one
            gone = entry.epoch
            await self._store.put(f"gone.{stream_of(entry.name)}", gone)
            current = self._store.get(topic_key(name), TopicEntry)
            if current is None or current.born != entry.born:
                return  # somebody else has deleted it
            entry = current
        await self._store.delete(topic_key(name))
        if self._store.revision(pin_key(name)):
            with contextlib.suppress(SkerryError):
                await self._store.delete(pin_key(name))
        for key in self._store.all(f"sub.{stream_of(entry.name)}.", object):
            with contextlib.suppress(SkerryError):
                await self._store.delete(f"sub.{stream_of(entry.name)}.{key}")

    # Moves

    async def move(self, request: MoveRequest, *, asked: bool = True) -> TopicEntry:
        """Move a topic's home, or change its members: the new home is ready before the cut. If
        somebody asked for these members, the topic is to have as many replicas from now on. If the
        topic is changed meanwhile, this begins anew."""
        lock = self._moving.setdefault(request.name, asyncio.Lock())
        async with lock:
            for _ in range(4):
                with contextlib.suppress(Conflict):
                    return await self._move(request, asked)
            try:
                return await self._move(request, asked)
            except Conflict as error:
                raise _not_moved(request.name, error.what) from None

    async def _move(self, request: MoveRequest, asked: bool) -> TopicEntry:
        entry = self._entry(request.name)
        if request.epoch not in (None, entry.epoch):
            raise MoveFailed(
                f"{entry.name} was moved or changed meanwhile: it is in epoch {entry.epoch} at "
                f"{entry.home}"
            )
        to = request.to or entry.home
        new = set(members_after(entry.members, to, request.members)) - {*entry.members}
        await self._wait_for_sites(0, {entry.home, to, *new})
        entry = self._entry(request.name)
        record = self._check_site(to)
        members = members_after(entry.members, to, request.members)
        check_apart(to, members, self._shy())
        check_apart(entry.home, set(members) - {*entry.members}, self._shy())
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
            settings = None
            if asked and request.members is not None:
                settings = msgspec.structs.replace(entry.settings, replicas=len(members) - 1)
            fresh = await self._moves.move(entry, members, settings)
            await self._settle_at(fresh.home, fresh)
        except Conflict:
            raise
        except (SkerryError, Down) as error:
            what = error.what if isinstance(error, SkerryError) else "the engine is away"
            raise _not_moved(entry.name, what) from None
        self._tasks.spawn(self._settle_all(fresh))
        return fresh

    # Loss of a site

    def observe(self, report: Lost) -> None:
        """Somebody noticed that a site is away, or back."""
        before = set(self.dead)
        self._losses.observe(report)
        self._act(before)

    def look(self, now: float) -> None:
        """Judge anew, with the time that has passed; and notice sites that never came."""
        before = set(self.dead)
        self._losses.look(self.sites(), self._links.up, now)
        self._act(before)
        for site in self.dead - self._links.up:
            self.fail_over(site)
        free = set(self._free())
        self._offered &= free
        if free != self._offered and now - self._filled > FILL:
            self._offered, self._filled = free, now
            self._tasks.spawn(self._fill(sorted(free)))

    def _act(self, before: set[str]) -> None:
        for site in before - self.dead:
            log.warning("site %s is back", site)
        for site in self.dead - before:
            log.warning("site %s is lost (%s)", site, self._losses.why(site))
            self.fail_over(site)

    def _observers(self, site: str) -> set[str]:
        """Who is linked to a site and would tell if it were lost. Those that we do not hear, too,
        unless they are lost themselves: right after a start, or if our own line is at fault, we
        hear nobody, and must not take all of them for lost."""
        found: set[str] = set()
        for record in self._store.all("link.", LinkRecord).values():
            if site in (record.dialer, record.acceptor):
                found |= {record.dialer, record.acceptor}
        return found - {site} - self.dead

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
            there = [m for m in entry.members if m not in barred and self.is_there(m)]
            if len(there) < read_quorum(len(entry.members)):
                continue  # to seal so few elects nobody, and would stop a home that only we lost
            self._sealed.add(entry.name)
            for member in there:
                asked.setdefault(member, []).append((entry.name, entry.epoch + 1))
        answers = await asyncio.gather(*(self._seal(site, names) for site, names in asked.items()))
        states: dict[str, list[State]] = {}
        for answer in answers:
            for name, state in answer.items():
                states.setdefault(name, []).append(state)
        fresh: list[TopicEntry] = []
        for entry in entries:
            avoided = {site for site, record in self.sites().items() if record.draining}
            if len(apart := self._shy() & {*entry.members}) > 1:
                avoided |= apart  # from one of them the others could not copy
            decision = elect(
                entry.lineage,
                entry.members,
                states.get(entry.name, []),
                entry.settings.prefer,
                barred,
                avoided,
            )
            if decision is not None:
                home = next(s for s in states[entry.name] if s.site == decision.home)
                fresh.append(next_epoch(entry, decision.members, decision.base, home))
        won = await asyncio.gather(*(self._announce(entry) for entry in fresh))
        return sum(won)

    async def renew(self, request: RenewRequest) -> None:
        """Give a topic a new epoch: members were sealed for one that never came, or its home has
        lost events and is barred. Whoever asks for one that came has yet to hear of it."""
        entry = self._entry(request.name)
        if entry.epoch < request.epoch and self.is_there(entry.home):
            await self.elect([entry], set(request.barred))

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
        if current.home != entry.home and self.is_there(current.home):
            self._tasks.spawn(self._tell_former(current.home, entry))
        return True

    async def _tell_former(self, site: str, entry: TopicEntry) -> None:
        """A home that is alive takes no more events, also if its copy of the directory is late."""
        with contextlib.suppress(SkerryError, Down):
            await self._settle_at(site, entry)

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
                members = members_without(entry.members, site, self._free(), self._shy())
                if members is None:
                    raise MoveFailed(f"no other site can take {entry.name}")
                request = MoveRequest(entry.name, members[0], list(members))
                await self.move(request, asked=False)
                return entry.name

        return sorted(await asyncio.gather(*(leave(entry) for entry in todo)))

    async def undrain(self, site: str) -> None:
        """Let a site that was drained have topics again."""
        record = self._check_site(site)
        if record.draining:
            await self._store.put(site_key(site), msgspec.structs.replace(record, draining=False))

    async def _fill(self, free: list[str]) -> None:
        """Give topics the replicas that they lack, as far as these sites can take them."""
        for entry in self.entries().values():
            if len(entry.replicas) >= entry.settings.replicas or not self.is_there(entry.home):
                continue
            members = members_filled(
                entry.members, entry.settings, free, self._site, self._rtt(), self._shy()
            )
            if members == entry.members:
                continue
            try:
                request = MoveRequest(entry.name, entry.home, list(members), entry.epoch)
                await self.move(request, asked=False)
                log.warning("%s has replicas at %s again", entry.name, ", ".join(members[1:]))
            except SkerryError as error:
                log.warning("%s still lacks replicas: %s", entry.name, error.what)
                self._offered.clear()

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
        if site not in self._striking:
            self._striking[site] = self._tasks.spawn(self._strike(site))
            self._striking[site].add_done_callback(lambda _: self._striking.pop(site))
        # Who asks again meanwhile, for there was no answer, waits for the same: done a second time,
        # it would strike a site that has taken this one's place.
        await asyncio.shield(self._striking[site])

    async def _strike(self, site: str) -> None:
        with contextlib.suppress(SkerryError):
            await self._ask(site, "peer.removed")
        links = {
            "link." + key: self._store.revision("link." + key)
            for key, record in self._store.all("link.", LinkRecord).items()
            if site in (record.dialer, record.acceptor)
        }
        await self._store.delete(site_key(site))  # first: without it no link is made any more
        for key, revision in links.items():
            with contextlib.suppress(Conflict):  # the other end was faster, or it is another's
                await self._store.delete(key, revision)
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


def _changed(entry: TopicEntry, request: CreateRequest) -> TopicSettings:
    """The settings of a topic once what is asked for is changed."""
    whole = {**msgspec.to_builtins(entry.settings), **request.settings}
    return settings_of(entry.name, whole).check()


def _not_moved(name: str, why: str) -> MoveFailed:
    return MoveFailed(f"{name} was not moved: {why}", "Nothing is lost; try again.")
