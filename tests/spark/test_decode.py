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


def decode(payloads: list[bytes], kind: str, mode: str = "permissive") -> list[dict[str, Any]]:
    """Rows as Spark would get them."""
    options = read_source({"topic": "t", "format": kind, "mode": mode})
    columns = {
        "index": pa.array(range(1, len(payloads) + 1), pa.int64()),
        "value": pa.array(payloads, pa.binary()),
    }
    batch = Decoder(options, SCHEMA).batch(columns)
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


@pytest.mark.parametrize("seed", range(20))
def test_json_at_once_and_one_by_one_agree(seed: int) -> None:
    chance = random.Random(seed)
    values: list[Any] = [1, -5, 2**31 - 1, 0.25, "x", "é\u2028\\n", None, True, [], {}]
    payloads = [
        json.dumps({name: chance.choice(values) for name in chance.sample("abcd", 3)}).encode()
        for _ in range(chance.randrange(1, 8))
    ]
    together = decode(payloads, "json")
    alone = [decode([payload], "json")[0] for payload in payloads]
    for n, row in enumerate(alone, 1):
        row["index"] = n
    assert together == alone


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
    ],
)
async def test_a_schema_that_cannot_be_filled_is_refused(
    client: Client, table: Callable[..., Any], schema: str, format: str, message: str
) -> None:
    await client.create_topic("t")
    with pytest.raises(Exception, match=message):
        await asyncio.to_thread(lambda: table("t", schema=schema, format=format).collect())
