"""Rules of what ships that can be left out, to see that the simulator notices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from skerry.fabric import leader
from skerry.fabric.copies import Copies
from skerry.fabric.following import Following
from skerry.fabric.links import Links
from skerry.fabric.opening import Openings
from skerry.fabric.tails import Tails
from skerry.log.kept import Kept
from skerry.log.reports import Reports
from skerry.log.sending import Sending
from skerry.model import promotion
from skerry.model.promotion import Copy, Decision

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
