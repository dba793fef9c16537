"""`python -m bench.assess`: how good placement is, by simulation (ePulsar, section 5.5).

For topologies of several sizes clients are placed at random, a thousand times each. Every topic
has to leave the site where it is, and its home is chosen

- by *all pairs*: the least worst case over all publishers and subscribers, each looked at by
  itself, and with the latencies as they are: the best there is;
- by *skerry*: sites sum up their clients in records, the records are folded into tables, and `plan`
  decides: all that happens in a fabric, but for the coordinates, which are right;
- by *estimates*: the same with coordinates that the sites found by a hundred samples each, 5 % too
  long on average, some of them spikes;
- by *centres*: the mean of the publishers' coordinates and that of the subscribers', as in the
  paper, with coordinates that are right;
- by *hashing*: some site, whatever the distance.

Reported are the worst latency of any pair, the mean over topics of their worst pair, and the share
of pairs that break the bound. Latencies are one way, from a publisher through its own site to the
home, and from there through the subscriber's site to the subscriber.

Scenarios: `mmog`, 1024 players in 128 groups over cities of the USA, every avatar a topic to which
the player publishes and all of its group subscribe, 100 ms. `uav`, 16 swarms of 8 over zones of a
city 30 ms apart and back, the leader publishes to the followers and they to it, 40 ms. The paper
adds up round trips; here ways are one way, so its bounds are halved. `mixed`, which the paper does
not have: sites and clients anywhere on a plane, many publishers and many subscribers, each at the
site next to it, bounds that are hard to keep.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import Progress

from examples.roaming.cities import CITIES, city_plane
from skerry.coords import Position
from skerry.placement.monitor import Monitor, TopicEntry, tables
from skerry.placement.policy import plan
from skerry.placement.records import SiteRecord, place_of, topic_columns
from skerry.placement.settings import PolicySettings
from skerry.placement.tables import Array

SAME = 50
"""Placements of clients among the same sites, whose coordinates are estimated once."""
SAMPLES = 100
"""Round trips that each site measures before its coordinate is used."""
NOISE, SPIKES = 0.05, 0.02
"""A measured round trip is longer than the truth: by a normally distributed part of it, and now and
then by up to ten times."""
RULES = ("all pairs", "skerry", "estimates", "centres", "hashing")


class Layout(msgspec.Struct, frozen=True):
    """Sites at coordinates in ms one way."""

    position: Array
    height: Array

    def __len__(self) -> int:
        return len(self.height)

    def ways(self) -> Array:
        """(sites, sites), ms one way."""
        gap = self.position[:, None, :] - self.position
        found: Array = np.sqrt((gap * gap).sum(axis=2)) + self.height[:, None] + self.height
        np.fill_diagonal(found, 0.0)
        return found


class Group(msgspec.Struct, frozen=True):
    """Clients that take part in topics: a row each time one publishes, or subscribes."""

    topic: Array
    site: Array
    """The site that it is behind."""
    line: Array
    """ms one way to it."""


class Stage(msgspec.Struct, frozen=True):
    """Clients among the sites of a layout."""

    bound: float
    topics: int
    producers: Group
    consumers: Group


class Score(msgspec.Struct, frozen=True):
    """Of one rule over all placements."""

    worst: float
    """ms: mean over the placements of the worst latency of any pair."""
    mean: float
    """ms: mean over the topics of their worst pair."""
    violations: float
    """Share of pairs whose latency is above the bound."""


class Scenario(msgspec.Struct, frozen=True):
    """How sites and clients are drawn, and how many sites there are."""

    layout: Callable[[np.random.Generator, int], Layout]
    clients: Callable[[np.random.Generator, Layout], Stage]
    sizes: tuple[int, ...]


class Result(msgspec.Struct, frozen=True):
    """One scenario with so many sites."""

    scenario: str
    sites: int
    placements: int
    scores: dict[str, Score]


# Scenarios


def cities(rng: np.random.Generator, size: int) -> Layout:
    """So many of the cities."""
    return Layout(city_plane()[rng.permutation(len(CITIES))[:size]], np.zeros(size))


def players(rng: np.random.Generator, layout: Layout) -> Stage:
    """Section 5.5.2. A game server is 5 ms from the broker of its city, there and back."""
    count, groups = 1024, 128
    city = rng.integers(0, len(layout), count)
    group = rng.permutation(np.arange(count) % groups)
    mates = np.argsort(group, kind="stable").reshape(groups, -1)
    topic = np.repeat(np.arange(count), count // groups)
    listener = mates[group].reshape(-1)
    return Stage(
        50.0, count,
        Group(np.arange(count), city, np.full(count, 2.5)),
        Group(topic, city[listener], np.full(len(topic), 2.5)),
    )  # fmt: skip


def zones(rng: np.random.Generator, size: int) -> Layout:
    """So many zones, all 30 ms from each other and back: the corners of a simplex."""
    return Layout(np.eye(size) * (15.0 / np.sqrt(2.0)), np.zeros(size))


def swarms(rng: np.random.Generator, layout: Layout) -> Stage:
    """Section 5.5.3. The radio takes 4 to 9 ms one way."""
    count, members = 16, 8
    zone = rng.integers(0, len(layout), count)
    radio = rng.uniform(4.0, 9.0, (count, members))
    each, many = np.arange(count), np.repeat(np.arange(count), members - 1)
    followers = radio[:, 1:].reshape(-1)

    def group(first: tuple[Array, Array], second: tuple[Array, Array]) -> Group:
        """Those of the leaders' topics, and of the followers'."""
        swarm = np.r_[first[0], second[0]]
        topic = np.r_[first[0], second[0] + count]
        return Group(topic, zone[swarm], np.r_[first[1], second[1]])

    lead, follow = (each, radio[:, 0]), (many, followers)
    return Stage(20.0, 2 * count, group(lead, follow), group(follow, lead))


def anywhere(rng: np.random.Generator, size: int) -> Layout:
    """So many sites on a plane, with access lines."""
    return Layout(rng.uniform(0, 40, (size, 2)), rng.exponential(1, size))


def crowd(rng: np.random.Generator, layout: Layout) -> Stage:
    """Topics with up to 8 publishers and 16 subscribers anywhere, each at the site next to it."""
    topics = 64

    def group(most: int) -> Group:
        topic = np.repeat(np.arange(topics), rng.integers(1, most + 1, topics))
        gap = rng.uniform(0, 40, (len(topic), 1, 2)) - layout.position
        away = np.sqrt((gap * gap).sum(axis=2))
        return Group(topic, away.argmin(axis=1), away.min(axis=1) + rng.exponential(2, len(topic)))

    return Stage(60.0, topics, group(8), group(16))


SCENARIOS = {
    "mmog": Scenario(cities, players, (3, 5, 8, 12, 16)),
    "uav": Scenario(zones, swarms, (2, 4, 8, 16)),
    "mixed": Scenario(anywhere, crowd, (5, 10, 20, 40)),
}


# Rules


def assess(
    name: str, size: int, placements: int, seed: int, done: Callable[[], None] = lambda: None
) -> Result:
    """All rules on the same random placements; `done` is called after each."""
    scenario = SCENARIOS[name]
    seen: dict[str, list[tuple[float, float, float]]] = {rule: [] for rule in RULES}
    for number in range(placements):
        if number % SAME == 0:
            layout = scenario.layout(np.random.default_rng((seed, size, number)), size)
            estimate = estimated(layout, Random(f"{seed}-{size}-{number}"))
            ways = layout.ways()
        rng = np.random.default_rng((seed, size, number, 1))
        stage = scenario.clients(rng, layout)
        exact = _reach(stage.producers, stage.topics, ways)
        exact += _reach(stage.consumers, stage.topics, ways)
        homes = {
            "all pairs": exact.argmin(axis=1),
            "skerry": by_records(stage, layout),
            "estimates": by_records(stage, estimate),
            "centres": _by_centres(stage, layout),
            "hashing": rng.integers(0, size, stage.topics),
        }
        pairs = _pairs(stage)
        for rule, home in homes.items():
            worst = exact[np.arange(stage.topics), home]
            late = (_latencies(stage, pairs, ways, home) > stage.bound).mean()
            seen[rule].append((float(worst.max()), float(worst.mean()), float(late)))
        done()
    scores = {rule: Score(*np.mean(found, axis=0).tolist()) for rule, found in seen.items()}
    return Result(name, size, placements, scores)


def estimated(layout: Layout, random: Random) -> Layout:
    """The coordinates that sites find by measuring each other."""
    ways = layout.ways() / 500.0  # there and back, in seconds
    sites = [Position(Random(random.random())) for _ in range(len(layout))]
    for moment in range(SAMPLES):
        for number, site in enumerate(sites):
            peer = random.choice([other for other in range(len(sites)) if other != number])
            rtt = float(ways[number, peer]) * (1.0 + abs(random.gauss(0.0, NOISE)))
            if random.random() < SPIKES:
                rtt *= random.uniform(1.0, 10.0)
            site.observe(f"s{peer}", sites[peer].coordinate, rtt, float(moment))
    places = [place_of(site.coordinate) for site in sites]
    return Layout(np.array([at for at, _ in places]), np.array([height for _, height in places]))


def by_records(stage: Stage, layout: Layout) -> Array:
    """Where `plan` puts the topics, by what sites at the places of `layout` report. They are at a
    site that is to be emptied."""
    monitor = Monitor()
    names = [f"t{number:04}" for number in range(stage.topics)]
    size = len(layout), stage.topics
    columns: dict[str, Array] = {}
    for kind, group in (("producer", stage.producers), ("consumer", stage.consumers)):
        count, line = np.zeros(size, int), np.zeros(size)
        np.add.at(count, (group.site, group.topic), 1)
        np.maximum.at(line, (group.site, group.topic), group.line)
        columns |= {f"{kind}s": count, f"{kind}_access": line}
    for site in range(len(layout)):
        used = (columns["producers"][site] > 0) | (columns["consumers"][site] > 0)
        about = {name: column[site, used] for name, column in columns.items()}
        some = [names[topic] for topic in np.flatnonzero(used).tolist()]
        monitor.fold(_record(f"s{site:03}", layout, site, some, about), 0.0)
    monitor.fold(_record("full", layout, 0, names, {}, draining=True), 0.0)
    topics, sites = tables(monitor, [TopicEntry(name=name, home="full") for name in names], 0.0)
    made = plan(topics, sites, PolicySettings(max_in_flight=None), 0.0)
    home = np.empty(stage.topics, int)
    home[made.topic] = made.to - 1  # "full" comes first
    return home


def _record(
    name: str, layout: Layout, site: int, topics: list[str], about: dict[str, Array], **more: Any
) -> SiteRecord:
    nothing = np.zeros(len(topics))
    columns = dict.fromkeys(
        ("producers", "consumers", "producer_access", "consumer_access", "rate_in", "rate_out",
         "event_bytes", "stored_bytes", "publish_ms", "deliver_ms", "deliver_most_ms"), nothing
    )  # fmt: skip
    return SiteRecord(
        site=name, started=1, number=1, position=tuple(layout.position[site].tolist()),
        height=float(layout.height[site]), capacity=(float("inf"),) * 5, load=(0.0,) * 5,
        topics=topic_columns(topics, **columns | about), **more,
    )  # fmt: skip


def _reach(group: Group, topics: int, ways: Array) -> Array:
    """(topics, sites): the farthest client."""
    found = np.zeros((topics, len(ways)))
    np.maximum.at(found, group.topic, ways[group.site] + group.line[:, None])
    return found


def _by_centres(stage: Stage, layout: Layout) -> Array:
    """Least |p - b| + |c - b| + 2 h(b); the radii are the same for every site."""
    total = np.tile(2.0 * layout.height, (stage.topics, 1))
    for group in (stage.producers, stage.consumers):
        centre = np.zeros((stage.topics, layout.position.shape[1]))
        np.add.at(centre, group.topic, layout.position[group.site])
        centre /= np.bincount(group.topic, minlength=stage.topics)[:, None]
        gap = centre[:, None, :] - layout.position
        total += np.sqrt((gap * gap).sum(axis=2))
    nearest: Array = total.argmin(axis=1)
    return nearest


def _pairs(stage: Stage) -> tuple[Array, Array]:
    """Rows of the publishers and of the subscribers of all pairs."""
    order = np.argsort(stage.consumers.topic, kind="stable")
    per_topic = np.bincount(stage.consumers.topic, minlength=stage.topics)
    first = np.cumsum(per_topic) - per_topic
    count = per_topic[stage.producers.topic]
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    other = order[np.repeat(first[stage.producers.topic], count) + within]
    return np.repeat(np.arange(len(count)), count), other


def _latencies(stage: Stage, pairs: tuple[Array, Array], ways: Array, home: Array) -> Array:
    total = np.zeros(len(pairs[0]))
    for group, rows in zip((stage.producers, stage.consumers), pairs, strict=True):
        total += (ways[group.site, home[group.topic]] + group.line)[rows]
    return total


# The table


def lines(result: Result) -> Iterator[str]:
    """One scenario and size, a line for each rule."""
    best = result.scores["all pairs"].worst
    for rule, score in result.scores.items():
        yield (f"{result.scenario:9}{result.sites:6}  {rule:10}{score.worst:9.2f}{score.mean:9.2f}"
               f"{score.violations:12.3%}{score.worst / best - 1:+15.2%}")  # fmt: skip


HEADING = (f"{'scenario':9}{'sites':>6}  {'rule':10}{'worst ms':>9}{'mean ms':>9}"
           f"{'violations':>12}{'worst to best':>15}")  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.assess", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--placements", type=int, default=1000, help="of each size (1000)")
    parser.add_argument("--scenario", choices=SCENARIOS, help="only this one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="all figures, for programs")
    options = parser.parse_args(arguments)
    names = [options.scenario] if options.scenario else list(SCENARIOS)
    todo = [(name, size) for name in names for size in SCENARIOS[name].sizes]
    found = []
    if not options.json:
        print(HEADING)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("placements", total=len(todo) * options.placements)
        for name, size in todo:
            result = assess(
                name, size, options.placements, options.seed, lambda: progress.advance(task)
            )
            found.append(result)
            if not options.json:
                print("\n".join(lines(result)), flush=True)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
