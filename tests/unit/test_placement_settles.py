"""Placement comes to rest: load shedding that never settles is what its users fear most."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from skerry.placement import PolicySettings, Sites, Topics, plan
from skerry.placement.monitor import between
from tests.unit.test_placement_policy import behind, make_sites, make_topics

PERIOD = 5.0


class Fabric:
    """Sites whose load is made by their topics, and moves that take one period."""

    def __init__(self, topics: Topics, sites: Sites, settings: PolicySettings) -> None:
        self.topics, self.sites, self.settings = topics, sites, settings
        self.now = 0.0
        self.moved: Counter[int] = Counter()
        self.last = 0.0

    def period(self) -> None:
        """What was under way arrives; then measure, and plan."""
        topics = self.topics
        arrived = topics.moving_to >= 0
        topics.home[arrived] = topics.moving_to[arrived]
        topics.moved_at[arrived] = self.now
        topics.moving_to[:] = -1
        rate = topics.rate_in + topics.rate_out
        load = np.bincount(topics.home, rate, len(self.sites))
        self.sites.load[:, 4] = load
        self.sites.load[:, 0] = load / 1e4
        made = plan(topics, self.sites, self.settings, self.now)
        topics.moving_to[made.topic] = made.to
        self.moved.update(made.topic.tolist())
        self.last = self.now if len(made) else self.last
        self.now += PERIOD

    def run(self, seconds: float) -> None:
        """So many seconds."""
        end = self.now + seconds
        while self.now < end:
            self.period()


def test_an_overloaded_fabric_settles_within_a_minute() -> None:
    """All topics at one site of five, far more than it can carry."""
    rng = np.random.default_rng(1)
    rates = rng.uniform(100, 1000, 300)
    topics = make_topics(300, rate_in=rates, rate_out=rates, bound=np.full(300, np.inf))
    fabric = Fabric(topics, make_sites(0.0, 3.0, 4.0, 5.0, 6.0), PolicySettings(max_in_flight=16))
    fabric.run(600)
    assert (fabric.sites.load[:, 0] <= 8.5).all()
    assert fabric.last <= 120
    assert max(fabric.moved.values()) == 1  # no topic is moved twice


def test_load_that_swings_around_the_threshold_moves_little() -> None:
    """Two sites at 80 to 90 %, in turns, every 20 s for an hour: each swing could move a topic away
    and back, 180 times. A site is filled to 81 % only, so after the first moves both fit."""
    topics = make_topics(40, bound=np.full(40, np.inf))
    topics.home[20:] = 1
    base = np.full(40, 1000.0)
    sites = make_sites(0.0, 3.0, 6.0)
    fabric = Fabric(topics, sites, PolicySettings())
    for number in range(180):
        swing = 1.06 if number % 2 else 0.94
        factor = np.where(topics.home == 0, swing, 2.0 - swing)
        topics.rate_in[:] = topics.rate_out[:] = base * factor * 2.0
        fabric.run(20)
    assert sum(fabric.moved.values()) <= 10


def test_clients_that_jump_to_and_fro_move_a_topic_once_a_cool_down() -> None:
    """Worst case: every period the clients are all at the other site. A topic moves at most once
    in a cool-down, here 10 s: 60 times in ten minutes."""
    topics, sites = make_topics(8), make_sites(0.0, 60.0)
    fabric = Fabric(topics, sites, PolicySettings(late_cool_down=10.0))
    for number in range(120):
        there = number % 2
        topics.producers.site[:] = topics.consumers.site[:] = there
        topics.worst[:] = 120.0 * (topics.home != there)
        fabric.period()
    limit = 600 / fabric.settings.late_cool_down + 1
    assert all(count <= limit for count in fabric.moved.values())


def test_a_plan_that_is_carried_out_is_not_made_again() -> None:
    """In random worlds: carry a plan out, and nothing that moved for latency moves again."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        sites = make_sites(*rng.uniform(0, 100, 6).tolist())
        clients = behind(*rng.integers(0, 6, 50).tolist(), access=4.0)
        home = rng.integers(0, 6, 50).astype("i4")
        topics = make_topics(50, home=home, producers=clients, consumers=clients)
        settings = PolicySettings(max_in_flight=None, cool_down=0.0)
        for _ in range(2):
            topics.worst[:] = 8.0 + 2 * between(sites, clients.site, topics.home)
            made = plan(topics, sites, settings, 0.0)
            topics = msgspec.structs.replace(topics, home=topics.home.copy())
            topics.home[made.topic] = made.to
        assert len(made) == 0
