"""Which sites hold a topic's replicas: near the home, since a quorum waits for them; apart from
each other, since what is near fails together."""

from __future__ import annotations

import numpy as np

from skerry.placement.load import replica_needs
from skerry.placement.settings import PolicySettings
from skerry.placement.tables import Array, Sites, Topics

TOGETHER = 1000.0
"""How many ms farther from the home a replica may be for each ms that it is less near to another:
so much that being apart goes first."""
PIECE = 256


def choose_replicas(
    topics: Topics,
    home: Array,
    sites: Sites,
    load: Array,
    fill: Array,
    settings: PolicySettings,
) -> Array:
    """Rows of sites for the replicas of each topic, whose home is to be at `home`; -1 where fewer
    are found than the topic wants. (rows, most wanted)

    One replica after the other goes to the site that is nearest to the home among those at least
    `apart_ms` from every member so far; where there is none, to the one that is most apart. A site
    that holds a copy, the old home too, counts as `copy_bonus_ms` nearer and needs no room. A site
    whose room is used up by one replica takes no other new one. `load` is not changed.
    """
    most = int(topics.wanted.max(initial=0))
    chosen = np.full((len(topics), most), -1, np.int32)
    if most == 0:
        return chosen
    load = load.copy()
    needs = replica_needs(topics)
    between = _distances(sites)
    closed = np.zeros(len(sites), bool)
    for place in range(most):
        rows = np.flatnonzero(topics.wanted > place)
        while len(rows):
            pick = np.empty(len(rows), np.int32)
            for start in range(0, len(rows), PIECE):
                some = rows[start : start + PIECE]
                pick[start : start + PIECE] = _nearest(
                    topics.take(some), home[some], chosen[some, :place],
                    sites, between, closed, settings,
                )  # fmt: skip
            good = _take(topics.take(rows), pick, needs[rows], load, fill, closed)
            chosen[rows[good], place] = pick[good]
            rows = rows[~good & (pick >= 0)]
    return chosen


def _nearest(
    topics: Topics,
    home: Array,
    members: Array,
    sites: Sites,
    between: Array,
    closed: Array,
    settings: PolicySettings,
) -> Array:
    """The best site for the next replica of each topic, or -1."""
    each = np.arange(len(topics))
    score = between[home]
    nearest = score.copy()
    usable = np.broadcast_to(sites.up & ~sites.draining, score.shape).copy()
    usable[topics.power] &= sites.power
    held = np.zeros_like(usable)
    for copies in (topics.home[:, None], topics.replicas):
        at, which = np.nonzero(copies >= 0)
        held[at, copies[at, which]] = True
    usable &= held | ~closed
    usable[each, home] = False
    for place in range(members.shape[1]):
        member = members[:, place]
        known = member >= 0
        nearest[known] = np.minimum(nearest[known], between[member[known]])
        usable[each[known], member[known]] = False
    apart = np.where(topics.colocated, 0.0, settings.apart_ms)[:, None]
    score = score - settings.copy_bonus_ms * held + TOGETHER * np.maximum(apart - nearest, 0.0)
    score[~usable] = np.inf
    best: Array = score.argmin(axis=1).astype(np.int32)
    best[~usable.any(axis=1)] = -1
    return best


def _take(
    topics: Topics, pick: Array, needs: Array, load: Array, fill: Array, closed: Array
) -> Array:
    """Which of the picks have room, in the order of the table; sites that refuse one are closed,
    and what is taken is added to `load`."""
    held = (topics.home == pick) | (topics.replicas == pick[:, None]).any(axis=1)
    good: Array = held & (pick >= 0)
    new = np.flatnonzero(~held & (pick >= 0))
    order = new[np.argsort(pick[new], kind="stable")]
    if not len(order):
        return good
    site, use = pick[order], needs[order]
    total = np.cumsum(use, axis=0)
    first = np.flatnonzero(np.r_[True, site[1:] != site[:-1]])
    lengths = np.diff(np.r_[first, len(order)])
    total -= np.repeat(total[first] - use[first], lengths, axis=0)
    # What a replica takes nothing of may be used up already.
    full = ((load[site] + total > fill[site]) & (use > 0)).any(axis=1)
    # Once one is refused, all later ones of that site are.
    refused = np.cumsum(full)
    refused -= np.repeat(refused[first] - full[first], lengths)
    closed[site[refused > 0]] = True
    fits = order[refused == 0]
    good[fits] = True
    np.add.at(load, pick[fits], needs[fits])
    return good


def _distances(sites: Sites) -> Array:
    """(sites, sites), ms; rounded, so that it is the same on every machine."""
    at = np.rint(sites.position.astype(np.float64) * 1024.0)
    square = (at * at).sum(axis=1)
    gap = np.sqrt(np.maximum(square[:, None] + square - 2.0 * (at @ at.T), 0.0)) / 1024.0
    found: Array = np.rint((gap + sites.height[:, None] + sites.height) * 1024.0) / 1024.0
    np.fill_diagonal(found, 0.0)
    return found
