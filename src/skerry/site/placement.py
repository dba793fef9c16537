"""The agent's part in placement: reports while placement is used, and at the leader decides.

Nothing of it runs, and nothing of it is imported, before somebody uses placement: then the store
has `placement.settings`. Somebody does by asking for a plan, by changing a setting, or by giving a
topic a latency bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from types import NoneType
from typing import TYPE_CHECKING, TypeVar

from skerry.config import SiteSettings
from skerry.engine.link import Down
from skerry.engine.wire import Connection
from skerry.errors import Conflict, SkerryError
from skerry.fabric.control import Control
from skerry.fabric.fabric import Fabric
from skerry.fabric.tasks import Tasks
from skerry.model.control import TopicName
from skerry.model.fabric import TopicEntry
from skerry.model.placement import (
    SETTINGS_KEY,
    Explanation,
    MoveReport,
    PinRequest,
    PlacementSettings,
    PlacementStatus,
    PlanAnswer,
    SetRequest,
)

if TYPE_CHECKING:
    from skerry.placement.controller import Controller
    from skerry.placement.reporter import Reporter

log = logging.getLogger("skerry.placement")

T = TypeVar("T")

APPLY_TIME = 300.0
"""Seconds that the moves of a plan may take altogether."""
AGAIN = 1.0
"""Seconds before what could not be begun is tried again."""


class Placement:
    """Placement at one site."""

    def __init__(self, part: Fabric, connection: Connection, settings: SiteSettings) -> None:
        self.reporter: Reporter | None = None
        self.controller: Controller | None = None
        self._part = part
        self._connection = connection
        self._settings = settings
        self._beginning = asyncio.Lock()
        self._setting = asyncio.Lock()
        """Requests that come together, or twice, change the settings one after the other."""
        self._tasks = Tasks("placement")

    def serve(self, control: Control) -> None:
        """Answer what is asked about placement; before the control opens."""
        part, serve = self._part, control.serve
        serve("open.placement.plan", None, lambda: part.lead("placement.plan", PlanAnswer))
        serve("open.placement.status", None, lambda: part.lead("placement.status", PlacementStatus))
        serve("admin.placement.apply", None, self._ask_to_apply)
        serve("open.placement.explain", TopicName, self._led("explain", Explanation))
        serve("admin.placement.set", SetRequest, self._led("set", PlacementSettings))
        serve("admin.placement.pin", PinRequest, self._led("pin", NoneType))
        if part.leader is None:
            return
        serve("peer.lead.placement.plan", None, self._plan)
        serve("peer.lead.placement.status", None, self._status)
        serve("peer.lead.placement.explain", TopicName, self._explain)
        serve("peer.lead.placement.apply", None, self._apply)
        serve("peer.lead.placement.set", SetRequest, self._set)
        serve("peer.lead.placement.pin", PinRequest, self._pin)

    def _led(self, name: str, kind: type[T]) -> Callable[[object], Awaitable[T]]:
        """A service that only asks the leader."""
        return lambda request: self._part.lead(f"placement.{name}", kind, request)

    async def _ask_to_apply(self) -> list[MoveReport]:
        return await self._part.lead("placement.apply", list[MoveReport], timeout=APPLY_TIME)

    def start(self) -> None:
        """Begin if placement is used, and whenever it is begun to be."""
        store = self._part.store
        store.watch(SETTINGS_KEY, self._on_settings)
        if store.get(SETTINGS_KEY, PlacementSettings) is not None:
            self._tasks.spawn(self._begin())
        if self._part.leader is not None:
            store.watch("topic.", self._on_entry)
            entries = store.all("topic.", TopicEntry).values()
            if any(entry.settings.latency is not None for entry in entries):
                self._tasks.spawn(self._use())

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()
        if self.controller is not None:
            await self.controller.close()
        if self.reporter is not None:
            await self.reporter.close()

    # Beginning

    def _on_settings(self, key: str, value: bytes | None) -> None:
        if value is None:
            return
        if self.reporter is None:
            self._tasks.spawn(self._begin())
        else:
            settings = self._part.store.get(key, PlacementSettings)
            if settings is not None:
                self.reporter.change(settings)

    def _on_entry(self, key: str, value: bytes | None) -> None:
        """A topic has got a bound: from now on it is watched whether it is kept."""
        if value is not None and b'"latency":' in value and self.controller is None:
            entry = self._part.store.get(key, TopicEntry)
            if entry is not None and entry.settings.latency is not None:
                self._tasks.spawn(self._use())

    async def _use(self) -> None:
        while self.controller is None:
            try:
                await self._ensure()
                return
            except (SkerryError, Down) as error:
                log.warning("placement could not be begun: %s", error)
            await asyncio.sleep(AGAIN)

    async def _ensure(self) -> Controller:
        """At the leader: have placement run."""
        leader = self._part.leader
        assert leader is not None
        if self.controller is None:
            from skerry.placement.controller import prepare

            await prepare(leader, self._part.site)
            async with self._setting:
                if self._part.store.get(SETTINGS_KEY, PlacementSettings) is None:
                    with contextlib.suppress(Conflict):
                        await self._part.store.put(SETTINGS_KEY, PlacementSettings())
            await self._begin()
        assert self.controller is not None
        return self.controller

    async def _begin(self) -> None:
        """Have this site report; and the leader, decide."""
        from skerry.placement.controller import Controller, prepare
        from skerry.placement.gauge import Gauge
        from skerry.placement.reporter import Reporter

        async with self._beginning:
            part, leader = self._part, self._part.leader
            if self.reporter is None:
                gauge, power = Gauge(self._settings.data), self._settings.durability == "power"
                self.reporter = Reporter(part, self._connection, gauge, power)
                settings = part.store.get(SETTINGS_KEY, PlacementSettings)
                self.reporter.start(settings or PlacementSettings())
            while leader is not None and self.controller is None:
                try:
                    await prepare(leader, part.site)
                except (SkerryError, Down) as error:
                    log.warning("placement waits for its topics: %s", error)
                    await asyncio.sleep(AGAIN)
                    continue
                self.controller = Controller(part, leader, self._connection)
                self.controller.start()

    # At the leader

    async def _plan(self) -> PlanAnswer:
        return await (await self._ensure()).plan()

    async def _explain(self, request: TopicName) -> Explanation:
        return await (await self._ensure()).explain(request)

    async def _apply(self) -> list[MoveReport]:
        return await (await self._ensure()).apply()

    def _status(self) -> PlacementStatus:
        if self.controller is None:
            return PlacementStatus(settings=PlacementSettings(), running=False)
        return self.controller.status()

    async def _set(self, request: SetRequest) -> PlacementSettings:
        from skerry.placement.controller import changed

        controller = await self._ensure()
        async with self._setting:
            settings = changed(controller.settings, request)
            await self._part.store.put(SETTINGS_KEY, settings)
        return settings

    async def _pin(self, request: PinRequest) -> None:
        await (await self._ensure()).pin(request)
