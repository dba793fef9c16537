"""Events on their way through a function, in the order in which their effects count."""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from skerry.functions.frames import Published
from skerry.functions.journal import Output, Position, Progress, output_id
from skerry.model.event import KEY_HEADER, Event, parse_headers
from skerry.model.functions import DEAD, MAX_HOPS

HOPS_HEADER = "Skerry-Hops"
EVENTS = 4096
BYTES = 8 * 1024 * 1024
"""What may be on its way at the most."""
OVERHEAD = 128
"""Bytes that an event, an output or a value takes beside its data, about."""
DEAD_ORDINAL = -1
"""The ordinal of an event's dead letter, for its id."""
ABOUT = "Function-"
"""What headers of dead letters begin with that say what happened."""

_PLAIN = b"NATS/1.0\r\nNats-Msg-Id:"
_OWN = ("nats-", "skerry-", "nmqtt-")


class Item(msgspec.Struct, eq=False, gc=False):
    """One event to handle, and what came of it."""

    topic: str
    index: int
    time_ns: int
    key: str | None
    headers: dict[str, str]
    data: bytes
    hops: int
    again: int = 0
    """The request that it is handled for once more; 0: for the first time."""
    progress: Progress = Progress()
    """Where the function is once this one, and all before it, are done."""
    attempts: int = 0
    """How often it failed."""
    done: bool = False
    outputs: tuple[Output, ...] = ()
    state: dict[str, bytes | None] = {}
    size: int = 0
    """Bytes in memory, about."""
    effects: int = 0
    """Bytes that its effects take in a record, about."""

    def __post_init__(self) -> None:
        """Measure it."""
        self.size = len(self.data) + OVERHEAD

    def take(self, outputs: tuple[Output, ...], state: dict[str, bytes | None]) -> int:
        """Take what came of it; how large that is."""
        self.outputs, self.state = outputs, state
        size = 0
        for output in outputs:
            size += len(output.data) + OVERHEAD
            if output.headers:
                size += sum(len(name) + len(value) for name, value in output.headers.items())
        if state:
            for key, value in state.items():
                size += len(key) + len(value or b"") + OVERHEAD
        self.effects = size
        return size


def item_of(event: Event, topic: str) -> Item:
    """What is to be handled. `topic` is the event's, which the caller may know already."""
    head = event._head
    if head.startswith(_PLAIN) and head.count(b"\r\n") == 3:  # an id and nothing else
        return Item(topic, event.index, event.timestamp_ns, None, {}, event.data, 0)
    fields = parse_headers(head)
    own = {name: value for name, value in fields.items() if not name.lower().startswith(_OWN)}
    hops = fields.get(HOPS_HEADER, "0")
    return Item(
        topic,
        event.index,
        event.timestamp_ns,
        fields.get(KEY_HEADER),
        own,
        event.data,
        int(hops) if hops.isdigit() else 0,
    )


class Namer:
    """Makes the outputs of one function, version and log, with their ids."""

    def __init__(self, function: str, version: int, log: str) -> None:
        self._function = function
        self._version = version
        self._log = log

    def outputs(self, item: Item, published: tuple[Published, ...]) -> tuple[Output, ...]:
        """What a handler published, to be written down."""
        hops = item.hops + 1
        return tuple(
            [
                Output(one.topic, one.data, self._id(item, ordinal), one.key, one.headers, hops)
                for ordinal, one in enumerate(published)
            ]
        )

    def dead_letter(self, item: Item, error: str, room: int) -> Output:
        """The event with what happened to it. Without its data if there is no room for them."""
        about = {
            "Error": " ".join(error.split())[:1000] or "failed",
            "Topic": item.topic,
            "Log": self._log,
            "Index": str(item.index),
            "Time": str(item.time_ns),
            "Version": str(self._version),
            "Attempts": str(item.attempts),
        }
        data, own = item.data, item.headers
        if item.size + sum(map(len, own)) + sum(map(len, own.values())) > room:
            about["Cut"] = str(len(data))
            data, own = b"", {}
        headers = own | {ABOUT + name: value for name, value in about.items()}
        return Output(
            f"{DEAD}/{self._function}", data, self._id(item, DEAD_ORDINAL), item.key, headers
        )

    def circles(self, item: Item) -> str:
        """Why an event is not handled that came through too many functions; empty: it is."""
        if item.hops < MAX_HOPS:
            return ""
        return (
            f"went through {item.hops} functions: does {self._function} publish to a topic that "
            "triggers it?"
        )

    def _id(self, item: Item, ordinal: int) -> str:
        return output_id(
            self._function,
            self._version,
            self._log,
            item.index,
            item.time_ns,
            ordinal,
            item.again,
        )


class Line:
    """The order of things: what is put in first counts first, whenever it is done."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        """Where the function is once all that was put in is done."""
        self.taken = progress
        """The same for all that was taken out."""
        self.waiting = asyncio.Event()
        """Set when something may be taken out."""
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def is_full(self) -> bool:
        """Whether to wait for `room` before more is put in."""
        return not self._room.is_set()

    async def room(self) -> None:
        """Wait until there is room."""
        await self._room.wait()

    def put(self, item: Item, progress: Progress) -> None:
        """Add an item behind all others; with it the function is at `progress`."""
        self.progress = item.progress = progress
        self._items.append(item)
        self._bytes += item.size
        if len(self._items) >= EVENTS or self._bytes >= BYTES:
            self._room.clear()

    def skip(self, progress: Progress) -> None:
        """The function is further without anything to handle."""
        self.progress = progress
        if self._items:
            self._items[-1].progress = progress
        else:
            self.taken = progress
            self.waiting.set()

    def at(self, position: Position) -> Progress:
        """The progress with another place in the log."""
        return Progress(position, self.progress.again, self.progress.partly)

    def finished(self, item: Item) -> None:
        """The item is done; what it changed is in it."""
        item.done = True
        if item is self._items[0]:
            self.waiting.set()

    def take(self, most: int, events: int = EVENTS) -> list[Item]:
        """Take what is done at the front, with effects of up to `most` bytes; one at least."""
        taken: list[Item] = []
        items = self._items
        while items and items[0].done and len(taken) < events:
            item = items[0]
            most -= item.effects
            if most < 0 and taken:
                break
            taken.append(items.popleft())
            self._bytes -= item.size
        if taken:
            self.taken = taken[-1].progress
        if not (items and items[0].done):
            self.waiting.clear()
        if len(items) < EVENTS and self._bytes < BYTES:
            self._room.set()
        return taken


def merged(items: list[Item]) -> tuple[dict[str, bytes | None], tuple[Output, ...]]:
    """New values and outputs of many items, in order."""
    state: dict[str, bytes | None] = {}
    outputs: list[Output] = []
    for item in items:
        if item.state:
            state.update(item.state)
        if item.outputs:
            outputs.extend(item.outputs)
    return state, tuple(outputs)
