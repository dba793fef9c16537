"""`python -m skerry.placement.assess`: how good placement by centres is (ePulsar, section 5.5).

A home reports a centre and a radius, not each client. What does that cost? For topologies of
several sizes, clients are placed at random a thousand times, and each topic's home is chosen

- by *centres*: least W(t, b), as `skerry.placement` does;
- by *all pairs*: least worst case over all publishers and subscribers, the best there is;
- by *hashing*: some site, whatever the distance.

Reported are the worst latency of a pair, and the share of pairs that break the topic's bound.
Scenarios: `mmog`, 1024 players in 128 groups over cities of the USA, every avatar a topic to which
the player publishes and all of its group subscribe, 100 ms. `uav`, 16 swarms of 8 over zones of a
city 30 ms apart and back, the leader publishes to the followers and they to it, 40 ms. The paper
adds up round trips; here ways are one way, so its bounds are halved. `mixed`, which the paper does
not have, is the hardest on centres: many publishers and many subscribers, anywhere on a plane,
bounds that are hard to keep.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from skerry.placement.clients import summarise
from skerry.placement.tables import Array

CITIES = {
    "New York": (40.7, -74.0), "Los Angeles": (34.1, -118.2), "Chicago": (41.9, -87.6),
    "Houston": (29.8, -95.4), "Miami": (25.8, -80.2), "Seattle": (47.6, -122.3),
    "Denver": (39.7, -105.0), "Atlanta": (33.7, -84.4), "Dallas": (32.8, -96.8),
    "Phoenix": (33.4, -112.1), "San Francisco": (37.8, -122.4), "Boston": (42.4, -71.1),
    "Minneapolis": (45.0, -93.3), "St. Louis": (38.6, -90.2), "Salt Lake City": (40.8, -111.9),
    "Charlotte": (35.2, -80.8),
}  # fmt: skip
"""Latitude and longitude."""
MS_PER_100_KM = 0.85
"""One way: light in glass takes 0.5, and cables are not straight."""


class Stage(msgspec.Struct, frozen=True):
    """Sites, and clients that take part in topics: a row each time one publishes or subscribes."""

    position: Array
    height: Array
    bound: float
    topics: int
    producers: tuple[Array, Array, Array]
    """Topic, position, height."""
    consumers: tuple[Array, Array, Array]


class Score(msgspec.Struct, frozen=True):
    """Of one rule over all placements."""

    worst: float
    """ms: mean over the placements of the worst latency of any pair."""
    mean: float
    """ms: mean over the topics of their worst pair."""
    violations: float
    """Share of pairs whose latency is above the bound."""


def city_plane() -> Array:
    """Cities in ms one way, (cities, 2)."""
    degrees = np.array(list(CITIES.values()))
    return np.stack(
        [degrees[:, 1] * np.cos(np.radians(38.0)), degrees[:, 0]], axis=1
    ) * (111.2 / 100 * MS_PER_100_KM)  # fmt: skip


def mmog(rng: np.random.Generator, size: int) -> Stage:
    """Section 5.5.2, with so many cities. A game server is 5 ms from the broker of its city, there
    and back: half of that on either side."""
    at = city_plane()[rng.permutation(len(CITIES))[:size]]
    players, groups = 1024, 128
    city = rng.integers(0, size, players)
    group = rng.permutation(np.arange(players) % groups)
    mates = np.argsort(group, kind="stable").reshape(groups, -1)
    topic = np.repeat(np.arange(players), players // groups)
    listener = mates[group].reshape(-1)
    height = np.full(size, 1.25)
    return Stage(
        at, height, 50.0, players,
        (np.arange(players), at[city], np.full(players, 1.25)),
        (topic, at[city[listener]], np.full(len(topic), 1.25)),
    )  # fmt: skip


def uav(rng: np.random.Generator, size: int) -> Stage:
    """Section 5.5.3, with so many zones, all 30 ms from each other and back: the corners of a
    simplex. The radio takes 4 to 9 ms one way."""
    at = np.eye(size) * (15.0 / np.sqrt(2.0))
    swarms, members = 16, 8
    zone = rng.integers(0, size, swarms)
    radio = rng.uniform(4.0, 9.0, (swarms, members))
    leader, followers = np.zeros(swarms, int), np.tile(np.arange(1, members), swarms)
    each, many = np.arange(swarms), np.repeat(np.arange(swarms), members - 1)
    lead = (at[zone[each]], radio[each, leader])
    follow = (at[zone[many]], radio[many, followers])
    return Stage(
        at, np.zeros(size), 20.0, 2 * swarms,
        (np.r_[each, many + swarms], np.r_[lead[0], follow[0]], np.r_[lead[1], follow[1]]),
        (np.r_[many, each + swarms], np.r_[follow[0], lead[0]], np.r_[follow[1], lead[1]]),
    )  # fmt: skip


def mixed(rng: np.random.Generator, size: int) -> Stage:
    """So many sites anywhere; topics with up to 8 publishers and 16 subscribers anywhere."""
    topics = 64
    at = rng.uniform(0, 40, (size, 2))

    def clients(most: int) -> tuple[Array, Array, Array]:
        topic = np.repeat(np.arange(topics), rng.integers(1, most + 1, topics))
        return topic, rng.uniform(0, 40, (len(topic), 2)), rng.exponential(2, len(topic))

    return Stage(at, rng.exponential(1, size), 60.0, topics, clients(8), clients(16))


SCENARIOS: dict[str, tuple[Callable[[np.random.Generator, int], Stage], tuple[int, ...]]] = {
    "mmog": (mmog, (3, 5, 8, 12, 16)),
    "uav": (uav, (2, 4, 8, 16)),
    "mixed": (mixed, (5, 10, 20, 40)),
}
"""Each with the sizes that it is tried at."""


def assess(scenario: str, size: int, placements: int, seed: int) -> dict[str, Score]:
    """The three rules on the same random placements."""
    make = SCENARIOS[scenario][0]
    seen: dict[str, list[tuple[float, float, float]]] = {}
    for number in range(placements):
        stage = make(np.random.default_rng((seed, size, number)), size)
        reach = [_reach(stage, clients) for clients in (stage.producers, stage.consumers)]
        exact = reach[0] + reach[1]
        hashed = np.random.default_rng((seed, size, number, 1)).integers(0, size, stage.topics)
        rules = {
            "all pairs": exact.argmin(axis=1),
            "centres": _by_centres(stage),
            "hashing": hashed,
        }
        for rule, home in rules.items():
            worst = exact[np.arange(stage.topics), home]
            entry = float(worst.max()), float(worst.mean()), _violations(stage, home)
            seen.setdefault(rule, []).append(entry)
    return {rule: Score(*np.mean(entries, axis=0).tolist()) for rule, entries in seen.items()}


def _away(stage: Stage, clients: tuple[Array, Array, Array]) -> Array:
    """(clients, sites), ms."""
    gap = clients[1][:, None, :] - stage.position
    found: Array = np.sqrt((gap * gap).sum(axis=2)) + clients[2][:, None] + stage.height
    return found


def _reach(stage: Stage, clients: tuple[Array, Array, Array]) -> Array:
    """(topics, sites): the farthest client."""
    found = np.zeros((stage.topics, len(stage.position)))
    np.maximum.at(found, clients[0], _away(stage, clients))
    return found


def _by_centres(stage: Stage) -> Array:
    """Least W(t, b). The radii are the same for every site."""
    total = np.zeros((stage.topics, len(stage.position)))
    for topic, position, height in (stage.producers, stage.consumers):
        home = stage.position[0], float(stage.height[0])
        centre = summarise(topic, position, height, stage.topics, home).centre
        gap = centre[:, None, :] - stage.position
        total += np.sqrt((gap * gap).sum(axis=2)) + stage.height
    nearest: Array = total.argmin(axis=1)
    return nearest


def _violations(stage: Stage, home: Array) -> float:
    """Share of the pairs of a topic's publishers and subscribers that are above the bound."""
    ways = []
    for clients in (stage.producers, stage.consumers):
        at = home[clients[0]]
        gap = clients[1] - stage.position[at]
        away = np.sqrt((gap * gap).sum(axis=1)) + clients[2] + stage.height[at]
        ends = np.cumsum(np.bincount(clients[0], minlength=stage.topics))[:-1]
        ways.append(np.split(away[np.argsort(clients[0], kind="stable")], ends))
    pairs = [np.add.outer(p, c).ravel() for p, c in zip(*ways, strict=True)]
    return float((np.concatenate(pairs) > stage.bound).mean())


def report(placements: int, seed: int) -> Iterator[str]:
    """Lines of the table."""
    yield (f"{'scenario':9}{'sites':>6}  {'rule':10}{'worst ms':>9}{'mean ms':>9}"
           f"{'violations':>12}{'worst to best':>15}")  # fmt: skip
    for scenario, (_, sizes) in SCENARIOS.items():
        for size in sizes:
            scores = assess(scenario, size, placements, seed)
            best = scores["all pairs"].worst
            for rule, score in scores.items():
                yield (f"{scenario:9}{size:6}  {rule:10}{score.worst:9.2f}{score.mean:9.2f}"
                       f"{score.violations:12.3%}{score.worst / best - 1:+15.2%}")  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m skerry.placement.assess", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--placements", type=int, default=1000, help="of each size (1000)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    for line in report(options.placements, options.seed):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
