"""The state of pipelines: one folder each, in a folder of the site's or of the user's.

    <state>/<name>/           0700, all files 0600
      lock                    held while it runs, in the foreground or deployed; names the process
      job.json                what runs: file, function, site, settings
      code/FILE.py            the copy of the user's file that runs
      shape.json              what the checkpoint was written by, see `pipeline_shape`
      checkpoint/             Spark's own
      status.json             how far it is, written after batches by whoever runs it
      supervisor.json         restarts and what comes next, written by the supervisor
      log, log.1              what a deployed pipeline says
      spark.log               what Spark itself says

The lock is an flock that supervisor and worker share: it lasts as long as either of them, so that
no two processes ever use one checkpoint. Nothing here is ever pickled: the files are JSON.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from skerry.engine.address import write_secret
from skerry.errors import (
    FolderCorrupt,
    FolderUnwritable,
    PipelineRuns,
    SkerryError,
    UnknownPipeline,
)
from skerry.spark.pipeline import check_name

T = TypeVar("T", bound=msgspec.Struct)

State = Literal["starting", "running", "waiting", "stopped", "done", "failed", "lost"]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What runs, and how."""

    name: str
    file: str
    """The copy's name in `code/`."""
    origin: str
    """Where the user had it."""
    targets: list[str]
    """The site: a data folder, or connection files and URLs."""
    master: str | None = None
    memory: str = "1g"
    config: dict[str, str] = {}
    once: bool = False
    redo: bool = False
    """Whether a batch that other code has begun to write may be written again."""
    deployed: bool = False


class Lag(msgspec.Struct, frozen=True):
    """How much of a topic is not read yet."""

    events: int
    seconds: float
    """Since the oldest of them was stored."""


class Status(msgspec.Struct, kw_only=True):
    """How far a pipeline is. This is what goes to its metrics topic."""

    name: str
    state: State = "starting"
    time: datetime = datetime.fromtimestamp(0, UTC)
    """When this was true."""
    pid: int = 0
    batch: int = -1
    """The number of the last batch; -1: none yet."""
    batch_time: datetime | None = None
    batch_ms: int = 0
    batch_rows: int = 0
    rows: int = 0
    """Rows read since the checkpoint began."""
    rows_s: float = 0.0
    """Rows that the last batch with rows took in a second."""
    lag_events: int = 0
    lag_seconds: float = 0.0
    """Of the topic that is furthest behind."""
    topics: dict[str, Lag] = {}
    state_rows: int = 0
    state_bytes: int = 0
    kind: str = ""
    """Which error it ended with, of those in `skerry.errors`."""
    error: str = ""
    advice: str = ""

    def end(self, error: SkerryError | None = None) -> None:
        """Note what it ended with; without an error forget what an earlier run ended with."""
        self.state = "failed" if error else "starting"
        self.kind = type(error).__name__ if error else ""
        self.error, self.advice = (error.what, error.advice) if error else ("", "")


class Supervision(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor does."""

    state: State
    pid: int
    restarts: int = 0
    error: str = ""
    advice: str = ""
    retry: datetime | None = None
    """When a pipeline that crashed is started anew."""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline as `skerry pipeline list` shows it."""

    name: str
    state: State
    pid: int | None
    deployed: bool
    restarts: int
    error: str
    advice: str
    file: str
    status: Status


class Folder:
    """The state of one pipeline."""

    def __init__(self, root: Path, name: str) -> None:
        self.path = root / check_name(name)
        self.name = name
        self._lock: int | None = None

    @property
    def checkpoint(self) -> Path:
        """Where Spark keeps its checkpoint."""
        return self.path / "checkpoint"

    @property
    def log(self) -> Path:
        """What the deployed pipeline says."""
        return self.path / "log"

    @property
    def code(self) -> Path:
        """Where the copy of the user's file is."""
        return self.path / "code"

    def exists(self) -> bool:
        """Whether a pipeline of this name was ever run."""
        return (self.path / "job.json").exists()

    # Who runs it

    def take(self) -> None:
        """Lock the folder, making it if need be; raises `PipelineRuns` if somebody has it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise FolderUnwritable(
                f"{self.path} cannot be used: {error.strerror}",
                "Name a folder of your own with --state.",
            ) from None
        deadline = time.monotonic() + 1.0  # whoever only looks is done at once
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    pid = _pid(lock)
                    os.close(lock)
                    raise PipelineRuns(
                        f"the pipeline {self.name} runs already, as process {pid}",
                        f"Stop it with `skerry pipeline stop {self.name}`, or give the other one "
                        'another name: @skerry.pipeline(…, name="…").',
                        pid,
                    ) from None
                time.sleep(0.02)
        self._lock = lock
        self.claim()

    def adopt(self, lock: int) -> None:
        """Use the lock that another process took and passed on."""
        self._lock = lock
        os.set_inheritable(lock, False)  # an orphaned JVM must not keep it

    def claim(self) -> None:
        """Write into the lock who is to be told to stop."""
        assert self._lock is not None
        text = str(os.getpid()).encode()
        os.pwrite(self._lock, text, 0)
        os.ftruncate(self._lock, len(text))

    @property
    def lock(self) -> int:
        """The descriptor, to be passed on."""
        assert self._lock is not None
        return self._lock

    def release(self) -> None:
        """Give the folder back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def holder(self) -> int | None:
        """The process that runs this pipeline; None if nobody does."""
        try:
            lock = os.open(self.path / "lock", os.O_RDWR)
        except OSError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return _pid(lock)
        finally:
            os.close(lock)
        return None

    # What it is

    def install(self, copy: Path, job: Job) -> None:
        """Make `copy`, which was staged, the code that runs."""
        old = self.path / ".code-old"
        shutil.rmtree(old, ignore_errors=True)
        if self.code.exists():
            self.code.rename(old)
        copy.parent.rename(self.code)
        shutil.rmtree(old, ignore_errors=True)
        self.write("job", job)

    def begin_anew(self) -> None:
        """Forget how far the pipeline was."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        for name in ("shape", "status", "supervisor"):
            (self.path / f"{name}.json").unlink(missing_ok=True)

    def read(self, name: str, kind: type[T]) -> T | None:
        """What `name`.json says; None if there is none."""
        file = self.path / f"{name}.json"
        try:
            return msgspec.json.decode(file.read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise FolderCorrupt(
                f"{file} cannot be read: {error}",
                f"Remove {self.path} to forget the pipeline and how far it was.",
            ) from None

    def write(self, name: str, value: msgspec.Struct) -> None:
        """Replace `name`.json in one step."""
        write_secret(self.path / f"{name}.json", msgspec.json.encode(value))

    def look(self) -> Listed | None:
        """How the pipeline is now; None if it was never run."""
        job = self.read("job", Job)
        if job is None:
            return None
        status = self.read("status", Status) or Status(name=self.name)
        above = self.read("supervisor", Supervision) if job.deployed else None
        pid = self.holder()
        state: State = status.state
        error, advice = status.error, status.advice
        if above is not None and (above.state != "running" or pid is None):
            state, error, advice = above.state, above.error or error, above.advice or advice
        if pid is None and state in ("starting", "running", "waiting"):
            state = "lost"
        return Listed(
            name=self.name,
            state=state,
            pid=pid,
            deployed=job.deployed,
            restarts=above.restarts if above else 0,
            error=error if state in ("failed", "waiting", "lost") else "",
            advice=advice if state in ("failed", "waiting", "lost") else "",
            file=job.origin,
            status=status,
        )


def find(root: Path, name: str) -> Folder:
    """The state of a pipeline that there is; `UnknownPipeline` names those there are."""
    folder = Folder(root, name)
    if not folder.exists():
        names = [each.name for each in folders(root)]
        raise UnknownPipeline(
            f"there is no pipeline {name} in {root}",
            f"There are {', '.join(names)}."
            if names
            else "Deploy one with `skerry pipeline deploy FILE.py`.",
        )
    return folder


def folders(root: Path) -> list[Folder]:
    """All that have ever run, by name."""
    found = sorted(root.glob("*/job.json"))
    return [Folder(root, file.parent.name) for file in found]


def clean(root: Path) -> None:
    """Remove copies that were never installed, of commands that were killed."""
    for folder in root.glob(".new-*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > 3600:
                shutil.rmtree(folder, ignore_errors=True)


def _pid(lock: int) -> int:
    try:
        return int(os.pread(lock, 32, 0))
    except ValueError:
        return 0
