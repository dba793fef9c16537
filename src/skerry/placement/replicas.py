"""Which sites hold a topic's replicas: near the home, since a quorum waits for them; apart from
each other, since what is near fails together.

All sites could be scored for each topic. But without copies and other members a site's score
depends on the home alone, and members only make it worse: so the sites nearest to each home are
found once, and a topic looks at those and at the sites that hold a copy of it. If what it finds is
not better than the first site that was not looked at, it looks at all. Where that happens to many,
for sites have filled up, the nearest of those that are left are found anew.
"""

from __future__ import annotations

import numpy as np

from skerry.placement.geometry import as_ms, distances
from skerry.placement.load import replica_needs
from skerry.placement.settings import PolicySettings
from skerry.placement.tables import Array, Sites, Topics

TOGETHER = 1000.0
"""How many ms farther from the home a replica may be for each ms that it is less near to another:
so much that being apart goes first."""
NEAR = 16
"""Sites near a home that are looked at first."""
PIECE = 4096
"""Topics looked at together."""


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
    held = np.concatenate((topics.home[:, None], topics.replicas), axis=1)
    finder = _Finder(sites, settings)
    for place in range(most):
        rows = np.flatnonzero(topics.wanted > place)
        while len(rows):
            pick = np.empty(len(rows), np.int32)
            for start in range(0, len(rows), PIECE):
                some = rows[start : start + PIECE]
                members = np.concatenate((home[some, None], chosen[some, :place]), axis=1)
                pick[start : start + PIECE] = finder.best(
                    members, held[some], topics.colocated[some], topics.power[some]
                )
            good, full = _take(held[rows], pick, needs[rows], load, fill)
            finder.closed[full] = True
            chosen[rows[good], place] = pick[good]
            rows = rows[~good & (pick >= 0)]
    return chosen


class _Finder:
    """Finds the next replica's site."""

    def __init__(self, sites: Sites, settings: PolicySettings) -> None:
        self.settings = settings
        self.usable = sites.up & ~sites.draining
        self.power = sites.power
        self.between = as_ms(distances(sites))
        self.closed = np.zeros(len(sites), bool)
        self.near: dict[bool, tuple[Array, Array]] = {}
        self.known_closed = {False: -1, True: -1}
        """How many sites were closed when the nearest were looked for."""

    def find_near(self, colocated: bool) -> bool:
        """Of each home the nearest sites that are open, and the least score of all others. Whether
        there is anything new. What was found before more sites were closed is still right, but
        leaves more to be looked at."""
        closed = int(self.closed.sum())
        if self.known_closed[colocated] == closed:
            return False
        self.known_closed[colocated] = closed
        apart = 0.0 if colocated else self.settings.apart_ms
        score = self.between + TOGETHER * np.maximum(apart - self.between, 0.0)
        score[:, ~self.usable | self.closed] = np.inf
        np.fill_diagonal(score, np.inf)
        count = min(NEAR, len(score))
        near = np.argpartition(score, count - 1, axis=1)[:, :count]
        np.put_along_axis(score, near, np.inf, axis=1)
        self.near[colocated] = near, score.min(axis=1, initial=np.inf)
        return True

    def best(self, members: Array, held: Array, colocated: Array, power: Array) -> Array:
        """The best site for the next replica of each topic, or -1. The home is the first member."""
        found = np.full(len(members), -1, np.int32)
        for kind in (False, True):
            rows = np.flatnonzero(colocated == kind)
            if not len(rows):
                continue
            if kind not in self.near:
                self.find_near(kind)
            unsure = self._look_near(rows, found, members, held, kind, power)
            if len(unsure) > len(self.closed) and self.find_near(kind):
                unsure = self._look_near(unsure, found, members, held, kind, power)
            every = np.arange(len(self.closed))
            for start in range(0, len(unsure), 256):
                some = unsure[start : start + 256]
                look = np.broadcast_to(every, (len(some), len(every)))
                found[some], _ = self._score(look, members[some], held[some], kind, power[some])
        return found

    def _look_near(
        self, rows: Array, found: Array, members: Array, held: Array, colocated: bool, power: Array
    ) -> Array:
        """Look at near sites for some rows; return those that may find a better one elsewhere."""
        near, others = self.near[colocated]
        home = members[rows, 0]
        look = np.concatenate((near[home], held[rows]), axis=1)
        found[rows], score = self._score(look, members[rows], held[rows], colocated, power[rows])
        unsure: Array = rows[~(score < others[home]) & np.isfinite(others[home])]
        return unsure

    def _score(
        self, look: Array, members: Array, held: Array, colocated: bool, power: Array
    ) -> tuple[Array, Array]:
        """The best of the sites that are looked at, (rows, any), and its score."""
        score = self.between[members[:, :1], look]
        nearest = score
        bad = (look < 0) | ~self.usable[look] | (power[:, None] & ~self.power[look])
        for member in members.T:
            known = (member >= 0)[:, None]
            there = np.where(known, self.between[member[:, None], look], np.inf)
            nearest = np.minimum(nearest, there)
            bad |= (look == member[:, None]) & known
        copy = np.zeros(look.shape, bool)
        for site in held.T:
            copy |= look == site[:, None]
        bad |= self.closed[look] & ~copy
        apart = 0.0 if colocated else self.settings.apart_ms
        total = score - self.settings.copy_bonus_ms * copy
        total = total + TOGETHER * np.maximum(apart - nearest, 0.0)
        total[bad] = np.inf
        least = total.min(axis=1)
        first = np.where(total == least[:, None], look, np.iinfo(np.int32).max).min(axis=1)
        return np.where(np.isfinite(least), first, -1).astype(np.int32), least


def _take(held: Array, pick: Array, needs: Array, load: Array, fill: Array) -> tuple[Array, Array]:
    """Which of the picks have room, in the order of the table, and the sites that refuse one; what
    is taken is added to `load`."""
    holds = (held == pick[:, None]).any(axis=1)
    good: Array = holds & (pick >= 0)
    new = np.flatnonzero(~holds & (pick >= 0))
    order = new[np.argsort(pick[new], kind="stable")]
    if not len(order):
        return good, order
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
    fits = order[refused == 0]
    good[fits] = True
    np.add.at(load, pick[fits], needs[fits])
    return good, np.unique(site[refused > 0])
