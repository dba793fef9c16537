"""Which of the feasible sites is chosen, fewest choices first: the third part of Algorithm 1
(lines 5 to 10).

One topic after the other takes the first of its candidates that has room, and fills it. That is a
sequence, but most of its steps do not affect each other. So a block of topics is taken at once, all
at the first candidate that has room before the block; for each site the needs are added up in
order; and the block is good up to the first topic that no longer fits. Sites only fill up, hence a
candidate that is full once stays full. Where sites are nearly full and blocks become too short to
pay, topics are taken one by one.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from skerry.placement.rank import Candidates, Demand
from skerry.placement.tables import Array

LARGEST = 65_536
SHORT = 64
"""Topics. A block that gets less far costs more than taking them one by one."""

Rerank = Callable[[Array, Demand], Candidates]
"""Rows, and what they need: their candidates among the sites that have room."""


class Assignment(msgspec.Struct, frozen=True):
    """For each topic a site, or -1."""

    site: Array
    ms: Array
    """float32: W(t, b) there."""
    load: Array
    """What the sites carry then, (sites, resources)."""


def assign(
    candidates: Candidates, needs: Array, load: Array, fill: Array, rerank: Rerank
) -> Assignment:
    """Give each topic a site that it fits into: those with the fewest choices first, then in the
    order of the table. One without any feasible site has every site to choose from (ePulsar,
    section 3.4.1): it comes last. `load` is not changed."""
    choices = np.where(candidates.choices > 0, candidates.choices, np.iinfo(np.int32).max)
    run = _Run(candidates, needs, load.copy(), fill, rerank)
    run.all(np.argsort(choices, kind="stable"))
    return Assignment(run.chosen, run.ms, run.load)


class _Run:
    def __init__(
        self, candidates: Candidates, needs: Array, load: Array, fill: Array, rerank: Rerank
    ) -> None:
        self.site = candidates.site.copy()
        self.best = candidates.ms.copy()
        self.choices = candidates.choices
        self.needs = needs
        self.load = load
        self.fill = fill
        self.rerank = rerank
        self.chosen = np.full(len(needs), -1, np.int32)
        self.ms = np.zeros(len(needs), np.float32)

    def all(self, order: Array) -> None:
        """Place topics in this order."""
        at, size = 0, 4096
        while at < len(order):
            block = order[at : at + size]
            done = self._block(block)
            at += done
            if done == len(block):
                size = min(2 * size, LARGEST)
            elif done >= SHORT:
                size = max(2 * done, SHORT)
            else:
                at += self._one_by_one(order[at : at + 4 * SHORT])
                size = 8 * SHORT

    def _block(self, rows: Array) -> int:
        """Place a block as far as no topic fills what a later one counted on; return how far."""
        place, which = self._first_with_room(rows)
        at = np.flatnonzero(place >= 0)
        order = at[np.argsort(place[at], kind="stable")]
        site, use = place[order], self.needs[rows[order]]
        total = np.cumsum(use, axis=0)
        if len(order):
            first = np.flatnonzero(np.r_[True, site[1:] != site[:-1]])
            lengths = np.diff(np.r_[first, len(order)])
            total -= np.repeat(total[first] - use[first], lengths, axis=0)
        full = (self.load[site] + total > self.fill[site]).any(axis=1)
        good = int(order[full].min()) if full.any() else len(rows)
        kept = rows[:good]
        self.chosen[kept] = place[:good]
        self.ms[kept] = self.best[kept, which[:good]]
        placed = kept[place[:good] >= 0]
        sites, count = self.chosen[placed], len(self.load)
        for resource in range(self.load.shape[1]):
            added = np.bincount(sites, self.needs[placed, resource], count)
            self.load[:, resource] += added
        return good

    def _first_with_room(self, rows: Array) -> tuple[Array, Array]:
        """Of each topic the first candidate that has room, or -1; and its place in the list."""
        spare = self.fill - self.load
        site, which, open_list = self._scan(rows, spare)
        # Full are all that are known of; there may be more, unless no site has so much left.
        again = open_list & (self.needs[rows] <= spare.max(axis=0, initial=-1.0)).all(axis=1)
        if again.any():
            ask = rows[again]
            found = self.rerank(ask, Demand(self.needs[ask], spare, self.choices[ask]))
            self.site[ask], self.best[ask] = found.site, found.ms
            site[again], which[again] = found.site[:, 0], 0
        return site, which

    def _scan(self, rows: Array, spare: Array) -> tuple[Array, Array, Array]:
        kept = self.site.shape[1]
        site = np.full(len(rows), -1, np.int32)
        which = np.zeros(len(rows), np.int32)
        left = np.arange(len(rows))
        for place in range(kept):
            candidate = self.site[rows[left], place]
            left, candidate = left[candidate >= 0], candidate[candidate >= 0]
            fits = (self.needs[rows[left]] <= spare[candidate]).all(axis=1)
            site[left[fits]], which[left[fits]] = candidate[fits], place
            left = left[~fits]
        open_list = np.zeros(len(rows), bool)
        open_list[left] = True
        return site, which, open_list

    def _one_by_one(self, rows: Array) -> int:
        """Place topics singly, up to the first whose list is used up; return how many."""
        spare = (self.fill - self.load).tolist()
        done = 0
        for row, need, sites in zip(
            rows.tolist(), self.needs[rows].tolist(), self.site[rows].tolist(), strict=True
        ):
            chosen = -1
            for place, site in enumerate(sites):
                if site < 0:
                    break
                left = spare[site]
                if all(n <= have for n, have in zip(need, left, strict=True)):
                    spare[site] = [have - n for n, have in zip(need, left, strict=True)]
                    chosen, self.ms[row] = site, self.best[row, place]
                    break
            else:
                break
            self.chosen[row] = chosen
            done += 1
        placed = rows[:done][self.chosen[rows[:done]] >= 0]
        np.add.at(self.load, self.chosen[placed], self.needs[placed])
        return done
