"""A home whose engine started anew takes events only when no member is ahead of it.

Theory of operation. What a home acknowledged at level `quorum` another member holds as well. A home
that lost the end of its log (a flipped bit, a power cut, a folder from an old backup) and went on
would give indexes a second time, and its members would confirm them by what they had there before.
So after every start of its engine a home is shut, asks its members how far they are, and opens
again in the same epoch (`promotion.may_open`). Members that do not answer in time are not waited
for, unless something speaks against this log: then a read quorum of the others must answer.

A log that was cut short, or that has holes where a member has events, does not open: the leader is
asked for another epoch, whose home is a member that has all. The log here is copied anew from it.

Nobody else writes meanwhile. Publishers lost their connection with the engine, and send one event
at a time until that is answered, so to open in the same epoch puts nothing out of order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from skerry.engine.link import Down
from skerry.engine.tide import Tide
from skerry.errors import SkerryError
from skerry.fabric.links import Links
from skerry.fabric.logs import Logs
from skerry.fabric.peers import Peers
from skerry.fabric.streams import Local
from skerry.fabric.tasks import Tasks
from skerry.model.fabric import TopicEntry
from skerry.model.promotion import State, may_open

log = logging.getLogger("skerry.fabric")

REDIAL = 1.0
"""Seconds that members may take to be linked again, beside the patience."""
AGAIN = 0.5
"""Seconds between two questions to members that did not answer at once."""


class Openings:
    """Of one site. `reopen` opens a home; `patience` is for how many seconds members are waited
    for that do not answer."""

    def __init__(
        self,
        logs: Logs,
        links: Links,
        peers: Peers,
        hub: str,
        patience: float,
        reopen: Callable[[Local, TopicEntry], Awaitable[None]],
    ) -> None:
        self.tide: Tide | None = None
        """What is known of the logs on disk."""
        self.is_flushed = True
        """Whether the disk has all that the engine wrote to it."""
        self._logs = logs
        self._links = links
        self._peers = peers
        self._hub = hub
        self._patience = patience
        self._reopen = reopen
        self._tasks = Tasks("asking members before a home opens")
        self._running: dict[str, asyncio.Task[None]] = {}

    def is_trusted(self, name: str) -> bool:
        """Whether the log here has all that it ever had, as far as is known."""
        return self.is_flushed and self._doubt(name) is None

    def _doubt(self, name: str) -> int | None:
        return self.tide.doubted.get(name) if self.tide is not None else None

    async def close(self) -> None:
        """Stop; homes that are shut stay so."""
        await self._tasks.close()

    def is_running(self, name: str) -> bool:
        """Whether a home waits for its members."""
        task = self._running.get(name)
        return task is not None and not task.done()

    def are_running(self) -> bool:
        """Whether any home does."""
        return any(map(self.is_running, self._running))

    def begin(self, local: Local) -> None:
        """Open a home that is shut, once its members were asked."""
        if not self.is_running(local.name):
            self._running[local.name] = self._tasks.spawn(self._open(local))

    async def _open(self, local: Local) -> None:
        try:
            await self._run(local)
        finally:
            local.is_reopened = False

    async def _run(self, local: Local) -> None:
        loop = asyncio.get_running_loop()
        epoch = 0
        while (entry := self._waits(local)) is not None:
            if entry.epoch != epoch:  # of this one nobody was asked
                epoch, deadline = entry.epoch, loop.time() + self._patience
                answers: dict[str, State] = {}
                told = is_behind = False
            if self._links.is_locked:  # nobody can be linked yet
                deadline = loop.time() + self._patience + REDIAL
            others = set(entry.members) - {self._logs.site}
            doubt = self._doubt(local.name)
            answers |= await self._ask(entry, others - answers.keys())
            if (now := self._waits(local)) is None or now.epoch != epoch:
                continue  # that is about another epoch
            is_over = loop.time() > deadline
            if self._doubt(local.name) != doubt:
                continue  # it is older than we thought
            verdict = self._judge(local, entry, answers)
            try:
                if verdict is False:
                    is_behind = True  # for good, also if those who are ahead answer no more
                    log.error("%s does not open here: %s", entry.name, self._why(local, answers))
                    await self.renew(entry)
                elif verdict and not is_behind and (is_over or others <= answers.keys()):
                    await self._reopen(local, entry)
                    if self.tide is not None and doubt is not None:
                        self.tide.settle(local.name, doubt)
                    return
                elif is_over and not told:
                    told = True
                    log.warning(
                        "%s waits for its members: the log here may have lost events", entry.name
                    )
            except (SkerryError, Down) as error:
                log.warning("%s is not open yet: %s", entry.name, error)
            if is_over or verdict is False:
                answers.clear()  # they may be further by then
                await asyncio.sleep(AGAIN)
            else:
                await asyncio.sleep(0.01)

    def _waits(self, local: Local) -> TopicEntry | None:
        """The entry whose home is shut here; None: there is nothing to open any more."""
        entry = self._logs.entry(local.name)
        is_here = entry is not None and entry.home == self._logs.site
        is_shut = local.kind == "frozen" and entry is not None and entry.epoch == local.epoch
        return entry if is_here and is_shut and local.lease is None else None

    def _judge(self, local: Local, entry: TopicEntry, answers: dict[str, State]) -> bool | None:
        mine = State(self._logs.site, entry.epoch, local.copy.last)
        ends, lost = (self.tide.ends, self.tide.lost) if self.tide is not None else ({}, {})
        is_whole = local.copy.last >= ends.get(local.name, 0)  # a copy may have fetched it again
        is_trusted = is_whole and self.is_trusted(local.name)
        verdict = may_open(mine, entry.base, entry.members, answers.values(), is_trusted)
        # What was lost is brought back from whoever has it: a member becomes the home.
        if local.name in lost and len(entry.members) > 1 and is_whole:
            return verdict if not any(a.count > local.count for a in answers.values()) else False
        return verdict if is_whole or not verdict else len(entry.members) == 1

    def _why(self, local: Local, answers: dict[str, State]) -> str:
        known = self.tide.lost.get(local.name) if self.tide is not None else None
        known = known or f"its log ends at index {local.copy.last}"
        best = max(answers.values(), key=lambda state: (state.label, state.last), default=None)
        return known if best is None else f"{known}; {best.site} has {best.last}"

    async def _ask(self, entry: TopicEntry, sites: set[str]) -> dict[str, State]:
        for site in sites:
            self._links.want(site)
        there = sorted(sites & self._links.up)
        states = await asyncio.gather(*(self._peers.state(site, entry.name) for site in there))
        return {state.site: state for state in states if state is not None}

    async def renew(self, entry: TopicEntry) -> None:
        """Ask for another epoch, whose home is elsewhere."""
        body = {"name": entry.name, "epoch": entry.epoch + 1, "barred": [self._logs.site]}
        await self._peers.ask(self._hub, "peer.lead.topic.renew", body, timeout=5.0)
