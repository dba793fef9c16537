"""The logs of topics at one site: homes, replicas, copies for readers.

Theory of operation. The directory says of each topic where its home is and which sites are members.
`settle` makes the stream at this site what the newest entry says, one topic at a time:

    entry says            stream here is    what happens
    home is here          none              made (a new topic)
                          a copy            promoted
                          a home            its subjects follow the epoch
    home is elsewhere     none              a copy is made, if we are a member or have readers
                          a copy            follows the new home, or is rebuilt if it forked
                          a home            frozen, salvaged, and when safe replaced by a copy

The marks of `skerry.fabric.promotion` are kept in the stream's metadata, written before they count.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import Any

import msgspec

from skerry.directory.store import STREAM as STORE_STREAM
from skerry.directory.store import Store
from skerry.engine.jetstream import STREAM_NOT_FOUND, ApiError, JetStream
from skerry.engine.link import Down
from skerry.engine.wire import NO_RESPONDERS
from skerry.errors import Conflict, FabricError, SkerryError, Unavailable
from skerry.fabric.durables import Durables
from skerry.fabric.links import Links
from skerry.fabric.peers import Peers
from skerry.fabric.promotion import LINEAGE_KEPT, Copy, State, is_forked, may_discard
from skerry.fabric.relay import Question, Relay
from skerry.fabric.salvage import salvage
from skerry.fabric.streams import MARKS, Local, copy_config, differs, home_config, learn
from skerry.fabric.tree import FANOUT, choose_parent
from skerry.log.topics import unknown_topic
from skerry.model.fabric import CopyRecord, TopicEntry, copy_key, topic_key
from skerry.model.names import topic_of_stream

log = logging.getLogger("skerry.fabric")

FAR = 1.0
"""Seconds that an unmeasured distance counts for, and a link that is not there yet."""
SETTLE_TIME = 10.0
"""Seconds to wait for a copy that readers asked for to have what the home has."""
HOME_FIRST = 3.0
"""Seconds that a fresh copy waits for the home to say how far it is, before it takes the word of
the holder that it follows, which may be behind."""
STUCK = 2.0
"""Seconds after which a copy that was sealed for nothing asks for a new epoch."""
CHECKPOINT = 5.0
"""Seconds between writing down how far durable subscriptions are, for use at other sites."""


class Holding(msgspec.Struct):
    """The log at a site that others may follow: the epoch of its history, its first index."""

    root: int
    first: int


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
        idle: float,
    ) -> None:
        self.site = site
        self.relay = Relay(jetstream.connection, self._choose)
        self._jetstream = jetstream
        self._connection = jetstream.connection
        self._fabric = fabric
        self._store = store
        self._links = links
        self._peers = peers
        self._deliver_plain = deliver_plain
        self._idle = idle
        self._locals: dict[str, Local] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.durables = Durables(
            jetstream, site, store, links, peers, lambda name: self._local(name).copy.root
        )
        self.young_until = 0.0
        """Until when copies here lack ids from before the engine's start."""

    # Life

    async def load(self, streams: Iterable[dict[str, Any]]) -> None:
        """Learn what is here."""
        self._locals = {
            name: local for name, local in self._locals.items() if local.work or local.is_wanted
        }
        for info in streams:
            config = info["config"]
            name = topic_of_stream(config["name"])
            if name is not None:
                local = self._local(name)
                learn(local, info, self._fabric)
                if local.kind == "copy" and not local.is_wanted:
                    local.touched = self._connection.now()  # until it proves to be idle

    def start(self) -> None:
        """Begin to follow the directory."""
        self._store.watch("topic.", self._on_entry)
        self._spawn(self._tend())

    async def close(self) -> None:
        """Stop; logs stay as they are."""
        await self.relay.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def entry(self, name: str) -> TopicEntry | None:
        """Where a topic lives, as far as this site knows."""
        return self._store.get(topic_key(name), TopicEntry)

    def names(self) -> list[str]:
        """All topics of the fabric, as far as this site knows."""
        return [entry.name for entry in self._store.all("topic.", TopicEntry).values()]

    def owner(self, topic: str) -> TopicEntry | None:
        """The entry of the topic that holds `topic`, itself or one that it is a sub-topic of."""
        tokens = topic.split("/")
        for depth in range(1, len(tokens) + 1):
            if (entry := self.entry("/".join(tokens[:depth]))) is not None:
                return entry
        return None

    def homes(self) -> list[str]:
        """The topics whose home is here."""
        return [local.name for local in self._locals.values() if local.kind == "home"]

    @property
    def hub(self) -> str:
        """The site where others meet that cannot be linked."""
        return self._store.origin

    def count(self) -> tuple[int, int]:
        """How many homes and how many copies are here."""
        kinds = [local.kind for local in self._locals.values()]
        return kinds.count("home"), kinds.count("copy")

    def local(self, name: str) -> Local | None:
        """The topic's stream here."""
        return self._locals.get(name)

    async def reconcile(self, is_fresh: bool) -> None:
        """Bring every log here in line with the directory, before clients may write. Without a
        fresh directory, homes that others may have replaced stay shut, unless their topic says
        `continue`."""
        for local in list(self._locals.values()):
            entry = self.entry(local.name)
            if entry is None:
                if is_fresh and local.is_ours:
                    await self._forget(local)  # it was deleted while we were away
                continue
            may_be_replaced = len(entry.members) > 1 and entry.settings.on_partition == "stop"
            is_shut = local.kind == "frozen" and entry.home == self.site and local.lease is None
            if is_fresh and is_shut and entry.epoch == local.epoch:
                self._spawn(self._thaw(local.name, local.epoch))
                continue
            if is_fresh or not (local.kind == "home" and may_be_replaced):
                await self.settle(entry)
            else:
                await self._freeze(local)
        if is_fresh:
            for entry in self._store.all("topic.", TopicEntry).values():
                if self.site in entry.members:
                    await self.settle(entry)

    # What the leader asks for

    async def settle(self, entry: TopicEntry) -> State:
        """Make this site's stream what `entry` says, as far as that is possible at once."""
        local = self._local(entry.name)
        async with local.lock:
            newest = self.entry(entry.name)
            if newest is not None and newest.epoch > entry.epoch:
                entry = newest
            await self._settle(local, entry)
            return self._state(local)

    async def seal(self, name: str, epoch: int) -> State | None:
        """Help no epoch below `epoch` any more; tell how far the log here is."""
        local = self._local(name)
        async with local.lock:
            info = await self._jetstream.stream(local.stream)
            if info is None:
                return None
            learn(local, info, self._fabric)
            if epoch < local.copy.sealed:
                return None
            if local.kind == "home" and local.epoch < epoch:
                await self._freeze(local)
            local.copy.seal(epoch)
            await self._write_marks(local)
            if local.kind == "copy":
                self.relay.again(local.stream)  # which gets no answer while it is sealed
            info = await self._jetstream.stream(local.stream)
            assert info is not None
            local.copy.last = info["state"]["last_seq"]
            return self._state(local)

    async def state(self, name: str) -> State | None:
        """How far the log here is."""
        local = self._local(name)
        info = await self._jetstream.stream(local.stream)
        if info is None:
            return None
        await self._advance(local, info["state"]["last_seq"])
        return self._state(local)

    async def freeze(self, name: str, epoch: int, lease: float) -> int:
        """Shut the home for a move; return its last index. If the directory does not change within
        `lease` seconds, it opens again by itself, under a new epoch."""
        local = self._local(name)
        async with local.lock:
            if local.kind not in ("home", "frozen") or local.epoch != epoch:
                raise FabricError(f"the home of {name} is not here in epoch {epoch}")
            await self._freeze(local)
            loop = asyncio.get_running_loop()
            if local.lease is not None:
                local.lease.cancel()
            local.lease = loop.call_later(lease, lambda: self._spawn(self._thaw(name, epoch)))
            info = await self._jetstream.stream(local.stream)
            assert info is not None
            local.copy.last = info["state"]["last_seq"]
            return local.copy.last

    async def _thaw(self, name: str, epoch: int) -> None:
        """The move did not happen: open again, in a new epoch, so that neither a late leader nor
        what publishers sent into the pause can do harm."""
        local = self._local(name)
        while True:
            entry = self.entry(name)
            if entry is None or entry.epoch != epoch or local.kind != "frozen":
                return
            info = await self._jetstream.stream(local.stream)
            assert info is not None
            try:
                await self._store.put(
                    topic_key(name), next_epoch(entry, entry.members, info["state"]["last_seq"])
                )
                return  # our own watch settles it
            except Conflict:
                await asyncio.sleep(0.1)
            except Unavailable:
                await asyncio.sleep(1.0)

    async def shut(self, name: str) -> None:
        """Take no events for this topic: the coordination site is away, and the topic says stop."""
        local = self._local(name)
        async with local.lock:
            if local.kind == "home":
                await self._freeze(local)

    # What readers ask for

    async def ensure(self, name: str, timeout: float = SETTLE_TIME) -> TopicEntry:
        """Have a copy of the topic here for reading; return where it lives."""
        entry = self.entry(name)
        if entry is None:
            raise unknown_topic(name)
        local = self._local(name)
        local.touched = self._connection.now()
        if local.kind and local.delivers and (local.work is None or local.work.done()):
            return entry
        deadline = self._connection.now() + timeout
        if not any(self._links.can_reach(site) for site in entry.members):
            # Neither end takes links: they meet at the hub, which has to have a copy then.
            await self._peers.ask(self._store.origin, "peer.hold", {"name": name}, timeout)
        # Plain subscribers get what is new, not the history.
        local.delivers = not self._deliver_plain or self.site in entry.members
        await self.settle(entry)
        last = await self._last_known(entry, local, deadline)
        if last is None:
            async with local.lock:
                if local.kind == "copy" and self.site not in entry.members:
                    await self._delete(local)
            raise Unavailable(
                f"site {self.site} has no copy of {name}, and cannot reach its home {entry.home}",
                "Look with `skerry links`; it is fetched once the home is back.",
            )
        while self._connection.now() < deadline:
            info = await self._jetstream.stream(local.stream)
            if info is not None and info["state"]["last_seq"] >= last:
                break
            await asyncio.sleep(0.005)
        if not local.delivers:
            local.delivers = True
            await self.settle(entry)
        return entry

    async def _last_known(self, entry: TopicEntry, local: Local, deadline: float) -> int | None:
        """How far a fresh copy has to come: to where the home is, or the holder that it follows.
        None: neither answers."""
        patience = self._connection.now() + HOME_FIRST
        while (now := self._connection.now()) < deadline:
            sites = [entry.home]
            if now > patience or not self._links.can_reach(entry.home):
                sites.append(local.parent or entry.home)
            for site in sites:
                info = await self._info_at(site, local.stream, 1.0)
                if info is not None:
                    return int(info["state"]["last_seq"])
                self._links.want(site)
            await asyncio.sleep(0.02)
        return None

    async def look(self, entry: TopicEntry) -> dict[str, Any] | None:
        """The state of the topic's log: as the home tells it, else the copy here."""
        if entry.home != self.site:
            info = await self._info_at(entry.home, entry.stream, 1.0)
            if info is not None:
                return info
        return await self._jetstream.stream(entry.stream)

    async def prepare(self, entry: TopicEntry) -> None:
        """Have a copy, because this site is about to become a member."""
        local = self._local(entry.name)
        local.touched = self._connection.now()
        async with local.lock:
            await self._settle(local, entry)

    # Outboxes

    async def add_source(self, name: str, site: str, until: float) -> None:
        """Read the outbox of `site` for this topic, whose home is here."""
        local = self._local(name)
        async with local.lock:
            entry = self.entry(name)
            if local.kind != "home" or entry is None or entry.home != self.site:
                raise FabricError(f"the home of {name} is not here")
            known = site in local.sources
            local.sources[site] = until
            if not known:
                await self._update(local, self._home(local, entry))

    # Roles

    async def _settle(self, local: Local, entry: TopicEntry) -> None:
        info = await self._jetstream.stream(local.stream)
        if info is None:
            local.kind = ""
            local.copy = Copy(self.site)
        else:
            learn(local, info, self._fabric)
        if local.is_ours and len(entry.lineage) == 1 and 0 < local.copy.root < entry.epoch:
            # The log of a topic that was deleted while we were away; this one has its name.
            await self._delete(local, keep_wanted=True)
        if entry.epoch < local.copy.sealed and entry.home != self.site:
            return  # we have promised a later one
        if entry.home == self.site:
            await self._be_home(local, entry)
        elif local.kind in ("home", "frozen"):
            await self._freeze(local)
            local.copy.seal(entry.epoch)  # it helps no earlier one, whatever becomes of us
            await self._write_marks(local)
            self._replace(local)
        elif local.kind == "copy":
            await self._keep_following(local, entry)
        elif self._is_needed(local, entry):
            await self._make_copy(local, entry)

    async def _be_home(self, local: Local, entry: TopicEntry) -> None:
        if local.kind == "" and entry.base > 0:
            raise FabricError(
                f"site {self.site} is the home of {entry.name} and has lost its log",
                "Restore the data folder, or move the topic to a site that has a copy.",
            )
        if local.kind == "home" and local.epoch == entry.epoch and local.copy.sealed <= entry.epoch:
            wanted = self._home(local, entry)
            info = await self._jetstream.stream(local.stream)
            if info is not None and not differs(wanted, info["config"]):
                return
        if local.kind == "frozen" and local.epoch == entry.epoch:
            return  # shut for a move or a partition; it opens again in another epoch
        if local.lease is not None:
            local.lease.cancel()
            local.lease = None
        if not local.copy.lead(entry.lineage):
            log.error(
                "%s cannot be at home here in epoch %d: its log ends at %d",
                entry.name, entry.epoch, local.copy.last,
            )  # fmt: skip
            return
        local.epoch = entry.epoch
        config = self._home(local, entry)
        if local.kind == "":
            await self._jetstream.call(f"STREAM.CREATE.{local.stream}", config)
        else:
            await self._update(local, config)
        local.kind = "home"
        local.parent = ""
        await self._drop_record(local)

    async def _keep_following(self, local: Local, entry: TopicEntry) -> None:
        if not self._is_needed(local, entry):
            await self._delete(local)
            return
        copy = local.copy
        if copy.following == entry.epoch and local.parent:
            wanted = self._copy(local, entry)
            info = await self._jetstream.stream(local.stream)
            if info is not None and differs(wanted, info["config"]):
                await self._update(local, wanted)
            return
        if not copy.follow(entry.lineage):
            if is_forked(copy.root, copy.last, entry.lineage):
                log.warning(
                    "the copy of %s here has events that the new home never had; rebuilding it",
                    entry.name,
                )
                self._replace(local)
            return
        await self._update(local, self._copy(local, entry))
        self._choose_parent(local, entry)
        self.relay.again(local.stream)
        if copy.label < entry.epoch:
            self._spawn(self._catch_up(local, entry.epoch))

    async def _make_copy(self, local: Local, entry: TopicEntry) -> None:
        local.copy = Copy(self.site)
        local.copy.follow(entry.lineage)
        self._choose_parent(local, entry)
        config = self._copy(local, entry)
        await self._jetstream.call(f"STREAM.CREATE.{local.stream}", config)
        local.kind = "copy"
        if local.copy.label < entry.epoch:
            self._spawn(self._catch_up(local, entry.epoch))

    async def _catch_up(self, local: Local, epoch: int) -> None:
        """Mark the copy as complete once it has reached the base."""
        wait = 0.01
        while local.copy.following == epoch and local.copy.label < epoch:
            if await self.state(local.name) is None:
                return
            await asyncio.sleep(wait)
            wait = min(wait * 1.5, 0.5)

    async def _advance(self, local: Local, last: int) -> None:
        entry = self.entry(local.name)
        local.copy.last = last
        follows = entry is not None and local.copy.following == entry.epoch
        if entry is not None and follows and local.copy.advance(last, entry.base):
            async with local.lock:
                await self._write_marks(local)

    def _replace(self, local: Local) -> None:
        """Replace a log that is not part of the history any more, in the background."""
        if local.work is None or local.work.done():
            local.work = self._spawn(self._do_replace(local))

    async def _do_replace(self, local: Local) -> None:
        saved = 0
        while True:
            entry = self.entry(local.name)
            if entry is None or entry.home == self.site:
                return
            try:
                for member in entry.members:
                    self._links.want(member)
                if local.kind == "frozen" and saved != entry.epoch:
                    await self._salvage(local, entry)
                    saved = entry.epoch
                if await self._is_safe(local, entry):
                    break
            except (SkerryError, Down) as error:
                log.debug("%s is not replaced yet: %s", local.name, error)
            await asyncio.sleep(0.25)
        async with local.lock:
            newest = self.entry(local.name)
            if newest is None or newest.home == self.site:
                return
            if newest.epoch != entry.epoch or local.copy.sealed > entry.epoch:
                # An election counts on what this log holds: begin anew once it is over.
                asyncio.get_running_loop().call_later(0.25, self._replace_again, local)
                return
            durables = await self.durables.save(local.name)
            await self._delete(local, keep_wanted=True)
            if self._is_needed(local, entry):
                await self._make_copy(local, entry)
                await self.durables.restore(local.name, durables)

    def _replace_again(self, local: Local) -> None:
        entry = self.entry(local.name)
        if entry is not None:
            self._spawn(self._settle_quietly(entry))

    async def _salvage(self, local: Local, entry: TopicEntry) -> None:
        """Bring what only this former home has to the new one."""
        fork = min(
            [base for epoch, base in entry.lineage if epoch > local.copy.root],
            default=entry.base,
        )
        if local.copy.last <= fork:
            return
        if not await self._links.reach(entry.home, 5.0):
            raise Unavailable(f"no link to {entry.home}")
        count = await salvage(
            self._jetstream, self.site, entry, local.copy.root, fork, local.copy.last
        )
        if count:
            log.warning("%d events that only this site had were added to %s", count, local.name)

    async def _is_safe(self, local: Local, entry: TopicEntry) -> bool:
        states = []
        for member in entry.members:
            if member != self.site:
                with contextlib.suppress(SkerryError):
                    data = await self._peers.ask(member, "peer.state", {"name": entry.name})
                    if (state := msgspec.json.decode(data, type=State | None)) is not None:
                        states.append(state)
        return may_discard(self._state(local), entry.members, states)

    async def _freeze(self, local: Local) -> None:
        if local.kind != "home":
            return
        info = await self._jetstream.stream(local.stream)
        if info is None:
            return
        config = {
            key: value
            for key, value in info["config"].items()
            if key not in ("sources", "subject_transform", "mirror")
        }
        config["subjects"] = [f"_frozen.{local.stream}"]
        await self._update(local, config)
        local.kind = "frozen"
        local.sources.clear()
        info = await self._jetstream.stream(local.stream)
        assert info is not None
        local.copy.last = info["state"]["last_seq"]

    async def _delete(self, local: Local, keep_wanted: bool = False) -> None:
        with contextlib.suppress(ApiError):
            await self._jetstream.call(f"STREAM.DELETE.{local.stream}")
        local.kind = ""
        local.parent = ""
        local.copy = Copy(self.site)
        if not keep_wanted:
            local.touched = 0.0
        await self._drop_record(local)

    async def _forget(self, local: Local) -> None:
        """The topic was deleted."""
        async with local.lock:
            if local.work is not None:
                local.work.cancel()
            await self._delete(local)
        self._locals.pop(local.name, None)

    # Following the directory

    def _on_entry(self, key: str, value: bytes | None) -> None:
        name = topic_of_stream(key.removeprefix("topic."))
        if name is None:
            return
        local = self._locals.get(name)
        if value is None:
            if local is not None:
                self._spawn(self._forget(local))
            return
        entry = msgspec.json.decode(value, type=TopicEntry)
        if local is not None or self.site in entry.members:
            self._spawn(self._settle_quietly(entry))

    async def _settle_quietly(self, entry: TopicEntry) -> None:
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

    def _is_needed(self, local: Local, entry: TopicEntry) -> bool:
        return self.site in entry.members or local.is_wanted

    # Whom to follow

    def _choose_parent(self, local: Local, entry: TopicEntry, anywhere: bool = False) -> None:
        if self.site in entry.members:
            local.parent = entry.home
        else:
            records = self._store.all(f"copy.{local.stream}.", CopyRecord)
            if anywhere:
                records.pop(self.site, None)
            links = self._links

            def distance(site: str) -> float:
                return links.rtt.get(site, FAR) + (0 if site in links.up else FAR)

            lost = links.missing()

            def is_there(site: str) -> bool:
                return site not in lost and links.can_reach(site)

            place = choose_parent(self.site, entry, records, self._store.origin, is_there, distance)
            local.parent = place.parent
            if records.get(self.site) != place:
                self._spawn(self._put_record(local, place))
        self._links.want(local.parent)

    async def _put_record(self, local: Local, record: CopyRecord) -> None:
        with contextlib.suppress(Conflict, Unavailable):
            await self._store.put(copy_key(local.name, self.site), record)

    async def _drop_record(self, local: Local) -> None:
        key = copy_key(local.name, self.site)
        if self._store.get(key, CopyRecord) is not None:
            with contextlib.suppress(Conflict, Unavailable):
                await self._store.delete(key)

    async def _choose(self, question: Question) -> str | None:
        """The holder that a mirror may read now; see `Relay`."""
        if question.stream == STORE_STREAM:
            return self._store.origin
        local = self._locals.get(topic_of_stream(question.stream) or "")
        entry = self.entry(local.name) if local else None
        if local is None or entry is None or local.copy.following != entry.epoch:
            return None
        if local.parent not in self._links.up:
            self._links.want(local.parent)
            if self.site not in entry.members:
                self._choose_parent(local, entry)
            if local.parent not in self._links.up:
                return None
        try:
            data = await self._peers.ask(local.parent, "peer.holding", {"name": local.name}, 1.0)
        except SkerryError:
            return None
        holding = msgspec.json.decode(data, type=Holding | None)
        if holding is None or holding.root != entry.epoch:
            # It has not heard of this epoch yet, and may hold events that are not in its history.
            if local.parent != entry.home and self.site not in entry.members:
                local.parent = entry.home
                self._links.want(entry.home)
            return None
        if 1 < question.start < holding.first:
            log.warning(
                "the copy of %s here ends at %d, and %s keeps events from %d on; rebuilding it",
                local.name, question.start - 1, local.parent, holding.first,
            )  # fmt: skip
            self._replace(local)
            return None
        return local.parent

    async def holding(self, name: str) -> Holding | None:
        """What a copy elsewhere that wants to follow the log here must know of it."""
        local = self._local(name)
        info = await self._jetstream.stream(local.stream)
        if info is None or local.kind == "":
            return None
        return Holding(local.copy.root, info["state"]["first_seq"])

    def on_link(self, peer: str, is_up: bool) -> None:
        """A link changed: mirrors and sources that use it must be told, or would wait."""
        if not is_up:
            self.relay.lost(peer)
        elif peer == self._store.origin and not self.relay.is_reading(STORE_STREAM):
            self.relay.again(STORE_STREAM)
        for local in self._locals.values():
            if local.kind == "copy" and local.parent == peer:
                entry = self.entry(local.name)
                if not is_up and entry is not None and self.site not in entry.members:
                    self._choose_parent(local, entry)
                if local.parent in self._links.up and not self.relay.is_reading(local.stream):
                    self.relay.again(local.stream)
            elif (
                local.kind == "home"
                and is_up
                and peer in local.sources
                and not self.relay.is_reading(local.stream, peer)
            ):
                self.relay.again(local.stream, peer)

    async def _info_at(self, site: str, stream: str, timeout: float) -> dict[str, Any] | None:
        try:
            reply = await self._connection.request(
                f"$JS.{site}.API.STREAM.INFO.{stream}", timeout=timeout
            )
        except (Down, TimeoutError):
            return None
        if reply.status == NO_RESPONDERS:
            return None
        info: dict[str, Any] = msgspec.json.decode(reply.data)
        return None if "error" in info else info

    # Upkeep

    async def _tend(self) -> None:
        """Keep the links that copies need, remove copies that nobody reads, drop idle sources."""
        last = self._connection.now()
        while True:
            await asyncio.sleep(min(self._idle / 4, 1.0))
            now = self._connection.now()
            try:
                for local in list(self._locals.values()):
                    await self._tend_one(local, now)
                await self.durables.note_new()
                if now - last > CHECKPOINT:
                    last = now
                    await self.durables.checkpoint()
            except (SkerryError, Down) as error:
                log.debug("upkeep: %s", error)

    async def _tend_one(self, local: Local, now: float) -> None:
        entry = self.entry(local.name)
        if entry is None:
            return
        if local.kind == "copy":
            self._links.want(local.parent)
            self._watch_seal(local, entry, now)
            self._make_way(local, entry)
            if self.site not in entry.members and now - local.touched > self._idle:
                async with local.lock:
                    info = await self._jetstream.stream(local.stream)
                    if info is not None and info["state"].get("consumer_count", 0) == 0:
                        await self._delete(local)
                    else:
                        local.touched = now
        elif local.kind == "home" and local.sources:
            idle = [site for site, until in local.sources.items() if now > until]
            if idle:
                async with local.lock:
                    for site in idle:
                        local.sources.pop(site, None)
                    if local.kind == "home":
                        await self._update(local, self._home(local, entry))
            for site in local.sources:
                self._links.want(site)

    def _make_way(self, local: Local, entry: TopicEntry) -> None:
        """Copies that appeared at once may all have chosen one holder: the later ones go on."""
        if self.site in entry.members:
            return
        records = self._store.all(f"copy.{local.stream}.", CopyRecord)
        same = sorted(site for site, record in records.items() if record.parent == local.parent)
        has_children = any(record.parent == self.site for record in records.values())
        if self.site in same[FANOUT:] and not has_children:
            before = local.parent
            self._choose_parent(local, entry, anywhere=True)
            if local.parent != before:
                self.relay.again(local.stream)

    def _watch_seal(self, local: Local, entry: TopicEntry, now: float) -> None:
        """A copy that was sealed for an epoch which never came follows nobody: say so."""
        if local.copy.sealed <= entry.epoch:
            local.stuck = 0.0
        elif not local.stuck:
            local.stuck = now
        elif now - local.stuck > STUCK:
            local.stuck = now
            self._spawn(self._ask_for_epoch(local))

    async def _ask_for_epoch(self, local: Local) -> None:
        with contextlib.suppress(SkerryError):
            body = {"name": local.name}
            await self._peers.ask(self._store.origin, "peer.lead.topic.renew", body, timeout=5.0)

    # Streams

    def _state(self, local: Local) -> State:
        copy = local.copy
        young = local.kind == "copy" and self._connection.now() < self.young_until
        return State(self.site, copy.label, copy.last, copy.root, young)

    def _local(self, name: str) -> Local:
        if name not in self._locals:
            self._locals[name] = Local(name, self.site)
        return self._locals[name]

    def _home(self, local: Local, entry: TopicEntry) -> dict[str, Any]:
        return home_config(local, entry, self._fabric, self._deliver_plain)

    def _copy(self, local: Local, entry: TopicEntry) -> dict[str, Any]:
        return copy_config(local, entry, self._fabric, self._deliver_plain and local.delivers)

    async def _write_marks(self, local: Local) -> None:
        info = await self._jetstream.stream(local.stream)
        if info is None:
            return
        config = info["config"]
        marks = {f"skerry.{mark}": str(getattr(local.copy, mark)) for mark in MARKS}
        await self._update(
            local, {**config, "metadata": {**(config.get("metadata") or {}), **marks}}
        )

    async def _update(self, local: Local, config: dict[str, Any]) -> None:
        try:
            await self._jetstream.call(f"STREAM.UPDATE.{local.stream}", config)
        except ApiError as error:
            if error.code == STREAM_NOT_FOUND:
                local.kind = ""
            raise

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("work on a copy failed: %s", error, exc_info=error)


def next_epoch(
    entry: TopicEntry, members: tuple[str, ...], base: int, young: bool = False
) -> TopicEntry:
    """The entry of the epoch after `entry`; its home, the first of `members`, begins at `base`."""
    lineage = (*entry.lineage, (entry.epoch + 1, base))[-LINEAGE_KEPT:]
    return msgspec.structs.replace(
        entry,
        home=members[0],
        epoch=entry.epoch + 1,
        members=members,
        lineage=lineage,
        forgetful=young or (entry.forgetful and members[0] == entry.home),
    )
