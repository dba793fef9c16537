"""What a handler is given: the event, and the context through which it acts on the fabric.

Nothing that a handler does through its context counts before it ends well: what it publishes and
the state that it changes then take effect together, once.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from skerry.errors import BadSetting, EventTooLarge
from skerry.functions.frames import Published
from skerry.model.event import extra_headers
from skerry.model.functions import MAX_STATE_VALUE, Order
from skerry.model.names import check_topic, is_own

MAX_KEY = 512
"""Characters of a key of the state."""
MAX_PUBLISHED = 10_000
"""Events that may come of one."""
MAX_PUBLISHED_BYTES = 16 * 1024 * 1024
"""Bytes of the events that may come of one."""
MAX_TOPICS = 4096
"""Names that are remembered to be good ones."""

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


class Event(msgspec.Struct, frozen=True, gc=False):
    """An event as a handler sees it. `data` is decoded as the handler declares; of events that it
    reads with the context it is bytes."""

    topic: str
    index: int
    """Its place in the log."""
    timestamp_ns: int
    """When the home stored it, in nanoseconds since 1970."""
    key: str | None
    headers: dict[str, str]
    """The publisher's own."""
    data: Any
    """Decoded as declared, or bytes."""
    attempt: int = 1
    """2 when it is tried again after a failure, and so on."""

    @property
    def time(self) -> datetime:
        """When the home stored it (to the microsecond, UTC)."""
        seconds, nanos = divmod(self.timestamp_ns, 1_000_000_000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=nanos // 1000)


class Desk(Protocol):
    """What stands behind a context: the worker."""

    function: str
    order: Order
    max_event_bytes: int
    values: dict[str, bytes | None]
    """The state as far as it is known, in MsgPack."""

    def remember(self, key: str, value: bytes | None) -> None:
        """This is known of the state."""

    def ask(self, what: str, *arguments: Any) -> Any:
        """Ask the host; raises what it answers with if that is an error."""


class State:
    """What a function remembers: text → whatever MsgPack can hold. A value that was read is a copy:
    what is changed in it is kept only once it is set again."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    def __getitem__(self, key: str) -> Any:
        value = self._value(key)
        if value is None:
            raise KeyError(key)
        return _decode(value)

    def __setitem__(self, key: str, value: Any) -> None:
        self._context._may_keep(key)
        key.encode()  # what is no Unicode cannot travel
        encoded = _encode(value)
        check_value(key, encoded)
        self._context._changes[key] = encoded

    def __delitem__(self, key: str) -> None:
        if self._value(key) is None:
            raise KeyError(key)
        self._context._changes[key] = None

    def __contains__(self, key: str) -> bool:
        return self._value(key) is not None

    def __iter__(self) -> Iterator[str]:
        raise TypeError("the keys of the state are not known here: keep a list of them in a value")

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or else `default`."""
        value = self._value(key)
        return default if value is None else _decode(value)

    def pop(self, key: str, default: Any = None) -> Any:
        """Remove a key; return its value, or else `default`."""
        value = self._value(key)
        if value is None:
            return default
        self._context._changes[key] = None
        return _decode(value)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The value of a key, which is first set to `default` if there is none."""
        value = self._value(key)
        if value is None:
            self[key] = default
            return default
        return _decode(value)

    def _value(self, key: str) -> bytes | None:
        context = self._context
        context._may_keep(key)
        if key in context._changes:
            return context._changes[key]
        values = context._desk.values
        if key in values:
            return values[key]
        value: bytes | None = context._ask("state", key)
        context._desk.remember(key, value)
        return value


class Context:
    """Through it a handler publishes, reads topics, keeps state and logs."""

    __slots__ = ("_changes", "_desk", "_ended", "_key", "_published", "_size", "state")

    def __init__(self, desk: Desk, key: str) -> None:
        self._desk = desk
        self._key = key
        self._ended = False
        self._size = 0
        self._published: list[Published] = []
        """What was published so far."""
        self._changes: dict[str, bytes | None] = {}
        """What was changed in the state so far, in MsgPack; None: the key is gone."""
        self.state = State(self)
        """What the function remembers between events. With order `topic` it has any keys, with
        order `key` only the event's own (its key, or else its topic), with order `none` none."""

    @property
    def function(self) -> str:
        """The name of the function."""
        return self._desk.function

    def publish(
        self,
        topic: str,
        data: Any,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Publish to a topic or sub-topic once the handler has ended well: bytes, text, or what
        JSON can hold (a dict, a list, a struct)."""
        if self._ended:
            raise RuntimeError("the handler has ended: nothing can be published for its event")
        check_output(topic)
        if type(data) is not bytes:
            data = _payload(data)
        size = len(data)
        if type(topic) is not str:
            topic = _plain(topic)
        if key is not None or headers:
            size += len(extra_headers(headers, key, None))
            key = key if key is None else _plain(key)
            headers = {_plain(name): _plain(value) for name, value in (headers or {}).items()}
        event = Published(topic, data, key, {**headers} if headers else {})
        if size > self._desk.max_event_bytes:
            raise EventTooLarge(
                f"the event for {topic} has {size} bytes, {self._desk.max_event_bytes} are taken",
                "Publish it in parts.",
            )
        self._published.append(event)
        self._add(size)

    def _add(self, size: int) -> None:
        """So many bytes more came of the event."""
        self._size += size
        if self._size > MAX_PUBLISHED_BYTES or len(self._published) > MAX_PUBLISHED:
            raise EventTooLarge(
                f"one event makes more than {MAX_PUBLISHED} events or "
                f"{MAX_PUBLISHED_BYTES >> 20} MB",
                "Publish fewer, or have a chain of functions.",
            )

    def _close(self) -> None:
        """The handler has ended well; nothing can be changed any more."""
        self._ended = True
        if self._changes:
            self._add(sum(len(key) + len(value or b"") for key, value in self._changes.items()))

    def log(self, text: object) -> None:
        """Write to the function's log (`skerry function logs`), at once and even if the handler
        fails."""
        print(text, file=sys.__stdout__, flush=True)

    # The three that an async handler awaits; see AsyncContext.

    def get(self, topic: str, index: int) -> Any:
        """The event with `index`. Raises `AgedOut` or `NotYet` if the log has none there."""
        return Event(*self._ask("get", topic, index))

    def latest_index(self, topic: str) -> Any:
        """The index of the newest event of a topic or sub-topic; 0 if it has none."""
        return self._ask("latest_index", topic)

    def read(self, topic: str, from_index: int = 1, to_index: int | None = None) -> Any:
        """Iterate over events from `from_index` to `to_index` (default: the latest at this
        moment), both included, in order."""
        return self._read(topic, from_index, to_index)

    def _read(self, topic: str, from_index: int, to_index: int | None) -> Iterator[Event]:
        last = self._ask("latest_index", topic) if to_index is None else to_index
        while from_index <= last:
            found = self._ask("read", topic, from_index, last)
            if not found:
                return
            yield from (Event(*each) for each in found)
            from_index = found[-1][1] + 1

    def _ask(self, what: str, *arguments: Any) -> Any:
        if self._ended:
            raise RuntimeError("the handler has ended: it cannot read any more")
        return self._desk.ask(what, *arguments)

    def _may_keep(self, key: str) -> None:
        if self._ended:
            raise RuntimeError("the handler has ended: its state cannot be used any more")
        if type(key) is not str or len(key) > MAX_KEY:
            raise BadSetting(f"a key of the state is text of {MAX_KEY} characters at the most")
        order = self._desk.order
        if order == "topic":
            return
        if order == "none":
            raise BadSetting(
                "a function with order 'none' has no state: its events may be handled together",
                "Deploy it with --order key or --order topic.",
            )
        if key != self._key:
            raise BadSetting(
                f"with order 'key' this event may use the state of {self._key!r} only, "
                f"not {key!r}: another worker may use that",
                "Use event.key (or event.topic, if it has none), or deploy with --order topic.",
            )


class AsyncContext(Context):
    """The context of an `async` handler. One question to the host is answered at a time."""

    __slots__ = ()

    async def get(self, topic: str, index: int) -> Event:
        """The event with `index`. Raises `AgedOut` or `NotYet` if the log has none there."""
        return Event(*self._ask("get", topic, index))

    async def latest_index(self, topic: str) -> int:
        """The index of the newest event of a topic or sub-topic; 0 if it has none."""
        latest: int = self._ask("latest_index", topic)
        return latest

    async def read(
        self, topic: str, from_index: int = 1, to_index: int | None = None
    ) -> AsyncIterator[Event]:
        """Iterate over events from `from_index` to `to_index` (default: the latest at this
        moment), both included, in order."""
        for event in self._read(topic, from_index, to_index):
            yield event


_known: set[str] = set()
_current: Context | None = None


def current() -> Context:
    """The context of the event at hand, for handlers of the form `handler(topic, index, data)`."""
    if _current is None:
        raise RuntimeError("no handler of the form handler(topic, index, data) is running")
    return _current


def entered(context: Context) -> None:
    """A handler without a context begins."""
    global _current
    _current = context


def check_output(topic: str) -> None:
    """Raise unless a function may publish to `topic`."""
    if topic in _known:
        return
    check_topic(topic)
    if is_own(topic):
        raise BadSetting(
            f"the topic {topic} is Skerry's own", "Functions publish to topics of yours."
        )
    if len(_known) >= MAX_TOPICS:
        _known.clear()
    _known.add(topic)


def check_value(key: str, encoded: bytes) -> None:
    """Raise unless the state may hold a value."""
    if len(key) > MAX_KEY:
        raise BadSetting(f"a key of the state is text of {MAX_KEY} characters at the most")
    if len(encoded) > MAX_STATE_VALUE:
        raise BadSetting(
            f"the state's value for {key!r} has {len(encoded)} bytes, "
            f"{MAX_STATE_VALUE} at most are kept",
            "Keep several smaller ones, or publish it to a topic.",
        )


def _plain(text: str) -> str:
    """Text of a subclass (an enumeration's, say) as nothing but text."""
    return str.__str__(text)


def _payload(data: Any) -> bytes:
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    if isinstance(data, dict | list | tuple | msgspec.Struct):
        return msgspec.json.encode(data)
    raise BadSetting(
        f"an event holds bytes, text, a dict or a list, not {type(data).__name__}",
        "Turn it into text with str(…).",
    )
