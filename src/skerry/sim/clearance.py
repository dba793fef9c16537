"""What a site owes before it throws a copy away that is no part of the history any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skerry.model import promotion
from skerry.model.fabric import TopicEntry
from skerry.model.promotion import Lineage, State
from skerry.sim.world import Event

if TYPE_CHECKING:
    from skerry.sim.site import Site


def fork_of(epoch: int, lineage: Lineage) -> int:
    """How much of the log of a former home of `epoch` is part of the history: no more than the
    smallest base since. If epochs in between are forgotten, nothing is sure to be."""
    if epoch < lineage[0][0] - 1:
        return 0
    return min(base for later, base in lineage if later > epoch)


class Clearance:
    """For one epoch; a newer one begins anew, with its own fork and its own home.

    A former home first sends each event beyond the fork to the home, one after the other in the
    log's order, until that has answered. A replica has nothing to send: the home that it followed
    has all of it. Then both wait until enough members prove at least as much.
    """

    def __init__(self, site: Site, entry: TopicEntry) -> None:
        self.site = site
        self.entry = entry
        self.epoch = entry.epoch
        self.token = site.world.fresh()
        self.events: list[Event] = []
        driver = site.world.driver
        if site.home_of and driver.salvage:
            smallest = driver.fork_is_smallest
            fork = fork_of(site.home_of, entry.lineage) if smallest else entry.base
            self.events = site.log[fork:]
        self.sent = 0
        """How many of `events` the home has."""
        self.states: dict[str, State] = {}

    def push(self) -> None:
        """Send what comes next; again and again, as it may get lost."""
        site, sites = self.site, self.site.world.sites
        if self.sent < len(self.events):
            home = sites[self.entry.home]
            event = self.events[self.sent]
            site.send(home, home.on_salvage, self.epoch, site, self.token, self.sent, event)
            return
        for name in self.entry.members:
            if name != site.name:
                site.send(sites[name], sites[name].on_ask, site, self.token)

    def salvaged(self, place: int) -> None:
        """The home has an event."""
        if place == self.sent:
            self.sent += 1
            self.push()

    def told(self, state: State) -> bool:
        """A member is so far; whether the copy may be thrown away now."""
        self.states[state.site] = state
        return self.sent == len(self.events) and promotion.may_discard(
            self.site.state(), self.entry.members, self.states.values()
        )
