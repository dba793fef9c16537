"""The engine's process: started, watched, started anew when it dies, stopped.

The engine dies with its supervisor (on Linux the kernel sees to it; elsewhere the next start ends
the orphan; the kernel looks at the thread that started it, so start a site from one that lives as
long), and the supervisor brings back an engine that dies, with a growing pause. An engine
that cannot even start several times in a row is a fault for a person to look at.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import re
import signal
import socket
import subprocess
from collections import deque
from pathlib import Path

from skerry.engine.bound import bound
from skerry.engine.checksum import mend
from skerry.engine.folder import Folder, unwritable
from skerry.engine.wire import Listener
from skerry.errors import EngineFailed, PortTaken, SkerryError

log = logging.getLogger("skerry.engine")

FIRST_PAUSE = 0.01
MOST_PAUSE = 5.0
"""Seconds between a death and the next start: doubling from the first to the most, and back to
the first once the engine took a connection."""
LOOPING = 3
"""Deaths in a row, without a connection in between, that are a fault and no accident."""
LOG_BYTES = 10 * 1024 * 1024
STOP_TIME = 10.0
"""Seconds that the engine has to write everything out when asked to stop."""

_given: deque[int] = deque(maxlen=1000)
"""Ports that were found free lately, and that nobody may listen on yet."""


def free_port(host: str) -> int:
    """A TCP port that nobody listens on at this moment, another one each time. Below those that the
    system gives to outgoing connections: an engine that restarts must find its port free."""
    for _ in range(100):
        port = random.randint(10_000, 32_000)
        if port in _given:
            continue
        with socket.socket(_family(host)) as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            _given.append(port)
            return port
    with socket.socket(_family(host)) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def check_port(host: str, port: int, option: str) -> None:
    """Raise `PortTaken` if somebody listens on `port`."""
    with socket.socket(_family(host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortTaken(
                f"cannot listen on {host}:{port}: {error.strerror}",
                f"Choose another port with {option} (0 picks a free one).",
            ) from None


class Engine(Listener):
    """A supervised nats-server."""

    def __init__(self, binary: Path, conf: Path, folder: Folder) -> None:
        self.restarts = 0
        """How often it died and was started anew."""
        self._command = [str(binary), "-c", str(conf)]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._stopping = False
        self._pause = FIRST_PAUSE
        self._deaths = 0
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """The process id of the running engine."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Start the process. Until `watch` is called, its death is final; see `death`."""
        self._spawn()

    def watch(self) -> None:
        """From now on start the engine anew whenever it dies."""
        self._watcher = asyncio.create_task(self._watch())

    def on_up(self) -> None:
        """It takes connections: the next death is a new one, not one more of a row."""
        self._pause = FIRST_PAUSE
        self._deaths = 0

    async def stop(self) -> None:
        """Ask the engine to end, and end it if it does not."""
        self._stopping = True
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        try:
            await asyncio.wait_for(_exited(process), STOP_TIME)
        except TimeoutError:
            log.warning("the engine did not stop within %.0f s; killed", STOP_TIME)
            process.kill()
            await _exited(process)

    def stop_watching(self) -> None:
        """Let the next death be final."""
        if self._watcher is not None:
            self._watcher.cancel()

    def kill(self) -> None:
        """Kill the engine; the watcher starts it anew."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def restart(self) -> None:
        """Ask the engine to end in order; the watcher starts it anew."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def death(self) -> EngineFailed | PortTaken | None:
        """Why the engine is not running; None if it is."""
        process = self._process
        if process is None or process.poll() is None:
            return None
        lines = [line for line in self.log_tail() if line]
        faults = [line for line in lines if "[FTL]" in line or "[ERR]" in line]
        if process.returncode > 0:
            faults = faults or lines[-3:]
        text = "; ".join(re.sub(r"^\[\d+\] \S+ \S+ ", "", line) for line in faults[-3:])
        if "address already in use" in text:
            return PortTaken(
                f"the engine cannot listen: {text}", "Choose another port with --port."
            )
        return EngineFailed(
            f"the engine ended with code {process.returncode}: {text or 'it said nothing'}",
            f"Its log is {self.log_path}.",
        )

    @property
    def was_killed(self) -> bool:
        """Whether it ended by a signal, and not by itself."""
        return self._process is not None and (self._process.poll() or 0) < 0

    @property
    def log_path(self) -> Path:
        """The file that the engine's own messages go to."""
        return self._folder.path / "engine.log"

    def log_tail(self) -> list[str]:
        """The last lines of the engine's log, as far as this process wrote them."""
        with contextlib.suppress(OSError), self.log_path.open("rb") as file:
            file.seek(max(self.log_path.stat().st_size - 16384, self._log_start))
            return file.read().decode("utf-8", "replace").splitlines()
        return []

    def _spawn(self) -> None:
        try:
            if self.log_path.exists() and self.log_path.stat().st_size > LOG_BYTES:
                self.log_path.replace(self.log_path.with_suffix(".log.1"))
            out = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise unwritable(self._folder.path, error) from None
        self._log_start = os.fstat(out).st_size
        mend(self._folder.path / "jetstream")
        try:
            self._process = subprocess.Popen(
                bound(self._command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=(self._folder.lock,),
                process_group=0,  # a Ctrl-C in the terminal is for us; we stop the engine in order
            )
        except OSError as error:
            raise EngineFailed(
                f"the engine cannot be started: {error}", "Are Python and nats-server still there?"
            ) from None
        finally:
            os.close(out)
        self._folder.note_processes(self._process.pid)

    async def _watch(self) -> None:
        while not self._stopping:
            assert self._process is not None
            await _exited(self._process)
            self._deaths += 1
            if (death := self.death()) is not None:
                log.log(
                    logging.WARNING if self._deaths < LOOPING else logging.ERROR,
                    "%s; death %d in a row, starting it anew in %.2f s. %s",
                    death.what, self._deaths, self._pause, death.advice,
                )  # fmt: skip
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 2, MOST_PAUSE)
            try:
                self._spawn()
            except SkerryError as error:
                log.error("%s", error)
                continue
            self.restarts += 1


async def _exited(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process without a thread: by a pidfd where there is one, else by looking."""
    loop = asyncio.get_running_loop()
    if hasattr(os, "pidfd_open") and process.poll() is None:
        done: asyncio.Future[None] = loop.create_future()
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:
            descriptor = -1
        if descriptor >= 0:
            try:
                loop.add_reader(descriptor, _settle, done)
                await done
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)
    while (code := process.poll()) is None:
        await asyncio.sleep(0.05)
    return code


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
