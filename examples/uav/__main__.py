"""Swarms of drones over a city, and topics that follow them from zone to zone.

ePulsar's sections 5.1.1 and 5.8.1, with real sites, engines and clients on an emulated network: a
city of four zones, each with a site, and a hub in the cloud that coordinates. 8 swarms of 8 drones
fly from one random point to the next at 50 m/s. A leader publishes to its followers, and they to
it, events of 1 KB. When a swarm comes to another zone its drones leave the old zone's site and
connect at the new one's. Topics begin at homes that were chosen by hashing.

    python -m examples.uav              # as root, on Linux
    python -m examples.uav --simulate   # in virtual time

What is as in the paper, and what is not. Zones are 30 ms from each other, and the bound is 40 ms.
In the paper these are a round trip and a sum of round trips; here both are one way. That is the
same world, twice as slow, so that the machine's own noise weighs less. From another zone an event
takes 60 ms. Each drone is a client with a connection of its own; all are in one process with the
sites' agents, a thread for each zone. Radio takes no time. The paper's 200 events/s of each drone
are more than two cores carry: by default it is 20.
"""

from __future__ import annotations

import sys

import numpy as np

from examples.roaming.command import main
from examples.roaming.scenarios import Uav
from examples.roaming.world import Line, Panel, Part, site_of
from skerry.placement import PolicySettings


class Swarms(Uav):
    """The drones by name."""

    hub: str | None = "cloud"
    hub_delay = 40.0
    margin = PolicySettings().margin

    def parts(self) -> dict[str, Part]:
        """What each drone does: all of a swarm are in one zone."""
        (publishes, position, _), (subscribes, _, _) = self.clients()
        zones = site_of(self, position)
        return {
            f"drone{number}": Part(
                self.sites[zones[number]],
                frozenset([self.topics[publishes[number]]]),
                frozenset([self.topics[subscribes[number]]]),
            )
            for number in range(len(zones))
        }

    def lines(self) -> list[Line]:
        """One for each topic."""
        return [Line(topic) for topic in range(len(self.topics))]

    def panels(self, steps: int) -> list[Panel]:
        """One for each swarm, with its two topics."""
        always = np.ones(steps, bool)
        return [
            Panel(
                f"swarm {swarm}",
                {2 * swarm: always, 2 * swarm + 1: always},
                labels=("leader to followers", "followers to leader"),
            )
            for swarm in range(self.SWARMS)
        ]


class LiveSwarms(Swarms):
    """Twice as far from each other, and without radio."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.position *= 2.0
        self.bound *= 2.0
        self.radio[:] = 0.0


if __name__ == "__main__":
    sys.exit(main("uav", __doc__ or "", 20.0, LiveSwarms, Swarms))
