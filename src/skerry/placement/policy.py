"""Algorithm 1 of ePulsar as one pure function of two tables: `plan`.

1. `select` says which topics must move,
2. `rank` which sites are feasible for each of them, the best first,
3. `assign` which of these each gets, those with the fewest choices first.

Each of the three can be swapped (`Policy`). Around them: a topic that cannot move says why; only so
many moves are under way at a time; replicas follow the home.

The result depends on nothing but the arguments: no clock, no randomness, no order of hashing, and
no rounding that differs between processors (see `geometry`). Two controllers with the same tables
make the same plan, and so does Spark.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from skerry.placement.assign import Assignment, Rerank, assign
from skerry.placement.load import Room, needs, room
from skerry.placement.rank import Candidates, Ranker, rank
from skerry.placement.replicas import choose_replicas
from skerry.placement.select import Cause, Hindrance, Selection, select
from skerry.placement.settings import PolicySettings
from skerry.placement.tables import Array, Sites, Topics, check_tables

Select = Callable[[Topics, Sites, Room, PolicySettings, float, Array | None], Selection]
Rank = Callable[[Topics, Sites, PolicySettings, Array, int], Ranker]
Assign = Callable[[Candidates, Array, Array, Array, Rerank], Assignment]
Known = Callable[[Array], Candidates]


class Policy(msgspec.Struct, frozen=True):
    """The three parts; replace one to place by another rule."""

    select: Select = select
    rank: Rank = rank
    assign: Assign = assign


class Plan(msgspec.Struct, frozen=True):
    """What is to be done, a column for each property; `skerry.placement.explain` makes words of it.

    Moves are in the order of urgency. Rows are those of the tables that were planned with.
    """

    topic: Array
    """int64: rows of the topics to move."""
    to: Array
    """int32: rows of the homes to be; where only replicas change, the home that is."""
    replicas: Array
    """int32 (moves, most): rows of the replicas' sites to be, then -1."""
    cause: Array
    """int8: `Cause`."""
    ms: Array
    """float32: W(t, b) at the site to be."""
    home_ms: Array
    """float32: W(t, b) at the site that is."""
    choices: Array
    """int32: how many sites were feasible."""
    staying: Array
    """int64: rows of topics that should move and do not, in order."""
    stay_cause: Array
    stay_hindrance: Array
    """int8: `Hindrance`."""

    def __len__(self) -> int:
        return len(self.topic)


def plan(
    topics: Topics,
    sites: Sites,
    settings: PolicySettings,
    now: float,
    *,
    policy: Policy | None = None,
    known: Known | None = None,
    threads: int = 1,
) -> Plan:
    """The moves that the tables call for at `now` (seconds, by the clock of `moved_at`).

    `known` gives candidates that were ranked elsewhere, for rows of `topics`. Raises `BadSetting`
    for settings out of range and for tables with a hole in them; see `check_tables`.
    """
    settings.check()
    check_tables(topics, sites)
    policy = policy or Policy()
    have = room(topics, sites, settings)
    found = _Found(len(topics))
    stuck = np.zeros(len(topics), bool)
    load = have.load
    for _ in range(settings.tries):
        selection = policy.select(topics, sites, have, settings, now, stuck)
        new = (selection.cause > 0) & (selection.hindrance == 0) & ~found.tried
        rows = np.flatnonzero(new)
        found.selected(selection)
        if not len(rows):
            break
        cause = selection.cause[rows]
        some = topics.take(rows, names=False) if len(rows) < len(topics) else topics
        ranker = policy.rank(some, sites, settings, cause, threads)
        candidates = known(rows) if known is not None else ranker.candidates()
        use = needs(some, sites)
        made = policy.assign(candidates, use, load, have.fill, ranker.candidates)
        load = made.load
        found.placed(rows, candidates, made)
        stuck |= found.tried & (found.to < 0)
        if not (found.cause[rows[made.site < 0]] == Cause.OVERLOAD).any():
            break
    return _conclude(found, topics, sites, settings, load, have)


class _Found:
    """What is known of each topic while a plan is made."""

    def __init__(self, count: int) -> None:
        self.tried = np.zeros(count, bool)
        self.cause = np.zeros(count, np.int8)
        self.hindrance = np.zeros(count, np.int8)
        self.to = np.full(count, -1, np.int32)
        self.ms = np.zeros(count, np.float32)
        self.home_ms = np.zeros(count, np.float32)
        self.choices = np.zeros(count, np.int32)

    def selected(self, selection: Selection) -> None:
        """Take note of causes; those that were tried keep theirs."""
        fresh = ~self.tried
        self.cause[fresh] = selection.cause[fresh]
        self.hindrance[fresh] = selection.hindrance[fresh]

    def placed(self, rows: Array, candidates: Candidates, made: Assignment) -> None:
        """Take note of where they go, and of why some go nowhere."""
        self.tried[rows] = True
        self.to[rows], self.ms[rows] = made.site, made.ms
        self.home_ms[rows], self.choices[rows] = candidates.home_ms, candidates.choices
        nowhere = np.where(candidates.site[:, 0] < 0, Hindrance.NO_SITE, Hindrance.NO_ROOM)
        self.hindrance[rows] = np.where(made.site < 0, nowhere, Hindrance.NONE)


def _conclude(
    found: _Found,
    topics: Topics,
    sites: Sites,
    settings: PolicySettings,
    load: Array,
    have: Room,
) -> Plan:
    leaving = sites.draining | ~sites.up
    on_drained = (topics.replicas >= 0) & sites.draining[topics.replicas]
    repair = (found.cause == 0) & on_drained.any(axis=1) & ~leaving[topics.home]
    repair &= (topics.moving_to < 0) & ~topics.pinned
    found.cause[repair] = Cause.REPLICA
    found.to[repair] = topics.home[repair]
    moves = np.flatnonzero(found.to >= 0)
    moves = moves[_urgency(found, topics, moves)]
    if settings.max_in_flight is not None:
        under_way = int((topics.moving_to >= 0).sum())
        most = max(0, settings.max_in_flight - under_way)
        found.hindrance[moves[most:]] = Hindrance.WAITING
        moves = moves[:most]
    staying = np.flatnonzero((found.cause > 0) & (found.hindrance > 0))
    some = topics.take(moves, names=False)
    return Plan(
        topic=moves,
        to=found.to[moves],
        replicas=choose_replicas(some, found.to[moves], sites, load, have.fill, settings),
        cause=found.cause[moves],
        ms=found.ms[moves],
        home_ms=found.home_ms[moves],
        choices=found.choices[moves],
        staying=staying,
        stay_cause=found.cause[staying],
        stay_hindrance=found.hindrance[staying],
    )


def _urgency(found: _Found, topics: Topics, rows: Array) -> Array:
    """The order of moves: drained sites first, then the worst broken bounds, then the busiest."""
    cause = found.cause[rows]
    rate = topics.rate_in[rows] + topics.rate_out[rows]
    late = topics.worst[rows] / topics.bound[rows]
    weight = np.where(cause == Cause.LATENCY, late, rate)
    order: Array = np.lexsort((-weight, cause))
    return order
