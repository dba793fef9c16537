"""Ask the agent of a site."""

from __future__ import annotations

import msgspec

from skerry import errors
from skerry.engine.jetstream import JetStream
from skerry.errors import SkerryError
from skerry.model.control import Answer


async def ask(jetstream: JetStream, site: str, name: str, body: object = None) -> bytes:
    """Ask a service of `site`; return its answer as JSON, or raise the error it answered with."""
    reply = await jetstream.ask(f"_sk.{site}.{name}", msgspec.json.encode(body))
    answer = msgspec.json.decode(reply.data, type=Answer)
    if answer.error is not None:
        kind = getattr(errors, answer.error.kind, SkerryError)
        if not (isinstance(kind, type) and issubclass(kind, SkerryError)):
            kind = SkerryError
        raise kind(answer.error.what, answer.error.advice)
    return bytes(answer.ok)
