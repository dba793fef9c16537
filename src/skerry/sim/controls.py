"""Rules of what ships that can be left out, to see that the simulator notices."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from skerry.directory.store import Store
from skerry.engine.tide import Tide
from skerry.fabric import outbox, salvage
from skerry.fabric.copies import Copies
from skerry.fabric.following import Following
from skerry.fabric.links import Links
from skerry.fabric.logs import Logs
from skerry.fabric.opening import Openings
from skerry.fabric.relay import Relay
from skerry.fabric.tails import Tails
from skerry.fabric.upkeep import Upkeep
from skerry.log.append import Publisher
from skerry.log.kept import Kept
from skerry.log.reports import Reports
from skerry.log.sending import Sending
from skerry.model import promotion
from skerry.model.promotion import Copy, Decision, State

Broken = list[tuple[Any, str, Any]]


def _everywhere(name: str, broken: Any) -> Broken:
    """A rule of the core, wherever it was imported to."""
    real = getattr(promotion, name)
    modules = [m for n, m in sys.modules.items() if n.startswith("skerry.")]
    return [(one, name, broken) for one in modules if getattr(one, name, None) is real]


# Elections


def _too_few_asked() -> Broken:
    """Ask one member less before a home is replaced."""
    real = promotion.read_quorum
    return _everywhere("read_quorum", lambda members: max(1, real(members) - 1))


def _elects(change: Callable[[State], State]) -> Broken:
    real = promotion.elect

    def elect(lineage: Any, members: Any, states: Any, *more: Any) -> Decision | None:
        return real(lineage, members, [change(state) for state in states], *more)

    return _everywhere("elect", elect)


def _longest() -> Broken:
    """Compare copies by where they end alone."""
    return _elects(lambda one: replace(one, label=min(one.label, 1)))


def _forked() -> Broken:
    """Let a copy lead that holds events beyond the base of an epoch that it missed."""
    return _elects(lambda one: replace(one, root=sys.maxsize))


def _witness() -> Broken:
    """Never let a forked copy lead, also if it cannot be cut and nobody else can."""
    return _elects(lambda one: replace(one, thinned=False))


def _empty() -> Broken:
    """Let a copy under rebuild lead if no better one has answered."""
    return _elects(lambda one: replace(one, label=one.label + 1))


def _behind() -> Broken:
    """Choose the copy that is furthest behind."""
    real = promotion.elect

    def elect(*args: Any) -> Decision | None:
        decision, states = real(*args), args[2]
        if decision is None:
            return None
        worst = min(states, key=lambda state: state.last)
        members = (worst.site, *(one for one in decision.members if one != worst.site))
        return Decision(worst.site, decision.epoch, worst.last, members)

    return _everywhere("elect", elect)


def _no_seal() -> Broken:
    """A member tells how far it is, and promises nothing."""

    async def seal(self: Any, name: str, epoch: int) -> Any:
        return await self.state(name)

    return [(Copies, "seal", seal)]


def _seal_forgotten() -> Broken:
    """A copy goes on to confirm after it was sealed."""

    def report(self: Any) -> Any:
        return self.state() if self.label else None

    return [(Copy, "report", report)]


def _seal_for_ever() -> Broken:
    """A member that promised an epoch which never came says nothing."""
    return [(Upkeep, "_watch_seal", lambda self, local, entry, now: None)]


# Homes


def _no_lock() -> Broken:
    """An engine lets clients write before its agent has asked the directory."""
    real = Links.wiring

    def wiring(self: Any, locked: bool) -> Any:
        return replace(real(self, locked), locked=False)

    return [(Links, "wiring", wiring)]


def _old_directory() -> Broken:
    """A home takes its copy of the directory for the newest."""

    async def fresh(self: Any, timeout: float) -> bool:
        return True

    return [(Store, "fresh", fresh)]


def _open_unasked() -> Broken:
    """A home that starts anew opens without asking its members."""

    async def ask(self: Any, entry: Any, sites: Any) -> dict[str, Any]:
        return {}

    def judge(self: Any, local: Any, entry: Any, answers: Any) -> bool:
        return True

    return [(Openings, "_ask", ask), (Openings, "_judge", judge)]


def _open_after_freeze() -> Broken:
    """A home that was shut for a move opens in the same epoch after a crash."""
    real = Logs.freeze

    async def freeze(self: Any, local: Any, opening: bool = False) -> None:
        await real(self, local, True)

    return [(Logs, "freeze", freeze)]


def _stay_open() -> Broken:
    """A home without the directory goes on with as many as are asked in an election."""

    def may_stay_open(epoch: int, members: Any, sealed: Any) -> bool:
        free = [site for site in members if site in sealed and sealed[site] <= epoch]
        return len(free) >= promotion.read_quorum(len(members))

    return _everywhere("may_stay_open", may_stay_open)


def _no_tide() -> Broken:
    """Nobody knows where logs ended before the engine started."""
    return [(Tide, "look", lambda self, streams: None)]


def _old_folder() -> Broken:
    """A site takes an older copy of its folder for what it had."""
    return [(Tide, "_doubt", lambda self, number, topics: None)]


# Moves


def _cut_over_early() -> Broken:
    """Move with as many copies as are asked in an election."""

    def may_cut_over(members: Any, states: Any, epoch: int, last: int) -> bool:
        there = [s for s in states.values() if s.label == epoch and s.last >= last]
        holding = {state.site for state in there}
        return members[0] in holding and len(holding) >= promotion.read_quorum(len(members))

    return _everywhere("may_cut_over", may_cut_over)


def _cut_over_by_index() -> Broken:
    """Move to copies that are long enough, of whatever epoch."""
    real = promotion.may_cut_over

    def may_cut_over(members: Any, states: Any, epoch: int, last: int) -> bool:
        return real(members, {n: replace(s, label=epoch) for n, s in states.items()}, epoch, last)

    return _everywhere("may_cut_over", may_cut_over)


# Copies


def _join_unchecked() -> Broken:
    """A copy reads on at a new home, whatever it has."""

    async def join(self: Any, local: Any, entry: Any, last: int) -> bool:
        copy = local.copy
        copy.last, copy.root = last, copy.following
        copy.advance(last, entry.base)
        return True

    return [(Following, "_join", join)]


def _fork_by_the_newest() -> Broken:
    """Keep a copy up to the newest base, not up to the smallest since."""

    def fork_of(root: int, last: int, lineage: Any) -> int:
        return min(last, lineage[-1].base) if root < lineage[-1].epoch else last

    return _everywhere("fork_of", fork_of)


def _discard_at_once() -> Broken:
    """Throw a copy away before others prove as much."""
    return _everywhere("may_discard", lambda mine, members, states: True)


def _discard_the_promised() -> Broken:
    """Throw a copy away that an election counts on."""

    def rebuild(self: Any, epoch: int) -> bool:
        self.label = self.root = self.last = self.following = 0
        self.aside = None
        return True

    return [(Copy, "rebuild", rebuild)]


def _nothing_aside() -> Broken:
    """What lies beside a copy that is begun anew counts for nothing."""
    real = Copy.begin_beside

    def begin_beside(self: Any, *log: Any) -> None:
        real(self, *log)
        self.aside = None

    return [(Copy, "begin_beside", begin_beside)]


def _nothing_kept() -> Broken:
    """A publisher forgets what its home has acknowledged, and former homes bring nothing home."""

    async def keep(self: Any, local: Any, info: Any, end: int) -> None:
        return None

    def lose(self: Any, fork: int) -> None:
        self.clear()

    return [(Tails, "_keep", keep), (Kept, "lose_beyond", lose)]


# Outboxes


def _begin_by_time() -> Broken:
    """A home that knows nothing of an outbox begins with what came since its own last event."""
    return [(Relay, "_from", lambda self, data, question, origin: data)]


def _begin_at_the_first() -> Broken:
    """A home that forgot how far it has read an outbox reads it again."""
    return [
        (
            Relay,
            "begin",
            lambda self, stream, source, start: self._begins.update({(stream, source): 1}),
        )
    ]


def _count_from_one() -> Broken:
    """An outbox that takes the place of a lost one gives its indexes again."""
    return [(outbox, "_first_index", lambda: 1)]


def _tidy_at_once() -> Broken:
    """Remove from an outbox what the home alone has read."""

    async def is_held(*args: Any) -> bool:
        return True

    return [(outbox, "is_held", is_held)]


# Publishers


def _too_few() -> Broken:
    """An event counts as held once its home has it."""
    return [(Reports, "confirmed", lambda self, entry, last: last)]


def _any_epoch() -> Broken:
    """Count what replicas told of other epochs."""
    real = promotion.confirmed

    def confirmed(last: int, epoch: int, members: int, states: Any) -> int:
        return real(last, epoch, members, [replace(one, label=epoch) for one in states])

    return _everywhere("confirmed", confirmed)


def _anybody() -> Broken:
    """Count what sites tell that are no members."""

    def confirmed(self: Any, entry: Any, last: int) -> int:
        return promotion.confirmed(last, entry.epoch, len(entry.members), self._states.values())

    return [(Reports, "confirmed", confirmed)]


def _no_recall() -> Broken:
    """Send again without looking what a forgetful home has."""
    return [(Sending, "_look_back", lambda self, now, after=0.0, first=None: None)]


def _no_probe() -> Broken:
    """Send all at once after a loss, not the oldest alone."""

    def probe(self: Any, now: float) -> None:
        if self._is_up:
            self._go_on()

    return [(Sending, "_probe", probe)]


def _nothing_taken_back() -> Broken:
    """Go on waiting for replicas of another home to get what this one never had."""
    return [(Sending, "_take_back", lambda self, fork: None)]


def _by_time() -> Broken:
    """What is brought home is as new as the time says at which it was stored."""
    return [(salvage, "number_of", lambda id: None)]


def _late_answers() -> Broken:
    """Count answers to what was written to an earlier home."""
    real = Publisher._aim

    def aim(self: Any) -> None:
        self._generation = 0
        real(self)

    return [(Publisher, "_aim", aim)]


CONTROLS: dict[str, Callable[[], Broken]] = {
    "asked": _too_few_asked,
    "longest": _longest,
    "forked": _forked,
    "witness": _witness,
    "empty": _empty,
    "behind": _behind,
    "seal": _no_seal,
    "report": _seal_forgotten,
    "unstick": _seal_for_ever,
    "lock": _no_lock,
    "fresh": _old_directory,
    "opening": _open_unasked,
    "freeze": _open_after_freeze,
    "stay": _stay_open,
    "tide": _no_tide,
    "folder": _old_folder,
    "cut-over": _cut_over_early,
    "label": _cut_over_by_index,
    "join": _join_unchecked,
    "fork": _fork_by_the_newest,
    "discard": _discard_at_once,
    "promised": _discard_the_promised,
    "aside": _nothing_aside,
    "kept": _nothing_kept,
    "quorum": _too_few,
    "epochs": _any_epoch,
    "members": _anybody,
    "begin": _begin_by_time,
    "begin-again": _begin_at_the_first,
    "first": _count_from_one,
    "tidy": _tidy_at_once,
    "recall": _no_recall,
    "probe": _no_probe,
    "back": _nothing_taken_back,
    "answers": _late_answers,
    "numbers": _by_time,
}


@contextlib.contextmanager
def without(name: str) -> Iterator[None]:
    """Leave out a rule."""
    broken = CONTROLS[name]()
    before = [(owner, what, getattr(owner, what)) for owner, what, _ in broken]
    for owner, what, value in broken:
        setattr(owner, what, value)
    try:
        yield
    finally:
        for owner, what, value in before:
            setattr(owner, what, value)
