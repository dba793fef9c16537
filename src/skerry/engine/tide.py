"""How far logs were: remembered, to notice at the next start what a disk has lost.

The engine does not tell. A flipped bit ends a log there once the engine has crashed, and the indexes
behind it are given again; a file that was cut leaves a hole in the log; neither is named in the
engine's own log (tried). So the agent writes down every few seconds where each log ends and how many
events are missing inside. A log that ends earlier, or that has more holes and no more events, lost
them while nobody looked.

A power cut takes what was not flushed yet, and perhaps the newest line here as well. So the file
also says in which boot of the machine it was written, and whether the site was stopped in order.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from skerry.model.names import topic_of_stream

log = logging.getLogger("skerry.engine")

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class _Mark(msgspec.Struct, frozen=True, array_like=True):
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

    def lost(self, streams: Iterable[dict[str, Any]]) -> dict[str, str]:
        """The topics among the engine's streams whose logs lost events, and what is known of it."""
        found: dict[str, str] = {}
        for stream, now in _marks(streams).items():
            then = self._known.logs.get(stream)
            name = topic_of_stream(stream)
            if then is None or name is None:
                continue
            if now.last < then.last:
                found[name] = f"its log ends at index {now.last}, and had {then.last}"
            elif now.last == then.last and now.holes > then.holes:
                found[name] = f"{now.holes - then.holes} events inside its log are gone"
        return found

    def note(self, streams: Iterable[dict[str, Any]]) -> None:
        """Remember how far logs are now."""
        marks = _marks(streams)
        if marks != self._known.logs or self._known.clean or self._known.boot != self._boot:
            self._write(_File(self._boot, False, marks))

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
            info["state"]["last_seq"], info["state"].get("num_deleted", 0)
        )
        for info in streams
    }
