"""Agents asking each other, over the links."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from skerry.engine.answers import open_answer
from skerry.engine.link import Down
from skerry.engine.wire import NO_RESPONDERS, Connection
from skerry.errors import SkerryError, Unavailable
from skerry.fabric.links import Links
from skerry.model.fabric import TopicEntry
from skerry.model.promotion import State, write_quorum

ANSWER = 1.0
"""Seconds that a site may take to tell how far its log is."""


class Peers:
    """Asks the agents of other sites; a site without a link is not waited for."""

    def __init__(self, connection: Connection, links: Links) -> None:
        self._connection = connection
        self._links = links

    async def ask(self, site: str, name: str, body: object = None, timeout: float = 2.0) -> bytes:
        """Ask service `name` of `site` once; it may take `timeout` seconds, beside the way there
        and back. Raises `Unavailable`, or what it answered with."""
        try:
            reply = await self._connection.request(
                f"_sk.{site}.{name}",
                msgspec.json.encode(body),
                timeout=timeout + self._links.way(site),
            )
        except (Down, TimeoutError):
            raise Unavailable(
                f"site {site} did not answer {name}", "Look with `skerry links`."
            ) from None
        if reply.status == NO_RESPONDERS:
            raise Unavailable(f"site {site} is not there", "Look with `skerry links`.")
        return open_answer(reply)

    async def state(self, site: str, name: str) -> State | None:
        """How far the log of `name` is at `site`; None: it has none, or does not answer."""
        with contextlib.suppress(SkerryError, msgspec.MsgspecError):
            data = await self.ask(site, "peer.state", {"name": name}, ANSWER)
            return msgspec.json.decode(data, type=State | None)
        return None


async def is_held(peers: Peers, entry: TopicEntry, last: int) -> bool:
    """Whether so many members hold the log of a home up to `last` that any election would find
    it."""
    states = await asyncio.gather(*(peers.state(site, entry.name) for site in entry.replicas))
    holding = [s for s in states if s and s.label == entry.epoch and s.last >= last]
    return 1 + len(holding) >= write_quorum(len(entry.members))
