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
import itertools
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from skerry.errors import FunctionBroken, SkerryError
from skerry.functions.context import check_output, check_value
from skerry.functions.frames import (
    HEADER,
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
    ToWorker,
)
from skerry.functions.process import Launch, WorkerProcess, reason_of
from skerry.functions.text import Text
from skerry.model.event import extra_headers

__all__ = ["End", "Lane", "Launch"]

LOADING = 30.0
"""Seconds that loading the code may take; importing large libraries takes some."""
FRAME_BYTES = 256 * 1024
"""Tasks are told in frames of about so much, so that the worker begins before all have arrived."""
MAX_FRAME = 64 * 1024 * 1024
"""Bytes of what a worker may say at once; one event's outputs are limited to a quarter of it."""
TEXT_PAUSE = 0.01
"""Seconds between two looks at what the code prints while it prints much: 64 KB each."""
LOOK = 1.0
"""Seconds between two looks at what the worker takes of the machine."""
THREADS = 128
"""Threads that a worker may have."""
STUCK = 10.0
"""Seconds, beside those of one event, after which a worker is stuck that does not take the next."""

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(list[FromWorker])
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
        self._text = Text(on_text)
        self._process: WorkerProcess | None = None
        self._life: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Ready] | None = None
        self._loaded = False
        self._verdict = ""
        """Why we killed it."""
        self._given = 0
        self._answered = 0
        self._out: deque[memoryview] = deque()
        self._buffer = bytearray(128 * 1024)
        self._filled = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._asked: asyncio.Task[None] | None = None
        self._asked_at = 0
        self._excused = (0, 0)
        """A task, and the nanoseconds that it waited for answers."""
        self._suspect = 0
        self._moved = 0.0
        """When the last result came, or the first task after a silence."""
        self._idle_cpu = 0.0
        self._cpu = 0.0
        self._was_idle = False

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
        self._life = loop.create_task(self._live(process))
        loop.add_reader(process.socket, self._readable)
        loop.add_reader(process.text, self._printed)
        self._send([self._launch.setup])
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
        self._loaded = True
        self._look()
        return ready

    def give(self, tasks: list[Task]) -> None:
        """Queue tasks, which are numbered from 1 on. It is the caller's to limit `waiting`."""
        if not tasks or self._process is None:
            return
        if tasks[0].number != self._given + 1:
            raise ValueError(f"task {tasks[0].number} does not follow {self._given}")
        if self._given == self._answered:
            self._moved = time.monotonic()
            self._watch()
        self._given = tasks[-1].number
        start = size = 0
        for at, task in enumerate(tasks):
            size += len(task.data)
            if size >= FRAME_BYTES:
                self._send(tasks[start : at + 1])
                start, size = at + 1, 0
        if start < len(tasks):
            self._send(tasks[start:])

    @property
    def waiting(self) -> int:
        """Tasks that were given and have no result."""
        return self._given - self._answered

    async def close(self) -> None:
        """End the process and everything that it left behind. Nothing is called any more."""
        self._on_results = self._on_end = _ignore
        if self._process is not None:
            self._process.kill()
        if self._life is not None:
            await asyncio.shield(self._life)

    async def _live(self, process: WorkerProcess) -> None:
        """Follow the process to its end."""
        loop = asyncio.get_running_loop()
        code = await process.exited()
        self._readable()
        self._printed(last=True)
        self._text.end()
        for source in (process.socket, process.text):
            loop.remove_reader(source)
        loop.remove_writer(process.socket)
        for timer in self._timers.values():
            timer.cancel()
        if self._asked is not None:
            self._asked.cancel()
        number = process.now[0]
        end = End(
            number if self._answered < number <= self._given else 0,
            self._verdict or reason_of(code, self._launch),
        )
        self._process = None
        await asyncio.to_thread(process.close)
        assert self._ready is not None
        if not self._loaded:
            if not self._ready.done():
                self._ready.set_exception(
                    FunctionBroken(f"the function {end.reason} while its code was loaded")
                )
                self._ready.exception()  # it may be that nobody waits for it any more
        else:
            self._on_end(end)

    def _kill(self, verdict: str) -> None:
        if self._process is not None and not self._verdict:
            self._verdict = verdict
            self._process.kill()

    # What goes to the worker.

    def _send(self, messages: Sequence[ToWorker]) -> None:
        assert self._process is not None
        data = _encode(messages)
        idle = not self._out
        self._out.append(memoryview(HEADER.pack(len(data))))
        self._out.append(memoryview(data))
        if idle:
            self._writable()

    def _writable(self) -> None:
        if (process := self._process) is None:
            return
        loop = asyncio.get_running_loop()
        try:
            while self._out:
                sent = process.socket.sendmsg(list(itertools.islice(self._out, 16)))
                while self._out and sent >= len(self._out[0]):
                    sent -= len(self._out.popleft())
                if sent:
                    self._out[0] = self._out[0][sent:]
        except BlockingIOError:
            loop.add_writer(process.socket, self._writable)
            return
        except OSError:
            self._out.clear()  # it is dead, which `_live` hears of
        loop.remove_writer(process.socket)

    # What comes from the worker.

    def _readable(self) -> None:
        """Take what is there. Several rounds, but not for ever: there are other lanes."""
        for _ in range(8):
            process = self._process
            if process is None or self._verdict:
                return
            with memoryview(self._buffer) as view:
                try:
                    count = process.socket.recv_into(view[self._filled :])
                except BlockingIOError:
                    return
                except OSError:
                    count = 0
            if count == 0:
                # It closed the socket, or is dead and `_live` hears of it.
                asyncio.get_running_loop().remove_reader(process.socket)
                process.kill()
                return
            self._filled += count
            try:
                self._take_frames()
            except (msgspec.MsgspecError, _Nonsense, SkerryError) as error:
                self._kill(f"broke its contract with the host: {error}")
                return

    def _take_frames(self) -> None:
        filled, start, needed = self._filled, 0, 0
        messages: list[FromWorker] = []
        with memoryview(self._buffer) as view:
            while filled - start >= 4:
                (length,) = HEADER.unpack_from(view, start)
                end = start + 4 + length
                if length > MAX_FRAME:
                    raise _Nonsense(f"a frame of {length} bytes")
                if end > filled:
                    needed = 4 + length
                    break
                messages += _decoder.decode(view[start + 4 : end])
                start = end
            if start:
                view[: filled - start] = view[start:filled]
        self._filled = filled - start
        size = max(needed, 128 * 1024)
        if size > len(self._buffer) or (size < len(self._buffer) and self._filled <= size):
            rest = bytes(memoryview(self._buffer)[: self._filled])
            self._buffer = bytearray(size)
            self._buffer[: len(rest)] = rest
        if messages:
            self._take(messages)

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
                if number != self._answered + len(results) + 1 or number > self._given:
                    raise _Nonsense(f"task {number} is not the one that comes next")
                if isinstance(message, Done):
                    self._check(message)
                elif isinstance(message, Failed) and not message.final:
                    failed = number
                results.append(message)
        self._hand_on(results, failed)

    def _hand_on(self, results: list[Result], failed: int) -> None:
        if not results:
            return
        self._answered += len(results)
        self._moved = time.monotonic()
        if failed:
            self._send([Seen(failed)])  # before the owner gives anything in knowledge of it
        self._on_results(results)

    def _check(self, done: Done) -> None:
        """The worker has checked the same, unless the code got at it."""
        most = self._launch.setup.max_event_bytes
        for event in done.published:
            check_output(event.topic)
            size = len(event.data)
            if event.key is not None or event.headers:
                size += len(extra_headers(event.headers, event.key, None))
            if size > most:
                raise _Nonsense(f"an event of {size} bytes")
        for key, value in done.state.items():
            if value is not None:
                check_value(key, value)

    def _said(self, message: Ready | Broken) -> None:
        assert self._ready is not None
        if self._ready.done():
            raise _Nonsense("it was loaded before")
        if isinstance(message, Ready):
            self._ready.set_result(message)
        else:
            what, _, advice = message.error.partition("\n")
            self._ready.set_exception(FunctionBroken(what, advice, message.trace))

    def _ask(self, ask: Ask) -> None:
        if self._asked is not None:
            raise _Nonsense("two questions at once")
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
            self._send([answer])

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

    def _print_on(self) -> None:
        if self._process is not None:
            asyncio.get_running_loop().add_reader(self._process.text, self._printed)

    # What the worker takes.

    def _watch(self) -> None:
        """Look whether the task at hand takes too long; come again when it might."""
        if self._process is None or not self.waiting:
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
        return self._later("look", LOOK, self._look)

    def _later(self, what: str, seconds: float, call: Callable[[], None]) -> None:
        self._timers[what] = asyncio.get_running_loop().call_later(seconds, call)


class _Nonsense(Exception):
    """What no worker says."""


def _ignore(_: object) -> None:
    pass
