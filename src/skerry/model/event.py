"""Events, and the headers they travel with."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from skerry.errors import BadSetting
from skerry.model.names import topic_of_subject

ID_HEADER = "Nats-Msg-Id"
KEY_HEADER = "Skerry-Key"
LIFESPAN_HEADER = "Nats-TTL"
VERSION_HEADER = b"Skerry-Feed-Version"
_OWN = ("nats-", "skerry-", "nmqtt-")
_BLANK = b""

ACK_PREFIX = b"$JS.ACK."
"""What acknowledgement subjects begin with; then come, between dots, perhaps a domain and an
account, stream, consumer, deliveries, index, number, time and pending."""


def index_of(reply: bytes) -> int:
    """The index that an acknowledgement subject names."""
    return int(reply.rsplit(b".", 4)[1])


def reply_of(index: int, nanoseconds: int) -> bytes:
    """The acknowledgement subject of an event that was not delivered by a consumer."""
    return b"%b-.-.1.%d.0.%d.0" % (ACK_PREFIX, index, nanoseconds)


class Event(msgspec.Struct, gc=False, eq=False):
    """One element of a topic's log.

    `index` grows strictly within the topic; sub-topics share their parent's indexes. What is
    seldom asked for is taken out of the wire's form only when it is.
    """

    _subject: bytes
    index: int
    _head: bytes
    data: bytes
    reply: bytes
    """The engine's acknowledgement subject, which also tells time and number of deliveries."""
    _headers: dict[str, str] | None = None

    @property
    def topic(self) -> str:
        """The topic or sub-topic that it was published to."""
        return topic_of_subject(self._subject.decode())

    @property
    def time(self) -> datetime:
        """When the home stored it (to the microsecond, UTC)."""
        seconds, nanos = divmod(self.timestamp_ns, 1_000_000_000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=nanos // 1000)

    @property
    def timestamp_ns(self) -> int:
        """When the home stored it, in nanoseconds since 1970."""
        return int(self.reply.rsplit(b".", 2)[1])

    @property
    def deliveries(self) -> int:
        """How often this durable subscription was given it, this time included."""
        return int(self.reply.rsplit(b".", 5)[1])

    @property
    def headers(self) -> dict[str, str]:
        """The publisher's own headers."""
        return {k: v for k, v in self._all().items() if not k.lower().startswith(_OWN)}

    @property
    def key(self) -> str | None:
        """The key it was published with."""
        return self._all().get(KEY_HEADER)

    @property
    def id(self) -> str | None:
        """The id that makes it exactly-once; None from plain clients that sent none."""
        return self._all().get(ID_HEADER)

    @property
    def feed_version(self) -> int:
        """Which version of its feed's metadata it was published under; 0: it says none."""
        start = self._head.find(VERSION_HEADER)
        if start < 0:
            return 0
        text = self._head[start + len(VERSION_HEADER) :].partition(b"\r")[0].lstrip(b": ")
        return int(text) if text.isdigit() else 0

    @property
    def redelivered(self) -> bool:
        """Whether this durable subscription was given it before."""
        return self.deliveries > 1

    def __repr__(self) -> str:
        return f"<Event {self.topic} #{self.index}, {len(self.data)} bytes>"

    def _all(self) -> dict[str, str]:
        if self._headers is None:
            self._headers = parse_headers(self._head)
        return self._headers


def parse_headers(head: bytes) -> dict[str, str]:
    """A header block as the wire carries it → names and values. The last of a name wins."""
    headers = {}
    for line in head.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            headers[name.decode("utf-8", "replace")] = value.strip().decode("utf-8", "replace")
    return headers


def timestamp_of(text: str) -> int:
    """A time as the engine writes it in a header → nanoseconds since 1970."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    seconds = int(datetime.fromisoformat(whole + "+00:00").timestamp())
    return seconds * 1_000_000_000 + int(fraction.ljust(9, "0") or 0)


def status_of(head: bytes) -> int:
    """The status code of a header block (`NATS/1.0 503 …`), 0 if it carries none."""
    return int(head[9:12]) if head[8:9] == b" " and head[9:12].isdigit() else 0


def extra_headers(
    headers: Mapping[str, str] | None, key: str | None, lifespan: float | None
) -> bytes:
    """The header lines for what a publisher asks for; `BadSetting` if they cannot travel."""
    if headers is None and key is None and lifespan is None:
        return _BLANK
    lines = []
    for name, value in (headers or {}).items():
        if not name or not name.isascii() or not name.isprintable() or ":" in name or " " in name:
            raise BadSetting(
                f"{name!r} cannot name a header", "Use plain ASCII without : or space."
            )
        if name.lower().startswith(_OWN):
            raise BadSetting(
                f"the header {name!r} is the engine's or Skerry's own",
                "Headers that begin with Nats-, Nmqtt- or Skerry- are reserved.",
            )
        lines.append(f"{name}:{_one_line(name, value)}\r\n")
    if key is not None:
        lines.append(f"{KEY_HEADER}:{_one_line('key', key)}\r\n")
    if lifespan is not None:
        if not lifespan >= 1 or lifespan != int(lifespan):
            raise BadSetting(
                f"a lifespan is a whole number of seconds, 1 or more, not {lifespan!r}"
            )
        lines.append(f"{LIFESPAN_HEADER}:{int(lifespan)}\r\n")
    return "".join(lines).encode()


def check_id(value: str) -> str:
    """Return `value` if it can be an event's id; else raise `BadSetting`."""
    if not value or len(value) > 128 or not value.isascii() or not value.isprintable():
        raise BadSetting(
            f"{value!r} cannot be an event id", "Use 1 to 128 printable ASCII characters."
        )
    return value


def _one_line(name: str, value: str) -> str:
    if not isinstance(value, str) or "\r" in value or "\n" in value or value != value.strip():
        raise BadSetting(
            f"the value of {name!r} cannot travel in a header",
            "Use text in one line, without blanks around it; put the rest in the payload.",
        )
    return value
