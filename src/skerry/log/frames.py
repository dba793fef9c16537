"""One event on its way to the engine: the frame that is sent, and the answer to it."""

from __future__ import annotations

import re
import secrets
from typing import Protocol

import msgspec

from skerry.engine.jetstream import ApiError, error_of
from skerry.engine.lines import Frame, redirected, word
from skerry.engine.wire import NO_RESPONDERS
from skerry.errors import BadSetting, Conflict, EngineError, EventTooLarge, SkerryError
from skerry.log.topics import unknown_topic
from skerry.model.event import status_of
from skerry.model.names import stored_subject

ACK = re.compile(rb'\{"stream":"[^"]*",(?:"domain":"[^"]*",)? ?"seq":(\d+)')
"""An acknowledgement, with the index."""

WRONG_SEQUENCE = 10071
"""The engine's refusal of a write whose condition does not hold."""


class Ticket(Protocol):
    """What a caller waits with: an `asyncio.Future`."""

    def done(self) -> bool: ...
    def set_result(self, result: int, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...
    def exception(self) -> BaseException | None: ...


InFlight = tuple[Ticket, Frame, float, str]
"""What waits for its acknowledgement: the caller's ticket, the frame to send again, when it was
sent, and its topic. A bare tuple: one is made for every event."""


def new_id() -> str:
    """An id that nobody else has."""
    return secrets.token_hex(8)


_OWN = re.compile(r"([0-9a-f]{16})-([0-9]{1,18})")


def number_of(id: str | None) -> tuple[str, int] | None:
    """Which publisher gave an event its id, and as which in its order; None: it was given one."""
    own = _OWN.fullmatch(id or "")
    return (own[1], int(own[2])) if own else None


def check_size(size: int, site: int, topic: int | None) -> None:
    """Refuse what the engine would end the connection for, or a topic would never take from an
    outbox."""
    if size > site:
        raise EventTooLarge(
            f"the event has {size} bytes, the engine takes {site}",
            "Split the payload, or raise the site's --max-event-bytes.",
        )
    if topic is not None and size > topic:
        raise EventTooLarge(
            f"the event, {size} bytes, is larger than its topic takes: {topic}",
            "Raise it with `skerry topic set … --max-event-bytes`, or split the payload.",
        )


def payload_of(data: bytes | str) -> bytes:
    """What a caller may publish, as bytes."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise BadSetting(f"a payload is bytes or text, not {type(data).__name__}", "Encode it first.")


def outcome_of(topic: str, head: bytes, data: bytes) -> int | SkerryError:
    """What the engine answered to a publish: an index, or why there is none."""
    if match := ACK.match(data):
        return int(match.group(1))
    if is_nobody(head):
        return unknown_topic(topic)
    try:
        error = error_of(msgspec.json.decode(data)) or EngineError("the engine answered nonsense")
    except msgspec.DecodeError:
        return EngineError(f"the engine answered a publish with {data[:80]!r}")
    if isinstance(error, ApiError) and error.code == WRONG_SEQUENCE:
        return Conflict(
            f"somebody else wrote to {topic} first", "Read what is there now, and decide anew."
        )
    return error


def only_if(topic: str, last: int) -> bytes:
    """A header for `Publisher.send(mark=…)`: store the event only if the last one of `topic`, which
    need not be the topic it goes to, has index `last` (0: there is none). Else it is a `Conflict`;
    so is one that was stored and is sent again, where it itself is that last one."""
    return b"Nats-Expected-Last-Subject-Sequence:%d\r\n" % last + (
        b"Nats-Expected-Last-Subject-Sequence-Subject:%b\r\n" % word(stored_subject(topic))
    )


def is_nobody(head: bytes) -> bool:
    """Whether the answer says that nobody takes what was sent there."""
    return bool(head) and status_of(head) == NO_RESPONDERS


def aimed(frame: Frame, prefix: bytes, inbox: bytes) -> Frame:
    """The frame of an event, for another home and with another place for the answer."""
    _, subject, reply, _ = frame.split(b" ", 3)
    name = subject.split(b".", 3 if subject[:2] == b"s." else 2)[-1]
    return redirected(frame, prefix + name, inbox + reply[reply.rindex(b".") + 1 :])


def id_of(frame: bytes) -> str:
    """The id of the event in a frame."""
    start = frame.index(b"Nats-Msg-Id:") + len(b"Nats-Msg-Id:")
    return frame[start : frame.index(b"\r", start)].decode().strip()
