"""How far logs were: remembered, to notice at the next start what a disk has lost.

The engine does not tell. A flipped bit ends a log there once the engine has crashed, and the
indexes behind it are given again; a file that was cut leaves a hole in the log; neither is named in
the engine's own log (tried). So the agent writes down every few seconds where each log ends and how
many events are missing inside. A log that ends earlier, or that has more holes and no more events,
lost them while nobody looked. A single event that cannot be read any more leaves no trace in these
numbers.

A power cut takes what was not flushed yet, and perhaps the newest line here as well. So the file
also says in which boot of the machine it was written, and whether the site was stopped in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
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
    logs: dict[str, _Mark] = {}


class Tide:
    """What is remembered in one data folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "tide.json"
        self.lost: dict[str, str] = {}
        """The topics whose logs lost events, and what is known of it."""
        self.ends: dict[str, int] = {}
        """Where those of them ended that end earlier now."""
        self.is_waiting: Callable[[], bool] = lambda: False
        """Whether homes still wait for their members: until then what is known stays."""
        self._boot = ""
        with contextlib.suppress(OSError):
            self._boot = _BOOT.read_text().strip()
        self._known = _File()
        with contextlib.suppress(OSError, ValueError):
            self._known = msgspec.json.decode(self._path.read_bytes(), type=_File)

    @property
    def is_over_power_cut(self) -> bool:
        """Whether the machine went down under the site."""
        known = self._known
        return bool(known.boot) and known.boot != self._boot and not known.clean

    def look(self, streams: Iterable[dict[str, Any]]) -> None:
        """An engine was started: have its logs what they had? What they lack is in `lost`."""
        for stream, now in _marks(streams).items():
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

    def expect(self, stream: str) -> None:
        """Events of a stream are about to be removed on purpose."""
        logs = {name: mark for name, mark in self._known.logs.items() if name != stream}
        if logs != self._known.logs:
            self._write(_File(self._known.boot, False, logs))

    def note(self, streams: Iterable[dict[str, Any]]) -> None:
        """Remember how far logs are now."""
        known = self._known
        marks = _marks(streams)
        for stream, mark in known.logs.items():
            found = segment_of_stream(stream)
            if found is not None and found[0] in self.lost:
                marks[stream] = mark
        boot = known.boot if self.is_waiting() else self._boot
        if marks != known.logs or known.clean or known.boot != boot:
            self._write(_File(boot, False, marks))

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
        self._write(_File(self._boot, True, self._known.logs))

    def _write(self, file: _File) -> None:
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_bytes(msgspec.json.encode(file))
            fresh.replace(self._path)
        except OSError as error:
            log.debug("how far logs are could not be written down: %s", error)
            return
        self._known = file


def _marks(streams: Iterable[dict[str, Any]]) -> dict[str, _Mark]:
    return {
        info["config"]["name"]: _Mark(
            info["created"], info["state"]["last_seq"], info["state"].get("num_deleted", 0)
        )
        for info in streams
    }
