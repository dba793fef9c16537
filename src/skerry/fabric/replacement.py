"""Leaving a history: a log that is not part of the topic's any more becomes a fresh copy.

A former home first sends what only it has to the new home. A log of a member goes only when others
prove as much (`promotion.may_discard`), for an election may count on it until then. If they do not,
because one of them is away, the log is put aside, and goes when the fresh copy has reached a base;
the new home of that time gets what only the log has by then. A reader's copy counts for nothing,
and goes at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Protocol

import msgspec

from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.errors import SkerryError, Unavailable
from skerry.fabric.durables import Durables
from skerry.fabric.links import Links
from skerry.fabric.logs import Logs
from skerry.fabric.peers import Peers
from skerry.fabric.salvage import salvage
from skerry.fabric.streams import Local
from skerry.fabric.tasks import Tasks
from skerry.model.fabric import SubscriptionRecord, TopicEntry
from skerry.model.names import reserve_of
from skerry.model.promotion import State, may_discard

log = logging.getLogger("skerry.fabric")

WAIT = 0.25
"""Seconds between two attempts."""
PROOF = 1.0
"""Seconds that others may take to prove that a log is not needed, before it is put aside: those
that are there have followed the new home for long by then. To put aside copies the log."""


class Settler(Protocol):
    """Who makes logs what they are to be."""

    async def make_anew(self, local: Local, entry: TopicEntry) -> bool:
        """Delete the log and, if it is needed, make a copy; whether it was. The lock is held."""

    async def settle_quietly(self, entry: TopicEntry) -> None:
        """Make the log what `entry` says, however often it takes."""


class Replacement:
    """Replaces logs of one site, each in the background."""

    def __init__(
        self,
        jetstream: JetStream,
        logs: Logs,
        links: Links,
        peers: Peers,
        durables: Durables,
        settler: Settler,
    ) -> None:
        self._jetstream = jetstream
        self._logs = logs
        self._links = links
        self._peers = peers
        self._durables = durables
        self._settler = settler
        self._tasks = Tasks("the replacement of a log")

    async def close(self) -> None:
        """Stop; it begins anew when the log is settled."""
        await self._tasks.close()

    def begin(self, local: Local) -> None:
        """Replace a log, unless that is under way."""
        if not local.is_busy:
            local.work = self._tasks.spawn(self._run(local))
            local.work.add_done_callback(lambda done: self._done(local, done))

    def _done(self, local: Local, work: asyncio.Task[None]) -> None:
        if not work.cancelled():
            self.release(local)

    def release(self, local: Local) -> None:
        """Let go of what was put aside, if the copy has taken its place and nobody does so."""
        if self._is_released(local) and (local.release is None or local.release.done()):
            local.release = self._tasks.spawn(self._release(local))

    def _is_released(self, local: Local) -> bool:
        """Whether what was put aside is of no use: the copy has reached a base, or this site is no
        member any more."""
        entry = self._logs.entry(local.name)
        if local.copy.reserve is None or local.is_busy or entry is None:
            return False
        if self._logs.site not in entry.members:
            return local.kind != "frozen"
        return local.kind in ("home", "copy") and local.copy.label > 0

    async def _run(self, local: Local) -> None:
        saved = 0
        kept: dict[str, SubscriptionRecord] = {}
        deadline = asyncio.get_running_loop().time() + PROOF
        while True:
            entry = self._logs.entry(local.name)
            if entry is None or entry.home == self._logs.site:
                return
            try:
                for member in entry.members:
                    self._links.want(member)
                if local.copy.reserve is not None and local.copy.label:
                    await self._give_up(local, entry)
                if await self._is_safe(local, entry):
                    if local.kind == "frozen" and saved != entry.epoch:
                        await self._salvage(local, entry, local.stream, local.copy.state())
                        saved = entry.epoch
                    await self._replace(local, entry, kept)
                    return
                if self._may_put_aside(entry, deadline):
                    await self._logs.put_aside(local, entry)
                    log.warning("the log of %s was put aside: too few others answer", local.name)
                    await self._replace(local, entry, kept)  # what only it has is brought later
                    return
            except (SkerryError, Down) as error:
                log.debug("%s is not replaced yet: %s", local.name, error)
            await asyncio.sleep(WAIT)

    def _may_put_aside(self, entry: TopicEntry, deadline: float) -> bool:
        is_over = asyncio.get_running_loop().time() > deadline
        return is_over and self._logs.site in entry.members

    async def _release(self, local: Local) -> None:
        while self._is_released(local) and (entry := self._logs.entry(local.name)) is not None:
            try:
                await self._give_up(local, entry)
            except (SkerryError, Down) as error:
                log.debug("what was put aside of %s stays for now: %s", local.name, error)
                await asyncio.sleep(WAIT)

    async def _give_up(self, local: Local, entry: TopicEntry) -> None:
        """Remove a reserve, once the home of `entry` has what only that holds."""
        reserve = local.copy.reserve
        if reserve is not None and await self._logs.is_of_former_home(local):
            await self._salvage(local, entry, reserve_of(local.name), reserve)
        async with local.lock:
            newest = self._logs.entry(local.name)
            if newest is None or newest.epoch != entry.epoch:
                return
            if local.copy.label or self._logs.site not in entry.members:
                await self._logs.write_marks(local)  # they count alone from now on
                await self._logs.drop_reserve(local)

    async def _replace(
        self, local: Local, entry: TopicEntry, kept: dict[str, SubscriptionRecord]
    ) -> None:
        """The act itself, unless there is nothing to replace any more; if an election is under way,
        the log is settled again a little later, and that begins anew. `kept` are the durable
        subscriptions, should it fail half-way."""
        async with local.lock:
            newest = self._logs.entry(local.name)
            if newest is None or newest.home == self._logs.site:
                return
            if newest.epoch != entry.epoch or local.copy.sealed > entry.epoch:
                # An election counts on what this log holds: begin anew once it is over.
                asyncio.get_running_loop().call_later(WAIT, self._settle, local.name)
                return
            kept |= await self._durables.save(local.name)
            if await self._settler.make_anew(local, entry):
                await self._durables.restore(local.name, kept)

    def _settle(self, name: str) -> None:
        entry = self._logs.entry(name)
        if entry is not None:
            self._tasks.spawn(self._settler.settle_quietly(entry))

    async def _salvage(self, local: Local, entry: TopicEntry, stream: str, state: State) -> None:
        """Bring what only a former home's log, `stream`, has to the new home."""
        # Of a fork that nobody remembers, no more than is known: to begin at 0 would publish events
        # again that the new home has let age out, or whose ids it never had.
        fork = min(entry.known_fork(state.root), entry.base)
        if state.last <= fork:
            return
        if entry.home != self._logs.site and not await self._links.reach(entry.home, 5.0):
            raise Unavailable(f"no link to {entry.home}")
        count = await salvage(
            self._jetstream, self._logs.site, entry, stream, state.root, fork, state.last
        )
        if count:
            log.warning("%d events that only this site had were added to %s", count, local.name)

    async def _is_safe(self, local: Local, entry: TopicEntry) -> bool:
        site = self._logs.site
        if not local.kind or (local.kind == "copy" and site not in entry.members):
            return True
        states = await asyncio.gather(
            *(self._state(member, entry.name) for member in entry.members if member != site)
        )
        copy = local.copy
        mine = State(site, copy.label, copy.last, copy.root)
        return may_discard(mine, entry.members, filter(None, states))

    async def _state(self, site: str, name: str) -> State | None:
        with contextlib.suppress(SkerryError):
            data = await self._peers.ask(site, "peer.state", {"name": name}, timeout=PROOF)
            return msgspec.json.decode(data, type=State | None)
        return None
