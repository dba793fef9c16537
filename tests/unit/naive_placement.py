"""Placement as one would write it down first: loops over topics and sites, and no numpy but for
the rounding to single precision that the real one promises. And random tables to compare the two.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from skerry.placement import Cause, Clients, Hindrance, PolicySettings, Sites, Topics
from skerry.placement.tables import NAMES, make_clients

UNITS = (1e6, 1.0, 1.0, 1.0, 1e3)
f4 = np.float32


def naive_plan(topics: Topics, sites: Sites, settings: PolicySettings, now: float) -> Naive:
    """The same plan, slowly."""
    return Naive(topics, sites, settings, now).run()


class Naive:
    """Moves as (topic, to, replicas, cause), stays as (topic, cause, hindrance)."""

    def __init__(self, t: Topics, s: Sites, settings: PolicySettings, now: float) -> None:
        self.t, self.s, self.settings, self.now = t, s, settings, now
        self.count, self.places, self.kinds = len(t), len(s), range(5)
        self.moves: list[tuple[int, int, tuple[int, ...], int]] = []
        self.stays: list[tuple[int, int, int]] = []
        self.load = [
            [math.ceil(s.load[b, r] * UNITS[r]) for r in self.kinds] for b in range(len(s))
        ]
        self.over, self.fill = [], []
        for b in range(len(s)):
            full = [min(s.capacity[b, r] * UNITS[r] * settings.thresholds[r], 2.0**60)
                    for r in self.kinds]  # fmt: skip
            self.over.append([math.floor(x) for x in full])
            self.fill.append([math.floor(x * settings.fill) for x in full])
        self.need = [self.needs(i) for i in range(self.count)]
        for i in range(self.count):
            if t.moving_to[i] >= 0:
                self.add(self.load, int(t.moving_to[i]), self.need[i])

    def rate(self, i: int) -> float:
        return float(self.t.rate_in[i] + self.t.rate_out[i])

    def needs(self, i: int) -> list[int]:
        t, home = self.t, int(self.t.home[i])
        total = float(self.s.load[home, 4])
        share = min(1.0, self.rate(i) / total) if total > 0 else 0.0
        amounts = (self.s.load[home, 0] * share, self.s.load[home, 1] * share,
                   self.rate(i) * t.event_bytes[i], t.stored_bytes[i], self.rate(i))  # fmt: skip
        return [math.ceil(a * u) for a, u in zip(amounts, UNITS, strict=True)]

    @staticmethod
    def add(load: list[list[int]], site: int, need: list[int]) -> None:
        load[site] = [a + b for a, b in zip(load[site], need, strict=True)]

    def fits(self, load: list[list[int]], site: int, need: list[int]) -> bool:
        return all(load[site][r] + need[r] <= self.fill[site][r] for r in self.kinds)

    # Which must move.

    def hindrance(self, i: int) -> int:
        t = self.t
        if t.pinned[i]:
            return Hindrance.PINNED
        if t.moving_to[i] >= 0:
            return Hindrance.MOVING
        if not self.s.up[t.home[i]]:
            return Hindrance.HOME_DOWN
        if t.moved_at[i] > self.now - self.settings.cool_down:
            return Hindrance.COOLING
        return Hindrance.NONE if t.measured[i] else Hindrance.UNMEASURED

    def causes(self, stuck: set[int]) -> dict[int, tuple[int, int]]:
        t, s, found = self.t, self.s, {}
        for i in range(self.count):
            home = t.home[i]
            if s.draining[home]:
                hindrance = self.hindrance(i)
                if hindrance in (Hindrance.COOLING, Hindrance.UNMEASURED):
                    hindrance = Hindrance.NONE
                found[i] = (int(Cause.DRAIN), int(hindrance))
            elif (t.measured[i] and s.up[home] and t.producers.sites[i] and t.consumers.sites[i]
                  and t.worst[i] > t.bound[i] * (1.0 - self.settings.margin / 2)):  # fmt: skip
                hindrance = self.hindrance(i)
                if (hindrance == Hindrance.COOLING
                        and t.moved_at[i] <= self.now - self.settings.late_cool_down):  # fmt: skip
                    hindrance = Hindrance.NONE
                found[i] = (int(Cause.LATENCY), int(hindrance))
        for b in range(self.places):
            short = {r: self.load[b][r] - self.fill[b][r] for r in self.kinds
                     if self.load[b][r] > self.over[b][r]}  # fmt: skip
            if not short or not s.up[b] or s.draining[b]:
                continue
            mine = [i for i in range(self.count)
                    if t.home[i] == b and i not in stuck and self.hindrance(i) == 0]  # fmt: skip
            gone = dict.fromkeys(short, 0)
            for i in sorted(mine, key=lambda i: (-self.rate(i), i)):
                if any(gone[r] < short[r] and self.need[i][r] > 0 for r in short):
                    found.setdefault(i, (int(Cause.OVERLOAD), int(Hindrance.NONE)))
                for r in short:
                    gone[r] += self.need[i][r]
        return found

    # Which sites are feasible.

    def way(self, a: int, b: int) -> np.float32:
        """Ticks from a site to another."""
        if a == b:
            return f4(0)
        ticks = [round(float(x) * 16) - round(float(y) * 16)
                 for x, y in zip(self.s.position[a], self.s.position[b], strict=True)]  # fmt: skip
        gap = f4(np.sqrt(f4(sum(x * x for x in ticks))))
        heights = [f4(round(float(self.s.height[x]) * 16)) for x in (a, b)]
        return f4(gap + heights[0] + heights[1])

    def cell(self, i: int, b: int) -> np.float32:
        """The farthest publisher's way, and the farthest subscriber's."""
        t = self.t
        ends = []
        for clients in (t.producers, t.consumers):
            rows = range(clients.first[i], clients.first[i + 1]) if t.measured[i] else ()
            lines = {g: f4(round(float(clients.access[g]) * 16)) for g in rows}
            ends.append([f4(self.way(int(clients.site[g]), b) + lines[g]) for g in rows])
        if not any(ends):
            return self.way(int(t.home[i]), b)
        return f4(max(ends[0], default=f4(0)) + max(ends[1], default=f4(0)))

    def ranked(self, i: int, cause: int) -> tuple[list[int], int]:
        """Candidates, the best first, and how many of them are feasible."""
        t, s, settings = self.t, self.s, self.settings

        def largest(ms: float) -> np.float32:
            return f4(min(math.floor(ms * 16), 3e38) if ms < 1e30 else 3e38)

        limit = accept = largest(float(t.bound[i]) * (1 - settings.margin))
        if settings.when_infeasible == "least_bad":
            here = float(self.cell(i, int(t.home[i]))) / 16
            gain = max(settings.gain_ms, settings.gain_ratio * here)
            accept = max(limit, largest(here - (0 if cause == Cause.OVERLOAD else gain)))
        if cause == Cause.DRAIN:
            accept = f4(3e38)
        cells = {
            b: self.cell(i, b)
            for b in range(self.places)
            if s.up[b] and not s.draining[b] and b != t.home[i] and (s.power[b] or not t.power[i])
        }
        feasible = [b for b in cells if cells[b] <= limit]
        cost = min(t.stored_bytes[i] / 1e9 * settings.move_cost_ms_per_gb,
                   settings.move_cost_max_ms) * 16  # fmt: skip
        pull = f4(np.rint(cost))

        def score(b: int) -> tuple[float, int]:
            near = b in t.replicas[i] and (b in feasible if feasible else cells[b] <= accept)
            return float(cells[b] - pull if near else cells[b]), b

        return sorted((b for b in cells if cells[b] <= accept), key=score), len(feasible)

    # Which is chosen.

    def run(self) -> Naive:
        tried: dict[int, tuple[int, int]] = {}  # topic: (cause, site or -1)
        reasons: dict[int, tuple[int, int]] = {}
        why: dict[int, int] = {}
        stuck: set[int] = set()
        load = [list(one) for one in self.load]
        for _ in range(self.settings.tries):
            found = self.causes(stuck)
            reasons = {**found, **{i: reasons[i] for i in tried}}
            new = [i for i, (_, hindrance) in found.items() if not hindrance and i not in tried]
            ranks = {i: self.ranked(i, found[i][0]) for i in new}
            missed = False
            for i in sorted(new, key=lambda i: (ranks[i][1] or 10**9, i)):
                sites = ranks[i][0]
                site = next((b for b in sites if self.fits(load, b, self.need[i])), -1)
                tried[i] = found[i][0], site
                if site >= 0:
                    self.add(load, site, self.need[i])
                    continue
                why[i] = int(Hindrance.NO_ROOM if sites else Hindrance.NO_SITE)
                stuck.add(i)
                missed |= found[i][0] == Cause.OVERLOAD
            if not missed:
                break
        self.conclude(tried, reasons, why, load)
        return self

    def conclude(
        self,
        tried: dict[int, tuple[int, int]],
        reasons: dict[int, tuple[int, int]],
        why: dict[int, int],
        load: list[list[int]],
    ) -> None:
        t, s = self.t, self.s
        going = {i: (cause, site) for i, (cause, site) in tried.items() if site >= 0}
        for i in range(self.count):
            drained = any(b >= 0 and s.draining[b] for b in t.replicas[i])
            home = int(t.home[i])
            if (i not in reasons and drained and s.up[home] and not s.draining[home]
                    and t.moving_to[i] < 0 and not t.pinned[i]):  # fmt: skip
                going[i] = int(Cause.REPLICA), home

        def urgency(i: int) -> tuple[int, float, int]:
            cause = going[i][0]
            late = cause == Cause.LATENCY
            return cause, -(t.worst[i] / t.bound[i] if late else self.rate(i)), i

        order = sorted(going, key=urgency)
        most = self.settings.max_in_flight
        if most is not None:
            most = max(0, most - sum(1 for x in t.moving_to if x >= 0))
            for i in order[most:]:
                why[i] = int(Hindrance.WAITING)
            order = order[:most]
        replicas = self.replicas(order, {i: going[i][1] for i in order}, load)
        self.moves = [(i, going[i][1], tuple(replicas[i]), going[i][0]) for i in order]
        cause = {i: reason for i, (reason, _) in reasons.items()}
        cause |= {i: reason for i, (reason, _) in going.items()}
        why |= {i: hindrance for i, (_, hindrance) in reasons.items() if hindrance}
        self.stays = [(i, cause[i], why[i]) for i in sorted(why)]

    def between(self, a: int, b: int) -> float:
        return float(self.way(a, b) / f4(16))

    def replicas(
        self, order: list[int], homes: dict[int, int], load: list[list[int]]
    ) -> dict[int, list[int]]:
        """In rounds: each asks its best site; sites take in order until one does not fit, and then
        take no new ones; those refused ask again."""
        t, s, settings = self.t, self.s, self.settings
        chosen: dict[int, list[int]] = {i: [] for i in order}
        closed: set[int] = set()
        for place in range(max((int(t.wanted[i]) for i in order), default=0)):
            asking = [i for i in order if t.wanted[i] > place]
            while asking:
                asked: dict[int, int] = {}
                for i in asking:
                    held = {int(t.home[i]), *(int(b) for b in t.replicas[i] if b >= 0)}
                    members = [homes[i], *chosen[i]]
                    apart = 0.0 if t.colocated[i] else settings.apart_ms
                    best = None
                    for b in range(self.places):
                        if not s.up[b] or s.draining[b] or b in members:
                            continue
                        if (t.power[i] and not s.power[b]) or (b in closed and b not in held):
                            continue
                        near = min(self.between(b, m) for m in members)
                        score = (self.between(homes[i], b) - settings.copy_bonus_ms * (b in held)
                                 + 1000.0 * max(apart - near, 0.0))  # fmt: skip
                        if best is None or score < best[0]:
                            best = score, b
                    if best is not None:
                        asked[i] = best[1]
                again = []
                shut: set[int] = set()
                for i, b in asked.items():
                    if b == t.home[i] or b in t.replicas[i]:
                        chosen[i].append(b)
                        continue
                    into = float(t.rate_in[i])
                    need = [0, 0, math.ceil(into * t.event_bytes[i]),
                            math.ceil(t.stored_bytes[i]), math.ceil(into * 1e3)]  # fmt: skip
                    full = any(need[r] and load[b][r] + need[r] > self.fill[b][r]
                               for r in self.kinds)  # fmt: skip
                    if full or b in shut:
                        shut.add(b)
                        again.append(i)
                    else:
                        self.add(load, b, need)
                        chosen[i].append(b)
                closed |= shut
                asking = again
        return chosen


def random_tables(
    seed: int, topics: int | None = None, sites: int | None = None
) -> tuple[Topics, Sites]:
    """Tables in which everything happens: ties, full sites, no clients, nobody up."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(0, 30)) if topics is None else topics
    m = int(rng.integers(1, 9)) if sites is None else sites
    d = int(rng.integers(1, 5))
    step = float(rng.choice([0.001, 1.0, 10.0]))  # a coarse grid makes ties
    wide = float(rng.choice([50.0, 50.0, 3000.0]))  # the second needs more digits

    def grid(scale: float, *shape: int) -> Any:
        return (np.rint(rng.uniform(-scale, scale, shape) / step) * step).astype("f4")

    def few(share: float, count: int) -> Any:
        return rng.random(count) < share

    capacity = rng.choice([1.0, 4.0, 16.0], (m, 1)) * np.array([1.0, 4e9, 1e8, 1e11, 1e5])
    load = capacity * rng.uniform(0, float(rng.choice([0.5, 0.9, 1.1])), (m, 5))
    capacity[few(0.1, m)] = np.inf
    most = int(rng.integers(0, 4))
    replicas = np.full((n, most), -1, "i4")
    home = rng.integers(0, m, n).astype("i4")
    for i in range(n):
        others = [b for b in range(m) if b != home[i]]
        picked = rng.permutation(others)[: int(rng.integers(0, most + 1))]
        replicas[i, : len(picked)] = picked

    def some_clients() -> Clients:
        """Nobody, or clients behind up to four sites."""
        behind = [rng.permutation(m)[: int(rng.integers(0, 5))] for _ in range(n)]
        topic = np.repeat(np.arange(n), [len(sites) for sites in behind])
        site = np.concatenate([np.zeros(0, int), *behind])
        return make_clients(n, topic, site, np.abs(grid(10, len(topic))))

    return Topics(
        names=np.array([f"topic{i:06}" for i in range(n)], NAMES),
        home=home,
        bound=np.where(few(0.3, n), np.inf, rng.uniform(10, 3 * wide, n)),
        worst=rng.uniform(0, 200, n),
        producers=some_clients(),
        consumers=some_clients(),
        rate_in=np.rint(rng.exponential(2000, n)),
        rate_out=np.rint(rng.exponential(5000, n)),
        event_bytes=rng.choice([64.0, 1024.0], n),
        stored_bytes=np.rint(rng.exponential(5e9, n)),
        replicas=replicas,
        wanted=rng.integers(0, most + 1, n).astype("i4"),
        colocated=few(0.3, n),
        power=few(0.1, n),
        pinned=few(0.05, n),
        measured=~few(0.05, n),
        moved_at=np.where(few(0.7, n), -np.inf, rng.uniform(0, 100, n)),
        moving_to=np.where(few(0.05, n), rng.integers(0, m, n), -1).astype("i4"),
    ), Sites(
        names=np.array([f"site{b:03}" for b in range(m)], NAMES),
        position=grid(wide, m, d),
        height=np.abs(grid(5, m)),
        capacity=capacity,
        load=load,
        up=~few(0.1, m),
        draining=few(0.1, m),
        power=few(0.7, m),
    )
