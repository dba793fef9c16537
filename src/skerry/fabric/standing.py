"""Which homes stay open while the coordination site is away.

A home that cannot ask the directory may have been replaced. But nobody is elected unless enough
members were sealed for a later epoch (`promotion.may_stay_open`). So the home asks its members, as
long as the directory is away: while enough of them are not sealed it goes on, else it is shut until
the directory was asked. Between two questions it may take events that its successor never sees;
they count for nothing at level `quorum`, and are salvaged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

import msgspec

from skerry.engine.link import Down
from skerry.errors import SkerryError
from skerry.fabric.copies import Copies
from skerry.fabric.links import Links
from skerry.fabric.peers import Peers
from skerry.fabric.tasks import Tasks
from skerry.model.fabric import TopicEntry
from skerry.model.promotion import may_stay_open

log = logging.getLogger("skerry.fabric")


class Standing:
    """Watches over the homes of one site. `silence` is the time in seconds between two questions
    to their members, and for which an answer is waited."""

    def __init__(self, copies: Copies, links: Links, peers: Peers, silence: float) -> None:
        self._copies = copies
        self._links = links
        self._peers = peers
        self._silence = silence
        self.asked = 0
        """How often members were asked because the coordination site is away."""
        self._due = 0.0
        self._tasks = Tasks("asking members")
        self._task: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()

    def watch(self) -> None:
        """The coordination site is away: ask the members from now on, until it is back."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + self._silence
        if self._task is None or self._task.done():
            self._task = self._tasks.spawn(self._watch())

    async def confirmed(self) -> set[str]:
        """The topics at home here that cannot have been replaced, as their members tell now. One
        that is just away, because its engine starts anew, is asked again for a while."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._silence
        found: set[str] = set()
        while True:
            entries = [entry for entry in self._copies.exposed() if entry.name not in found]
            found |= await self._confirm(entries)
            if len(found) >= len(self._copies.exposed()) or loop.time() > deadline:
                return found
            await asyncio.sleep(self._silence / 4)

    async def _confirm(self, entries: list[TopicEntry]) -> set[str]:
        """Those of `entries` that enough members confirm; one question to each of them."""
        asked: dict[str, list[str]] = {}
        for entry in entries:
            for member in entry.members:
                asked.setdefault(member, []).append(entry.name)
        answers = await asyncio.gather(*(self._ask(site, asked[site]) for site in asked))
        sealed: dict[str, dict[str, int]] = {}
        for site, marks in zip(asked, answers, strict=True):
            for name, mark in marks.items():
                sealed.setdefault(name, {})[site] = mark
        return {
            entry.name
            for entry in entries
            if may_stay_open(entry.epoch, entry.members, sealed.get(entry.name, {}))
        }

    async def _ask(self, site: str, names: list[str]) -> dict[str, int]:
        if site == self._copies.site:
            return self._copies.sealed(names)
        if site in self._links.up:
            with contextlib.suppress(SkerryError):
                data = await self._peers.ask(site, "peer.sealed", names, timeout=self._silence)
                return msgspec.json.decode(data, type=dict[str, int])
        return {}

    def _is_alone(self) -> bool:
        return self._copies.hub not in self._links.up

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while self._is_alone():
            if (wait := self._due - loop.time()) > 0:
                await asyncio.sleep(wait)
            else:
                self._due = loop.time() + self._silence
                with contextlib.suppress(SkerryError, Down):
                    await self._look()
                self.asked += 1

    async def _look(self) -> None:
        confirmed = await self.confirmed()
        for entry in self._copies.exposed():
            if entry.name in confirmed or not self._is_alone():
                continue
            if await self._copies.shut(entry.name):
                log.warning(
                    "%s takes no events: the coordination site is away, and too few members say "
                    "that it is still at home here",
                    entry.name,
                )
