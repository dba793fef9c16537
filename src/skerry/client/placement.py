"""Placement as clients see it: what it would do, what it does, and why."""

from __future__ import annotations

from typing import Any

import msgspec

from skerry.model.control import TopicName
from skerry.model.names import check_topic
from skerry.model.placement import (
    Explanation,
    Mode,
    MoveReport,
    PinRequest,
    PlacementSettings,
    PlacementStatus,
    PlanAnswer,
    SetRequest,
)

APPLY_TIME = 300.0
"""Seconds that the moves of a plan may take altogether."""
FIRST_TIME = 15.0
"""Seconds that an answer may take more than usual: the first plan waits for records."""


class PlacementCalls:
    """The part of a client that is about placement; it asks the leader, through its own site."""

    async def _ask(self, service: str, body: object = None, timeout: float | None = None) -> bytes:
        raise NotImplementedError

    async def placement_plan(self) -> PlanAnswer:
        """What placement would do now, and why. The first time this has all sites report, and
        waits for them."""
        return msgspec.json.decode(
            await self._ask("open.placement.plan", timeout=FIRST_TIME), type=PlanAnswer
        )

    async def placement_apply(self) -> list[MoveReport]:
        """Make a plan and carry it out; needs the administrator's credentials. Returns what became
        of each move. One that fails leaves its topic where it is, and keeps no other."""
        data = await self._ask("admin.placement.apply", timeout=APPLY_TIME)
        return msgspec.json.decode(data, type=list[MoveReport])

    async def placement_explain(self, topic: str) -> Explanation:
        """Why a topic is where it is: its clients by site, its latency, and what each site would
        be to it."""
        body = TopicName(check_topic(topic))
        data = await self._ask("open.placement.explain", body, timeout=FIRST_TIME)
        return msgspec.json.decode(data, type=Explanation)

    async def placement_status(self) -> PlacementStatus:
        """How placement is: its settings, the sites' load, and the last moves."""
        return msgspec.json.decode(await self._ask("open.placement.status"), type=PlacementStatus)

    async def set_placement(self, mode: Mode | None = None, **changes: Any) -> PlacementSettings:
        """Change how placement runs; needs the administrator's credentials. Takes the fields of
        `PlacementSettings` (`mode`, `period`, `at_once`) and of `skerry.placement.PolicySettings`;
        None gives one of the policy's its default back."""
        if mode is not None:
            changes["mode"] = mode
        data = await self._ask("admin.placement.set", SetRequest(changes))
        return msgspec.json.decode(data, type=PlacementSettings)

    async def pin_topic(self, topic: str, pinned: bool = True) -> None:
        """Have placement leave a topic where it is, or no more; needs the administrator's
        credentials. Failover and `move_topic` move it all the same."""
        await self._ask("admin.placement.pin", PinRequest(check_topic(topic), pinned))
