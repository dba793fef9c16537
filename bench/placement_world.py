"""Tables to plan with: sites in clusters over a continent, topics with clients behind some of them,
homes that were hashed. Seeded, and made of whole columns: a million in some seconds."""

from __future__ import annotations

import msgspec
import numpy as np

from skerry.placement import Clients, Sites, Topics
from skerry.placement.monitor import between
from skerry.placement.tables import NAMES, Array, make_clients

DIMENSIONS = 8
"""Those of the coordinates' protocol."""
NOW = 1_000.0


def make(topics: int, sites: int, seed: int = 7) -> tuple[Topics, Sites]:
    """The hard case: every home was chosen by hashing, and 9 of 10 topics have a bound."""
    rng = np.random.default_rng(seed)
    where = _sites(rng, sites)
    near = rng.integers(0, sites, topics)
    # Half of the topics are local; the others have their subscribers somewhere else.
    other = np.where(rng.random(topics) < 0.5, near, rng.integers(0, sites, topics))
    home = rng.integers(0, sites, topics).astype("i4")
    publish, subscribe = (
        _behind(rng, where, row, share) for row, share in ((near, 0.0), (other, 0.02))
    )
    worst = np.zeros(topics)
    for clients in (publish, subscribe):
        way = between(where, clients.site, np.repeat(home, clients.sites))
        worst += clients.over_topics(way + clients.access)
    rate_in = rng.pareto(1.5, topics) * 5
    rate_out = rate_in * rng.integers(1, 5, topics)
    stored = rng.pareto(1.5, topics) * 1e7
    replicas = np.full((topics, 2), -1, "i4")
    some = rng.random(topics) < 0.2
    replicas[some, 0] = (home[some] + 1) % sites
    made = Topics(
        names=np.strings.add("topic", np.arange(topics).astype(NAMES)),
        home=home,
        bound=np.where(rng.random(topics) < 0.1, np.inf, rng.uniform(20, 120, topics)),
        worst=worst,
        producers=publish,
        consumers=subscribe,
        rate_in=rate_in,
        rate_out=rate_out,
        event_bytes=rng.uniform(100, 2000, topics),
        stored_bytes=stored,
        replicas=replicas,
        wanted=some.astype("i4"),
        colocated=np.zeros(topics, bool),
        power=np.zeros(topics, bool),
        pinned=rng.random(topics) < 0.01,
        measured=np.ones(topics, bool),
        moved_at=np.full(topics, -np.inf),
        moving_to=np.full(topics, -1, "i4"),
    )
    return made, _loaded(rng, made, where)


def settle(topics: Topics, sites: Sites, best: Array, share: float = 0.01) -> Topics:
    """The everyday case: topics are at the sites of `best` and keep their bounds, but for some."""
    rng = np.random.default_rng(11)
    broken = rng.random(len(topics)) < share
    worst = np.where(broken, topics.bound * 1.2, np.minimum(topics.worst, topics.bound * 0.8))
    return msgspec.structs.replace(
        topics, home=np.where(broken, topics.home, best), worst=np.where(worst < 1e9, worst, 10.0)
    )


def _sites(rng: np.random.Generator, count: int) -> Sites:
    clusters = rng.uniform(-40, 40, (max(4, count // 20), DIMENSIONS))
    clusters[:, 3:] *= 0.1  # networks are nearly flat
    position = clusters[rng.integers(0, len(clusters), count)]
    position = position + rng.normal(0, 3, (count, DIMENSIONS))
    return Sites(
        names=np.strings.add("site", np.arange(count).astype(NAMES)),
        position=position.astype("f4"),
        height=rng.exponential(1, count).astype("f4"),
        capacity=np.zeros((count, 5)),
        load=np.zeros((count, 5)),
        up=rng.random(count) > 0.01,
        draining=np.zeros(count, bool),
        power=np.ones(count, bool),
    )


def _behind(rng: np.random.Generator, sites: Sites, row: Array, nobody: float) -> Clients:
    """Clients of each topic behind the site `row`, and of half of the topics behind one or two near
    it as well; a share of the topics has none."""
    order = np.argsort(sites.position[:, 0], kind="stable")
    place = np.empty(len(sites), int)
    place[order] = np.arange(len(sites))
    count = rng.choice([1, 2, 3], len(row), p=[0.5, 0.3, 0.2])
    count[rng.random(len(row)) < nobody] = 0
    topic = np.repeat(np.arange(len(row)), count)
    which = np.arange(len(topic)) - np.repeat(np.cumsum(count) - count, count)
    site = order[(place[row[topic]] + which) % len(sites)]
    return make_clients(len(row), topic, site, rng.exponential(4, len(topic)))


def _loaded(rng: np.random.Generator, topics: Topics, sites: Sites) -> Sites:
    """Loads by the topics that are there; capacities with some room, more here and less there: some
    sites are overloaded, and many fill up while the plan is made."""
    rate = topics.rate_in + topics.rate_out
    count = len(sites)
    load = np.empty((count, 5))
    load[:, 4] = np.bincount(topics.home, rate, count)
    load[:, 0] = load[:, 4] / 5e4
    load[:, 1] = load[:, 4] * 1e4
    load[:, 2] = np.bincount(topics.home, rate * topics.event_bytes, count)
    load[:, 3] = np.bincount(topics.home, topics.stored_bytes, count)
    capacity = load.mean(axis=0) * rng.uniform(1.5, 4, (count, 1)) * np.ones(5)
    return msgspec.structs.replace(sites, load=load, capacity=capacity)
