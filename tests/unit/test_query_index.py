"""The index of feeds and queries against a dumb one, over many random histories."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from skerry.errors import UnknownFeed
from skerry.model.feeds import Change
from skerry.query import (
    Difference,
    Query,
    QueryIndex,
    access,
    catalogue,
    evaluate,
    index,
    ordered,
    parse,
    table,
)
from skerry.query.terms import Node, Or
from tests.unit import naive_queries as naive

SEEDS = range(20)
HISTORIES = 1000
"""For each seed."""
STEPS = 10


class Dumb:
    """What the index should do, by asking every query about every feed."""

    def __init__(self) -> None:
        self.feeds: dict[str, dict[str, Any]] = {}
        self.queries: dict[str, tuple[naive.Asked, int]] = {}

    def result(self, key: str) -> set[str]:
        asked = self.queries[key][0]
        return {f for f, about in self.feeds.items() if naive.answer(asked, about) is not False}

    def results(self) -> dict[str, set[str]]:
        return {key: self.result(key) for key in self.queries}


def differences(before: dict[str, set[str]], after: dict[str, set[str]]) -> list[Difference]:
    found = [Difference(k, f, True) for k in after for f in after[k] - before[k]]
    found += [Difference(k, f, False) for k in after for f in before[k] - after[k]]
    return sorted(found)


def pool(rng: random.Random, count: int) -> list[tuple[naive.Asked, Query]]:
    asked = [naive.query(rng) for _ in range(count)]
    return [(each, parse(naive.written(rng, each))) for each in asked]


def run_histories(seed: int, count: int) -> None:
    rng = random.Random(seed)
    queries = pool(rng, 400)
    for number in range(count):
        run_history(rng, queries, f"seed {seed}, history {number}")


@pytest.mark.parametrize("seed", SEEDS)
def test_differences_and_results_are_those_of_the_dumb_index(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 000 histories of feeds that come, change and go under queries that come and go. Some
    seeds do with few feeds and values what is meant for many."""
    if seed % 2:
        monkeypatch.setattr(evaluate, "_LOOK", -1)
    if seed % 3:
        monkeypatch.setattr(ordered, "_FULL", 2)
    if seed % 5 == 0:
        monkeypatch.setattr(access, "_MAX_ENTRIES", seed // 5)
        monkeypatch.setattr(access, "_MAX_KEYS", 1)
    run_histories(seed, HISTORIES)


reach, cover, within = table._reach, access._cover, ordered._within

BREAKS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a bool is a number": lambda patch: patch.setattr(catalogue, "identity", lambda value: value),
    "a threshold is looked for only where the value is": lambda patch: patch.setattr(
        table, "_reach", lambda before, after, kinds: reach([], after, kinds)
    ),
    "a key that appears is no change": lambda patch: patch.setattr(
        index, "Turn", lambda key, before, after, appears: table.Turn(key, before, after, False)
    ),
    "prefixes are forgotten": lambda patch: patch.setattr(
        catalogue.Catalogue, "prefixes", lambda self, atom: []
    ),
    "an or is covered by one part": lambda patch: patch.setattr(
        access, "_cover", lambda c, node, avoid=None: cover(c, first_of(node), avoid)
    ),
    "the first value of a range is left out": lambda patch: patch.setattr(
        ordered, "_within", lambda *args: within(*args)[1:]
    ),
    "a block keeps feeds that left": lambda patch: patch.setattr(
        ordered.Ordered, "left", lambda self, value: None
    ),
    "an atom is freed under a query": lambda patch: patch.setattr(
        catalogue.Catalogue, "use", lambda self, atom: None
    ),
    "not is left out of the first evaluation": lambda patch: patch.setattr(
        evaluate, "Not", type("Nothing", (), {})
    ),
}


def first_of(node: Node) -> Node:
    return node.parts[0] if isinstance(node, Or) else node


@pytest.mark.parametrize("broken", BREAKS)
def test_a_broken_index_is_caught(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is worth something: each of these mistakes fails it."""
    BREAKS[broken](monkeypatch)
    with pytest.raises((AssertionError, KeyError, TypeError, AttributeError)):
        run_histories(1, 400)


def test_first_evaluation_differences_and_sharing() -> None:
    """CQBS, section III-B: told of the streams that match, then of each that joins or leaves."""
    index = QueryIndex()
    query = parse('Location/Room = "410" and Type = "temp"')
    same = parse('Type = "temp" and Location/Room = "410"')
    assert index.register("s1", {"Location/Room": "410", "Type": "temp"}) == []
    assert index.add(query) == {"s1"}
    assert index.add(same) == {"s1"}
    assert index.queries == 1
    assert index.change("s1", {"Location/Room": "415"}) == [Difference(query.key, "s1", False)]
    assert index.change("s1", {"Location/Room": "415"}) == []
    assert index.register("s2", {"Location/Room": "410"}) == []
    assert index.change("s2", {"Type": "temp"}) == [Difference(query.key, "s2", True)]
    assert index.result(query.key) == {"s2"}
    assert index.change("s2", {"Type": None}) == [Difference(query.key, "s2", False)]
    assert index.register("s2", {"Location/Room": "410", "Type": "temp"}) == [
        Difference(query.key, "s2", True)
    ]
    assert index.remove(query) is False
    assert index.remove_feed("s2") == [Difference(query.key, "s2", False)]
    assert index.remove_feed("s2") == []
    assert index.remove(same) is True
    assert index.remove(same) is False
    assert (index.queries, index.query(query.key), list(index.feeds())) == (0, None, ["s1"])


def test_an_unknown_feed_or_query_is_told() -> None:
    index = QueryIndex()
    with pytest.raises(UnknownFeed, match="nobody"):
        index.change("nobody", {"a": 1})
    with pytest.raises(UnknownFeed):
        index.metadata("nobody")
    with pytest.raises(KeyError):
        index.result("nothing")
    assert "nobody" not in index


def test_metadata_that_was_given_or_taken_is_not_shared() -> None:
    index = QueryIndex()
    given: Any = {"tags": ["a"]}
    index.register("f", given)
    given["tags"].append("b")
    index.metadata("f")["tags"] = "c"
    taken = index.metadata("f")["tags"]
    assert isinstance(taken, list)
    taken.append("d")
    assert index.metadata("f") == {"tags": ["a"]}


def test_a_query_about_payloads_alone_takes_in_every_feed() -> None:
    index = QueryIndex()
    query = parse("payload.temp > 30")
    assert index.add(query) == frozenset()
    assert index.register("f", {}) == [Difference(query.key, "f", True)]
    assert index.change("f", {"a": 1}) == []
    assert index.result(query.key) == {"f"}
    assert index.remove_feed("f") == [Difference(query.key, "f", False)]


def test_only_queries_that_can_be_affected_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands that mention the key, a change meets a handful."""
    index = QueryIndex()
    for number in range(200):
        index.register(f"f{number}", {"b": number % 20, "room": number % 50, "level": number})
    for b in range(20):
        for n in range(50):
            index.add(parse(f"b = {b} and room = {n}"))
            index.add(parse(f"b = {b} and level < {n * 4}"))
            index.add(parse(f'b = {b} and serial like "^{n}"'))
            index.add(parse(f"not has owner and room = {n} and b in ({b}, 99)"))
    met: list[int] = []
    affected = table.QueryTable.affected

    def counted(self: table.QueryTable, *args: Any) -> set[int]:
        found = affected(self, *args)
        met.append(len(found))
        return found

    monkeypatch.setattr(table.QueryTable, "affected", counted)
    changes: list[Change] = [{"room": 7}, {"level": 6}, {"serial": "31-5"}, {"x": 1}]
    for change in changes:
        index.change("f5", change)
    assert max(met) <= 6, met
    index.change("f5", {"owner": "me"})
    assert met[-1] <= 20, "of the 1000 that ask for an owner, those of the room"


@pytest.mark.parametrize("operator", ["<", "<=", ">", ">="])
def test_ranges_over_many_values(operator: str) -> None:
    """Blocks are cut and emptied, and ends fall on values, between them and outside."""
    rng = random.Random(9)
    index = QueryIndex()
    levels: dict[str, Any] = {}
    for step in range(6000):
        feed = f"f{rng.randrange(3000)}"
        if step > 3000 and rng.random() < 0.5:
            levels.pop(feed, None)
            index.remove_feed(feed)
        else:
            levels[feed] = rng.choice([rng.randrange(5000), rng.random(), str(rng.random())])
            index.register(feed, {"level": levels[feed]})
        if step % 200 == 0 or step > 5990:
            limit = rng.choice([-1, 6000, rng.randrange(5000), 0.5, *list(levels.values())[:3]])
            text = f"level {operator} {limit!r}"
            expected = {
                f
                for f, level in levels.items()
                if naive.answer((operator, "k", limit), {"k": level})
            }
            assert index.evaluate(parse(text)) == expected, text


def run_history(rng: random.Random, queries: list[tuple[naive.Asked, Query]], where: str) -> None:
    index, dumb = QueryIndex(), Dumb()
    before = dumb.results()
    for _ in range(STEPS):
        step = rng.random()
        feed = rng.choice("fgh")
        if step < 0.4:
            asked, query = rng.choice(queries)
            held = dumb.queries.get(query.key, (asked, 0))
            dumb.queries[query.key] = asked, held[1] + 1
            assert index.add(query) == dumb.result(query.key), where
            before = dumb.results()
            continue
        if step < 0.5 and dumb.queries:
            key = rng.choice(list(dumb.queries))
            asked, holders = dumb.queries.pop(key)
            if holders > 1:
                dumb.queries[key] = asked, holders - 1
            assert index.remove(key) is (holders == 1), where
            before = dumb.results()
            continue
        if step < 0.55:
            index.rebalance()
            continue
        if step < 0.65:
            said = index.remove_feed(feed)
            dumb.feeds.pop(feed, None)
        elif feed in dumb.feeds and step < 0.95:
            change = naive.change(rng)
            said = index.change(feed, change)
            about = {**dumb.feeds[feed], **change}
            dumb.feeds[feed] = {k: v for k, v in about.items() if v is not None}
        else:
            dumb.feeds[feed] = naive.metadata(rng)
            said = index.register(feed, dumb.feeds[feed])
        after = dumb.results()
        assert said == differences(before, after), where
        before = after
    for key, expected in before.items():
        assert index.result(key) == expected, where
    for feed, about in dumb.feeds.items():
        assert repr(index.metadata(feed)).count("True") == repr(about).count("True"), where
        assert index.metadata(feed) == about, where
    tidy_up(index, dumb, where)


def tidy_up(index: QueryIndex, dumb: Dumb, where: str) -> None:
    """Without feeds and queries nothing is left of their keys and values."""
    for feed in dumb.feeds:
        index.remove_feed(feed)
    for key, (_, holders) in dumb.queries.items():
        for _ in range(holders):
            index.remove(key)
    atoms, kept = index._catalogue, index._table
    assert (len(index), index.queries, atoms.keys) == (0, 0, {}), where
    assert not atoms.elements, where
    assert not atoms._uses, where
    assert len(atoms._free) == len(atoms.postings) - 1, where
    assert not any([kept._changes, kept._orders, kept._arrivals, kept._kept]), where


def test_feeds_are_paged_through() -> None:
    index = QueryIndex()
    for n in range(100):
        index.register(f"feed-{n}", {"odd": n % 2 == 1})
    for query, expected in ((None, 100), (parse("odd = true"), 50)):
        seen: list[str] = []
        while page := list(itertools.islice(index.behind(query, seen[-1] if seen else ""), 7)):
            seen += page
        assert len(seen) == len(set(seen)) == expected
    index.remove_feed(seen[10])
    assert len(list(index.behind(None, seen[10]))) == 99  # from the beginning: none is left out
