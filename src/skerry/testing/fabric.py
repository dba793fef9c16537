"""Several sites on loopback, joined into a fabric, that live as long as a test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from skerry.client import Client
from skerry.config import ClientSettings
from skerry.engine.binary import find_binary
from skerry.engine.folder import Folder
from skerry.fabric.join import begin
from skerry.site import Site
from skerry.testing.local import LocalSite


class LocalFabric:
    """Real sites with real engines, the first of them the coordination site.

        async with LocalFabric(["hub", "farm", "lab"]) as fabric:
            async with fabric.connect("farm") as client:
                await client.create_topic("t", replicas=2)
            await fabric.crash("farm")

    Takes the settings of `SiteSettings` by name, for all sites; `each` maps a site's name to
    settings of its own. Every site takes links unless its own settings say `link_port=None`.
    """

    def __init__(
        self,
        sites: int | Iterable[str] = 3,
        *,
        each: dict[str, dict[str, Any]] | None = None,
        **settings: Any,
    ) -> None:
        names = [f"site{n}" for n in range(1, sites + 1)] if isinstance(sites, int) else list(sites)
        self.names = names
        self.sites: dict[str, LocalSite] = {}
        self._settings = settings
        self._each = each or {}
        self._root = Path(tempfile.mkdtemp(prefix="skerry-fabric-"))
        self._ports: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        try:
            first, *others = self.names
            data = self._root / first
            folder = Folder.open(data, first, find_binary()[1])
            try:
                begin(folder, "local")
            finally:
                folder.close()
            await self.start(first)
            for name in others:
                await self.add(name)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __getitem__(self, name: str) -> LocalSite:
        return self.sites[name]

    async def add(self, name: str) -> LocalSite:
        """Have a new site join."""
        if name not in self.names:
            self.names.append(name)
        async with self.connect(self.names[0], "admin") as admin:
            token = await admin.join_token()
        return await self.start(name, token)

    async def start(self, name: str, token: str | None = None) -> LocalSite:
        """Start a site that was stopped or crashed, on the ports that it had."""
        settings = {
            "link_port": 0,
            "tier": "hub" if name == self.names[0] else "edge",
            "port": self._ports.get(name, 0),
            **self._settings,
            **self._each.get(name, {}),
        }
        site = LocalSite(join=token, site=name, data=self._root / name, **settings)
        await site.__aenter__()
        self.sites[name] = site
        self._ports[name] = site.site.ports.client
        return site

    async def stop(self, name: str) -> None:
        """Stop a site in order."""
        await self.sites.pop(name).__aexit__(None, None, None)

    async def crash(self, name: str) -> None:
        """Lose a site: its engine is killed and not started anew, its agent stops."""
        await self.sites.pop(name).crash()

    def connect(
        self,
        name: str,
        user: str = "sdk",
        *,
        timeout: float | None = None,
        settings: ClientSettings | None = None,
    ) -> Client:
        """A client of site `name`, as `user`."""
        return self.sites[name].connect(user, timeout=timeout, settings=settings)

    def agent(self, name: str) -> Site:
        """The agent of a site."""
        return self.sites[name].site

    async def close(self) -> None:
        """Stop all sites and remove their folders."""
        for name in reversed(list(self.sites)):
            await self.stop(name)
        shutil.rmtree(self._root, ignore_errors=True)

    @property
    def root(self) -> Path:
        """The folder that holds each site's data folder, by name."""
        return self._root
