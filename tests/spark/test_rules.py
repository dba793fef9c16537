"""Options, patterns, and the rules by which a read is planned."""

from __future__ import annotations

import itertools
import random
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from skerry import errors
from skerry.model.fabric import Step, TopicEntry
from skerry.model.pattern import Pattern
from skerry.model.topic import TopicSettings
from skerry.spark.options import read_sink, read_source
from skerry.spark.plan import LEAST, Bounds, admit, cut, narrow
from skerry.spark.seen import SURE, Attempt, attempt_at, write_done


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


def entry(epoch: int, *bases: int, forgetful: bool = False) -> TopicEntry:
    """A topic whose last epochs began behind these indexes."""
    lineage = tuple(Step(*one) for one in enumerate(bases, epoch - len(bases) + 1))
    return TopicEntry(
        name="t", home="hub", epoch=epoch, lineage=lineage,
        members=("hub", "lab"), settings=TopicSettings(), forgetful=forgetful,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("age", "again", "marks", "topic", "looks"),
    [
        (0, False, {}, None, False),
        (0, True, {}, None, False),  # a site alone knows its ids
        (SURE + 1, False, {}, None, True),  # Spark does not tell that a stage is run again
        (0, True, {}, entry(1, 0), True),
        (0, False, {}, entry(1, 0), False),
        (0, False, {}, entry(2, 0, 50, forgetful=True), True),
        (0, False, {"t": (1, 40)}, entry(2, 0, 50, forgetful=True), True),
        (0, False, {"t": (2, 60)}, entry(2, 0, 50, forgetful=True), False),
    ],
)
def test_rows_are_looked_for_where_the_log_may_have_forgotten_them(
    age: float, again: bool, marks: Any, topic: TopicEntry | None, looks: bool
) -> None:
    attempt = Attempt(again=again, began=time.time() - age, marks=marks)
    assert attempt.must_look("t", topic) == looks


@pytest.mark.parametrize(
    ("mark", "topic", "first"),
    [
        ((3, 70), entry(3, 0, 20, 60), 71),
        ((2, 55), entry(3, 0, 20, 60), 56),
        ((2, 65), entry(3, 0, 20, 60), 61),  # the events 61 to 65 went with the home of epoch 2
        ((1, 65), entry(9, 60, 80), None),  # too long ago to tell
        ((0, 65), None, None),
    ],
)
def test_rows_are_looked_for_behind_the_batch_before(
    mark: tuple[int, int], topic: TopicEntry | None, first: int | None
) -> None:
    start = Attempt(again=True, began=1e9, marks={"t": mark}).start("t", topic)
    assert start.get("seq") == first
    assert ("start_time" in start) == (first is None)


def test_a_batch_is_new_only_if_this_run_did_the_one_before(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert attempt_at(folder, "run", 0, 0).again
    write_done(folder, "run", 4, [{"a": (1, 10), "b": (1, 5)}, {"a": (2, 7)}])
    before = {"a": (2, 7), "b": (1, 5)}
    assert attempt_at(folder, "run", 5, 0) == Attempt(again=False, began=None, marks=before)
    assert attempt_at(folder, "run", 5, 1).again
    assert attempt_at(folder, "other", 5, 0).again
    assert attempt_at(folder, "", 5, 0).again
    write_done(folder, "run", 5, [{"a": (2, 20)}])
    again = attempt_at(folder, "other", 5, 0)
    assert (again.again, again.marks) == (True, before)
    write_done(folder, "other", 5, [{"a": (2, 20)}])
    assert attempt_at(folder, "other", 5, 0).marks == before
    assert attempt_at(folder, "other", 6, 0).marks == {"a": (2, 20), "b": (1, 5)}
    assert attempt_at(folder, "other", 8, 0) == Attempt(again=True, began=None, marks={})
    (tmp_path / "skerry" / "written").write_bytes(b'{"run": "oth')
    assert attempt_at(folder, "other", 6, 0).again
