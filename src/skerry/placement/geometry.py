"""Topics and sites in ticks, and their distances without rounding.

Positions are rounded to 1/16 ms; coordinates are some milliseconds off anyway. The square of a
distance is then a whole number, which a matrix product computes exactly as long as the numbers fit
into the digits of its floats, whatever the order in which it adds: so it is the same on every
processor, with every library and for every division into pieces. Up to some 250 ms one way float32
has the digits; beyond, float64 is used, with the same result. The root is taken in float32, which
IEEE 754 defines to the last bit.
"""

from __future__ import annotations

import msgspec
import numpy as np

from skerry.placement.select import Cause
from skerry.placement.settings import PolicySettings
from skerry.placement.tables import Array, Sites, Topics

TICKS = 16.0
"""Ticks in a millisecond."""
MOST = np.float32(3e38)
"""Larger than every cell, and not infinite."""
_EXACT = 2.0**24
"""Whole numbers up to it are exact in float32."""
_PRODUCT = 200_000
"""Multiplications above which the library would start threads of its own, which for a product of so
few dimensions wait for each other longer than they work (measured: 1.6 times as long)."""
_CHUNK = 8192
"""Rows that are worked on at a time where a column's whole length would not stay in the cache."""


class Geometry(msgspec.Struct, frozen=True):
    """Topics in ticks. A cell of the matrix is |p - b| + |c - b| + 2 h(b); W(t, b) is `scale` times
    the cell plus `radius`. Where all publishers, or all subscribers, are behind the site b itself,
    2 h(b) is taken off the cell for each: once for the site, and once out of the radius."""

    producer: Array
    consumer: Array
    producer_site: Array
    consumer_site: Array
    radius: Array
    """float64, ms."""
    scale: Array
    limit: Array
    """The largest cell that is feasible."""
    accept: Array
    """The largest cell that the topic may move to."""
    home: Array
    """The home's cell."""
    cost: Array
    """What a site without a copy is further away."""

    def ms(self, cell: Array, rows: slice | Array) -> Array:
        """W(t, b) of cells, (rows, any): milliseconds in float32."""
        scale, radius = self.scale[rows, None], self.radius[rows, None]
        found: Array = ((cell * scale).astype(np.float64) / TICKS + radius).astype(np.float32)
        return np.maximum(found, np.float32(0.0), out=found)  # heights are rounded, radii are not


def geometry(topics: Topics, sites: Sites, settings: PolicySettings, cause: Array) -> Geometry:
    """Ticks of all topics. The distance to the only group of clients that a topic has is counted
    twice, and halved again by `scale`: so one kind of matrix does for all."""
    publishes = (topics.producers > 0) & topics.measured
    subscribes = (topics.consumers > 0) & topics.measured
    producer, consumer = topics.producer_at, topics.consumer_at
    behind = topics.producer_site, topics.consumer_site
    radius = topics.producer_radius.astype(np.float64) + topics.consumer_radius
    scale = np.ones(len(topics), np.float32)
    both = publishes & subscribes
    if not both.all():
        producer, consumer = producer.copy(), consumer.copy()
        producer[~publishes] = consumer[~publishes]
        consumer[~subscribes] = producer[~subscribes]
        none = ~publishes & ~subscribes
        producer[none] = consumer[none] = sites.position[topics.home[none]]
        behind = (
            np.where(publishes, behind[0], np.where(subscribes, behind[1], -1)),
            np.where(subscribes, behind[1], np.where(publishes, behind[0], -1)),
        )
        scale[~both] = 0.5
        radius -= np.where(publishes, 0.0, topics.producer_radius)
        radius -= np.where(subscribes, 0.0, topics.consumer_radius)
    home = _cells(producer, consumer, topics.home, sites)
    for site in behind:
        at_home = site == topics.home
        home[at_home] -= 2.0 * ticks(sites.height[topics.home[at_home]])
    limit = _largest_cell(topics.bound * (1.0 - settings.margin), radius, scale)
    accept = limit
    if settings.when_infeasible == "least_bad":
        now = home.astype(np.float64) * scale / TICKS + radius
        gain = np.maximum(settings.gain_ms, settings.gain_ratio * now)
        gain[cause == Cause.OVERLOAD] = 0.0
        accept = np.maximum(limit, _largest_cell(now - gain, radius, scale))
    accept = np.where(cause == Cause.DRAIN, MOST, accept)
    cost = topics.stored_bytes / 1e9 * settings.move_cost_ms_per_gb
    cost = np.minimum(cost, settings.move_cost_max_ms) * TICKS / scale
    return Geometry(
        producer, consumer, *behind, radius, scale, limit, accept, home,
        np.rint(cost).astype(np.float32),
    )  # fmt: skip


def _largest_cell(ms: Array, radius: Array, scale: Array) -> Array:
    """The cell of a worst case of `ms`."""
    cell: Array = np.minimum(np.floor((ms - radius) * TICKS / scale), MOST).astype(np.float32)
    return cell


def ticks(ms: Array) -> Array:
    """Whole ticks, in float32, which has the digits for them: `FURTHEST` are 2^18."""
    found: Array = np.multiply(ms, np.float32(TICKS), dtype=np.float32)
    return np.rint(found, out=found)


class Right:
    """Some sites: what their distances from many points are computed with."""

    def __init__(self, position: Array) -> None:
        at = ticks(position).astype(np.float64)
        square = (at * at).sum(axis=1)
        self.reach = float(np.sqrt(square.max(initial=0.0)))
        exact = np.empty((at.shape[1] + 2, len(at)))
        exact[:-2] = -2.0 * at.T
        exact[-2] = 1.0
        exact[-1] = square
        self.exact = exact
        self.short = exact.astype(np.float32)

    def distances(self, centre: Array, out: Array) -> None:
        """Distances in ticks from `centre` (points, dimensions) into the float32 `out`."""
        at = np.ones((len(centre), centre.shape[1] + 2), np.float32)
        whole = at[:, :-2]
        np.multiply(centre, np.float32(TICKS), out=whole)
        np.rint(whole, out=whole)
        square = np.einsum("ij,ij->i", whole, whole)
        at[:, -2] = square
        # No partial sum, in whatever order, is larger than the square of both reaches together.
        if (float(np.sqrt(square.max(initial=0.0))) * 1.0001 + self.reach) ** 2 < _EXACT:
            _product(at, self.short, out)
        else:
            far = at.astype(np.float64)
            far[:, -2] = np.einsum("ij,ij->i", far[:, :-2], far[:, :-2])
            squares = np.empty(out.shape)
            _product(far, self.exact, squares)
            np.copyto(out, squares, casting="same_kind")
        np.sqrt(out, out=out)


def _product(rows: Array, columns: Array, out: Array) -> None:
    step = max(1, _PRODUCT // max(1, columns.size))
    for start in range(0, len(rows), step):
        np.matmul(rows[start : start + step], columns, out=out[start : start + step])


def _cells(producer: Array, consumer: Array, site: Array, sites: Sites) -> Array:
    """The cell of each topic and one site, as the matrix has it."""
    at, height = ticks(sites.position), 2.0 * ticks(sites.height)
    total = np.zeros(len(site), np.float32)
    for start in range(0, len(site), _CHUNK):
        part = slice(start, start + _CHUNK)
        there = at[site[part]]
        for centre in (producer[part], consumer[part]):
            apart = (ticks(centre) - there).astype(np.float64)
            square = np.einsum("ij,ij->i", apart, apart).astype(np.float32)
            total[part] += np.sqrt(square, out=square)
        total[part] += height[site[part]]
    return total
