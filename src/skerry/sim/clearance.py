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


class Salvage:
    """What a log of a former home holds beyond the fork goes to the home of `entry`, one event
    after the other in the log's order, until that has answered. A replica has nothing to send: the
    home that it followed has all of it. A newer epoch begins anew, with its own fork and home.
    """

    def __init__(self, site: Site, entry: TopicEntry, log: list[Event], home_of: int) -> None:
        self.site = site
        self.entry = entry
        self.epoch = entry.epoch
        self.token = site.world.fresh()
        self.events: list[Event] = []
        driver = site.world.driver
        if home_of and driver.salvage:
            smallest = driver.fork_is_smallest
            fork = fork_of(home_of, entry.lineage) if smallest else entry.base
            self.events = log[fork:]
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


class Clearance(Salvage):
    """What a log owes before it is thrown away: salvage, and then the proof by enough members that
    they have as much. A member does not wait for ever: it puts its log aside."""

    def __init__(self, site: Site, entry: TopicEntry) -> None:
        super().__init__(site, entry, site.log, site.home_of)
        self.states: dict[str, State] = {}
        self.asked = 0
        """How often members were asked for proof."""

    def push(self) -> None:
        """Send what comes next, then ask for proof; again and again."""
        site, sites = self.site, self.site.world.sites
        self.asked += 1
        if self.asked > site.world.patience and site.name in self.entry.members:
            site.rebuild(self.entry, keep=True)  # what only it has is brought with the reserve
            return
        super().push()
        if not self.is_done:
            return
        for name in self.entry.members:
            if name != site.name:
                site.send(sites[name], sites[name].on_ask, site, self.token)

    def told(self, state: State) -> bool:
        """A member is so far; whether the copy may be thrown away now."""
        self.states[state.site] = state
        return self.is_done and promotion.may_discard(
            self.site.state(), self.entry.members, self.states.values()
        )
