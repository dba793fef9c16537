"""A topic and its candidates, and sites and their load, for people to look at."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from skerry.model.placement import Candidate, ClientsAt, Explanation, SiteLoad
from skerry.placement import explain
from skerry.placement.load import needs, room
from skerry.placement.monitor import Groups, Monitor, between
from skerry.placement.policy import Plan
from skerry.placement.settings import RATE_CAPACITY, PolicySettings
from skerry.placement.tables import Array, Sites, Topics


def worst_cases(topics: Topics, row: int, sites: Sites) -> Array:
    """W(t, b) for every site, in ms: as the policy computes it, but for its rounding to ticks. Of a
    topic that lacks publishers, or subscribers, the way of the others."""
    total = np.zeros(len(sites))
    every = np.arange(len(sites))
    for clients in (topics.producers, topics.consumers):
        farthest = np.zeros(len(sites))
        for at in range(clients.first[row], clients.first[row + 1]):
            way = between(sites, np.full(len(sites), clients.site[at]), every)
            farthest = np.maximum(farthest, way + float(clients.access[at]))
        total += farthest
    return total


def explained(
    name: str,
    topics: Topics,
    sites: Sites,
    groups: Groups,
    settings: PolicySettings,
    made: Plan,
    now: float,
    silent: Iterable[str],
) -> Explanation:
    """Why the topic is where it is, and what each site would be to it. `silent` are sites that
    nothing fresh is known of."""
    row = topics.names.tolist().index(name)
    bound = float(topics.bound[row])
    publishes, subscribes = topics.producers.sites[row], topics.consumers.sites[row]
    paired = bool(publishes and subscribes and topics.measured[row])
    clients = _clients(row, topics, sites, groups)
    publish = max((c.publish_ms for c in clients if c.publish_ms is not None), default=None)
    deliver = max((c.deliver_ms for c in clients if c.deliver_ms is not None), default=None)
    return Explanation(
        topic=name,
        home=str(sites.names[topics.home[row]]),
        bound_ms=None if np.isinf(bound) else round(bound, 3),
        estimated_ms=round(float(topics.worst[row]), 3) if paired else None,
        measured_ms=None if publish is None or deliver is None else round(publish + deliver, 3),
        pinned=bool(topics.pinned[row]),
        decision=_decision(row, topics, sites, settings, made, now),
        clients=clients,
        candidates=_candidates(row, topics, sites, settings, made, silent),
    )


def _clients(row: int, topics: Topics, sites: Sites, groups: Groups) -> list[ClientsAt]:
    home = np.array([topics.home[row]])
    found = []
    for at in np.flatnonzero(groups.topic == row).tolist():
        site = int(groups.site[at])

        def number(name: str, at: int = at) -> float:
            return round(float(getattr(groups, name)[at]), 3)

        found.append(
            ClientsAt(
                site=str(sites.names[site]),
                producers=int(groups.producers[at]),
                consumers=int(groups.consumers[at]),
                home_ms=round(float(between(sites, np.array([site]), home)[0]), 3),
                producer_access_ms=number("producer_access"),
                consumer_access_ms=number("consumer_access"),
                publish_ms=number("publish_ms") or None,
                deliver_ms=number("deliver_ms") or None,
                deliver_most_ms=number("deliver_most_ms") or None,
            )
        )
    return found


def _decision(
    row: int, topics: Topics, sites: Sites, settings: PolicySettings, made: Plan, now: float
) -> str:
    name = str(topics.names[row])
    for move in explain.moves(made, topics, sites, settings):
        if move.topic == name:
            return f"it should move to {move.target}: {move.reason}"
    for stay in explain.stays(made, topics, sites, settings, now):
        if stay.topic == name:
            return f"it stays: {stay.reason}"
    worst, bound = float(topics.worst[row]), float(topics.bound[row])
    if not sites.up[topics.home[row]]:
        return "it stays: nothing fresh is known of its home"
    if np.isinf(bound):
        return "it stays: it has no latency bound, and its home has room"
    if not topics.producers.sites[row] or not topics.consumers.sites[row]:
        missing = "publishers" if not topics.producers.sites[row] else "subscribers"
        return f"it stays: it has no {missing} now, so that no event is late"
    return f"it stays: at most {worst:.1f} ms keep its bound of {bound:g} ms"


def _candidates(
    row: int,
    topics: Topics,
    sites: Sites,
    settings: PolicySettings,
    made: Plan,
    silent: Iterable[str],
) -> list[Candidate]:
    worst = worst_cases(topics, row, sites)
    limit = float(topics.bound[row]) * (1.0 - settings.margin)
    have = room(topics, sites, settings)
    some = topics.take(np.array([row]), names=False)
    fits: Array = np.all(have.load + needs(some, sites) <= have.fill, axis=1)
    chosen = {int(t): int(to) for t, to in zip(made.topic, made.to, strict=True)}.get(row, -1)
    quiet = set(silent)
    found = []
    for site in np.lexsort((np.arange(len(sites)), worst)).tolist():
        name = str(sites.names[site])
        verdict, why = "feasible", "it would do, and is farther than the best"
        if site == chosen:
            verdict, why = "chosen", "the best that has room"
        elif site == int(topics.home[row]):
            verdict, why = "home", "it is here"
        elif not sites.up[site] or name in quiet:
            verdict, why = "down", "nothing fresh is known of it"
        elif sites.draining[site]:
            verdict, why = "draining", "it is to be emptied"
        elif topics.power[row] and not sites.power[site]:
            verdict, why = "unfit", "what it acknowledges does not survive a power cut"
        elif not fits[site]:
            verdict, why = "full", "it has no room left"
        elif worst[site] > limit:
            verdict = "too far"
            why = f"not below {limit:g} ms, the bound less {settings.margin:.0%}"
        elif np.isinf(limit):
            why = "it would do; the topic has no bound"
        known = sites.up[site] or bool(sites.position[site].any())
        found.append(
            Candidate(
                site=name,
                worst_ms=round(float(worst[site]), 3) if known else None,
                verdict=verdict,
                why=why,
            )
        )
    named = {candidate.site for candidate in found}
    found += [
        Candidate(site=name, worst_ms=None, verdict="down", why="it has not reported yet")
        for name in sorted(quiet - named)
    ]
    return found


def site_loads(
    monitor: Monitor, names: Iterable[str], sizes: dict[str, int], now: float, stale: float
) -> list[SiteLoad]:
    """What each site last said of itself; those that said nothing are not fresh."""
    found = []
    for name in names:
        if name not in monitor.newest:
            found.append(
                SiteLoad(site=name, fresh=False, age=-1.0, cpu=0.0, memory=0.0, bandwidth=0.0,
                         disk=0.0, rate=0.0, topics=0, record_bytes=0)
            )  # fmt: skip
            continue
        record, arrived = monitor.newest[name]
        limits = (*record.capacity[:4], min(record.capacity[4], RATE_CAPACITY))
        share = [load / most if 0 < most < float("inf") else 0.0
                 for load, most in zip(record.load, limits, strict=True)]  # fmt: skip
        found.append(
            SiteLoad(
                site=name,
                fresh=now - arrived <= stale,
                age=round(now - arrived, 3),
                cpu=round(share[0], 4),
                memory=round(share[1], 4),
                bandwidth=round(share[2], 6),
                disk=round(share[3], 4),
                rate=round(record.load[4], 3),
                topics=len(record.topics.names),
                record_bytes=sizes.get(name, 0),
            )
        )
    return found
