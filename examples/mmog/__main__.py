"""Players all over the USA, in groups that change, and topics that follow.

ePulsar's sections 5.1.2 and 5.8.2, with real sites, engines and clients on an emulated network:
five cities, each with a site and a game server. 64 players form 8 groups; each stays for 30 to 60 s
and joins another. Every avatar is a topic, to which the game server of its player publishes events
of 998 bytes, and which the game servers of all players in its group subscribe to. Topics begin at
homes that were chosen by hashing.

    python -m examples.mmog              # as root, on Linux
    python -m examples.mmog --simulate   # in virtual time

What is as in the paper, and what is not. The bound is 100 ms. The paper compares it with a sum of
round trips; here it is one way, and so cities are twice as far from each other as cables have it:
26 ms from Seattle to Los Angeles, 75 ms to Miami. A game server is one client with one connection,
and hears an event once however many of its players it is for. All are in one process with the
sites' agents, a thread for each city, which adds up to 8 ms to an event's way: so topics are to
stay below their bound by 15 % (`skerry placement set --margin`). New York coordinates. The paper's
300 events/s of each avatar are more than two cores carry: by default it is 5.
"""

from __future__ import annotations

import sys
from collections import defaultdict

import numpy as np

from examples.roaming.command import main
from examples.roaming.scenarios import Mmog
from examples.roaming.simulate import STEP
from examples.roaming.world import Line, Panel, Part, site_of
from skerry.placement import PolicySettings

SHOWN = 4
"""Players in the picture, each of another city."""


class Players(Mmog):
    """The game servers by name."""

    hub: str | None = None
    hub_delay = 0.0
    margin = PolicySettings().margin

    def parts(self) -> dict[str, Part]:
        """What each game server does."""
        (publishes, at, _), (subscribes, to, _) = self.clients()
        mine: defaultdict[int, set[str]] = defaultdict(set)
        heard: defaultdict[int, set[str]] = defaultdict(set)
        for topic, city in zip(publishes, site_of(self, at), strict=True):
            mine[city].add(self.topics[topic])
        for topic, city in zip(subscribes, site_of(self, to), strict=True):
            heard[city].add(self.topics[topic])
        return {
            name: Part(name, frozenset(mine[city]), frozenset(heard[city]), name)
            for city, name in enumerate(self.sites)
        }

    def lines(self) -> list[Line]:
        """One for each avatar in each city."""
        return [
            Line(topic, name, city)
            for topic in range(len(self.topics))
            for city, name in enumerate(self.sites)
        ]

    def panels(self, steps: int) -> list[Panel]:
        """What some players hear of the others in their groups."""
        chosen = [int(np.flatnonzero(self.city == city)[0]) for city in np.unique(self.city)]
        groups = []
        for _ in range(steps):
            self.step(STEP)
            groups.append(self.group.copy())
        group = np.array(groups)
        return [
            Panel(
                f"what a player in {self.NAMES[self.city[player]]} hears of the others",
                {
                    topic: group[:, topic] == group[:, player]
                    for topic in range(self.PLAYERS)
                    if topic != player and (group[:, topic] == group[:, player]).any()
                },
                self.sites[self.city[player]],
            )
            for player in chosen[:SHOWN]
        ]


class LivePlayers(Players):
    """Twice as far from each other, and game servers beside their sites."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.position = self.position * 2.0
        self.bound *= 2.0
        self.access = 0.0
        self.margin = 0.15


if __name__ == "__main__":
    sys.exit(main("mmog", __doc__ or "", 5.0, LivePlayers, Players))
