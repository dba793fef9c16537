"""Host processes as an agent would run them, and functions for them to run."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil

from skerry import Client
from skerry.engine.address import find_address
from skerry.functions.assignment import Assignment, Assignments, Report, Running
from skerry.model.control import TopicRequest
from skerry.model.functions import FunctionSettings, Version, journal_of
from tests.conftest import until

COUNTS = """
    import skerry

    @skerry.function
    def count(ctx, event):
        key = event.key or event.topic
        number = ctx.state.get(key, 0) + 1
        ctx.state[key] = number
        ctx.publish("out", f"{event.data.decode()} {key} {number}", key=key)
"""
"""Counts events by key, and tells of each which one it is."""


def assignment(
    code: Path,
    source: str,
    *,
    function: str = "count",
    log: str = "in",
    version: int = 1,
    since: int = 0,
    **settings: Any,
) -> Assignment:
    """A function to run, its code written to `code`."""
    text = textwrap.dedent(source)
    code.write_text(text)
    return Assignment(
        function=function,
        version=Version(
            number=version,
            code=hashlib.sha256(text.encode()).hexdigest(),
            kind="python",
            handler="",
            settings=FunctionSettings(**{"topic": log, **settings}).check(),
            site="local",
            deployed=time.time_ns(),
        ),
        log=log,
        journal=journal_of(function, log),
        since=since,
        code=str(code),
        python=sys.executable,
    )


async def make_topics(
    client: Client, *functions: Assignment, replicas: int = 0, home: str = ""
) -> None:
    """What an agent makes for functions: journals, dead letters, logs, requests."""
    more: dict[str, Any] = {}
    if replicas:
        more = {"replicas": replicas, "ack": "quorum"}
    if home:
        more["home"] = home
    for each in functions:
        await _make(client, each.journal, keep_last=1, **more)
    for name in ("dead", "logs", "again"):
        await _make(client, f"functions/{name}", **more)


async def _make(client: Client, name: str, **settings: Any) -> None:
    """Make a topic of Skerry's own, which needs an administrator's client."""
    if "home" in settings:
        settings["prefer"] = [settings.pop("home")]
    await client._ask("admin.topic.create", TopicRequest(name, settings))


class HostProcess:
    """A host and what it told last."""

    def __init__(self, data: Path, user: str = "admin") -> None:
        self._data = data
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        self._listening: asyncio.Task[None] | None = None
        self.running: dict[tuple[str, str], Running] = {}
        self.states: list[tuple[str, str]] = []
        """Every state that was reported, with its error."""

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def workers(self) -> list[int]:
        """The process ids of its workers."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(self.pid).children()]
        return []

    async def start(self) -> None:
        """Start it."""
        process = subprocess.Popen(
            [sys.executable, "-m", "skerry.functions.host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._process = process
        self._say(find_address(self._data, self._user))
        self._listening = asyncio.create_task(self._listen(process))

    def assign(self, *assignments: Assignment) -> None:
        """Have it run these and nothing else."""
        self._say(Assignments(assignments))

    def _say(self, message: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            self._process.stdin.flush()

    async def _listen(self, process: subprocess.Popen[bytes]) -> None:
        reader = asyncio.StreamReader(limit=16 * 1024 * 1024)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
        try:
            while line := await reader.readline():
                report = msgspec.json.decode(line, type=Report)
                self.running = {(each.function, each.log): each for each in report.running}
                for each in report.running:
                    if not self.states or self.states[-1] != (each.state, each.error):
                        self.states.append((each.state, each.error))
        finally:
            transport.close()

    async def kill(self) -> None:
        """Kill it as a crash would, if it still runs."""
        if self._process is not None:
            self._process.kill()
            await self._end()

    async def stop(self) -> int:
        """Let it end in order; its exit code."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        await asyncio.to_thread(process.wait, 60)
        await self._end()
        return process.returncode

    async def _end(self) -> None:
        assert self._process is not None
        process, self._process = self._process, None
        await asyncio.to_thread(process.wait)
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        if self._listening is not None:
            await self._listening
            self._listening = None

    async def is_in(
        self,
        state: str,
        function: str = "count",
        log: str = "in",
        *,
        handled: int = 0,
        version: int = 0,
        error: str = "",
    ) -> Running:
        """Wait until a function is in a state, has handled so many events, is of that version at
        least, and says so."""

        def check() -> bool:
            one = self.running.get((function, log))
            return (
                one is not None
                and one.state == state
                and one.handled >= handled
                and one.version >= version
                and error in one.error
            )

        await until(check, 60)
        return self.running[function, log]


@contextlib.asynccontextmanager
async def host(data: Path, *assignments: Assignment) -> AsyncIterator[HostProcess]:
    """A host at the site in folder `data`; killed at the end."""
    process = HostProcess(data)
    await process.start()
    process.assign(*assignments)
    try:
        yield process
    finally:
        await process.kill()


async def outputs(client: Client, topic: str = "out") -> list[str]:
    """What a topic holds."""
    return [bytes(event.data).decode() async for event in client.read(topic)]


async def holds(client: Client, count: int, topic: str = "out", seconds: float = 60) -> list[str]:
    """Wait until a topic holds so many events; what they are."""

    async def enough() -> bool:
        return await client.latest_index(topic) >= count

    await until(enough, seconds)
    return await outputs(client, topic)
