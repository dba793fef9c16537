"""Who may be a topic's home: the rules, without any I/O.

A topic has *members*: sites whose copies count. One of them is the home. Its directory entry
carries an *epoch*, which grows whenever home or members change, and a *base*: the last index of
the epoch before, which the new home had when it took over.

Two numbers rule everything. An event is acknowledged at level `quorum` once `write_quorum` members
hold it. A lost home is replaced only after `read_quorum` members were asked how far they are. Any
two such sets share a member, so the most advanced of those asked holds every such event.

Each member's copy has three marks, written down before they matter:

- `root`: the epoch whose history the copy's events belong to: that of the home whose events it
  took last. A copy that is pointed at another home may still store what the former one had sent, so
  this changes only when that is over (`Copy.join`).
- `label`: the newest epoch whose base the copy has reached while following that epoch's home. A
  copy under rebuild has label 0: it holds little, whatever its last index says.
- `sealed`: the epoch that the copy has promised not to help any more. It follows no home of a
  lower epoch and confirms nothing for it, from the moment it has told how far it is.

So `(label, last)` compares copies, as the last term and index do in Raft: a higher label has the
whole history up to a later base.

When only the members change, the home *goes on* with the same log. What its copies had of it stays
history, also what they took beyond the base before they heard of the new epoch; and they need not
point at it anew.

A site whose copy is not part of the history any more (a former home, or one that took events
which the new home never had) *rolls*: it keeps what is, up to the fork, and goes on behind that as
a copy. It counts at once, for an election never counts more of it (`elect`). What lies beyond the
fork no quorum had; it is brought to the new home, and goes when that has it.

Where a log keeps the last events of each sub-topic alone, those beyond the fork have removed others
that are history. So its site begins anew *beside* it: a copy from the first event on. Until that
has reached a base, the former log is kept and counts as ever (`Copy.aside`); it leads only if
nobody else can, and with all that it has.

Where the fork is, the lineage tells. A copy from before all that it remembers must be rebuilt. Its
site throws it away only when `write_quorum` other members prove at least as much. Until then it
counts, frozen as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from skerry.model.fabric import Step, TopicEntry

Lineage = Sequence[Step]
"""The epochs of a topic, the oldest kept first, the current one last."""

LINEAGE_KEPT = 64
"""Epochs that a topic's entry remembers. A copy that missed more of them is rebuilt."""


class State(msgspec.Struct, frozen=True):
    """How far a member's copy is."""

    site: str
    label: int
    last: int
    root: int = 0
    young: bool = False
    """Whether its engine started so lately that it has forgotten ids which publishers remember."""
    split: bool = False
    """Whether the log is in several streams: it takes time until this site can lead with it."""
    count: int = 0
    """How many events the copy holds."""
    segment: int = 0
    """The number of the stream that this site would lead with; see `skerry.log.segments`."""
    full: bool = False
    """Whether its disk is, or hangs, so that it could not lead."""
    doubted: bool = False
    """Whether the site knows that its data folder is an older one: it held more than it says."""
    thinned: bool = False
    """Whether events here have taken the place of earlier ones, so that the log cannot be cut."""


class Decision(msgspec.Struct, frozen=True):
    """The outcome of an election: the next epoch."""

    home: str
    epoch: int
    base: int
    members: tuple[str, ...]


def write_quorum(members: int) -> int:
    """How many members, the home included, hold an event acknowledged at level `quorum`."""
    return members // 2 + 1


def read_quorum(members: int) -> int:
    """How many members must be asked before a lost home is replaced."""
    return members - write_quorum(members) + 1


def elect(
    lineage: Lineage,
    members: Sequence[str],
    states: Iterable[State],
    preferred: Sequence[str] = (),
    barred: Iterable[str] = (),
    avoided: Collection[str] = (),
) -> Decision | None:
    """Choose the home of the epoch after that of `lineage` from the members sealed for it.

    None: too few answered, all of them are under rebuild, or none of the best may lead. Among
    equals one that is not in `avoided` wins, then one whose log is in one piece, then one that has
    not forgotten ids, then the earlier in `preferred`, then in `members`; a site in `barred`, or
    without room, counts as a witness and is not chosen. So does a forked copy, and only up to its
    fork: it may be chosen once it has rolled. One that cannot roll, for it is thinned out, leads if
    nobody else can, with all that it has: what lies beyond its fork is as if it were taken in the
    epoch that it leads, which begins at the fork, so that copies that hold others there notice. One
    that is in doubt cannot lead, and counts only beside the home of the epoch, which has whatever
    it may lack.
    """
    answered = {state.site: state for state in states if state.site in members}
    home_told = answered.get(members[0])
    if home_told is None or home_told.doubted:
        answered = {site: state for site, state in answered.items() if not state.doubted}
    if len(answered) < read_quorum(len(members)):
        return None
    out = {*barred, *(one.site for one in answered.values() if one.full or one.doubted)}
    rank = {}
    forked = set()
    for state in answered.values():
        last = state.last
        if is_forked(state.root, last, lineage):
            forked.add(state.site)
            if not state.thinned or is_forgotten(state.root, last, lineage):
                out.add(state.site)
            last = fork_of(state.root, last, lineage)
        rank[state.site] = (reached(state, lineage), last)
    best = max(rank.values())
    able = [site for site in rank if rank[site] == best and site not in out]
    if best[0] == 0 or not able:
        return None
    order = [*preferred, *members]

    def cost(site: str) -> tuple[bool, bool, bool, bool, int]:
        one = answered[site]
        return site in forked, site in avoided, one.split, one.young, order.index(site)

    home = min(able, key=cost)
    others = tuple(member for member in members if member != home)
    return Decision(home, lineage[-1].epoch + 1, best[1], (home, *others))


def may_stay_open(epoch: int, members: Sequence[str], sealed: Mapping[str, int]) -> bool:
    """Whether the home of `epoch` cannot have been replaced, as far as its members tell without
    the directory: so many are not sealed for a later epoch that too few are left for an election.
    `sealed` has the mark of each member that answered just now, the home included."""
    free = [site for site in members if site in sealed and sealed[site] <= epoch]
    return len(free) >= write_quorum(len(members))


def reached(state: State, lineage: Lineage) -> int:
    """The newest epoch up to its label whose base a copy has reached. One that lost its end, even
    what it was elected with, has not got what its label says."""
    if not any(step.epoch == state.label and step.base > state.last for step in lineage):
        return state.label
    earlier = [s.epoch for s in lineage if s.epoch < state.label and s.base <= state.last]
    return max(earlier, default=lineage[0].epoch - 1)


def may_open(
    home: State, base: int, members: Sequence[str], states: Iterable[State], is_trusted: bool
) -> bool | None:
    """Whether a home whose engine started anew may go on in its epoch, `home.label`, which began at
    `base`. False: its log was cut short, for it ends before that or a member is ahead of it. None:
    not known yet. Its own log is believed unless something speaks against it (`is_trusted`); then
    so many others must answer that one of them holds all that a quorum was to hold."""
    others = {state.site: state for state in states if state.site in members}
    others.pop(home.site, None)
    if len(members) == 1:
        return True  # nobody could tell
    if home.last < base:
        return False
    if any((other.label, other.last) > (home.label, home.last) for other in others.values()):
        return False
    sure = sum(not other.doubted for other in others.values())
    return True if is_trusted or sure >= read_quorum(len(members)) else None


def may_cut_over(
    members: Sequence[str], states: Mapping[str, State], epoch: int, last: int
) -> bool:
    """Whether the log of a home frozen in `epoch`, which ends at `last`, is safe with the next
    `members`: the first of them, who is to lead, holds it, and so many of them do that any election
    among them would find it. The same index in a copy of another epoch may be another event."""
    holding = {
        site for site, state in states.items() if state.label == epoch and state.last >= last
    }
    return members[0] in holding and len(holding & {*members}) >= write_quorum(len(members))


def may_discard(mine: State, members: Sequence[str], states: Iterable[State]) -> bool:
    """Whether a copy of an older epoch may be thrown away: so many other members prove at least as
    much that any election would find it without this one. Of two members this may be the only
    other. A copy under rebuild is never elected, and may always go.

    Equals are ordered by name. So of two copies at most one counts on the other, and the least of
    them all can always go: nobody waits in a circle.
    """
    if mine.label == 0:
        return True
    me = (mine.label, mine.last, mine.site)
    others = set(members) - {mine.site}
    above = {
        state.site
        for state in states
        if state.site in others and (state.label, state.last, state.site) > me
    }
    return len(above) >= min(write_quorum(len(members)), len(others))


def is_forked(root: int, last: int, lineage: Lineage) -> bool:
    """Whether a copy that followed epoch `root` holds events that are not part of the history:
    beyond the base of an epoch that began since. Epochs too old to be in `lineage` are not known,
    so a copy from before them counts as forked, unless it is empty."""
    if root >= lineage[-1].epoch:
        return False
    return is_forgotten(root, last, lineage) or fork_of(root, last, lineage) < last


def fork_of(root: int, last: int, lineage: Lineage) -> int:
    """The last index of a copy that followed epoch `root` which is part of the history, as far as
    `lineage` tells."""
    return min([last, *(s.base for s in lineage if s.epoch > root and not s.goes_on)])


def is_unbroken(root: int, lineage: Lineage) -> bool:
    """Whether the home of epoch `root` has gone on ever since, with the same log."""
    since = [step for step in lineage if step.epoch > root]
    return len(since) == lineage[-1].epoch - root and all(step.goes_on for step in since)


def is_forgotten(root: int, last: int, lineage: Lineage) -> bool:
    """Whether nobody remembers where a copy that followed epoch `root` left the history."""
    return last > 0 and root < lineage[0].epoch - 1


def confirmed(home_last: int, epoch: int, members: int, states: Iterable[State]) -> int:
    """The last index that `write_quorum` members hold, given what replicas reported for `epoch`.

    `home_last` is the last index that the home acknowledged. Reports of another epoch count for
    nothing: the same index may be another event there.
    """
    need = write_quorum(members) - 1
    if need == 0:
        return home_last
    lasts = sorted((state.last for state in states if state.label == epoch), reverse=True)
    return min(home_last, lasts[need - 1]) if len(lasts) >= need else 0


def next_epoch(
    entry: TopicEntry,
    members: tuple[str, ...],
    base: int,
    home: State | None = None,
    goes_on: bool = False,
) -> TopicEntry:
    """The entry of the epoch after `entry`; its home, the first of `members`, begins at `base`.
    `home` is what that told of itself; None: it stays where it was. `goes_on`: it was the home, and
    has lost nothing that it ever had."""
    lineage = (*entry.lineage, Step(entry.epoch + 1, base, goes_on))[-LINEAGE_KEPT:]
    return msgspec.structs.replace(
        entry,
        home=members[0],
        epoch=entry.epoch + 1,
        members=members,
        lineage=lineage,
        forgetful=(home is not None and home.young)
        or (entry.forgetful and members[0] == entry.home),
        segment=home.segment if home else entry.segment,
    )


class Copy:
    """One member's copy of one topic, as far as safety goes.

    The driver persists the three marks before it acts on what a method returned or tells anybody.
    """

    def __init__(
        self,
        site: str,
        label: int = 0,
        sealed: int = 0,
        root: int = 0,
        last: int = 0,
    ) -> None:
        self.site = site
        self.label = label
        self.sealed = sealed
        self.root = root
        self.last = last
        self.following = 0
        """The epoch whose home this copy follows, or is about to; 0: none."""
        self.aside: State | None = None
        """What this site has beside the copy, and an election counts, until that has a label."""

    def twin(self) -> Copy:
        """Another one like this: to see what would become of it, before that is written down."""
        twin = Copy(self.site, self.label, self.sealed, self.root, self.last)
        twin.following = self.following
        twin.aside = self.aside
        return twin

    def seal(self, epoch: int) -> State | None:
        """Promise to help no epoch below `epoch`; tell how far the copy is. None: it has promised
        a later one already."""
        if epoch < self.sealed:
            return None
        self.sealed = epoch
        if self.following < epoch:
            self.following = 0
        return self.state()

    def state(self) -> State:
        """How far this site is, as an election counts it."""
        return self.aside or State(self.site, self.label, self.last, self.root)

    def follow(self, lineage: Lineage) -> bool:
        """Be about to follow the home of the newest epoch: nothing of an earlier one is to come any
        more, but something may be under way. False: this copy has promised a later epoch, or must
        roll first."""
        epoch = lineage[-1].epoch
        if epoch < self.sealed or is_forked(self.root, self.last, lineage):
            return False
        self.following = self.sealed = epoch
        return True

    def join(self, last: int, lineage: Lineage) -> bool:
        """What was under way is here, and the copy ends at `last`: what comes next is sent by the
        home that it follows. False: too much was under way, and it must roll first."""
        self.last = last
        if is_forked(self.root, last, lineage):
            self.following = 0
            return False
        self.root = self.following
        self.advance(last, lineage[-1].base)
        return True

    @property
    def is_joined(self) -> bool:
        """Whether the newest events of this copy were sent by the home that it follows."""
        return self.following > 0 and self.root == self.following

    def lead(self, lineage: Lineage) -> bool:
        """Become the home of the newest epoch, or go on as such after a restart. False: this copy
        has promised a later one, or lacks what it was chosen for. It may have more, as data comes
        in after the seal. `is_forked` was asked by who chose it, perhaps with epochs that are
        forgotten by now."""
        epoch = lineage[-1].epoch
        if epoch < self.sealed:
            return False
        if self.root != epoch and self.last < lineage[-1].base:
            return False
        self.following = self.root = self.sealed = self.label = epoch
        return True

    def advance(self, last: int, base: int) -> bool:
        """The copy has grown to `last` while following; `base` is that epoch's. Whether a mark
        changed."""
        self.last = last
        if not self.is_joined or last < base or self.label >= self.following:
            return False
        self.label = self.following
        self.aside = None
        return True

    def report(self) -> State | None:
        """What this copy may confirm: nothing once it is sealed for a later epoch, or before it
        has reached the base of the one it follows."""
        if not self.following or self.label != self.following:
            return None
        return State(self.site, self.label, self.last, self.root)

    def roll(self, lineage: Lineage) -> int | None:
        """Leave behind what is not part of the history: the index that the copy ends at from now
        on. None: nobody remembers where that is, and the copy must be rebuilt."""
        if is_forgotten(self.root, self.last, lineage):
            return None
        self.last = fork_of(self.root, self.last, lineage)
        return self.last

    def begin_beside(self, segment: int = 0, split: bool = False) -> None:
        """Begin anew, and keep what is here until the new copy has as much: in such streams."""
        self.aside = self.aside or State(
            self.site, self.label, self.last, self.root, split=split, segment=segment
        )
        self.label = self.root = self.last = self.following = 0

    def rebuild(self, epoch: int) -> bool:
        """Begin anew, for `epoch`; then throw the events away. False: this copy has promised a
        later epoch, and who asked for that may count on it."""
        if self.sealed > epoch:
            return False
        self.label = self.root = self.last = self.following = 0
        self.aside = None
        return True
