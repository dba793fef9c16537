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
more: it is the *signpost*. Its metadata lists the chain, so whoever reads at this site asks about it
first. The list may change at any time. A reader whose segment becomes frozen, or is removed, is
told by the engine: its consumer is gone. Whoever reads by index looks again when the index, or the
stream, is not there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from skerry.model.names import stream_of

CHAIN = "skerry.chain"
"""Where the metadata of the signpost lists the chain: `[[number, first index], …]`."""


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


def chain_of(topic: str, info: dict[str, Any]) -> Chain:
    """The chain of the log of `topic`, from what the engine says of its signpost."""
    listed = (info["config"].get("metadata") or {}).get(CHAIN)
    places = msgspec.json.decode(listed, type=list[tuple[int, int]]) if listed else [(0, 1)]
    return chain(topic, places)


def chain(topic: str, places: Sequence[tuple[int, int]]) -> Chain:
    """The same from the numbers and first indexes of its segments."""
    ends = [first - 1 for _, first in places[1:]] + [sys.maxsize]
    return tuple(
        Segment(stream_of(topic, number), first, end)
        for (number, first), end in zip(places, ends, strict=True)
    )


def listing(places: Sequence[tuple[int, int]]) -> str:
    """The chain as the metadata keeps it."""
    return msgspec.json.encode(places).decode()


def segment_at(chain: Chain, index: int) -> Segment:
    """The segment that `index` is read from."""
    return next(segment for segment in chain if index <= segment.last)
