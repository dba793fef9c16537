"""Swarms of drones over a city, and players all over the USA (ePulsar, sections 5.1 and 5.8).

The paper compares sums of round trips with its bounds. Here ways are one way, and the bounds half.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from examples.roaming.cities import CITIES, city_plane
from examples.roaming.simulate import Clients, Scenario
from skerry.placement.tables import Array


class Uav:
    """8 swarms of 8 drones over 4 zones, 30 ms from each other and back. Each swarm flies to one
    random point after the other at 50 m/s; its leader publishes to the followers, and they to it,
    each 200 events/s of 1 KB. Bound 40 ms."""

    SWARMS, MEMBERS, SPEED, CITY = 8, 8, 50.0, 12_000.0

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        quarter = self.CITY / 4
        self.towers = quarter * np.array([[1.0, 1.0], [1.0, 3.0], [3.0, 1.0], [3.0, 3.0]])
        self.sites = [f"zone{number}" for number in range(4)]
        self.position = np.eye(4) * (15.0 / np.sqrt(2.0))
        self.height = np.zeros(4)
        self.at, self.to = self.rng.uniform(0, self.CITY, (2, self.SWARMS, 2))
        self.radio = self.rng.uniform(4.0, 9.0, (self.SWARMS, self.MEMBERS))
        kinds = ("follow_leader", "sensor_data")
        self.topics = [f"swarm{swarm}/{kind}" for swarm in range(self.SWARMS) for kind in kinds]
        self.bound = 20.0
        others = self.MEMBERS - 1
        self.rate = (
            np.tile([200.0, 200.0 * others], self.SWARMS),
            np.tile([200.0 * others, 200.0 * others], self.SWARMS),
        )
        self.event_bytes = 1024.0

    def step(self, seconds: float) -> None:
        """Fly."""
        for swarm in range(self.SWARMS):
            left = self.SPEED * seconds
            while (way := float(np.hypot(*(self.to[swarm] - self.at[swarm])))) <= left:
                left -= way
                self.at[swarm] = self.to[swarm]
                self.to[swarm] = self.rng.uniform(0, self.CITY, 2)
            self.at[swarm] += (self.to[swarm] - self.at[swarm]) * (left / way)

    def clients(self) -> tuple[Clients, Clients]:
        """A drone has the coordinate of the zone it is in, and its radio as height."""
        away = np.hypot(*(self.at[:, None, :] - self.towers).transpose(2, 0, 1))
        zone = np.repeat(away.argmin(axis=1), self.MEMBERS)
        swarm, member = np.divmod(np.arange(self.SWARMS * self.MEMBERS), self.MEMBERS)
        at, radio, leads = self.position[zone], self.radio.reshape(-1), member == 0
        publishes = np.where(leads, 2 * swarm, 2 * swarm + 1)
        subscribes = np.where(leads, 2 * swarm + 1, 2 * swarm)
        return (publishes, at, radio), (subscribes, at, radio)


class Mmog:
    """64 players in 5 cities, in 8 groups; each stays 30 to 60 s and joins another. Every avatar is
    a topic that its whole group subscribes to, 300 events/s of 998 B. Bound 100 ms."""

    PLAYERS, GROUPS, STAYS = 64, 8, (30.0, 60.0)
    NAMES: tuple[str, ...] = ("New York", "Los Angeles", "Chicago", "Miami", "Seattle")

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        order = list(CITIES)
        self.sites = [name.lower().replace(" ", "-") for name in self.NAMES]
        self.position = city_plane()[[order.index(name) for name in self.NAMES]]
        self.height = np.zeros(len(self.sites))
        self.city = self.rng.integers(0, len(self.sites), self.PLAYERS)
        self.group = self.rng.integers(0, self.GROUPS, self.PLAYERS)
        self.stays = self.rng.uniform(*self.STAYS, self.PLAYERS)
        self.topics = [f"avatar{player:02}" for player in range(self.PLAYERS)]
        self.bound = 50.0
        self.access = 2.5
        self.rate = (np.full(self.PLAYERS, 300.0), np.full(self.PLAYERS, 2400.0))
        self.event_bytes = 998.0

    def step(self, seconds: float) -> None:
        """Play."""
        self.stays -= seconds
        for player in np.flatnonzero(self.stays <= 0):
            self.group[player] = (
                self.group[player] + self.rng.integers(1, self.GROUPS)
            ) % self.GROUPS
            self.stays[player] = self.rng.uniform(*self.STAYS)

    def clients(self) -> tuple[Clients, Clients]:
        """Game servers are 5 ms from the broker of their city and back."""
        same = self.group[:, None] == self.group
        topic, listener = np.nonzero(same)
        at: Array = self.position[self.city]
        return (
            (np.arange(self.PLAYERS), at, np.full(self.PLAYERS, self.access)),
            (topic, at[listener], np.full(len(topic), self.access)),
        )


SCENARIOS: dict[str, Callable[[int], Scenario]] = {"uav": Uav, "mmog": Mmog}
"""By name; called with a seed."""
