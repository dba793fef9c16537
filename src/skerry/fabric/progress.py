"""Tell publishers how far a replica is.

A publisher that waits for replicas asks each once; from then on this agent looks at its own copy,
as often as the publisher wants to know, and tells the last index whenever it grew. One number
confirms thousands of events; no event is looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

import msgspec

from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.errors import SkerryError
from skerry.fabric.copies import Copies
from skerry.fabric.tasks import Tasks
from skerry.model.control import ProgressReport, ProgressRequest

log = logging.getLogger("skerry.fabric")

LEASE = 5.0
"""Seconds for which a publisher is told without asking again."""
QUICK = 0.001
SLOW = 0.005
"""Seconds between looks: while the copy grows, and at the most while it does not."""


class _Watch:
    def __init__(self) -> None:
        self.readers: dict[str, tuple[float, float]] = {}
        """Where to tell, until when, and how often at the most."""
        self.told: dict[str, tuple[int, int]] = {}
        self.task: asyncio.Task[None] | None = None


class Progress:
    """Watches this site's copies for the publishers that asked."""

    def __init__(self, jetstream: JetStream, copies: Copies) -> None:
        self._jetstream = jetstream
        self._connection = jetstream.connection
        self._copies = copies
        self._watches: dict[str, _Watch] = {}
        self._tasks = Tasks("telling publishers how far a replica is")

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()

    async def watch(self, request: ProgressRequest) -> None:
        """Tell `request.inbox` how far the copy of `request.name` is, for a while."""
        watch = self._watches.setdefault(request.name, _Watch())
        watch.readers[request.inbox] = (self._connection.now() + LEASE, request.every)
        watch.told.pop(request.inbox, None)
        if watch.task is None or watch.task.done():
            watch.task = self._tasks.spawn(self._tell(request.name, watch))

    async def _tell(self, name: str, watch: _Watch) -> None:
        wait = QUICK
        while watch.readers:
            now = self._connection.now()
            for inbox in [inbox for inbox, (until, _) in watch.readers.items() if now > until]:
                del watch.readers[inbox]
                watch.told.pop(inbox, None)
            grew = False
            with contextlib.suppress(SkerryError, Down):
                grew = await self._look(name, watch)
            every = min((every for _, every in watch.readers.values()), default=SLOW)
            wait = max(every, QUICK) if grew else min(wait * 1.5, max(SLOW, every))
            await asyncio.sleep(wait)

    async def _look(self, name: str, watch: _Watch) -> bool:
        await self._copies.state(name)
        local = self._copies.local(name)
        report = local.copy.report() if local is not None and local.kind == "copy" else None
        if report is None:
            return False
        news = (report.label, report.last)
        body = msgspec.json.encode(ProgressReport(self._copies.site, report.label, report.last))
        grew = False
        for inbox in watch.readers:
            if watch.told.get(inbox) != news:
                self._connection.publish(inbox, body)
                watch.told[inbox] = news
                grew = True
        return grew
