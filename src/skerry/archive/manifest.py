"""Format parquet: plain files, and a list of those that count.

    _skerry/commits/<version>.json      the files that a version adds; every 100th has all of them

A version is written under another name and linked to its own, which fails if it is there: two
writers cannot both make it. Files are named by batch and task, and Spark runs a batch again with
the same rows in the same tasks. So what a killed run left behind has the names of what the next
one writes, and is replaced: readers that know nothing of the list find no row twice either, they
may only find the rows of a batch that is not complete yet.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from skerry.archive.folder import OWN
from skerry.archive.table import DataFile, Snapshot
from skerry.errors import FolderCorrupt

FULL = 100
"""Versions after which one has all files, so that no reader opens more than so many."""


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """What a version's file says."""

    batch: int
    full: bool
    files: tuple[DataFile, ...]


class ManifestTable:
    """Plain parquet files with a list of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = path / OWN / "commits"

    def prepare(self, schema: pa.Schema) -> None:
        """Nothing but a place for the list: whoever reads brings the columns."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def last_batch(self) -> int:
        """The number of the last batch that was committed; -1 if there was none."""
        versions = self._versions()
        return self._read(versions[-1]).batch if versions else -1

    def commit(self, batch: int, files: Sequence[DataFile]) -> bool:
        """Add the files of a batch; False if it is there already."""
        if batch <= self.last_batch():
            return False
        versions = self._versions()
        number = versions[-1] + 1 if versions else 0
        full = number % FULL == 0
        kept = self.snapshot().files if full else ()
        version = Version(batch=batch, full=full, files=(*kept, *files))
        fresh = self._folder / f".{secrets.token_hex(4)}"
        fresh.write_bytes(msgspec.json.encode(version))
        try:
            os.link(fresh, self._file(number))
        finally:
            fresh.unlink()
        for old in versions if full else ():
            if old < number - FULL:
                self._file(old).unlink(missing_ok=True)
        return True

    def snapshot(self) -> Snapshot:
        """What the table holds now."""
        while True:
            versions = self._versions()
            files: list[DataFile] = []
            try:
                for number in reversed(versions):
                    version = self._read(number)
                    files[:0] = version.files
                    if version.full:
                        break
            except FileNotFoundError:
                continue  # it became old while we read; there are newer ones now
            return Snapshot(version=versions[-1] if versions else -1, files=tuple(files))

    def _versions(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        names = (file.stem for file in self._folder.iterdir() if file.suffix == ".json")
        return sorted(int(name) for name in names if name.isdigit())

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:010d}.json"

    def _read(self, number: int) -> Version:
        file = self._file(number)
        try:
            return msgspec.json.decode(file.read_bytes(), type=Version)
        except ValueError as error:
            raise FolderCorrupt(
                f"{file} cannot be read: {error}", "Restore it from a backup."
            ) from None
