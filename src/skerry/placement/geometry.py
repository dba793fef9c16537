"""Topics and sites in ticks, and the distances of sites without rounding.

Positions are rounded to 1/16 ms; coordinates are some milliseconds off anyway. The square of a
distance is then a whole number, for which float64 has the digits: a matrix product computes it
exactly, whatever the order in which it adds, so it is the same on every processor and with every
library. The root is taken in float32, which IEEE 754 defines to the last bit, as it does sums; and
a maximum is the same however it is divided.
"""

from __future__ import annotations

import msgspec
import numpy as np

from skerry.placement.select import Cause
from skerry.placement.settings import PolicySettings
from skerry.placement.tables import Array, Clients, Sites, Topics, make_clients

TICKS = 16.0
"""Ticks in a millisecond."""
MOST = np.float32(3e38)
"""Larger than every cell, and not infinite."""
_CHUNK = 1024
"""Sites that are worked on at a time, so that not all squares are there at once."""


class Geometry(msgspec.Struct, frozen=True):
    """Topics in ticks. A cell of the matrix is W(t, b): the way of the farthest publisher to the
    site, and from there to the farthest subscriber. Where there is only one of the two, it is that
    way alone; of a topic without any clients, the way from its home."""

    ways: Array
    """float32 (sites + 1, sites): from one site to another; the last row is zero."""
    clients: tuple[Clients, Clients]
    """Publishers and subscribers that count, with lines in ticks."""
    limit: Array
    """The largest cell that is feasible."""
    accept: Array
    """The largest cell that the topic may move to."""
    home: Array
    """The home's cell."""
    cost: Array
    """What a site without a copy is further away."""


def geometry(topics: Topics, sites: Sites, settings: PolicySettings, cause: Array) -> Geometry:
    """Ticks of all topics."""
    ways = np.zeros((len(sites) + 1, len(sites)), np.float32)
    ways[:-1] = distances(sites)
    ends = _clients(topics)
    home = np.zeros(len(topics), np.float32)
    for group in ends:
        at = np.repeat(topics.home, group.sites)
        home += group.over_topics(ways[group.site, at] + group.access)
    limit = _largest_cell(topics.bound * (1.0 - settings.margin))
    accept = limit
    if settings.when_infeasible == "least_bad":
        now = home.astype(np.float64) / TICKS
        gain = np.maximum(settings.gain_ms, settings.gain_ratio * now)
        gain[cause == Cause.OVERLOAD] = 0.0
        accept = np.maximum(limit, _largest_cell(now - gain))
    accept = np.where(cause == Cause.DRAIN, MOST, accept)
    cost = topics.stored_bytes / 1e9 * settings.move_cost_ms_per_gb
    cost = np.minimum(cost, settings.move_cost_max_ms) * TICKS
    return Geometry(ways, ends, limit, accept, home, np.rint(cost).astype(np.float32))


def _clients(topics: Topics) -> tuple[Clients, Clients]:
    """Those that count: of a topic that is not measured nobody's, and at the home of one that has
    nobody a subscriber."""
    publish, subscribe = topics.producers, topics.consumers
    if not topics.measured.all():
        publish, subscribe = (_only(group, topics.measured) for group in (publish, subscribe))
    alone = (publish.sites == 0) & (subscribe.sites == 0)
    if alone.any():
        topic = np.repeat(np.arange(len(topics)), subscribe.sites)
        subscribe = make_clients(
            len(topics),
            np.concatenate((topic, np.flatnonzero(alone))),
            np.concatenate((subscribe.site, topics.home[alone])),
            np.concatenate((subscribe.access, np.zeros(int(alone.sum()), np.float32))),
        )
    found = [
        Clients(group.first, group.site, ticks(group.access)) for group in (publish, subscribe)
    ]
    return found[0], found[1]


def _only(group: Clients, known: Array) -> Clients:
    kept = np.repeat(known, group.sites)
    first = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.where(known, group.sites, 0))))
    return Clients(first, group.site[kept], group.access[kept])


def _largest_cell(ms: Array) -> Array:
    """The cell of a worst case of `ms`."""
    cell: Array = np.minimum(np.floor(ms * TICKS), MOST).astype(np.float32)
    return cell


def as_ms(cells: Array) -> Array:
    """Cells in milliseconds."""
    found: Array = cells / np.float32(TICKS)
    return found


def ticks(ms: Array) -> Array:
    """Whole ticks, in float32, which has the digits for them: `FURTHEST` are 2^18."""
    found: Array = np.multiply(ms, np.float32(TICKS), dtype=np.float32)
    return np.rint(found, out=found)


def distances(sites: Sites) -> Array:
    """(sites, sites), float32: ticks between sites, 0 from a site to itself."""
    at = ticks(sites.position).astype(np.float64)
    square = (at * at).sum(axis=1)
    found = np.empty((len(at), len(at)), np.float32)
    for start in range(0, len(at), _CHUNK):
        part = slice(start, start + _CHUNK)
        apart = square[part, None] + square - 2.0 * (at[part] @ at.T)
        found[part] = apart
    np.sqrt(found, out=found)
    height = ticks(sites.height)
    found += height[:, None]
    found += height
    np.fill_diagonal(found, 0.0)
    return found
