"""A site with its copy of the topic: a home, a replica, or something that was one.

Durable: the log, the copy's marks, its reserve, `home_of`, the view of the entry. A crash loses
the rest: whom it follows, who follows it, publishers' sessions, leases, how far salvage had come.

What a site does is decided by the newest entry that it sees:

    it is the home       → lead, if it has promised no later epoch; else begin that epoch
    its log is a home's  → salvage, wait for clearance or put the log aside, rebuild
    it is a member       → follow; if the copy is forked, do that first
    none of these        → drop the copy
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skerry.model import promotion
from skerry.model.fabric import TopicEntry
from skerry.model.promotion import Copy, State
from skerry.sim.clearance import Clearance, Salvage
from skerry.sim.network import Channel
from skerry.sim.publisher import Publisher
from skerry.sim.world import Asker, Event, World

if TYPE_CHECKING:
    from skerry.sim.leader import Leader

TICK = 50
"""Milliseconds between two looks at what is unfinished."""
STALE = 100
"""Milliseconds without progress after which a replica opens its stream anew."""
LEASE = 250
"""Milliseconds for which a home stays frozen for somebody else's sake."""


class Site(Asker):
    """One site."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world)
        self.log: list[Event] = []
        self.index: dict[Event, int] = {}
        self.copy = Copy(name)
        self.kept: list[Event] = []
        """The events of the copy's reserve."""
        self.kept_of = 0
        """The epoch whose home wrote the reserve; 0: it was a copy."""
        self.home_of = 0
        """The epoch whose home wrote this log; 0: the log is a copy."""
        self.forget()

    def forget(self) -> None:
        copy = self.copy
        self.copy = Copy(self.name, copy.label, copy.sealed, copy.root, len(self.log), copy.reserve)
        self.guest_of = 0
        """The epoch that this site was asked to copy without being a member."""
        self.followers: dict[str, tuple[int, Channel]] = {}
        self.sessions: dict[str, tuple[int, int]] = {}
        """For each publisher the session, and the place in it that comes next."""
        self.session = 0
        """The follow session; data of others is not taken."""
        self.base = 0
        self.opened = 0
        self.clearance: Clearance | None = None
        self.release: Salvage | None = None
        """What goes home before the reserve goes."""
        self.wiping = False
        self.lease = 0
        """When a frozen home may begin the next epoch by itself."""

    def start(self) -> None:
        self.reconcile()
        self.after(self.world.jitter(TICK), self._tick)

    def _tick(self) -> None:
        self.after(self.world.jitter(TICK), self._tick)
        self.reconcile()
        self._release()
        if self.clearance:
            self.clearance.push()
        elif not self.copy.following or self.home_of:
            return
        elif self.clock.now - self.opened >= STALE:
            self._open()
            self._report()

    def changed(self, entry: TopicEntry) -> None:
        if self.world.driver.stop_first and self.copy.sealed < entry.epoch:
            self.copy.seal(entry.epoch)
        self.reconcile()

    def reconcile(self) -> None:
        """Do what the newest entry asks for. Safe to call at any time."""
        entry = self.view.entry
        if entry is None or self.wiping:
            return
        if entry.home == self.name:
            self._lead(entry)
        elif self.home_of:
            self._clear(entry)
        elif self.name in entry.members or self.guest_of == entry.epoch:
            self._follow(entry)
        elif self.copy.root < entry.epoch or not self.world.driver.guests_stay:
            self.rebuild(entry)

    # Home.

    def leads(self, epoch: int) -> bool:
        """Whether this site takes events for `epoch`."""
        return self.home_of == epoch == self.copy.following

    def stays_open(self, entry: TopicEntry) -> bool:
        """Whether this home would go on without the store, were it to ask all members now."""
        sealed = {name: self.world.sites[name].copy.sealed for name in entry.members}
        return self.leads(entry.epoch) and promotion.may_stay_open(
            entry.epoch, entry.members, sealed
        )

    def _lead(self, entry: TopicEntry) -> None:
        if self.leads(entry.epoch):
            return
        if self.copy.sealed > entry.epoch:
            self._begin_next(entry)
            return
        if self.copy.needs_reserve:
            self._restore()
        if self.home_of != entry.epoch:
            self.world.oracle.led(self, entry)
        self.clearance = None
        if not self.copy.lead(entry.lineage):
            self.world.oracle.fail(f"{self} cannot lead epoch {entry.epoch}")
        self.home_of = entry.epoch
        self.followers.clear()
        self.sessions.clear()
        self.lease = 0

    def _restore(self) -> None:
        """Have the reserve as the log again."""
        self.log = self.kept
        self.kept = []
        self.home_of = self.kept_of
        self.index = {event: place for place, event in enumerate(self.log, 1)}
        self.copy.restore()

    @property
    def counted(self) -> list[Event]:
        """The log that an election counts."""
        return self.kept if self.copy.needs_reserve else self.log

    def _begin_next(self, entry: TopicEntry) -> None:
        """This site is home and has promised the next epoch: begin it, unless somebody else may
        still do so. It leads when it sees the entry."""
        if not self.lease:
            self.lease = self.clock.now + LEASE
        if self.clock.now >= self.lease:
            self._write_next(entry)

    def _write_next(self, entry: TopicEntry) -> None:
        following = self.world.next_entry(entry, self.name, entry.members, len(self.log))
        store = self.world.store
        self.send(store, store.on_write, self.name, self.view.revision, following)

    def _append(self, event: Event) -> int:
        index = self.index.get(event)
        if index is None:
            self.log.append(event)
            index = self.index[event] = self.copy.last = len(self.log)
            self.world.oracle.appended(self.home_of, event)
            for name, (session, channel) in self.followers.items():
                self._stream(name, session, channel, index)
        return index

    def _stream(self, name: str, session: int, channel: Channel, index: int) -> None:
        site = self.world.sites[name]
        event = self.log[index - 1]
        self.world.network.stream(channel, self, site, site.on_data, session, index, event)

    def on_publish(
        self, epoch: int, publisher: Publisher, session: int, place: int, event: Event
    ) -> None:
        """A publisher sends an event to the home of `epoch`."""
        known, due = self.sessions.get(publisher.name, (0, 0))
        if session < known:
            return
        if session > known:
            due = 0
        gap = place > due and self.world.driver.no_gaps
        if gap or not self.leads(epoch):
            self.send(publisher, publisher.on_refused, session)
            return
        self.sessions[publisher.name] = (session, max(due, place + 1))
        index = self._append(event)
        self.send(publisher, publisher.on_acked, session, event.number, index)

    def on_salvage(self, epoch: int, sender: Site, token: int, place: int, event: Event) -> None:
        """A former home sends an event which this home may lack."""
        if self.leads(epoch):
            lacked = event not in self.index
            self._append(event)
            self.world.oracle.salvaged += lacked
            self.send(sender, sender.on_salvaged, token, place)

    def on_mirror(self, epoch: int, follower: Site, session: int, last: int) -> None:
        """A replica wants the events after `last`. A frozen home still gives them."""
        if self.home_of != epoch:
            return
        channel = Channel()
        self.followers[follower.name] = (session, channel)
        for index in range(last + 1, len(self.log) + 1):
            self._stream(follower.name, session, channel, index)

    def on_freeze(self, epoch: int, asker: Leader, token: int) -> None:
        """Take no more events in `epoch`, for as long as the lease lasts."""
        if self.home_of != epoch or (self.view.entry and self.view.entry.epoch != epoch):
            return
        if self.world.driver.freeze_is_a_promise:
            self.copy.seal(epoch + 1)
        self.copy.following = 0
        self.lease = self.clock.now + LEASE
        self.send(asker, asker.on_frozen, token, len(self.log))

    def on_stuck(self, sealed: int) -> None:
        """A member has promised an epoch that nobody began: begin it."""
        entry = self.view.entry
        if entry and self.leads(entry.epoch) and sealed > entry.epoch:
            self.copy.seal(entry.epoch + 1)
            self.lease = self.clock.now
            self._write_next(entry)

    # Replica.

    def _follow(self, entry: TopicEntry) -> None:
        if self.copy.following == entry.epoch:
            return
        if self.copy.follow(entry.lineage):
            self.clearance = None
            self.base = entry.base
            self._open()
            self._report()
        elif self.copy.sealed > entry.epoch:
            self._stuck(entry)
        else:
            self._clear(entry)

    def _stuck(self, entry: TopicEntry) -> None:
        if self.world.driver.unstick:
            home = self.world.sites[entry.home]
            self.send(home, home.on_stuck, self.copy.sealed)

    def _open(self) -> None:
        assert self.view.entry
        self.opened = self.clock.now
        self.session = self.world.fresh()
        home = self.world.sites[self.view.entry.home]
        self.send(home, home.on_mirror, self.copy.following, self, self.session, len(self.log))

    def on_data(self, session: int, index: int, event: Event) -> None:
        """The home's next event. A copy that is sealed takes it, too: the engine does not stop
        for a promise."""
        if self.home_of or self.wiping or index != len(self.log) + 1:
            return
        if session != self.session and self.world.driver.data_of_this_session:
            return
        self.opened = self.clock.now
        self.log.append(event)
        self.index[event] = index
        self.copy.advance(index, self.base)
        self._report()

    def _report(self) -> None:
        state = self.copy.report()
        if state is None or self.home_of:
            return
        self.world.oracle.copied(self, self.copy.root, state.last)
        self.world.oracle.reported(state.label, state)
        for publisher in self.world.publishers.values():
            self.send(publisher, publisher.on_report, state)

    def on_precopy(self, epoch: int) -> None:
        """Copy the topic without being a member: it may become one."""
        self.guest_of = epoch
        self.reconcile()

    # Anybody.

    def on_ping(self, asker: Leader) -> None:
        """Say that this site is there."""
        self.send(asker, asker.on_pong, self.name)

    def on_seal(self, epoch: int, asker: Leader, token: int) -> None:
        """Promise to help no epoch before `epoch`, and tell how far the copy is."""
        state = self.copy.seal(epoch)
        if state is not None:
            self.send(asker, asker.on_sealed, token, state)

    def on_ask(self, asker: Asker, token: int) -> None:
        """Tell how far the copy is, and promise nothing."""
        self.send(asker, asker.on_state, token, self.state())

    def state(self) -> State:
        """How far the copy is."""
        self.copy.last = len(self.log)
        return self.copy.state()

    # Leaving a history.

    def _release(self) -> None:
        """The reserve is of no use once the copy has reached a base, or the site is no member any
        more; what only a former home had beyond the fork goes to the home first."""
        entry = self.view.entry
        if entry is None or self.copy.reserve is None:
            return
        if not self.copy.label and self.name in entry.members:
            return
        if self.release is None or self.release.epoch != entry.epoch:
            self.release = Salvage(self, entry, self.kept, self.kept_of)
        self.release.push()
        if self.release.is_done or not self.world.driver.release_salvages:
            self.kept = []
            self.copy.reserve = self.release = None

    def _clear(self, entry: TopicEntry) -> None:
        if self.copy.reserve is not None and self.copy.label:
            return  # one at a time
        if self.clearance is None or self.clearance.epoch != entry.epoch:
            self.clearance = Clearance(self, entry)
            self.clearance.push()

    def on_salvaged(self, token: int, place: int) -> None:
        """The new home holds an event that was sent to it."""
        for work in (self.clearance, self.release):
            if work and work.token == token:
                work.salvaged(place)

    def on_state(self, token: int, state: State) -> None:
        """Another member tells how far it is."""
        if self.clearance and self.clearance.token == token and self.clearance.told(state):
            self.rebuild(self.clearance.entry)

    def rebuild(self, entry: TopicEntry, keep: bool = False) -> None:
        """Throw the copy away, or put it aside with `keep`, and begin anew. The marks go first: a
        crash in between must leave a copy that claims nothing, not one that claims what is gone."""
        if self.wiping or not (self.log or self.copy.root or self.home_of):
            return
        label, root = self.copy.label, self.copy.root
        if not self.copy.rebuild(entry.epoch, keep):
            self._stuck(entry)
            return
        if keep and label:
            self.kept = list(self.log)
            self.kept_of = self.home_of
        self.world.network.note(f"{self} {'puts aside' if keep else 'discards'} {self.log}")
        self.clearance = None
        self.wiping = True
        if not self.world.driver.marks_first:
            self._empty()
            self.copy.label, self.copy.root = label, root
        self.after(self.world.jitter(10), self._wiped)

    def _wiped(self) -> None:
        self.wiping = False
        self._empty()
        self.reconcile()

    def _empty(self) -> None:
        self.home_of = 0
        self.log.clear()
        self.index.clear()
        self.copy.label = self.copy.root = self.copy.last = 0
        self.copy.following = self.session = 0
