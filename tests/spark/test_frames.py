"""Taking apart what the engine sends: the fast way and the plain way agree on everything."""

from __future__ import annotations

import random

import pytest

from skerry.model.event import parse_headers
from skerry.spark.columns import TYPES, Builder
from skerry.spark.frames import Chunk, Frames, split, split_slowly

HEAD = b"NATS/1.0\r\nNats-Msg-Id:0123456789abcdef-%d\r\n\r\n"


def frame(index: int, value: bytes, head: bytes | None = None, subject: bytes = b"e.t") -> bytes:
    """A message as a consumer delivers it."""
    reply = b"$JS.ACK.t~t.spark-0a1b2c3d.1.%d.%d.%d.%d" % (
        index, index, 1794740494796525082 + index, 5000 - index
    )  # fmt: skip
    if head is None:
        return b"MSG %b 1 %b %d\r\n%b\r\n" % (subject, reply, len(value), value)
    size = len(head)
    return b"HMSG %b 1 %b %d %d\r\n%b%b\r\n" % (
        subject, reply, size, size + len(value), head, value
    )  # fmt: skip


def agree(data: bytes) -> Chunk:
    """Both ways; fail if they differ."""
    fast, slow = split(data), split_slowly(data)
    assert fast.used == slow.used
    assert fast.others == slow.others
    for name in Frames._fields:
        assert getattr(fast.frames, name).tolist() == getattr(slow.frames, name).tolist(), name
    return fast


def test_a_run_of_messages_is_taken_apart() -> None:
    data = b"".join(frame(n, b"value %d" % n, HEAD % n) for n in range(1, 2001))
    chunk = agree(data)
    assert chunk.used == len(data)
    assert chunk.frames.indexes.tolist() == list(range(1, 2001))
    first = slice(int(chunk.frames.value[0]), int(chunk.frames.end[0]))
    assert data[first] == b"value 1"


def test_payloads_that_look_like_messages_are_payloads() -> None:
    inner = frame(7, b"inner", HEAD % 7)
    data = b"".join(frame(n, b"x\r\n" + inner + inner[: n % 90], HEAD % n) for n in range(1, 50))
    chunk = agree(data)
    assert chunk.frames.indexes.tolist() == list(range(1, 50))


def test_a_message_that_is_cut_waits_for_the_rest() -> None:
    data = frame(1, b"one", HEAD % 1) + frame(2, b"two", HEAD % 2)
    for size in range(len(data)):
        chunk = agree(data[:size])
        assert chunk.used in (0, len(frame(1, b"one", HEAD % 1)))


def test_other_lines_between_messages_are_told_apart() -> None:
    status = b"NATS/1.0 404 No Messages\r\n\r\n"
    other = b"HMSG _INBOX.x.n.1 1 %d %d\r\n%b\r\n" % (len(status), len(status), status)
    many = [frame(n, b"%d" % n, HEAD % n) for n in range(1, 30)]
    chunk = agree(b"PING\r\n" + b"".join(many[:20]) + b"PING\r\n" + b"".join(many[20:]) + other)
    assert [o.data for o in chunk.others] == [b"PING", b"PING", b""]
    assert chunk.others[2].head == status


@pytest.mark.parametrize("seed", range(60))
def test_random_streams_are_taken_apart_alike(seed: int) -> None:
    chance = random.Random(seed)
    heads = [None, HEAD % 1, HEAD % 123456, b"NATS/1.0\r\nA:b\r\n\r\n"]
    index, parts = chance.choice([1, 95, 99_990, 10**12]), []
    for _ in range(chance.randrange(1, 300)):
        value = chance.choice([
            b"", b"x" * chance.randrange(300), b"\r\nMSG e.t 1 ", b"\n" * chance.randrange(9),
            frame(3, b"fake", HEAD % 3), chance.randbytes(chance.randrange(200)),
        ])  # fmt: skip
        subject = chance.choice([b"e.t", b"e.t.a", b"e.t.a-longer.one"])
        parts.append(frame(index, value, chance.choice(heads), subject))
        index += chance.choice([1, 1, 1, 7])
        if chance.random() < 0.02:
            parts.append(chance.choice([b"PING\r\n", b"+OK\r\n"]))
    data = b"".join(parts)
    agree(data[: chance.choice([len(data), chance.randrange(len(data))])])


def test_columns_tell_what_was_published() -> None:
    head = b"NATS/1.0\r\nNats-Msg-Id:%b\r\n%b\r\n"
    cases = [
        (None, None, None, []),
        (HEAD % 5, None, "0123456789abcdef", []),
        (head % (b"0123456789abcdef-6", b"Skerry-Key:k\r\n"), "k", "0123456789abcdef", []),
        (head % (b"0123456789abcdef-6", b"Skerry-Key: \xc3\xa9\r\n"), "é", "0123456789abcdef", []),
        (head % (b"mine", b"Skerry-Key:\xff\r\n"), "\ufffd", None, []),
        (head % (b"job-7-3", b"a:b\r\nSkerry-Key:z\r\nc: d\r\n"), "z", "job-7",
         [("a", "b"), ("c", "d")]),
        (b"NATS/1.0\r\nx:y\r\n\r\n", None, None, [("x", "y")]),
        (b"NATS/1.0\r\n\r\n", None, None, []),
    ]  # fmt: skip
    data = b"".join(frame(n, b"%d" % n, case[0], b"e.t.a.b") for n, case in enumerate(cases, 1))
    columns = Builder("t", TYPES).build(data, agree(data).frames)
    assert columns["key"].to_pylist() == [case[1] for case in cases]
    assert columns["publisher"].to_pylist() == [case[2] for case in cases]
    assert columns["headers"].to_pylist() == [case[3] for case in cases]
    assert columns["value"].to_pylist() == [b"%d" % n for n in range(1, len(cases) + 1)]
    assert set(columns["sub_topic"].to_pylist()) == {"a/b"}
    assert {name: column.type for name, column in columns.items()} == TYPES


@pytest.mark.parametrize("seed", range(40))
def test_random_headers_are_read_as_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    lines = [b"Nats-Msg-Id:0123456789abcdef-%d", b"Nats-Msg-Id: x-%d", b"Nats-Msg-Id:job\x01-%d"]
    keys = [b"Skerry-Key:k%d", b"Skerry-Key: k%d", b"Skerry-Key:\xc3\xa9 %d", b"unit:C%d"]
    heads = []
    for _ in range(chance.randrange(1, 60)):
        chosen = chance.sample(lines, chance.choice([0, 1, 1, 1]))
        chosen += chance.sample(keys, chance.choice([0, 0, 1, 1, 2]))
        text = b"".join(line % chance.randrange(1000) + b"\r\n" for line in chosen)
        heads.append(b"NATS/1.0\r\n" + text + b"\r\n")
    data = b"".join(frame(n, b"", head) for n, head in enumerate(heads, 1))
    columns = Builder("t", TYPES).build(data, agree(data).frames)
    parsed = [parse_headers(head) for head in heads]
    assert columns["key"].to_pylist() == [fields.get("Skerry-Key") for fields in parsed]
    assert columns["publisher"].to_pylist() == [
        identity.rpartition("-")[0] or None
        for identity in (fields.get("Nats-Msg-Id", "") for fields in parsed)
    ]
    own = [[(k, v) for k, v in fields.items() if k == "unit"] for fields in parsed]
    assert columns["headers"].to_pylist() == own
