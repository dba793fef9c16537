"""The receive path splits the byte stream the same way however the network cuts it."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from skerry.config import ClientSettings
from skerry.engine.address import Address
from skerry.engine.link import Link
from skerry.engine.wire import Connection

Message = tuple[bytes, bytes, bytes, bytes]

WORD = st.text("abcXYZ.09_$-", min_size=1, max_size=12).map(str.encode)
BODY = st.binary(max_size=40) | st.sampled_from([b"MSG a 1 5\r\n", b"\r\n", b"PING\r\n", b""])
HEAD = st.just(b"") | BODY.map(lambda value: b"NATS/1.0\r\nk:" + value.hex().encode() + b"\r\n\r\n")
MESSAGES = st.lists(st.tuples(WORD, st.just(b"") | WORD, HEAD, BODY), max_size=8)


def frame(message: Message) -> bytes:
    """A message as the engine sends it."""
    subject, reply, head, body = message
    to = b" ".join([subject, b"1", *([reply] if reply else [])])
    if head:
        return b"HMSG %b %d %d\r\n%b%b\r\n" % (to, len(head), len(head) + len(body), head, body)
    return b"MSG %b %d\r\n%b\r\n" % (to, len(body), body)


async def receive(chunks: list[bytes]) -> list[Message]:
    """What the handler of subscription 1 is called with."""
    address = Address(site="s", host="127.0.0.1", port=1)
    link = Link(Connection([address], ClientSettings(), "test"))
    got: list[Message] = []
    link.handlers[b"1"] = lambda *message: got.append(message)
    for chunk in chunks:
        link.data_received(chunk)
    return got


@given(MESSAGES, st.lists(st.integers(0, 400), max_size=12), st.booleans())
def test_any_cut_of_the_stream_gives_the_same_messages(
    messages: list[Message], cuts: list[int], greeted: bool
) -> None:
    data = (b"INFO {}\r\n" if greeted else b"") + b"".join(map(frame, messages)) + b"PONG\r\n"
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    chunks = [data[a:b] for a, b in pairwise(edges)]
    assert asyncio.run(receive(chunks)) == messages


@given(MESSAGES)
def test_byte_by_byte(messages: list[Message]) -> None:
    data = b"".join(map(frame, messages))
    assert asyncio.run(receive([data[i : i + 1] for i in range(len(data))])) == messages


def test_a_failing_handler_does_not_end_the_connection() -> None:
    async def run() -> list[bytes]:
        link = Link(Connection([Address(site="s", host="h", port=1)], ClientSettings(), "test"))
        got: list[bytes] = []

        def handler(subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
            got.append(data)
            raise RuntimeError("bug")

        link.handlers[b"1"] = handler
        link.data_received(b"MSG a 1 1\r\nx\r\nMSG a 1 1\r\ny\r\n")
        return got

    assert asyncio.run(run()) == [b"x", b"y"]
