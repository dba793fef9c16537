"""What the fault tests share: errors that must help, and real processes to do harm to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from skerry.engine.binary import find_binary
from skerry.engine.process import free_port
from skerry.errors import SkerryError
from skerry.testing import LocalSite
from tests.conftest import until


@contextlib.contextmanager
def refused(kind: type[SkerryError], *culprits: object) -> Iterator[None]:
    """The block raises exactly `kind`, whose message names every culprit and whose advice helps."""
    with pytest.raises(kind) as caught:
        yield
    error = caught.value
    assert type(error) is kind
    assert [str(c) for c in culprits if str(c) not in error.what] == [], error.what
    assert error.advice


class SiteProcess:
    """A site in a process of its own."""

    _PROGRAM = """
import asyncio, json, pathlib, sys
from skerry.config import SiteSettings
from skerry.site import Site

async def main():
    settings = SiteSettings(data=pathlib.Path(sys.argv[1]), port=int(sys.argv[2]))
    async with Site(settings) as site:
        print(json.dumps({"engine": site.engine.pid, "port": site.ports.client}), flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""

    def __init__(self, process: subprocess.Popen[bytes], engine: int, port: int) -> None:
        self._process = process
        self.pid = process.pid
        self.engine = engine
        self.port = port

    async def kill(self) -> None:
        """Kill the agent as a crash would, and see it dead. Nobody asks for its exit code yet, so
        that its process id is not free."""
        self._process.kill()
        await until(lambda: not is_running(self.pid))


@contextlib.asynccontextmanager
async def site_process(data: Path, port: int = 0) -> AsyncIterator[SiteProcess]:
    """Run a site in a process of its own; it is killed at the end."""
    command = [sys.executable, "-c", SiteProcess._PROGRAM, str(data), str(port)]
    with killed(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    ) as process:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            line = await asyncio.to_thread(process.stdout.readline)
        assert line, "the site did not start"
        site = SiteProcess(process, **json.loads(line))
        try:
            yield site
        finally:
            process.kill()
            with contextlib.suppress(psutil.NoSuchProcess):
                engine = psutil.Process(site.engine)
                if str(data / "engine.json") in engine.cmdline():
                    engine.kill()


@contextlib.contextmanager
def killed(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Kill the process at the end, whatever happens, and leave nothing of it open."""
    with process:
        try:
            yield process
        finally:
            process.kill()


def is_running(pid: int) -> bool:
    """Whether the process is alive; one that only waits to be reaped is not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def freeze(site: LocalSite) -> None:
    """Freeze a site's engine, and see every thread of it stopped."""
    pid = site.site.engine.pid
    assert pid is not None
    site.freeze_engine()
    await until(lambda: _is_stopped(pid))


def _is_stopped(pid: int) -> bool:
    threads = [thread.id for thread in psutil.Process(pid).threads()]
    return all(psutil.Process(thread).status() == psutil.STATUS_STOPPED for thread in threads)


def unused_port() -> int:
    """A port on loopback that nobody listens on, and that no outgoing connection is given."""
    return free_port("127.0.0.1")


@contextlib.asynccontextmanager
async def nats_server(folder: Path, **conf: Any) -> AsyncIterator[int]:
    """Run a nats-server of the user's own with JetStream; yields its port."""
    port = unused_port()
    file = folder / "nats-server.json"
    store = {"jetstream": {"store_dir": str(folder / "store")}}
    file.write_text(json.dumps({"listen": f"127.0.0.1:{port}", **store, **conf}))
    binary, _ = find_binary()
    log = folder / "nats-server.log"
    with (
        log.open("wb") as out,
        killed(subprocess.Popen([binary, "-c", file], stdout=out, stderr=out)) as process,
    ):
        await until(lambda: _listens(port) or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        yield port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def is_root() -> bool:
    """Root ignores permissions, and may mount."""
    return os.geteuid() == 0
