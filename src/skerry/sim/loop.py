"""An event loop in virtual time: what ships runs on it unchanged, and the same seed runs the same.

Theory of operation. Nothing waits: when nobody has anything to do, the clock jumps to the next
timer. There are no sockets and no threads; connections are made by a `Net`, which is the simulated
world. Everything that runs belongs to a `Process`, by a context variable that tasks and timers
inherit. A process that was killed never runs again, not even its `finally`; one that is stopped
runs all that it missed when it goes on, late.

What asks for the time, or draws lots, anywhere in the program gets it from here (`virtual`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import heapq
import random
import secrets
import socket
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import Context, ContextVar, copy_context
from typing import Any, Protocol

import skerry.log.append

EPOCH = 1_700_000_000.0
"""What `time.time` says when a simulation begins, less its first second."""
SWEEP = 1000
"""Timers that were cancelled, of which the heap is freed once they are so many."""


class Process:
    """Something that may be killed or stopped. `host` is where it runs."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.is_alive = True
        self.missed: deque[asyncio.Handle] | None = None
        """What it is to do when it goes on; None: it runs."""

    def context(self) -> Context:
        """What runs in it belongs to this process."""
        context = copy_context()
        context.run(_PROCESS.set, self)
        return context


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def running() -> Process | None:
    """The process that runs now; None: the world itself."""
    return _PROCESS.get()


class Net(Protocol):
    """Makes connections."""

    async def connect(self, process: Process, host: str, port: int) -> None:
        """Come back when somebody there has answered, or raise `ConnectionRefusedError`."""

    async def dial(self, process: Process, protocol: asyncio.Protocol, host: str, port: int) -> Any:
        """The same, and return a transport."""


class Loop(asyncio.BaseEventLoop):
    """Runs everything in one simulation."""

    net: Net
    _ready: deque[asyncio.Handle]
    _timer_cancelled_count: int

    def __init__(self) -> None:
        super().__init__()
        self._now = 1.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0
        self.world = Context()
        """For timers that belong to no process."""
        self.skews: dict[str, float] = {}
        """Seconds by which the clock of a host is wrong."""
        self.is_over = False
        self._all: list[asyncio.Task[Any]] = []
        """Every task: one of a dead process is kept, so that nothing of it runs when it goes."""
        self._most = SWEEP
        self.set_task_factory(self._make_task)
        self.set_exception_handler(lambda loop, what: None if self.is_over else self._fault(what))
        self.faults: list[str] = []
        """What no task and no handler caught."""

    def time(self) -> float:
        """The virtual clock."""
        return self._now

    def wall_clock(self) -> float:
        """What `time.time` says."""
        process = running()
        skew = self.skews.get(process.host, 0.0) if process is not None else 0.0
        return EPOCH + self._now + skew

    def stop_process(self, process: Process) -> None:
        """Have a process stand still."""
        process.missed = deque()

    def cont_process(self, process: Process) -> None:
        """Have it go on, with all that it missed: what came in first, then what timers were for,
        as after one `select`."""
        missed, process.missed = process.missed or deque(), None
        self._ready.extend(sorted(missed, key=lambda one: isinstance(one, asyncio.TimerHandle)))

    def run(self, work: Any) -> Any:
        """Run `work` to its end, then forget everything else."""
        try:
            asyncio.set_event_loop(self)
            return self.run_until_complete(work)
        finally:
            self.is_over = True
            self._sweep()
            for task in self._all:
                if not task.done():
                    with contextlib.suppress(BaseException), warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # of a killed process it may never have run
                        task.get_coro().close()
            self._all.clear()
            self._ready.clear()
            self._timers.clear()
            asyncio.set_event_loop(None)
            self.close()

    # What asyncio asks of a loop

    def _make_task(self, loop: Any, work: Any, **more: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, **more)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._all.append(task)
        if len(self._all) > self._most:
            self._sweep()
        return task

    def _sweep(self) -> None:
        """Forget tasks that are done; one that failed, and that nobody asked, is a fault."""
        for task in self._all:
            if task.done() and task._log_traceback:
                self.faults.append(f"{task.get_coro()!r}: {task.exception()!r}")
        self._all = [task for task in self._all if not task.done()]
        self._most = 2 * len(self._all) + SWEEP

    def _fault(self, what: dict[str, Any]) -> None:
        self.faults.append(f"{what.get('message')}: {what.get('exception')!r}")

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        if self._timer_cancelled_count > SWEEP:
            timers[:] = [one for one in timers if not one[2]._cancelled]
            heapq.heapify(timers)
            self._timer_cancelled_count = 0
        if not ready:
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(_PROCESS)  # type: ignore[attr-defined]
            if process is not None:
                if not process.is_alive:
                    continue
                if process.missed is not None:
                    process.missed.append(handle)
                    continue
            handle._run()

    def _write_to_self(self) -> None:
        pass

    def call_soon(  # type: ignore[override]
        self, call: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(call, args, self, context)
        if not self.is_over:
            self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, call: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, call, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, call: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, call, args, self, context)
        self._count += 1  # those of one moment ring in the order in which they were set
        heapq.heappush(self._timers, (when, self._count, handle))
        handle._scheduled = True  # type: ignore[attr-defined]
        return handle

    async def getaddrinfo(self, host: Any, port: Any, **more: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    async def sock_connect(self, sock: Any, address: Any) -> None:
        process = running()
        assert process is not None
        await self.net.connect(process, *address)

    async def create_connection(  # type: ignore[override]
        self, factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        process = running()
        assert process is not None
        protocol = factory()
        return await self.net.dial(process, protocol, host, port), protocol


@contextlib.contextmanager
def virtual(loop: Loop, seed: int) -> Iterator[random.Random]:
    """Have the whole program ask `loop` for the time, and draw lots by `seed`."""
    lots = random.Random(seed)
    made = random.Random
    was = [
        (time, "monotonic", loop.time),
        (time, "time", loop.wall_clock),
        (skerry.log.append, "monotonic", loop.time),
        (secrets, "token_hex", lambda size=8: f"{lots.getrandbits(8 * size):0{2 * size}x}"),
        (secrets, "token_urlsafe", lambda size=8: f"{lots.getrandbits(8 * size):x}"),
        (random, "uniform", lots.uniform),
        (random, "Random", lambda *seed: made(*(seed or (lots.getrandbits(64),)))),
    ]
    before: list[tuple[Any, str, Callable[..., Any]]] = [(m, n, getattr(m, n)) for m, n, _ in was]
    collects = gc.isenabled()
    for module, name, value in was:
        setattr(module, name, value)
    gc.disable()  # when it runs depends on what ran before
    try:
        yield lots
    finally:
        for module, name, value in before:
            setattr(module, name, value)
        if collects:
            gc.enable()
