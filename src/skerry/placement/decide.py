"""From the directory and a plan to decisions, without any I/O: what the controller's loop needs to
know besides the policy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import msgspec

from skerry.errors import BadSetting
from skerry.fabric.placement import named_sites
from skerry.model.fabric import TopicEntry as Entry
from skerry.model.placement import Move, PlacementSettings, is_placed
from skerry.model.topic import TopicSettings
from skerry.placement.executor import Decision
from skerry.placement.monitor import TopicEntry
from skerry.placement.settings import PolicySettings

CONFIRM = 0.2
"""Periods for which a decision about latency or load has to stand before `auto` carries it out.
While clients go from one site to another, one of the two sites has told and the other has not: for
a moment they seem to be at both, and some site in between seems to be best. A topic whose clients
are all behind the site that it should go to does not wait: there is no doubt about it."""


def policy_settings(settings: PlacementSettings) -> PolicySettings:
    """The policy's settings. Raises `BadSetting` for those that there are not, or out of range."""
    try:
        return msgspec.convert(settings.policy, PolicySettings, strict=True).check()
    except msgspec.ValidationError as error:
        raise BadSetting(f"the settings of placement are wrong: {error}") from None


class Placeable(Protocol):
    """What says where a topic is: its entry in the directory, or the topic as clients see it."""

    @property
    def name(self) -> str: ...
    @property
    def home(self) -> str: ...
    @property
    def replicas(self) -> tuple[str, ...]: ...
    @property
    def settings(self) -> TopicSettings: ...


def as_entries(
    topics: Iterable[Placeable],
    pinned: Collection[str],
    moved_at: Mapping[str, float],
    moving: Mapping[str, str],
) -> list[TopicEntry]:
    """What the policy has to know of the topics that it may move."""
    return [
        TopicEntry(
            name=topic.name,
            home=topic.home,
            bound_ms=None if topic.settings.latency is None else topic.settings.latency * 1000.0,
            replicas=topic.replicas,
            wanted=0 if named_sites(topic.settings) is not None else topic.settings.replicas,
            colocated=topic.settings.spread == "colocated",
            power=topic.settings.durability == "power",
            pinned=topic.name in pinned,
            moved_at=moved_at.get(topic.name),
            moving_to=moving.get(topic.name),
        )
        for topic in topics
        if is_placed(topic.name)
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

    @property
    def waits(self) -> bool:
        """Whether some have yet to stand."""
        return bool(self._since)

    def stood(
        self, moves: Iterable[Move], now: float, seconds: float, sure: Collection[str] = ()
    ) -> list[Move]:
        """Those of a plan that plans for the last `seconds` had too; at once drains, and topics
        that are `sure`."""
        since: dict[str, tuple[str, float]] = {}
        ready = []
        for move in moves:
            known = self._since.get(move.topic)
            began = known[1] if known is not None and known[0] == move.target else now
            since[move.topic] = (move.target, began)
            certain = move.cause in ("drain", "replica") or move.topic in sure
            if certain or now - began >= seconds:
                ready.append(move)
        self._since = since
        return ready
