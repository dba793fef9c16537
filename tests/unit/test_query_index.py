"""The index of feeds and queries against a dumb one, over many random histories."""

from __future__ import annotations

import random
from typing import Any

import pytest

from skerry.query import Difference, Query, QueryIndex, parse
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


@pytest.mark.parametrize("seed", SEEDS)
def test_differences_and_results_are_those_of_the_dumb_index(seed: int) -> None:
    """20 000 histories of feeds that come, change and go under queries that come and go."""
    rng = random.Random(seed)
    queries = pool(rng, 400)
    for number in range(HISTORIES):
        run_history(rng, queries, f"seed {seed}, history {number}")


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
        assert index.metadata(feed) == about, where
    tidy_up(index, dumb, where)


def tidy_up(index: QueryIndex, dumb: Dumb, where: str) -> None:
    """Without feeds and queries nothing is left of their keys and values."""
    for feed in dumb.feeds:
        index.remove_feed(feed)
    for key, (_, holders) in dumb.queries.items():
        for _ in range(holders):
            index.remove(key)
    catalogue, table = index._catalogue, index._table
    assert (len(index), index.queries, catalogue.keys) == (0, 0, {}), where
    assert not catalogue.elements, where
    assert not catalogue._uses, where
    assert len(catalogue._free) == len(catalogue.postings) - 1, where
    assert not any([table._changes, table._orders, table._arrivals, table._kept]), where
