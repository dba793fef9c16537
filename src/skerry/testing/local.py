"""A site on loopback that lives as long as a test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any, Self

from skerry.client import Client, connect
from skerry.config import ClientSettings, SiteSettings
from skerry.site import Site


class LocalSite:
    """A real site with a real engine on free ports, in a temporary folder.

        async with LocalSite() as site, site.connect() as client:
            await client.create_topic("t")

    Takes the settings of `SiteSettings` by name, and `join`, a token to join a fabric with. The
    folder is removed at the end unless `data` was given.
    """

    def __init__(self, **settings: Any) -> None:
        join = settings.pop("join", None)
        self._temporary = "data" not in settings
        data = Path(settings.pop("data", None) or tempfile.mkdtemp(prefix="skerry-"))
        self.settings = SiteSettings(**{"port": 0, **settings, "data": data})
        self.site = Site(self.settings, join=join)

    async def __aenter__(self) -> Self:
        try:
            await self.site.__aenter__()
        except BaseException:
            self._remove()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.site.close()
        self._remove()

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.settings.data

    def connect(
        self,
        user: str = "sdk",
        *,
        timeout: float | None = None,
        settings: ClientSettings | None = None,
    ) -> Client:
        """A client of this site, as `user`."""
        return connect(self.data, user=user, timeout=timeout, settings=settings)

    def kill_engine(self) -> None:
        """Kill the engine as a crash would; the site starts it anew."""
        self._signal(signal.SIGKILL)

    async def crash(self) -> None:
        """Lose the site: its engine is killed and not started anew, its agent stops."""
        engine = self.site.engine
        engine.stop_watching()
        self.kill_engine()
        while engine.pid is not None:  # else the agent would ask it how far its logs are
            await asyncio.sleep(0.005)
        await self.__aexit__(None, None, None)

    def freeze_engine(self) -> None:
        """Stop the engine in its tracks, as a swapping or paused machine would. When this returns,
        all its threads stand still."""
        pid = self._signal(signal.SIGSTOP)
        if pid is not None:
            with contextlib.suppress(ChildProcessError):  # somebody killed it meanwhile
                os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)

    def thaw_engine(self) -> None:
        """Let a frozen engine go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> int | None:
        if (pid := self.site.engine.pid) is not None:
            os.kill(pid, number)
        return pid

    def _remove(self) -> None:
        if self._temporary:
            shutil.rmtree(self.data, ignore_errors=True)
