"""Payloads → columns, against the schema that the user gave.

| format | a payload is | rows of an event |
| --- | --- | --- |
| `binary`, `text` | taken as it is, in the column `value` | 1 |
| `json`, `msgpack` | a map with the columns' names, or an array of such maps | 1, or as many |
| `arrow` | an Arrow IPC stream | as many as it holds |

Fields that the schema does not have are left out, those that a payload does not have are null. A
payload is bad if it cannot be read, or if a field does not fit its type. `mode` says what then:
`permissive` makes a row whose fields are null and whose `_bad` column, if the schema has one, is
the payload; `drop` leaves it out; `fail` raises `BadPayload`. One bad record in a packed event
makes the whole event bad: its publisher wrote it in one piece.

Whether a payload is bad depends on that payload alone, never on those that came with it: a batch
that is run again gets the same events in other pieces, and must make the same rows of them. JSON is
what Python's `json` takes. That writes NaN, Infinity and -Infinity, and Spark's own `from_json`
reads them: they are good in columns of floats. A field that the schema does not have may hold text
that is no UTF-8; it is left out. Of two fields with one name the last counts.
`skerry.spark.records` is all that decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skerry.errors import BadSetting, InputError
from skerry.spark.columns import TYPES
from skerry.spark.options import SourceOptions
from skerry.spark.records import Records, fitter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BAD = "_bad"
"""The column that keeps bad payloads."""


class BadPayload(InputError):
    """A payload that does not fit the schema, with `mode` fail."""


def default_schema(options: SourceOptions) -> StructType:
    """The schema of a table if the user gives none."""
    from pyspark.sql.pandas.types import from_arrow_schema

    if options.format not in ("binary", "text"):
        raise BadSetting(
            f"the format {options.format} needs a schema",
            'Name the fields of a payload: .schema("sensor STRING, value DOUBLE"); columns of the '
            f"event may be among them: {', '.join(TYPES)}.",
        )
    types = {**TYPES, "value": pa.string() if options.format == "text" else pa.binary()}
    return from_arrow_schema(pa.schema(list(types.items())))


def check_schema(options: SourceOptions, schema: StructType) -> None:
    """Refuse a schema that cannot be filled; `BadSetting` names the column."""
    from pyspark.sql.pandas.types import to_arrow_schema

    decoded = options.format not in ("binary", "text")
    known = {**TYPES, **({"value": pa.string()} if options.format == "text" else {})}
    for field in to_arrow_schema(schema, timezone="UTC"):
        expected = pa.binary() if field.name == BAD else known.get(field.name)
        if expected is None and not decoded:
            raise BadSetting(
                f"an event has no column {field.name!r}",
                f'It has {", ".join(TYPES)}; fields of payloads need .option("format", "json").',
            )
        if expected is None and options.format in ("json", "msgpack"):
            fitter(field.type)
        if expected is not None and field.type != expected:
            raise BadSetting(f"the column {field.name!r} is {expected}, not {field.type}")


class Decoder:
    """Makes batches of one schema out of the columns of events."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._fields = [f for f in schema if f.name not in TYPES and f.name != BAD]
        self._records: Records | None = None
        if options.format in ("json", "msgpack"):
            self._records = Records(options.format, self._fields)
        needs = {field.name for field in schema} & set(TYPES)
        if options.format not in ("binary", "text") or BAD in schema.names:
            needs.add("value")
        self.needs: frozenset[str] = frozenset(needs)
        """The columns of events that are asked for."""

    def batch(self, columns: dict[str, pa.Array]) -> pa.RecordBatch:
        """Decode the payloads; return the batch that the schema describes."""
        payloads = columns.get("value")
        kind = self._options.format
        if kind in ("binary", "text") or payloads is None:
            bad = np.zeros(len(columns["index"]), bool)
            if kind == "text" and payloads is not None:
                columns["value"], bad = _texts(payloads)
            return self._finish(columns, payloads, bad, None, {})
        decode = self._arrow if kind == "arrow" else self._maps
        fields, rows, bad = decode(payloads)
        return self._finish(columns, payloads, bad, rows, fields)

    def _finish(
        self,
        columns: dict[str, pa.Array],
        payloads: pa.Array | None,
        bad: Any,
        rows: Any,
        fields: dict[str, pa.Array],
    ) -> pa.RecordBatch:
        """`rows` says which event each row comes from; None: one row an event, in order."""
        if bad.any() and self._options.mode == "fail":
            at = int(np.flatnonzero(bad)[0])
            raise BadPayload(
                f"event {columns['index'][at]} does not fit the schema as {self._options.format}",
                'Mend the schema, or keep such events with .option("mode", "permissive").',
            )
        if BAD in self._schema.names:
            assert payloads is not None
            columns = {
                **columns,
                BAD: pc.if_else(pa.array(bad), payloads, pa.scalar(None, pa.binary())),
            }
        if rows is not None:
            # Not the payloads unless they are asked for: each would be copied for all its rows.
            asked = set(self._schema.names)
            columns = {n: column.take(rows) for n, column in columns.items() if n in asked}
            bad = bad[rows.to_numpy()]
        columns = {**columns, **fields}
        batch = pa.RecordBatch.from_arrays(
            [columns[field.name] for field in self._schema], schema=self._schema
        )
        return batch.filter(pa.array(~bad)) if self._options.mode == "drop" and bad.any() else batch

    # Formats: each returns the fields, which event each row is of, and which events are bad

    def _maps(self, payloads: pa.Array) -> tuple[dict[str, pa.Array], Any, Any]:
        assert self._records is not None
        return self._records.columns(payloads.to_pylist())

    def _arrow(self, payloads: pa.Array) -> tuple[dict[str, pa.Array], Any, Any]:
        schema = pa.schema(self._fields)
        tables: list[pa.Table] = []
        counts = np.zeros(len(payloads), np.int64)
        bad = np.zeros(len(payloads), bool)
        nothing = pa.table([pa.nulls(1, f.type) for f in self._fields], schema=schema)
        for at, payload in enumerate(payloads):
            try:
                with pa.ipc.open_stream(payload.as_buffer()) as stream:
                    table = fitted(stream.read_all(), schema)
            except (pa.ArrowException, OSError, ValueError):
                bad[at] = True
                table = nothing
            tables.append(table)
            counts[at] = table.num_rows
        rows = pa.array(np.repeat(np.arange(len(payloads)), counts), pa.int32())
        whole = pa.concat_tables(tables) if tables else schema.empty_table()
        return {f.name: _one(whole[f.name]) for f in self._fields}, rows, bad


def fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of `schema`, from those of `table` that have their names."""
    columns = [
        table[field.name].cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _one(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def _texts(payloads: pa.Array) -> tuple[pa.Array, Any]:
    """Payloads as text, and which of them are none."""
    try:
        return payloads.cast(pa.string()), np.zeros(len(payloads), bool)
    except pa.ArrowInvalid:
        found = [_text(payload) for payload in payloads.to_pylist()]
        return pa.array(found, pa.string()), np.array([text is None for text in found])


def _text(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None
