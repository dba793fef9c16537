"""The process that runs the user's code, one event at a time. See `skerry.functions.lane`.

It is told tasks over a socket and says what came of them; it has no other way to the site. In a
page of memory that it shares with its host it keeps which task it works on and since when, so that
a crash is put down to the right one, and a time limit is exact.
"""

from __future__ import annotations

import gc
import io
import mmap
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from skerry import errors
from skerry.functions import confine
from skerry.functions.frames import (
    EXIT_MEMORY,
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
    Setup,
    Skipped,
    Task,
    ToWorker,
)
from skerry.functions.handler import Handler, Unfit, load, nothing
from skerry.model.functions import Order

FLUSH_BYTES = 64 * 1024
"""Results are sent when they are about so large,"""
FLUSH_NS = 2_000_000
"""so old, or when there is nothing else to do."""
MAX_VALUES = 8 * 1024 * 1024
"""Bytes of the state that are remembered here."""
MAX_ERROR = 500
MAX_TRACE = 8 * 1024


class Worker:
    """The worker's end of the socket, and its loop."""

    def __init__(self, connection: socket.socket, shared: memoryview) -> None:
        self._socket = connection
        self._now = shared
        """Task, and since when in nanoseconds of the monotonic clock; 0, 0: none."""
        self._buffer = bytearray(256 * 1024)
        self._filled = 0
        self._waiting: deque[Task | Seen | Setup] = deque()
        self._answers: deque[Answer] = deque()
        self._asking = threading.Lock()
        self._results: list[Result] = []
        self._bytes = 0
        self._flushed = 0
        self._held: dict[str, int] = {}
        """What must wait for a `Seen`, and of which failure: see frames."""
        self._decoder = msgspec.msgpack.Decoder(list[ToWorker])
        self._encoder = msgspec.msgpack.Encoder()
        self._loop: Any = None
        self.function = ""
        self.order: Order = "topic"
        self.max_event_bytes = 0
        self.values: dict[str, bytes | None] = {}
        self._values_bytes = 0

    def setup(self) -> Setup:
        """Wait for what is to be run."""
        while not self._waiting:
            self._receive()
        setup = self._waiting.popleft()
        assert isinstance(setup, Setup)
        self.function, self.order = setup.function, setup.order
        self.max_event_bytes = setup.max_event_bytes
        return setup

    def say(self, *messages: FromWorker) -> None:
        """Send messages."""
        data = self._encoder.encode(messages)
        self._socket.sendall(HEADER.pack(len(data)) + data)

    def serve(self, handler: Handler, cpu: float | None) -> NoReturn:
        """Handle tasks until the host goes."""
        now, waiting, results, held = self._now, self._waiting, self._results, self._held
        call, context_kind, by_key = handler.call, handler.context, self.order == "key"
        clock, timer = time.monotonic_ns, signal.setitimer
        while True:
            if not waiting and not self._receive_more():
                self.flush()
                self._receive()
            while waiting:
                task = waiting.popleft()
                if not isinstance(task, Task):
                    self._seen(task)
                    continue
                place = task.topic if task.key is None else task.key
                if held and (place if by_key else "") in held:
                    results.append(Skipped(task.number))
                    continue
                now[1] = started = clock()
                now[0] = task.number
                if started - self._flushed > FLUSH_NS or self._bytes > FLUSH_BYTES:
                    self.flush()
                    now[1] = self._flushed
                    now[0] = task.number
                if cpu is not None:
                    timer(signal.ITIMER_PROF, cpu)
                context = context_kind(self, place)
                try:
                    result = call(context, task)
                    if result is not None:
                        self._finish(result)
                    context._close()
                except BaseException as error:
                    context._ended = True
                    self._failed(task, place, error)
                    continue
                for key, value in context._changes.items():
                    self.remember(key, value)
                self._bytes += context._size
                results.append(Done(task.number, tuple(context._published), context._changes))

    def ask(self, what: Any, *arguments: Any) -> Any:
        """Ask the host, and wait; raises the error that it answers with."""
        with self._asking:
            number, since = self._now[0], self._now[1]
            self.flush()  # so that the host knows of everything before
            self._now[1], self._now[0] = since, number
            self.say(Ask(what, arguments))
            while not self._answers:
                self._receive()
            answer = self._answers.popleft()
        if answer.kind:
            kind = getattr(errors, answer.kind, None)
            if not (isinstance(kind, type) and issubclass(kind, errors.SkerryError)):
                kind = errors.SkerryError
            raise kind(answer.error, answer.advice)
        return answer.value

    def remember(self, key: str, value: bytes | None) -> None:
        """This is known of the state."""
        self._values_bytes += len(key) + len(value or b"")  # counted again when it is replaced
        if self._values_bytes > MAX_VALUES:
            self.values.clear()  # the host has them all: results are flushed before it is asked
            self._values_bytes = 0
        self.values[key] = value

    def flush(self) -> None:
        """Send the results that there are."""
        self._now[0] = 0  # to wait for the host is not the task's time
        if self._results:
            self.say(*self._results)
            self._results.clear()
            self._bytes = 0
        self._flushed = time.monotonic_ns()

    def _finish(self, awaitable: Any) -> None:
        """Run what an async handler returned to its end, and end what it left behind."""
        import asyncio

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        loop = self._loop
        try:
            nothing(loop.run_until_complete(awaitable))
        finally:
            if left := asyncio.all_tasks(loop):
                for task in left:
                    task.cancel()
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    def _failed(self, task: Task, place: str, error: BaseException) -> None:
        final = isinstance(error, Unfit)
        if not final and self.order != "none":
            self._held[place if self.order == "key" else ""] = task.number
        text = str(error) if final else one_line(error)
        memory = isinstance(error, MemoryError)
        trace = "" if final or memory else trace_of(error)
        self._results.append(Failed(task.number, _sendable(text[:MAX_ERROR]), trace, final))
        self._bytes += len(trace)
        if memory:
            # What leaks would leak on. A new worker has room, and tries the event again.
            self.flush()
            os._exit(EXIT_MEMORY)

    def _seen(self, message: Seen | Setup) -> None:
        assert isinstance(message, Seen)
        for place in [place for place, number in self._held.items() if number <= message.number]:
            del self._held[place]

    def _receive_more(self) -> bool:
        """Take what has arrived; whether there is something to do."""
        try:
            self._receive(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return bool(self._waiting)

    def _receive(self, flags: int = 0) -> None:
        """Take what arrives next, and sort out what is whole of it."""
        buffer = self._buffer
        with memoryview(buffer) as view:
            count = self._socket.recv_into(view[self._filled :], 0, flags)
        if count == 0:
            os._exit(0)  # the host is gone, or has no use for this worker any more
        filled, start = self._filled + count, 0
        needed = 0
        with memoryview(buffer) as view:
            while filled - start >= 4:
                (length,) = HEADER.unpack_from(view, start)
                end = start + 4 + length
                if end > filled:
                    needed = 4 + length
                    break
                for message in self._decoder.decode(view[start + 4 : end]):
                    if isinstance(message, Answer):
                        self._answers.append(message)
                    else:
                        self._waiting.append(message)
                start = end
            if start:
                view[: filled - start] = view[start:filled]
        self._filled = filled - start
        if needed > len(buffer):
            self._buffer = bytearray(needed)
            self._buffer[: self._filled] = buffer[: self._filled]


def one_line(error: BaseException) -> str:
    """What went wrong, in one line."""
    name = type(error).__name__
    if isinstance(error, SystemExit):
        return f"the handler called sys.exit({error.code!r})"
    if isinstance(error, MemoryError):
        return "MemoryError: it needed more memory than it may have"
    try:
        text = error.what if isinstance(error, errors.SkerryError) else str(error)
    except BaseException:
        text = "(its text cannot be made)"
    first = text.strip().partition("\n")[0]
    return f"{name}: {first}" if first else name


def trace_of(error: BaseException) -> str:
    """Where it went wrong, without the worker's own part."""
    import traceback

    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, trace))
    except BaseException:
        text = "".join(traceback.format_tb(trace))
    if len(text) > MAX_TRACE:
        text = f"{text[: MAX_TRACE // 2]}…{text[-MAX_TRACE // 2 :]}"
    return _sendable(text)


def _sendable(text: str) -> str:
    """Without what is no Unicode, which cannot be sent."""
    return text.encode("utf-8", "replace").decode()


_OURS = str(Path(__file__).parent) + os.sep


def loaded(worker: Worker, setup: Setup, memory: int) -> Handler:
    """The code, loaded; if it cannot be, say so and exit."""
    try:
        source = Path(setup.path).read_bytes()
        if setup.kind == "wasm":
            from skerry.functions import wasm

            return wasm.load(source, setup, memory)
        return load(source, f"{setup.function}.py", setup.handler)
    except errors.FunctionBroken as error:
        worker.say(Broken(str(error), error.trace))
    except SystemExit as error:
        worker.say(Broken(f"the code called sys.exit({error.code!r}) when it was loaded"))
    except BaseException as error:
        worker.say(Broken(_sendable(one_line(error)), trace_of(error)))
    os._exit(1)


def main() -> NoReturn:
    """Run a worker; the arguments are those that a lane gives."""
    descriptor, shared, parent, memory, network = map(int, sys.argv[1:6])
    connection = socket.socket(fileno=descriptor)
    now = memoryview(mmap.mmap(shared, mmap.PAGESIZE)).cast("Q")
    os.close(shared)
    sys.argv = [""]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    worker = Worker(connection, now)
    setup = worker.setup()
    confined = confine.confine(
        parent=parent, memory=memory, network=bool(network), readable=(setup.path,)
    )
    handler = loaded(worker, setup, memory)
    gc.collect()
    gc.freeze()
    worker.say(Ready(handler.name, confined))
    try:
        worker.serve(handler, setup.cpu)
    except MemoryError:
        os._exit(EXIT_MEMORY)
