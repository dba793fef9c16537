"""A deployed pipeline's own process: `python -m skerry.spark.jobs_worker FOLDER LOCK`.

Its supervisor starts it and passes the lock on. It ends with 0 when it is done, with `GIVE_UP` when
another start would fail in the same way, and with anything else to be started anew.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path

from skerry.errors import (
    AccessDenied,
    CheckpointMismatch,
    EngineMissing,
    FolderError,
    IndexUnavailable,
    InputError,
    SkerryError,
    TopicError,
)
from skerry.spark.jobs import Folder, Job, Status
from skerry.spark.pipeline import Pipeline
from skerry.spark.pipeline_code import load, pick
from skerry.spark.pipeline_run import Stop, run

GIVE_UP = 78
"""The exit code for what another start does not mend (EX_CONFIG of sysexits.h)."""
HOPELESS = (
    InputError, TopicError, IndexUnavailable, AccessDenied, CheckpointMismatch, EngineMissing,
    FolderError,
)  # fmt: skip
"""Errors that stay until a person does something."""
EVERY = 10.0
"""Seconds between lines about batches: a log is for reading."""


class LogFace:
    """Lines with a time."""

    def __init__(self) -> None:
        self._last = 0.0
        self._rows = 0

    def say(self, text: str) -> None:
        """Any line."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        print(now, text, flush=True)

    def started(self, pipeline: Pipeline, status: Status) -> None:
        """It runs."""
        topics = ", ".join(source.topic for source in pipeline.sources.values())
        self.say(f"pipeline {pipeline.name} runs: {topics} → {pipeline.sink}")
        self._rows = status.rows

    def batch(self, status: Status) -> None:
        """After a batch; not every one makes a line."""
        if time.monotonic() > self._last + EVERY and status.rows > self._rows:
            self._last = time.monotonic()
            self.say(
                f"batch {status.batch}: {status.rows - self._rows:,} rows more, "
                f"{status.rows_s:,.0f} rows/s, lag {status.lag_events:,} events, "
                f"state {status.state_rows:,} rows"
            )
            self._rows = status.rows

    def idle(self, status: Status) -> None:
        """Nothing to say."""

    def ended(self, pipeline: Pipeline, status: Status) -> None:
        """The last line."""
        self.say(f"pipeline {pipeline.name} is {status.state}, {status.rows:,} rows so far")


def main(folder: Path, lock: int) -> int:
    """Run the pipeline whose state is in `folder`; return the exit code."""
    os.umask(0o077)
    face = LogFace()
    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s", force=True)
    state = Folder(folder.parent, folder.name)
    state.adopt(lock)
    stop = Stop(os.getppid())
    try:
        job = state.read("job", Job)
        assert job is not None
        file = state.code / job.file
        run(pick(load(file), job.name, file), state, job, face, stop)
    except SkerryError as error:
        face.say(f"error: {error}")
        status = state.read("status", Status) or Status(name=state.name)
        status.end(error)
        state.write("status", status)
        return GIVE_UP if isinstance(error, HOPELESS) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
