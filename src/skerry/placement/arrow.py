"""The table of topics as Arrow, for Parquet and for Spark.

Columns with several numbers a row (clients, replicas) are binary: the numbers one after the other,
little-endian, as in the records of sites. Arrow's lists would be taken apart number by number on
the way through Spark.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from skerry.placement.tables import NAMES, Array, Clients, Topics

ROW = "row"
"""A column of its own: the row in the whole table, which decides where all else is equal."""

_KINDS = {
    "home": "i4", "bound": "f8", "worst": "f8", "producers": "", "consumers": "",
    "rate_in": "f8", "rate_out": "f8", "event_bytes": "f8", "stored_bytes": "f8",
    "replicas": "i4", "wanted": "i4", "colocated": "?", "power": "?", "pinned": "?",
    "measured": "?", "moved_at": "f8", "moving_to": "i4",
}  # fmt: skip
"""Columns, and what their numbers are; clients are `_CLIENT`s."""
_CLIENT = np.dtype([("site", "<i4"), ("access", "<f4")])
BINARY = ("producers", "consumers", "replicas")


def schema() -> Any:
    """Row, name, and the columns of `Topics` in their order."""
    fields = [pa.field(ROW, pa.int64(), False), pa.field("names", pa.string(), False)]
    for name, kind in _KINDS.items():
        known = pa.binary() if name in BINARY else pa.from_numpy_dtype(np.dtype(kind))
        fields.append(pa.field(name, known, False))
    return pa.schema(fields)


def to_arrow(topics: Topics, rows: Array | None = None) -> Any:
    """A table; `rows` are the numbers of its rows, if they are not 0, 1, 2, …"""
    rows = np.arange(len(topics)) if rows is None else rows
    columns = [pa.array(rows, pa.int64()), pa.array(topics.names.tolist(), pa.string())]
    for name, kind in _KINDS.items():
        column = getattr(topics, name)
        if isinstance(column, Clients):
            columns.append(_packed_clients(column))
        elif name in BINARY:
            columns.append(packed(column))
        else:
            columns.append(pa.array(column.astype(kind)))
    return pa.Table.from_arrays(columns, schema=schema())


def from_arrow(table: Any) -> tuple[Topics, Array]:
    """Topics and the numbers of their rows, in the order of the table (or record batch)."""
    found: dict[str, Any] = {}
    for name, kind in _KINDS.items():
        column = table.column(name)
        if not kind:
            found[name] = _unpacked_clients(column)
        elif name in BINARY:
            found[name] = unpacked(column, kind)
        else:
            found[name] = column.to_numpy(zero_copy_only=False).astype(kind, copy=False)
    names = np.array(table.column("names").to_pylist(), NAMES)
    rows: Array = table.column(ROW).to_numpy(zero_copy_only=False)
    return Topics(names=names, **found), rows


def packed(numbers: Array) -> Any:
    """A matrix as a column of binaries, without looking at each."""
    return _binaries(numbers, np.arange(len(numbers) + 1) * numbers.shape[1])


def _packed_clients(clients: Clients) -> Any:
    pairs = np.empty(len(clients.site), _CLIENT)
    pairs["site"], pairs["access"] = clients.site, clients.access
    return _binaries(pairs, clients.first)


def _binaries(data: Array, ends: Array) -> Any:
    """A column whose row n are the items from `ends[n]` up to `ends[n + 1]`."""
    at = pa.py_buffer((ends * data.itemsize).astype("i4"))
    whole = pa.py_buffer(np.ascontiguousarray(data))
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, at, whole])


def unpacked(column: Any, kind: str) -> Array:
    """A column of binaries of one length as a matrix."""
    items, ends = _items(column, np.dtype(kind))
    width = int(ends[1]) if len(ends) > 1 else 0
    return items.reshape(len(ends) - 1, width)


def _unpacked_clients(column: Any) -> Clients:
    pairs, ends = _items(column, _CLIENT)
    return Clients(ends, pairs["site"].copy(), pairs["access"].copy())


def _items(column: Any, kind: Any) -> tuple[Array, Array]:
    """What `_binaries` was given."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    parts, counts = [np.zeros(0, kind)], [np.zeros(1, np.int64)]
    for chunk in chunks:
        _, ends, data = chunk.buffers()
        size = "i8" if pa.types.is_large_binary(chunk.type) else "i4"
        at = np.frombuffer(ends, size)[chunk.offset : chunk.offset + len(chunk) + 1]
        if len(at):
            parts.append(np.frombuffer(data or b"", np.uint8)[at[0] : at[-1]].copy().view(kind))
            counts.append(np.diff(at).astype(np.int64) // kind.itemsize)
    return np.concatenate(parts), np.cumsum(np.concatenate(counts))
