"""Processes of a campaign: none outlives it, and sites come back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import psutil

from skerry.engine.bound import bound
from skerry.testing.wan import Wan

Result = TypeVar("Result")

RETRY = 75
"""The exit code of a site that found its folder or port still in use: no fault of its own."""


class Network:
    """Where the sites are: an emulated network, or loopback."""

    def __init__(self, wan: Wan | None) -> None:
        self.wan = wan

    def address(self, site: str) -> str:
        """The address of a site."""
        return self.wan.address(site) if self.wan else "127.0.0.1"

    def inside(self, site: str) -> contextlib.AbstractContextManager[None]:
        """Have this thread at `site`."""
        return self.wan.inside(site) if self.wan else contextlib.nullcontext()

    def start(self, site: str, module: str, spec: object, log: Path) -> subprocess.Popen[bytes]:
        """Run `tests.soak.<module>` at `site`; what it says is appended to `log`."""
        command = [sys.executable, "-m", f"tests.soak.{module}", json.dumps(spec)]
        with log.open("ab") as out, self.inside(site):
            return subprocess.Popen(
                bound(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=Path(__file__).parents[2],
                process_group=0,  # a Ctrl-C is for the campaign, which stops them in order
            )


class Place:
    """An event loop at a site: a thread of ours that lives in the site's network."""

    def __init__(self, network: Network, site: str) -> None:
        self._network = network
        self._site = site
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"at-{site}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._network.inside(self._site):
            self._loop.run_forever()

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Have `work` done there."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        if not self._thread.is_alive():
            self._loop.close()


class SiteProcess:
    """A site that is started anew when it dies."""

    def __init__(
        self, network: Network, spec: dict[str, Any], logs: Path, note: Callable[[str], None]
    ) -> None:
        self.name: str = spec["site"]
        self.data = Path(spec["data"])
        self._network = network
        self._spec = spec
        self._log = logs / f"{self.name}.log"
        self._note = note
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self._pause = 0.5
        self._stopping = False
        self._keeper: asyncio.Task[None] | None = None
        self.failures: list[str] = []
        """Ends that nobody asked for."""
        self.is_full = False
        """Whether its disk is full: then it may end, and is tried again."""

    @property
    def engine_log(self) -> Path:
        """What the engine says."""
        return self.data / "engine.log"

    def start(self) -> None:
        """Start it, and keep it running."""
        self._spawn()
        self._keeper = asyncio.create_task(self._keep())

    def _spawn(self) -> None:
        self._ready.unlink(missing_ok=True)
        self._process = self._network.start(self.name, "site", self._spec, self._log)

    @property
    def _ready(self) -> Path:
        return Path(self._spec["ready"])

    @property
    def is_ready(self) -> bool:
        """Whether it has started."""
        with contextlib.suppress(OSError):
            return self._process is not None and self._ready.read_text() == str(self._process.pid)
        return False

    async def _keep(self) -> None:
        while not self._stopping:
            process = self._process
            assert process is not None
            while process.poll() is None:
                await asyncio.sleep(0.02)
            if self._stopping:
                return
            if not (self._killed or self.is_full) and process.returncode != RETRY:
                text = f"site {self.name} ended by itself with code {process.returncode}"
                self._note(text)
                self.failures.append(text)
            await asyncio.sleep(self._pause if self._killed else 0.3)
            self._killed = False
            self._spawn()

    @property
    def agent(self) -> int | None:
        """The agent's process id, while it runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def engine(self) -> int | None:
        """The engine's process id, while it runs."""
        if self.agent is not None:
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(self.agent).children():
                    if child.name().startswith("nats-server"):
                        return child.pid
        return None

    def kill(self, pause: float) -> bool:
        """Kill the agent, and the engine with it; it comes back after `pause` seconds."""
        if self.agent is None:
            return False
        self._pause = pause
        self._killed = True
        os.kill(self.agent, signal.SIGKILL)
        return True

    def signal(self, which: str, number: int) -> int | None:
        """Send a signal to its `engine` or `agent`; return the process that got it."""
        pid = self.engine if which == "engine" else self.agent
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pid

    def thaw(self) -> None:
        """Let everything of it go on that was stopped."""
        self.signal("agent", signal.SIGCONT)
        self.signal("engine", signal.SIGCONT)

    async def _leave(self) -> None:
        """Keep it no more."""
        self._stopping = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)

    async def destroy(self) -> float:
        """Lose it for good: its processes are killed, and its folder is gone. When they died."""
        await self._leave()
        if (process := self._process) is not None:
            engine = self.engine
            process.kill()
            await asyncio.to_thread(process.wait)
            while engine is not None and psutil.pid_exists(engine):
                await asyncio.sleep(0.02)  # it dies with its agent
        moment = time.time()
        await asyncio.to_thread(_empty, self.data)
        return moment

    async def stop(self) -> None:
        """Stop it in order, or else at all."""
        await self._leave()
        if self._process is not None:
            self.thaw()
            await end(self._process, 15)


def _empty(folder: Path) -> None:
    """Remove what is in a folder, which may be a disk of its own."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


FILL_TRIES = 50


class Disk:
    """A file system of its own for a site, which can be full. Needs root."""

    def __init__(self, path: Path, megabytes: int) -> None:
        self.path = path
        self._megabytes = megabytes

    @staticmethod
    def unavailable() -> str | None:
        """Why none can be made; None: it can."""
        if sys.platform != "linux" or os.geteuid() != 0:
            return "only root may mount, on Linux"
        with tempfile.TemporaryDirectory() as folder:
            disk = Disk(Path(folder) / "try", 1)
            try:
                disk.mount()
            except subprocess.CalledProcessError as error:
                return f"mounting is not permitted here: {error.stderr.decode().strip()}"
            disk.unmount()
        return None

    def mount(self) -> None:
        """Have it at its path."""
        self.path.mkdir()
        _mount("-t", "tmpfs", "-o", f"size={self._megabytes}m", "skerry-soak", str(self.path))

    def fill(self) -> None:
        """Leave no room: it becomes as small as what is on it."""
        for _ in range(FILL_TRIES):
            found = os.statvfs(self.path)
            used = (found.f_blocks - found.f_bfree) * found.f_frsize
            with contextlib.suppress(subprocess.CalledProcessError):  # it has grown meanwhile
                return _mount("-o", f"remount,size={used}", str(self.path))
        raise RuntimeError(f"{self.path} grows too fast to be filled")

    def make_room(self) -> None:
        """Have it as large as before."""
        _mount("-o", f"remount,size={self._megabytes}m", str(self.path))

    def unmount(self, keep: bool = False) -> None:
        """Have it no more, nor what is on it; or else `keep` that in its place."""
        copy = self.path.with_name(f"{self.path.name}.kept")
        if keep:
            shutil.copytree(self.path, copy)
        subprocess.run(["umount", "--lazy", self.path], check=False, capture_output=True)
        if keep:
            self.path.rmdir()
            copy.rename(self.path)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


async def end(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Ask a process to end; kill it after `seconds`. Whether it ended by itself."""
    if process.poll() is None:
        process.terminate()
    deadline = asyncio.get_running_loop().time() + seconds
    while process.poll() is None and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.02)
    if process.poll() is not None:
        return True
    process.kill()
    process.wait()
    return False


async def until(
    what: str, seconds: float, look: Callable[[], Awaitable[str]], every: float = 0.2
) -> str:
    """Wait until `look` finds nothing to wait for. Returns what hangs; empty: nothing does."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while hangs := await look():
        if loop.time() > deadline:
            return f"{what} not within {seconds:.0f} s: {hangs}"
        await asyncio.sleep(every)
    return ""
