"""A leader: replaces a home that it believes lost, and moves one on request.

Any number of them may run at once. Each acts on its own, possibly old, view of the entry; the
store takes the first that still fits.
"""

from __future__ import annotations

from skerry.model import promotion
from skerry.model.fabric import TopicEntry
from skerry.model.promotion import State
from skerry.sim.rules.world import Asker, World

TICK = 40
"""Milliseconds between two questions to the home whether it is there."""
SUSPICION = 110
"""Milliseconds of silence after which the home counts as lost."""
ELECTION = 80
"""Milliseconds for which a leader waits for members' answers."""
MOVE = 600
"""Milliseconds after which a leader gives up a planned move."""


class Election:
    """Members are asked to seal; the most advanced becomes home."""

    def __init__(self, leader: Leader, revision: int, entry: TopicEntry) -> None:
        self.leader = leader
        self.revision = revision
        self.entry = entry
        self.token = leader.world.fresh()
        self.answers: dict[str, State] = {}
        self.hasty = leader.world.random.random() < 0.5
        """Whether to decide with the first answers that are enough."""

    def begin(self) -> None:
        """Ask everybody but the home."""
        leader = self.leader
        for name in self.entry.members[1:]:
            site = leader.world.sites[name]
            leader.send(site, site.on_seal, self.entry.epoch + 1, leader, self.token)
        leader.after(leader.world.jitter(ELECTION), leader.on_time_over, self.token)

    def sealed(self, state: State) -> bool:
        """An answer has come; whether the election is over."""
        self.answers[state.site] = state
        everybody = len(self.answers) == len(self.entry.members) - 1
        return (everybody or self.hasty) and self.decide()

    def decide(self) -> bool:
        """Write the next epoch, if enough have answered."""
        leader = self.leader
        entry = self.entry
        decision = promotion.elect(entry.lineage, entry.members, self.answers.values())
        if decision is None:
            return False
        following = leader.world.next_entry(entry, decision.home, decision.members, decision.base)
        leader.write(self.revision, following)
        return True


class Move:
    """Home or members are changed without loss of time: the new members copy the log, the home
    freezes, and when enough of them have everything, they take over."""

    def __init__(
        self,
        leader: Leader,
        revision: int,
        entry: TopicEntry,
        home: str,
        members: tuple[str, ...],
        precopy: bool,
    ) -> None:
        self.leader = leader
        self.revision = revision
        self.entry = entry
        self.home = home
        self.members = members
        self.precopy = precopy
        """Whether the new members get the log before the home freezes."""
        self.token = leader.world.fresh()
        self.deadline = leader.clock.now + MOVE
        self.last: int | None = None
        """Where the frozen home's log ends."""
        self.states: dict[str, State] = {}

    def push(self) -> None:
        """Ask again for what is missing."""
        leader, sites = self.leader, self.leader.world.sites
        epoch = self.entry.epoch
        waiting = False
        for name in self.members:
            site = sites[name]
            if name not in self.entry.members:
                leader.send(site, site.on_precopy, epoch)
                waiting = waiting or name not in self.states
            leader.send(site, site.on_ask, leader, self.token)
        if self.last is None and not (self.precopy and waiting):
            home = sites[self.entry.home]
            leader.send(home, home.on_freeze, epoch, leader, self.token)

    def told(self, state: State) -> bool:
        """A site is so far; whether the move is over."""
        self.states[state.site] = state
        return self.decide()

    def decide(self) -> bool:
        """Write the next epoch, if enough of the new members have the frozen log."""
        members = (self.home, *[name for name in self.members if name != self.home])
        if self.last is None or not promotion.may_cut_over(
            members, self.states, self.entry.epoch, self.last
        ):
            return False
        leader = self.leader
        following = leader.world.next_entry(self.entry, self.home, self.members, self.last)
        leader.world.oracle.moves += 1
        leader.write(self.revision, following)
        return True


class Leader(Asker):
    """Does one thing at a time, and forgets it in a crash."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world)
        self.skew = 0
        """Milliseconds by which its clock is ahead."""
        self.forget()

    def forget(self) -> None:
        self.job: Election | Move | None = None
        self.heard = 0
        """When, by its own clock, the home was heard of last."""

    def start(self) -> None:
        self.heard = self.clock.now + self.skew
        self.after(self.world.jitter(TICK), self._tick)

    def changed(self, entry: TopicEntry) -> None:
        self.job = None
        self.heard = self.clock.now + self.skew

    def write(self, revision: int, entry: TopicEntry) -> None:
        """Try to change the entry."""
        store = self.world.store
        self.send(store, store.on_write, self.name, revision, entry)

    def _tick(self) -> None:
        self.after(self.world.jitter(TICK), self._tick)
        entry = self.view.entry
        if entry is None:
            return
        home = self.world.sites[entry.home]
        self.send(home, home.on_ping, self)
        if isinstance(self.job, Move):
            self.job.push()
            if self.clock.now > self.job.deadline:
                self.job = None
        elif self.clock.now + self.skew - self.heard > SUSPICION:
            self.suspect()

    def on_pong(self, site: str) -> None:
        """A home is there."""
        if self.view.entry and self.view.entry.home == site:
            self.heard = self.clock.now + self.skew

    def suspect(self) -> None:
        """Replace the home, rightly or wrongly."""
        if self.job is None and self.view.entry:
            self.job = Election(self, self.view.revision, self.view.entry)
            self.job.begin()

    def move(self, home: str, members: tuple[str, ...], precopy: bool) -> None:
        """Give the topic another home, or other members."""
        if self.view.entry:
            self.job = Move(self, self.view.revision, self.view.entry, home, members, precopy)
            self.job.push()

    def on_sealed(self, token: int, state: State) -> None:
        """A member has promised, and told how far it is."""
        job = self.job
        if isinstance(job, Election) and job.token == token and job.sealed(state):
            self.job = None

    def on_time_over(self, token: int) -> None:
        """The time for answers to an election is over."""
        if isinstance(self.job, Election) and self.job.token == token:
            self.job.decide()
            self.job = None

    def on_frozen(self, token: int, last: int) -> None:
        """The home has frozen, and its log ends at `last`."""
        if isinstance(self.job, Move) and self.job.token == token:
            self.job.last = last
            if self.job.decide():
                self.job = None

    def on_state(self, token: int, state: State) -> None:
        if isinstance(self.job, Move) and self.job.token == token and self.job.told(state):
            self.job = None
