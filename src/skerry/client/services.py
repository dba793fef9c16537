"""Ask the agent of a site."""

from __future__ import annotations

import msgspec

from skerry.engine.answers import open_answer
from skerry.engine.jetstream import JetStream


async def ask(
    jetstream: JetStream, site: str, name: str, body: object = None, timeout: float | None = None
) -> bytes:
    """Ask a service of `site`; return its answer as JSON, or raise the error it answered with."""
    reply = await jetstream.ask(f"_sk.{site}.{name}", msgspec.json.encode(body), timeout=timeout)
    return open_answer(reply)
