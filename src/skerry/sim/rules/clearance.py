"""What a site owes before it throws a copy away that is no part of the history any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skerry.model import promotion
from skerry.model.fabric import TopicEntry
from skerry.model.promotion import State
from skerry.sim.rules.world import Event

if TYPE_CHECKING:
    from skerry.sim.rules.site import Site


class Salvage:
    """`events`, which are not part of the history, go to the home of `entry`, one after the other,
    until that has answered. A newer epoch begins anew, with its own home."""

    def __init__(self, site: Site, entry: TopicEntry, events: list[Event]) -> None:
        self.site = site
        self.entry = entry
        self.epoch = entry.epoch
        self.token = site.world.fresh()
        self.events = events
        self.sent = 0
        """How many of `events` the home has."""

    @property
    def is_done(self) -> bool:
        """Whether the home has all."""
        return self.sent == len(self.events)

    def push(self) -> None:
        """Send what comes next; again and again, as it may get lost."""
        if not self.is_done:
            site = self.site
            home = site.world.sites[self.entry.home]
            event = self.events[self.sent]
            site.send(home, home.on_salvage, self.epoch, site, self.token, self.sent, event)

    def salvaged(self, place: int) -> None:
        """The home has an event."""
        if place == self.sent:
            self.sent += 1
            self.push()


class Clearance:
    """What a log owes before it is thrown away, because nobody remembers its fork: the proof by
    enough members that they have as much."""

    def __init__(self, site: Site, entry: TopicEntry) -> None:
        self.site = site
        self.entry = entry
        self.epoch = entry.epoch
        self.token = site.world.fresh()
        self.states: dict[str, State] = {}

    def push(self) -> None:
        """Ask for proof; again and again."""
        site, sites = self.site, self.site.world.sites
        for name in self.entry.members:
            if name != site.name:
                site.send(sites[name], sites[name].on_ask, site, self.token)

    def told(self, state: State) -> bool:
        """A member is so far; whether the copy may be thrown away now."""
        self.states[state.site] = state
        return promotion.may_discard(self.site.state(), self.entry.members, self.states.values())
