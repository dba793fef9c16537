"""A lane: the host's side of one worker process.

    host ──give──▶ lane ═══socket═══▶ worker
         ◀─on_results─  ◀════════════
                        ◀──memory────  which task, since when
                        ◀──pipe──────  what the code prints

The lane starts the process, tells it tasks, and hands on what came of them. It ends the process
when an event takes too long, when it takes more of the machine than it may, or when it says what no
worker would say: the code in it is the user's, so nothing that comes from it is trusted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from skerry.errors import FunctionBroken, SkerryError
from skerry.functions.channel import Channel, Nonsense
from skerry.functions.context import check_output, check_value
from skerry.functions.frames import (
    SCRATCH,
    SCRATCH_FILES,
    Answer,
    Ask,
    Broken,
    Done,
    Failed,
    FromWorker,
    Ready,
    Result,
    Seen,
    Task,
)
from skerry.functions.process import Launch, WorkerProcess, reason_of
from skerry.functions.text import Text
from skerry.model.event import extra_headers

__all__ = ["End", "Lane", "Launch"]

LOADING = 30.0
"""Seconds that loading the code may take; importing large libraries takes some."""
FRAME_BYTES = 256 * 1024
"""Tasks are told in frames of about so much, so that the worker begins before all have arrived."""
TEXT_PAUSE = 0.01
"""Seconds between two looks at what the code prints while it prints much: 64 KB each."""
LOOK = 1.0
"""Seconds between two looks at what the worker takes of the machine."""
THREADS = 128
"""Threads that a worker may have."""
CLOSED = 0.5
"""Seconds in which a worker that closed its socket has to be gone."""
STUCK = 10.0
"""Seconds, beside those of one event, after which a worker is stuck that does not take the next."""

log = logging.getLogger(__name__)


class End(msgspec.Struct, frozen=True):
    """The worker died, or was killed."""

    number: int
    """The task that it was working on; 0: none. Those behind it were not begun, or what came of
    them is lost."""
    reason: str
    """What follows `the function …`: "took longer than 5 s", "exited with code 3"."""


class Lane:
    """One worker. `start` it, `give` it tasks, `close` it.

    Results come through `on_results`, in the order of the tasks, each task once. When the worker
    dies `on_end` is told so once, behind all results that there will be; tasks that have none then
    have to be given to another lane. Both are called in the event loop, and not any more once
    `close` was called. `answer` is awaited for what the code asks for; meanwhile the event's time
    stands still. `on_text` is given the lines that the code prints, not more than 64 KB a second.

    The worker's state is ahead of what its owner knows to be good: who takes a `Done` for a
    failure must close the lane.
    """

    def __init__(
        self,
        launch: Launch,
        *,
        on_results: Callable[[list[Result]], None],
        on_end: Callable[[End], None],
        answer: Callable[[Ask], Awaitable[Answer]],
        on_text: Callable[[str], None],
    ) -> None:
        self._launch = launch
        self._on_results = on_results
        self._on_end = on_end
        self._answer = answer
        self._on_text = on_text
        self._text = Text(self._line)
        self._last: deque[str] = deque(maxlen=20)
        self._process: WorkerProcess | None = None
        self._channel: Channel | None = None
        self._life: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Ready] | None = None
        self._started = False
        self._verdict = ""
        """Why we killed it."""
        self._blamed = 0
        """The task for which we killed it, if that is known better than by the memory."""
        self._given = 0
        self._answered = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._asked: asyncio.Task[None] | None = None
        self._asked_at = 0
        self._excused = (0, 0)
        """A task, and the nanoseconds that it waited for answers."""
        self._watching = False
        self._suspect = 0
        self._moved = 0.0
        """When the last result came, or the first task after a silence."""
        self._idle_cpu = 0.0
        self._cpu = 0.0
        self._was_idle = False
        self._counting: asyncio.Task[None] | None = None

    async def start(self) -> Ready:
        """Start the process and load the code. Raises `FunctionBroken` if it cannot be loaded."""
        loop = asyncio.get_running_loop()
        try:
            process = self._process = WorkerProcess(self._launch)
        except OSError as error:
            raise FunctionBroken(
                f"{self._launch.python} cannot be started: {error}",
                "Deploy the function again to have its environment made anew.",
            ) from None
        self._ready = loop.create_future()
        channel = self._channel = Channel(
            process.socket,
            on_messages=self._take,
            on_nonsense=self._distrust,
            on_end=lambda: self._later("end", CLOSED, self._cut_off),
        )
        self._life = loop.create_task(self._live(process, channel))
        loop.add_reader(process.text, self._printed)
        channel.send([self._launch.setup])
        try:
            async with asyncio.timeout(LOADING):
                ready = await self._ready
        except TimeoutError:
            await self.close()
            raise FunctionBroken(
                f"the code was not loaded within {LOADING:g} s",
                "Do at its top level only what has to be done once and is quick.",
            ) from None
        except BaseException:
            await self.close()
            raise
        if self._process is None:
            raise FunctionBroken("the function ended as soon as its code was loaded")
        self._started = True
        self._look()
        return ready

    def give(self, tasks: list[Task]) -> None:
        """Queue tasks, which are numbered from 1 on. It is the caller's to limit `waiting`."""
        if not tasks or self._process is None or self._channel is None:
            return
        if tasks[0].number != self._given + 1:
            raise ValueError(f"task {tasks[0].number} does not follow {self._given}")
        if self._given == self._answered:
            self._moved = time.monotonic()
        self._given = tasks[-1].number
        start = size = 0
        for at, task in enumerate(tasks):
            size += len(task.data)
            if size >= FRAME_BYTES:
                self._channel.send(tasks[start : at + 1])
                start, size = at + 1, 0
        if start < len(tasks):
            self._channel.send(tasks[start:])
        if not self._watching:
            self._watching = True
            self._watch()

    @property
    def waiting(self) -> int:
        """Tasks that were given and have no result."""
        return self._given - self._answered

    async def close(self) -> None:
        """End the process and everything that it left behind. Nothing is called any more."""
        self._on_results = self._on_end = self._on_text = _ignore
        if self._process is not None:
            self._process.kill()
        if self._life is not None:
            await asyncio.shield(self._life)

    async def _live(self, process: WorkerProcess, channel: Channel) -> None:
        """Follow the process to its end."""
        try:
            code = await process.exited()
        except BaseException:
            process.kill()
            raise
        channel.drain()
        channel.close()
        asyncio.get_running_loop().remove_reader(process.text)
        self._printed(last=True)
        self._text.end()
        for timer in self._timers.values():
            timer.cancel()
        number = self._blamed or process.now[0]
        end = End(
            number if self._answered < number <= self._given else 0,
            self._verdict or reason_of(code, self._launch),
        )
        self._process = self._channel = None
        if self._asked is not None:
            self._asked.cancel()
        await asyncio.gather(
            *(task for task in (self._asked, self._counting) if task), return_exceptions=True
        )
        await asyncio.to_thread(process.close)
        if self._started:
            self._on_end(end)
        elif self._ready is not None and not self._ready.done():
            self._ready.set_exception(
                FunctionBroken(
                    f"the function {end.reason} while its code was loaded",
                    trace="".join(line + "\n" for line in self._last),
                )
            )
            self._ready.exception()  # it may be that nobody waits for it any more

    def _kill(self, verdict: str) -> None:
        if self._process is not None and not self._verdict:
            self._verdict = verdict
            self._process.kill()

    def _distrust(self, error: Exception) -> None:
        """It said what no worker says: in this task, or the one at hand, or the next."""
        if self._process is not None and self.waiting:
            at_hand = self._process.now[0]
            known = error.number if isinstance(error, Nonsense) else 0
            self._blamed = known or max(at_hand, self._answered + 1)
        self._kill(f"broke its contract with the host: {error}")

    def _cut_off(self) -> None:
        """It closed its end of the socket, and lives on."""
        self._kill("closed its connection to the host")

    # What comes from the worker.

    def _take(self, messages: list[FromWorker]) -> None:
        results: list[Result] = []
        failed = 0
        for message in messages:
            if isinstance(message, Ask):
                self._hand_on(results, failed)
                results, failed = [], 0
                self._ask(message)
            elif isinstance(message, Ready | Broken):
                self._said(message)
            else:
                number = message.number
                try:
                    if number != self._answered + len(results) + 1 or number > self._given:
                        raise Nonsense(f"task {number} is not the one that comes next")
                    if isinstance(message, Done):
                        self._check(message)
                except Nonsense:
                    self._hand_on(results, failed)  # what was said before is good
                    raise
                if isinstance(message, Failed) and not message.final:
                    failed = number
                results.append(message)
        self._hand_on(results, failed)

    def _hand_on(self, results: list[Result], failed: int) -> None:
        if not results:
            return
        self._answered += len(results)
        self._moved = time.monotonic()
        if failed:
            self._send(Seen(failed))  # before the owner gives anything in knowledge of it
        self._on_results(results)

    def _check(self, done: Done) -> None:
        """The worker has checked the same, unless the code got at it."""
        try:
            for event in done.published:
                check_output(event.topic)
                size = len(event.data)
                if event.key is not None or event.headers:
                    size += len(extra_headers(event.headers, event.key, None))
                if size > self._launch.setup.max_event_bytes:
                    raise Nonsense(f"an event of {size} bytes", done.number)
            for key, value in done.state.items():
                check_value(key, value or b"")
        except SkerryError as error:
            raise Nonsense(error.what, done.number) from None

    def _said(self, message: Ready | Broken) -> None:
        assert self._ready is not None
        if self._ready.done():
            raise Nonsense("it was loaded before")
        if isinstance(message, Ready):
            self._ready.set_result(message)
        else:
            what, _, advice = message.error.partition("\n")
            self._ready.set_exception(FunctionBroken(what, advice, message.trace))

    def _send(self, message: Seen | Answer) -> None:
        if self._channel is not None:
            self._channel.send([message])

    def _ask(self, ask: Ask) -> None:
        if self._asked is not None:
            raise Nonsense("two questions at once")
        self._asked_at = time.monotonic_ns()
        self._asked = asyncio.get_running_loop().create_task(self._answering(ask))

    async def _answering(self, ask: Ask) -> None:
        try:
            answer = await self._answer(ask)
        except SkerryError as error:
            answer = Answer(error=error.what, kind=type(error).__name__, advice=error.advice)
        except Exception as error:
            log.exception("a function's question cannot be answered")
            answer = Answer(error=f"the host failed: {error}", kind="Unavailable")
        self._asked = None
        if (process := self._process) is not None:
            number, excused = process.now[0], time.monotonic_ns() - self._asked_at
            if number == self._excused[0]:
                excused += self._excused[1]
            self._excused = (number, excused)
            self._send(answer)
            self._watch()  # its time runs again

    # What the code prints.

    def _printed(self, *, last: bool = False) -> None:
        if (process := self._process) is None:
            return
        loop = asyncio.get_running_loop()
        try:
            data = os.read(process.text, 64 * 1024)
        except BlockingIOError:
            return
        if not data:
            loop.remove_reader(process.text)
            return
        self._text.feed(data, loop.time())
        if len(data) == 64 * 1024 and not last:
            # It prints much: whoever prints faster than this waits, in its own time.
            loop.remove_reader(process.text)
            self._later("text", TEXT_PAUSE, self._print_on)

    def _line(self, line: str) -> None:
        if not self._started:
            self._last.append(line)
        self._on_text(line)

    def _print_on(self) -> None:
        if self._process is not None:
            asyncio.get_running_loop().add_reader(self._process.text, self._printed)

    # What the worker takes.

    def _watch(self) -> None:
        """Look whether the task at hand takes too long; come again when it might."""
        if self._process is None or not self.waiting:
            self._watching = False
            return None
        allowed = self._launch.timeout
        number, since = self._process.now[0], self._process.now[1]
        now = time.monotonic_ns()
        if self._asked is not None:
            left = allowed
        elif number and number == self._process.now[0]:
            excused = self._excused[1] if self._excused[0] == number else 0
            left = allowed - (now - since - excused) / 1e9
            if left <= 0 and self._suspect == number:
                return self._kill(f"took longer than {allowed:g} s")
            # Looked at twice, so that what was read is not half of one task and half of the next.
            self._suspect = number if left <= 0 else 0
        else:
            left = self._moved + allowed + STUCK - now / 1e9
            if left <= 0:
                return self._kill(f"did not take its next event for {allowed + STUCK:g} s")
            left = min(left, allowed)
        return self._later("watch", max(left, 0.002), self._watch)

    def _look(self) -> None:
        """Look what the worker takes of the machine."""
        if self._process is None:
            return None
        self._text.tick(asyncio.get_running_loop().time())
        idle = not self.waiting
        usage = self._process.usage()
        if usage is not None:
            if usage.memory > self._launch.memory + (64 << 20):
                return self._kill(f"needed more than {self._launch.memory >> 20} MB")
            if usage.threads > THREADS:
                return self._kill(f"had more than {THREADS} threads")
            if idle and self._was_idle:
                self._idle_cpu += usage.cpu - self._cpu
                allowed = self._launch.setup.cpu or self._launch.timeout
                if self._idle_cpu > max(allowed, 1.0):
                    return self._kill(f"used more than {allowed:g} s of CPU time between events")
            else:
                self._idle_cpu = 0.0
            self._cpu, self._was_idle = usage.cpu, idle
        if self._counting is None and not self._process.wrote_nothing():
            self._counting = asyncio.get_running_loop().create_task(self._count(self._process))
        return self._later("look", LOOK, self._look)

    async def _count(self, process: WorkerProcess) -> None:
        if await asyncio.to_thread(process.wrote_too_much):
            self._kill(f"wrote more than {SCRATCH >> 20} MB or {SCRATCH_FILES} files")
        self._counting = None

    def _later(self, what: str, seconds: float, call: Callable[[], None]) -> None:
        if what in self._timers:
            self._timers[what].cancel()
        self._timers[what] = asyncio.get_running_loop().call_later(seconds, call)


def _ignore(_: object) -> None:
    pass
