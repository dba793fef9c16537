"""Which topics must move: the first part of Algorithm 1 (lines 14 to 21)."""

from __future__ import annotations

from enum import IntEnum

import msgspec
import numpy as np

from skerry.placement.load import Room, needs
from skerry.placement.settings import PolicySettings
from skerry.placement.tables import Array, Sites, Topics


class Cause(IntEnum):
    """Why a topic must move; the most urgent first."""

    NONE = 0
    DRAIN = 1
    """Its home is to be emptied."""
    LATENCY = 2
    """Its worst case breaks its bound, or nearly does (`is_late`)."""
    OVERLOAD = 3
    """It is one of the busiest of a home that is overloaded."""
    REPLICA = 4
    """A replica's site is to be emptied; the home stays."""


class Hindrance(IntEnum):
    """Why a topic that must move stays."""

    NONE = 0
    PINNED = 1
    MOVING = 2
    COOLING = 3
    HOME_DOWN = 4
    """Another home is found by failover, not by placement."""
    UNMEASURED = 5
    """Nothing fresh is known of its clients."""
    NO_SITE = 6
    """No site suits it, or none is enough of a gain."""
    NO_ROOM = 7
    """Sites suit it, and all of them are full."""
    WAITING = 8
    """So many moves are under way that its turn comes later."""


class Selection(msgspec.Struct, frozen=True):
    """A cause for every topic, and what keeps it from moving."""

    cause: Array
    hindrance: Array


def select(
    topics: Topics,
    sites: Sites,
    room: Room,
    settings: PolicySettings,
    now: float,
    stuck: Array | None = None,
) -> Selection:
    """The topics of sites that are drained; those that are late (`is_late`); and of each overloaded
    site the busiest, until it would be below the limit that it is filled to.

    `stuck` are topics that were tried before and found no place: for the overload others are taken
    in their stead.
    """
    cause = np.zeros(len(topics), np.int8)
    cause[is_late(topics, sites, settings)] = Cause.LATENCY
    cause[sites.draining[topics.home]] = Cause.DRAIN
    hindrance = _hindrances(topics, sites, settings, now)

    over = (room.load > room.over).any(axis=1) & sites.up
    at = over[topics.home] & ~sites.draining[topics.home]
    if at.any():
        free = at & (hindrance == Hindrance.NONE)
        if stuck is not None:
            free &= ~stuck
        rows = np.flatnonzero(free)
        chosen = rows[_busiest(topics.take(rows, names=False), sites, room)]
        cause[chosen[cause[chosen] == Cause.NONE]] = Cause.OVERLOAD
    rested = topics.moved_at <= now - settings.late_cool_down
    hindrance[(cause == Cause.LATENCY) & (hindrance == Hindrance.COOLING) & rested] = 0
    # Whatever the clients, a drained site is left; a topic nobody measured goes to where it can.
    leaves = (cause == Cause.DRAIN) & np.isin(hindrance, (Hindrance.COOLING, Hindrance.UNMEASURED))
    hindrance[leaves] = Hindrance.NONE
    hindrance[cause == Cause.NONE] = Hindrance.NONE
    return Selection(cause, hindrance)


def may_move(topics: Topics, sites: Sites, over: Array, settings: PolicySettings) -> Array:
    """The cause that each topic has, or would have if its home, being one of `over` (mask), gave it
    away. By a row and the sites alone: so it can be asked of any part of a table. A topic with a
    replica to be moved has a cause too."""
    cause = np.zeros(len(topics), np.int8)
    drained = (topics.replicas >= 0) & sites.draining[topics.replicas]
    cause[drained.any(axis=1)] = Cause.REPLICA
    cause[over[topics.home]] = Cause.OVERLOAD
    cause[is_late(topics, sites, settings)] = Cause.LATENCY
    cause[sites.draining[topics.home]] = Cause.DRAIN
    return cause


def is_late(topics: Topics, sites: Sites, settings: PolicySettings) -> Array:
    """Mask: topics whose E(t) is not below their bound by half of the margin. E(t) is the way by
    coordinates, which are a little wrong, and leaves out what engines and machines take: at 99 ms
    of 100 events are late. The other half lies between what is left and what is gone to, so that a
    topic does not go to and fro."""
    fresh = topics.measured & sites.up[topics.home]
    paired = (topics.producers.sites > 0) & (topics.consumers.sites > 0)
    late: Array = fresh & paired & (topics.worst > topics.bound * (1.0 - settings.margin / 2))
    return late


def _hindrances(topics: Topics, sites: Sites, settings: PolicySettings, now: float) -> Array:
    found = np.zeros(len(topics), np.int8)
    found[~topics.measured] = Hindrance.UNMEASURED
    found[topics.moved_at > now - settings.cool_down] = Hindrance.COOLING
    found[~sites.up[topics.home]] = Hindrance.HOME_DOWN
    found[topics.moving_to >= 0] = Hindrance.MOVING
    found[topics.pinned] = Hindrance.PINNED
    return found


def _busiest(topics: Topics, sites: Sites, room: Room) -> Array:
    """Mask: of each home the busiest topics that bring it down to its fill. A topic that uses
    nothing of what is short is passed over."""
    short = np.where(room.load > room.over, room.load - room.fill, 0.0)
    order = np.lexsort((-(topics.rate_in + topics.rate_out), topics.home))
    use = needs(topics, sites)[order]
    home = topics.home[order]
    before = np.cumsum(use, axis=0) - use
    first = np.flatnonzero(np.r_[True, home[1:] != home[:-1]]) if len(home) else order
    before -= np.repeat(before[first], np.diff(np.r_[first, len(home)]), axis=0)
    taken = ((before < short[home]) & (use > 0)).any(axis=1)
    chosen = np.zeros(len(topics), bool)
    chosen[order[taken]] = True
    return chosen
