"""Headers, as a publisher gives them and as the wire carries them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.errors import BadSetting
from skerry.model.event import Event, check_id, extra_headers, parse_headers, reply_of, status_of

NAME = st.text("abcdefgXYZ-_09", min_size=1, max_size=12).filter(
    lambda n: not n.lower().startswith(("nats-", "skerry-", "nmqtt-"))
)
VALUE = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=30).map(str.strip)


@given(st.dictionaries(NAME, VALUE, max_size=5), st.none() | VALUE)
def test_headers_and_key_come_back_as_they_were(headers: dict[str, str], key: str | None) -> None:
    head = b"NATS/1.0\r\n" + extra_headers(headers, key, None) + b"\r\n"
    event = Event(b"e.a.b", 1, head, b"", b"")
    assert event.headers == headers
    assert event.key == key
    assert event.topic == "a/b"


@pytest.mark.parametrize("name", ["", "a:b", "a b", "Nats-TTL", "nats-rollup", "Skerry-Key", "é"])
def test_headers_that_cannot_travel_are_refused(name: str) -> None:
    with pytest.raises(BadSetting):
        extra_headers({name: "x"}, None, None)


@pytest.mark.parametrize("value", ["a\r\nNats-Rollup: all", "a\nb", " a", "a "])
def test_values_cannot_smuggle_lines(value: str) -> None:
    with pytest.raises(BadSetting):
        extra_headers({"a": value}, None, None)
    with pytest.raises(BadSetting):
        extra_headers(None, value, None)


@pytest.mark.parametrize("lifespan", [0, -1, 0.5, 1.5, float("nan")])
def test_a_lifespan_is_whole_seconds(lifespan: float) -> None:
    with pytest.raises(BadSetting):
        extra_headers(None, None, lifespan)


@pytest.mark.parametrize("identity", ["", "a\r\nb", "x" * 129, "ü"])
def test_bad_ids_are_refused(identity: str) -> None:
    with pytest.raises(BadSetting):
        check_id(identity)


def test_status_codes() -> None:
    assert status_of(b"NATS/1.0 503\r\n\r\n") == 503
    assert status_of(b"NATS/1.0 100 Idle Heartbeat\r\n\r\n") == 100
    assert status_of(b"NATS/1.0\r\n404: x\r\n\r\n") == 0


@given(st.lists(st.sampled_from([b"\r\n", b":", b"\xff", b"NATS/1.0", b" ", b"a", b"404"])))
def test_any_header_block_can_be_read(parts: list[bytes]) -> None:
    head = b"".join(parts)
    assert all(isinstance(name, str) for name in parse_headers(head))
    assert status_of(head) in (0, 404)


def test_times_keep_microseconds() -> None:
    event = Event(b"e.a", 1, b"", b"", reply_of(1, 1_794_718_099_763_377_066))
    assert event.time.isoformat() == "2026-11-15T04:48:19.763377+00:00"
    assert event.timestamp_ns == 1_794_718_099_763_377_066
