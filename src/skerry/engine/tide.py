"""How far logs were: remembered, to notice at the next start what a disk has lost.

The engine does not tell. A flipped bit ends a log there once the engine has crashed, and the
indexes behind it are given again; a file that was cut leaves a hole in the log; neither is named in
the engine's own log (tried). So the agent writes down every few seconds where each log ends and how
many events are missing inside. A log that ends earlier, or that has more holes and no more events,
lost them while nobody looked. A single event that cannot be read any more leaves no trace in these
numbers.

A power cut takes what was not flushed yet, and perhaps the newest line here as well. So the file
also says in which boot of the machine it was written, and whether the site was stopped in order.

Who puts an older copy of the whole folder in its place takes this file back, too. So it counts how
often logs had grown, and other sites are told that number, and tell it back (`fabric/links.py`).
Before one of them was heard it does not count on: an older folder would soon look like the newest.
The folder has a name, made at random, so that numbers of another one say nothing about it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.engine.process import Engine
from skerry.errors import SkerryError
from skerry.model.names import segment_of_stream

log = logging.getLogger("skerry.engine")

PERIOD = 5.0
"""Seconds between two notes; longer where there are so many logs that it would be work."""
LAST_LOOK = 1.0
POWER_CUT = 12
"""Notes that may be lost in a power cut, where they are not flushed."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class _Mark(msgspec.Struct, frozen=True, array_like=True):
    created: str
    """When the stream was made: one of the same name may have taken its place."""
    last: int
    holes: int
    """Events that are missing between the first and the last."""


class _File(msgspec.Struct):
    boot: str = ""
    clean: bool = False
    folder: str = ""
    number: int = 0
    """How often it was written because logs had grown."""
    heard: int = 0
    """The number that another site knew, if that was higher."""
    logs: dict[str, _Mark] = {}


class Tide:
    """What is remembered in one data folder."""

    def __init__(self, folder: Path, is_flushed: bool = False) -> None:
        self._path = folder / "tide.json"
        self._is_flushed = is_flushed
        self.lost: dict[str, str] = {}
        """The topics whose logs lost events, and what is known of it."""
        self.ends: dict[str, int] = {}
        """Where those of them ended that end earlier now."""
        self.doubted: dict[str, int] = {}
        """The topics whose logs are older than they were, until they have all again: the folder was
        set back. With each, the number that tells."""
        self._here: set[str] | None = None
        """The topics that had logs here when the site began."""
        self._heard: int | None = None
        """The highest number of this folder's that another site has been told; None: none was heard
        since the start."""
        self.is_waiting: Callable[[], bool] = lambda: False
        """Whether homes still wait for their members: until then what is known stays."""
        self._boot, self._known = self._read()
        if not self._known.folder:
            self._known = msgspec.structs.replace(self._known, folder=secrets.token_hex(4))
        has_lost_notes = self.is_over_power_cut and not is_flushed
        self._newest = self.number + (POWER_CUT if has_lost_notes else 0)
        """The highest number that this folder may have had when the site began."""

    def _read(self) -> tuple[str, _File]:
        """Which boot of the machine this is, and what was written down."""
        boot, file = "", _File()
        with contextlib.suppress(OSError):
            boot = _BOOT.read_text().strip()
        with contextlib.suppress(OSError, ValueError):
            file = msgspec.json.decode(self._path.read_bytes(), type=_File)
        return boot, file

    @property
    def is_over_power_cut(self) -> bool:
        """Whether the machine went down under the site."""
        known = self._known
        return bool(known.boot) and known.boot != self._boot and not known.clean

    @property
    def number(self) -> int:
        """How often logs had grown when that was written down."""
        return self._known.number

    @property
    def folder(self) -> str:
        """The folder's name, made when it was."""
        return self._known.folder

    @property
    def mark(self) -> tuple[str, int]:
        """What other sites are told."""
        return self.folder, self.number

    def hear(self, folder: str, number: int) -> bool:
        """Another site was told this number, of a folder of this site. Whether there is doubt
        since."""
        if folder != self.folder:
            number = 0
        known = max(self.number, self._newest, self._heard or 0)
        self._heard = max(number, self._heard or 0)
        if number <= known:
            return False
        log.error(
            "this data folder is older than what other sites have heard of it: homes here take no "
            "events before their members have answered"
        )
        self._doubt(number, _topics(self._known.logs) | (self._here or set()))
        self._write(msgspec.structs.replace(self._known, heard=number))
        return True

    def _doubt(self, number: int, topics: Iterable[str]) -> None:
        self.doubted |= dict.fromkeys(topics, number)

    def settle(self, name: str, number: int) -> None:
        """The log of a topic that was in doubt since `number` has all again."""
        if self.doubted.get(name) == number:  # else another site knows better still
            del self.doubted[name]

    def look(self, streams: Iterable[dict[str, Any]]) -> None:
        """An engine was started: have its logs what they had? What they lack is in `lost`."""
        marks = _marks(streams)
        if self._here is None:
            self._here = _topics(marks)
            heard = max(self._heard or 0, self._known.heard)
            if heard > self.number and (heard > self._newest or heard == self._known.heard):
                self._doubt(heard, self._here)
        for stream, now in marks.items():
            then = self._known.logs.get(stream)
            found = segment_of_stream(stream)
            if then is None or found is None or then.created != now.created:
                continue
            name = found[0]
            if now.last < then.last:
                self.ends[name] = max(self.ends.get(name, 0), then.last)
                self._say(name, f"its log ends at index {now.last}, and had {then.last}")
            elif now.last == then.last and now.holes > then.holes:
                self._say(name, f"{now.holes - then.holes} events inside its log are gone")

    def _say(self, name: str, what: str) -> None:
        if self.lost.get(name) != what:
            log.error("%s lost events, unless their lifespan was over: %s", name, what)
        self.lost[name] = what

    def forget(self, name: str) -> None:
        """The log of a topic was made anew."""
        self.lost.pop(name, None)
        self.ends.pop(name, None)
        self.doubted.pop(name, None)

    def expect(self, stream: str) -> None:
        """Events of a stream are about to be removed on purpose."""
        logs = {name: mark for name, mark in self._known.logs.items() if name != stream}
        if logs != self._known.logs:
            self._write(msgspec.structs.replace(self._known, clean=False, logs=logs))

    def note(self, streams: Iterable[dict[str, Any]]) -> None:
        """Remember how far logs are now."""
        known = self._known
        marks = _marks(streams)
        for stream, mark in known.logs.items():
            found = segment_of_stream(stream)
            if found is not None and found[0] in self.lost:
                marks[stream] = mark
        boot, number = known.boot, known.number
        if not self.is_waiting():
            boot = self._boot
            if self._heard is not None and not self.doubted:
                number = max(number, self._heard, known.heard) + (marks != known.logs)
        fresh = msgspec.structs.replace(known, boot=boot, clean=False, number=number, logs=marks)
        if fresh != known:
            self._write(fresh)

    async def watch(self, engine: Engine, jetstream: JetStream) -> None:
        """Write down how far logs are, every now and then. Runs for ever."""
        restarts, wait = engine.restarts, PERIOD
        while True:
            await asyncio.sleep(wait)
            began = time.monotonic()
            with contextlib.suppress(SkerryError, Down):
                streams = await jetstream.streams()
                if engine.restarts != restarts:
                    restarts = engine.restarts
                    self.look(streams)
                self.note(streams)
            wait = max(PERIOD, 100 * (time.monotonic() - began))

    async def note_last(self, jetstream: JetStream) -> None:
        """The same once more, before the engine is stopped; not if that takes long."""
        with contextlib.suppress(SkerryError, Down, TimeoutError):
            async with asyncio.timeout(LAST_LOOK):
                self.note(await jetstream.streams())

    def close(self) -> None:
        """The engine was stopped in order: all that it had is on disk."""
        self._write(msgspec.structs.replace(self._known, boot=self._boot, clean=True))

    def _write(self, file: _File) -> None:
        fresh = self._path.with_suffix(".new")
        try:
            with fresh.open("wb") as out:
                out.write(msgspec.json.encode(file))
                if self._is_flushed:
                    out.flush()
                    os.fsync(out.fileno())
            fresh.replace(self._path)
            if self._is_flushed:
                folder = os.open(self._path.parent, os.O_RDONLY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
        except OSError as error:
            log.debug("how far logs are could not be written down: %s", error)
            return
        self._known = file


def _topics(streams: Iterable[str]) -> set[str]:
    return {found[0] for found in map(segment_of_stream, streams) if found}


def _marks(streams: Iterable[dict[str, Any]]) -> dict[str, _Mark]:
    return {
        info["config"]["name"]: _Mark(
            info["created"], info["state"]["last_seq"], info["state"].get("num_deleted", 0)
        )
        for info in streams
    }
