"""A log at a site is a chain of streams.

The engine can make a home of a mirror, never a mirror of a home. So a site whose home was replaced,
or whose copy took events that are not part of the history, does not copy the log anew: it leaves
its stream as it is and goes on in a new one. The streams are *segments*. All but the last one are
frozen. They belong to this site alone; the same log may be one stream at another.

    t~roof          1 …………… 500 | 501 502      frozen; 501 and 502 are not part of the history
    t~roof~~1                     501 ………… 800   frozen
    t~roof~~2                                801 …   active: the copy of a home

A segment ends where the next one begins: what a frozen stream holds beyond that counts for nothing.
Later the agent welds the segments into one stream, with a higher number, and removes them. A home
is always a single stream; the directory's entry names it (`TopicEntry.stream`).

The stream with the log's own name is there as long as the log is, even when it holds nothing any
more: it is the *signpost*. Its metadata lists the chain, so whoever reads at this site asks about
it first. The list may change at any time. A reader whose segment becomes frozen, or is removed, is
told by the engine: its consumer is gone. Whoever reads by index looks again when the index, or the
stream, is not there.

The agent changes the list first, and removes consumers, events and streams afterwards. So whoever
makes a consumer looks at the list once more behind that: if it is the same, it will be told. And if
a frozen segment has nothing more, that counts only if the list still names it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from skerry.engine.jetstream import (
    CONSUMER_EXISTS,
    CONSUMER_NOT_FOUND,
    STREAM_NOT_FOUND,
    ApiError,
    JetStream,
)
from skerry.engine.wire import NO_RESPONDERS
from skerry.errors import EngineUnfit
from skerry.model.event import parse_headers
from skerry.model.names import stream_of

CHAIN = "skerry.chain"
"""Where the metadata of the signpost lists the chain: `[[number, first index], …]`."""


_Places = Annotated[list[tuple[int, int]], msgspec.Meta(min_length=1)]


class Segment(msgspec.Struct, frozen=True):
    """One stream of a log, and which indexes are read there."""

    stream: str
    first: int
    last: int = sys.maxsize
    """The last index of a frozen segment; the active one is open."""

    @property
    def is_active(self) -> bool:
        """Whether it still grows."""
        return self.last == sys.maxsize


Chain = tuple[Segment, ...]
"""The segments of a log in the order of their indexes, the active one last."""

Info = dict[str, Any]
"""What the engine says of a stream, or of a consumer."""


class Moved(Exception):
    """A stream that the chain named is not there: look at the chain again."""


class Extent(msgspec.Struct, frozen=True):
    """What a log at a site holds: its chain, and what the engine says of each of its streams."""

    chain: Chain
    infos: tuple[Info, ...]

    @property
    def first(self) -> int:
        """The first kept index; behind the last one if there is none."""
        for segment, info in zip(self.chain[:-1], self.infos, strict=False):
            state = info["state"]
            if state["messages"] and state["first_seq"] <= segment.last:
                return max(int(state["first_seq"]), segment.first)
        return max(int(self.infos[-1]["state"]["first_seq"]), 1)

    @property
    def last(self) -> int:
        """The latest index."""
        return int(self.infos[-1]["state"]["last_seq"])

    @property
    def events(self) -> int:
        """How many events it holds; about, while a segment holds some beyond its end."""
        count = 0
        for segment, info in zip(self.chain, self.infos, strict=True):
            state = info["state"]
            beyond = state["last_seq"] - segment.last - state.get("num_deleted", 0)
            count += max(int(state["messages"]) - max(beyond, 0), 0)
        return count

    @property
    def bytes(self) -> int:
        """What they take on disk."""
        return sum(int(info["state"]["bytes"]) for info in self.infos)

    @property
    def config(self) -> Info:
        """How the log is kept now."""
        config: Info = self.infos[-1]["config"]
        return config


def chain_of(topic: str, info: Info) -> Chain:
    """The chain of the log of `topic`, from what the engine says of its signpost."""
    listed = (info["config"].get("metadata") or {}).get(CHAIN)
    try:
        places = msgspec.json.decode(listed, type=_Places) if listed else [(0, 1)]
    except msgspec.MsgspecError as error:
        raise EngineUnfit(
            f"the stream {stream_of(topic)} does not say what the log of {topic} is: {error}",
            f"Set its metadata {CHAIN} right, or remove the stream.",
        ) from None
    return chain(topic, places)


def chain(topic: str, places: Sequence[tuple[int, int]]) -> Chain:
    """The same from the numbers and first indexes of its segments."""
    ends = [first - 1 for _, first in places[1:]] + [sys.maxsize]
    return tuple(
        Segment(stream_of(topic, number), first, end)
        for (number, first), end in zip(places, ends, strict=True)
    )


def is_home(info: Info, epoch: int) -> bool:
    """Whether a stream is the home of `epoch`, and open. The one that the entry names may still be
    welded: it ends somewhere then, and what is behind that seems not to be stored. That of a former
    home has the epoch that it had, and may be empty."""
    config = info["config"]
    takes = any(not subject.startswith("_frozen.") for subject in config.get("subjects") or ())
    return takes and (config.get("metadata") or {}).get("skerry.epoch") == str(epoch)


def listing(places: Sequence[tuple[int, int]]) -> str:
    """The chain as the metadata keeps it."""
    return msgspec.json.encode(places).decode()


def segment_at(chain: Chain, index: int) -> Segment:
    """The segment that `index` is read from."""
    return next(segment for segment in chain if index <= segment.last)


def alone(stream: str) -> Chain:
    """The chain of whoever reads one stream, whatever it is part of."""
    return (Segment(stream, 1),)


async def look_at_chain(jetstream: JetStream, topic: str) -> Chain | None:
    """The chain of the log of `topic` at a site; None: there is no log."""
    signpost = await jetstream.stream(stream_of(topic))
    return None if signpost is None else chain_of(topic, signpost)


async def look(jetstream: JetStream, topic: str) -> Extent | None:
    """The log of `topic` at a site as it is now; None: it is not there, or not whole."""
    chain: Chain = ()
    while (signpost := await jetstream.stream(stream_of(topic))) is not None:
        if chain == (chain := chain_of(topic, signpost)):
            return None
        infos = [
            signpost
            if segment.stream == stream_of(topic)
            else await jetstream.stream(segment.stream)
            for segment in chain
        ]
        found = tuple(info for info in infos if info is not None)
        if len(found) == len(chain):
            return Extent(chain, found)
    return None


async def find_consumer(
    jetstream: JetStream, chain: Chain, name: str
) -> tuple[Segment, Info] | None:
    """The durable consumer `name` of a log, and on which segment it is. Whoever moves one makes the
    new one first: if there are two, what the earlier one did not deliver comes first."""
    for segment in chain:
        if (info := await jetstream.consumer(segment.stream, name)) is not None:
            return segment, info
    return None


async def make_consumer(
    jetstream: JetStream, stream: str, name: str, config: Info, index: int
) -> None:
    """Make a durable consumer like another one, from `index` on. One that is there stays."""
    config = {key: value for key, value in config.items() if not key.startswith("opt_start")}
    config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": index}
    try:
        await jetstream.call(
            f"CONSUMER.CREATE.{stream}.{name}",
            {"stream_name": stream, "config": config, "action": "create"},
        )
    except ApiError as error:
        if error.code != CONSUMER_EXISTS:
            raise


async def delete_consumer(jetstream: JetStream, stream: str, name: str) -> bool:
    """Remove a consumer; whether it was there."""
    try:
        await jetstream.call(f"CONSUMER.DELETE.{stream}.{name}")
    except ApiError as error:
        if error.code not in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
            raise
        return False
    return True


async def index_since(jetstream: JetStream, chain: Chain, when: datetime) -> int | None:
    """The index of the first event that was stored at `when` or later; None: there is none yet."""
    text = when.astimezone(UTC).isoformat().replace("+00:00", "Z")
    for segment in chain:
        index = await next_index(jetstream, segment.stream, {"start_time": text})
        if index is not None and index <= segment.last:
            return index
    return None


async def last_index(jetstream: JetStream, chain: Chain, subject: str) -> int:
    """The index of the newest event with `subject`, which may hold wildcards; 0: there is none."""
    for segment in reversed(chain):
        index = await next_index(jetstream, segment.stream, {"last_by_subj": subject}) or 0
        if index <= segment.last:
            low = index
        else:  # beyond the end: which is the last before it?
            low, high = 0, segment.last
            while low < high:
                middle = (low + high + 1) // 2
                asked = {"next_by_subj": subject, "seq": middle}
                index = await next_index(jetstream, segment.stream, asked) or sys.maxsize
                low, high = (index, high) if index <= segment.last else (low, middle - 1)
        if low >= segment.first:
            return low
    return 0


async def next_index(jetstream: JetStream, stream: str, asked: dict[str, Any]) -> int | None:
    """The index of an event that a stream is asked for; None: it has none. Raises `Moved`."""
    body = asked if "last_by_subj" in asked else {"next_by_subj": "e.>", **asked}
    reply = await jetstream.ask(
        f"{jetstream.prefix}DIRECT.GET.{stream}", msgspec.json.encode(body), recovering=False
    )
    if reply.status == NO_RESPONDERS:
        raise Moved
    return None if reply.status else int(parse_headers(reply.head)["Nats-Sequence"])
