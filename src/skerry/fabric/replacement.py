"""A log that cannot be kept: removed, and copied anew where it is needed.

Two kinds of log cannot be kept: one that is not needed here any more, and one of which nobody
remembers where it left the history. What only such a log has is brought home first. A member's
goes only when others prove as much (`promotion.may_discard`), for an election may count on it until
then. A reader's copy counts for nothing, and goes at once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from skerry.engine.link import Down
from skerry.errors import SkerryError
from skerry.fabric.durables import Durables
from skerry.fabric.links import Links
from skerry.fabric.logs import Logs
from skerry.fabric.peers import Peers
from skerry.fabric.streams import Local
from skerry.fabric.tails import Tails
from skerry.fabric.tasks import Tasks
from skerry.model.fabric import SubscriptionRecord, TopicEntry
from skerry.model.promotion import may_discard

log = logging.getLogger("skerry.fabric")

WAIT = 0.25
"""Seconds between two attempts."""


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
        logs: Logs,
        links: Links,
        peers: Peers,
        durables: Durables,
        tails: Tails,
        settler: Settler,
    ) -> None:
        self._logs = logs
        self._links = links
        self._peers = peers
        self._durables = durables
        self._tails = tails
        self._settler = settler
        self._tasks = Tasks("the replacement of a log")

    async def close(self) -> None:
        """Stop; it begins anew when the log is settled."""
        await self._tasks.close()

    def begin(self, local: Local) -> None:
        """Replace a log, unless that is under way."""
        if not local.is_busy:
            local.work = self._tasks.spawn(self._run(local))

    async def _run(self, local: Local) -> None:
        saved = False
        kept: dict[str, SubscriptionRecord] = {}
        while True:
            entry = self._logs.entry(local.name)
            if entry is None or entry.home == self._logs.site:
                return
            try:
                for member in entry.members:
                    self._links.want(member)
                if await self._is_safe(local, entry):
                    if local.kind == "frozen" and not saved:
                        await self._tails.keep_rest(local, entry)
                        saved = True
                    await self._replace(local, entry, kept)
                    return
            except (SkerryError, Down) as error:
                log.debug("%s is not replaced yet: %s", local.name, error)
            await asyncio.sleep(WAIT)

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

    async def _is_safe(self, local: Local, entry: TopicEntry) -> bool:
        site = self._logs.site
        if not local.kind or (local.kind == "copy" and site not in entry.members):
            return True
        others = [member for member in entry.members if member != site]
        states = await asyncio.gather(*(self._peers.state(other, entry.name) for other in others))
        return may_discard(local.copy.state(), entry.members, filter(None, states))
