"""Agents asking each other, over the links."""

from __future__ import annotations

import msgspec

from skerry.engine.answers import open_answer
from skerry.engine.link import Down
from skerry.engine.wire import NO_RESPONDERS, Connection
from skerry.errors import Unavailable
from skerry.fabric.links import Links


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
