"""The coordination store: one entry, changed by compare-and-set, mirrored everywhere."""

from __future__ import annotations

from skerry.model.fabric import TopicEntry
from skerry.sim.rules.process import Process
from skerry.sim.rules.world import Inhabitant, World

REFRESH = 120
"""Milliseconds after which the newest version is sent again to everybody."""


class Store(Process):
    """Durable, and the only one that decides. It can be paused or cut off, not lost."""

    def __init__(self, world: World, entry: TopicEntry) -> None:
        super().__init__("store", world.clock)
        self.world = world
        self.revision = 1
        self.entry = entry
        self.lag: dict[str, int] = {}
        """Milliseconds by which a mirror is behind beyond the network's delay."""

    def start(self) -> None:
        self._refresh()

    def _refresh(self) -> None:
        self._tell()
        self.after(REFRESH, self._refresh)

    def _tell(self) -> None:
        world = self.world
        everybody: list[Inhabitant] = [
            *world.sites.values(),
            *world.leaders,
            *world.publishers.values(),
        ]
        for one in everybody:
            lag = self.lag.get(one.name, 0)
            if lag:
                self.after(lag, self._tell_one, one, self.revision, self.entry)
            else:
                self._tell_one(one, self.revision, self.entry)

    def _tell_one(self, one: Inhabitant, revision: int, entry: TopicEntry) -> None:
        self.world.network.send(self, one, one.on_entry, revision, entry)

    def on_write(self, writer: str, revision: int, entry: TopicEntry) -> None:
        """Write a new version if `revision` is still the newest. Nobody is told how it went: who
        wants to know watches the entry."""
        if revision != self.revision:
            return
        old, self.entry = self.entry, entry
        self.revision += 1
        self.world.network.note(
            f"ENTRY {self.revision} by {writer}: epoch {entry.epoch} home {entry.home} "
            f"members {entry.members} lineage {entry.lineage}"
        )
        self.world.oracle.written(old, entry)
        self._tell()
