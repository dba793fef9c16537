"""The two tables that placement works on: topics and sites, a numpy array for each column.

Coordinates and latencies are **milliseconds one way**: what a publisher's event takes to a home and
on to a subscriber is then a sum of distances, and is compared with the topic's bound as it is.
`one_way` makes them from round-trip coordinates in seconds.

The distance of two coordinates is the Euclidean distance of the positions plus both heights. A
group of clients is a *centre* and a *radius*: the largest distance of a client from the centre,
the client's height included. So `|centre - site| + site's height + radius` is never less than the
distance of any client from the site, and for a topic the sum over publishers and subscribers is
the paper's W(t, b).

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

_NOWHERE: Array = np.full(0, -1, np.int32)


class Topics(msgspec.Struct, frozen=True, kw_only=True):
    """One row a topic. What a missing measurement reads is said by `measured`, never by NaN."""

    names: Array
    home: Array
    """int32: row of the home in the table of sites."""
    bound: Array
    """float64, ms: what an event may take from any publisher to any subscriber; inf: no bound."""
    worst: Array
    """float64, ms: E(t), the worst case at the home, over all clients."""
    producers: Array
    """int32: how many publishers."""
    consumers: Array
    producer_at: Array
    """float32 (rows, dimensions), ms. Without meaning where there are no producers."""
    consumer_at: Array
    producer_radius: Array
    """float32, ms."""
    consumer_radius: Array
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
    producer_site: Array = _NOWHERE
    """int32: row of the site that all publishers are behind; -1: of several sites, or not known.
    Their way to that site is their own line to it only, without the site's height, which their
    radius holds: a home there is nearer than by the coordinates."""
    consumer_site: Array = _NOWHERE

    def __post_init__(self) -> None:
        """Where nobody says which site clients are behind, it is not known."""
        for name in ("producer_site", "consumer_site"):
            if getattr(self, name) is _NOWHERE:
                msgspec.structs.force_setattr(self, name, np.full(len(self.home), -1, np.int32))

    def __len__(self) -> int:
        return len(self.home)

    def take(self, rows: Array, *, names: bool = True) -> Topics:
        """The table of these rows, in their order (or where a mask is true). Names are the slowest
        column by far: without them the table has none, and is for computing only."""
        found = {name: getattr(self, name)[rows] for name in self.__struct_fields__[1:]}
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


def one_way(position: Array, height: Array) -> tuple[Array, Array]:
    """Round-trip coordinates in seconds as those of the tables."""
    return (np.asarray(position) * 500.0).astype("f4"), (np.asarray(height) * 500.0).astype("f4")


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
            if column.dtype.kind == "f" and np.isnan(column).any():
                row = int(np.argwhere(np.isnan(column))[0][0])
                raise BadSetting(f"{said}.{name} of {table.names[row]} is not a number")
    dimensions = sites.position.shape[1]
    for name in ("producer_at", "consumer_at"):
        column = getattr(topics, name)
        if column.ndim != 2 or column.shape[1] != dimensions:
            raise BadSetting(f"topics.{name} has not the {dimensions} dimensions of the sites")
        _check_range(f"topics.{name}", column, -FURTHEST, FURTHEST, topics.names)
    _check_range("sites.position", sites.position, -FURTHEST, FURTHEST, sites.names)
    _check_range("sites.height", sites.height, 0, FURTHEST, sites.names)
    for name in ("producer_radius", "consumer_radius"):
        _check_range(f"topics.{name}", getattr(topics, name), 0, 2 * FURTHEST, topics.names)
    for name in ("worst", "rate_in", "rate_out", "event_bytes", "stored_bytes"):
        _check_range(f"topics.{name}", getattr(topics, name), 0, 1e15, topics.names)
    if (topics.bound <= 0).any():
        row = int(np.flatnonzero(topics.bound <= 0)[0])
        raise BadSetting(f"the latency bound of {topics.names[row]} is not above 0")
    if not sites.capacity.shape == sites.load.shape == (len(sites), len(RESOURCES)):
        raise BadSetting(f"sites have a capacity and a load of each of {', '.join(RESOURCES)}")
    _check_range("sites.load", sites.load, 0, 1e15, sites.names)
    _check_range("sites.capacity", sites.capacity, 0, np.inf, sites.names)
    for name, least in (
        ("home", 0), ("replicas", -1), ("moving_to", -1), ("producer_site", -1),
        ("consumer_site", -1),
    ):  # fmt: skip
        column = getattr(topics, name)
        if column.size and not (least <= column.min() and column.max() < len(sites)):
            raise BadSetting(f"topics.{name} names a site that is not in the table")


def _check_range(what: str, column: Array, least: float, most: float, names: Array) -> None:
    """Two reductions, and no table of their size beside the column: there may be a million rows."""
    if column.size and not (least <= column.min() and column.max() <= most):
        bad = (column < least) | (column > most)
        row = int(np.argwhere(bad)[0][0])
        raise BadSetting(f"{what} of {names[row]} is not within {least:g} and {most:g}")
