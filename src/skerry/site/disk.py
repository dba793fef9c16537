"""A full disk: noticed, said aloud, and got over.

When a write to a log fails for want of room, the engine gives up that log for as long as it runs:
publishers get no answer, even when there is room again, and only the engine's own messages tell.
So we look there, and start the engine anew once the disk has room. Nothing that was acknowledged
is lost by it. Until then, topics that have members elsewhere have their home there. A disk without
any room does not take the engine's message either, so we look at that as well.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from skerry.engine.process import Engine

log = logging.getLogger("skerry.site")

LOOK = 1.0
"""Seconds between two looks."""
ROOM = 16 * 1024 * 1024
"""Bytes that must be free before the engine is started anew; twice the largest event."""

NO_ROOM = 4096
"""Bytes of a block, without which nothing can be written."""

_FULL = b"no space left on device"


async def watch_disk(engine: Engine, folder: Path, while_full: Callable[[], None]) -> None:
    """Start `engine` anew whenever its disk was full and has room again; call `while_full` now and
    then until it has. Runs for ever."""
    position = _size(engine.log_path)
    while True:
        await asyncio.sleep(LOOK)
        size = _size(engine.log_path)
        is_full = shutil.disk_usage(folder).free < NO_ROOM
        if size != position:
            is_full |= _FULL in _since(engine.log_path, position if position < size else 0)
        position = size
        if not is_full:
            continue
        log.error("the disk of %s is full: topics do not take events until there is room", folder)
        waited = due = 0.0
        while shutil.disk_usage(folder).free < ROOM:
            if waited >= due:  # more and more seldom
                while_full()
                due = 2 * waited + LOOK
            await asyncio.sleep(LOOK)
            waited += LOOK
        log.warning("the disk of %s has room again; starting the engine anew", folder)
        position = _size(engine.log_path)
        engine.restart()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _since(path: Path, position: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(position)
            return file.read(1024 * 1024)
    except OSError:
        return b""
