"""Payloads against a schema: what fits, what does not, and what becomes of it."""

from __future__ import annotations

import asyncio
import io
import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from skerry import Client
from skerry.spark.decode import BadPayload, Decoder
from skerry.spark.options import read_source
from skerry.spark.records import Records
from tests.spark.conftest import rows

FIELDS = [("a", pa.int32()), ("b", pa.string()), ("c", pa.float64())]
SCHEMA = pa.schema([("index", pa.int64()), *FIELDS, ("_bad", pa.binary())])
GOOD = {"a": 1, "b": "x", "c": 0.5}


def arrow(records: list[dict[str, Any]], schema: Any = None) -> bytes:
    """Records as an Arrow stream."""
    table = pa.Table.from_pylist(records, schema or pa.schema(FIELDS))
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "json": lambda value: json.dumps(value).encode(),
    "msgpack": msgspec.msgpack.encode,
    "arrow": lambda value: arrow(value if isinstance(value, list) else [value]),
}


def decode(
    payloads: list[bytes], kind: str, mode: str = "permissive", schema: pa.Schema = SCHEMA
) -> list[dict[str, Any]]:
    """Rows as Spark would get them."""
    options = read_source({"topic": "t", "format": kind, "mode": mode})
    columns = {
        "index": pa.array(range(1, len(payloads) + 1), pa.int64()),
        "value": pa.array(payloads, pa.binary()),
    }
    batch = Decoder(options, schema).batch(columns)
    batch.validate(full=True)
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


@pytest.mark.parametrize("kind", ENCODERS)
def test_good_payloads_become_rows(kind: str) -> None:
    encode = ENCODERS[kind]
    found = decode([encode(GOOD), encode({"b": "y"}), encode({**GOOD, "more": [1]})], kind)
    assert [(row["index"], row["a"], row["b"], row["c"], row["_bad"]) for row in found] == [
        (1, 1, "x", 0.5, None), (2, None, "y", None, None), (3, 1, "x", 0.5, None)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ENCODERS)
def test_packed_records_become_rows_of_their_event(kind: str) -> None:
    encode = ENCODERS[kind]
    found = decode([encode([GOOD, {**GOOD, "a": 2}]), encode([]), encode(GOOD)], kind)
    assert [(row["index"], row["a"]) for row in found] == [(1, 1), (1, 2), (3, 1)]


@pytest.mark.parametrize("kind", ENCODERS)
def test_bad_payloads_are_kept_dropped_or_refused(kind: str) -> None:
    good, bad = ENCODERS[kind](GOOD), b"\xc1{nonsense"
    found = decode([good, bad, b"", good], kind)
    assert [(row["index"], row["a"], row["_bad"]) for row in found] == [
        (1, 1, None), (2, None, bad), (3, None, b""), (4, 1, None)
    ]  # fmt: skip
    assert [row["index"] for row in decode([good, bad, b"", good], kind, "drop")] == [1, 4]
    with pytest.raises(BadPayload, match="event 2 does not fit the schema as"):
        decode([good, bad, good], kind, "fail")


@pytest.mark.parametrize("kind", ["json", "msgpack"])
@pytest.mark.parametrize(
    "wrong",
    [{"a": "1"}, {"a": 1.5}, {"a": 2**40}, {"b": 7}, {"c": "x"}, {"a": True}, 5, [1], "text"],
)
def test_a_field_that_does_not_fit_makes_its_event_bad(kind: str, wrong: Any) -> None:
    payload = ENCODERS[kind](wrong)
    found = decode([ENCODERS[kind](GOOD), payload], kind)
    assert [row["_bad"] for row in found] == [None, payload]


def test_payloads_are_not_copied_for_each_of_their_records() -> None:
    """100 events of a thousand records: their payloads, a thousand times each, are 3 GB."""
    payload = arrow([{"a": 1, "b": "x" * 20}] * 1000)
    assert len(decode([payload] * 100, "arrow")) == 100_000


def test_an_arrow_column_of_another_type_is_cast_or_bad() -> None:
    wide = pa.schema([("a", pa.int64())])
    fits, does_not = arrow([{"a": 3}], wide), arrow([{"a": 2**40}], wide)
    assert [(r["a"], r["_bad"]) for r in decode([fits, does_not], "arrow")] == [
        (3, None), (None, does_not)
    ]  # fmt: skip


def test_a_line_break_in_a_payload_moves_no_record_to_another_event() -> None:
    """Arrow's reader takes lines: two records in one payload and none in another add up."""
    two = b'{"a": 1}\n{"a": 2}'
    found = decode([two, b"", b'{"a": 3}'], "json")
    assert [(row["index"], row["a"], row["_bad"]) for row in found] == [
        (1, None, two), (2, None, b""), (3, 3, None)
    ]  # fmt: skip
    assert decode([b'{\n "a": 1\n}'], "json")[0]["a"] == 1


VERDICTS: list[tuple[bytes, Any]] = [
    (b'{"a": 1, "c": NaN}', "nan"), (b'{"a": 1, "c": -Infinity}', "-inf"),
    (b'{"a": 1, "c": Infinity, "more": NaN}', "inf"), (b'{"a": NaN}', None), (b'{"b": NaN}', None),
    (b'{"a": 1, "c": nan}', None), (b'{"a": 1, "c": 1e400}', None),
    (b'{"a": 1, "c": 0.5, "more": "\xff"}', "0.5"), (b'{"a": 1, "c": NaN, "more": "\xff"}', "nan"),
    (b'{"a": 1, "c": 0.5, "\xff": 1}', "0.5"), (b'{"b": "\xff"}', None),
    (b'{"a": 1, "c": 0.5, "more": "\\ud800"}', "0.5"), (b'{"b": "\\ud800"}', None),
    (b'{"a": "x", "a": 1, "c": 0.5}', "0.5"), (b'{"a": 1, "a": "x", "c": 0.5}', None),
    (b'{"a": 1, "c": 0.5, "more": ' + b"9" * 5000 + b"}", "0.5"),
    (b'{"c": ' + b"9" * 400 + b"}", None),
    (b'{"a": 1, "c": 0.5, "more": ' + b"[" * 400 + b"]" * 400 + b"}", "0.5"),
    (b'{"a": 1, "c": 0.5, "more": ' + b"[" * 9000 + b"]" * 9000 + b"}", None),
    (b'\n {"a": 1,\r\n "c": 0.5} \t', "0.5"), (b'{"a": 1, "c": 0.5} x', None),
    (b'{"a": 1, "c": 0.5}\n{"a": 1, "c": 0.5}', None), (b'\xef\xbb\xbf{"a": 1, "c": 0.5}', None),
    (b'{"a": 1.0, "c": 0.5}', None), (b"null", None), (b" ", None), (b'{"a": 1, "c": 0.5,}', None),
]  # fmt: skip
"""Payloads of JSON, and what column `c` says; None: the payload is bad."""


@pytest.mark.parametrize("beside", [b'{"a": 1}', b"{", b'{"c": NaN}', b'[{"a": 1}]', b'{"a": "x"}'])
def test_whether_a_payload_is_bad_does_not_depend_on_its_neighbours(beside: bytes) -> None:
    """A batch that is run again gets its events in other pieces."""
    for payload, expected in VERDICTS:
        for payloads in ([payload], [payload, beside], [payload] * 3 + [beside]):
            row = decode(payloads, "json")[0]
            said = None if row["_bad"] is not None else str(row["c"])
            assert said == expected, (payload[:60], payloads)


TYPES = pa.schema([
    ("a", pa.int8()), ("l", pa.int64()), ("f", pa.float64()), ("g", pa.float32()),
    ("s", pa.string()), ("b", pa.bool_()), ("y", pa.binary()), ("t", pa.timestamp("us", "UTC")),
    ("u", pa.timestamp("us")), ("d", pa.date32()), ("m", pa.decimal128(10, 2)),
    ("w", pa.decimal128(38, 18)), ("li", pa.list_(pa.int64())),
    ("mp", pa.map_(pa.string(), pa.int64())), ("mm", pa.map_(pa.string(), pa.list_(pa.float64()))),
    ("st", pa.struct([("x", pa.float64()), ("in", pa.struct([("q", pa.list_(pa.int64()))]))])),
    ("sd", pa.struct([("d", pa.decimal128(5, 1)), ("y", pa.binary()), ("t", pa.timestamp("us"))])),
    ("ls", pa.list_(pa.struct([("s", pa.string())]))),
])  # fmt: skip
TIMES = [
    '"2026-01-01"', '"2026-01-01T00:00:00Z"', '"2026-01-01T00:00:00"', '"2026-01-01T00:00Z"',
    '"2026-01-01 00:00:00.123456+02:00"', '"2026-01-01T00:00:00.1234567Z"', '"20260101"',
    '"9999-12-31T23:59:59-10:00"', '"0001-01-01T00:00:00+10:00"', '"0000-01-01T00:00:00Z"',
    '"2026-01-01T23:59:60Z"', '"2026-W01-1"', '"2026-13-01"', '"2026-01-01t00:00:00z"', "5",
]  # fmt: skip
SCALARS: dict[str, list[str]] = {
    "a": ["1", "127", "128", "-128", "-129", "1.0", "1e1"],
    "l": ["9223372036854775807", "9223372036854775808", "3", "9" * 5000],
    "f": ["0.5", "1", "-0", "NaN", "-Infinity", "1e308", "1e309", "5e-324", "9" * 400, "1" * 30],
    "g": ["0.25", "1e300", "Infinity"],
    "s": ['"x"', '"é"', r'"\u00e9"', r'"\ud83d\ude00"', r'"\ud83d"', r'"\ude00"', r'"\u0000"'],
    "b": ["true", "false", "tru"],
    "y": ['"x"', '"é"', r'"\ud800"'],
    "t": TIMES, "u": TIMES, "d": TIMES,
    "m": ["1.005", "1", "99999999.994", "99999999.995", '"1.10"', '"NaN"', '" 1 "', "1e9999999"],
    "w": ["123456789012345678.123456789012345678", "1e3", "0.30000000000000004", "1e40"],
    "li": ["[1, 2]", "[null]", "[]", "[1.5]", "{}"],
    "mp": ['{"a": 1, "b": null}', "{}", r'{"\u0061": 1, "a": 2}', '{"a": "x"}', "[]"],
    "st": ['{"x": 1, "in": {"q": [1]}, "z": [[]]}', "{}", '{"in": {"q": "x"}}', '{"x": NaN}'],
    "sd": ['{"d": 1.25, "y": "x"}', '{"t": "2026-01-01T00:00:00Z"}', '{"d": 12345.6}', '{"y": 5}'],
    "ls": ['[{"s": "x"}, null, {}]', "[1]"],
    "mm": ['{"a": [NaN, 1], "b": null}', '{"a": 1}'],
    "more": ["1", "NaN", "01", r'"\ud800"', '"\n"', "[[{}]]", "1e99999999999999", "9" * 5000],
}  # fmt: skip
"""What fields may be, fitting or not."""


class Chance(random.Random):
    """Makes payloads, most of them good."""

    def value(self, name: str) -> bytes:
        if self.random() < 0.03:
            name = self.choice(list(SCALARS))
        value = self.choice([*SCALARS[name], "null"]).encode()
        if value.endswith(b'"') and self.random() < 0.03:
            value = value[:-1] + self.choice([b"\xff", b"\xed\xa0\x80", b"\xc3"]) + b'"'
        return value

    def record(self) -> bytes:
        names = self.choices(list(SCALARS), k=self.randrange(4))
        fields = [b'"%b": %b' % (name.encode(), self.value(name)) for name in names]
        return b"{" + self.choice([b",", b" , ", b",\r\n"]).join(fields) + b"}"

    def payload(self) -> bytes:
        found = self.record()
        if self.random() < 0.1:
            found = b"[%b]" % b",".join(self.record() for _ in range(self.randrange(4)))
        if self.random() < 0.05:
            at = self.randrange(len(found) + 1)
            found = found[:at] + self.randbytes(1) + found[at + self.randrange(2) :]
        if self.random() < 0.05:
            found = (
                self.choice([b"", b" ", b"x", b"\xef\xbb\xbf"])
                + found
                + self.choice([b"\n", b"x", b"{}"])
            )
        return found if self.random() < 0.98 else self.choice([b"", b"null", b"5", b"[1]", b"\x00"])


def said(records: Records, payloads: list[bytes]) -> list[list[str] | None]:
    """The rows of each payload, in words; None: it is bad."""
    columns, events, bad = records.columns(payloads)
    found: list[list[str] | None] = [None if each else [] for each in bad]
    for column in columns.values():
        column.validate(full=True)
    places = range(len(payloads)) if events is None else events.to_pylist()
    # Times as numbers: those beyond the year 9999 are none of Python's.
    table = pa.table({n: _numbers(column) for n, column in columns.items()}).to_pylist()
    for row, at in zip(table, places, strict=True):
        if (rows := found[at]) is not None:
            rows.append(str(row))
    return found


def _numbers(column: pa.Array) -> pa.Array:
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


@pytest.mark.parametrize("seed", range(5))
def test_the_short_way_and_the_rule_say_the_same_of_every_payload(seed: int) -> None:
    chance = Chance(seed)
    short, rule = Records("json", list(TYPES)), Records("json", list(TYPES))
    rule._short = rule.rule  # nothing but the rule
    good = bad = 0
    while good + bad < 1000:
        payloads = [chance.payload() for _ in range(chance.randrange(1, 30))]
        together = said(short, payloads)
        assert together == [said(short, [payload])[0] for payload in payloads]
        assert together == said(rule, payloads)
        bad += together.count(None)
        good += len(payloads) - together.count(None)
    assert min(good, bad) > 200


def test_a_map_is_a_column() -> None:
    schema = pa.schema([("index", pa.int64()), ("m", pa.map_(pa.string(), pa.int64()))])
    for kind in ("json", "msgpack"):
        payloads = [ENCODERS[kind](each) for each in ({"m": {"x": 1, "y": None}}, {"m": 5}, {})]
        found = decode(payloads, kind, schema=schema)
        assert [row["m"] for row in found] == [[("x", 1), ("y", None)], None, None]


def test_a_name_that_needs_quotes_is_a_column() -> None:
    schema = pa.schema([("index", pa.int64()), ('say "a"', pa.int64()), ("class", pa.int64())])
    found = decode([json.dumps({'say "a"': 1, "class": 2}).encode()], "json", schema=schema)
    assert found == [{"index": 1, 'say "a"': 1, "class": 2}]


async def test_a_topic_is_decoded_in_spark(client: Client, table: Callable[..., Any]) -> None:
    await client.create_topic("t")
    for value in (
        b'{"a": 1, "b": {"c": [1, 2]}}',
        b"broken",
        b'{"a": 2, "t": "2026-01-01T00:00:00Z"}',
    ):
        await client.publish("t", value)
    schema = "index LONG, a INT, b STRUCT<c: ARRAY<LONG>>, t TIMESTAMP, _bad BINARY"
    found = await rows(table("t", schema=schema, format="json").orderBy("index"))
    assert [(row[0], row[1], row[4]) for row in found] == [
        (1, 1, None),
        (2, None, b"broken"),
        (3, 2, None),
    ]
    assert found[0][2].c == [1, 2]
    assert found[2][3].year == 2026
    assert await rows(table("t", format="text", start=2, end=2), "value") == [("broken",)]
    with pytest.raises(Exception, match="event 2 does not fit the schema"):
        await rows(table("t", schema="a INT", format="json", mode="fail"))


async def test_packed_events_are_unpacked_in_spark(
    client: Client, table: Callable[..., Any]
) -> None:
    await client.create_topic("t")
    for start in (0, 1000):
        await client.publish(
            "t", arrow([{"a": n, "b": str(n)} for n in range(start, start + 1000)])
        )
    found = await rows(table("t", schema="a INT, b STRING, sub_topic STRING", format="arrow"))
    assert sorted(found) == [(n, str(n), None) for n in range(2000)]


@pytest.mark.parametrize(
    ("schema", "format", "message"),
    [
        ("value STRING", "binary", "column 'value' is binary, not string"),
        ("a INT", "binary", "an event has no column 'a'"),
        ("index INT, a INT", "json", "column 'index' is int64, not int32"),
        ("a MAP<INT, INT>", "json", "payloads cannot be decoded into map<int32, int32"),
    ],
)
async def test_a_schema_that_cannot_be_filled_is_refused(
    client: Client, table: Callable[..., Any], schema: str, format: str, message: str
) -> None:
    await client.create_topic("t")
    with pytest.raises(Exception, match=message):
        await asyncio.to_thread(lambda: table("t", schema=schema, format=format).collect())
