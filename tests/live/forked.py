"""Commands as processes that need not start Python and import Skerry anew.

A server imports the command line once. For each command it forks, and the new process gets the
command's arguments, environment, folder and standard streams, as if it had been started with them.
That takes a tenth of the time. What Python itself reads at its start cannot be given so: see `can`.

    test ── arguments, environment, three streams ──► server ──fork──► keeper ──fork──► command
    test ◄───────────────── exit code ───────────────────────────────── keeper ◄── its end
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NoReturn

PRELOADED = ("skerry.cli.app", "skerry.client", "uvloop", "rich.table", "rich.progress")
"""Most of what commands import: the first by themselves, the others when they need them."""
READY = b"ready\n"
_PYTHONS_OWN = ("PYTHON", "LC_", "LANG")
"""What the variables begin with that Python reads at its start."""


def can(environment: Mapping[str, str]) -> bool:
    """Whether a forked command would be the same as one that is started."""
    own = {k: v for k, v in environment.items() if k.startswith(_PYTHONS_OWN)}
    same = own == {k: v for k, v in os.environ.items() if k.startswith(_PYTHONS_OWN)}
    return same and hasattr(os, "pidfd_open")


def run(
    arguments: Sequence[str], environment: Mapping[str, str], stdin: bytes, seconds: float
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end, as `subprocess.run` does with `capture_output`."""
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked,
    ):
        given.write(stdin)
        given.seek(0)
        asked.settimeout(seconds)
        asked.connect(_server())
        request = json.dumps([list(arguments), dict(environment), os.getcwd()]).encode()
        socket.send_fds(asked, [b"%10d" % len(request)], [f.fileno() for f in (given, out, err)])
        asked.sendall(request)
        try:
            code = asked.recv(16)
        except TimeoutError:  # its keeper ends it when we are gone
            raise subprocess.TimeoutExpired(list(arguments), seconds) from None
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(list(arguments), int(code), out.read(), err.read())


@cache
def _server() -> str:
    """Where the server of this process takes commands; it ends with this process."""
    folder = tempfile.TemporaryDirectory(prefix="skerry-")
    address = str(Path(folder.name) / "commands")
    command = [sys.executable, "-m", __name__, address]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == READY

    def end() -> None:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()
        folder.cleanup()

    atexit.register(end)
    return address


# In the server


def _serve(address: str) -> None:
    for module in PRELOADED:
        importlib.import_module(module)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen(64)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how keepers end
        os.write(1, READY)
        while True:
            ready, _, _ = select.select([listener.fileno(), 0], [], [])
            if 0 in ready:  # the tests are over
                return
            asked, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _keep(asked)
            asked.close()


def _keep(asked: socket.socket) -> NoReturn:
    """Run one command and tell how it ended; end it when nobody waits for it any more."""
    length, streams, _, _ = socket.recv_fds(asked, 10, 3)
    request = b""
    while len(request) < int(length):
        request += asked.recv(int(length) - len(request))
    arguments, environment, folder = json.loads(request)
    child = os.fork()
    if child == 0:
        asked.close()
        _become(arguments, environment, folder, streams)
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([ended, asked.fileno()], [], [])
    if ended not in ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    asked.sendall(b"%d" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become(
    arguments: list[str], environment: dict[str, str], folder: str, streams: list[int]
) -> NoReturn:
    """Be the command."""
    from skerry.cli.app import main

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = arguments
    sys.modules["__main__"] = ModuleType("__main__")  # which says what the command's name is
    code = 1
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for file in (sys.stdout, sys.stderr):
            try:
                file.flush()
            except (OSError, ValueError):
                code = code or 120
        os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1])
