"""The workers of one function and log: who handles what, and what happens when it fails.

Each worker has a *hand* here: a queue, the lane to the process, and what was given to it and not
answered yet. Results come in the order of the tasks. Where order matters and an event fails, what
was given behind it is answered with `Skipped` if it must not overtake it. The hand then *rests*: it
gives nothing more until everything given is answered and the failed event's pause is over, and goes
on with that event and those that were skipped. A worker whose result cannot be taken believes in
what it changed in the state, so it is replaced.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from skerry.errors import FunctionBroken, SkerryError
from skerry.functions.frames import (
    Answer,
    Ask,
    Done,
    Failed,
    Published,
    Ready,
    Result,
    Skipped,
    Task,
)
from skerry.functions.lane import End, Lane, Launch
from skerry.functions.work import Item
from skerry.model.functions import FunctionSettings

log = logging.getLogger("skerry.functions")

GIVEN = 256
GIVEN_BYTES = 4 * 1024 * 1024
"""What a worker is given ahead at the most."""
BACK_OFF = 0.1
BACK_OFF_MOST = 10.0
"""Seconds before the second attempt, doubled for each further one, and at the most."""
BROKEN = 30.0
"""Seconds at the most before code that cannot be loaded is loaded again: what it imports may be
there then."""


class Owner(Protocol):
    """Whom the crew works for."""

    def accept(self, item: Item, done: Done) -> str | None:
        """Take what came of an item; or say why it cannot be taken, and the item failed."""

    def unknown(self, published: Sequence[Published]) -> list[str]:
        """The topics of which it is not known whether they are there."""

    async def find(self, topics: list[str]) -> None:
        """Find out; raises nothing."""

    def give_up(self, item: Item, error: str) -> None:
        """The item failed for good."""

    def failed(self, item: Item | None, error: str, trace: str, wait: float) -> None:
        """An attempt failed; the next one is in `wait` seconds. None: a worker failed by itself."""

    def broken(self, error: SkerryError | None) -> None:
        """The code cannot be loaded; None: it can."""

    async def answer(self, ask: Ask) -> Answer:
        """What a handler asked for."""

    def text(self, text: str) -> None:
        """The code printed a line."""


class Crew:
    """All hands of one function and log."""

    def __init__(self, launch: Launch, settings: FunctionSettings, owner: Owner) -> None:
        self._order = settings.order
        self.hands = [Hand(launch, settings, owner) for _ in range(settings.concurrency)]

    def start(self) -> None:
        """Have all workers start."""
        for hand in self.hands:
            hand.start()

    def put(self, items: Sequence[Item]) -> None:
        """Have items handled."""
        hands = self.hands
        if len(hands) == 1:
            hands[0].queue.extend(items)
        elif self._order == "key":
            for item in items:
                place = zlib.crc32((item.topic if item.key is None else item.key).encode())
                hands[place % len(hands)].queue.append(item)
        else:
            for item in items:
                min(hands, key=_load).queue.append(item)
        for hand in hands:
            hand.pump()

    @property
    def workers(self) -> int:
        """How many workers are ready."""
        return sum(hand.ready is not None for hand in self.hands)

    @property
    def confined(self) -> tuple[str, ...]:
        """What of the sandbox is in force."""
        return next((hand.ready.confined for hand in self.hands if hand.ready), ())

    async def close(self) -> None:
        """End all workers."""
        await asyncio.gather(*(hand.close() for hand in self.hands))


def _load(hand: Hand) -> int:
    return len(hand.queue) + len(hand.given)


class Hand:
    """One worker after the other."""

    def __init__(self, launch: Launch, settings: FunctionSettings, owner: Owner) -> None:
        self.queue: deque[Item] = deque()
        self.given: deque[Item] = deque()
        self.ready: Ready | None = None
        self._launch = launch
        self._ordered = settings.order != "none"
        self._retries = settings.retries
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._lane: Lane | None = None
        self._number = 0
        """Of the last task given."""
        self._bytes = 0
        self._back: list[Item] = []
        """What failed, and what was skipped because of it: to be given before what is queued."""
        self._rests = False
        self._until = 0.0
        """When a rest ends, if all that was given is answered then."""
        self._deaths = 0
        """Workers that died one after the other without a task to blame."""
        self._breaks = 0
        """Attempts to load the code that failed one after the other."""
        self._results: deque[Result] = deque()
        """What came in while topics are looked for."""
        self._checked = asyncio.Event()
        self._checked.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._closed = False

    # Workers

    def start(self) -> None:
        """Have a worker."""
        self._spawn(self._start())

    async def _start(self) -> None:
        lane: Lane
        lane = Lane(
            self._launch,
            on_results=lambda results: self._on_results(lane, results),
            on_end=lambda end: self._on_end(lane, end),
            answer=self._answer,
            on_text=self._owner.text,
        )
        self._lane = lane
        self._number = 0
        try:
            ready = await lane.start()
        except FunctionBroken as error:
            if self._lane is lane:
                self._owner.broken(error)
                self._lane = None
                self._breaks += 1  # it may have been killed, so it is tried again soon at first
                self._later(min(BACK_OFF * 2 ** min(self._breaks, 20), BROKEN), self.start)
            await lane.close()
            return
        except (OSError, SkerryError, TimeoutError) as error:
            if self._lane is lane:
                self._lane = None
                self._fell(str(error))
            await lane.close()
            return
        except BaseException:
            await lane.close()
            raise
        if self._lane is lane:
            self.ready = ready
            self._breaks = 0
            self._owner.broken(None)
            self.pump()

    async def close(self) -> None:
        """End the worker; nothing more is handled."""
        self._closed = True
        for timer in self._timers:
            timer.cancel()
        lane, self._lane, self.ready = self._lane, None, None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if lane is not None:
            await lane.close()

    # Tasks

    def pump(self) -> None:
        """Give the worker what it may have."""
        queue, given = self.queue, self.given
        if not queue or self.ready is None or self._rests or self._lane is None:
            return
        tasks = []
        while queue and len(given) < GIVEN and (self._bytes < GIVEN_BYTES or not given):
            item = queue.popleft()
            self._number += 1
            given.append(item)
            self._bytes += item.size
            tasks.append(
                Task(
                    self._number, item.topic, item.index, item.time_ns, item.key, item.headers,
                    item.data, item.attempts + 1,
                )
            )  # fmt: skip
        if tasks:
            self._lane.give(tasks)

    def _take_back(self) -> list[Item]:
        """What was given and not answered, as if it never had been."""
        items = list(self.given)
        self.given.clear()
        self._bytes = 0
        self._results.clear()
        return items

    def _on_results(self, lane: Lane, results: list[Result]) -> None:
        if lane is not self._lane:
            return  # what it did does not count any more
        self._results.extend(results)
        if self._checked.is_set():
            self._work()

    def _work(self) -> None:
        """Take results until one publishes to a topic that has to be looked for."""
        results, given, owner = self._results, self.given, self._owner
        lane = self._lane
        while results and self._lane is lane:
            result = results[0]
            item = given[0]
            if type(result) is Done:
                if result.published and (topics := owner.unknown(result.published)):
                    self._checked.clear()
                    self._spawn(self._check(topics))
                    return
                refusal = owner.accept(item, result)
                if refusal is not None:
                    self._refuse(item, refusal)
                    continue
                self._deaths = 0
            elif type(result) is Skipped:
                self._back.append(item)
            else:
                assert isinstance(result, Failed)
                again = self._fails(item, result.error, result.trace, result.final)
                if self._ordered and not result.final:
                    self._rest(item if again else None)
                elif again:
                    self._later(_back_off(item.attempts), partial(self._again, item))
            results.popleft()
            given.popleft()
            self._bytes -= item.size
        if self._rests:
            self._go_on()
        elif len(given) <= GIVEN // 2:
            self.pump()

    async def _check(self, topics: list[str]) -> None:
        try:
            await self._owner.find(topics)
        finally:
            self._checked.set()
        self._work()  # perhaps what came from another worker meanwhile

    async def _answer(self, ask: Ask) -> Answer:
        await self._checked.wait()  # else the state would lack what came in already
        return await self._owner.answer(ask)

    # Failures

    def _fails(self, item: Item, error: str, trace: str, final: bool) -> bool:
        """An attempt failed. Whether there is to be another."""
        item.attempts += 1
        if final or item.attempts > self._retries:
            self._owner.failed(item, error, trace, 0.0)
            self._owner.give_up(item, error)
            return False
        self._owner.failed(item, error, trace, _back_off(item.attempts))
        return True

    def _refuse(self, item: Item, error: str) -> None:
        """What the handler did cannot be taken, though it ended well."""
        again = self._fails(item, error, "", False)
        items = self._take_back()
        if again and self._ordered:
            self._rest(item, first=False)
        else:
            del items[0]
            if again:
                self._later(_back_off(item.attempts), partial(self._again, item))
        self._give_back(items)
        lane, self._lane, self.ready = self._lane, None, None
        if lane is not None:
            self._spawn(lane.close())
        self.start()

    def _again(self, item: Item) -> None:
        self.queue.appendleft(item)
        self.pump()

    def _rest(self, item: Item | None, first: bool = True) -> None:
        """Let a failed item wait for its next attempt, and what is behind it; None: it gets none,
        but some behind it may come back as skipped."""
        self._rests = True
        if item is not None:
            if first:
                self._back.append(item)
            wait = _back_off(item.attempts)
            self._until = max(self._until, self._loop.time() + wait)
            self._later(wait, self._go_on)

    def _go_on(self) -> None:
        """End the rest if it is time."""
        if self._rests and not self.given and self._loop.time() >= self._until - 0.001:
            self._rests = False
            self.queue.extendleft(reversed(self._back))
            self._back.clear()
            self.pump()

    def _on_end(self, lane: Lane, end: End) -> None:
        """The worker died. What it had finished and not told is handled again."""
        if lane is not self._lane:
            return
        first = self._number - len(self.given) + 1
        place = end.number - first
        items = self._take_back()
        blamed = items[place] if end.number and 0 <= place < len(items) else None
        self._lane = self.ready = None
        self._spawn(lane.close())
        if blamed is None:
            self._give_back(items)
            self._fell(end.reason)
            return
        again = self._fails(blamed, end.reason, "", False)
        if not again or not self._ordered:
            items.remove(blamed)
        if again and self._ordered:
            self._rest(blamed, first=False)
        elif again:
            self._later(_back_off(blamed.attempts), partial(self._again, blamed))
        self._give_back(items)
        self.start()

    def _give_back(self, items: list[Item]) -> None:
        """Have items handled behind those that failed before them."""
        if self._rests:
            self._back += items
            self._go_on()
        else:
            self.queue.extendleft(reversed(items))

    def _fell(self, why: str) -> None:
        """A worker is gone, and no event is to blame."""
        self._deaths += 1
        wait = _back_off(self._deaths)
        self._owner.failed(None, why, "", wait)
        self._later(wait, self.start)

    def _later(self, wait: float, action: Callable[[], None]) -> None:
        def act() -> None:
            self._timers.discard(timer)
            if not self._closed:
                action()

        timer = self._loop.call_later(wait, act)
        self._timers.add(timer)

    def _spawn(self, work: Awaitable[None]) -> None:
        async def run() -> None:
            try:
                await work
            except Exception:
                log.exception("a worker's hand failed")

        task = self._loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _back_off(attempts: int) -> float:
    return float(min(BACK_OFF * 2 ** min(attempts - 1, 20), BACK_OFF_MOST))
