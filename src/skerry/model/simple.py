"""What simple clients ask for: feeds and queries without the SDK (docs/simple-clients.md).

A request is one JSON object or one MsgPack map, told apart by its first byte, and is answered in
the same form. `op` says which request it is.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from skerry.errors import BadName, BadSetting, InputError
from skerry.model.names import is_feed_log

MAX_REQUEST = 256 * 1024
"""Bytes of a request: the longest query and the largest metadata fit in, however they are written,
unless nearly all of it is escapes. Decoding so much takes a few milliseconds."""

MAX_CLIENT = 64
"""Characters of a client's id."""

_CLIENT = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_JSON_START = b"{ \t\r\n"

Ref = Annotated[str, Meta(max_length=64)] | Annotated[int, Meta(ge=-(2**53), le=2**53)] | None
"""What a client calls a request; its answer bears it."""


class Request(
    msgspec.Struct,
    kw_only=True,
    tag_field="op",
    tag=str.lower,
    forbid_unknown_fields=True,
):
    """One request."""

    ref: Ref = None


class Register(Request, kw_only=True):
    """Asks for a feed, or to have one as this says."""

    feed: str | None = None
    topic: str | None = None
    metadata: dict[str, Any] = {}
    permanent: bool = False


class Set(Request, kw_only=True):
    """Asks to change a feed's metadata."""

    feed: str
    change: dict[str, Any]


class Publish(Request, kw_only=True):
    """Asks to store an event, after a change of its feed's metadata if there is one."""

    feed: str
    data: msgspec.Raw
    change: dict[str, Any] = {}
    id: Annotated[str, Meta(min_length=1, max_length=50)] | None = None
    """Who sends the request again names the event so, and it is stored once."""


class Remove(Request, kw_only=True):
    """Asks to remove a feed."""

    feed: str


class Renew(Request, kw_only=True):
    """Says that the client is there."""


class Query(Request, kw_only=True):
    """Asks for the feeds that match, behind an id, and for the differences from now on."""

    text: str
    after: Annotated[str, Meta(max_length=64)] = ""


class End(Request, kw_only=True):
    """Asks for no more differences of a query."""

    query: str


AnyRequest = Register | Set | Publish | Remove | Renew | Query | End
OPS = ("register", "set", "publish", "remove", "renew", "query", "end")

_from_json: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)
_from_msgpack: msgspec.msgpack.Decoder[AnyRequest] = msgspec.msgpack.Decoder(AnyRequest)
_ADVICE = "docs/simple-clients.md lists what each request holds."
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeError, OverflowError)
"""What decoders raise; the second for what is nested too deep."""


class _Label(msgspec.Struct):
    """What a request that cannot be read as a whole may still tell."""

    ref: Ref = None


def check_client(name: str) -> str:
    """Return `name` if a simple client can have it; else raise `BadName`."""
    if len(name) > MAX_CLIENT or not _CLIENT.fullmatch(name):
        raise BadName(
            f"{name!r:.80} cannot name a client", f"Use 1 to {MAX_CLIENT} letters, digits, _ or -."
        )
    return name


def is_msgpack(data: bytes) -> bool:
    """Whether these bytes begin as a MsgPack map does; no JSON object does."""
    return bool(data) and (0x80 <= data[0] <= 0x8F or data[0] in (0xDE, 0xDF))


def read(data: bytes) -> AnyRequest:
    """A request. Raises `InputError` that says what is wrong with it."""
    if len(data) > MAX_REQUEST:
        raise BadSetting(
            f"the request has {len(data)} bytes, {MAX_REQUEST} at most are taken",
            "Metadata and queries are smaller; publish large events directly.",
        )
    try:
        if is_msgpack(data):
            return _from_msgpack.decode(data)
        if data[:1] and data[0] in _JSON_START:
            return _from_json.decode(data)
    except _UNREADABLE as error:
        raise _unreadable(error) from None
    raise BadSetting(
        "the request is neither a JSON object nor a MsgPack map",
        'Send for instance {"op": "renew"}.',
    )


def ref_of(data: bytes) -> str | int | None:
    """The `ref` of a request that could not be carried out, if it can be found."""
    if len(data) > MAX_REQUEST:
        return None
    decode = msgspec.msgpack.decode if is_msgpack(data) else msgspec.json.decode
    try:
        return decode(data, type=_Label).ref
    except _UNREADABLE:
        return None


def payload_of(raw: msgspec.Raw, packed: bool) -> bytes:
    """The payload that `data` of a request stands for: of a text its UTF-8, of a MsgPack binary its
    bytes, of anything else its JSON or MsgPack as it came."""
    data = bytes(raw)
    try:
        if not packed:
            return msgspec.json.decode(data, type=str).encode() if data[:1] == b'"' else data
        if 0xA0 <= data[0] <= 0xBF or data[0] in (0xD9, 0xDA, 0xDB):
            return msgspec.msgpack.decode(data, type=str).encode()
        if data[0] in (0xC4, 0xC5, 0xC6):
            return msgspec.msgpack.decode(data, type=bytes)
    except _UNREADABLE as error:
        raise _unreadable(error) from None
    return data


def written(message: dict[str, Any], packed: bool) -> bytes:
    """An answer as it travels."""
    return msgspec.msgpack.encode(message) if packed else msgspec.json.encode(message)


def log_of(topic: str) -> str | None:
    """The feed log that holds a feed's topic; None: it is a topic of the user's own."""
    name = "/".join(topic.split("/")[:3])
    return name if is_feed_log(name) else None


def _unreadable(error: Exception) -> InputError:
    what = str(error)
    if isinstance(error, RecursionError):
        return BadSetting("the request is nested too deep", _ADVICE)
    if isinstance(error, UnicodeError):
        return BadSetting("the request holds a text that is no valid UTF-8", _ADVICE)
    if what.startswith("Invalid value") and "$.op" in what:
        return BadSetting(f"this is no request: {what:.200}", f"op is one of {', '.join(OPS)}.")
    return BadSetting(f"the request cannot be read: {what:.200}", _ADVICE)
