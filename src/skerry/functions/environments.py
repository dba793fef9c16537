"""What code depends on, installed apart: one virtual environment for each set of requirements.

An environment is made in a folder of its own and renamed when it is whole, so that one that is
there is good. Skerry is not among what is installed: workers bring it along.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import logging
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import msgspec

from skerry.engine.address import write_secret
from skerry.errors import FunctionBroken
from skerry.model.functions import check_requires

log = logging.getLogger("skerry.functions")

BUILD_TIME = 300.0
"""Seconds that making an environment may take."""
SHOWN = 6
"""Lines of pip's output that an error shows."""
_PASSED = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY",
    "NO_PROXY", "XDG_CACHE_HOME", "XDG_CONFIG_HOME",
)  # fmt: skip
"""Variables that pip may see, besides its own."""


class Environments:
    """The environments below one folder. May be used by several processes at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "env"
        self._building = asyncio.Lock()

    async def python(self, requires: tuple[str, ...]) -> str:
        """The interpreter of an environment with `requires`, which is made if need be. Raises
        `FunctionBroken` with what pip said."""
        if not requires:
            return sys.executable
        target = self._folder / digest_of(check_requires(requires))
        python = target / "bin" / "python"
        if _is_there(python):
            return str(python)
        async with self._building:
            if not _is_there(python):
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                await self._build(target, requires)
        return str(python)

    async def _build(self, target: Path, requires: tuple[str, ...]) -> None:
        what = ", ".join(requires)
        log.info("installing %s for functions", what)
        folder = Path(tempfile.mkdtemp(prefix="making-", dir=self._folder))
        try:
            async with asyncio.timeout(BUILD_TIME):
                await self._make(folder, requires)
            _put_in_place(folder, target)
        except TimeoutError:
            raise FunctionBroken(
                f"installing {what} took longer than {BUILD_TIME:.0f} s",
                "Is the package index reachable from the site?",
            ) from None
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        log.info("installed %s", what)

    async def _make(self, folder: Path, requires: tuple[str, ...]) -> None:
        # Our own pip can install into an environment that has none, which takes less than half
        # of the time.
        own_pip = importlib.util.find_spec("pip") is not None
        bare = ["--without-pip"] if own_pip else []
        code, output = await _run(
            sys.executable, "-P", "-m", "venv", "--clear", *bare, str(folder)
        )  # fmt: skip
        if code:
            raise FunctionBroken(
                f"no virtual environment could be made: {_end(output)}",
                "Is Python's module venv installed at the site?",
            )
        python = str(folder / "bin" / "python")
        # In a file: arguments can be seen by others, and an address may hold a password.
        wanted = folder / "requirements.txt"
        write_secret(wanted, "\n".join(requires).encode())
        pip = [sys.executable, "-P", "-m", "pip", "--python", python]
        if not own_pip:
            pip = [python, "-P", "-m", "pip"]
        code, output = await _run(
            *pip, "install", "--quiet", "--no-input", "--disable-pip-version-check",
            "--no-warn-script-location", "-r", str(wanted),
        )  # fmt: skip
        if code:
            names = ", ".join(each.split("@")[0].strip() for each in requires)
            noun = "dependency" if len(requires) == 1 else "dependencies"
            raise FunctionBroken(
                f"the {noun} {names} could not be installed: {_end(output)}",
                "Correct `dependencies` in the file's metadata; the site runs pip with its own "
                "configuration.",
            )


def digest_of(requires: tuple[str, ...]) -> str:
    """Names the environment for a set of requirements."""
    what = (sorted(requires), sys.version_info[:3], sys.base_prefix)
    return hashlib.sha256(msgspec.json.encode(what)).hexdigest()[:32]


def _is_there(python: Path) -> bool:
    return python.exists()


def _put_in_place(folder: Path, target: Path) -> None:
    with contextlib.suppress(OSError):  # another process was faster
        folder.rename(target)
    if not target.is_dir():
        raise FunctionBroken(f"an environment could not be put in place as {target}")


async def _run(*command: str) -> tuple[int, str]:
    """Run a command to its end; if we are cancelled, end it with all that it started."""
    env = {k: v for k, v in os.environ.items() if k in _PASSED or k.startswith("PIP_")}
    process = await asyncio.create_subprocess_exec(
        *command,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    return process.returncode or 0, output.decode(errors="replace")


def _end(output: str) -> str:
    """The last lines of a command's output, without what is noise."""
    lines = [line.strip() for line in output.splitlines()]
    kept = [line for line in lines if line and not line.lower().startswith(("note:", "hint:", "["))]
    return " / ".join(kept[-SHOWN:]) or "it said nothing"
