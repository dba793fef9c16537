"""An archive's folder: what is in it, who uses it, and what is refused before anything is written.

    <folder>/
      _skerry/archive.json     format, id, topics, table, columns
      _skerry/lock             held while the archive runs; names its process, 0600
      _skerry/spark.log        what Spark's JVM said since the last start
      _skerry/checkpoint/      Spark's: how far each topic was read
      _skerry/commits/         of format parquet: the files of each batch
      _delta_log/              of format delta: the same, as Delta has it
      topic=…/date=…/part-<batch>-<task>-<number>.parquet

The lock is an flock: it lasts exactly as long as the process that archives, so one that was killed
leaves nothing that has to be cleaned up, and whom `stop` would signal is known to be alive.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from skerry.engine.address import write_secret
from skerry.errors import (
    BadSetting,
    FolderCorrupt,
    FolderError,
    FolderLocked,
    FolderTooNew,
    FolderUnwritable,
)
from skerry.model.pattern import Pattern

FORMAT = 1
"""The layout of the folder. A folder with a higher number is left alone."""
OWN = "_skerry"

TableFormat = Literal["delta", "parquet"]
TABLE_FORMATS = ("delta", "parquet")
PAYLOADS = ("binary", "json", "msgpack", "arrow")

_GLOB = frozenset("{}[]*?\\,")
"""Characters that Spark takes for a pattern in a path."""


class ArchiveFile(msgspec.Struct, frozen=True, kw_only=True):
    """What `archive.json` says."""

    format: int = FORMAT
    id: str
    topics: str
    """The topic or pattern that is archived."""
    table: TableFormat
    payload: str = "binary"
    fields: dict[str, Any] | None = None
    """The fields of decoded payloads, as Spark writes a schema in JSON."""
    created: datetime


class Mark(msgspec.Struct, frozen=True):
    """How far a topic was read: the last index, and which log it is of."""

    index: int
    epoch: int = 0
    since: str = ""


class Archive:
    """A folder with an archive in it. Make it with `open` or `create`."""

    def __init__(self, path: Path, about: ArchiveFile) -> None:
        self.path = path
        self.about = about

    @classmethod
    def open(cls, path: Path) -> Archive:
        """The archive in `path`; `FolderError` if there is none that can be read."""
        path = path.expanduser().absolute()
        file = path / OWN / "archive.json"
        if not file.exists():
            raise FolderError(
                f"{path} holds no archive",
                "Begin one with `skerry archive start TOPIC --to FOLDER`.",
            )
        try:
            content = file.read_bytes()
            number = msgspec.json.decode(content).get("format", 0)
            if number > FORMAT:
                raise FolderTooNew(
                    f"{path} was written by a newer Skerry (format {number}, this one knows "
                    f"{FORMAT})",
                    "Upgrade Skerry.",
                )
            return cls(path, msgspec.json.decode(content, type=ArchiveFile))
        except (OSError, ValueError, AttributeError) as error:
            raise FolderCorrupt(
                f"{file} cannot be read: {error}", "Restore it from a backup."
            ) from None

    @classmethod
    def create(cls, path: Path, topics: str, table: TableFormat, payload: str) -> Archive:
        """Describe a new archive. Nothing is written before `save`."""
        path = path.expanduser().absolute()
        about = ArchiveFile(
            id=secrets.token_hex(8),
            topics=Pattern.parse(topics).text,
            table=table,
            payload=payload,
            created=datetime.now(UTC),
        )
        return cls(path, about)

    def save(self, fields: dict[str, Any] | None = None) -> None:
        """Write `archive.json`, in one step, with these decoded fields."""
        self.about = msgspec.structs.replace(self.about, fields=fields)
        try:
            self.own.mkdir(parents=True, exist_ok=True)
            content = msgspec.json.format(msgspec.json.encode(self.about), indent=2)
            write_secret(self.own / "archive.json", content)
        except OSError as error:
            raise unwritable(self.path, error) from None

    @property
    def pattern(self) -> Pattern:
        """The topics."""
        return Pattern.parse(self.about.topics)

    @property
    def own(self) -> Path:
        """Where everything is that is not the table."""
        return self.path / OWN

    @property
    def checkpoint(self) -> Path:
        """Spark's checkpoint."""
        return self.own / "checkpoint"

    def marks(self) -> dict[str, Mark]:
        """How far each topic was read when the last batch was done; Spark's checkpoint tells."""
        done = _numbers(self.checkpoint / "commits")
        planned = [n for n in _numbers(self.checkpoint / "offsets") if done and n <= done[-1]]
        if not planned:
            return {}
        try:
            lines = (self.checkpoint / "offsets" / str(planned[-1])).read_text().splitlines()
            offset = json.loads(lines[2]) if lines[2] != "-" else {}  # no topic was there yet
            return {topic: msgspec.convert(mark, Mark) for topic, mark in offset.items()}
        except (OSError, ValueError, IndexError) as error:
            raise FolderCorrupt(f"the checkpoint of {self.path} cannot be read: {error}") from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder; `FolderLocked` if another process does."""
        try:
            self.own.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.own / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise unwritable(self.path, error) from None
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = holder(self.path)
                raise FolderLocked(
                    f"process {pid} archives into {self.path}",
                    f"Stop it with `skerry archive stop {self.path}`, or choose another folder.",
                    pid,
                ) from None
            os.fchmod(lock, 0o600)
            entry = {"pid": os.getpid(), "since": datetime.now(UTC).isoformat(timespec="seconds")}
            os.ftruncate(lock, 0)
            os.pwrite(lock, json.dumps(entry).encode(), 0)
            yield
        finally:
            os.close(lock)


def holder(path: Path) -> int | None:
    """The process that archives into `path` at this moment; None if none does, whatever the lock
    file says."""
    try:
        lock = os.open(path.expanduser() / OWN / "lock", os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return int(json.loads(os.pread(lock, 4096, 0))["pid"])
        return None
    finally:
        os.close(lock)


def check_target(path: Path, topics: str, table: str | None, payload: str | None) -> Archive | None:
    """The archive in `path` that is to be gone on with, or None if it is to be begun. Raises what
    speaks against it; writes nothing."""
    Pattern.parse(topics)
    _check_choice("format", table, TABLE_FORMATS)
    _check_choice("payload", payload, PAYLOADS)
    path = path.expanduser().absolute()
    if bad := _GLOB & set(str(path)):
        raise BadSetting(
            f"the folder's name {str(path)!r} has {min(bad)} in it, which Spark takes for a "
            "pattern",
            "Choose another name.",
        )
    if path.exists() and not path.is_dir():
        raise BadSetting(f"{path} is a file", "Name a folder with --to.")
    _check_writable(path)
    if not (path / OWN / "archive.json").exists():
        # A lock alone is what a start leaves behind that was cut short.
        if path.exists() and {item.name for item in path.iterdir()} - {OWN}:
            raise BadSetting(
                f"{path} holds something else than an archive", "Name an empty or new folder."
            )
        return None
    archive = Archive.open(path)
    about = archive.about
    for name, have, want in [
        ("topics", about.topics, topics),
        ("format", about.table, table),
        ("payload", about.payload, payload),
    ]:
        if want is not None and want != have:
            raise BadSetting(
                f"{path} is an archive with {name} {have}, not {want}",
                f"Give {have}, or choose another folder for {want}.",
            )
    return archive


def unwritable(path: Path, error: OSError) -> FolderUnwritable:
    """The error for a folder that did not take a file."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = "Free some room on its disk; the archive goes on where it was."
    else:
        advice = "Choose another with --to, or change its owner or permissions."
    return FolderUnwritable(f"the folder {path} cannot be written: {error.strerror}", advice)


def _check_choice(name: str, given: str | None, allowed: tuple[str, ...]) -> None:
    if given is not None and given not in allowed:
        raise BadSetting(
            f"there is no {name} {given!r} for an archive", f"It is one of {', '.join(allowed)}."
        )


def _check_writable(path: Path) -> None:
    there = path
    while not there.exists():
        there = there.parent
    if not os.access(there, os.W_OK | os.X_OK):
        raise unwritable(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def _numbers(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(file.name) for file in folder.iterdir() if file.name.isdigit())
