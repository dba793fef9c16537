"""Which faults, when: drawn from the seed before anything runs."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

RECOVERY = 1.5
"""Seconds that a site counts as away behind the end of its fault: about what a start takes."""
EXCESS = 0.05
"""How often a fault may take away one site more than the promises cover: safety holds all the
same, only progress stops."""
LONGEST = 6.0
"""Seconds after which a site that is away is left alone, to come back."""
HUB = 0.35
"""How often the coordination site is hit, compared with another."""
RESTART = (0.2, 3.0)
PAUSE = (0.3, 4.0)
CUT = (0.5, 4.0)
"""Seconds until a killed agent is started anew, of a stop, and of a cut."""

WEIGHTS = {
    "kill-engine": 3.0,
    "kill-agent": 3.0,
    "stop-engine": 2.0,
    "stop-agent": 2.0,
    "cut": 3.0,
    "isolate": 2.0,
    "move": 2.0,
}


class Fault(msgspec.Struct, frozen=True):
    """One fault: `site` is hit `at` seconds after the start, for `seconds`."""

    at: float
    kind: str
    site: str
    seconds: float = 0.0
    other: str = ""
    """The other end of a cut, or the topic of a move."""

    def __str__(self) -> str:
        other = f" {self.other}" if self.other else ""
        seconds = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.at:6.1f} s  {self.kind} {self.site}{other}{seconds}"


def draw(
    seed: int,
    sites: Sequence[str],
    topics: Sequence[str],
    count: int,
    seconds: float,
    can_cut: bool,
) -> list[Fault]:
    """`count` faults within `seconds`; the first of `sites` is the coordination site."""
    rng = random.Random(seed)
    most = (len(sites) - 1) // 2
    away = dict.fromkeys(sites, 0.0)
    since = dict.fromkeys(sites, 0.0)
    kinds = [kind for kind in WEIGHTS if can_cut or kind not in ("cut", "isolate")]
    faults: list[Fault] = []
    at = 0.0
    for _ in range(count):
        at += rng.uniform(0.5, 1.5) * seconds / count
        gone = sum(until > at for until in away.values())
        allowed = most + (rng.random() < EXCESS)
        crowded = gone >= allowed
        # With nobody to spare, whoever is away already is hit again, though not for ever.
        there = [
            site
            for site in sites
            if (at < away[site] and at < since[site] + LONGEST if crowded else away[site] <= at)
        ]
        [kind] = rng.choices(kinds, [WEIGHTS[kind] for kind in kinds])
        if kind == "move" or not there:
            to, topic = rng.choice(sites), rng.choice(topics)
            faults.append(Fault(round(at, 2), "move", to, other=topic))
            continue
        [site] = rng.choices(there, [HUB if site == sites[0] else 1.0 for site in there])
        if not crowded:
            since[site] = at
        other = ""
        if kind == "cut":
            other = rng.choice([name for name in sites if name != site])
        span = {"kill-agent": RESTART, "cut": CUT, "isolate": CUT}.get(kind, PAUSE)
        length = 0.0 if kind == "kill-engine" else round(rng.uniform(*span), 2)
        away[site] = max(away[site], at + length + RECOVERY)
        faults.append(Fault(round(at, 2), kind, site, length, other))
    return _with_drain(rng, faults, sites)


def _with_drain(rng: random.Random, faults: list[Fault], sites: Sequence[str]) -> list[Fault]:
    """The first move becomes the drain of a site, where enough are left: a topic has three members,
    and a drained site takes none again."""
    if len(sites) > 3:
        site = rng.choice(sites[1:])
        for place, fault in enumerate(faults):
            if fault.kind == "move":
                faults[place] = Fault(fault.at, "drain", site)
                break
    return faults
