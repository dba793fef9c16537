"""Ask the agent of a site: what a service answered is returned, or its error raised here."""

from __future__ import annotations

import msgspec

from skerry import errors
from skerry.engine.jetstream import JetStream
from skerry.engine.wire import NO_RESPONDERS, Reply
from skerry.errors import SkerryError, Unavailable
from skerry.model.control import Answer


async def ask(
    jetstream: JetStream, site: str, name: str, body: object = None, timeout: float | None = None
) -> bytes:
    """Ask a service of `site`; return its answer as JSON, or raise the error it answered with."""
    reply = await jetstream.ask(f"_sk.{site}.{name}", msgspec.json.encode(body), timeout=timeout)
    return open_answer(reply)


def open_answer(reply: Reply) -> bytes:
    """The answer of a service as JSON, or the error that it answered with, raised."""
    if reply.status == NO_RESPONDERS:
        raise Unavailable("nobody is there to answer", "Is the site up and linked?")
    answer = msgspec.json.decode(reply.data, type=Answer)
    if answer.error is not None:
        kind = getattr(errors, answer.error.kind, SkerryError)
        if not (isinstance(kind, type) and issubclass(kind, SkerryError)):
            kind = SkerryError
        raise kind(answer.error.what, answer.error.advice)
    return bytes(answer.ok)
