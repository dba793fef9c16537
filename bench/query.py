"""How long it takes to say which queries' results a feed's change affects.

A million feeds of a thousand buildings, and a hundred thousand distinct queries over them: most ask
for some rooms or kinds of one building, some for a range or a pattern, some for what is missing.
The changes are those of sensors: batteries drain, things are moved, calibrated, taken for another.

`scan` asks every query that mentions a changed key, before and after, as the paper's key-query
table does. `sqlite` does the same with the metadata as rows in SQLite, in memory and indexed, and
the queries as SQL, one prepared statement for each shape; patterns go back to Python. All three are
given the same changes and must say the same; the index's own time is that of thousands more in the
same proportions.
"""

from __future__ import annotations

import gc
import os
import random
import sqlite3
import time
from collections.abc import Iterable
from typing import Any

import psutil

from bench.harness import Benchmark, Figure, compared, interleave, measured, percentile, progress
from skerry.model.feeds import Change, Metadata
from skerry.query import Difference, Query, QueryIndex, parse, patterns
from skerry.query.normal import subject_of, terms_of
from skerry.query.terms import And, Has, Like, Node, Not, OneOf, Or, Order

FEEDS = int(os.environ.get("QUERY_FEEDS", "1000000"))
QUERIES = int(os.environ.get("QUERY_QUERIES", "100000"))
CHANGES = 3000
"""Changes of a round that the percentiles are over."""
ROUNDS = int(os.environ.get("QUERY_ROUNDS", "5"))
BUILDINGS = max(10, FEEDS // 1000)
KINDS = [f"kind{n}" for n in range(40)]
ROOMS = [f"{floor}{n:02}" for floor in range(1, 9) for n in range(25)]
UNITS = ["C", "F", "ppm", "lx", "W", "V", "%", "m/s"]
WAYS = 6
OWN = FEEDS * 9 // 10
"""Feeds that only the index's own rounds change; the others are changed by all variants."""


def feed_id(number: int) -> str:
    """The feed's UUID."""
    return f"{number:08x}-0000-4000-8000-{number * 2654435761 % 2**48:012x}"


def describe(number: int) -> Metadata:
    """A feed's metadata: six keys, and sometimes a seventh."""
    rng = random.Random(number)
    about: Metadata = {
        "Location/Building": f"building{rng.randrange(BUILDINGS)}",
        "Location/Room": rng.choice(ROOMS),
        "Kind": rng.choice(KINDS),
        "Unit": rng.choice(UNITS),
        "Battery": rng.randrange(101),
        "Serial": f"sn-{rng.randrange(2**40):010x}",
    }
    if rng.random() < 0.3:
        about["Calibrated"] = True
    return about


def ask(rng: random.Random) -> str:
    """A query such as people subscribe with."""
    building, room, kind = rng.randrange(BUILDINGS), rng.choice(ROOMS), rng.choice(KINDS)
    at = f'Location/Building = "building{building}"'
    dice = rng.random()
    if dice < 0.40:
        return f'{at} and Location/Room = "{room}" and Kind = "{kind}"'
    if dice < 0.60:
        return f'{at} and Kind in ("{kind}", "{rng.choice(KINDS)}")'
    if dice < 0.70:
        return f'{at} and Battery < {rng.randrange(1, 40)} and Kind != "{kind}"'
    if dice < 0.78:
        return f'{at} and Kind = "{kind}" and Location/Room like "^{room[0]}.[0-4]$"'
    if dice < 0.84:
        return f'{at} and not Kind = "{kind}" and not has Calibrated and Unit = "C"'
    if dice < 0.90:
        places = f'("building{building}", "building{rng.randrange(BUILDINGS)}")'
        return f'Location/Building in {places} and Kind = "{kind}" and Location/Room != "{room}"'
    if dice < 0.95:
        other = f'Location/Building = "building{rng.randrange(BUILDINGS)}"'
        return (
            f'({at} and Location/Room = "{room}") or ({other} and Kind = "{kind}" and Battery < 10)'
        )
    if dice < 0.98:
        return f'Serial like "^sn-{rng.randrange(2**20):05x}"'
    return f'{at} and payload.value > {rng.randrange(100)} and Kind = "{kind}"'


def vary(rng: random.Random, way: int, about: Metadata) -> Change:
    """One of the ways in which a feed changes."""
    if way in (0, 1):
        battery = about["Battery"]
        assert isinstance(battery, int)
        return {"Battery": battery - 1 if battery else 100}
    if way == 2:
        return {"Location/Room": rng.choice(ROOMS)}
    if way == 3:
        building = f"building{rng.randrange(BUILDINGS)}"
        return {"Location/Building": building, "Location/Room": rng.choice(ROOMS)}
    if way == 4:
        return {"Calibrated": None if "Calibrated" in about else True}
    return {"Kind": rng.choice(KINDS)}


class Stage:
    """The index, filled, with what each part of it took; and SQLite with the same feeds."""

    def __init__(self) -> None:
        self.rng = random.Random(7)
        self.index = QueryIndex()
        self.queries: dict[str, Query] = {}
        self.first: list[float] = []
        progress(f"query: {FEEDS:,} feeds")
        before = _memory()
        for number in range(FEEDS):
            self.index.register(feed_id(number), describe(number))
        self.feed_bytes = (_memory() - before) / FEEDS
        progress(f"query: {QUERIES:,} queries")
        before = _memory()
        while len(self.queries) < QUERIES:
            query = parse(ask(self.rng))
            if query.key in self.queries:
                continue
            self.queries[query.key] = query
            began = time.perf_counter()
            self.index.add(query)
            self.first.append(_ms(began))
        self.query_bytes = (_memory() - before) / QUERIES
        self.by_key: dict[str, list[Query]] = {}
        for query in self.queries.values():
            for key in {str(subject_of(term)) for term in terms_of(query.feeds)}:
                self.by_key.setdefault(key, []).append(query)
        progress("query: SQLite")
        self.sqlite = Sqlite(self.queries.values())
        self.times: list[float] = []
        self.arrivals: list[float] = []
        self.round = 0
        self.said: list[list[Difference]] = []

    def changes(self) -> list[tuple[str, Change]]:
        """One change of each way, the same for all variants of a round."""
        rng = random.Random(self.round)
        ids = [feed_id(number) for number in rng.sample(range(OWN, FEEDS), WAYS)]
        return [(id, vary(rng, way, self.index.metadata(id))) for way, id in enumerate(ids)]

    async def scan(self) -> float:
        """Ask all that mention the key. Returns ms for each change; runs first in a round."""
        changes = self.changes()
        self.said = []
        began = time.perf_counter()
        for id, change in changes:
            before = self.index.metadata(id)
            after = {**before, **change}
            after = {key: value for key, value in after.items() if value is not None}
            found = []
            for query in self.mentioning(change):
                joined = query.feeds.holds(after)
                if joined is not query.feeds.holds(before):
                    found.append(Difference(query.key, id, joined))
            self.said.append(sorted(found))
        return _ms(began) / len(changes)

    async def in_sqlite(self) -> float:
        """The same in SQLite."""
        changes = self.changes()
        began = time.perf_counter()
        said = [self.sqlite.change(id, change, self.mentioning(change)) for id, change in changes]
        took = _ms(began) / len(changes)
        assert said == self.said
        return took

    async def skerry(self) -> float:
        """The same by the index; then many more changes for the percentiles."""
        changes = self.changes()
        said = [self.index.change(id, change) for id, change in changes]
        assert said == self.said
        self.round += 1
        times = []
        for number in range(CHANGES):
            id = feed_id(self.rng.randrange(OWN))
            change = vary(self.rng, number % WAYS, self.index.metadata(id))
            began = time.perf_counter()
            self.index.change(id, change)
            times.append(_ms(began))
        for number in range(FEEDS, FEEDS + CHANGES // 10):
            began = time.perf_counter()
            self.index.register(feed_id(number), describe(number))
            self.arrivals.append(_ms(began))
            self.index.remove_feed(feed_id(number))
        if self.round > 1:  # the first is the warm-up
            self.times += times
        return sum(times) / len(times)

    def mentioning(self, change: Change) -> list[Query]:
        """The queries that mention a changed key."""
        found = {q.key: q for key in change for q in self.by_key.get(key, ())}
        return list(found.values())


class Sqlite:
    """Feeds as rows (feed, key, value) in memory, queries as SQL about one feed."""

    def __init__(self, queries: Iterable[Query]) -> None:
        self.base = sqlite3.connect(":memory:", cached_statements=1000)
        self.base.create_function("regexp", 2, _regexp, deterministic=True)
        self.base.execute(
            "create table m (feed text, key text, value, primary key (feed, key)) without rowid"
        )
        rows = (
            (feed_id(number), key, value)
            for number in range(FEEDS)
            for key, value in describe(number).items()
        )
        self.base.executemany("insert into m values (?, ?, ?)", rows)
        self.base.execute("create index byvalue on m (key, value)")
        self.compiled: dict[str, tuple[str, list[Any]]] = {}
        for query in queries:
            values: list[Any] = []
            self.compiled[query.key] = f"select {_sql(query.feeds, values)}", values

    def change(self, id: str, change: Change, queries: list[Query]) -> list[Difference]:
        """Which answers differ."""
        before = [self.ask(id, query) for query in queries]
        for key, value in change.items():
            if value is None:
                self.base.execute("delete from m where feed = ? and key = ?", (id, key))
            else:
                self.base.execute("insert or replace into m values (?, ?, ?)", (id, key, value))
        after = [self.ask(id, query) for query in queries]
        triples = zip(queries, before, after, strict=True)
        return sorted(Difference(q.key, id, now) for q, was, now in triples if was is not now)

    def ask(self, id: str, query: Query) -> bool:
        """Whether a feed matches."""
        sql, values = self.compiled[query.key]
        (found,) = self.base.execute(sql, [id if v is None else v for v in values]).fetchone()
        return bool(found)


def _sql(node: Node, values: list[Any]) -> str:
    """An expression about the feed that None stands for among `values`."""
    if isinstance(node, And):
        return "(" + " and ".join(_sql(part, values) for part in node.parts) + ")"
    if isinstance(node, Or):
        return "(" + " or ".join(_sql(part, values) for part in node.parts) + ")"
    if isinstance(node, Not):
        return f"not {_sql(node.term, values)}"
    values += [None, subject_of(node)]
    test = ""
    if isinstance(node, OneOf):
        values += node.values
        test = f" and value in ({', '.join('?' * len(node.values))})"
    elif isinstance(node, Order):
        values.append(node.value)
        test = f" and typeof(value) = 'integer' and value {node.operator} ?"
    elif isinstance(node, Like):
        values.append(node.pattern)
        test = " and value regexp ?"
    else:
        assert isinstance(node, Has)
    return f"exists (select 1 from m where feed = ? and key = ?{test})"


def _regexp(pattern: str, value: Any) -> bool:
    return isinstance(value, str) and patterns.compile(pattern)(value)


def _memory() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _ms(began: float) -> float:
    return (time.perf_counter() - began) * 1e3


async def _query() -> list[Figure]:
    stage = Stage()
    samples = await interleave(
        "query", {"scan": stage.scan, "sqlite": stage.in_sqlite, "skerry": stage.skerry}, ROUNDS
    )
    about = f"{FEEDS:,} feeds, {QUERIES:,} distinct queries"
    return [
        measured("query.diff_p50_ms", [percentile(stage.times, 50)], "ms", f"{about}; one change"),
        measured("query.diff_p95_ms", [percentile(stage.times, 95)], "ms"),
        measured(
            "query.register_p95_ms", [percentile(stage.arrivals, 95)], "ms", "a feed that comes"
        ),
        measured("query.first_p50_ms", [percentile(stage.first, 50)], "ms"),
        measured(
            "query.first_p95_ms", [percentile(stage.first, 95)], "ms", "places chosen, feeds found"
        ),
        measured("query.feed_bytes", [stage.feed_bytes], "bytes", "resident, six or seven keys"),
        measured("query.query_bytes", [stage.query_bytes], "bytes", "resident, parsed and placed"),
        compared("query.vs_scan", samples, "scan", "mean time of a change, in ms"),
        compared("query.vs_sqlite", samples, "sqlite", "mean time of a change, in ms"),
    ]


BENCHMARKS = [
    Benchmark(
        [
            "query.diff_p50_ms",
            "query.diff_p95_ms",
            "query.register_p95_ms",
            "query.first_p50_ms",
            "query.first_p95_ms",
            "query.feed_bytes",
            "query.query_bytes",
            "query.vs_scan",
            "query.vs_sqlite",
        ],
        _query,
    )
]
