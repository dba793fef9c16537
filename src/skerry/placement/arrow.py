"""The table of topics as Arrow, for Parquet and for Spark.

Columns with several numbers a row (centres, replicas) are binary: the numbers one after the other,
little-endian, as in the records of sites. Arrow's lists would be taken apart number by number on
the way through Spark.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from skerry.placement.tables import NAMES, Array, Topics

ROW = "row"
"""A column of its own: the row in the whole table, which decides where all else is equal."""

_KINDS = {
    "home": "i4", "bound": "f8", "worst": "f8", "producers": "i4", "consumers": "i4",
    "producer_at": "f4", "consumer_at": "f4", "producer_radius": "f4", "consumer_radius": "f4",
    "rate_in": "f8", "rate_out": "f8", "event_bytes": "f8", "stored_bytes": "f8",
    "replicas": "i4", "wanted": "i4", "colocated": "?", "power": "?", "pinned": "?",
    "measured": "?", "moved_at": "f8", "moving_to": "i4", "producer_site": "i4",
    "consumer_site": "i4",
}  # fmt: skip
PACKED = ("producer_at", "consumer_at", "replicas")


def schema(names: bool = True) -> Any:
    """Row, name, and the columns of `Topics` in their order."""
    fields = [pa.field(ROW, pa.int64(), False)]
    fields += [pa.field("names", pa.string(), False)] if names else []
    for name, kind in _KINDS.items():
        known = pa.binary() if name in PACKED else pa.from_numpy_dtype(np.dtype(kind))
        fields.append(pa.field(name, known, False))
    return pa.schema(fields)


def to_arrow(topics: Topics, rows: Array | None = None) -> Any:
    """A table; `rows` are the numbers of its rows, if they are not 0, 1, 2, …"""
    rows = np.arange(len(topics)) if rows is None else rows
    columns = [pa.array(rows, pa.int64()), pa.array(topics.names.tolist(), pa.string())]
    for name, kind in _KINDS.items():
        column = getattr(topics, name)
        columns.append(packed(column) if name in PACKED else pa.array(column.astype(kind)))
    return pa.Table.from_arrays(columns, schema=schema())


def from_arrow(table: Any) -> tuple[Topics, Array]:
    """Topics and the numbers of their rows, in the order of the table (or record batch)."""
    found: dict[str, Array] = {}
    for name, kind in _KINDS.items():
        column = table.column(name)
        if name in PACKED:
            found[name] = unpacked(column, kind)
        else:
            found[name] = column.to_numpy(zero_copy_only=False).astype(kind, copy=False)
    names = np.array(table.column("names").to_pylist(), NAMES)
    rows: Array = table.column(ROW).to_numpy(zero_copy_only=False)
    return Topics(names=names, **found), rows


def packed(numbers: Array) -> Any:
    """A matrix as a column of binaries, without looking at each."""
    data = np.ascontiguousarray(numbers)
    width = data.shape[1] * data.itemsize
    ends = pa.py_buffer(np.arange(len(data) + 1, dtype="i4") * np.int32(width))
    return pa.Array.from_buffers(pa.binary(), len(data), [None, ends, pa.py_buffer(data)])


def unpacked(column: Any, kind: str) -> Array:
    """A column of binaries of one length as a matrix."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    parts = []
    for chunk in chunks:
        _, ends, data = chunk.buffers()
        size = "i8" if pa.types.is_large_binary(chunk.type) else "i4"
        at = np.frombuffer(ends, size)[chunk.offset : chunk.offset + len(chunk) + 1]
        numbers = np.frombuffer(data or b"", np.uint8)[at[0] : at[-1]].copy().view(kind)
        parts.append(numbers.reshape(len(chunk), -1) if len(chunk) else numbers.reshape(0, 0))
    parts = [part for part in parts if len(part)] or parts[:1]
    return np.concatenate(parts) if parts else np.empty((0, 0), kind)
