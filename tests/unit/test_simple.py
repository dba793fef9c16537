"""Requests of simple clients: whatever comes in, it is one, or it is said what is wrong."""

from __future__ import annotations

import contextlib
from typing import Any, cast

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import example, given

from skerry.errors import InputError
from skerry.model.simple import (
    OPS,
    AnyRequest,
    Publish,
    is_msgpack,
    log_of,
    payload_of,
    read,
    ref_of,
    written,
)

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
    | st.text() | st.sampled_from([*OPS, "x"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip
names = st.sampled_from(
    ["op", "ref", "feed", "metadata", "change", "data", "text", "after", "query", "id", "x"]
)
bodies = st.dictionaries(names, anything)


def is_read(data: bytes) -> AnyRequest | None:
    """Read it, or refuse it, and nothing else."""
    try:
        request = read(data)
    except InputError:
        ref_of(data)
        return None
    assert ref_of(data) == request.ref
    if isinstance(request, Publish):
        with contextlib.suppress(InputError):
            assert isinstance(payload_of(request.data, is_msgpack(data)), bytes)
    return request


@given(st.binary())
@example(b"\xc1")
@example(b"\x80")
@example(b"{" * 100_000)
@example(b"\x81" * 100_000)
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    is_read(data)


@given(bodies, st.booleans())
def test_any_map_is_a_request_or_refused(body: dict[str, Any], packed: bool) -> None:
    is_read(written(body, packed))


@given(bodies, st.booleans(), st.data())
def test_a_damaged_map_is_a_request_or_refused(
    body: dict[str, Any], packed: bool, data: st.DataObject
) -> None:
    whole = bytearray(written({"op": "publish", "feed": "x", "data": "y", **body}, packed))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    is_read(bytes(whole[: data.draw(st.integers(0, len(whole)))]))


@given(anything, st.booleans())
def test_a_payload_is_what_the_client_meant(value: Any, packed: bool) -> None:
    body = written({"op": "publish", "feed": "x", "data": value}, packed)
    request = cast(Publish, read(body))
    expected = value.encode() if isinstance(value, str) else written(value, packed)
    assert payload_of(request.data, packed) == expected


@pytest.mark.parametrize("packed", [False, True])
def test_forms_are_told_apart_by_the_first_byte(packed: bool) -> None:
    for size in (1, 20, 70_000):
        body = {"op": "register", "metadata": {str(n): n for n in range(size)}}
        assert is_msgpack(written(body, packed)) is packed
    assert is_msgpack(msgspec.msgpack.encode({str(n): n for n in range(70_000)}))
    assert not is_msgpack(b"")


def test_which_log_a_feed_is_in() -> None:
    assert log_of("feeds/farm/log/6f1c1b8e") == "feeds/farm/log"
    for topic in ("sensors/roof", "feeds/farm/about/x", "feeds", "feeds/log"):
        assert log_of(topic) is None
