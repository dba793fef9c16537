"""Folders for workers to write in, which go with their process, or else with a later host.

A host that is killed removes nothing. So all folders of a process lie in one of its own, which it
locks while it lives; whoever finds one that is not locked removes it. (The lock also keeps those
away who tidy up temporary folders.)
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from functools import cache
from pathlib import Path

PREFIX = "skerry-function-workers-"
YOUNG = 60.0
"""Seconds in which a folder may not have its lock yet."""


def new_folder() -> str:
    """A new folder, that only this user can enter."""
    return tempfile.mkdtemp(prefix="worker-", dir=_own(os.getpid()))


@cache
def _own(_: int) -> str:
    """The folder of this process."""
    sweep()
    folder = tempfile.mkdtemp(prefix=PREFIX)
    fcntl.flock(os.open(folder, os.O_RDONLY | os.O_CLOEXEC), fcntl.LOCK_EX)  # open for good
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def sweep() -> None:
    """Remove the folders of processes of this user that are gone."""
    for folder in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            old = time.time() - status.st_mtime > YOUNG
            if old and status.st_uid == os.geteuid() and _is_left(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_left(folder: Path) -> bool:
    found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(found)
    return True
