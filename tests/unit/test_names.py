"""Topic names: what is taken, what is refused and why, and the mapping to the engine."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.errors import BadName
from skerry.model import names

TOKEN = st.text("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789-_", min_size=1, max_size=10)
NAME = st.lists(TOKEN, min_size=1, max_size=8).map("/".join).filter(lambda n: n[0] != "_")


@given(NAME)
def test_good_names_map_one_to_one(name: str) -> None:
    assert names.check_topic(name) == name
    assert names.topic_of_stream(names.stream_of(name)) == name
    assert names.topic_of_subject(names.stored_subject(name)) == name
    assert names.write_subject("farm", name) == "s.farm.0." + name.replace("/", ".")


@given(NAME, NAME)
def test_different_names_have_different_streams_and_subjects(one: str, other: str) -> None:
    assert (one == other) == (names.stream_of(one) == names.stream_of(other))
    assert (one == other) == (names.stored_subject(one) == names.stored_subject(other))


@given(st.text(max_size=300))
def test_a_stray_of_any_name_is_kept_under_a_good_one(topic: str) -> None:
    name = names.stray_topic("local", topic)
    assert names.check_topic(name).startswith("strays/local/")


@given(st.text(max_size=40) | st.from_regex(r"[a-b/_.]{1,12}"))
def test_any_text_is_taken_or_refused_with_a_reason(text: str) -> None:
    plain = re.fullmatch(r"[A-Za-z0-9-][A-Za-z0-9_-]*(/[A-Za-z0-9_-]+){0,15}", text, re.ASCII)
    if plain:
        assert names.check_topic(text) == text
    else:
        with pytest.raises(BadName):
            names.check_topic(text)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        ("/a", "empty level"),
        ("a//b", "empty level"),
        ("a/", "empty level"),
        ("a" * 181, "180 at most"),
        ("/".join("a" * 17), "16 at most"),
        ("a/*", "wildcard"),
        ("a/>", "wildcard"),
        ("a/+/b", "wildcard"),
        ("a/#", "wildcard"),
        ("a\x00b", "U+0000"),
        ("a\nb", "U+000A"),
        ("a.b", "'.'"),
        ("a b", "' '"),
        ("$JS/API", "'$'"),
        ("naïve", "'ï'"),
        ("_sk/x", "reserved"),
        ("a~b", "'~'"),
    ],
)
def test_bad_names_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(BadName) as caught:
        names.check_topic(name)
    assert reason in caught.value.what


@pytest.mark.parametrize("name", [None, 7, b"a", ["a"]])
def test_only_text_names_a_topic(name: object) -> None:
    with pytest.raises(BadName):
        names.check_topic(name)  # type: ignore[arg-type]


def test_sub_topics_lie_within_their_parent() -> None:
    assert names.is_within("a/b", "a")
    assert names.is_within("a", "a")
    assert not names.is_within("ab", "a")
    assert not names.is_within("a", "a/b")


def test_other_streams_are_no_topics() -> None:
    assert names.topic_of_stream("$MQTT_msgs") is None
    assert names.topic_of_stream("KV_x") is None


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 65, "a.b", "*"])
def test_bad_subscription_names_are_refused(name: str) -> None:
    with pytest.raises(BadName):
        names.check_subscription(name)


def test_a_stray_with_a_good_name_keeps_it() -> None:
    assert names.stray_topic("local", "sensor/roof") == "strays/local/sensor/roof"
