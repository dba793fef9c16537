"""What functions print and why they fail, as events of `functions/logs`: best effort, bounded."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from typing import Literal

import msgspec

from skerry.errors import SkerryError
from skerry.functions.access import Access
from skerry.log.append import Publisher
from skerry.model.functions import LOGS

log = logging.getLogger("skerry.functions")

RATE = 200
"""Lines a second that one function may write; what is more is counted."""
MOST = 2000
"""Lines that wait at the most."""
MAX_LINE = 16 * 1024
"""Characters of one entry."""
IN_FLIGHT = 500
PAUSE = 5.0
"""Seconds before a topic that is not there, or does not answer, is tried again."""

Level = Literal["text", "error", "warning"]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a function's log."""

    time: int
    """Nanoseconds since 1970."""
    site: str
    log: str
    """The topic whose events were handled."""
    level: Level
    text: str


class Budget:
    """How much one function may still write this second."""

    def __init__(self) -> None:
        self._second = 0
        self._left = RATE
        self._dropped = 0

    def take(self, now: float) -> int | None:
        """Whether a line may be written: None if not, else how many were dropped before it."""
        if int(now) != self._second:
            self._second, self._left = int(now), RATE
        if not self._left:
            self._dropped += 1
            return None
        self._left -= 1
        dropped, self._dropped = self._dropped, 0
        return dropped


class Lines:
    """Writes the logs of all functions of a host."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._waiting: deque[tuple[str, Entry]] = deque(maxlen=MOST)
        self._came = asyncio.Event()

    def write(self, budget: Budget, function: str, topic: str, level: Level, text: str) -> None:
        """Write a line, or drop it if there are too many."""
        now = time.time()
        dropped = budget.take(now)
        if dropped is None:
            return
        if dropped:
            text = f"({dropped} lines were left out)\n{text}"
        entry = Entry(
            time=int(now * 1e9),
            site=self._access.routes.site,
            log=topic,
            level=level,
            text=text[:MAX_LINE],
        )
        self._waiting.append((function, entry))
        self._came.set()

    async def run(self) -> None:
        """Publish what is written until cancelled."""
        publisher: Publisher | None = None
        try:
            while True:
                await self._came.wait()
                self._came.clear()
                while self._waiting:
                    function, entry = self._waiting.popleft()
                    if publisher is None:
                        publisher = Publisher(self._access.connection, self._access.routes, LOGS)
                    try:
                        async with asyncio.timeout(PAUSE):
                            await publisher.send(
                                msgspec.json.encode(entry), topic=f"{LOGS}/{function}"
                            )
                            if publisher.in_flight > IN_FLIGHT:
                                await publisher.flush()
                    except (SkerryError, TimeoutError) as error:
                        log.debug("a line of %s is lost: %s", function, error)
                        publisher.close()
                        publisher = None
                        await asyncio.sleep(PAUSE)
        finally:
            if publisher is not None:
                with contextlib.suppress(SkerryError, TimeoutError):
                    async with asyncio.timeout(0.5):
                        await publisher.flush()
                publisher.close()
