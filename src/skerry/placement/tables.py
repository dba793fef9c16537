"""The two tables that placement works on: topics and sites, a numpy array for each column.

Coordinates and latencies are **milliseconds one way**: what a publisher's event takes to a home and
on to a subscriber is then a sum of distances, and is compared with the topic's bound as it is.

The distance of two sites is the Euclidean distance of their positions plus both heights, and 0 from
a site to itself. Clients are behind sites: how far one is from a home is its own line to its site,
and the distance from there. Of all clients behind one site only the longest line matters, so a
topic has a row for each site that it has clients at, however many those are; and W(t, b), the worst
case at a site, is exact: the farthest publisher's way, plus the farthest subscriber's.

Rows are in the order of the names, so that two controllers that know the same have the same tables.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from skerry.errors import BadSetting
from skerry.placement.settings import RESOURCES

Array = npt.NDArray[Any]

NAMES = np.dtypes.StringDType()
FURTHEST = 10_000.0
"""ms. Coordinates beyond are refused, as those of round trips over 10 s are by the protocol."""


class Clients(msgspec.Struct, frozen=True):
    """Publishers, or subscribers, of all topics: a row for each topic and site that has some. Those
    of topic t are the rows from `first[t]` up to `first[t + 1]`."""

    first: Array
    """int64 (topics + 1)."""
    site: Array
    """int32: row of the site that they are behind."""
    access: Array
    """float32, ms: the longest line of one of them to that site."""

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def sites(self) -> Array:
        """int64: at how many sites each topic has some."""
        return np.diff(self.first)

    @property
    def only(self) -> Array:
        """int32: of each topic the site that all of them are behind; -1: there are several, or
        nobody."""
        found = np.full(len(self), -1, np.int32)
        alone = self.sites == 1
        found[alone] = self.site[self.first[:-1][alone]]
        return found

    def take(self, topics: Array) -> Clients:
        """Those of some topics, in their order (or where a mask is true)."""
        rows = np.flatnonzero(topics) if topics.dtype == bool else topics
        first, count = self.first[rows], self.first[rows + 1] - self.first[rows]
        ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(count)))
        index = np.arange(ends[-1]) + np.repeat(first - ends[:-1], count)
        return Clients(ends, self.site[index], self.access[index])

    def over_topics(self, values: Array) -> Array:
        """The largest of `values`, one for each row, of each topic; 0 where there is nobody."""
        found = np.zeros(len(self), values.dtype)
        some = np.flatnonzero(self.sites)
        if len(some):
            found[some] = np.maximum.reduceat(values, self.first[some])
        return found


def make_clients(topics: int, topic: Array, site: Array, access: Array) -> Clients:
    """From columns in any order; no two rows of the same topic and site."""
    order = np.lexsort((site, topic))
    first = np.zeros(topics + 1, np.int64)
    np.cumsum(np.bincount(topic, minlength=topics), out=first[1:])
    return Clients(first, site[order].astype(np.int32), access[order].astype(np.float32))


class Topics(msgspec.Struct, frozen=True, kw_only=True):
    """One row a topic. What a missing measurement reads is said by `measured`, never by NaN."""

    names: Array
    home: Array
    """int32: row of the home in the table of sites."""
    bound: Array
    """float64, ms: what an event may take from any publisher to any subscriber; inf: no bound."""
    worst: Array
    """float64, ms: E(t), the worst case at the home, over all clients."""
    producers: Clients
    consumers: Clients
    rate_in: Array
    """float64, events/s published."""
    rate_out: Array
    """float64, events/s delivered."""
    event_bytes: Array
    """float64: size of an event."""
    stored_bytes: Array
    """float64: size of the log."""
    replicas: Array
    """int32 (rows, most): rows of the sites with replicas, then -1."""
    wanted: Array
    """int32: how many replicas there should be."""
    colocated: Array
    """bool: replicas near the home; else apart from each other."""
    power: Array
    """bool: takes only sites whose log survives a power cut."""
    pinned: Array
    """bool: an operator said that it stays."""
    measured: Array
    """bool: the columns about clients and rates are known, and fresh."""
    moved_at: Array
    """float64, seconds: when it last moved; -inf: never."""
    moving_to: Array
    """int32: row of the site that it is on its way to; -1: none."""

    def __len__(self) -> int:
        return len(self.home)

    def take(self, rows: Array, *, names: bool = True) -> Topics:
        """The table of these rows, in their order (or where a mask is true). Names are the slowest
        column by far: without them the table has none, and is for computing only."""
        found: dict[str, Any] = {}
        for name in self.__struct_fields__[1:]:
            column = getattr(self, name)
            found[name] = column.take(rows) if isinstance(column, Clients) else column[rows]
        return Topics(names=self.names[rows] if names else self.names[:0], **found)


class Sites(msgspec.Struct, frozen=True, kw_only=True):
    """One row a site."""

    names: Array
    position: Array
    """float32 (rows, dimensions), ms one way."""
    height: Array
    """float32, ms one way."""
    capacity: Array
    """float64 (rows, resources): see `RESOURCES`; inf: no limit of that kind."""
    load: Array
    """float64 (rows, resources): what is used now, in the same units."""
    up: Array
    """bool: it answers, and its last record is fresh."""
    draining: Array
    """bool: it is to be emptied."""
    power: Array
    """bool: what it acknowledges survives a power cut."""

    def __len__(self) -> int:
        return len(self.height)


def check_tables(topics: Topics, sites: Sites) -> None:
    """Raise `BadSetting` for tables that contradict themselves, or hold what is no number.

    A NaN compares false with everything: it would pass as "no violation", or as a site that is
    never the nearest, and nobody would hear of it.
    """
    for table, rows, said in ((topics, len(topics), "topics"), (sites, len(sites), "sites")):
        for name in table.__struct_fields__:
            column = getattr(table, name)
            if len(column) != rows:
                raise BadSetting(f"{said}.{name} has {len(column)} rows, and there are {rows}")
            if isinstance(column, Clients):
                _check_clients(f"{said}.{name}", column, len(sites))
            elif column.dtype.kind == "f" and np.isnan(column).any():
                row = int(np.argwhere(np.isnan(column))[0][0])
                raise BadSetting(f"{said}.{name} of {table.names[row]} is not a number")
    _check_range("sites.position", sites.position, -FURTHEST, FURTHEST, sites.names)
    _check_range("sites.height", sites.height, 0, FURTHEST, sites.names)
    for name in ("worst", "rate_in", "rate_out", "event_bytes", "stored_bytes"):
        _check_range(f"topics.{name}", getattr(topics, name), 0, 1e15, topics.names)
    if (topics.bound <= 0).any():
        row = int(np.flatnonzero(topics.bound <= 0)[0])
        raise BadSetting(f"the latency bound of {topics.names[row]} is not above 0")
    if not sites.capacity.shape == sites.load.shape == (len(sites), len(RESOURCES)):
        raise BadSetting(f"sites have a capacity and a load of each of {', '.join(RESOURCES)}")
    _check_range("sites.load", sites.load, 0, 1e15, sites.names)
    _check_range("sites.capacity", sites.capacity, 0, np.inf, sites.names)
    for name, least in (("home", 0), ("replicas", -1), ("moving_to", -1)):
        column = getattr(topics, name)
        if column.size and not (least <= column.min() and column.max() < len(sites)):
            raise BadSetting(f"topics.{name} names a site that is not in the table")


def _check_clients(what: str, clients: Clients, sites: int) -> None:
    rows = len(clients.site)
    if len(clients.access) != rows or clients.first[0] != 0 or clients.first[-1] != rows:
        raise BadSetting(f"{what} does not say whose clients its {rows} rows are")
    if rows and (clients.sites.min() < 0 or clients.site.min() < 0 or clients.site.max() >= sites):
        raise BadSetting(f"{what} names a site that is not in the table")
    if rows and not (clients.access.min() >= 0 and clients.access.max() <= FURTHEST):
        raise BadSetting(f"{what} has a line that is not within 0 and {FURTHEST:g} ms")


def _check_range(what: str, column: Array, least: float, most: float, names: Array) -> None:
    """Two reductions, and no table of their size beside the column: there may be a million rows."""
    if column.size and not (least <= column.min() and column.max() <= most):
        bad = (column < least) | (column > most)
        row = int(np.argwhere(bad)[0][0])
        raise BadSetting(f"{what} of {names[row]} is not within {least:g} and {most:g}")
