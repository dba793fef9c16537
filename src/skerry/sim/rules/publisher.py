"""A publisher: numbers its events, and keeps each until enough members hold it."""

from __future__ import annotations

from skerry.model import promotion
from skerry.model.fabric import TopicEntry
from skerry.model.promotion import State
from skerry.model.topic import Ack
from skerry.sim.rules.world import Event, Inhabitant, World

WINDOW = 3
"""Events under way at once."""
TICK = 45
"""Milliseconds between two looks whether something has to be sent again."""
PATIENCE = 90
"""Milliseconds without progress after which a publisher tries again."""


class Publisher(Inhabitant):
    """Sends in sessions. A session belongs to one epoch; the home takes its events in order and
    without gaps. Whatever goes wrong, a new session begins with the oldest event that the home of
    that epoch has not acknowledged; the others follow when that one was."""

    def __init__(self, name: str, world: World, level: Ack, total: int) -> None:
        super().__init__(name, world)
        self.level = level
        self.total = total
        self.lost = False
        """Whether it has crashed for ever."""
        self.produced = 0
        self.oldest = 1
        """The oldest event that is not confirmed."""
        self.acked: dict[int, int] = {}
        """Indexes that the home of this epoch has given to events since `oldest`."""
        self.reports: dict[str, State] = {}
        self.session = 0
        self.first = 1
        """The event that this session began with, …"""
        self.next = 1
        """… and the one to send next."""
        self.progress = 0

    def start(self) -> None:
        self.after(self.world.jitter(30), self._produce)
        self.after(self.world.jitter(TICK), self._tick)

    def forget(self) -> None:
        self.lost = True

    def idle(self) -> bool:
        """Whether everything was published and confirmed."""
        return self.oldest > self.total

    def _produce(self) -> None:
        self.produced += 1
        self._pump()
        if self.produced < self.total:
            # Sometimes a burst, sometimes a silence.
            self.after(1 + int(self.world.random.random() ** 3 * 400), self._produce)

    def _tick(self) -> None:
        if not self.idle():
            self.after(self.world.jitter(TICK), self._tick)
        waiting = self._unacked() < self.next
        if waiting and self.clock.now - self.progress > PATIENCE:
            self._begin(self._unacked())

    def _unacked(self) -> int:
        number = self.oldest
        while number in self.acked:
            number += 1
        return number

    def changed(self, entry: TopicEntry) -> None:
        self.acked.clear()
        self._begin(self.oldest)

    def _begin(self, number: int) -> None:
        self.session = self.world.fresh()
        self.first = self.next = number
        self.progress = self.clock.now
        self._pump()

    def _pump(self) -> None:
        entry = self.view.entry
        if entry is None:
            return
        unacked = self._unacked()
        room = 1 if unacked == self.first else WINDOW
        home = self.world.sites[entry.home]
        while self.next <= self.produced and self.next < unacked + room:
            event = Event(self.name, self.next)
            place = self.next - self.first
            self.next += 1
            self.send(home, home.on_publish, entry.epoch, self, self.session, place, event)

    def on_refused(self, session: int) -> None:
        """The home does not take events now, or not this one."""
        if session == self.session:
            self.progress = min(self.progress, self.clock.now - PATIENCE)

    def on_acked(self, session: int, number: int, index: int) -> None:
        """The home holds an event."""
        if session != self.session and self.world.driver.acks_of_this_session:
            return
        if number < self.oldest:
            return
        self.acked[number] = index
        self.progress = self.clock.now
        if self.level == "home":
            self.world.oracle.acknowledged(Event(self.name, number), self.level)
        self._settle()
        self._pump()

    def on_report(self, state: State) -> None:
        """A replica tells how far it is."""
        known = self.reports.get(state.site)
        if known is None or (state.label, state.last) > (known.label, known.last):
            self.reports[state.site] = state
            self._settle()

    def _settle(self) -> None:
        entry = self.view.entry
        if entry is None or not self.acked:
            return
        others = [self.reports[site] for site in entry.members[1:] if site in self.reports]
        if not self.world.driver.members_only:
            others = list(self.reports.values())
        held = max(self.acked.values())
        upto = promotion.confirmed(held, entry.epoch, len(entry.members), others)
        while self.oldest in self.acked and self.acked[self.oldest] <= upto:
            event = Event(self.name, self.oldest)
            index = self.acked.pop(self.oldest)
            self.oldest += 1
            self.next = max(self.next, self.oldest)
            self.world.oracle.confirmed(entry.epoch, index, event)
            if self.level == "quorum":
                self.world.oracle.acknowledged(event, self.level)
