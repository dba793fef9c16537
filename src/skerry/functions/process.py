"""A worker's process as its host sees it: started, looked at, ended with all that it left."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import mmap
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import msgspec

import skerry
from skerry.functions.frames import EXIT_MEMORY, SCRATCH, SCRATCH_FILES, Setup
from skerry.functions.scratch import new_folder

BUFFER = 1024 * 1024
"""Bytes that wait in the socket, where the kernel allows so many."""

_BOOT = """
import importlib.util, sys
place, packages = sys.argv[6:]
spec = importlib.util.spec_from_file_location("skerry", place)
sys.modules["skerry"] = importlib.util.module_from_spec(spec)
sys.path.append(packages)
import msgspec
sys.path.pop()
spec.loader.exec_module(sys.modules["skerry"])
from skerry.functions.worker import main
sys.dont_write_bytecode = True
main()
"""
# Whatever environment the code has, Skerry is the site's, and so is msgspec if it has none. Nothing
# else of the site's packages is to be found.
_FLAGS = ("-I", "-X", "utf8")
_PLACES = (str(Path(skerry.__file__ or "")), str(Path(msgspec.__file__ or "").parents[1]))
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is to be."""

    setup: Setup
    python: str
    """The interpreter."""
    env: dict[str, str]
    """Variables for the code. It has nothing of the host's own environment but what says where
    programs, certificates and time zone are."""
    memory: int
    """Bytes."""
    timeout: float
    """Seconds that one event may take."""
    network: bool
    """Whether the code may open sockets."""


class Usage(msgspec.Struct, frozen=True):
    """What a process takes of the machine."""

    cpu: float
    """Seconds since its start."""
    threads: int
    memory: int
    """Bytes."""


class WorkerProcess:
    """A worker's process, its socket, what it prints, and the memory that it shares. Made, it runs.

    `close` it when it has exited.
    """

    def __init__(self, launch: Launch) -> None:
        self._held = contextlib.ExitStack()
        with contextlib.ExitStack() as passing, self._held:
            self._start(launch, passing)
            self._held = self._held.pop_all()

    def _start(self, launch: Launch, passing: contextlib.ExitStack) -> None:
        held = self._held
        self.folder = new_folder()
        """Where it may write."""
        held.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.socket, theirs = socket.socketpair()
        held.callback(self.socket.close)
        passing.callback(theirs.close)
        self.text, text = os.pipe()
        """The end to read of the pipe with what it prints."""
        held.callback(os.close, self.text)
        passing.callback(os.close, text)
        shared = _shared()
        passing.callback(os.close, shared)
        memory = mmap.mmap(shared, mmap.PAGESIZE)
        held.callback(memory.close)
        self.now = memoryview(memory).cast("Q")
        """The task that it works on (0: none) and since when, in ns of the monotonic clock."""
        held.callback(self.now.release)
        self.socket.setblocking(False)
        os.set_blocking(self.text, False)
        for end in (self.socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        arguments = (theirs.fileno(), shared, os.getpid(), launch.memory, int(launch.network))
        self._process = subprocess.Popen(
            [launch.python, *_FLAGS, "-c", _BOOT, *map(str, arguments), *_PLACES],
            stdin=subprocess.DEVNULL,
            stdout=text,
            stderr=text,
            pass_fds=(theirs.fileno(), shared),
            cwd=self.folder,
            env=self._environment(launch.env),
            start_new_session=True,
        )
        self.pid = self._process.pid

    def _environment(self, own: dict[str, str]) -> dict[str, str]:
        kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        return {**kept, "HOME": self.folder, "TMPDIR": self.folder, **own}

    def kill(self) -> None:
        """End it, and what it started. It is gone when `exited` returns."""
        if self._process.returncode is None:  # not reaped, so that the number is its own
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(self.pid, signal.SIGKILL)

    async def exited(self) -> int:
        """Wait until it has exited, and end what it started; return how: see `subprocess`."""
        with contextlib.suppress(OSError, AttributeError):  # too many files, or another system
            await _readable(os.pidfd_open(self.pid))
        while not _is_zombie(self._process):
            await asyncio.sleep(0.02)
        # Not yet reaped: the number is still its own.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait()

    def usage(self) -> Usage | None:
        """What it takes of the machine, where the system tells."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return None
        fields = text.rpartition(")")[2].split()
        return Usage(
            (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[17]), int(fields[21]) * _PAGE
        )

    def wrote_nothing(self) -> bool:
        """Whether it wrote no files that the host can see; where it has a file system of its own,
        which limits them, there are none."""
        with os.scandir(self.folder) as found:
            return next(found, None) is None

    def wrote_too_much(self) -> bool:
        """Whether its files are too many or too large together. It may take a while to look."""
        count = size = 0
        for folder, folders, files in os.walk(self.folder):
            count += len(folders) + len(files)
            for name in files:
                with contextlib.suppress(OSError):
                    size += os.lstat(os.path.join(folder, name)).st_blocks * 512
            if count > SCRATCH_FILES or size > SCRATCH:
                return True
        return False

    def close(self) -> None:
        """Let go of what it had; its folder is removed."""
        self._held.close()


def reason_of(code: int, launch: Launch) -> str:
    """Why a worker that nobody killed exited."""
    if code == -signal.SIGPROF:
        return f"used more than {launch.setup.cpu:g} s of CPU time"
    if code == EXIT_MEMORY:
        return f"needed more than {launch.memory >> 20} MB"
    if code == -signal.SIGKILL:
        return "was killed by signal 9 (by hand, or the machine has no memory left)"
    if code < 0:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    return f"exited with code {code}"


def _shared() -> int:
    """A page of memory to share with a worker. It cannot shrink: to read what is gone kills."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            file.truncate(mmap.PAGESIZE)
            return os.dup(file.fileno())
    shared = os.memfd_create("skerry", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(shared, mmap.PAGESIZE)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(shared, fcntl.F_ADD_SEALS, seals)
    return shared


async def _readable(descriptor: int) -> None:
    """Wait until there is something to read, and close it."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(descriptor, _settle, ready)
        await ready
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _is_zombie(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has exited; it is not reaped by that."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
