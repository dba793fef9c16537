"""Which sites are feasible for a topic, the best first: the second part of Algorithm 1 (line 4).

A million topics times a thousand sites is worked through in small pieces that stay in the cache, so
the memory taken does not grow with the product. Clients are behind sites: a row of the matrix is
made of rows of the distances between sites, the larger of those where a topic has clients at
several. A cell has the same value however the work is divided (`geometry`).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec
import numpy as np

from skerry.placement.geometry import Geometry, as_ms, geometry
from skerry.placement.settings import PolicySettings
from skerry.placement.tables import Array, Clients, Sites, Topics

KEPT = 4
"""Candidates kept of each topic; if all are full, it is ranked again with those that are not."""
CELLS = 192_000
"""Cells of a piece, of 4 + 4 + 1 bytes each: a third takes 30 % longer, for each piece costs some
dozen calls; more would fall out of the second-level cache (measured)."""


NARROW = 4
"""Full sites are left out beforehand if that is for so many topics, times the number of sites: the
distances of the others are copied for it. For fewer they are passed over."""


class Candidates(msgspec.Struct, frozen=True):
    """Of each topic the best sites, in this order: those that are feasible come first."""

    site: Array
    """int32 (rows, `KEPT`): rows of sites, the best first; -1: there are no more."""
    ms: Array
    """float32 (rows, `KEPT`): W(t, b), the worst case there."""
    choices: Array
    """int32: how many sites are feasible, with the home left out."""
    home_ms: Array
    """float32: W(t, b) of the home."""

    def take(self, rows: Array) -> Candidates:
        """Those of some rows."""
        return Candidates(self.site[rows], self.ms[rows], self.choices[rows], self.home_ms[rows])


class Demand(msgspec.Struct, frozen=True):
    """What topics need, and what sites have left: sites without room are passed over."""

    needs: Array
    """(rows, resources)"""
    spare: Array
    """(sites, resources)"""
    choices: Array
    """How many sites are feasible for each, with room or without: whether a copy brings a site
    nearer depends on that."""


class Ranker(Protocol):
    """Ranks the topics of one table; see `rank`."""

    def candidates(self, rows: Array | None = None, demand: Demand | None = None) -> Candidates:
        """Those of some rows, or of all; with `demand` (a row for each of `rows`) only among sites
        that have room."""
        ...


def rank(
    topics: Topics, sites: Sites, settings: PolicySettings, cause: Array, threads: int = 1
) -> Ranker:
    """What ranks each topic's candidates. A site is one if it is up, is not drained, and is not the
    home.

    *Feasible* are those with W(t, b) below the bound by the margin. The others follow if the topic
    may go to the least bad. Least W first, with a cost for copying the log; the first in the table
    if equal. A topic with clients of one kind only goes near those, one without any near its home.
    Rows do not affect each other: ranking parts of a table gives the parts of its ranking.
    """
    return _Ranker(topics, sites, geometry(topics, sites, settings, cause), threads)


class _Ranker:
    def __init__(self, topics: Topics, sites: Sites, shape: Geometry, threads: int) -> None:
        self.topics = topics
        self.sites = sites
        self.shape = shape
        self.threads = threads
        self.copied = bool((topics.replicas >= 0).any())
        self.columns: dict[bool, _Columns] = {}

    def candidates(self, rows: Array | None = None, demand: Demand | None = None) -> Candidates:
        """See `Ranker`."""
        shape = self.shape
        every = np.arange(len(self.topics)) if rows is None else rows
        made = Candidates(
            np.full((len(every), KEPT), -1, np.int32),
            np.full((len(every), KEPT), np.inf, np.float32),
            np.zeros(len(every), np.int32),
            as_ms(shape.home[every]),
        )
        power = self.topics.power[every]
        for strict in (False, True):
            mine = np.flatnonzero(power == strict)
            if not len(mine):
                continue
            columns = self._usable(strict)
            if demand is not None:
                least = demand.needs[mine].min(axis=0)
                some = (least <= demand.spare).all(axis=1)
                if NARROW * len(mine) > len(some):
                    columns = _Columns(shape, columns.chosen & some)
            if len(columns.site):
                self._all(self._ordered(mine, every), every, columns, demand, made)
        made.site[made.ms > shape.accept[every, None]] = -1
        made.ms[made.site < 0] = 0.0
        return msgspec.structs.replace(made, ms=as_ms(made.ms))

    def _usable(self, power: bool) -> _Columns:
        """The sites that may be chosen, by topics that demand `power` or do not."""
        if power not in self.columns:
            chosen = self.sites.up & ~self.sites.draining & (self.sites.power | (not power))
            self.columns[power] = _Columns(self.shape, chosen)
        return self.columns[power]

    def _ordered(self, mine: Array, rows: Array) -> Array:
        """Topics with clients at as many sites one after the other: so those that have more are
        neighbours, and are worked on in place."""
        some = rows[mine]
        publish, subscribe = (
            clients.first[some + 1] - clients.first[some] for clients in self.shape.clients
        )
        found: Array = mine[np.lexsort((subscribe, publish))]
        return found

    def _all(
        self,
        mine: Array,
        rows: Array,
        columns: _Columns,
        demand: Demand | None,
        made: Candidates,
    ) -> None:
        size = max(8, min(4096, CELLS // columns.ways.shape[1]))
        starts = range(0, len(mine), size)

        def work(number: int) -> None:
            mill = _Mill(self, columns, demand, min(size, len(mine)))
            for start in starts[number :: self.threads]:
                out = mine[start : start + size]
                mill.piece(out, rows[out], made)

        if self.threads == 1 or len(starts) == 1:
            for number in range(self.threads):
                work(number)
            return
        with ThreadPoolExecutor(self.threads) as pool:  # numpy lets go of the interpreter's lock
            list(pool.map(work, range(self.threads)))


class _Columns:
    """The sites that may be chosen, and as many that are infinitely far as make a multiple of
    eight: so the feasible ones are counted eight at a time."""

    def __init__(self, shape: Geometry, chosen: Array) -> None:
        self.chosen = chosen
        self.site = np.flatnonzero(chosen)
        index = np.concatenate((self.site, np.zeros(-len(self.site) % 8, self.site.dtype)))
        self.real = index.astype(np.int32)
        self.ways = shape.ways.take(index, axis=1)
        self.ways[:, len(self.site) :] = np.inf
        self.of = np.full(len(chosen) + 1, -1, np.int32)  # the last for "no site"
        self.of[self.site] = np.arange(len(self.site))


class _Mill:
    """Goes through the cells of topics and sites, piece by piece; not shared between threads."""

    def __init__(
        self, ranker: _Ranker, columns: _Columns, demand: Demand | None, rows: int
    ) -> None:
        self.ranker = ranker
        self.columns = columns
        self.demand = demand
        size = (rows, columns.ways.shape[1])
        self.cells = np.empty(size, np.float32)
        self.other = np.empty(size, np.float32)
        self.spare = np.empty(size, np.float32)
        self.mask = np.empty(size, bool)

    def piece(self, out: Array, rows: Array, made: Candidates) -> None:
        """Rank some rows, into the rows `out` of `made`."""
        shape, topics, columns = self.ranker.shape, self.ranker.topics, self.columns
        size = len(out)
        cells, other, mask = self.cells[:size], self.other[:size], self.mask[:size]
        publish, subscribe = shape.clients
        _farthest(columns.ways, publish, rows, cells, other)
        _farthest(columns.ways, subscribe, rows, other, self.spare[:size])
        np.add(cells, other, out=cells)
        each = np.arange(size)
        home = columns.of[topics.home[rows]]
        cells[each[home >= 0], home[home >= 0]] = np.inf
        if self.demand is not None:
            cells[:, : len(columns.site)][~_fits(self.demand, out, columns.site)] = np.inf
        np.less_equal(cells, shape.limit[rows, None], out=mask)
        count = np.bitwise_count(mask.view(np.uint64)).sum(axis=1, dtype=np.int32)
        made.choices[out] = count
        copies = before = None
        if self.ranker.copied:
            copies = columns.of[topics.replicas[rows]]
            feasible = count if self.demand is None else self.demand.choices[out]
            before = _discount(shape, rows, cells, feasible, copies)
        first = each * cells.shape[1]
        flat = cells.reshape(-1)
        found = np.empty((KEPT, size), np.int64)
        value = np.empty((KEPT, size), np.float32)
        for place in range(KEPT):
            column = cells.argmin(axis=1, out=found[place])
            index = first + column
            flat.take(index, out=value[place])
            flat[index] = np.inf
        site = columns.real.take(found)
        site[value == np.inf] = -1
        if copies is not None and before is not None:
            for which in range(copies.shape[1]):
                np.copyto(value, before[:, which], where=found == copies[:, which])
        made.site[out] = site.T
        made.ms[out] = value.T


def _farthest(ways: Array, clients: Clients, rows: Array, out: Array, spare: Array) -> None:
    """The way of the farthest of some topics' clients to each site, into `out`; `spare` is as large
    and is used on the way."""
    first = clients.first[rows]
    count = clients.first[rows + 1] - first
    nobody = count == 0
    if nobody.any():
        some = np.flatnonzero(~nobody)
        site = np.full(len(rows), len(ways) - 1)
        site[some] = clients.site[first[some]]
        access = np.zeros(len(rows), np.float32)
        access[some] = clients.access[first[some]]
    else:
        site, access = clients.site[first], clients.access[first]
    ways.take(site, axis=0, out=out, mode="clip")
    np.add(out, access[:, None], out=out)
    for further in range(1, int(count.max())):
        more = np.flatnonzero(count > further)
        row = first[more] + further
        way = spare[: len(more)]
        ways.take(clients.site[row], axis=0, out=way, mode="clip")
        np.add(way, clients.access[row, None], out=way)
        if more[-1] - more[0] + 1 == len(more):  # by the order of the rows nearly always
            there = out[more[0] : more[-1] + 1]
            np.maximum(there, way, out=there)
        else:
            out[more] = np.maximum(out[more], way)


def _fits(demand: Demand, rows: Array, sites: Array) -> Array:
    """(rows, sites): whether there is room."""
    need, spare = demand.needs[rows], demand.spare[sites]
    found: Array = need[:, :1] <= spare[:, 0]
    for resource in range(1, spare.shape[1]):
        found &= need[:, resource : resource + 1] <= spare[:, resource]
    return found


def _discount(shape: Geometry, rows: Array, cells: Array, count: Array, copies: Array) -> Array:
    """Bring the sites with a copy nearer by what copying costs; return their cells as they were.
    Only where a topic may go: so those that are feasible stay before those that are not."""
    value: Array = cells[np.arange(len(copies))[:, None], copies]
    limit = np.where(count > 0, shape.limit[rows], shape.accept[rows])
    at, which = np.nonzero((copies >= 0) & (value <= limit[:, None]))
    cells[at, copies[at, which]] -= shape.cost[rows][at]
    return value
