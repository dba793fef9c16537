"""Placement in the synchronous face; see `skerry.client.placement`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skerry.client.client import Client
    from skerry.client.sync import _Loop
    from skerry.model.placement import (
        Explanation,
        Mode,
        MoveReport,
        PlacementSettings,
        PlacementStatus,
        PlanAnswer,
    )


class SyncPlacementCalls:
    """Placement, as a synchronous client sees it."""

    _client: Client
    _loop: _Loop

    def placement_plan(self) -> PlanAnswer:
        """What placement would do now, and why."""
        return self._loop.run(self._client.placement_plan())

    def placement_apply(self) -> list[MoveReport]:
        """Make a plan and carry it out; needs the administrator's credentials."""
        return self._loop.run(self._client.placement_apply())

    def placement_explain(self, topic: str) -> Explanation:
        """Why a topic is where it is."""
        return self._loop.run(self._client.placement_explain(topic))

    def placement_status(self) -> PlacementStatus:
        """How placement is: its settings, the sites' load, and the last moves."""
        return self._loop.run(self._client.placement_status())

    def set_placement(self, mode: Mode | None = None, **changes: Any) -> PlacementSettings:
        """Change how placement runs; needs the administrator's credentials."""
        return self._loop.run(self._client.set_placement(mode, **changes))

    def pin_topic(self, topic: str, pinned: bool = True) -> None:
        """Have placement leave a topic where it is, or no more; needs the administrator's
        credentials."""
        self._loop.run(self._client.pin_topic(topic, pinned))
