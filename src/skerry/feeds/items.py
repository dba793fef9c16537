"""What a subscription by query hands out: a bounded line of items, and the work that fills it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Self, TypeVar

from skerry.engine.wire import Listener
from skerry.errors import BadSetting, SkerryError
from skerry.fabric.tasks import Tasks
from skerry.model.feeds import Joined, Left, Missed, Received

log = logging.getLogger("skerry.query")

T = TypeVar("T")

Item = Joined | Left | Received | Missed


class Items(Listener):
    """Iterate over it with `async for`. Work that fails ends it with its error."""

    def __init__(self, window: int) -> None:
        if not 1 <= window <= 1_000_000:
            raise BadSetting(f"a window is 1 to 1000000 items, not {window!r}")
        self._window = window
        self._items: deque[Item] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._tasks = Tasks("a subscription by query", self._failed)
        self._error: SkerryError | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        while not self._items:
            if self._error is not None:
                raise self._error
            if self._closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        item = self._items.popleft()
        if len(self._items) == self._window // 2:  # there is room again
            self._room.set()
            self._has_room()
        return item

    async def close(self) -> None:
        """Stop."""
        self._closed = True
        await self._tasks.close()
        self._wake()

    def _has_room(self) -> None:
        """Half of what was held is handed out."""

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._tasks.spawn(work)

    def _failed(self, error: BaseException) -> None:
        if not isinstance(error, SkerryError):
            log.error("a subscription by query failed", exc_info=error)
            error = SkerryError(f"the subscription failed: {error!r}")
        self._fail(error)

    def _put(self, item: Item) -> None:
        self._items.append(item)
        if len(self._items) >= self._window:
            self._room.clear()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: SkerryError) -> None:
        if self._error is None:
            self._error = error
            self._wake()
