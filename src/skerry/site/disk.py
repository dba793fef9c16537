"""A disk that is full or hangs: noticed, said aloud, and got over.

When a write to a log fails for want of room, the engine gives up that log for as long as it runs:
publishers get no answer, even when there is room again, and only the engine's own messages tell.
So we look there, and start the engine anew once the disk has room. Nothing that was acknowledged
is lost by it. A disk without any room does not take the engine's message either, so we look at that
as well.

A disk that hangs (a dying SD card, storage that is away) says nothing at all: the engine waits, and
the site goes on to beat. So a thread of ours writes a byte all the time, as the engine would, and
is missed when it does not come back, or with an error. The engine goes on by itself then.

Either way, topics that have members elsewhere have their home there meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import shutil
import threading
from pathlib import Path
from typing import Protocol

from skerry.engine.process import Engine

log = logging.getLogger("skerry.site")

LOOK = 0.5
"""Seconds between two looks, and between two writes."""
HANGS = 5
"""Looks in a row at the very same write after which the disk hangs."""
FLUSH = 2.0
"""Seconds between two writes that are flushed."""
ROOM = 16 * 1024 * 1024
"""Bytes that must be free before the engine is started anew; twice the largest event."""

NO_ROOM = 4096
"""Bytes of a block, without which nothing can be written."""

_FULL = b"no space left on device"


class Pulse:
    """Writes to `path` again and again. Flushed only if the engine flushes each message
    (`is_flushed`), and less often: else this would wear out a card that is not used."""

    def __init__(self, path: Path, is_flushed: bool) -> None:
        self._path = path
        self._is_flushed = is_flushed
        self._wait = FLUSH if is_flushed else LOOK
        self._done = 0
        self._is_writing = False
        self._seen = (0, 0)
        """How many writes were done at the last look, and how many looks in a row found that one
        more was under way."""
        self._over = threading.Event()
        threading.Thread(target=self._run, name="pulse", daemon=True).start()

    def close(self) -> None:
        """Write no more."""
        self._over.set()

    def look(self) -> None:
        """Some time has passed."""
        done, looks = self._seen
        is_same = self._is_writing and done == self._done
        self._seen = (self._done, looks + 1 if is_same else 0)

    @property
    def hangs(self) -> bool:
        """Whether a write has taken too long by now."""
        return self._seen[1] >= HANGS and self._seen[0] == self._done

    def _run(self) -> None:
        while not self._over.wait(self._wait):
            self._is_writing = True
            try:
                self._write()
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    continue  # a full disk is noticed otherwise
            self._is_writing = False
            self._done += 1

    def _write(self) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(file, b".", 0)
            if self._is_flushed:
                os.fsync(file)
        finally:
            os.close(file)


class Stuck(Protocol):
    """Who is to know that nothing can be written here."""

    def on_stuck(self) -> None:
        """Nothing can; told again now and then."""

    def on_well(self) -> None:
        """Everything can again."""


async def watch_disk(engine: Engine, folder: Path, is_flushed: bool, site: Stuck) -> None:
    """Tell `site` of a disk that is full or hangs; start `engine` anew once a full one has room
    again. Runs for ever."""
    pulse = Pulse(folder / "pulse", is_flushed)
    try:
        await _watch(engine, folder, pulse, site)
    finally:
        pulse.close()


async def _watch(engine: Engine, folder: Path, pulse: Pulse, site: Stuck) -> None:
    position = _size(engine.log_path)
    while True:
        await asyncio.sleep(LOOK)
        pulse.look()
        size = _size(engine.log_path)
        is_full = _free(folder) < NO_ROOM
        if size != position:
            is_full |= _FULL in _since(engine.log_path, position if position < size else 0)
        position = size
        if not (is_full or pulse.hangs):
            continue
        what, then = ("is full", "has room") if is_full else ("hangs", "answers")
        log.error("the disk of %s %s: topics take no events until it %s", folder, what, then)
        waited = due = 0.0
        while pulse.hangs or (is_full and _free(folder) < ROOM):
            if waited >= due:  # more and more seldom
                site.on_stuck()
                due = 2 * waited + 1.0
            await asyncio.sleep(LOOK)
            pulse.look()
            waited += LOOK
        log.warning("the disk of %s %s again", folder, then)
        if is_full:
            position = _size(engine.log_path)
            engine.restart()  # which tells the site
        else:
            site.on_well()


def _free(folder: Path) -> float:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return math.inf  # a disk that does not even tell is noticed by its pulse


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
