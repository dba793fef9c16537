"""Records of all sites, folded into the tables that the policy works on.

Records arrive late, twice, out of order, or not at all. Of each site the newest counts, by when its
agent started and by the record's number. How old it is goes by the controller's own clock, from
when the record arrived: clocks of sites may differ. A site whose newest record is older than
`STALE` counts as down: nothing is moved there, and nothing away by what it said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np

from skerry.errors import BadSetting
from skerry.model.placement import PERIOD
from skerry.placement.records import SiteRecord, check_record
from skerry.placement.settings import RATE_CAPACITY, RESOURCES
from skerry.placement.tables import NAMES, Array, Sites, Topics, make_clients

STALE = 3.0
"""Periods after which what a site said counts no more: two records may be lost without effect."""

Fate = Literal["taken", "late", "doubled", "refused"]


class TopicEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What the directory says of a topic; what its home measures comes by records."""

    name: str
    home: str
    bound_ms: float | None = None
    replicas: tuple[str, ...] = ()
    wanted: int = 0
    """How many replicas there should be."""
    colocated: bool = False
    power: bool = False
    pinned: bool = False
    moved_at: float | None = None
    """Seconds, by the controller's clock; None: never."""
    moving_to: str | None = None


class Monitor:
    """The newest record of each site, and how records fared (`fates`, with `missing` for numbers
    that were skipped)."""

    def __init__(self) -> None:
        self.newest: dict[str, tuple[SiteRecord, float]] = {}
        self.fates: Counter[str] = Counter()

    def fold(self, record: SiteRecord, now: float) -> Fate:
        """Take a record that arrived at `now`. One that is bad is refused and counted; that of
        before stays, and grows stale."""
        fate = self._fate(record)
        self.fates[fate] += 1
        if fate == "taken":
            self.newest[record.site] = record, now
        return fate

    def _fate(self, record: SiteRecord) -> Fate:
        try:
            check_record(record)
        except BadSetting:
            return "refused"
        if record.site not in self.newest:
            return "taken"
        last = self.newest[record.site][0]
        if (record.started, record.number) == (last.started, last.number):
            return "doubled"
        if (record.started, record.number) < (last.started, last.number):
            return "late"
        begins = last.number if record.started == last.started else 0
        self.fates["missing"] += record.number - begins - 1
        return "taken"

    def forget(self, site: str) -> None:
        """A site has left the fabric."""
        self.newest.pop(site, None)


class Groups(msgspec.Struct, frozen=True):
    """Who uses topics, by sites: a row for each topic and site that has clients of it."""

    topic: Array
    """Row in the table of topics."""
    site: Array
    """Row in the table of sites."""
    producers: Array
    consumers: Array
    producer_access: Array
    """ms one way."""
    consumer_access: Array
    publish_ms: Array
    """As measured; 0: nothing was."""
    deliver_ms: Array
    deliver_most_ms: Array


def tables(
    monitor: Monitor, entries: Iterable[TopicEntry], now: float, stale: float = STALE * PERIOD
) -> tuple[Topics, Sites]:
    """The tables at `now`. Rates and sizes are what a topic's home by the directory says: after a
    move the old home's last record says nothing about the new one, and until its own does, the
    topic is not `measured`. Clients are those of all sites whose records are fresh. Sites that are
    named and have not reported are down."""
    topics, sites, _ = whole_tables(monitor, entries, now, stale)
    return topics, sites


def whole_tables(
    monitor: Monitor, entries: Iterable[TopicEntry], now: float, stale: float = STALE * PERIOD
) -> tuple[Topics, Sites, Groups]:
    """The same, and what the columns about clients were made of."""
    listed = sorted(entries, key=lambda entry: entry.name)
    named = {site for entry in listed for site in (entry.home, *entry.replicas)}
    named |= {entry.moving_to for entry in listed if entry.moving_to is not None}
    names = sorted(named | set(monitor.newest))
    row_of = {name: row for row, name in enumerate(names)}
    sites = _sites(monitor, names, now, stale)
    groups = _groups(monitor, {entry.name: n for n, entry in enumerate(listed)}, row_of, sites)
    topics = _topics(monitor, listed, row_of, sites)
    return _with_clients(topics, sites, groups), sites, groups


def _sites(monitor: Monitor, names: Sequence[str], now: float, stale: float) -> Sites:
    sizes = Counter(len(record.position) for record, _ in monitor.newest.values())
    # A site whose coordinate has other dimensions than most runs another version: it is left out.
    dimensions = max(sizes, key=lambda size: (sizes[size], size), default=1)
    count = len(names)
    made = Sites(
        names=np.array(names, NAMES),
        position=np.zeros((count, dimensions), np.float32),
        height=np.zeros(count, np.float32),
        capacity=np.zeros((count, len(RESOURCES))),
        load=np.zeros((count, len(RESOURCES))),
        up=np.zeros(count, bool),
        draining=np.zeros(count, bool),
        power=np.zeros(count, bool),
    )
    for row, name in enumerate(names):
        if name not in monitor.newest:
            continue
        record, arrived = monitor.newest[name]
        if len(record.position) != dimensions:
            continue
        made.position[row] = record.position
        made.height[row] = record.height
        made.capacity[row] = record.capacity
        made.load[row] = record.load
        made.up[row] = now - arrived <= stale
        made.draining[row] = record.draining
        made.power[row] = record.power
    made.capacity[np.isinf(made.capacity[:, 4]), 4] = RATE_CAPACITY
    return made


def _topics(
    monitor: Monitor, entries: Sequence[TopicEntry], row_of: dict[str, int], sites: Sites
) -> Topics:
    count = len(entries)
    most = max((len(entry.replicas) for entry in entries), default=0)
    replicas = np.full((count, most), -1, np.int32)
    for row, entry in enumerate(entries):
        replicas[row, : len(entry.replicas)] = [row_of[site] for site in entry.replicas]

    nothing = np.zeros(0, np.int64)
    nobody = make_clients(count, nothing, nothing, nothing)

    def column(values: Iterable[float], kind: str) -> Array:
        return np.fromiter(values, kind, count)

    made = Topics(
        names=np.array([entry.name for entry in entries], NAMES),
        home=column((row_of[entry.home] for entry in entries), "i4"),
        bound=column((np.inf if e.bound_ms is None else e.bound_ms for e in entries), "f8"),
        worst=np.zeros(count),
        producers=nobody,
        consumers=nobody,
        rate_in=np.zeros(count),
        rate_out=np.zeros(count),
        event_bytes=np.zeros(count),
        stored_bytes=np.zeros(count),
        replicas=replicas,
        wanted=column((entry.wanted for entry in entries), "i4"),
        colocated=column((entry.colocated for entry in entries), "?"),
        power=column((entry.power for entry in entries), "?"),
        pinned=column((entry.pinned for entry in entries), "?"),
        measured=np.zeros(count, bool),
        moved_at=column((-np.inf if e.moved_at is None else e.moved_at for e in entries), "f8"),
        moving_to=column((row_of[e.moving_to] if e.moving_to else -1 for e in entries), "i4"),
    )
    at_home: dict[str, dict[str, int]] = {}
    for row, entry in enumerate(entries):
        at_home.setdefault(entry.home, {})[entry.name] = row
    for name, (record, _) in monitor.newest.items():
        if sites.up[row_of[name]]:
            _measure(made, record, at_home.get(name, {}))
    return made


def _measure(topics: Topics, record: SiteRecord, at_home: dict[str, int]) -> None:
    """Fill in what a site says of the topics that are at home there."""
    rows = _rows(record, at_home)
    here = rows >= 0
    for name in ("rate_in", "rate_out", "event_bytes", "stored_bytes"):
        getattr(topics, name)[rows[here]] = record.topics.column(name)[here]
    topics.measured[rows[here]] = True


def _rows(record: SiteRecord, row_of: dict[str, int]) -> Array:
    names = record.topics.names
    return np.fromiter((row_of.get(name, -1) for name in names), "i8", len(names))


def _groups(
    monitor: Monitor, topic_of: dict[str, int], row_of: dict[str, int], sites: Sites
) -> Groups:
    fields = Groups.__struct_fields__[2:]
    parts: dict[str, list[Array]] = {name: [] for name in Groups.__struct_fields__}
    for name, (record, _) in sorted(monitor.newest.items()):
        columns = record.topics
        rows = _rows(record, topic_of)
        used = (columns.column("producers") > 0) | (columns.column("consumers") > 0)
        some = used & (rows >= 0) & sites.up[row_of[name]]
        parts["topic"].append(rows[some])
        parts["site"].append(np.full(int(some.sum()), row_of[name]))
        for field in fields:
            parts[field].append(columns.column(field)[some])
    empty = {name: np.zeros(0, "i8" if name in ("topic", "site") else "f4") for name in parts}
    return Groups(**{n: np.concatenate(found) if found else empty[n] for n, found in parts.items()})


def _with_clients(topics: Topics, sites: Sites, groups: Groups) -> Topics:
    """With the clients of each topic, and its worst case at its home."""
    ends = []
    worst = np.zeros(len(topics))
    for kind in ("producer", "consumer"):
        some = getattr(groups, f"{kind}s") > 0
        access = getattr(groups, f"{kind}_access")[some]
        clients = make_clients(len(topics), groups.topic[some], groups.site[some], access)
        home = np.repeat(topics.home, clients.sites)
        worst += clients.over_topics(clients.access + between(sites, clients.site, home))
        ends.append(clients)
    return msgspec.structs.replace(topics, worst=worst, producers=ends[0], consumers=ends[1])


def between(sites: Sites, one: Array, other: Array) -> Array:
    """ms one way between rows of sites; 0 from a site to itself, whatever its height."""
    gap = sites.position[one].astype(np.float64) - sites.position[other]
    way = np.sqrt((gap * gap).sum(axis=1)) + sites.height[one] + sites.height[other]
    found: Array = np.where(one == other, 0.0, way)
    return found
