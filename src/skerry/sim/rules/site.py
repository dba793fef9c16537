"""A site with its copy of the topic: a home, a replica, or something that was one.

Durable: the log, the copy's marks, what it left behind, `home_of`, the view of the entry. A crash
loses the rest: whom it follows, who follows it, publishers' sessions, leases, how far salvage had
come.

What a site does is decided by the newest entry that it sees:

    it is the home       → lead, if it has promised no later epoch; else begin that epoch
    it promised a later  → roll if the log is forked, and follow nobody
    its log is a home's  → roll: keep it up to the fork, and salvage the rest
    it is a member       → follow; if the copy is forked, do that first
    none of these        → drop the copy
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skerry.model import promotion
from skerry.model.fabric import TopicEntry
from skerry.model.promotion import Copy, State
from skerry.sim.rules.clearance import Clearance, Salvage
from skerry.sim.rules.network import Channel
from skerry.sim.rules.publisher import Publisher
from skerry.sim.rules.world import Asker, Event, World

if TYPE_CHECKING:
    from skerry.sim.rules.leader import Leader

TICK = 50
"""Milliseconds between two looks at what is unfinished."""
STALE = 100
"""Milliseconds without progress after which a replica opens its stream anew."""
LATE = 12
"""Milliseconds for which an engine may still store what a former home had sent."""
LEASE = 250
"""Milliseconds for which a home stays frozen for somebody else's sake."""


class Site(Asker):
    """One site."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world)
        self.log: list[Event] = []
        self.index: dict[Event, int] = {}
        self.copy = Copy(name)
        self.tails: list[tuple[int, list[Event]]] = []
        """What was left behind and is to be salvaged, with the index before it. The earlier in the
        log, the earlier it was published, whenever it was left."""
        self.home_of = 0
        """The epoch whose home wrote this log; 0: the log is a copy."""
        self.kept_of_home = 0
        """How much of a copy is a segment that a home here wrote."""
        self.beside: list[Event] = []
        self.beside_end = 0
        """What a home here wrote before the copy was begun anew, and how much of it is history."""
        self.forget()

    def forget(self) -> None:
        copy = self.copy
        self.copy = Copy(self.name, copy.label, copy.sealed, copy.root, len(self.log))
        self.copy.aside = copy.aside
        self.guest_of = 0
        """The epoch that this site was asked to copy without being a member."""
        self.followers: dict[str, tuple[int, Channel]] = {}
        self.sessions: dict[str, tuple[int, int]] = {}
        """For each publisher the session, and the place in it that comes next."""
        self.session = 0
        """The follow session; data of others is not taken."""
        self.base = 0
        self.joining = 0
        self.opened = 0
        self.clearance: Clearance | None = None
        self.salvage: Salvage | None = None
        self.wiping = False
        self.lease = 0
        """When a frozen home may begin the next epoch by itself."""

    def start(self) -> None:
        self.reconcile()
        self.after(self.world.jitter(TICK), self._tick)

    def _tick(self) -> None:
        self.after(self.world.jitter(TICK), self._tick)
        self.reconcile()
        self._salvage()
        if self.clearance:
            self.clearance.push()
        elif not self.copy.is_joined or self.home_of:
            return
        elif self.clock.now - self.opened >= STALE:
            self._open()
            self._report()

    def changed(self, entry: TopicEntry) -> None:
        self.reconcile()

    def reconcile(self) -> None:
        """Do what the newest entry asks for. Safe to call at any time."""
        entry = self.view.entry
        if entry is None or self.wiping:
            return
        if (aside := self.copy.aside) is not None:
            end = promotion.fork_of(aside.root, aside.last, entry.lineage)
            self.beside_end = min(self.beside_end, end)
        else:
            self._leave_beside()
        if entry.home == self.name:
            self._lead(entry)
        elif self.copy.sealed > entry.epoch:
            self._keep_promise(entry)
        elif self.home_of:
            self._roll(entry)
        elif self._is_needed(entry):
            self._follow(entry)
        elif self.copy.root < entry.epoch or not self.world.driver.guests_stay:
            self.copy.aside = None  # what is no member's counts for nothing
            self._leave_beside()
            self.rebuild(entry)

    def _is_needed(self, entry: TopicEntry) -> bool:
        return self.name in entry.members or self.guest_of == entry.epoch

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
        if self.home_of != entry.epoch:
            self.world.oracle.led(self, entry)
        self.clearance = None
        if not self.copy.lead(entry.lineage):
            self.world.oracle.fail(f"{self} cannot lead epoch {entry.epoch}")
        self.home_of = entry.epoch
        self.followers.clear()
        self.sessions.clear()
        self.lease = 0

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
            self.joining = self.world.fresh()
            if not self.world.driver.join_when_over:
                self.copy.join(len(self.log), entry.lineage)
            self.after(self.world.jitter(LATE), self._join, entry, self.joining)
        else:
            self._roll(entry)

    def _join(self, entry: TopicEntry, joining: int) -> None:
        """The engine asks where to read: all that was under way is stored."""
        if joining != self.joining or self.copy.following != entry.epoch or self.home_of:
            return
        if self.copy.is_joined or self.copy.join(len(self.log), entry.lineage):
            self._open()
            self._report()
        else:
            self._roll(entry)

    def _keep_promise(self, entry: TopicEntry) -> None:
        """An epoch is promised that nobody has begun, as far as is known here."""
        forked = promotion.is_forked(self.copy.root, len(self.log), entry.lineage)
        if forked and self._is_needed(entry):
            self._roll(entry)
        else:
            self._stuck(entry)

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

    def _roll(self, entry: TopicEntry) -> None:
        """Keep the log up to the fork, and go on behind that."""
        self.copy.last = len(self.log)
        rolled = self.copy.twin()
        end = rolled.roll(entry.lineage) if self.world.rolls else None
        beside = self.world.thins and end is not None and end < len(self.log)
        if self.copy.sealed > entry.epoch and (end is None or beside):
            self._stuck(entry)  # an election may count on it as it is
            return
        if end is None:
            self._clear(entry)
            return
        if beside:
            if self.copy.aside is None:
                self._leave_beside()
                self.beside, self.beside_end = self.log[: self.written], end
            self.copy.begin_beside()
            if not self.world.driver.aside_counts:
                self.copy.aside = None
            end = 0
        else:
            self._leave(end, self.log[end : self.written])
            self.copy = rolled
        tail = self.log[end:]
        self.kept_of_home = min(end, self.written)
        self.world.network.note(f"{self} rolls at {end} and leaves {tail}")
        del self.log[end:]
        for event in tail:
            del self.index[event]
        self.home_of = self.session = 0
        self.copy.following = 0
        self.clearance = None
        self.reconcile()

    @property
    def written(self) -> int:
        """Up to which index the log is as a home here wrote it, with the conditions that a copy
        lacks. What lies beyond came from another home, which brings it itself."""
        return len(self.log) if self.home_of else min(self.kept_of_home, len(self.log))

    def _leave(self, end: int, tail: list[Event]) -> None:
        """Put aside what may be no part of the history."""
        if tail and self.world.driver.salvage and (end, tail) not in self.tails:
            self.tails.append((end, tail))
            self.tails.sort(key=lambda tail: tail[0])
            self.salvage = None

    def _leave_beside(self) -> None:
        """The copy that was begun anew has as much as what lay beside it."""
        self._leave(self.beside_end, self.beside[self.beside_end :])
        self.beside = []

    def _salvage(self) -> None:
        """What was left behind goes home, the oldest first."""
        entry = self.view.entry
        if entry is None or not self.tails:
            return
        if self.salvage is None or self.salvage.epoch != entry.epoch:
            self.salvage = Salvage(self, entry, self.tails[0][1])
        self.salvage.push()

    def _clear(self, entry: TopicEntry) -> None:
        if self.clearance is None or self.clearance.epoch != entry.epoch:
            self.clearance = Clearance(self, entry)
            self._leave(0, self.log[: self.written])
            self.clearance.push()

    def on_salvaged(self, token: int, place: int) -> None:
        """The new home holds an event that was sent to it."""
        if self.salvage and self.salvage.token == token:
            self.salvage.salvaged(place)
        if self.salvage and self.salvage.is_done:
            self.tails.pop(0)
            self.salvage = None

    def on_state(self, token: int, state: State) -> None:
        """Another member tells how far it is."""
        if self.clearance and self.clearance.token == token and self.clearance.told(state):
            self._leave(0, self.log[: self.written])
            self.rebuild(self.clearance.entry)

    def rebuild(self, entry: TopicEntry) -> None:
        """Throw the copy away and begin anew. The marks go first: a crash in between must leave a
        copy that claims nothing, not one that claims what is gone."""
        if self.wiping or not (self.log or self.copy.root or self.home_of):
            return
        label, root = self.copy.label, self.copy.root
        if not self.copy.rebuild(entry.epoch):
            self._stuck(entry)
            return
        self.world.network.note(f"{self} discards {self.log}")
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
        self.home_of = self.kept_of_home = 0
        self.log.clear()
        self.index.clear()
        self.copy.label = self.copy.root = self.copy.last = 0
        self.copy.following = self.session = 0
