"""Feeds: what metadata can be, and what a change makes of it."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from skerry.errors import BadMetadata
from skerry.model.feeds import (
    MAX_BYTES,
    MAX_KEY_BYTES,
    MAX_KEYS,
    MAX_VALUE_BYTES,
    Feed,
    apply,
    check_change,
    check_id,
    check_metadata,
    difference,
)
from tests.unit import naive_queries as naive

ID = "6f1c1b8e-5f0a-4b6e-9a3d-0d5f3f1d2c11"


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"Location/Room": "410", "n": 1, "x": 2.5, "b": False, "tags": ["a", 1, True], "none": []},
        {"odd key": "", "ключ": "значение", "`": "\x00 control characters are data"},
        {"k" * MAX_KEY_BYTES: "v" * MAX_VALUE_BYTES},
        {"n": 2**64 - 1, "m": -(2**63)},
        {f"k{n}": n for n in range(MAX_KEYS)},
        {"payloads": 1, "payload/x": 1, "skerry": 1},
    ],
)
def test_good_metadata_is_taken(metadata: dict[str, Any]) -> None:
    assert check_metadata(metadata) == metadata
    assert check_change(metadata) == metadata
    assert apply({}, metadata) == metadata
    feed = Feed(id=ID, owner="me", topic="t", site="s", metadata=metadata)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(feed), type=Feed) == feed


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (["a"], "map of keys"),
        ({1: "a"}, "a key is text"),
        ({"": "a"}, "empty"),
        ({"a\nb": "a"}, "U\\+000A"),
        ({"a\x7f": "a"}, "U\\+007F"),
        ({"a\ud800": "a"}, "U\\+D800"),
        ({"a\u202e": "a"}, "U\\+202E"),
        ({"é" * (MAX_KEY_BYTES // 2 + 1): "a"}, "258 bytes"),
        ({"skerry/topic": "a"}, "reserved"),
        ({"payload": "a"}, "reserved"),
        ({"payload.temp": "a"}, "reserved"),
        ({"a": float("nan")}, "is nan"),
        ({"a": [1, float("-inf")]}, "is -inf"),
        ({"a": 2**64}, "64 bits"),
        ({"a": "\udfff"}, "half of a character"),
        ({"a": {"b": 1}}, "dict"),
        ({"a": [["b"]]}, "list"),
        ({"a": [None]}, "null"),
        ({"a": b"b"}, "bytes"),
        ({"a": "é" * 2049}, "4098 bytes"),
        ({"a": ["x" * 1000] * 5}, "5005 bytes"),
        ({f"k{n}": 1 for n in range(MAX_KEYS + 1)}, "257 keys"),
        ({f"k{n}": "v" * 4000 for n in range(5)}, f"{MAX_BYTES} at most"),
    ],
)
def test_bad_metadata_is_refused_with_the_reason(metadata: Any, reason: str) -> None:
    with pytest.raises(BadMetadata, match=reason):
        check_metadata(metadata)
    with pytest.raises(BadMetadata, match=reason):
        check_change(metadata)


def test_null_deletes_a_key_and_is_no_value() -> None:
    with pytest.raises(BadMetadata, match="null"):
        check_metadata({"a": None})  # type: ignore[dict-item]
    assert check_change({"a": None}) == {"a": None}
    before: Any = {"a": 1, "b": 2}
    assert apply(before, {"a": None, "c": 3, "d": None}) == {"b": 2, "c": 3}
    assert before == {"a": 1, "b": 2}


def test_a_change_cannot_grow_metadata_past_its_limits() -> None:
    full: Any = {f"k{n}": n for n in range(MAX_KEYS)}
    with pytest.raises(BadMetadata, match="257 keys"):
        apply(full, {"more": 1})
    assert len(apply(full, {"more": 1, "k0": None})) == MAX_KEYS
    with pytest.raises(BadMetadata, match="bytes"):
        apply({f"k{n}": "v" * 4000 for n in range(4)}, {"more": "v" * 1000})


def test_a_difference_makes_the_one_of_the_other_and_is_the_smallest() -> None:
    rng = random.Random(3)
    for _ in range(2000):
        before, after = naive.metadata(rng), naive.metadata(rng)
        change = difference(before, after)
        assert apply(before, change) == after
        assert apply(after, change) == after
        assert not any(k in before and repr(before[k]) == repr(v) for k, v in change.items())
    assert difference({"a": 1}, {"a": True}) == {"a": True}
    assert difference({"a": [1]}, {"a": [True]}) == {"a": [True]}


def test_queries_see_owner_site_and_a_chosen_topic() -> None:
    feed = Feed(id=ID, owner="me", topic="roof/temp", site="s", metadata={"a": 1})
    told = {"a": 1, "skerry/owner": "me", "skerry/site": "s"}
    assert feed.described() == {**told, "skerry/topic": "roof/temp"}
    assert Feed(id=ID, owner="me", topic=f"feeds/s/log/{ID}", site="s").described() == {
        "skerry/owner": "me",
        "skerry/site": "s",
    }


def test_an_id_is_a_uuid_in_one_spelling() -> None:
    assert check_id(ID.upper()) == check_id(ID.replace("-", "")) == ID
    for bad in ("", "x", ID + "0", None, 5):
        with pytest.raises(BadMetadata, match="no feed's id"):
            check_id(bad)  # type: ignore[arg-type]
