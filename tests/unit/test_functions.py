"""Code, requirements, variables and plans of functions: everything that needs no site."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from skerry.cli.function_graph import graph_of
from skerry.errors import BadSetting, FunctionBroken
from skerry.functions import environments
from skerry.functions.assignment import Running
from skerry.functions.code import is_kept, keep, look_over, read_file, requirements_of
from skerry.functions.environments import Environments, digest_of
from skerry.functions.messages import FunctionInfo, RunningAt
from skerry.functions.places import Log, journal_settings
from skerry.functions.plan import Plan, means
from skerry.functions.variables import Variables, check_variables, read_env_file
from skerry.model.functions import MAX_CODE, Function, FunctionSettings, Version
from skerry.model.topic import TopicSettings
from tests.package import make_package

# Code


def test_code_is_read_with_its_digest(tmp_path: Path) -> None:
    file = tmp_path / "avg.py"
    file.write_text("def handler(ctx, event): pass\n")
    code = read_file(file)
    assert (code.kind, code.file, code.requires) == ("python", "avg.py", ())
    assert code.digest == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("file", "data", "what"),
    [
        ("avg.txt", b"x", "no code of a function"),
        ("avg", b"x", "no code of a function"),
        ("avg.py", b" \n", "is empty"),
        ("avg.py", b"#" * (MAX_CODE + 1), "is larger than"),
    ],
)
def test_what_is_no_code_is_refused(file: str, data: bytes, what: str) -> None:
    with pytest.raises(BadSetting, match=what):
        look_over(file, data)


def test_a_syntax_error_says_its_line() -> None:
    with pytest.raises(FunctionBroken, match=r"avg\.py, line 2: .*: def handler\(ctx"):
        look_over("avg.py", b"import os\ndef handler(ctx, event)\n    pass\n")
    with pytest.raises(FunctionBroken):
        look_over("avg.py", b"x = '\0'\n")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="cannot be read"):
        read_file(tmp_path / "missing.py")


def script(content: str) -> str:
    return f"# /// script\n{textwrap.dedent(content)}# ///\n\ndef handler(ctx, event): pass\n"


def test_requirements_are_those_of_the_script_block() -> None:
    text = script(
        """\
        # requires-python = ">=3.11"
        # dependencies = [
        #   "numpy>=2",
        #   "rich", "numpy>=2",
        # ]
        """
    )
    assert requirements_of("a.py", text) == ("numpy>=2", "rich")
    assert requirements_of("a.py", "def handler(): pass\n") == ()
    assert requirements_of("a.py", script("# other = 1\n")) == ()


@pytest.mark.parametrize(
    "content",
    [
        "# dependencies = 'numpy'\n",
        "# dependencies = [1]\n",
        "# dependencies = [\n",
        "# dependencies = ['--index-url=http://example.org']\n",
        "# dependencies = ['-r other.txt']\n",
        "# dependencies = ['']\n",
        '# dependencies = ["a\\nb"]\n',
    ],
)
def test_requirements_that_are_none_are_refused(content: str) -> None:
    with pytest.raises(BadSetting):
        requirements_of("a.py", script(content))


def test_kept_code_is_only_for_its_owner_and_whole(tmp_path: Path) -> None:
    code = look_over("a.py", b"x = 1\n")
    assert not is_kept(tmp_path, code.digest, "python")
    path = keep(tmp_path, code.digest, "python", code.data)
    assert is_kept(tmp_path, code.digest, "python")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.write_bytes(b"x = 2\n")
    assert not is_kept(tmp_path, code.digest, "python")


# Environments


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder that pip can install without any network."""
    return make_package(tmp_path)


def run(python: str, code: str) -> str:
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


async def test_an_environment_has_what_is_asked_for(tmp_path: Path, package: Path) -> None:
    requires = (f"tiny-thing @ file://{package}",)
    made = Environments(tmp_path / "functions")
    first, second = await asyncio.gather(made.python(requires), made.python(requires))
    assert first == second != sys.executable
    assert run(first, "import tiny_thing; print(tiny_thing.ANSWER)") == "42"
    folder = tmp_path / "functions" / "env"
    assert os.listdir(folder) == [digest_of(requires)]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    found = run(first, "import importlib.util as u; print(u.find_spec('skerry'))")
    assert found == "None"


async def test_without_requirements_it_is_the_own_interpreter(tmp_path: Path) -> None:
    assert await Environments(tmp_path).python(()) == sys.executable
    assert os.listdir(tmp_path) == []


async def test_what_cannot_be_installed_leaves_nothing(tmp_path: Path) -> None:
    made = Environments(tmp_path)
    with pytest.raises(FunctionBroken, match=r"the dependency nothing could not be installed: .+"):
        await made.python((f"nothing @ file://{tmp_path}/missing",))
    assert os.listdir(tmp_path / "env") == []


async def test_an_installation_that_takes_too_long_is_ended(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "BUILD_TIME", 1.0)
    backend = package / "backend.py"
    mark = package / "began"
    pause = f"    open({str(mark)!r}, 'w').close(); import time; time.sleep(1000)\n    name ="
    backend.write_text(backend.read_text().replace("    name =", pause))
    made = Environments(tmp_path)
    with pytest.raises(FunctionBroken, match="took longer than 1 s"):
        await made.python((f"tiny-thing @ file://{package}",))
    assert os.listdir(tmp_path / "env") == []


def test_sets_of_requirements_have_one_environment() -> None:
    assert digest_of(("a", "b")) == digest_of(("b", "a")) != digest_of(("a",))


# Variables


def test_an_env_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("# a comment\n\nTOKEN = s3cret=x\nexport NAME='a b'\nEMPTY=\n")
    assert read_env_file(file) == {"TOKEN": "s3cret=x", "NAME": "a b", "EMPTY": ""}


@pytest.mark.parametrize("text", ["s3cret", "1A=s3cret", "A B=s3cret", "=s3cret"])
def test_a_bad_line_is_named_and_not_shown(tmp_path: Path, text: str) -> None:
    file = tmp_path / "env"
    file.write_text(f"GOOD=1\n{text}\n")
    with pytest.raises(BadSetting, match="line 2") as refused:
        read_env_file(file)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONPATH", "SKERRY_DATA", "PATH", "A-B"])
def test_some_variables_are_not_for_functions(name: str) -> None:
    with pytest.raises(BadSetting) as refused:
        check_variables({name: "s3cret"})
    assert "s3cret" not in str(refused.value)


def test_variables_are_kept_for_their_owner_under_a_name_that_tells_nothing(tmp_path: Path) -> None:
    kept = Variables(tmp_path)
    name = kept.add({"A": "1"})
    assert kept.get(name) == {"A": "1"}
    assert stat.S_IMODE(kept.path(name).stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.path(name).parent.stat().st_mode) == 0o700
    assert kept.add({"A": "1"}) != name
    assert kept.get("0" * 64) is None
    with pytest.raises(BadSetting):
        kept.path("../../etc/passwd")


# What runs where


@pytest.mark.parametrize(
    ("topic", "log", "expected"),
    [
        ("sensors/+", "sensors", True),
        ("sensors/+", "sensors/roof", True),
        ("sensors/+", "sensors/roof/north", False),
        ("sensors", "sensors/roof/north", True),
        ("sensors/roof", "sensors", True),
        ("sensors/+", "doors", False),
        ("#", "doors", True),
        ("#", "functions/registry", False),
        ("+/registry", "functions/registry", False),
        ("#", "feeds/hub/log", False),
        ("feeds/+/log", "feeds/hub/log", True),
    ],
)
def test_a_topic_means_logs(topic: str, log: str, expected: bool) -> None:
    assert means(topic, log) is expected


def function(name: str, topic: str, site: str | None = None, paused: bool = False) -> Function:
    version = Version(
        number=1, code="0" * 64, kind="python", handler="h", site="hub", deployed=1,
        settings=FunctionSettings(topic=topic, site=site),
    )  # fmt: skip
    return Function(name=name, versions=(version,), since=1, paused=paused)


def log(name: str, home: str, *replicas: str) -> Log:
    return Log(name, home, (home, *replicas), TopicSettings())


def here(plan: Plan) -> set[tuple[str, str]]:
    return {(function.name, log.name) for function, log in plan.here()}


def test_a_function_runs_at_the_home_of_each_topic_that_matches() -> None:
    plan = Plan("lab")
    avg = function("avg", "sensors/+")
    plan.set_function("avg", avg)
    assert not plan.set_log("doors", log("doors", "lab"))
    assert plan.set_log("sensors/a", log("sensors/a", "lab"))
    assert plan.set_log("sensors/b", log("sensors/b", "hub", "lab"))
    assert here(plan) == {("avg", "sensors/a")}
    assert plan.where(avg) == {"sensors/a": "lab", "sensors/b": "hub"}
    assert plan.set_log("sensors/b", log("sensors/b", "lab", "hub"))  # it failed over
    assert here(plan) == {("avg", "sensors/a"), ("avg", "sensors/b")}
    assert plan.set_log("sensors/a", log("sensors/a", "hub"))  # and the other moved away
    assert here(plan) == {("avg", "sensors/b")}
    assert plan.set_log("sensors/b", None)
    assert here(plan) == set()


def test_a_pinned_function_runs_at_its_site() -> None:
    plan = Plan("lab")
    plan.set_log("a", log("a", "hub"))
    plan.set_function("there", function("there", "a", "farm"))
    plan.set_function("here", function("here", "a", "lab"))
    assert here(plan) == {("here", "a")}


def test_a_paused_function_does_not_run_and_one_that_changes_topics_does_elsewhere() -> None:
    plan = Plan("lab")
    for name in ("a", "b"):
        plan.set_log(name, log(name, "lab"))
    plan.set_function("f", function("f", "a", paused=True))
    assert here(plan) == set()
    plan.set_function("f", function("f", "a"))
    assert here(plan) == {("f", "a")}
    plan.set_function("f", function("f", "b"))
    assert here(plan) == {("f", "b")}
    plan.set_function("f", None)
    assert here(plan) == set()


def test_a_replica_is_ready_to_run_what_its_home_runs() -> None:
    plan = Plan("lab")
    plan.set_log("a", log("a", "hub", "lab"))
    plan.set_log("b", log("b", "hub", "farm"))
    for name, topic, site in (("f", "a", None), ("g", "b", None), ("h", "a", "hub")):
        plan.set_function(name, function(name, topic, site))
    assert [each.name for each in plan.near()] == ["f"]


def test_a_journal_is_where_the_log_is() -> None:
    settings = journal_settings(log("a", "lab", "hub", "farm"), "lab")
    assert settings["replicas"] == 2
    assert settings["spread"] == "hub,farm"
    assert settings["ack"] == "quorum"
    pinned = journal_settings(log("a", "lab", "hub", "farm"), "hub")
    assert (pinned["replicas"], pinned["ack"]) == (0, "home")


# Chains


def info(name: str, topic: str, *outputs: str) -> FunctionInfo:
    running = Running(function=name, log=topic, version=1, state="running", topics=outputs)
    return FunctionInfo(
        function=function(name, topic), logs={topic: "hub"}, running=(RunningAt("hub", running),)
    )


def test_loops_are_found_once() -> None:
    chain = graph_of([info("a", "in", "mid/x"), info("b", "mid/+", "out"), info("c", "out")])
    assert chain.loops == ()
    assert [node.outputs for node in chain.functions] == [("mid/x",), ("out",), ()]
    circle = graph_of([info("b", "y", "x"), info("a", "x", "y", "x"), info("c", "y", "z")])
    assert set(circle.loops) == {("a",), ("a", "b")}
