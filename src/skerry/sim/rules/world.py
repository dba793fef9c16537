"""What everybody in a simulated fabric shares, and what is known to be right."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, NamedTuple, ParamSpec

import msgspec

from skerry.model.fabric import Step, TopicEntry
from skerry.model.promotion import State
from skerry.sim.rules.clock import Clock
from skerry.sim.rules.network import Network
from skerry.sim.rules.process import Process

if TYPE_CHECKING:
    from collections.abc import Callable

    from skerry.sim.rules.leader import Leader
    from skerry.sim.rules.oracle import Oracle
    from skerry.sim.rules.publisher import Publisher
    from skerry.sim.rules.site import Site
    from skerry.sim.rules.store import Store

P = ParamSpec("P")


class Event(NamedTuple):
    """An event is its id: who published it, and the how-manieth it was."""

    publisher: str
    number: int

    def __repr__(self) -> str:
        return f"{self.publisher}.{self.number}"


@dataclass(frozen=True)
class Driver:
    """What whoever drives the core owes it. Each rule can be left out, to see what breaks."""

    freeze_is_a_promise: bool = True
    """A home that freezes seals itself durably for the next epoch: it takes events again only
    under that one, even after a crash."""
    join_when_over: bool = True
    """A copy that is pointed at another home belongs to that one's history only when all is stored
    that the former one had sent."""
    data_of_this_session: bool = True
    """A copy takes data only from the follow session that it opened last."""
    no_gaps: bool = True
    """A home takes an event of a publisher's session only directly after the one before it."""
    guests_stay: bool = True
    """A site that is no member drops its copy only for an epoch newer than the copy's root."""
    salvage: bool = True
    """A copy that rolls sends what lies beyond the fork to the new home."""
    marks_first: bool = True
    """A copy's marks are wiped before its events are, never after."""
    members_only: bool = True
    """A publisher counts reports of members only, not of guests."""
    acks_of_this_session: bool = True
    """A publisher takes acknowledgements only of the session that it opened last."""
    aside_counts: bool = True
    """What a site has beside a copy that it begins anew counts until that has reached a base."""
    unstick: bool = True
    """A member that promised an epoch which never came tells the home, which begins it."""


class World:
    """One simulated fabric with one topic."""

    store: Store
    oracle: Oracle

    def __init__(self, random: Random, clock: Clock, network: Network, driver: Driver) -> None:
        self.random = random
        self.clock = clock
        self.network = network
        self.driver = driver
        self.sites: dict[str, Site] = {}
        self.leaders: list[Leader] = []
        self.publishers: dict[str, Publisher] = {}
        self.lineage_kept = 64
        self.rolls = True
        """Whether sites roll where they can. In some worlds none does: all are rebuilt, as those
        whose fork is forgotten."""
        self.thins = False
        """Whether events remove others before them, so that a forked log is begun anew."""
        self._fresh = 0

    def fresh(self) -> int:
        """A number never used before, greater than those before."""
        self._fresh += 1
        return self._fresh

    def jitter(self, around: int) -> int:
        """A delay from 3/4 to 5/4 of `around`."""
        return around * 3 // 4 + int(self.random.random() * around) // 2

    def processes(self) -> list[Process]:
        """Everything that runs."""
        return [self.store, *self.sites.values(), *self.leaders, *self.publishers.values()]

    def next_entry(
        self, entry: TopicEntry, home: str, members: tuple[str, ...], base: int
    ) -> TopicEntry:
        """The entry of the epoch after `entry`."""
        lineage = (*entry.lineage, Step(entry.epoch + 1, base))[-self.lineage_kept :]
        ordered = (home, *(member for member in members if member != home))
        return msgspec.structs.replace(
            entry, home=home, epoch=entry.epoch + 1, lineage=lineage, members=ordered
        )


@dataclass
class Watcher:
    """A mirror of the store's entry: late, with gaps, never backwards, durable."""

    revision: int = 0
    entry: TopicEntry | None = None

    def update(self, revision: int, entry: TopicEntry) -> bool:
        """Take a newer version; whether it was one."""
        if revision <= self.revision:
            return False
        self.revision, self.entry = revision, entry
        return True


class Inhabitant(Process):
    """A process of the fabric, with its own view of the topic's entry."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world.clock)
        self.world = world
        self.view = Watcher()

    def send(
        self, target: Process, call: Callable[P, None], *args: P.args, **none: P.kwargs
    ) -> None:
        """Make a call at another process, with luck."""
        self.world.network.send(self, target, call, *args, **none)

    def on_entry(self, revision: int, entry: TopicEntry) -> None:
        """The store's entry, as of some time ago."""
        if self.view.update(revision, entry):
            self.changed(entry)

    def changed(self, entry: TopicEntry) -> None:
        """The entry that this process sees has changed."""


class Asker(Inhabitant):
    """Who asks sites how far they are."""

    def on_state(self, token: int, state: State) -> None:
        """An answer to a question."""
