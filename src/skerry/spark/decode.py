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
"""

from __future__ import annotations

import datetime
import decimal
import io
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from skerry.errors import BadSetting, InputError
from skerry.spark.columns import TYPES
from skerry.spark.options import SourceOptions

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
        if expected is not None and field.type != expected:
            raise BadSetting(f"the column {field.name!r} is {expected}, not {field.type}")


class Decoder:
    """Makes batches of one schema out of the columns of events."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._fields = [f for f in schema if f.name not in TYPES and f.name != BAD]
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
        decode = {"json": self._json, "msgpack": self._msgpack, "arrow": self._arrow}[kind]
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

    def _json(self, payloads: pa.Array) -> tuple[dict[str, pa.Array], Any, Any]:
        if (table := self._json_at_once(payloads)) is not None:
            count = len(payloads)
            return {f.name: _one(table[f.name]) for f in self._fields}, None, np.zeros(count, bool)
        return self._records(payloads, msgspec.json.Decoder().decode)

    def _msgpack(self, payloads: pa.Array) -> tuple[dict[str, pa.Array], Any, Any]:
        return self._records(payloads, msgspec.msgpack.Decoder().decode)

    def _json_at_once(self, payloads: pa.Array) -> pa.Table | None:
        """All payloads with Arrow's own reader; None if one of them is not a plain map in one
        line that fits the schema. It takes lines, so none may hold or be an empty one."""
        lines = payloads.to_pylist()
        if not lines or not all(line[:1] == b"{" and line[-1:] == b"}" for line in lines):
            return None
        text = b"\n".join(lines)
        if text.count(b"\n") != len(lines) - 1 or text.count(b"\r"):
            return None
        try:
            table = pyarrow.json.read_json(
                io.BytesIO(text),
                read_options=pyarrow.json.ReadOptions(
                    use_threads=False, block_size=len(text) + 1024
                ),
                parse_options=pyarrow.json.ParseOptions(
                    explicit_schema=pa.schema(self._fields), unexpected_field_behavior="ignore"
                ),
            )
        except pa.ArrowInvalid:
            return None
        return table if table.num_rows == len(lines) else None

    def _records(
        self, payloads: pa.Array, decode: Callable[[bytes], Any]
    ) -> tuple[dict[str, pa.Array], Any, Any]:
        fitters = [(field.name, fitter(field.type)) for field in self._fields]
        columns: list[list[Any]] = [[] for _ in self._fields]
        rows: list[int] = []
        bad = np.zeros(len(payloads), bool)
        empty = [[None] * len(self._fields)]
        for at, payload in enumerate(payloads.to_pylist()):
            try:
                found = decode(payload)
                records = found if isinstance(found, list) else [found]
                values = [[fit(record.get(name)) for name, fit in fitters] for record in records]
            except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):
                bad[at] = True
                values = empty
            for value in values:
                rows.append(at)
                for column, item in zip(columns, value, strict=True):
                    column.append(item)
        return (
            {
                field.name: pa.array(column, field.type)
                for field, column in zip(self._fields, columns, strict=True)
            },
            pa.array(rows, pa.int32()),
            bad,
        )

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


def fitter(kind: pa.DataType) -> Callable[[Any], Any]:
    """A function that returns a value as Arrow takes it for `kind`, or raises `ValueError`."""
    types = pa.types
    if types.is_struct(kind):
        return _struct([(f.name, fitter(f.type)) for f in kind])
    if types.is_list(kind):
        return _list(fitter(kind.value_type))
    if types.is_map(kind):
        return _map(fitter(kind.item_type))
    if types.is_boolean(kind):
        return _exactly(bool)
    if types.is_integer(kind):
        return _integer(kind.bit_width)
    if types.is_floating(kind):
        return _floating
    if types.is_string(kind):
        return _exactly(str)
    if types.is_binary(kind):
        return lambda value: value.encode() if isinstance(value, str) else _exactly(bytes)(value)
    if types.is_timestamp(kind):
        return _timestamp
    if types.is_date(kind):
        return lambda v: datetime.date.fromisoformat(v) if isinstance(v, str) else v
    if types.is_decimal(kind):
        return lambda v: None if v is None else round(decimal.Decimal(str(v)), kind.scale)
    raise BadSetting(f"payloads cannot be decoded into {kind}")


def _exactly(kind: type) -> Callable[[Any], Any]:
    def fit(value: Any) -> Any:
        if value is None or type(value) is kind:
            return value
        raise ValueError(f"{value!r} is no {kind.__name__}")

    return fit


def _integer(bits: int) -> Callable[[Any], Any]:
    most = 1 << (bits - 1)

    def fit(value: Any) -> Any:
        if value is None or (type(value) is int and -most <= value < most):
            return value
        raise ValueError(f"{value!r} does not fit {bits} bits")

    return fit


def _floating(value: Any) -> Any:
    if value is None or type(value) is float:
        return value
    if type(value) is int:
        return float(value)
    raise ValueError(f"{value!r} is no number")


def _timestamp(value: Any) -> Any:
    if isinstance(value, str):
        value = datetime.datetime.fromisoformat(value)
    if isinstance(value, datetime.datetime):
        return value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
    if value is None:
        return None
    raise ValueError(f"{value!r} is no time")


def _struct(fields: Iterable[tuple[str, Callable[[Any], Any]]]) -> Callable[[Any], Any]:
    fields = list(fields)

    def fit(value: Any) -> Any:
        return None if value is None else {name: one(value.get(name)) for name, one in fields}

    return fit


def _list(item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def fit(value: Any) -> Any:
        if value is not None and not isinstance(value, list):
            raise ValueError("no list")
        return None if value is None else [item(one) for one in value]

    return fit


def _map(item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def fit(value: Any) -> Any:
        return None if value is None else [(str(key), item(one)) for key, one in value.items()]

    return fit
