"""Keeps a deployed pipeline alive: `python -m skerry.spark.jobs_supervisor FOLDER LOCK`.

    start ──▶ running ──worker ends with 0──────────▶ done, or stopped if that was asked for
                │  ▲
          crash │  │ after a pause: 1 s, 2 s, 4 s … 60 s; 1 s again once it ran for a minute
                ▼  │
              waiting          worker gives up (jobs_worker.GIVE_UP) ──▶ failed

A worker has a process group of its own, with its JVM and Python workers in it. When it ends, in
whatever way, what is left of the group is killed before the next one starts, so that two JVMs never
write one checkpoint. SIGTERM asks the worker to end in order; after `GRACE` seconds it is killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from skerry.spark.jobs import Folder, State, Status, Supervision
from skerry.spark.jobs_worker import GIVE_UP, LogFace

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""Seconds. A session takes some ten seconds of two cores to start: more often than once a minute
would starve the machine for a pipeline that cannot run."""
WELL = 60.0
"""Seconds after which a worker counts as well, and the next pause is a short one."""
GRACE = 30.0
"""Seconds that a worker has to end in order."""
LOG_BYTES = 10_000_000
TICK = 0.1


def pause_after(crashes: int) -> float:
    """Seconds to wait after so many crashes in a row."""
    return float(min(FIRST_PAUSE * 2 ** min(crashes - 1, 30), LONGEST_PAUSE))


class Supervisor:
    """Starts the worker of one folder, again and again."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._face = LogFace()
        self._stopping = False
        self._restarts = 0

    def run(self) -> None:
        """Until the pipeline is done, gives up, or is to stop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        crashes = 0
        while not self._stopping:
            began = time.monotonic()
            self._note("running")
            code = self._work()
            if code == 0 or self._stopping:
                break
            if code == GIVE_UP:
                self._note("failed", *self._error())
                return
            crashes = 1 if time.monotonic() - began > WELL else crashes + 1
            self._wait(pause_after(crashes), code)
        status = self._folder.read("status", Status)
        self._note("stopped" if self._stopping or status is None else status.state)

    def _work(self) -> int:
        command = [sys.executable, "-P", "-m", "skerry.spark.jobs_worker", str(self._folder.path)]
        worker = subprocess.Popen(
            [*command, str(self._folder.lock)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[self._folder.lock],
        )
        deadline: float | None = None
        try:
            while (code := worker.poll()) is None:
                time.sleep(TICK)
                self._turn_log_over()
                if self._stopping and deadline is None:
                    deadline = time.monotonic() + GRACE
                    worker.terminate()
                if deadline is not None and time.monotonic() > deadline:
                    worker.kill()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        return code

    def _wait(self, pause: float, code: int) -> None:
        self._restarts += 1
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        error, advice = self._error() if code > 0 else ("", "")
        retry = datetime.now(UTC) + timedelta(seconds=pause)
        self._face.say(f"the pipeline {how}; it is started anew in {pause:.0f} s")
        self._note("waiting", error or f"its process {how}", advice, retry)
        until = time.monotonic() + pause
        while time.monotonic() < until and not self._stopping:
            time.sleep(TICK)

    def _error(self) -> tuple[str, str]:
        status = self._folder.read("status", Status)
        return (status.error, status.advice) if status else ("", "")

    def _note(
        self, state: State, error: str = "", advice: str = "", retry: datetime | None = None
    ) -> None:
        self._folder.write(
            "supervisor",
            Supervision(
                state=state,
                pid=os.getpid(),
                restarts=self._restarts,
                error=error,
                advice=advice,
                retry=retry,
            ),
        )

    def _turn_log_over(self) -> None:
        """All processes append to the file, so that it can be emptied under them."""
        with contextlib.suppress(OSError):
            if self._folder.log.stat().st_size > LOG_BYTES:
                shutil.copy2(self._folder.log, self._folder.log.with_name("log.1"))
                os.truncate(self._folder.log, 0)

    def _on_signal(self, *_: object) -> None:
        self._stopping = True


def spawn(folder: Folder) -> int:
    """Start the supervisor of a locked folder, detached from this process; it gets the lock."""
    log = os.open(folder.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "skerry.spark.jobs_supervisor",
                str(folder.path),
                str(folder.lock),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
            pass_fds=[folder.lock],
        )
    finally:
        os.close(log)
    process.returncode = 0  # it outlives us: nobody waits for it
    return process.pid


def main(path: Path, lock: int) -> None:
    """Supervise the pipeline whose state is in `path`."""
    os.umask(0o077)
    folder = Folder(path.parent, path.name)
    folder.adopt(lock)
    folder.claim()
    Supervisor(folder).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
