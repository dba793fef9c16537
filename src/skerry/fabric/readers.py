"""Copies for readers: had when somebody reads, dropped when nobody does."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.engine.wire import NO_RESPONDERS
from skerry.errors import Unavailable
from skerry.fabric.copies import Copies
from skerry.fabric.links import Links
from skerry.fabric.peers import Peers
from skerry.fabric.streams import Local
from skerry.log.topics import unknown_topic
from skerry.model.fabric import TopicEntry

SETTLE_TIME = 10.0
"""Seconds to wait for a copy that readers asked for to have what the home has."""
HOME_FIRST = 3.0
"""Seconds that a fresh copy waits for the home to say how far it is, before it takes the word of
the holder that it follows, which may be behind."""


class Readers:
    """Sees to what the readers of one site need."""

    def __init__(self, jetstream: JetStream, copies: Copies, links: Links, peers: Peers) -> None:
        self._jetstream = jetstream
        self._connection = jetstream.connection
        self._copies = copies
        self._site = copies.site
        self._links = links
        self._peers = peers

    async def ensure(self, name: str, timeout: float = SETTLE_TIME) -> TopicEntry:
        """Have a copy of the topic here for reading; return where it lives."""
        entry = self._copies.entry(name)
        if entry is None:
            raise unknown_topic(name)
        local = self._copies.logs.of(name)
        local.touched = self._connection.now()
        if local.kind and local.delivers and not local.is_busy:
            return entry
        deadline = self._connection.now() + timeout
        if not any(self._links.can_reach(site) for site in entry.members):
            # Neither end takes links: they meet at the hub, which has to have a copy then.
            await self._peers.ask(self._copies.hub, "peer.hold", {"name": name}, timeout)
        # Plain subscribers get what is new, not the history; a member's copy that is being made
        # anew sees to that itself.
        local.delivers &= self._site in entry.members
        await self._copies.settle(entry)
        last = await self._last_known(entry, local, deadline)
        if last is None:
            async with local.lock:
                if local.kind == "copy" and self._site not in entry.members:
                    await self._copies.drop(local)
            raise Unavailable(
                f"site {self._site} has no copy of {name}, and cannot reach its home {entry.home}",
                "Look with `skerry links`; it is fetched once the home is back.",
            )
        while self._connection.now() < deadline:
            info = await self._copies.logs.info(local)
            if info is not None and info["state"]["last_seq"] >= last:
                if local.kind == "copy" and not local.delivers:
                    local.delivers = True
                    await self._copies.settle(entry)
                break
            await asyncio.sleep(0.005)
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
                state = await self._peers.state(site, entry.name)
                if state is not None:
                    return state.last
                self._links.want(site)
            await asyncio.sleep(0.02)
        return None

    async def look(self, entry: TopicEntry) -> dict[str, Any] | None:
        """The state of the topic's log: as the home tells it, else the copy here."""
        if entry.home != self._site:
            info = await self._info_at(entry.home, entry.stream, 1.0)
            if info is not None:
                return info
        return await self._copies.logs.info(self._copies.logs.of(entry.name))

    async def drop_unread(self, local: Local, entry: TopicEntry, now: float) -> None:
        """Remove a copy for readers that has none."""
        if self._site in entry.members:
            return
        asked_for = local.touched
        async with local.lock:
            info = await self._copies.logs.info(local)
            is_read = info is None or info["state"].get("consumer_count", 0)
            if local.kind != "copy" or local.is_split or is_read:
                local.touched = now
            elif local.touched == asked_for:
                await self._copies.drop(local)

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
