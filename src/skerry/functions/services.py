"""What may be asked of a site about functions.

`open.…` is for clients, `admin.…` for administrators, `peer.…` for the agents of other sites.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec

from skerry.errors import BadSetting, SkerryError, UnknownTopic
from skerry.fabric.control import Control
from skerry.functions.assignment import Running
from skerry.functions.messages import (
    DeployAnswer,
    DeployRequest,
    EnvRequest,
    FunctionInfo,
    FunctionName,
    ReplayAnswer,
    ReplayRequest,
    RollbackRequest,
    RunningAt,
)
from skerry.functions.registry import WRITE_TIME, unknown_function
from skerry.model.functions import AGAIN, DEAD, Again, Function
from skerry.model.records import read

if TYPE_CHECKING:
    from skerry.functions.site import Functions

ASK_TIME = 2.0
"""Seconds that a site may take to say how its functions are."""

Reports = dict[str, list[Running] | None]
"""What each site says; None: it did not answer."""


class Services:
    """The services of one site."""

    def __init__(self, part: Functions) -> None:
        self._part = part
        self._places = part.places
        self._plan = part.plan

    def register(self, control: Control) -> None:
        """Have `control` serve them all."""
        serve, preparing = control.serve, self._part.preparing
        serve("open.function.list", None, self.list_all)
        serve("open.function.show", FunctionName, self.show)
        serve("admin.function.deploy", DeployRequest, self.deploy)
        serve("admin.function.rollback", RollbackRequest, self.rollback)
        serve("admin.function.pause", FunctionName, lambda r: self.pause(r.name, True))
        serve("admin.function.resume", FunctionName, lambda r: self.pause(r.name, False))
        serve("admin.function.remove", FunctionName, self.remove)
        serve("admin.function.replay", ReplayRequest, self.replay)
        serve("peer.function.reports", None, self._part.running)
        serve("peer.function.all", None, self._gather)
        serve("peer.function.env.put", EnvRequest, preparing.take)
        serve("peer.function.env.get", EnvRequest, preparing.tell)

    # Looking

    async def list_all(self) -> list[FunctionInfo]:
        """All functions, by name, and how they are everywhere."""
        registry, _ = await self._part.ready()
        functions = registry.functions
        reports = await self._everywhere() if functions else {}
        return [self._info(functions[name], reports) for name in sorted(functions)]

    async def show(self, request: FunctionName) -> FunctionInfo:
        """One function, and how it is everywhere."""
        registry, _ = await self._part.ready()
        function = registry.get(request.name)
        if function is None:
            _, function = await registry.found(request.name)  # deployed elsewhere just now
        return self._info(function, await self._everywhere())

    def _info(self, function: Function, reports: Reports) -> FunctionInfo:
        logs = self._plan.where(function)
        running = [
            RunningAt(site, each)
            for site, said in sorted(reports.items())
            for each in said or ()
            if each.function == function.name
        ]
        away = [site for site in sorted(set(logs.values())) if reports.get(site, None) is None]
        return FunctionInfo(function=function, logs=logs, running=tuple(running), away=tuple(away))

    async def _everywhere(self) -> Reports:
        """What all sites say. The hub is linked to all; without it, those that we are linked to."""
        if self._places.hub != self._places.site:
            with contextlib.suppress(SkerryError):
                data = await self._places.ask(
                    self._places.hub, "peer.function.all", None, 2 * ASK_TIME
                )
                return {**msgspec.json.decode(data, type=Reports), **self._own()}
        return await self._gather()

    def _own(self) -> Reports:
        return {self._places.site: self._part.running()}

    async def _gather(self) -> Reports:
        async def ask(site: str) -> list[Running] | None:
            try:
                data = await self._places.ask(site, "peer.function.reports", None, ASK_TIME)
                return msgspec.json.decode(data, type=list[Running])
            except SkerryError:
                return None

        peers = self._places.peers()
        answers = await asyncio.gather(*map(ask, peers))
        return {**dict(zip(peers, answers, strict=True)), **self._own()}

    # Changing

    async def deploy(self, request: DeployRequest) -> DeployAnswer:
        """A function, or a new version of one."""
        _, deployer = await self._part.ready()
        return self._deployed(*await deployer.deploy(request))

    async def rollback(self, request: RollbackRequest) -> DeployAnswer:
        """An earlier version again."""
        _, deployer = await self._part.ready()
        return self._deployed(*await deployer.rollback(request.name, request.to))

    def _deployed(self, function: Function, changed: bool) -> DeployAnswer:
        return DeployAnswer(function=function, changed=changed, logs=self._plan.where(function))

    async def pause(self, name: str, paused: bool) -> Function:
        """Have a function rest, or go on where it was."""
        _, deployer = await self._part.ready()
        return await deployer.pause(name, paused)

    async def remove(self, request: FunctionName) -> None:
        """Remove a function with its state and all its versions."""
        registry, deployer = await self._part.ready()
        async with deployer.lock(request.name):
            before, _ = await registry.found(request.name)
            await registry.remove(request.name, before)
            await self._part.delete_journals(request.name)

    async def replay(self, request: ReplayRequest) -> ReplayAnswer:
        """Have events handled once more."""
        registry, _ = await self._part.ready()
        function = registry.get(request.name)
        if function is None:
            raise unknown_function(request.name, registry.functions)
        logs = list(self._plan.where(function))
        if request.log is not None:
            if request.log not in logs:
                raise BadSetting(
                    f"{request.name} does not run on {request.log}",
                    f"It runs on: {', '.join(logs) or 'nothing yet'}.",
                )
            logs = [request.log]
        asked = await (self._dead(request, logs) if request.dead else self._range(request, logs))
        since = function.since
        access = self._part.access
        assert access is not None
        async with access.publisher(AGAIN, ack=None, timeout=WRITE_TIME) as publisher:
            for log, again in asked.items():
                await publisher.send(
                    msgspec.json.encode(msgspec.structs.replace(again, since=since)),
                    topic=f"{AGAIN}/{request.name}",
                    id=f"{request.id}-{log}"[:128],
                )
        return ReplayAnswer({log: (a.first, a.last) for log, a in asked.items()}, request.dead)

    async def _range(self, request: ReplayRequest, logs: list[str]) -> dict[str, Again]:
        if len(logs) != 1:
            raise BadSetting(
                f"{request.name} runs on {len(logs)} topics, and each has indexes of its own",
                f"Name one with --topic: {', '.join(logs)}." if logs else "Create a topic first.",
            )
        access = self._part.access
        assert access is not None
        log = logs[0]
        _, first, latest = await access.reader.bounds(log)
        wanted = first if request.first is None else request.first
        last = latest if request.last is None else min(request.last, latest)
        if not 1 <= wanted <= last:
            raise BadSetting(
                f"there are no events of {log} from {wanted} to {last}",
                f"It has events from {first} to {latest}.",
            )
        return {log: Again(log=log, first=wanted, last=last)}

    async def _dead(self, request: ReplayRequest, logs: list[str]) -> dict[str, Again]:
        """Those dead letters that nobody has asked for yet, unless a range is given."""
        access = self._part.access
        assert access is not None
        latest = await access.reader.latest_index(f"{DEAD}/{request.name}")
        last = latest if request.last is None else min(request.last, latest)
        done: dict[str, int] = {}
        with contextlib.suppress(UnknownTopic):
            async for event in access.reader.read(f"{AGAIN}/{request.name}"):
                again = read(event.data, Again, f"{event.topic} #{event.index}")
                if again is not None and again.dead:
                    done[again.log] = max(done.get(again.log, 0), again.last)
        asked = {}
        for log in logs:
            first = done.get(log, 0) + 1 if request.first is None else request.first
            if first <= last:
                asked[log] = Again(log=log, first=first, last=last, dead=True)
        if not asked:
            raise BadSetting(
                f"{request.name} has no dead letters that were not replayed yet",
                "Name some of those that were with --from-index.",
            )
        return asked
