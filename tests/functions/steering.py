"""Who runs hosts in a fabric: here a stand-in for agents, which does what they would."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from skerry.functions.assignment import Assignment, Running
from skerry.testing import LocalFabric
from tests.functions.hosts import HostProcess

LOOK = 0.03
"""Seconds between looks where the log's home is."""


class Steering(Protocol):
    """Has a function run where its log lives."""

    def hosts(self) -> list[int]:
        """The process ids of the hosts."""

    def workers(self) -> list[int]:
        """The process ids of the workers."""

    def running(self) -> list[Running]:
        """What the hosts reported last."""

    async def leave(self, site: str) -> None:
        """The site is about to be lost: its host goes with it."""


class Places(Protocol):
    """The sites of a fabric that are there."""

    def folders(self) -> dict[str, Path]:
        """Their data folders."""

    def home(self, site: str, log: str) -> str | None:
        """Where a log's home is, as far as `site` knows."""


class StandIn:
    """A host at every site that is there, told what to run as far as the site knows."""

    def __init__(self, places: Places, *assignments: Assignment) -> None:
        self._places = places
        self._assignments = assignments
        self._hosts: dict[str, HostProcess] = {}
        self._told: dict[str, tuple[Assignment, ...]] = {}
        self._turn = asyncio.Lock()
        self.restarts = 0

    async def run(self) -> None:
        """Keep hosts alive, and told where to work, until cancelled."""
        while True:
            async with self._turn:
                for site, folder in self._places.folders().items():
                    await self._look(site, folder)
            await asyncio.sleep(LOOK)

    async def _look(self, site: str, folder: Path) -> None:
        host = self._hosts.get(site)
        if host is None or not host.is_alive:
            if host is not None:
                await host.kill()
                self.restarts += 1
            self._told.pop(site, None)
            host = HostProcess(folder)
            await host.start()
            self._hosts[site] = host
        wanted = tuple(
            each for each in self._assignments if self._places.home(site, each.log) == site
        )
        if self._told.get(site) != wanted:
            host.assign(*wanted)
            self._told[site] = wanted

    def hosts(self) -> list[int]:
        """The process ids of the hosts."""
        return [host.pid for host in self._hosts.values() if host.is_alive]

    def workers(self) -> list[int]:
        """The process ids of the workers."""
        return [pid for host in self._hosts.values() if host.is_alive for pid in host.workers]

    def running(self) -> list[Running]:
        """What the hosts reported last."""
        return [one for host in self._hosts.values() for one in host.running.values()]

    async def leave(self, site: str) -> None:
        """Kill the host of a site, which is about to be lost."""
        async with self._turn:
            if (host := self._hosts.pop(site, None)) is not None:
                await host.kill()
            self._told.pop(site, None)

    async def close(self) -> None:
        """Kill all hosts."""
        for host in self._hosts.values():
            await host.kill()


class _Local:
    """The sites of a local fabric."""

    def __init__(self, fabric: LocalFabric) -> None:
        self._fabric = fabric

    def folders(self) -> dict[str, Path]:
        return {name: site.data for name, site in self._fabric.sites.items()}

    def home(self, site: str, log: str) -> str | None:
        if site not in self._fabric.sites:  # it was lost while another was looked at
            return None
        part = self._fabric.agent(site).fabric
        entry = part.copies.entry(log) if part is not None else None
        return entry.home if entry is not None else None


@contextlib.asynccontextmanager
async def steered(fabric: LocalFabric, *assignments: Assignment) -> AsyncIterator[StandIn]:
    """Hosts at every site of a fabric, told where to work."""
    stand_in = StandIn(_Local(fabric), *assignments)
    task = asyncio.create_task(stand_in.run())
    try:
        yield stand_in
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await stand_in.close()
