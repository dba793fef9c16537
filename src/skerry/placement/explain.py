"""A plan in words: what moves, where to and why; what stays, and why. For `skerry placement`."""

from __future__ import annotations

from collections.abc import Iterator

from skerry.model.placement import Move, Stay
from skerry.placement.load import UNITS, room
from skerry.placement.policy import Plan
from skerry.placement.select import Cause, Hindrance
from skerry.placement.settings import RESOURCES, PolicySettings
from skerry.placement.tables import Sites, Topics


def moves(plan: Plan, topics: Topics, sites: Sites, settings: PolicySettings) -> Iterator[Move]:
    """The moves of a plan, the most urgent first."""
    told = _Teller(topics, sites, settings)
    for number, row in enumerate(plan.topic.tolist()):
        to = int(plan.to[number])
        cause = Cause(plan.cause[number])
        replicas = [int(site) for site in plan.replicas[number] if site >= 0]
        reason = told.cause(row, cause)
        if cause is not Cause.REPLICA:
            reason += "; " + _target(plan, number, told.site(to), topics, row, to)
        if len(replicas) < (wanted := int(topics.wanted[row])):
            reason += f"; only {len(replicas)} of {wanted} replicas have a place"
        yield Move(
            topic=str(topics.names[row]),
            source=told.site(int(topics.home[row])),
            target=told.site(to),
            replicas=tuple(told.site(site) for site in replicas),
            cause=cause.name.lower(),
            reason=reason,
        )


def stays(
    plan: Plan, topics: Topics, sites: Sites, settings: PolicySettings, now: float
) -> Iterator[Stay]:
    """The topics that should move and do not."""
    told = _Teller(topics, sites, settings)
    for number, row in enumerate(plan.staying.tolist()):
        cause = Cause(plan.stay_cause[number])
        hindrance = Hindrance(plan.stay_hindrance[number])
        yield Stay(
            topic=str(topics.names[row]),
            home=told.site(int(topics.home[row])),
            cause=cause.name.lower(),
            hindrance=hindrance.name.lower(),
            reason=f"{told.cause(row, cause)}; {told.hindrance(row, cause, hindrance, now)}",
        )


def _target(plan: Plan, number: int, name: str, topics: Topics, row: int, to: int) -> str:
    choices, ms = int(plan.choices[number]), float(plan.ms[number])
    holds = ", which holds a copy" if to in topics.replicas[row].tolist() else ""
    if choices == 0:
        was = float(plan.home_ms[number])
        return f"no site suits it; {name}{holds} is the least bad: {ms:.1f} ms, now {was:.1f} ms"
    if choices == 1:
        return f"only {name}{holds} suits it: at most {ms:.1f} ms there"
    return f"of {choices} sites that suit it {name}{holds}: at most {ms:.1f} ms there"


class _Teller:
    def __init__(self, topics: Topics, sites: Sites, settings: PolicySettings) -> None:
        self.topics = topics
        self.sites = sites
        self.settings = settings
        self.room = room(topics, sites, settings)

    def site(self, row: int) -> str:
        """Its name."""
        return str(self.sites.names[row])

    def cause(self, row: int, cause: Cause) -> str:
        """Why a topic should move."""
        topics, home = self.topics, int(self.topics.home[row])
        if cause is Cause.DRAIN:
            return f"{self.site(home)} is being drained"
        if cause is Cause.LATENCY:
            worst, bound = float(topics.worst[row]), float(topics.bound[row])
            does = "break" if worst > bound else "nearly break"
            return f"{worst:.1f} ms at {self.site(home)} {does} its bound of {bound:g} ms"
        if cause is Cause.OVERLOAD:
            return self._overload(row, home)
        drained = [site for site in topics.replicas[row].tolist() if self.sites.draining[site]]
        return f"its replica at {self.site(drained[0])} has to leave: the site is being drained"

    def _overload(self, row: int, home: int) -> str:
        load, over = self.room.load[home], self.room.over[home]
        # Both are amounts; the limit is a share of the capacity.
        worst = max(range(len(UNITS)), key=lambda one: load[one] / max(over[one], 1.0))
        share = load[worst] / max(over[worst], 1.0) * self.settings.thresholds[worst]
        rate = float(self.topics.rate_in[row] + self.topics.rate_out[row])
        return (
            f"{self.site(home)} uses {share:.0%} of its {RESOURCES[worst]}, over "
            f"{self.settings.thresholds[worst]:.0%}, and this is one of its busiest topics "
            f"({rate:,.0f} events/s)"
        )

    def hindrance(self, row: int, cause: Cause, hindrance: Hindrance, now: float) -> str:
        """Why it stays, and what would help."""
        if hindrance is Hindrance.COOLING:
            moved = now - float(self.topics.moved_at[row])
            late = cause is Cause.LATENCY
            rest = self.settings.late_cool_down if late else self.settings.cool_down
            left = rest - moved
            return f"it moved, or could not, {moved:.0f} s ago and stays for {left:.0f} s more"
        if hindrance is Hindrance.MOVING:
            return f"it is on its way to {self.site(int(self.topics.moving_to[row]))}"
        return {
            Hindrance.PINNED: "it is pinned, and stays until it is unpinned",
            Hindrance.HOME_DOWN: "its home does not answer; failover finds it another",
            Hindrance.UNMEASURED: "nothing fresh is known of its clients",
            Hindrance.NO_SITE: "no site suits it, and none is enough of a gain; it stays",
            Hindrance.NO_ROOM: "every site that suits it is full; add capacity near its clients",
            Hindrance.WAITING: "it waits until moves that are under way have ended",
        }[hindrance]
