"""Helpers for the tests of the command line: commands as real processes."""

from __future__ import annotations

import itertools
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from skerry.sync import connect
from tests.live import forked

SKERRY = str(Path(sys.executable).parent / "skerry")
DEADLINE = 60.0
"""Seconds; far more than anything here takes, so that a slow machine fails nothing."""

_numbers = itertools.count(1)


class Result:
    """What a finished command left."""

    def __init__(self, done: subprocess.CompletedProcess[bytes]) -> None:
        self.code = done.returncode
        self.raw = done.stdout
        self.out = done.stdout.decode("utf-8", "replace")
        self.err = done.stderr.decode("utf-8", "replace")

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def objects(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]

    @property
    def error(self) -> Any:
        return json.loads(self.err)["error"]


def environment(data: Path | None = None, **more: str) -> dict[str, str]:
    """The environment of a command: nothing of the user's own may leak into it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SKERRY_", "_SKERRY"))}
    return {**kept, **({"SKERRY_DATA": str(data)} if data else {}), **more}


def skerry(data: Path | None, *arguments: str, stdin: bytes = b"", **more: str) -> Result:
    """Run a command to its end."""
    whole = environment(data, **more)
    if forked.can(whole):
        return Result(forked.run([SKERRY, *arguments], whole, stdin, DEADLINE))
    return Result(
        subprocess.run(
            [SKERRY, *arguments],
            env=whole,
            input=stdin,
            capture_output=True,
            timeout=DEADLINE,
            check=False,
        )
    )


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition; fail at the deadline."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


class Running:
    """A command that runs on; its output goes to files."""

    def __init__(self, data: Path, out: Path, *arguments: str, **more: str) -> None:
        self._out, self._err = out.with_suffix(".out"), out.with_suffix(".err")
        with self._out.open("wb") as stdout, self._err.open("wb") as stderr:
            self.process = subprocess.Popen(
                [SKERRY, *arguments],
                env=environment(data, **more),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def wait_line(self, text: str) -> str:
        """Wait for a line of output with `text` in it; return it."""

        def found() -> list[str]:
            assert self.process.poll() is None or text in self.out, self.err
            complete = self.out[: self.out.rfind("\n") + 1]
            return [line for line in complete.splitlines() if text in line]

        wait_for(found, f"a line with {text!r}")
        return found()[0]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE)


@contextmanager
def running(data: Path, out: Path, *arguments: str, **more: str) -> Iterator[Running]:
    """A command that is ended at the end, whatever happens."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a background job's, and inherited
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command = Running(data, out, *arguments, **more)
    try:
        yield command
    finally:
        if command.process.poll() is None:
            command.process.kill()
        command.process.wait(DEADLINE)


@contextmanager
def site_up(data: Path, out: Path, *options: str, **more: str) -> Iterator[Running]:
    """A `skerry up` that is ready."""
    arguments = ("up", "--data", str(data), "--port", "0", *options)
    with running(data, out, *arguments, **more) as command:
        command.wait_line(" is up at ")
        yield command


class Terminal:
    """A command at a terminal of its own."""

    def __init__(self, data: Path, *arguments: str) -> None:
        self.screen = b""
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [SKERRY, *arguments],
            env=environment(data, TERM="xterm", COLUMNS="200"),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait(DEADLINE)
        os.close(self._ours)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._ours, text.encode())

    def wait_for(self, text: str) -> None:
        """Wait until `text` was on the screen."""
        wait_for(lambda: self._read() and text.encode() in self.screen, f"{text!r} on the screen")

    def wait(self) -> int:
        """Wait for the end; return the exit code."""
        wait_for(lambda: self._read() and self.process.poll() is not None, "the end")
        self._read()
        return self.process.wait(DEADLINE)

    def _read(self) -> bool:
        while select.select([self._ours], [], [], 0)[0]:
            try:
                chunk = os.read(self._ours, 65536)
            except OSError:  # everybody at the other end is gone
                break
            self.screen += chunk
        return True


def engines(data: Path) -> list[psutil.Process]:
    """The engines that run on a data folder."""
    conf = str(data / "engine.json")
    return [p for p in psutil.process_iter(["cmdline"]) if conf in (p.info["cmdline"] or [])]


def shared_site(folders: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder of a site that runs while a fixture lives."""
    folder = folders.mktemp("cli")
    with site_up(folder / "data", folder / "up"):
        yield folder / "data"


def new_name() -> str:
    """A topic name that no other test uses."""
    return f"topic{next(_numbers)}"


def fresh_topic(data: Path) -> str:
    """A topic without events."""
    name = new_name()
    with connect(data) as client:
        client.create_topic(name)
    return name


def filled_topic(data: Path) -> str:
    """A topic with the events `one` to `five`, indexes 1 to 5."""
    name = fresh_topic(data)
    with connect(data) as client:
        for payload in ("one", "two", "three", "four", "five"):
            client.publish(name, payload)
    return name
