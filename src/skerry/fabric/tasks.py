"""Work in the background that ends with its owner."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

log = logging.getLogger("skerry.fabric")

T = TypeVar("T")


class Tasks:
    """The tasks of one owner. `what` says in the log whose work it was that failed; or `failed` is
    called with the error."""

    def __init__(self, what: str, failed: Callable[[BaseException], None] | None = None) -> None:
        self._what = what
        self._failed = failed
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin `work`. Nobody needs to wait for it: if it fails, that is logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if self._failed is not None:
            self._failed(error)
        else:
            log.error("%s failed: %s", self._what, error, exc_info=error)

    def cancel(self) -> None:
        """End everything soon."""
        for task in list(self._tasks):
            task.cancel()

    async def close(self) -> None:
        """Cancel everything and wait for its end, what is begun meanwhile included."""
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._tasks.difference_update(tasks)
