"""From the directory and a plan to decisions, without any I/O: what the controller's loop needs to
know besides the policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from skerry.errors import BadSetting
from skerry.fabric.placement import named_sites
from skerry.model.fabric import TopicEntry as Entry
from skerry.model.placement import Move, PlacementSettings, is_placed
from skerry.placement.executor import Decision
from skerry.placement.monitor import TopicEntry
from skerry.placement.settings import PolicySettings

CONFIRM = 0.2
"""Periods for which a decision about latency or load has to stand before `auto` carries it out.
While clients go from one site to another, one of the two sites has told and the other has not: for
a moment they seem to be at both, and some site in between seems to be best."""


def policy_settings(settings: PlacementSettings) -> PolicySettings:
    """The policy's settings. Raises `BadSetting` for those that there are not, or out of range."""
    try:
        return msgspec.convert(settings.policy, PolicySettings, strict=True).check()
    except msgspec.ValidationError as error:
        raise BadSetting(f"the settings of placement are wrong: {error}") from None


def as_entries(
    entries: Iterable[Entry],
    pinned: set[str],
    moved_at: Mapping[str, float],
    moving: Mapping[str, str],
) -> list[TopicEntry]:
    """What the policy has to know of the topics that it may move."""
    return [
        TopicEntry(
            name=entry.name,
            home=entry.home,
            bound_ms=None if entry.settings.latency is None else entry.settings.latency * 1000.0,
            replicas=entry.members[1:],
            wanted=0 if named_sites(entry.settings) is not None else entry.settings.replicas,
            colocated=entry.settings.spread == "colocated",
            power=entry.settings.durability == "power",
            pinned=entry.name in pinned,
            moved_at=moved_at.get(entry.name),
            moving_to=moving.get(entry.name),
        )
        for entry in entries
        if is_placed(entry.name)
    ]


def decision(move: Move, entry: Entry, by: str) -> Decision | None:
    """A move as it is to be carried out; None: the topic is not where the plan thought."""
    if entry.home != move.source or (
        move.target == entry.home and set(move.replicas) == set(entry.members[1:])
    ):
        return None
    members = None
    # A topic that names the sites of its replicas keeps them, and one is never left with fewer
    # copies than it has because some site was full at that moment.
    if named_sites(entry.settings) is None and len(move.replicas) >= len(entry.members) - 1:
        members = (move.target, *move.replicas)
    return Decision(
        topic=move.topic,
        source=move.source,
        target=move.target,
        epoch=entry.epoch,
        members=members,
        cause=move.cause,
        reason=move.reason,
        by=by,
    )


class Standing:
    """Which decisions have stood for long enough."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[str, float]] = {}

    def stood(self, moves: Iterable[Move], now: float, seconds: float) -> list[Move]:
        """Those of a plan that plans for the last `seconds` had too; drains at once."""
        since: dict[str, tuple[str, float]] = {}
        ready = []
        for move in moves:
            known = self._since.get(move.topic)
            began = known[1] if known is not None and known[0] == move.target else now
            since[move.topic] = (move.target, began)
            if now - began >= seconds or move.cause in ("drain", "replica"):
                ready.append(move)
        self._since = since
        return ready
