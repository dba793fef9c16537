"""Sees everything at once, and says what must never be.

It counts for itself: nothing here asks the core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skerry.model.fabric import TopicEntry
from skerry.model.promotion import State
from skerry.model.topic import Ack
from skerry.sim.rules.world import Event, World

if TYPE_CHECKING:
    from skerry.sim.rules.site import Site


class Violation(Exception):
    """Something that must never be."""


class Oracle:
    """An event counts as *committed* once a majority of its epoch's members has it: the home, and
    replicas that said so. From then on somebody may have been promised it, however late the
    messages are."""

    def __init__(self, world: World, entry: TopicEntry) -> None:
        self.world = world
        self.entries = {entry.epoch: entry}
        self.histories: dict[int, list[Event]] = {entry.epoch: []}
        """The log of each epoch's home."""
        self.committed: list[Event] = []
        """The committed events by index."""
        self.level: dict[Event, Ack] = {}
        """The acknowledged events."""
        self.salvaged = 0
        self.elections = 0
        self.moves = 0
        self._reports: dict[int, dict[str, int]] = {}

    def fail(self, text: str) -> None:
        """Stop here."""
        self.world.network.note(f"VIOLATION {text}")
        raise Violation(text)

    # What happens.

    def written(self, old: TopicEntry, new: TopicEntry) -> None:
        """The entry has changed."""
        if new.epoch != old.epoch + 1:
            self.fail(f"epoch {new.epoch} after {old.epoch}")
        former = self.world.sites[old.home]
        if former.stays_open(old):
            self.fail(f"{former} is replaced, and its members would let it stay open")
        self.entries[new.epoch] = new
        if new.home != old.home:
            self.elections += 1
        site = self.world.sites[new.home]
        self.holds(site, f"becomes home of epoch {new.epoch}")
        self.histories[new.epoch] = site.log[: new.base]

    def led(self, site: Site, entry: TopicEntry) -> None:
        """A site has become home."""
        if site.log[: entry.base] != self.histories[entry.epoch]:
            self.fail(f"{site} leads epoch {entry.epoch} with another log than it was chosen for")
        self.histories[entry.epoch] = list(site.log)
        self._alone(entry.epoch)

    def appended(self, epoch: int, event: Event) -> None:
        """A home has taken an event."""
        self.histories[epoch].append(event)
        self._alone(epoch)

    def _alone(self, epoch: int) -> None:
        if len(self.entries[epoch].members) == 1:
            self._commit(epoch, len(self.histories[epoch]))

    def copied(self, site: Site, epoch: int, upto: int) -> None:
        """A copy follows the home of `epoch`: is it a beginning of that home's log?"""
        if site.log[:upto] != self.histories[epoch][:upto]:
            self.fail(f"{site} differs from the home of epoch {epoch} which it follows")

    def reported(self, epoch: int, state: State) -> None:
        """A replica has confirmed what it holds."""
        entry = self.entries[epoch]
        if state.site not in entry.members[1:]:
            return
        reports = self._reports.setdefault(epoch, {})
        if reports.get(state.site, 0) >= state.last:
            return
        reports[state.site] = state.last
        others = len(entry.members) // 2
        if len(reports) >= others:
            self._commit(epoch, sorted(reports.values(), reverse=True)[others - 1])

    def _commit(self, epoch: int, upto: int) -> None:
        history = self.histories[epoch]
        both = min(upto, len(self.committed))
        if history[:both] != self.committed[:both]:
            self.fail(f"epoch {epoch} confirms other events than an epoch before")
        self.committed += history[both:upto]

    def confirmed(self, epoch: int, index: int, event: Event) -> None:
        """A publisher considers an event safe and has forgotten it."""
        if index > len(self.committed) or self.committed[index - 1] != event:
            self.fail(f"{event} confirmed at {index} in epoch {epoch}, but too few hold it")

    def acknowledged(self, event: Event, level: Ack) -> None:
        """Somebody was promised an event."""
        self.level.setdefault(event, level)

    def holds(self, site: Site, why: str) -> None:
        """A home holds everything that was committed before."""
        if site.log[: len(self.committed)] != self.committed:
            self.fail(f"{site} {why} and lacks committed events: {site.log} / {self.committed}")

    # How it ends.

    def unsettled(self) -> str | None:
        """Why the fabric has not converged; None: it has."""
        world = self.world
        entry = world.store.entry
        home = world.sites[entry.home]
        if not home.leads(entry.epoch):
            return f"{home} does not lead epoch {entry.epoch}"
        for publisher in world.publishers.values():
            if not publisher.lost and not publisher.idle():
                return f"{publisher} waits for {publisher.oldest}"
        for site in world.sites.values():
            if site.tails or site.beside:
                return f"{site} still has what it left behind"
            if site is home:
                continue
            if site.home_of:
                return f"{site} is still the home of epoch {site.home_of}"
            if site.name in entry.members:
                if site.copy.following != entry.epoch or site.copy.label != entry.epoch:
                    return f"{site} does not follow epoch {entry.epoch}"
                if len(site.log) < len(home.log):
                    return f"{site} is behind"
        return None

    def finish(self) -> None:
        """Check the end, when everything was healed and had its time."""
        why = self.unsettled()
        if why:
            self.fail(f"no end: {why}")
        world = self.world
        entry = world.store.entry
        log = world.sites[entry.home].log
        for name in entry.members:
            if world.sites[name].log != log:
                self.fail(f"{name} ends with {world.sites[name].log}, the home with {log}")
        if len(set(log)) != len(log):
            self.fail(f"twice in the log: {log}")
        there = set(log)
        for event, level in self.level.items():
            if event not in there:
                self.fail(f"{event} was acknowledged at {level} and is lost: {log}")
        for publisher in world.publishers:
            numbers = [event.number for event in log if event.publisher == publisher]
            if numbers != list(range(1, len(numbers) + 1)):
                self.fail(f"{publisher} out of order: {numbers}")
