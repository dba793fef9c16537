"""JSON and MsgPack payloads → rows of a schema: a map, or an array of maps, for each payload.

Theory of operation. The rule is `Records.rule`: a payload is read with Python's own `json`, or with
msgspec's MsgPack, and then each field is fitted to its type. That is slow. So a payload is first
given to a decoder of msgspec that was made for the schema: it makes values as it reads, and leaps
over fields that nobody asked for. What it takes, it takes as the rule does (tests compare the two
on thousands of payloads); what it does not take, such as NaN, the rule decides. Arrow then makes
columns of the values; if it refuses one, all are fitted first. Payloads are read one at a time, so
whether one is bad cannot depend on its neighbours.

A payload may nest deeper than Python's stack is. How much of that is left depends on who called; so
the work is done in a thread of its own, whose stack is empty.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from typing import Annotated, Any, TypedDict

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import astuple

from skerry.errors import BadSetting

Fit = Callable[[Any], Any]
Fits = list[tuple[str, Fit]]
"""By the name of the field."""
Columns = tuple[dict[str, pa.Array], Any, Any]

UNFIT = (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What reading or fitting a payload raises if it is bad."""
DIGITS = 1000
"""Digits of an integer beyond which it fits no type. Python refuses to read very long ones."""

_EARLY = int(datetime.datetime(2, 1, 1, tzinfo=datetime.UTC).timestamp()) * 1_000_000
_typed_dict: Any = TypedDict


class Number(str):
    """A number of JSON as it was written, if it is no integer of a sensible length."""

    __slots__ = ()


class Records:
    """Makes the columns `fields` of payloads in one format."""

    def __init__(self, format: str, fields: Sequence[pa.Field]) -> None:
        slots = [f"c{n}" for n in range(len(fields))]
        names = dict(zip(slots, (field.name for field in fields), strict=True))
        self._fields = list(zip(slots, fields, strict=True))
        self._fits = [(field.name, fitter(field.type)) for field in fields]
        self._load = _json if format == "json" else msgspec.msgpack.Decoder().decode
        # Times of JSON are left as texts first: Arrow makes times of a whole column of them.
        late = [format == "json" and pa.types.is_timestamp(field.type) for field in fields]
        self._late = {slot for slot, is_late in zip(slots, late, strict=True) if is_late}
        self._first = [
            (name, _text if is_late else fit)
            for (name, fit), is_late in zip(self._fits, late, strict=True)
        ]
        typed = [
            (slot, str | None if slot in self._late else _typed(field.type), None)
            for slot, field in self._fields
        ]
        kind = msgspec.json if format == "json" else msgspec.msgpack
        self._row: Any
        self._short: Callable[[bytes], Any]
        try:
            row: Any = msgspec.defstruct("Row", typed, rename=names, gc=False)
            self._row, self._short = row, kind.Decoder(row | list[row]).decode
        except ValueError:  # a name that msgspec does not take, such as one with a quote
            self._row, self._short = msgspec.defstruct("Row", typed, gc=False), self.rule

    def columns(self, payloads: Sequence[bytes]) -> Columns:
        """The columns by name; which payload each row is of, or None if each made one; and which
        payloads are bad. A bad one makes a row of nulls."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._columns, payloads).result()

    def rule(self, payload: bytes, fits: Fits | None = None) -> list[Any]:
        """The rows of a payload; raises one of `UNFIT` if it is bad."""
        found = self._load(payload)
        records = found if isinstance(found, list) else [found]
        fits = self._fits if fits is None else fits
        return [self._row(*[fit(record.get(name)) for name, fit in fits]) for record in records]

    def _columns(self, payloads: Sequence[bytes]) -> Columns:
        try:
            return self._build(payloads, self._short, self._first, self._late)
        except pa.ArrowException:  # something does not fit, or not as it is
            return self._build(payloads, self._refitted, self._fits, set())

    def _build(
        self, payloads: Sequence[bytes], decode: Callable[[bytes], Any], fits: Fits, late: set[str]
    ) -> Columns:
        rows: list[Any] = []
        sizes = np.ones(len(payloads), np.int64)
        bad = np.zeros(len(payloads), bool)
        nothing = self._row()
        for at, payload in enumerate(payloads):
            try:
                found = decode(payload)
            except UNFIT:
                found = self._patiently(payload, fits)
            if type(found) is list:
                rows.extend(found)
                sizes[at] = len(found)
            elif found is None:
                rows.append(nothing)
                bad[at] = True
            else:
                rows.append(found)
        columns = {}
        for slot, field in self._fields:
            values = list(map(attrgetter(slot), rows))
            make = _times if slot in late else pa.array
            columns[field.name] = make(values, field.type)
        if (sizes == 1).all():
            return columns, None, bad
        return columns, pa.array(np.repeat(np.arange(len(payloads)), sizes), pa.int32()), bad

    def _refitted(self, payload: bytes) -> list[Any]:
        """What msgspec took, fitted: a type may be narrower than it knows."""
        found = self._short(payload)
        rows: list[Any] = found if type(found) is list else [found]
        return [
            self._row(*[fit(v) for (_, fit), v in zip(self._fits, astuple(row), strict=True)])
            for row in rows
        ]

    def _patiently(self, payload: bytes, fits: Fits) -> list[Any] | None:
        try:
            return self.rule(payload, fits)
        except UNFIT:
            return None


def _times(values: list[str | None], kind: pa.DataType) -> pa.Array:
    """Texts as times, if Arrow takes all of them. It takes a year 0, which the rule does not."""
    column = pa.array(values, pa.string()).cast(kind)
    least = pc.min(column).value
    if least is not None and least < _EARLY:
        raise pa.ArrowInvalid("a time in the year 0, perhaps")
    return column


def _whole(text: str) -> int | Number:
    return int(text) if len(text) <= DIGITS else Number(text)


_reader = json.JSONDecoder(parse_float=Number, parse_int=_whole)


def _json(payload: bytes) -> Any:
    """What a payload says. Bytes that are no UTF-8 become text that no type takes."""
    return _reader.decode(payload.decode("utf-8", "surrogateescape"))


def _typed(kind: pa.DataType) -> Any:
    """What msgspec calls `kind`."""
    types = pa.types
    if types.is_struct(kind):
        return _typed_dict("Struct", {f.name: _typed(f.type) for f in kind}, total=False) | None
    if types.is_list(kind):
        return list[_typed(kind.value_type)] | None  # type: ignore[misc]
    if types.is_map(kind):
        return dict[str, _typed(kind.item_type)] | None  # type: ignore[misc]
    if types.is_boolean(kind):
        return bool | None
    if types.is_integer(kind):
        most = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)] | None
    if types.is_floating(kind):
        return float | None
    if types.is_string(kind):
        return str | None
    if types.is_timestamp(kind):
        return datetime.datetime | None
    if types.is_date(kind):
        return datetime.date | None
    if types.is_decimal(kind):
        return decimal.Decimal | None
    return Any


def fitter(kind: pa.DataType) -> Fit:
    """A function that returns a value as Arrow takes it for `kind`, or raises one of `UNFIT`.
    Raises `BadSetting` for a type that no payload can have."""
    types = pa.types
    if types.is_struct(kind):
        return _struct([(f.name, fitter(f.type)) for f in kind])
    if types.is_list(kind):
        return _list(fitter(kind.value_type))
    if types.is_map(kind) and types.is_string(kind.key_type):
        return _map(fitter(kind.item_type))
    if types.is_boolean(kind):
        return _exactly(bool)
    if types.is_integer(kind):
        return _integer(kind.bit_width)
    if types.is_floating(kind):
        return _floating
    if types.is_string(kind):
        return _text
    if types.is_binary(kind):
        return lambda value: value.encode() if type(value) is str else _exactly(bytes)(value)
    if types.is_timestamp(kind):
        return _timestamp
    if types.is_date(kind):
        return _date
    if types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    raise BadSetting(
        f"payloads cannot be decoded into {kind}",
        "Take another type for it; maps have keys of type STRING.",
    )


def _exactly(kind: type) -> Fit:
    def fit(value: Any) -> Any:
        if value is None or type(value) is kind:
            return value
        raise ValueError(f"{value!r} is no {kind.__name__}")

    return fit


def _text(value: Any) -> Any:
    if type(value) is str:
        value.encode()  # it may hold what is no character
        return value
    return _exactly(str)(value)


def _integer(bits: int) -> Fit:
    most = 1 << (bits - 1)

    def fit(value: Any) -> Any:
        if value is None or (type(value) is int and -most <= value < most):
            return value
        raise ValueError(f"{value!r} does not fit {bits} bits")

    return fit


def _floating(value: Any) -> Any:
    if value is None or type(value) is float:
        return value
    if type(value) is int or (type(value) is Number and math.isfinite(float(value))):
        return float(value)
    raise ValueError(f"{value!r} is no number, or too large a one")


def _timestamp(value: Any) -> Any:
    if type(value) is str:
        try:
            value = msgspec.convert(value, datetime.datetime)
        except msgspec.ValidationError:
            value = datetime.datetime.fromisoformat(value)
    return _exactly(datetime.datetime)(value)


def _date(value: Any) -> Any:
    if type(value) is str:
        return datetime.date.fromisoformat(value)
    if isinstance(value, datetime.datetime):
        return value.date()
    return _exactly(datetime.date)(value)


def _decimal(precision: int, scale: int) -> Fit:
    context = decimal.Context(prec=precision)
    unit = decimal.Decimal((0, (1,), -scale))

    def fit(value: Any) -> Any:
        if value is None:
            return None
        if type(value) not in (int, float, str, Number, decimal.Decimal):
            raise ValueError(f"{value!r} is no number")
        number = value if type(value) is decimal.Decimal else decimal.Decimal(str(value))
        if not number.is_finite():
            raise ValueError(f"{value!r} is no decimal number")
        return number.quantize(unit, context=context)

    return fit


def _struct(fields: Iterable[tuple[str, Fit]]) -> Fit:
    fields = list(fields)

    def fit(value: Any) -> Any:
        return None if value is None else {name: one(value.get(name)) for name, one in fields}

    return fit


def _list(item: Fit) -> Fit:
    def fit(value: Any) -> Any:
        if value is not None and not isinstance(value, list):
            raise ValueError("no list")
        return None if value is None else [item(one) for one in value]

    return fit


def _map(item: Fit) -> Fit:
    def fit(value: Any) -> Any:
        if value is None:
            return None
        return {_text(k) if isinstance(k, str) else str(k): item(v) for k, v in value.items()}

    return fit
