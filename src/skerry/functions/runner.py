"""One function on one log: from the assignment to its end.

A *session* begins with claiming the journal and reading it, and ends when something happens that
only a new beginning mends: another host claimed it, the outcome of a write is not known, a topic is
gone. What was not committed then is handled again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from skerry.engine.link import Down
from skerry.errors import Conflict, SkerryError
from skerry.functions import again
from skerry.functions.access import Access
from skerry.functions.assignment import Assignment, Running, State
from skerry.functions.journal import Position
from skerry.functions.lines import Budget, Level, Lines
from skerry.functions.session import Session

log = logging.getLogger("skerry.functions")

FENCED = 1.0
"""Seconds before a host that was replaced, and is still told to run the function, tries again."""
PAUSE = 0.2
PAUSE_MOST = 2.0
"""Seconds before a session that failed is begun anew, at first and at the most."""


class Runner:
    """Runs one assignment until it is closed. `changed` is called when its state changes."""

    def __init__(
        self,
        access: Access,
        lines: Lines,
        requests: again.Requests,
        assignment: Assignment,
        changed: Callable[[], None],
    ) -> None:
        self.assignment = assignment
        self._access = access
        self._lines = lines
        self._requests = requests
        self._changed = changed
        self._budget = Budget()
        self._state: State = "starting"
        self._error = ""
        self._counts = {"handled": 0, "failed": 0, "dead": 0, "published": 0}
        self._session: Session | None = None
        self._topics: set[str] = set()
        self._committed = Position()
        self._latest = 0
        self._keys = 0
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop in order: what is committed is delivered, if that takes no long time."""
        self._stop.set()
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def status(self) -> Running:
        """How it is."""
        if (session := self._session) is not None:
            self._topics.update(session.destinations.names)
            self._committed = session.ledger.journal.progress.log
            self._latest = self._committed.index + session.ahead
            self._keys = len(session.ledger.journal.state)
        return Running(
            function=self.assignment.function,
            log=self.assignment.log,
            version=self.assignment.version.number,
            state=self._state,
            error=self._error,
            index=self._committed.index,
            latest=self._latest,
            topics=tuple(sorted(self._topics)),
            keys=self._keys,
            workers=session.crew.workers if session else 0,
            confined=session.crew.confined if session else (),
            **self._counts,
        )

    # What a session tells

    def tell(self, state: State, error: str = "") -> None:
        """The state is another one."""
        if (state, error) != (self._state, self._error):
            self._state, self._error = state, error
            self._changed()

    def count(self, what: str, number: int = 1) -> None:
        """Something happened."""
        self._counts[what] += number

    def write(self, level: Level, text: str) -> None:
        """Write to the function's log."""
        self._lines.write(self._budget, self.assignment.function, self.assignment.log, level, text)

    def lost(self, what: str) -> None:
        """Something was dropped: say so loudly."""
        log.warning("%s on %s: %s", self.assignment.function, self.assignment.log, what)
        self.write("warning", what)

    # Sessions

    async def _run(self) -> None:
        pause = PAUSE
        while not self._stop.is_set():
            began = asyncio.get_running_loop().time()
            wait = 0.0
            try:
                await self._one()
            except Conflict as error:
                self.tell("fenced", error.what)
                wait = FENCED
            except (SkerryError, Down, TimeoutError) as error:
                what = error.what if isinstance(error, SkerryError) else "no answer"
                self.tell("waiting", what)
                log.warning("%s begins anew: %s", self.assignment.function, what)
                if asyncio.get_running_loop().time() - began > 2 * PAUSE_MOST:
                    pause = PAUSE
                wait, pause = pause, min(pause * 2, PAUSE_MOST)
            except Exception as error:
                log.exception("%s failed in its host", self.assignment.function)
                self.tell("waiting", f"the host failed: {type(error).__name__}: {error}")
                wait = PAUSE_MOST
            if wait:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._stop.wait()

    async def _one(self) -> None:
        """One session; returns when the runner is closed, raises what ended it otherwise."""
        session = Session(self, self._access, self._requests, self.assignment)
        working = asyncio.create_task(session.run())
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            elif self._session is not None:
                await session.finish()
        finally:
            stopped.cancel()
            working.cancel()
            await asyncio.gather(working, stopped, return_exceptions=True)
            _ = self.status  # what is known now is known later
            self._session = None
            await session.close()

    def opened(self, session: Session) -> None:
        """The session is about to work."""
        self._session = session
