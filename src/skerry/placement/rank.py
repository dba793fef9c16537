"""Which sites are feasible for a topic, the best first: the second part of Algorithm 1 (line 4).

A million topics times a thousand sites is worked through in small pieces that stay in the cache,
so the memory taken does not grow with the tables.

**Exactness.** Positions are rounded to 1/1024 ms. The square of a distance is then a whole number,
which a float64 matrix product computes without any rounding, whatever the order in which it adds:
so the result is the same on every processor, with every library and for every division into pieces.
The root is taken in float32, which IEEE 754 defines to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np

from skerry.placement.select import Cause
from skerry.placement.settings import PolicySettings
from skerry.placement.tables import Array, Sites, Topics

TICKS = 1024.0
"""Ticks in a millisecond."""
KEPT = 4
"""Candidates kept of each topic; if all are full, it is ranked again with those that are not."""
CELLS = 64_000
"""Cells of a piece: with 8 + 4 + 4 + 1 bytes each about 1 MB, the size of a second-level cache."""
_MOST = np.float32(3e38)


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
        """Those of these rows."""
        return Candidates(self.site[rows], self.ms[rows], self.choices[rows], self.home_ms[rows])


class Demand(msgspec.Struct, frozen=True):
    """What topics need, and what sites have left: sites without room are passed over."""

    needs: Array
    spare: Array

    def fits(self, rows: slice | Array, sites: Array) -> Array:
        """(rows, sites): whether there is room."""
        need, spare = self.needs[rows], self.spare[sites]
        found = need[:, :1] <= spare[:, 0]
        for resource in range(1, spare.shape[1]):
            found &= need[:, resource : resource + 1] <= spare[:, resource]
        return found


class _Geometry(msgspec.Struct, frozen=True):
    """Topics in ticks. A cell of the matrix is |p - b| + |c - b| + 2 h(b); W(t, b) is `scale` times
    the cell plus `radius`."""

    producer: Array
    consumer: Array
    radius: Array
    scale: Array
    limit: Array
    """The largest cell that is feasible."""
    accept: Array
    """The largest cell that the topic may move to."""
    home: Array
    """The home's cell."""
    cost: Array
    """What a site without a copy is further away."""


def rank(
    topics: Topics,
    sites: Sites,
    settings: PolicySettings,
    cause: Array,
    *,
    demand: Demand | None = None,
    threads: int = 1,
) -> Candidates:
    """The candidates of each topic. A site is one if it is up, is not drained, is not the home,
    and has room by `demand`, if that is given.

    *Feasible* are those with W(t, b) below the bound by the margin. The others follow if the topic
    may go to the least bad. Least W first, with a cost for copying the log; the first in the table
    if equal. A topic with clients of one kind only goes near those, one without any near its home.
    Rows do not affect each other: ranking parts of a table gives the parts of its ranking.
    """
    count = len(topics)
    shape = _geometry(topics, sites, settings, cause)
    site = np.full((count, KEPT), -1, np.int32)
    cell = np.zeros((count, KEPT), np.float32)
    choices = np.zeros(count, np.int32)
    eligible = sites.up & ~sites.draining
    for power in (False, True):
        rows = np.flatnonzero(topics.power == power)
        columns = np.flatnonzero(eligible & (sites.power | (not power)))
        if len(rows) and len(columns):
            every = len(rows) == count
            work = _Work(topics, sites, shape, columns, demand)
            spans = _pieces(len(rows), len(columns))
            # A slice of all rows is a view; an index makes a copy.
            pieces = [slice(a, b) if every else rows[a:b] for a, b in spans]
            _run(work, pieces, (site, cell, choices), threads)
    ms = (cell * shape.scale[:, None]).astype(np.float64) / TICKS + shape.radius[:, None]
    home = (shape.home * shape.scale).astype(np.float64) / TICKS + shape.radius
    return Candidates(site, ms.astype(np.float32), choices, home.astype(np.float32))


def _pieces(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    size = max(8, min(4096, CELLS // columns))
    return ((a, min(a + size, rows)) for a in range(0, rows, size))


def _run(
    work: _Work, pieces: list[slice | Array], out: tuple[Array, Array, Array], threads: int
) -> None:
    def share(mine: list[slice | Array]) -> None:
        buffers = work.buffers(max(len(out[2][piece]) for piece in mine))
        for piece in mine:
            work.piece(piece, buffers, out)

    threads = min(threads, len(pieces))
    if threads <= 1:
        share(pieces)
        return
    with ThreadPoolExecutor(threads) as pool:  # numpy lets go of the interpreter's lock
        list(pool.map(share, [pieces[start::threads] for start in range(threads)]))


class _Work:
    """The matrix of some topics and some sites, piece by piece."""

    def __init__(
        self, topics: Topics, sites: Sites, shape: _Geometry, columns: Array, demand: Demand | None
    ) -> None:
        self.shape = shape
        self.columns = columns
        self.demand = demand
        at = _ticks(sites.position[columns])
        # Columns are counted eight at a time; those that fill up are infinitely far.
        self.width = -(-len(columns) // 8) * 8
        self.right = np.zeros((at.shape[1] + 2, self.width))
        self.right[:-2, : len(columns)] = -2.0 * at.T
        self.right[-2] = 1.0
        self.right[-1, : len(columns)] = (at * at).sum(axis=1)
        self.height = np.full(self.width, np.inf, np.float32)
        self.height[: len(columns)] = 2.0 * _ticks(sites.height[columns])
        column_of = np.full(len(sites) + 1, -1, np.int32)  # the last for "no site"
        column_of[columns] = np.arange(len(columns))
        self.home = column_of[topics.home]
        self.copies = column_of[topics.replicas]
        self.copied = bool((self.copies >= 0).any())

    def buffers(self, rows: int) -> tuple[Array, Array, Array, Array]:
        """Room for a piece, used again and again."""
        size = (rows, self.width)
        return (np.empty(size), np.empty(size, np.float32), np.empty(size, np.float32),
                np.empty(size, bool))  # fmt: skip

    def piece(
        self,
        rows: slice | Array,
        buffers: tuple[Array, Array, Array, Array],
        out: tuple[Array, Array, Array],
    ) -> None:
        """Rank some rows."""
        shape, (site, cell, choices) = self.shape, out
        size = len(shape.limit[rows])
        square, cells, other, mask = (buffer[:size] for buffer in buffers)
        for centre, target in ((shape.producer, cells), (shape.consumer, other)):
            np.matmul(_left(centre[rows]), self.right, out=square)
            np.copyto(target, square, casting="same_kind")
            np.sqrt(target, out=target)
        np.add(cells, other, out=cells)
        np.add(cells, self.height, out=cells)
        each = np.arange(size)
        home = self.home[rows]
        cells[each[home >= 0], home[home >= 0]] = np.inf
        if self.demand is not None:
            room = self.demand.fits(rows, self.columns)
            np.copyto(cells[:, : len(self.columns)], np.inf, where=~room)
        np.less_equal(cells, shape.limit[rows, None], out=mask)
        count = np.bitwise_count(mask.view(np.uint64)).sum(axis=1, dtype=np.int32)
        choices[rows] = count
        copies = self._discount(rows, cells, count) if self.copied else None
        accept = shape.accept[rows]
        best = np.full((size, KEPT), -1, np.int32)
        found = np.zeros((size, KEPT), np.float32)
        for place in range(KEPT):
            column = cells.argmin(axis=1)
            value = cells[each, column]
            cells[each, column] = np.inf
            good = value < np.inf
            if copies is not None:
                value = _undiscounted(value, column, *copies)
            good &= value <= accept
            best[good, place] = self.columns[column[good]]
            found[good, place] = value[good]
        site[rows], cell[rows] = best, found

    def _discount(self, rows: slice | Array, cells: Array, count: Array) -> tuple[Array, Array]:
        """Bring the sites with a copy nearer by what copying costs. Only where a topic may go: so
        those that are feasible stay before those that are not."""
        shape, copies = self.shape, self.copies[rows]
        index = np.arange(len(copies))[:, None]
        value = cells[index, copies]
        limit = np.where(count > 0, shape.limit[rows], shape.accept[rows])
        at, which = np.nonzero((copies >= 0) & (value <= limit[:, None]))
        cells[at, copies[at, which]] -= shape.cost[rows][at]
        return copies, value


def _undiscounted(value: Array, column: Array, copies: Array, before: Array) -> Array:
    for which in range(copies.shape[1]):
        value = np.where(copies[:, which] == column, before[:, which], value)
    return value


def _geometry(topics: Topics, sites: Sites, settings: PolicySettings, cause: Array) -> _Geometry:
    """Ticks of all topics. The distance to the only group of clients that a topic has is counted
    twice, and halved again by `scale`: so one kind of matrix does for all."""
    publishes = (topics.producers > 0) & topics.measured
    subscribes = (topics.consumers > 0) & topics.measured
    producer, consumer = topics.producer_at, topics.consumer_at
    radius = topics.producer_radius.astype(np.float64) + topics.consumer_radius
    scale = np.ones(len(topics), np.float32)
    both = publishes & subscribes
    if not both.all():
        producer, consumer = producer.copy(), consumer.copy()
        producer[~publishes] = consumer[~publishes]
        consumer[~subscribes] = producer[~subscribes]
        none = ~publishes & ~subscribes
        producer[none] = consumer[none] = sites.position[topics.home[none]]
        scale[~both] = 0.5
        radius -= np.where(publishes, 0.0, topics.producer_radius)
        radius -= np.where(subscribes, 0.0, topics.consumer_radius)
    home = _cells(producer, consumer, sites.position[topics.home], sites.height[topics.home])
    limit = _largest_cell(topics.bound * (1.0 - settings.margin), radius, scale)
    accept = limit
    if settings.when_infeasible == "least_bad":
        now = home.astype(np.float64) * scale / TICKS + radius
        gain = np.maximum(settings.gain_ms, settings.gain_ratio * now)
        gain[cause == Cause.OVERLOAD] = 0.0
        accept = np.maximum(limit, _largest_cell(now - gain, radius, scale))
    accept = np.where(cause == Cause.DRAIN, _MOST, accept)
    cost = topics.stored_bytes / 1e9 * settings.move_cost_ms_per_gb
    cost = np.minimum(cost, settings.move_cost_max_ms) * TICKS / scale
    return _Geometry(
        producer, consumer, radius, scale, limit, accept, home, np.rint(cost).astype(np.float32)
    )


def _largest_cell(ms: Array, radius: Array, scale: Array) -> Array:
    """The cell of a worst case of `ms`."""
    cell: Array = np.minimum(np.floor((ms - radius) * TICKS / scale), _MOST).astype(np.float32)
    return cell


def _ticks(ms: Array) -> Array:
    ticks: Array = np.rint(ms.astype(np.float64) * TICKS)
    return ticks


def _left(centre: Array) -> Array:
    """Rows that, times the columns of `_Work.right`, are squares of distances."""
    left = np.ones((len(centre), centre.shape[1] + 2))
    at = left[:, :-2]
    np.multiply(centre, TICKS, out=at)
    np.rint(at, out=at)
    np.einsum("ij,ij->i", at, at, out=left[:, -2])
    return left


def _cells(producer: Array, consumer: Array, position: Array, height: Array) -> Array:
    """The cell of each topic and one site, as the matrix has it."""
    at = _ticks(position)
    total = np.zeros(len(at), np.float32)
    for centre in (producer, consumer):
        apart = _ticks(centre) - at
        total += np.sqrt((apart * apart).sum(axis=1).astype(np.float32))
    total += (2.0 * _ticks(height)).astype(np.float32)
    return total
