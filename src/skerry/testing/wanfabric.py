"""A fabric on an emulated wide-area network: each site in a network of its own."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import uvloop

from skerry.engine.binary import find_binary
from skerry.engine.folder import Folder
from skerry.fabric.join import begin
from skerry.testing.local import LocalSite
from skerry.testing.wan import Wan

T = TypeVar("T")

PORT = 4222
LINK_PORT = 7422
STOP_TIME = 30.0


class _Place:
    """A thread with an event loop in the network of one site. Whatever runs there, engines too,
    sees that network only."""

    def __init__(self, wan: Wan, site: str) -> None:
        self._wan = wan
        self._site = site
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._main, name=f"wan-{site}", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _main(self) -> None:
        with self._wan.inside(self._site):
            self._loop = uvloop.new_event_loop()
            asyncio.set_event_loop(self._loop)
            self._loop.call_soon(self._ready.set)
            self._loop.run_forever()
            self._loop.close()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` there to its end."""
        assert self._loop is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def stop(self) -> None:
        """End the thread, and before it what was cancelled and has not ended yet."""
        if self._loop is not None:
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(_end_all(), self._loop).result(STOP_TIME)
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_TIME)


async def _end_all() -> None:
    """End every other task of this loop."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class WanFabric:
    """Real sites with real engines on a `Wan`, the first of them the coordination site.

        async with WanFabric(["hub", "farm", "lab"], delay=0.04) as fabric:
            async def publish(site):
                async with site.connect() as client:
                    await client.create_topic("t", replicas=1)
            await fabric.run("farm", publish)
            await fabric.wan.cut("farm")

    `delay` is in seconds one way between any two sites, `delays` for those pairs that differ, both
    ways; `jitter` is what a packet takes longer at the most. Settings are those of `SiteSettings`.
    Needs what `Wan` needs; ask `Wan.unavailable()` first.
    """

    def __init__(
        self,
        sites: Iterable[str],
        *,
        delay: float = 0.0,
        jitter: float = 0.0,
        delays: Mapping[tuple[str, str], float] | None = None,
        each: dict[str, dict[str, Any]] | None = None,
        **settings: Any,
    ) -> None:
        self.names = list(sites)
        self.wan = Wan(self.names, delay=delay, jitter=jitter)
        self.sites: dict[str, LocalSite] = {}
        self._delays = dict(delays or {})
        self._each = each or {}
        self._settings = settings
        self._places: dict[str, _Place] = {}
        self._root = Path(tempfile.mkdtemp(prefix="skerry-wan-"))

    async def __aenter__(self) -> Self:
        await self.wan.__aenter__()
        try:
            for (one, other), delay in self._delays.items():
                await self.wan.set(one, other, delay=delay)
            for name in self.names:
                self._places[name] = await asyncio.to_thread(_Place, self.wan, name)
            first, *others = self.names
            folder = Folder.open(self._root / first, first, find_binary()[1])
            try:
                begin(folder, "wan")
            finally:
                folder.close()
            await self.start(first)
            tokens = {name: await self.run(first, _token) for name in others}
            async with asyncio.TaskGroup() as group:
                for name, token in tokens.items():
                    group.create_task(self.start(name, token))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def start(self, name: str, token: str | None = None) -> None:
        """Start a site, or start it again."""
        address = self.wan.address(name)
        settings = {
            "host": address,
            "port": PORT,
            "link_port": LINK_PORT,
            "tier": "hub" if name == self.names[0] else "edge",
            "insecure": True,
            **self._settings,
            **self._each.get(name, {}),
        }

        async def begin_there() -> LocalSite:
            site = LocalSite(join=token, site=name, data=self._root / name, **settings)
            return await site.__aenter__()

        self.sites[name] = await self._places[name].run(begin_there())

    async def stop(self, name: str) -> None:
        """Stop a site in order."""
        await self._places[name].run(self.sites.pop(name).__aexit__(None, None, None))

    async def crash(self, name: str) -> None:
        """Lose a site: its engine is killed and not started anew, its agent stops."""
        await self._places[name].run(self.sites.pop(name).crash())

    async def run(self, name: str, work: Callable[[LocalSite], Awaitable[T]]) -> T:
        """Run `work(site)` in the network of site `name`."""

        async def there() -> T:
            return await work(self.sites[name])

        return await self._places[name].run(there())

    async def close(self) -> None:
        """Stop all sites, remove their folders and networks."""
        for name in self.names:
            with contextlib.suppress(Exception):
                await self.wan.heal(name)
        for name in reversed(list(self.sites)):
            await self.stop(name)
        for place in self._places.values():
            await asyncio.to_thread(place.stop)
        await self.wan.__aexit__(None, None, None)
        shutil.rmtree(self._root, ignore_errors=True)


async def _token(site: LocalSite) -> str:
    async with site.connect("admin") as admin:
        return await admin.join_token()
