"""Carries out decisions: so many moves at a time, and the newest decision wins.

A plan is whole: what it does not name need not move. So a plan takes the place of all that waits
from earlier ones; what has begun goes on to its end, for stopping half-way costs more than another
move later. Every decision ends in a report. Nothing is kept here that a crash would lose: a move is
a compare-and-set on the topic's entry, and what was not done is planned again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from skerry.engine.link import Down
from skerry.errors import SkerryError
from skerry.fabric.tasks import Tasks
from skerry.model.fabric import TopicEntry
from skerry.model.placement import AT_ONCE, MoveReport, Outcome


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One topic's move."""

    topic: str
    source: str
    target: str
    epoch: int
    """The epoch that the topic was in when this was decided: in another it is void."""
    members: tuple[str, ...] | None = None
    """All sites that keep a copy from then on, the target first; None: as many as now."""
    cause: str = ""
    reason: str = ""
    by: str = "apply"


Mover = Callable[[Decision], Awaitable[TopicEntry]]


class Executor:
    """Moves topics with `move`, and tells `report` what became of each."""

    def __init__(self, move: Mover, report: Callable[[MoveReport], None]) -> None:
        self.at_once = AT_ONCE
        self._move = move
        self._report = report
        self._queue: dict[str, tuple[Decision, asyncio.Future[MoveReport]]] = {}
        self._running: dict[str, Decision] = {}
        self._tasks = Tasks("a move of placement")

    @property
    def moving(self) -> dict[str, str]:
        """Topics under way, and where to."""
        return {name: decision.target for name, decision in self._running.items()}

    @property
    def waiting(self) -> set[str]:
        """Topics whose turn comes later."""
        return set(self._queue)

    async def close(self) -> None:
        """Stop; moves under way are given up, and their topics stay or have moved, as it may be."""
        self.decide([])
        await self._tasks.close()

    def decide(self, decisions: list[Decision]) -> list[asyncio.Future[MoveReport]]:
        """Take a whole plan, the most urgent first, in place of all that waits. Returns a future
        for each decision; that of one whose topic is under way tells that it was dropped."""
        waiting, self._queue = self._queue, {}
        newest = {decision.topic: decision for decision in decisions}
        for topic, (old, asked) in waiting.items():
            new = newest.get(topic)
            if new is None or (new.target, new.epoch) != (old.target, old.epoch):
                self._end(old, asked, "dropped", "a newer plan decided otherwise")
        futures = []
        for decision in decisions:
            kept = waiting.get(decision.topic)
            future: asyncio.Future[MoveReport]
            if kept is not None and not kept[1].done():
                future = kept[1]
            else:
                future = asyncio.get_running_loop().create_future()
            futures.append(future)
            if decision.topic in self._running:
                self._end(decision, future, "dropped", "a move of it is under way")
            else:
                self._queue[decision.topic] = (decision, future)
        self._fill()
        return futures

    def _fill(self) -> None:
        while self._queue and len(self._running) < self.at_once:
            topic = next(iter(self._queue))
            decision, future = self._queue.pop(topic)
            self._running[topic] = decision
            self._tasks.spawn(self._run(decision, future))

    async def _run(self, decision: Decision, future: asyncio.Future[MoveReport]) -> None:
        began = time.monotonic()
        try:
            entry = await self._move(decision)
        except (SkerryError, Down, TimeoutError) as error:
            why = error.what if isinstance(error, SkerryError) else "an engine is away"
            self._end(decision, future, "failed", why, time.monotonic() - began)
        except asyncio.CancelledError:
            self._end(decision, future, "dropped", "the leader stopped")
            raise
        else:
            took = time.monotonic() - began
            self._end(decision, future, "moved", "", took, entry.epoch)
        finally:
            del self._running[decision.topic]
            self._fill()

    def _end(
        self,
        decision: Decision,
        future: asyncio.Future[MoveReport],
        outcome: Outcome,
        why: str,
        seconds: float = 0.0,
        epoch: int = 0,
    ) -> None:
        report = MoveReport(
            topic=decision.topic,
            source=decision.source,
            target=decision.target,
            cause=decision.cause,
            reason=decision.reason,
            by=decision.by,
            outcome=outcome,
            why=why,
            seconds=round(seconds, 3),
            epoch=epoch or decision.epoch,
        )
        if not future.done():
            future.set_result(report)
        self._report(report)
