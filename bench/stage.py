"""What a benchmark plays on: a site in processes of its own, reached as applications reach it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import psutil
from nats.aio.client import Client as NatsClient

import skerry
from skerry.engine.address import Address, find_address
from skerry.errors import Unavailable
from skerry.model.topic import Durability

MB = 2**20
STARTING = 20.0
"""Seconds that a site may take to answer for the first time."""
SIZES = {"128b": 128, "1k": 1024, "8k": 8192}
"""Bytes of an event's data, by the name that figures use."""


class Stage:
    """A running site, and its administrator's client for what is not timed."""

    def __init__(self, data: Path, admin: skerry.Client, process: int) -> None:
        self.data = data
        self.admin = admin
        self._process = process
        self._topics = 0

    @property
    def sdk(self) -> Address:
        """The address and rights that applications have."""
        return find_address(self.data, "sdk")

    @contextlib.asynccontextmanager
    async def topic(self) -> AsyncIterator[str]:
        """A fresh topic, deleted at the end."""
        self._topics += 1
        name = f"bench-{self._topics:04d}"
        await self.admin.create_topic(name)
        try:
            yield name
        finally:
            await self.admin.delete_topic(name)

    @contextlib.asynccontextmanager
    async def nats(self) -> AsyncIterator[NatsClient]:
        """A connected nats-py client with the rights of an application."""
        address = self.sdk
        client = await nats.connect(
            f"nats://{address.host}:{address.port}",
            user=address.user,
            password=address.password,
            inbox_prefix=f"_INBOX_sk.{address.site}.{address.user}.natspy".encode(),
        )
        try:
            yield client
        finally:
            await client.close()

    async def check(self, topic: str, events: int) -> None:
        """Every event must be stored, exactly once."""
        found = await self.admin.latest_index(topic)
        if found != events:
            raise RuntimeError(f"{topic} holds {found} events, not {events}")

    def processes(self) -> list[psutil.Process]:
        """`skerry up`, its engine, and whatever else it started."""
        agent = psutil.Process(self._process)
        return [agent, *agent.children(recursive=True)]

    def memory_mb(self) -> float:
        """Resident memory of `skerry up` and its engine."""
        return sum(process.memory_info().rss for process in self.processes()) / MB


@contextlib.asynccontextmanager
async def running_site(durability: Durability = "process") -> AsyncIterator[Stage]:
    """A fresh site, started by `skerry up`, in a temporary folder that is removed at the end."""
    data = Path(tempfile.mkdtemp(prefix="skerry-bench-"))
    script = str(Path(sys.executable).with_name("skerry"))
    command = [script, "up", "--data", str(data), "--port", "0", "--durability", durability]
    try:
        with (data / "up.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            await _answers(data, process)
            async with skerry.connect(data, user="admin") as admin:
                yield Stage(data, admin, process.pid)
        finally:
            await asyncio.to_thread(end, process)
    finally:
        shutil.rmtree(data, ignore_errors=True)


async def _answers(data: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait for the site to answer."""
    deadline = time.monotonic() + STARTING
    while True:
        with contextlib.suppress(Unavailable):
            async with skerry.connect(data, user="admin", timeout=0.5) as admin:
                await admin.status()
                return
        if process.poll() is not None or time.monotonic() > deadline:
            said = (data / "up.log").read_text(errors="replace")
            raise RuntimeError(f"`skerry up` did not come up: {said[-1000:]}")
        await asyncio.sleep(0.02)


def end(process: subprocess.Popen[bytes]) -> None:
    """Stop a site in order, or else at all."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
