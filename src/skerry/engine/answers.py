"""What a service answered: its result, or its error raised here."""

from __future__ import annotations

import msgspec

from skerry import errors
from skerry.engine.wire import NO_RESPONDERS, Reply
from skerry.errors import SkerryError, Unavailable
from skerry.model.control import Answer


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
