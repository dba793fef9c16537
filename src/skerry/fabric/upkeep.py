"""What a site's logs need as time passes.

The links that copies and sources use are renewed, copies that nobody reads are removed, outboxes
with nothing to read are dropped, and a copy that waits for an epoch which never came says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from skerry.engine.link import Down
from skerry.errors import SkerryError
from skerry.fabric.copies import Copies
from skerry.fabric.links import Links
from skerry.fabric.peers import Peers
from skerry.fabric.readers import Readers
from skerry.fabric.streams import Local
from skerry.fabric.tasks import Tasks
from skerry.model.fabric import TopicEntry

log = logging.getLogger("skerry.fabric")

STUCK = 2.0
STUCK_MOST = 60.0
"""Seconds after which a copy that was sealed for nothing asks for a new epoch, the first time and
at the most: one that hears of no epoch, because its site has no room left, asks in vain. From
afar, the news of one takes longer."""
CHECKPOINT = 5.0
"""Seconds between writing down how far durable subscriptions are, for use at other sites."""


class Upkeep:
    """Looks after the logs of one site. `idle` is for how many seconds a reader's copy stays that
    nobody reads."""

    def __init__(
        self, copies: Copies, readers: Readers, links: Links, peers: Peers, idle: float
    ) -> None:
        self._copies = copies
        self._readers = readers
        self._links = links
        self._peers = peers
        self._idle = idle
        self._checking: asyncio.Task[None] | None = None
        self._tasks = Tasks("upkeep")

    def start(self) -> None:
        """Begin."""
        self._tasks.spawn(self._tend())

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()

    async def _tend(self) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()
        durables = self._copies.durables
        while True:
            await asyncio.sleep(min(self._idle / 4, 1.0))
            now = loop.time()
            try:
                for local in self._copies.logs:
                    entry = self._copies.entry(local.name)
                    if entry is not None:
                        await self._tend_one(local, entry, now)
                if self._checking is None or self._checking.done():
                    self._checking = self._tasks.spawn(self._copies.check())
                await durables.note_new()
                if now - last > CHECKPOINT:
                    last = now
                    await durables.checkpoint()
            except (SkerryError, Down) as error:
                log.debug("upkeep: %s", error)

    async def _tend_one(self, local: Local, entry: TopicEntry, now: float) -> None:
        if local.kind == "copy":
            if local.parent:  # one that has promised an epoch to come follows nobody
                self._links.want(local.parent)
            self._watch_seal(local, entry, now)
            self._copies.following.make_way(local, entry)
            if now - local.touched > self._idle:
                await self._readers.drop_unread(local, entry, now)
        elif local.kind == "frozen":
            self._watch_seal(local, entry, now)
        elif local.kind == "home" and local.sources:
            idle = {site for site, until in local.sources.items() if now > until}
            if idle:
                await self._copies.drop_sources(local, entry, idle)
            for site in local.sources:
                self._links.want(site)

    def _watch_seal(self, local: Local, entry: TopicEntry, now: float) -> None:
        """A copy that was sealed for an epoch which never came follows nobody: say so."""
        if local.copy.sealed <= entry.epoch:
            local.stuck, local.patience = 0.0, STUCK
        elif not local.stuck:
            local.stuck = now
        elif now - local.stuck > local.patience + 2 * self._links.way(self._copies.hub):
            local.stuck = now
            local.patience = min(local.patience * 2, STUCK_MOST)
            self._tasks.spawn(self._ask_for_epoch(local))

    async def _ask_for_epoch(self, local: Local) -> None:
        with contextlib.suppress(SkerryError):
            body = {"name": local.name, "epoch": local.copy.sealed}
            await self._peers.ask(self._copies.hub, "peer.lead.topic.renew", body, timeout=5.0)
