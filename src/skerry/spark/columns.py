"""Events as the engine sent them → Arrow columns, without making an object for each.

A column of bytes or text is first laid over the received bytes as an array whose every second
element is a wanted piece and whose others are the gaps between them; `take` then copies the wanted
ones together, in C++. Headers other than a bare id, or an id and a key, are read one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skerry.model.event import ID_HEADER, KEY_HEADER, parse_headers
from skerry.model.names import stored_subject
from skerry.spark.frames import Frames
from skerry.spark.words import Mask, Numbers, Words

TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "sub_topic": pa.string(),
    "index": pa.int64(),
    "time": pa.timestamp("us", "UTC"),
    "key": pa.string(),
    "headers": pa.map_(pa.string(), pa.string()),
    "publisher": pa.string(),
    "value": pa.binary(),
}
"""The columns of an event, in the order they have in a table."""

_HEAD = re.compile(
    rb"NATS/1\.0\r\nNats-Msg-Id:([^ \r][^\r]*)\r\n(?:Skerry-Key:([^ \r][^\r]*)\r\n)?\r\n"
)
"""An id, or an id and a key, and nothing else."""
_ID = len(b"NATS/1.0\r\nNats-Msg-Id:")
_LAYOUTS = 8
"""Ways to lay out headers of one size that are looked for; what is left is read one by one."""
_NAME = 16
"""Characters of a publisher's name; its ids are the name, a dash and a running number."""
_NUMBERED = re.compile(r"(.+)-\d+")
_OWN = ("nats-", "skerry-", "nmqtt-")


def pieces(data: bytes, starts: Numbers, ends: Numbers) -> pa.BinaryArray:
    """The bytes from each start to its end; starts and ends must not run backwards."""
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = starts
    offsets[1::2] = ends
    laid = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    return laid.take(pa.array(np.arange(0, 2 * count - 1, 2, dtype=np.int32)))


def texts(data: bytes, starts: Numbers, ends: Numbers, there: Mask | None = None) -> pa.Array:
    """The same as text; null where `there` is false. What is no UTF-8 is replaced by `�`."""
    if there is not None and not there.all():
        filled = texts(data, starts[there], ends[there])
        places = np.cumsum(there) - 1
        return filled.take(pa.array(places, mask=~there))
    found = pieces(data, starts, ends)
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([b.decode("utf-8", "replace") for b in found.to_pylist()], pa.string())


class Builder:
    """Makes columns of the events of one topic, those that are asked for."""

    def __init__(self, topic: str, names: Iterable[str]) -> None:
        self._topic = topic
        self._names = set(names)
        self._prefix = len(stored_subject(topic)) + 1

    def build(self, data: bytes, frames: Frames) -> dict[str, pa.Array]:
        """The columns of `frames`, which lie in `data`."""
        count = len(frames.indexes)
        columns = {
            "index": pa.array(frames.indexes),
            "time": pa.array(frames.times // 1000).cast(TYPES["time"]),
        }
        if "value" in self._names:
            columns["value"] = pieces(data, frames.value, frames.end)
        if "topic" in self._names:
            columns["topic"] = pa.repeat(pa.scalar(self._topic), count)
        if "sub_topic" in self._names:
            columns["sub_topic"] = self._sub_topics(data, frames)
        if self._names & {"key", "headers", "publisher"}:
            columns |= self._heads(data, frames)
        return columns

    def _sub_topics(self, data: bytes, frames: Frames) -> pa.Array:
        starts = frames.subject + self._prefix
        there = starts <= frames.subject_end
        if not there.any():
            return pa.nulls(len(starts), pa.string())
        dotted = texts(data, starts, frames.subject_end, there)
        return pc.replace_substring(dotted, ".", "/")

    def _heads(self, data: bytes, frames: Frames) -> dict[str, pa.Array]:
        count = len(frames.indexes)
        buffer = np.frombuffer(data, np.uint8)
        head, value = frames.head, frames.value
        id_start = head + _ID
        id_end, key_start = _known(data, buffer, head, value)
        fast, keyed = id_end > 0, key_start > 0
        slow = np.flatnonzero((value > head) & ~fast)

        dash = np.where(fast & (id_end - id_start > _NAME + 1), id_start + _NAME, 0)
        named = (dash > 0) & (buffer[dash] == 45)
        odd = np.flatnonzero(fast & ~named)
        key = texts(data, key_start, value - 4, keyed)
        publisher = texts(data, id_start, dash, named)
        parsed = [parse_headers(data[head[n] : value[n]]) for n in slow]
        if len(odd) or len(slow):
            others = {int(n): _publisher(data[id_start[n] : id_end[n]].decode()) for n in odd}
            others |= {
                int(n): _publisher(fields.get(ID_HEADER, ""))
                for n, fields in zip(slow, parsed, strict=True)
            }
            publisher = _replace(publisher, others)
        if len(slow):
            key = _replace(
                key, {int(n): f.get(KEY_HEADER) for n, f in zip(slow, parsed, strict=True)}
            )
        return {"key": key, "publisher": publisher, "headers": self._headers(count, slow, parsed)}

    def _headers(self, count: int, slow: Numbers, parsed: list[dict[str, str]]) -> pa.Array:
        own = [[(k, v) for k, v in f.items() if not k.lower().startswith(_OWN)] for f in parsed]
        sizes = np.zeros(count + 1, np.int32)
        sizes[slow + 1] = [len(items) for items in own]
        flat = [item for items in own for item in items]
        return pa.MapArray.from_arrays(
            pa.array(np.cumsum(sizes, dtype=np.int32)),
            pa.array([name for name, _ in flat], pa.string()),
            pa.array([value for _, value in flat], pa.string()),
            type=TYPES["headers"],
        )


def _known(data: bytes, buffer: Any, head: Numbers, value: Numbers) -> tuple[Numbers, Numbers]:
    """Where the id ends, and where the key begins if there is one; 0: not headers of ours.

    Headers of one publisher have one size, or few. The first of a size tells how they are laid
    out, and the others are compared with it.
    """
    id_end, key_start = np.zeros_like(head), np.zeros_like(head)
    sizes = value - head
    for size in np.unique(sizes[sizes > 0]).tolist():
        rows = np.flatnonzero(sizes == size)
        starts = head[rows]
        words = Words(buffer, starts, size)
        left = np.ones(len(rows), bool)
        for _ in range(_LAYOUTS):
            if not left.any():
                break
            first = int(np.argmax(left))
            match = _HEAD.fullmatch(data, int(starts[first]), int(starts[first]) + size)
            left[first] = False
            if match is None:
                continue
            fixed = np.ones(size, bool)
            begin = match.start()
            same = np.ones(len(rows), bool)
            for group in (1, 2):
                if match[group] is not None:
                    fixed[match.start(group) - begin : match.end(group) - begin] = False
                    same &= buffer[starts + (match.start(group) - begin)] != 32
            same &= words.have(match[0], fixed) & words.lack_returns(~fixed)
            found = rows[same]
            id_end[found] = head[found] + (match.end(1) - begin)
            if match[2] is not None:
                key_start[found] = head[found] + (match.start(2) - begin)
            left &= ~same
    return id_end, key_start


def _publisher(identity: str) -> str | None:
    match = _NUMBERED.fullmatch(identity)
    return match[1] if match else None


def _replace(column: pa.Array, values: dict[int, str | None]) -> pa.Array:
    mask = np.zeros(len(column), bool)
    places = sorted(values)
    mask[places] = True
    return pc.replace_with_mask(
        column, pa.array(mask), pa.array([values[place] for place in places], pa.string())
    )
