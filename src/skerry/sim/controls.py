"""Rules of what ships that can be left out, to see that the simulator notices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from skerry.directory.store import Store
from skerry.fabric import copies, leader, moves, replacement, standing
from skerry.fabric.copies import Copies
from skerry.fabric.following import Following
from skerry.fabric.links import Links
from skerry.fabric.opening import Openings
from skerry.fabric.tails import Tails
from skerry.log import reports
from skerry.log.kept import Kept
from skerry.log.reports import Reports
from skerry.log.sending import Sending
from skerry.model import promotion
from skerry.model.promotion import Copy, Decision, State

EVERY_EPOCH = 1 << 30
"""A root that no fork is beyond."""

Broken = list[tuple[Any, str, Any]]


def _join_unchecked() -> Broken:
    """A copy reads on at a new home, whatever it has."""

    async def join(self: Any, local: Any, entry: Any, last: int) -> bool:
        copy = local.copy
        copy.last, copy.root = last, copy.following
        copy.advance(last, entry.base)
        return True

    return [(Following, "_join", join)]


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


def _lead_behind() -> Broken:
    """Whoever is asked to lead leads, with whatever it has; and anybody may be chosen."""
    real = promotion.elect

    def elect(*args: Any) -> Any:
        decision, states = real(*args), args[2]
        if decision is None:
            return None
        worst = min(states, key=lambda state: state.last)
        members = (worst.site, *(one for one in decision.members if one != worst.site))
        return Decision(worst.site, decision.epoch, worst.last, members)

    return [(leader, "elect", elect)]


def _too_few() -> Broken:
    """An event counts as held once its home has it."""
    return [(Reports, "confirmed", lambda self, entry, last: last)]


def _no_lock() -> Broken:
    """An engine lets clients write before its agent has asked the directory."""
    real = Links.wiring

    def wiring(self: Any, locked: bool) -> Any:
        return msgspec.structs.replace(real(self, locked), locked=False)

    return [(Links, "wiring", wiring)]


def _open_unasked() -> Broken:
    """A home that starts anew opens without asking its members."""

    async def ask(self: Any, entry: Any, sites: Any) -> dict[str, Any]:
        return {}

    def judge(self: Any, local: Any, entry: Any, answers: Any) -> bool:
        return True

    return [(Openings, "_ask", ask), (Openings, "_judge", judge)]


def _no_recall() -> Broken:
    """A publisher sends again without looking what a forgetful home has."""
    return [(Sending, "_look_back", lambda self, now, after=0.0: None)]


def _nothing_kept() -> Broken:
    """A publisher forgets what its home has acknowledged, and former homes bring nothing home."""

    async def keep(self: Any, local: Any, info: Any, end: int) -> None:
        return None

    def lose(self: Any, fork: int) -> None:
        self.clear()

    return [(Tails, "_keep", keep), (Kept, "lose_beyond", lose)]


def _too_few_asked() -> Broken:
    """One member less is asked before a home is replaced."""
    real = promotion.read_quorum

    def read_quorum(members: int) -> int:
        return max(1, real(members) - 1)

    return [(promotion, "read_quorum", read_quorum), (leader, "read_quorum", read_quorum)]


def _elect(change: Callable[[State], State]) -> Broken:
    """An election looks at other states than members have told."""
    real = promotion.elect

    def elect(lineage: Any, members: Any, states: Any, *more: Any, **others: Any) -> Any:
        return real(lineage, members, [change(one) for one in states], *more, **others)

    return [(leader, "elect", elect)]


def _longest() -> Broken:
    """Copies are compared by their last index alone."""
    return _elect(
        lambda one: msgspec.structs.replace(one, label=min(one.label, 1), root=EVERY_EPOCH)
    )


def _forked() -> Broken:
    """A copy may lead that holds events beyond the base of an epoch that it missed."""
    return _elect(lambda one: msgspec.structs.replace(one, root=EVERY_EPOCH))


def _empty() -> Broken:
    """A copy under rebuild may lead if no better one has answered."""
    return _elect(lambda one: msgspec.structs.replace(one, label=one.label + 1))


def _discard_at_once() -> Broken:
    """A copy is thrown away before others prove as much."""
    return [(replacement, "may_discard", lambda *_: True)]


def _newest_fork() -> Broken:
    """A copy is kept up to the newest base, not up to the smallest since."""

    def fork_of(root: int, last: int, lineage: Any) -> int:
        return min(last, lineage[-1].base) if root < lineage[-1].epoch else last

    return [(promotion, "fork_of", fork_of), (copies, "fork_of", fork_of)]


def _any_epoch() -> Broken:
    """What replicas reported for other epochs counts."""
    real = promotion.confirmed

    def confirmed(home_last: int, epoch: int, members: int, states: Any) -> int:
        return real(home_last, epoch, members, [State(s.site, epoch, s.last) for s in states])

    return [(reports, "confirmed", confirmed)]


def _move_too_early() -> Broken:
    """A topic moves as soon as its next home has it."""
    return [(moves, "may_cut_over", lambda *_: True)]


def _stay_open() -> Broken:
    """A home goes on without the directory, with as many as an election takes."""

    def may_stay_open(epoch: int, members: Any, sealed: Any) -> bool:
        free = [site for site in members if site in sealed and sealed[site] <= epoch]
        return len(free) >= promotion.read_quorum(len(members))

    return [(standing, "may_stay_open", may_stay_open)]


def _nothing_aside() -> Broken:
    """What lies beside a copy that is begun anew does not count."""
    real = Copy.begin_beside

    def begin_beside(self: Any) -> None:
        real(self)
        self.aside = None

    return [(Copy, "begin_beside", begin_beside)]


def _always_fresh() -> Broken:
    """A site believes that it has the newest directory."""

    async def fresh(self: Any, timeout: float) -> bool:
        return True

    return [(Store, "fresh", fresh)]


CONTROLS: dict[str, Callable[[], Broken]] = {
    "join": _join_unchecked,
    "seal": _no_seal,
    "report": _seal_forgotten,
    "behind": _lead_behind,
    "quorum": _too_few,
    "lock": _no_lock,
    "opening": _open_unasked,
    "recall": _no_recall,
    "kept": _nothing_kept,
    "asked": _too_few_asked,
    "longest": _longest,
    "forked": _forked,
    "empty": _empty,
    "discard": _discard_at_once,
    "fork": _newest_fork,
    "epochs": _any_epoch,
    "cut-over": _move_too_early,
    "stay": _stay_open,
    "aside": _nothing_aside,
    "fresh": _always_fresh,
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
