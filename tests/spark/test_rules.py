"""Options, patterns, and the rules by which a read is planned."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime
from typing import Any

import pytest

from skerry import errors
from skerry.spark.options import read_sink, read_source
from skerry.spark.pattern import Pattern
from skerry.spark.plan import LEAST, Bounds, admit, cut, narrow


def test_an_unknown_option_is_named_with_those_there_are() -> None:
    with pytest.raises(
        errors.BadSetting, match=r"no option 'tpoic'[\s\S]*maxRowsPerTrigger.*topic"
    ):
        read_source({"tpoic": "t"})
    with pytest.raises(errors.BadSetting, match=r"sink has no option 'start'"):
        read_sink({"topic": "t", "start": "1"})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("start", "yesterday", "option start is earliest, latest, an index, or a time"),
        ("start", "0", "indexes begin with 1"),
        ("partitions", "-1", "option partitions is a whole number"),
        ("maxBytesPerTrigger", "many", "option maxBytesPerTrigger 'many' is not a size"),
        ("failOnDataLoss", "perhaps", "is one of true, false"),
        ("format", "xml", "is one of binary, text, json, msgpack, arrow"),
        ("topic", "a//b", "empty level"),
        ("topic", "a/#/b", "before its end"),
        ("timeout", "0", "number of seconds"),
    ],
)
def test_a_malformed_option_says_what_it_takes(name: str, value: str, message: str) -> None:
    with pytest.raises(errors.BadSetting, match=message):
        read_source({"topic": "t", name: value})


def test_options_are_read_whatever_their_case() -> None:
    found = read_source({"TOPIC": "a/#", "maxrowspertrigger": "5", "start": "2026-11-15T10:00:00Z"})
    assert found.max_rows == 5
    assert found.start is not None
    assert found.start.time == datetime(2026, 11, 15, 10, tzinfo=UTC)


def test_topic_is_needed_and_a_site_is_named_once() -> None:
    with pytest.raises(errors.BadSetting, match="topic is missing"):
        read_source({})
    with pytest.raises(errors.BadSetting, match="both name a site"):
        read_source({"topic": "t", "data": "a", "connection": "b"})


@pytest.mark.parametrize(
    ("pattern", "topic", "subjects"),
    [
        ("a", "a", ()),
        ("a/b", "a", ("e.a.b", "e.a.b.>")),
        ("a/b", "a/b", ()),
        ("a/#", "a", ()),
        ("a/#", "a/b", ()),
        ("a/#", "b", None),
        ("#", "a/b", ()),
        ("a/b/#", "a", ("e.a.b", "e.a.b.>")),
        ("+", "a", ("e.a",)),
        ("+/b", "a", ("e.a.b",)),
        ("a/+/c", "a/x", ("e.a.x.c",)),
        ("a/+/c", "a/x/c", ("e.a.x.c",)),
        ("a/+", "a/x/c", None),
        ("a/+/#", "a", ("e.a.*", "e.a.*.>")),
    ],
)
def test_a_pattern_becomes_filters(
    pattern: str, topic: str, subjects: tuple[str, ...] | None
) -> None:
    assert Pattern.parse(pattern).subjects(topic) == subjects


def test_filters_let_through_what_the_pattern_matches() -> None:
    """Against the plain rule, on random names."""
    chance = random.Random(1)
    words = ["a", "b", "c"]
    for _ in range(3000):
        tokens = chance.choices([*words, "+"], k=chance.randrange(1, 4))
        if chance.random() < 0.4:
            tokens.append("#")
        pattern = Pattern.parse("/".join(tokens))
        topic = chance.choices(words, k=chance.randrange(1, 3))
        name = "/".join(topic + chance.choices(words, k=chance.randrange(0, 3)))
        subjects = pattern.subjects("/".join(topic))
        subject = "e." + name.replace("/", ".")
        through = subjects is not None and (
            not subjects or any(_takes(one, subject) for one in subjects)
        )
        assert through == pattern.matches(name), (pattern, topic, name)


def _takes(filter: str, subject: str) -> bool:
    mine, theirs = filter.split("."), subject.split(".")
    if mine[-1] == ">":
        mine = mine[:-1]
        if len(theirs) <= len(mine):
            return False
        theirs = theirs[: len(mine)]
    return len(mine) == len(theirs) and all(
        m in ("*", t) for m, t in zip(mine, theirs, strict=True)
    )


def test_ranges_are_cut_without_gap_or_overlap() -> None:
    chance = random.Random(2)
    for _ in range(500):
        ranges = {
            f"t{n}": (first := chance.randrange(1, 1000), first + chance.randrange(0, 300_000))
            for n in range(chance.randrange(1, 5))
        }
        pieces = cut(ranges, tasks := chance.randrange(1, 9))
        for topic, (first, last) in ranges.items():
            mine = [(a, b) for name, a, b in pieces if name == topic]
            assert mine[0][0] == first
            assert mine[-1][1] == last
            assert all(a <= b for a, b in mine)
            assert all(b + 1 == c for (_, b), (c, _) in itertools.pairwise(mine))
        assert len(pieces) <= tasks + len(ranges)
    assert cut({"t": (1, LEAST)}, 8) == [("t", 1, LEAST)]
    assert cut({}, 3) == []


def test_a_trigger_takes_no_more_than_allowed_and_leaves_no_topic_behind() -> None:
    chance = random.Random(3)
    for _ in range(500):
        behind = {f"t{n}": chance.randrange(0, 5000) for n in range(chance.randrange(1, 6))}
        rows = chance.choice([None, chance.randrange(1, 6000)])
        size = chance.choice([None, chance.randrange(1, 400_000)])
        taken = admit(behind, dict.fromkeys(behind, 100.0), rows, size)
        assert all(0 < count <= behind[topic] for topic, count in taken.items())
        if any(behind.values()):
            assert taken
            assert sum(taken.values()) <= (rows or 10**9)
            assert sum(taken.values()) <= max((size or 10**9) / 100, 1)
        if rows is None and size is None:
            assert taken == {topic: count for topic, count in behind.items() if count}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([(">", "index", 5), ("<=", "index", 9)], Bounds(first=6, last=9)),
        ([("=", "index", 5), (">=", "index", 7)], Bounds(first=7, last=5)),
        ([("=", "topic", "a"), ("in", "topic", ("a", "b"))], Bounds(topics=frozenset("a"))),
        ([("<", "time", datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC))],
         Bounds(until=datetime(2026, 1, 1, 0, 0, 0, 999999, tzinfo=UTC))),
    ],
)  # fmt: skip
def test_filters_narrow_what_is_read(filters: list[Any], expected: Bounds) -> None:
    bounds: Bounds | None = Bounds()
    for kind, column, value in filters:
        assert bounds is not None
        bounds = narrow(bounds, kind, column, value)
    assert bounds == expected


def test_other_filters_are_left_to_spark() -> None:
    assert narrow(Bounds(), "=", "key", "k") is None
    assert narrow(Bounds(), "in", "index", (1, 2)) is None
    assert narrow(Bounds(), ">", "topic", "a") is None
