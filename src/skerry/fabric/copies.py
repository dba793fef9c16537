"""The logs of topics at one site: homes, replicas, copies for readers.

Theory of operation. The directory says of each topic where its home is and which sites are members.
`settle` makes the stream at this site what the newest entry says, one topic at a time:

    entry says            stream here is    what happens
    home is here          none              made (a new topic)
                          a copy            promoted
                          a home            its subjects follow the epoch
    home is elsewhere     none              a copy is made, if we are a member or have readers
                          a copy            follows the new home; if it forked, it rolls first
                          a home            frozen; then it rolls: a new segment follows

To roll is to go on in a new stream (`skerry.log.segments`), which costs the same however large the
log is. `Mending` puts the segments in order afterwards.

The marks of `skerry.model.promotion` are kept in the stream's metadata, written before they count.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any, NoReturn

import msgspec

from skerry.directory.store import Store
from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.errors import FabricError, SkerryError, Unavailable
from skerry.fabric.durables import Durables
from skerry.fabric.following import Following
from skerry.fabric.links import Links
from skerry.fabric.logs import AT_ONCE, Info, Logs
from skerry.fabric.mending import Mending
from skerry.fabric.opening import Openings
from skerry.fabric.peers import Peers
from skerry.fabric.replacement import Replacement
from skerry.fabric.streams import Local, cut_at, differs, end_of
from skerry.fabric.tails import Tails
from skerry.fabric.tasks import Tasks
from skerry.log.segments import Segment
from skerry.model.fabric import TopicEntry, topic_key
from skerry.model.names import topic_of_stream
from skerry.model.promotion import Copy, State, fork_of, is_forked, is_unbroken, next_epoch

log = logging.getLogger("skerry.fabric")

LOOKS = 20
"""Looks at a copy in doubt, by 50 ms, whether it has what its home had."""


class Copies:
    """All logs of one site."""

    def __init__(
        self,
        jetstream: JetStream,
        site: str,
        fabric: str,
        store: Store,
        links: Links,
        peers: Peers,
        deliver_plain: bool,
        silence: float,
    ) -> None:
        self.site = site
        self.logs = Logs(jetstream, site, fabric, store, deliver_plain)
        self.durables = Durables(jetstream, site, store, links, peers, self._root)
        self.tails = Tails(
            jetstream, self.logs, links, peers, lambda local: self.mending.begin(local)
        )
        self._replacement = Replacement(self.logs, links, peers, self.durables, self.tails, self)
        self.following = Following(
            jetstream, self.logs, store, links, peers, self._welds, self._on_fork
        )
        self.mending = Mending(
            jetstream,
            self.logs,
            self.following.relay,
            self.tails,
            self.durables,
            self.settle_quietly,
        )
        self._jetstream = jetstream
        self._connection = jetstream.connection
        self._store = store
        self._links = links
        self._peers = peers
        self._tasks = Tasks("work on a copy")
        self.openings = Openings(self.logs, links, peers, store.origin, silence, self._reopen)
        self.is_full = False
        """Whether nothing can be written here: the disk is full, or hangs."""
        self._giving_up: set[str] = set()
        self.starts = 1
        """How often the engine was started, as far as this agent knows."""
        self.young_until = 0.0
        """Until when copies here lack ids from before the engine's start."""

    # Life

    def load(self, streams: Iterable[Info], before: Mapping[str, Copy] | None = None) -> None:
        """Learn what is here; see `Logs.load`."""
        streams = list(streams)
        self.logs.load(streams, self._connection.now(), before)
        self.tails.load(streams)

    def start(self) -> None:
        """Begin to follow the directory."""
        self._store.watch("topic.", self._on_entry)
        self.following.start()

    async def close(self) -> None:
        """Stop; logs stay as they are."""
        await self.following.close()
        await self.mending.close()
        await self.tails.close()
        await self.durables.close()
        await self._replacement.close()
        await self.openings.close()
        await self._tasks.close()

    def entry(self, name: str) -> TopicEntry | None:
        """Where a topic lives, as far as this site knows."""
        return self.logs.entry(name)

    def names(self) -> list[str]:
        """All topics of the fabric, as far as this site knows."""
        return [name for name in map(topic_of_stream, self._store.keys("topic.")) if name]

    def owner(self, topic: str) -> TopicEntry | None:
        """The entry of the topic that holds `topic`, itself or one that it is a sub-topic of."""
        return next(filter(None, map(self.entry, _owners(topic))), None)

    @property
    def hub(self) -> str:
        """The site where others meet that cannot be linked."""
        return self._store.origin

    def count(self) -> tuple[int, int]:
        """How many homes and how many copies are here."""
        kinds = [local.kind for local in self.logs]
        return kinds.count("home"), kinds.count("copy")

    def local(self, name: str) -> Local | None:
        """The topic's stream here."""
        return self.logs.get(name)

    async def reconcile(self) -> None:
        """Bring every log here in line with a fresh directory, before clients may write."""
        await self._tidy()
        for name in list(self.tails.kept):
            if self.entry(name) is None:
                await self.tails.forget(name)
            else:
                self.tails.bring_home(self.logs.of(name))
        for local in self.logs:
            entry = self.entry(local.name)
            if entry is None:
                if self._is_over(local):
                    await self._forget(local)  # it was deleted while we were away
            elif self._is_shut(local, entry):
                self.openings.begin(local)
                self.mending.begin(local)
            else:
                await self._settle_or_later(local, entry)
        for entry in self._store.all("topic.", TopicEntry).values():
            local = self.logs.of(entry.name)
            if self.site in entry.members and not local.kind:
                await self._settle_or_later(local, entry)

    async def _tidy(self) -> None:
        """Finish what a crash left unfinished, before anybody reads."""
        await self.logs.tidy()
        for local in self.logs:
            if local.weld is not None:
                await self.mending.finish(local)
            if local.weld is not None:
                self.mending.begin(local)  # also where a log is not settled just now

    async def _settle_or_later(self, local: Local, entry: TopicEntry) -> None:
        """One log that cannot be settled does not keep the others from being served. Only a home
        that is open must not stay as it is."""
        try:
            await self.settle(entry)
        except SkerryError as error:
            if local.kind == "home":
                raise
            log.error("%s is not settled: %s", entry.name, error)
            self._tasks.spawn(self.settle_quietly(entry))

    async def reconcile_alone(self, confirmed: Collection[str]) -> None:
        """The same with what is known while the directory is away: of the homes that others may
        have replaced only those in `confirmed` open, the others are shut."""
        await self._tidy()
        for local in self.logs:
            entry = self.entry(local.name)
            if entry is None:
                continue
            if local.name in confirmed or not self._may_be_replaced(entry):
                await self._settle_or_later(local, entry)
                if self._is_shut(local, entry) and local.is_reopened:
                    self.openings.begin(local)
            else:
                await self.shut(local.name)

    def is_new(self, local: Local) -> bool:
        """Whether the directory is to be told of a log here: it is from before this site was part
        of the fabric, or from after the directory's last backup."""
        is_home = local.kind == "home" or (local.kind == "frozen" and local.stood_alone)
        is_known = self.entry(local.name) is not None or self._is_over(local)
        is_whole = local.places == [(0, 1)]
        return is_home and is_whole and not is_known and (local.is_ours or local.stood_alone)

    def is_about_to_be(self, topic: str) -> bool:
        """Whether `topic` is in a log here that the directory is just being told of."""
        logs = (self.logs.get(name) for name in _owners(topic))
        return any(local and local.kind == "home" and self.is_new(local) for local in logs)

    async def set_aside(self, local: Local) -> None:
        """Keep a log that cannot be in the fabric, out of the way of what is in it."""
        async with local.lock:
            await self.logs.freeze(local)

    def unknown(self) -> list[str]:
        """Topics of logs here that the directory does not know, and cannot be told of."""
        return [
            local.name
            for local in self.logs
            if local.kind and local.is_ours and self.entry(local.name) is None
            and not self._is_over(local) and not self.is_new(local)
        ]  # fmt: skip

    def _is_over(self, local: Local) -> bool:
        """Whether a log here that has no entry is that of a topic which was deleted: of such a one
        the directory knows the last epoch. Nor is one of use that was made and never written to."""
        gone = self._store.get(f"gone.{local.signpost}", int) or 0
        return local.is_ours and (local.copy.root <= gone or not local.copy.last)

    def _is_shut(self, local: Local, entry: TopicEntry) -> bool:
        """Whether a home is shut that only this site can open again."""
        return (
            local.kind == "frozen"
            and local.lease is None
            and entry.home == self.site
            and entry.epoch == local.epoch
        )

    def _may_be_replaced(self, entry: TopicEntry) -> bool:
        """Whether others may replace a home here, and it is to stop before they do."""
        return (
            entry.home == self.site
            and len(entry.members) > 1
            and entry.settings.on_partition == "stop"
        )

    def exposed(self) -> list[TopicEntry]:
        """The topics at home here that others may replace, without those that are shut."""
        logs = [local for local in self.logs if local.kind != "frozen" or local.is_reopened]
        entries = filter(None, (self.entry(local.name) for local in logs))
        return [entry for entry in entries if self._may_be_replaced(entry)]

    def sealed(self, names: Iterable[str]) -> dict[str, int]:
        """Of each topic that has a log here: the epoch that it is sealed for."""
        found = ((name, self.logs.get(name)) for name in names)
        return {name: local.copy.sealed for name, local in found if local and local.kind}

    # What the leader asks for

    async def settle(self, entry: TopicEntry) -> State:
        """Make this site's stream what `entry` says, as far as that is possible at once."""
        local = self.logs.of(entry.name)
        async with local.lock:
            newest = self.entry(entry.name)
            if newest is not None and newest.epoch > entry.epoch:
                entry = newest
            await self._settle(local, entry)
            return self._state(local)

    async def seal(self, name: str, epoch: int) -> State | None:
        """Help no epoch below `epoch` any more; tell how far the log here is."""
        local = self.logs.get(name)
        if local is None:
            return None
        async with local.lock:
            if await self.logs.look(local) is None or epoch < local.copy.sealed:
                return None
            if local.kind == "home" and local.epoch < epoch:
                await self.logs.freeze(local)
            reached = self._reached(local)
            for copy in (local.copy, reached):
                copy.seal(epoch)
            await self.logs.write_marks(local, reached)
            local.copy.label, local.copy.aside = reached.label, reached.aside
            if local.kind == "copy":
                self.following.relay.again(local.stream)  # no answer while it is sealed
            last = await self.logs.measure(local)
            tide = self.openings.tide
            if tide is not None and last < tide.ends.get(name, 0):
                return None  # it has promised, and its word of how far it is counts for nothing
            local.told = self.starts
            return self._state(local)

    async def state(self, name: str) -> State | None:
        """How far the log here is."""
        local = self.logs.get(name)
        if local is None:
            return None
        copy, info = local.copy, await self.logs.info(local)
        while local.copy is not copy:  # that was another segment's
            copy, info = local.copy, await self.logs.info(local)
        if info is None:
            return None
        local.count = info["state"]["messages"] if not local.is_split else 0
        await self._advance(local, end_of(local, info))
        return self._state(local)

    def _reached(self, local: Local) -> Copy:
        """The copy here, with the label of the epoch that it follows if it has reached that one's
        base: whoever marks that looks now and then, and an election is to count all."""
        further, entry = local.copy.twin(), self.entry(local.name)
        if entry is not None and further.following == entry.epoch:
            further.advance(further.last, entry.base)
        return further

    def _state(self, local: Local) -> State:
        aside = local.copy.aside
        return msgspec.structs.replace(
            local.copy.state(),
            young=self._has_forgotten(local),
            full=self.is_full,
            doubted=local.name in self._doubted,
            count=local.count,
            split=aside.split if aside else local.is_split,
            segment=aside.segment if aside else local.segment,
            thinned=self._is_thinned(local),
        )

    def _is_thinned(self, local: Local) -> bool:
        """Whether events here may have taken the place of earlier ones: then it cannot be cut."""
        entry = self.entry(local.name)
        thins = local.thins or (entry is not None and entry.settings.keep_last is not None)
        return thins or local.copy.aside is not None

    def _has_forgotten(self, local: Local) -> bool:
        """Whether ids are missing here from before the engine's start: a copy has them no more."""
        was_copy = local.kind == "copy" or local.stopped == self.starts
        return was_copy and self._connection.now() < self.young_until

    @property
    def _doubted(self) -> Mapping[str, int]:
        return self.openings.tide.doubted if self.openings.tide is not None else {}

    def _is_suspect(self, local: Local) -> bool:
        """Whether a log here is in doubt, and nobody is being asked yet."""
        return local.name in self._doubted and not self.openings.is_running(local.name)

    def _root(self, name: str) -> int:
        local = self.logs.get(name)
        return local.copy.root if local is not None else 0

    async def seal_all(self, topics: Iterable[tuple[str, int]]) -> dict[str, State]:
        """Seal several: the states of those that a log is here of. One that fails is left out, for
        the others' elections must not wait for it."""

        async def seal(name: str, epoch: int) -> State | None:
            try:
                return await self.seal(name, epoch)
            except (SkerryError, Down) as error:
                log.warning("%s could not be sealed for epoch %d: %s", name, epoch, error)
                return None

        wanted = dict(topics)
        states = await asyncio.gather(*(seal(*one) for one in wanted.items()))
        return {name: state for name, state in zip(wanted, states, strict=True) if state}

    def doubt(self) -> None:
        """This site's folder was set back: homes here ask their members, and copies count for
        nothing until they have all again."""
        for entry in map(self.entry, [*self._doubted]):
            if entry is not None:
                self._tasks.spawn(self.settle_quietly(entry))

    async def check(self) -> None:
        """See which copies here that are in doubt have all again: as much as a home has that is in
        none itself, as far as the hub knows as well."""
        if not self._doubted or not (self.site == self.hub or await self._store.fresh(1.0)):
            return
        limit = asyncio.Semaphore(AT_ONCE)

        async def look(name: str, number: int) -> None:
            async with limit:
                with contextlib.suppress(SkerryError, Down, TimeoutError):
                    if await self._has_all(name):
                        assert self.openings.tide is not None
                        self.openings.tide.settle(name, number)

        await asyncio.gather(*(look(*one) for one in self._doubted.items()))

    async def _has_all(self, name: str) -> bool:
        entry = self.entry(name)
        if entry is None or self.site not in entry.members or len(entry.members) == 1:
            return True  # nobody counts on it, or nobody could tell
        home = entry.home
        self._links.want(home)
        if home not in self._links.up:
            return False
        there = await self._peers.state(home, name)
        if there is None or there.doubted or there.label != entry.epoch:
            return False
        told = await self._peers.ask(self.hub, "peer.tide", home) if self.site != self.hub else None
        heard = msgspec.json.decode(told, type=tuple[str, int]) if told else ("", 0)
        if not self._links.is_newest(home, heard):
            return False
        for _ in range(LOOKS):
            here = await self.state(name)
            if here is not None and here.label == entry.epoch and here.last >= there.last:
                return True
            await asyncio.sleep(0.05)
        return False

    async def reached(self, name: str, epoch: int, last: int, timeout: float) -> State | None:
        """How far the log here is, once it holds index `last` of `epoch` or the time is over. It
        may be rolling just now, or about to join."""
        deadline = self._connection.now() + timeout
        while True:
            state = await self.state(name)
            is_there = state and state.label >= epoch and state.last >= last
            if is_there or self._connection.now() > deadline:
                self.logs.of(name).told = self.starts
                return state
            await asyncio.sleep(0.001)

    async def freeze(self, name: str, epoch: int, lease: float) -> int:
        """Shut the home for a move; return its last index. If the directory does not change within
        `lease` seconds, it opens again by itself, under a new epoch."""
        local = self.logs.of(name)
        async with local.lock:
            if local.kind not in ("home", "frozen") or local.epoch != epoch:
                raise FabricError(f"the home of {name} is not here in epoch {epoch}")
            if self.openings.is_running(name) or name in self._doubted:
                raise FabricError(f"{name} asks its members before it opens", "Try again.")
            await self.logs.freeze(local)
            if local.lease is not None:
                local.lease.cancel()
            local.lease = asyncio.get_running_loop().call_later(
                lease, lambda: self._tasks.spawn(self._thaw(name, epoch))
            )
            local.told = self.starts
            return await self.logs.measure(local)

    async def _thaw(self, name: str, epoch: int) -> None:
        """The move did not happen: open again, in a new epoch, so that neither a late leader nor
        what publishers sent into the pause can do harm."""
        local = self.logs.of(name)
        local.lease = None
        while True:
            entry = self.entry(name)
            if entry is None or entry.epoch != epoch or local.kind != "frozen":
                return
            is_old = local.checked != self.starts or name in self._doubted
            if is_old and not self.openings.is_running(name):
                self.openings.begin(local)  # the engine started anew meanwhile: members first
                return
            try:
                last = await self.logs.measure(local)
                local.told = self.starts
                fresh = next_epoch(entry, entry.members, last, self._state(local))
                await self._store.put(topic_key(name), fresh)
                return  # our own watch settles it
            except Unavailable:
                await asyncio.sleep(1.0)
            except (SkerryError, Down):
                await asyncio.sleep(0.1)

    async def shut(self, name: str) -> bool:
        """Take no events for this topic until the directory was asked. Whether it did so far."""
        local = self.logs.of(name)
        async with local.lock:
            was_open = local.kind == "home"
            await self.logs.freeze(local)
            return was_open

    async def streams(self) -> dict[str, Any]:
        """All that the engine says of the logs here, by the names of their streams."""
        return {info["config"]["name"]: info for info in await self._jetstream.streams()}

    async def prepare(self, entry: TopicEntry) -> None:
        """Have a copy, because this site is about to become a member."""
        local = self.logs.of(entry.name)
        local.touched = self._connection.now()
        async with local.lock:
            await self._settle(local, entry)

    # Outboxes

    async def add_source(self, name: str, site: str, until: float, start: int) -> None:
        """Read the outbox of `site` for this topic, whose home is here; from `start` on, if the log
        does not tell."""
        local = self.logs.of(name)
        async with local.lock:
            entry = self.entry(name)
            if local.kind != "home" or entry is None or entry.home != self.site:
                raise FabricError(f"the home of {name} is not here")
            known = site in local.sources
            local.sources[site] = until
            self.following.relay.begin(local.signpost, site, start, not known)
            if not known:
                await self.logs.update(local, self.logs.home(local, entry))

    async def drop_sources(self, local: Local, entry: TopicEntry, sites: Iterable[str]) -> None:
        """Read the outboxes of `sites` no more: they have had nothing for long."""
        async with local.lock:
            for site in sites:
                local.sources.pop(site, None)
            if local.kind == "home" and local.epoch == entry.epoch:
                await self.logs.update(local, self.logs.home(local, entry))

    # Roles

    async def _settle(self, local: Local, entry: TopicEntry) -> None:
        if local.given_up:
            await self.logs.give_up(local)
        info = await self.logs.look(local)
        # The log of a topic that was deleted while we were away; this one has its name.
        if local.is_ours and entry.is_another(local.copy.state().root):
            await self._delete(local)
        if (aside := local.copy.aside) is not None:
            end = fork_of(aside.root, aside.last, entry.lineage)
            local.ends = cut_at([], local.ends, end)
        if entry.home == self.site:
            await self._be_home(local, entry, info)
        elif entry.epoch < local.copy.sealed:  # we have promised a later one
            await self._leave_history(local, entry)
        elif local.kind in ("home", "frozen"):
            await self.logs.freeze(local)
            local.copy.seal(entry.epoch)  # it helps no earlier one, whatever becomes of us
            await self.logs.write_marks(local)
            await self._roll(local, entry)
        elif local.kind == "copy":
            await self._keep_following(local, entry, info)
        elif self._is_needed(local, entry):
            await self._make_copy(local, entry)
        self.mending.begin(local)

    async def _leave_history(self, local: Local, entry: TopicEntry) -> None:
        """A forked log that has promised a later epoch rolls, and follows nobody: who sealed it
        counts it up to its fork in any case, and only when it ends there may it be chosen. It might
        hold what no other member does that answers."""
        copy = local.copy
        if local.kind and is_forked(copy.root, copy.last, entry.lineage):
            await (self.logs.stop(local) if local.kind == "copy" else self.logs.freeze(local))
            await self._roll(local, entry)

    async def _roll(self, local: Local, entry: TopicEntry) -> None:
        """Keep the log here as far as it is part of the history, and follow behind that, unless it
        has promised a later epoch. One that lost events is not worth keeping; one that the events
        beyond have thinned out is copied anew beside it. Both stay as they are while an election
        may count on them."""
        before, tide = local.copy, self.openings.tide
        is_sound = tide is None or local.name not in tide.lost
        is_kept = is_sound and self._is_needed(local, entry)
        is_promised = before.sealed > entry.epoch
        copy = before.twin()
        if (end := copy.roll(entry.lineage) if is_kept else None) is None:
            if not is_promised:
                self._replacement.begin(local)
            return
        is_beside = self._is_thinned(local) and end < before.last
        if is_beside:
            if is_promised:
                return  # it could copy nothing yet, and readers would have nothing
            copy = before.twin()
            copy.begin_beside(local.segment, local.is_split)
        if copy.follow(entry.lineage):
            copy.join(copy.last, entry.lineage)  # else the root stays: it is still its history
        if is_beside and copy.label < entry.epoch:
            local.delivers = False  # plain subscribers do not get the history once more
        local.copy = copy
        try:
            await self.logs.roll(local, entry, end, is_beside)
        except BaseException:
            if local.kind != "copy":
                local.copy = before  # what it claims is not on disk
            raise
        if is_promised:
            return
        self.following.choose(local, entry)
        if copy.label < entry.epoch:
            self._tasks.spawn(self._catch_up(local, entry.epoch))

    async def _be_home(self, local: Local, entry: TopicEntry, info: Info | None) -> None:
        is_known = self.entry(entry.name) is not None  # else it is just being made
        if local.kind == "" and (entry.base > 0 or (is_known and len(entry.members) > 1)):
            self._give_away(entry, "has lost its log")
        if local.kind == "home" and local.epoch == entry.epoch and local.copy.sealed <= entry.epoch:
            is_old = local.checked != self.starts or self._is_suspect(local)
            if is_old and len(entry.members) > 1:
                await self.logs.freeze(local, opening=True)
                self.openings.begin(local)
                return
            wanted = self.logs.home(local, entry)
            if info is not None and not differs(wanted, info["config"]):
                return
        if local.kind == "frozen" and local.epoch == entry.epoch:
            return  # shut for a move or a partition; it opens again in another epoch
        if local.lease is not None:
            local.lease.cancel()
            local.lease = None
        if local.copy.aside is not None and entry.epoch >= local.copy.sealed:
            await self._take_back(local, entry)
        if not local.is_whole and entry.epoch >= local.copy.sealed:
            self.mending.begin(local)
            raise FabricError(f"the log of {entry.name} here is put together first", "Try again.")
        is_new = local.kind != "" and local.copy.label != entry.epoch
        is_chosen = is_new and local.kind != "home" and entry.epoch >= local.copy.sealed
        if is_chosen and len(entry.members) > 1 and local.told != self.starts:
            await self._ask_first(local, entry)
            return
        if is_new and len(entry.members) > 1 and self._is_suspect(local):
            await self.logs.freeze(local)
            self._give_away(entry, "has an older log than it had")
        if entry.epoch < local.copy.sealed:
            return  # we have promised a later one
        if self._is_another_home(local, entry) and local.copy.twin().lead(entry.lineage):
            await self._begin_next(local, entry)
            return
        if not local.copy.lead(entry.lineage):
            await self.logs.freeze(local)
            self._give_away(entry, f"has a log that ends at {local.copy.last}")
        local.epoch = entry.epoch
        config = self.logs.home(local, entry)
        if local.kind == "":
            await self.logs.create(local, config)
        else:
            await self.logs.update(local, config)
        local.kind = "home"
        local.checked = self.starts
        local.parent = ""
        await self.following.leave(local)
        self.tails.bring_home(local)

    async def _take_back(self, local: Local, entry: TopicEntry) -> None:
        """This site was chosen for what its log was, before it began to copy that anew."""
        beside = local.stream
        move = partial(self.durables.roll, local.name)
        if not await self.logs.take_back(local, entry.base, move):
            self._give_away(entry, "has lost what it was chosen for")
        self.following.relay.forget(beside)

    async def _ask_first(self, local: Local, entry: TopicEntry) -> None:
        """The engine was started since this site told how far it is, and was chosen for that: its
        disk may have lost some of it. So it opens as a home does that starts anew."""
        if local.kind == "copy":
            await self.logs.stop(local)
            await self.following.leave(local)
            local.stopped = self.starts
        await self.logs.write_marks(local, epoch=entry.epoch)
        local.epoch = entry.epoch
        self.openings.begin(local)

    def _is_another_home(self, local: Local, entry: TopicEntry) -> bool:
        """Whether the stream that is to lead is not what this site told of it when it was chosen:
        its engine has started since, and has forgotten ids; or it rolled."""
        told = self._state(local)
        has_forgotten = told.young and not entry.forgetful
        is_promoted = local.kind in ("copy", "frozen")
        return is_promoted and (has_forgotten or told.segment != entry.segment)

    async def _begin_next(self, local: Local, entry: TopicEntry) -> None:
        """Lead in the next epoch, whose entry says what is so. Nobody has followed this site, nor
        written to it, in the one that it does not open."""
        last = await self.logs.measure(local)
        newest = self.entry(entry.name)  # its settings may be others
        if newest is None or newest.epoch != entry.epoch:
            return  # it is not known here yet; when it is, the log is settled again
        fresh = next_epoch(newest, newest.members, last, self._state(local))
        await self._store.put(topic_key(entry.name), fresh)

    async def _reopen(self, local: Local, entry: TopicEntry) -> None:
        """No member is ahead: a home that was shut for that opens again. One that was shut for
        another reason, before a crash, does so in a new epoch; so does one that may have lost what
        no member had: its publishers send that again, and do not take what gets its index for it.
        """
        is_shut = not local.is_reopened or local.copy.sealed > local.epoch
        is_shut |= local.copy.label != local.epoch  # chosen, it has not opened yet
        if is_shut or not self.openings.is_trusted(local.name):
            await self._thaw(local.name, local.epoch)
            return
        async with local.lock:
            if local.kind == "frozen" and local.epoch == entry.epoch >= local.copy.sealed:
                await self.logs.update(local, self.logs.home(local, entry))
                local.kind = "home"
                local.checked = self.starts

    def _give_away(self, entry: TopicEntry, why: str) -> NoReturn:
        """The log of a home is gone, or an old one: a member that has it is to take over."""
        if len(entry.members) > 1:
            self.give_up(entry)
        raise FabricError(
            f"site {self.site} is the home of {entry.name} in epoch {entry.epoch} and {why}",
            "Restore the data folder, or move the topic to a site that has a copy.",
        )

    def give_up(self, entry: TopicEntry) -> None:
        """Ask for an epoch whose home is elsewhere."""

        async def renew() -> None:
            try:
                with contextlib.suppress(SkerryError):
                    await self.openings.renew(entry)
            finally:
                self._giving_up.discard(entry.name)

        if entry.name not in self._giving_up:
            self._giving_up.add(entry.name)
            self._tasks.spawn(renew())

    async def _keep_following(self, local: Local, entry: TopicEntry, info: Info | None) -> None:
        if not self._is_needed(local, entry):
            await self.tails.keep_rest(local, entry)
            await self._delete(local)
            return
        copy = local.copy
        if copy.following == entry.epoch and local.parent:
            wanted = self.logs.copy(local, entry)
            if info is not None and differs(wanted, info["config"]):
                await self.logs.update(local, wanted)
            return
        if copy.last < entry.base:  # a subscription may be further than this copy, and than a fork
            frozen = (Segment(local.stream, 1, entry.fork(copy.root)),)
            self._tasks.spawn(self.durables.roll(local.name, frozen, local.chain))
        is_reading, parent = copy.is_joined, local.parent
        if not copy.follow(entry.lineage):
            if is_forked(copy.root, copy.last, entry.lineage):
                log.warning("the copy of %s here has events that its home never had", entry.name)
                await self.logs.stop(local)
                await self._roll(local, entry)
            return
        try:
            await self.logs.update(local, self.logs.copy(local, entry))
            self.following.choose(local, entry)
            if is_reading and local.parent == parent and is_unbroken(copy.root, entry.lineage):
                await self.following.join(local, entry, copy.last)
            else:
                self.following.relay.again(local.stream)
        except (SkerryError, Down):
            copy.following = 0  # the next attempt does all of it
            raise
        if copy.label < entry.epoch:
            self._tasks.spawn(self._catch_up(local, entry.epoch))

    async def _make_copy(self, local: Local, entry: TopicEntry) -> None:
        local.copy = Copy(self.site)
        local.copy.follow(entry.lineage)
        local.copy.join(0, entry.lineage)
        self.following.choose(local, entry)
        has_all = local.copy.label == entry.epoch
        local.delivers &= has_all  # plain subscribers do not get the history once more
        await self.logs.create(local, self.logs.copy(local, entry))
        local.kind = "copy"
        if not has_all:
            self._tasks.spawn(self._catch_up(local, entry.epoch))

    async def _catch_up(self, local: Local, epoch: int) -> None:
        """Mark the copy as complete once it has reached the base, whatever the engine says in
        between: nobody else looks for that in this epoch."""
        wait = 0.01
        while local.copy.following == epoch and local.copy.label < epoch:
            try:
                if await self.state(local.name) is None:
                    return
            except (SkerryError, Down, TimeoutError) as error:
                log.debug("the copy of %s here is not marked yet: %s", local.name, error)
            await asyncio.sleep(wait)
            wait = min(wait * 1.5, 0.5)
        if not local.delivers and local.copy.label == epoch:
            local.delivers = True
            if (entry := self.entry(local.name)) is not None:
                await self.settle_quietly(entry)

    async def _advance(self, local: Local, last: int) -> None:
        entry, copy = self.entry(local.name), local.copy
        copy.last = last
        if entry is None or copy.following != entry.epoch:
            return
        further = copy.twin()
        if further.advance(last, entry.base):
            async with local.lock:
                if local.copy is copy and copy.following == further.following:
                    await self.logs.write_marks(local, further)
                    copy.label, copy.aside = further.label, None

    async def make_anew(self, local: Local, entry: TopicEntry) -> bool:
        """Delete a log that is not part of the history, and copy that if it is needed here;
        whether it is. For `Replacement`, which holds the lock."""
        is_needed = self._is_needed(local, entry)
        await self._delete(local)
        if is_needed:
            await self._make_copy(local, entry)
        self.tails.bring_home(local)
        return is_needed

    async def drop(self, local: Local) -> None:
        """Remove a copy for readers; the lock is held. What only this site has is kept."""
        if local.ends:
            await self.tails.cut(local)
            self.tails.bring_home(local)
        await self._delete(local)
        local.touched = 0.0

    async def _delete(self, local: Local) -> None:
        if local.mending is not None:
            local.mending.cancel()
        await self.logs.delete(local)
        if self.openings.tide is not None:
            self.openings.tide.forget(local.name)
        await self.following.leave(local)

    async def _forget(self, local: Local, last: int | None = None) -> None:
        """The topic was deleted; `last` is the last epoch that it had. A topic of the same name may
        have been made anew: its log stays, if it is here already, and so does the `Local`, for
        somebody may wait for its lock to make one."""
        async with local.lock:
            if last is not None and local.copy.root > last:
                return
            if local.work is not None:
                local.work.cancel()
            if local.lease is not None:
                local.lease.cancel()
                local.lease = None
            await self.tails.forget(local.name)
            await self._delete(local)
            local.touched = 0.0
            local.is_ours = False
            local.sources.clear()

    # Following the directory

    def _on_entry(self, key: str, value: bytes | None) -> None:
        name = topic_of_stream(key.removeprefix("topic."))
        if name is None:
            return
        local = self.logs.get(name)
        if value is None:
            if local is not None:
                last = self._store.get(f"gone.{local.signpost}", int)
                self._tasks.spawn(self._forget(local, last))
            return
        entry = self.entry(name)
        if entry is None:
            return
        if local is not None or self.site in entry.members:
            self._tasks.spawn(self.settle_quietly(entry))

    async def settle_quietly(self, entry: TopicEntry) -> None:
        """Make the log here what `entry` says, however often it takes; until a newer one comes."""
        wait = 0.05
        while True:
            try:
                await self.settle(entry)
                return
            except (SkerryError, Down) as error:
                log.warning("%s is not settled yet: %s", entry.name, error)
            await asyncio.sleep(wait)
            wait = min(wait * 2, 5.0)
            newest = self.entry(entry.name)
            if newest is None or newest.epoch != entry.epoch:
                return

    def _on_fork(self, entry: TopicEntry) -> None:
        self._tasks.spawn(self.settle_quietly(entry))

    def _welds(self, stream: str, start: int) -> str | None:
        return self.mending.source(stream, start)

    def _is_needed(self, local: Local, entry: TopicEntry) -> bool:
        return self.site in entry.members or local.is_wanted


def _owners(topic: str) -> list[str]:
    """The topics that may hold `topic`: itself, and those that it would be a sub-topic of."""
    tokens = topic.split("/")
    return ["/".join(tokens[:depth]) for depth in range(1, len(tokens) + 1)]
