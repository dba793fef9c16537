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

LONG = (30.0, 150.0)
"""Seconds of the few faults that outlast every timer of the product."""
LONG_KINDS = ("kill-agent", "isolate", "stop-agent")
FAR = (5.0, 20.0)
FULL = (3.0, 15.0)
BURST = (2.0, 5.0)
PUBLISHER = (0.1, 3.0)
"""Seconds of a longer distance, of a full disk, of a full-rate load, and until a killed publisher
is started anew."""
EVERY = {"kill-publisher": 15.0, "far": 40.0, "full-disk": 60.0, "burst": 60.0, "long": 100.0}
"""One of each in so many seconds."""
DESTROY_FROM = 90.0
"""A campaign so long also loses a site for good."""
REPLACED = 25.0
"""Seconds that the others are spared for, until the one that replaces it has its copies."""


class Fault(msgspec.Struct, frozen=True):
    """One fault: `site` is hit `at` seconds after the start, for `seconds`."""

    at: float
    kind: str
    site: str
    seconds: float = 0.0
    other: str = ""
    """The other end of a cut, the topic of a move, or the publisher that is killed."""
    delay: float = 0.0
    """Seconds one way to all others, of a longer distance."""

    def __str__(self) -> str:
        other = f" {self.other}" if self.other else ""
        seconds = f" for {self.seconds:.1f} s" if self.seconds else ""
        delay = f" {1000 * self.delay:.0f} ms away" if self.delay else ""
        return f"{self.at:6.1f} s  {self.kind} {self.site}{other}{delay}{seconds}"

    def keeps_away(self, moment: float) -> bool:
        """Whether its site does not count as a member at this moment."""
        return (
            self.kind not in ("move", "drain", "far", "burst", "kill-publisher")
            and self.at <= moment < self.at + self.seconds + RECOVERY
        )


def draw_hard(
    seed: int,
    sites: Sequence[str],
    publishers: Sequence[str],
    seconds: float,
    can_cut: bool,
    can_fill: bool,
) -> list[Fault]:
    """The faults that come beside those of `draw`: few, and some of them long. `can_fill`: whether
    sites have disks of their own that can be full. The first of `sites` coordinates, and neither
    is destroyed nor loses its disk's room: that is a known limit."""
    rng = random.Random(f"hard {seed}")
    faults: list[Fault] = []

    def is_free(at: float, until: float) -> bool:
        """Whether no other site is away then, as this plan goes."""
        return all(
            until <= fault.at or fault.at + fault.seconds + RECOVERY <= at
            for fault in faults
            if fault.keeps_away(fault.at)
        )

    if seconds >= DESTROY_FROM:
        at = round(rng.uniform(0.3, 0.6) * seconds, 2)
        faults.append(Fault(at, "destroy", rng.choice(sites[1:]), REPLACED))
    spans = {"full-disk": FULL, "far": FAR, "burst": BURST, "kill-publisher": PUBLISHER}
    for kind in ("long", "full-disk", "far", "burst", "kill-publisher"):
        for _ in range(int(seconds / EVERY[kind])):
            low, high = LONG if kind == "long" else spans[kind]
            length = round(rng.uniform(low, min(high, max(seconds / 2, low))), 2)
            at = round(rng.uniform(0.02, 0.98) * max(seconds - length - 5.0, 0.0), 2)
            what = rng.choice(LONG_KINDS) if kind == "long" else kind
            site = rng.choice(sites[1:])
            other = rng.choice(publishers) if kind == "kill-publisher" else ""
            delay = round(rng.uniform(0.02, 0.3), 3) if kind == "far" else 0.0
            if kind == "long" and what == "isolate" and not can_cut:
                what = "kill-agent"
            possible = (can_cut or kind != "far") and (can_fill or kind != "full-disk")
            fault = Fault(at, what, site, length, other, delay)
            if possible and (not fault.keeps_away(at) or is_free(at, at + length + RECOVERY)):
                faults.append(fault)
    return sorted(faults, key=lambda fault: fault.at)


def draw(
    seed: int,
    sites: Sequence[str],
    topics: Sequence[str],
    count: int,
    seconds: float,
    can_cut: bool,
    beside: Sequence[Fault] = (),
) -> list[Fault]:
    """`count` faults within `seconds`; the first of `sites` is the coordination site. Sites that
    are away by a fault of `beside` count as away, and are left alone."""
    rng = random.Random(seed)
    most = (len(sites) - 1) // 2
    away = dict.fromkeys(sites, 0.0)
    since = dict.fromkeys(sites, 0.0)
    kinds = [kind for kind in WEIGHTS if can_cut or kind not in ("cut", "isolate")]
    faults: list[Fault] = []
    at = 0.0
    for _ in range(count):
        at += rng.uniform(0.5, 1.5) * seconds / count
        taken = {fault.site for fault in beside if fault.keeps_away(at)}
        gone = sum(until > at or site in taken for site, until in away.items())
        allowed = most + (rng.random() < EXCESS)
        crowded = gone >= allowed
        # With nobody to spare, whoever is away already is hit again, though not for ever.
        there = [
            site
            for site in sites
            if site not in taken
            and (at < away[site] and at < since[site] + LONGEST if crowded else away[site] <= at)
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
