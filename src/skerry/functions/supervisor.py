"""Keeps the host alive: the process that runs this site's functions.

It is started when there is something to run, and started anew, after pauses that grow, when it
ends. It gets its connection and what to run over its input, in lines of JSON; nothing of that is
among its arguments. It ends when its input does, and so never outlives the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable

import msgspec

from skerry.engine.address import Address
from skerry.fabric.tasks import Tasks
from skerry.functions.assignment import Assignment, Assignments, Report

log = logging.getLogger("skerry.functions")

HOST = (sys.executable, "-P", "-m", "skerry.functions.host")
"""`-P`: without it, a module that lies in the folder where the site was started would be run."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds before a host that ended is started anew; twice as long each time."""
WELL = 30.0
"""Seconds after which a host counts as well, and the next pause is a short one."""
GRACE = 5.0
"""Seconds that a host has to end in order."""
LONGEST_LINE = 64 * 1024 * 1024
"""Bytes of a report: functions times topics, each with what it is called."""


class Supervisor:
    """One site's host. `on_report` is called with each report, and with None when it is gone."""

    def __init__(self, address: Address, on_report: Callable[[Report | None], None]) -> None:
        self._address = address
        self._on_report = on_report
        self._wanted = Assignments(())
        self._process: asyncio.subprocess.Process | None = None
        self._changed = asyncio.Event()
        self._tasks = Tasks("the keeping of functions' host")
        self._keeping: asyncio.Task[None] | None = None
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """The host's process id; None: there is none now."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def assign(self, assignments: list[Assignment]) -> None:
        """Have the host run these, and nothing else."""
        wanted = Assignments(tuple(assignments))
        if wanted == self._wanted:
            return
        self._wanted = wanted
        if self._keeping is None and assignments:
            self._keeping = self._tasks.spawn(self._keep())
        self._send()

    async def close(self) -> None:
        """End the host in order, or else by force."""
        await self._tasks.close()

    def _send(self) -> None:
        process = self._process
        if process is not None and process.stdin is not None and process.returncode is None:
            with contextlib.suppress(ConnectionError, RuntimeError):  # it is about to be missed
                process.stdin.write(msgspec.json.encode(self._wanted) + b"\n")

    async def _keep(self) -> None:
        pause = FIRST_PAUSE
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                code = await self._run()
            except OSError as error:
                log.error("the process that runs functions cannot be started: %s", error)
                code = -1
            self._on_report(None)
            pause = FIRST_PAUSE if clock() - began > WELL else min(pause * 2, LONGEST_PAUSE)
            self.restarts += 1
            log.warning("the process that runs functions ended (%d); again in %.1f s", code, pause)
            await asyncio.sleep(pause)

    async def _run(self) -> int:
        self._process = process = await asyncio.create_subprocess_exec(
            *HOST,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LONGEST_LINE,
            start_new_session=True,  # Ctrl-C is for the agent, which ends it in order
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        errors = self._tasks.spawn(_pass_on(process.stderr))
        try:
            process.stdin.write(msgspec.json.encode(self._address) + b"\n")
            self._send()
            await self._listen(process.stdout)
            return await process.wait()
        finally:
            await _end(process)
            errors.cancel()

    async def _listen(self, output: asyncio.StreamReader) -> None:
        while line := await output.readline():
            try:
                self._on_report(msgspec.json.decode(line, type=Report))
            except msgspec.DecodeError as error:
                log.error("the process that runs functions said something odd: %s", error)


async def _pass_on(errors: asyncio.StreamReader) -> None:
    """What the host complains about goes to the agent's log."""
    while True:
        try:
            line = await errors.readline()
        except ValueError:  # longer than the limit
            continue
        if not line:
            return
        log.warning("functions: %s", line.decode(errors="replace").rstrip()[:2000])


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    if process.returncode is not None:
        return
    try:
        async with asyncio.timeout(GRACE):
            await process.wait()
    except TimeoutError:
        log.warning("the process that runs functions did not end in time; killing it")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
