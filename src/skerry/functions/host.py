"""`python -m skerry.functions.host`: runs the functions of a site, as its agent tells it to.

The first line of its input is the address of the engine with the credentials, so that they stand in
no argument and no file; each further line is an `Assignments`. It writes a `Report` once a second,
and at once when a state changes. It ends when its input does, on SIGTERM, and with its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys

import msgspec
import uvloop

from skerry.engine.address import Address
from skerry.engine.wire import Listener
from skerry.errors import SkerryError
from skerry.functions.access import Access
from skerry.functions.again import Requests
from skerry.functions.assignment import Assignment, Assignments, Report
from skerry.functions.lines import Lines
from skerry.functions.runner import Runner

log = logging.getLogger("skerry.functions")

REPORT = 1.0
"""Seconds between reports, at the most."""
LEAST = 0.02
"""Seconds between reports, at the least."""
MAX_LINE = 64 * 1024 * 1024
"""Bytes of what the agent says at once."""
PAUSE = 1.0
"""Seconds before a site that cannot be reached is tried again."""
CLOSING = 6.0
"""Seconds that all runners together may take to end in order."""

KEPT_MEMORY = 64 * 1024 * 1024
"""Bytes that are kept for later at the most."""

_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

Key = tuple[str, str]


class _End(Listener):
    """Ends the host when its connection is closed for good: its credentials are refused, say. The
    agent starts another with those that are right."""

    def __init__(self, commands: asyncio.Queue[Assignments | None]) -> None:
        self._commands = commands

    def on_closed(self, error: SkerryError) -> None:
        """Nothing can be done any more."""
        log.error("the connection is closed: %s", error.what)
        self._commands.put_nowait(None)


class Host:
    """The functions of a site."""

    def __init__(self, access: Access, output: asyncio.WriteTransport) -> None:
        self._access = access
        self._output = output
        self._lines = Lines(access)
        self._requests = Requests(access)
        self._runners: dict[Key, Runner] = {}
        self._changed = asyncio.Event()
        self._closing: set[asyncio.Task[None]] = set()

    async def run(self, commands: asyncio.Queue[Assignments | None]) -> None:
        """Do what is told until there is nothing more to come."""
        beside = [
            asyncio.create_task(work)
            for work in (self._lines.run(), self._requests.run(), self._report())
        ]
        try:
            while (command := await commands.get()) is not None:
                while not commands.empty():  # only the newest counts
                    if (newer := commands.get_nowait()) is None:
                        return
                    command = newer
                await self.assign(command)
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSING):
                    await self.close()
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    async def assign(self, command: Assignments) -> None:
        """Run these, and nothing else."""
        wanted = {(each.function, each.log): each for each in command.assignments}
        ended = [
            self._runners.pop(key)
            for key, runner in list(self._runners.items())
            if wanted.get(key) != runner.assignment
        ]
        # A version follows the one before it once that has delivered what it committed.
        same = [runner for runner in ended if _key(runner.assignment) in wanted]
        for runner in ended:
            if runner not in same:
                task = asyncio.create_task(runner.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
        await asyncio.gather(*(runner.close() for runner in same))
        for key, assignment in wanted.items():
            if key not in self._runners:
                self._runners[key] = Runner(
                    self._access, self._lines, self._requests, assignment, self._changed.set
                )
        self._changed.set()

    async def close(self) -> None:
        """End everything in order."""
        runners, self._runners = list(self._runners.values()), {}
        await asyncio.gather(*(runner.close() for runner in runners), *self._closing)

    async def _report(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT):
                    await self._changed.wait()
            self._changed.clear()
            report = Report(tuple(runner.status for runner in self._runners.values()))
            if self._output.get_write_buffer_size() < 1024 * 1024:  # else nobody reads
                self._output.write(msgspec.json.encode(report) + b"\n")
            await asyncio.sleep(LEAST)


def _key(assignment: Assignment) -> Key:
    return assignment.function, assignment.log


async def main() -> None:
    """Run a host until its input ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    output, _ = await loop.connect_write_pipe(asyncio.Protocol, sys.stdout)
    commands: asyncio.Queue[Assignments | None] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, commands.put_nowait, None)
    address = msgspec.json.decode(await reader.readline(), type=Address)
    listening = asyncio.create_task(_listen(reader, commands))
    working = asyncio.create_task(_work(address, output, commands))
    try:
        await asyncio.wait((listening, working), return_when=asyncio.FIRST_COMPLETED)
        commands.put_nowait(None)
        await working
    finally:
        listening.cancel()
        output.close()


async def _listen(
    reader: asyncio.StreamReader, commands: asyncio.Queue[Assignments | None]
) -> None:
    while line := await reader.readline():
        try:
            commands.put_nowait(msgspec.json.decode(line, type=Assignments))
        except msgspec.MsgspecError as error:
            log.error("what the agent said cannot be read: %s", error)


async def _work(
    address: Address,
    output: asyncio.WriteTransport,
    commands: asyncio.Queue[Assignments | None],
) -> None:
    access = await _connect(address, commands)
    if access is None:
        return
    end = _End(commands)
    access.connection.listen(end)
    try:
        await Host(access, output).run(commands)
    finally:
        access.connection.unlisten(end)
        await access.close()


async def _connect(address: Address, commands: asyncio.Queue[Assignments | None]) -> Access | None:
    """Connect, however long that takes; None: it is over before."""
    while True:
        try:
            return await Access.open(address)
        except SkerryError as error:
            log.warning("functions wait for the site: %s", error.what)
        await asyncio.sleep(PAUSE)
        if not commands.empty():
            command = commands.get_nowait()
            if command is None:
                return None
            commands.put_nowait(command)


def _prepare() -> None:
    """Make this process one that ends with its parent, and that is good at moving events."""
    libc = ctypes.CDLL(None)
    parent = os.getppid()
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)  # the agent is dead already, and the next one starts another host
    if hasattr(libc, "mallopt"):
        # Keep memory instead of giving it back after each record: a seventh of the time for
        # events of 8 KB went into fetching it again.
        libc.mallopt(_M_TRIM_THRESHOLD, KEPT_MEMORY)
        libc.mallopt(_M_MMAP_THRESHOLD, KEPT_MEMORY // 2)
    # Thousands of events are on their way at a time, none of them in a circle.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


if __name__ == "__main__":
    _prepare()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr
    )
    uvloop.run(main())
