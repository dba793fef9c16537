"""The lines of the engine's protocol. Nothing else in Skerry writes one.

The engine reads a line as words between blanks. A name with a blank or a line break in it would
become two words, or a line of its own: a command that its author chose, given with the rights of
whoever wrote it down. So every word is looked at here, and what a connection sends is a `Frame`,
which only this module makes.

Events that are published by the thousand have one subject: it is looked at once, in a `Template`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from skerry.errors import BadName

if TYPE_CHECKING:

    class Frame(bytes):
        """One or more whole protocol messages."""

    class Template:
        """A frame without what differs from event to event: its number, the size of its headers
        and of all, its number, its payload."""

        def __init__(self, raw: bytes) -> None: ...
        def __mod__(self, values: tuple[int, int, int, int, bytes]) -> Frame: ...
else:
    Frame = Template = bytes

_FORBIDDEN = bytes(range(0x21)) + b"\x7f"

PING = Frame(b"PING\r\n")
PONG = Frame(b"PONG\r\n")
ID = b"NATS/1.0\r\nNats-Msg-Id:"
"""How the headers of an event begin, up to its id."""


def word(text: str | bytes) -> bytes:
    """`text` as one word of a line; raises `BadName` if it would not stay one."""
    raw = text if type(text) is bytes else _encoded(text)
    if raw.translate(None, _FORBIDDEN) != raw or not raw:
        raise BadName(
            f"{text!r:.80} cannot be part of a subject: it is empty, or holds a blank or a control "
            "character",
            "Names hold letters, digits, _ and -.",
        )
    return raw


def _encoded(text: str | bytes) -> bytes:
    try:
        return text.encode() if isinstance(text, str) else bytes(text)
    except UnicodeEncodeError:
        return b""


def pub(
    subject: str | bytes, data: bytes = b"", reply: str | bytes = b"", head: bytes = b""
) -> Frame:
    """A message, with a place for the answer if `reply` is given, with headers if `head` is."""
    to = word(subject)
    if reply:
        to = b"%b %b" % (to, word(reply))
    if not head:
        return Frame(b"PUB %b %d\r\n%b\r\n" % (to, len(data), data))
    size = len(head)
    return Frame(b"HPUB %b %d %d\r\n%b%b\r\n" % (to, size, size + len(data), head, data))


def template(subject: str | bytes, reply: str | bytes, id: str | bytes) -> Template:
    """Of events to `subject`, answered below `reply`, with ids that begin with `id`."""
    words = [word(each).replace(b"%", b"%%") for each in (subject, reply, id)]
    return Template(b"HPUB %b %b%%d %%d %%d\r\n%b%b%%d\r\n\r\n%%b\r\n" % (*words[:2], ID, words[2]))


def redirected(frame: Frame, subject: bytes, reply: bytes) -> Frame:
    """The same event to another subject, and with another place for the answer."""
    line, _, rest = frame.partition(b"\r\n")
    _, _, _, size, total = line.split(b" ")
    return Frame(b"HPUB %b %b %b %b\r\n%b" % (word(subject), word(reply), size, total, rest))


def sub(subject: str | bytes, sid: bytes) -> Frame:
    """Asks for the messages of a subject."""
    return Frame(b"SUB %b %b\r\n" % (word(subject), word(sid)))


def unsub(sid: bytes) -> Frame:
    """Asks for no more of them."""
    return Frame(b"UNSUB %b\r\n" % word(sid))


def connect(hello: dict[str, object]) -> Frame:
    """Says who we are. JSON has no line breaks but those that it escapes."""
    return Frame(b"CONNECT %b\r\n" % json.dumps(hello).encode())


def joined(frames: list[Frame]) -> Frame:
    """One after the other."""
    return Frame(b"".join(frames))
