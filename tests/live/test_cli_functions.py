"""`skerry function …`, as real processes against a real site."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from skerry.sync import connect
from tests.live.commandline import (
    Result,
    fresh_topic,
    new_name,
    running,
    shared_site,
    site_up,
    skerry,
    wait_for,
)
from tests.package import make_package

COUNT = """
import skerry

@skerry.function(decode="text")
def count(ctx, event):
    if event.data == "bad":
        raise ValueError("this one is bad")
    number = ctx.state.get("number", 0) + 1
    ctx.state["number"] = number
    print("handled", event.data)
    ctx.publish("OUT", f"{number} {event.data}MARK")
"""

ECHO = """
(module
  (import "skerry" "publish" (func $publish (param i32 i32 i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "OUT")
  (global $next (mut i32) (i32.const 1024))
  (func (export "alloc") (param i32) (result i32)
    (global.get $next)
    (global.set $next (i32.add (global.get $next) (local.get 0))))
  (func (export "handle") (param i32 i32 i64 i32 i32) (result i32)
    (call $publish (i32.const 0) (i32.const LENGTH) (local.get 3) (local.get 4))
    (i32.const 0)))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield from shared_site(tmp_path_factory)


class Deployed:
    """A counting function between two topics."""

    def __init__(self, data: Path, folder: Path) -> None:
        self.data, self.folder = data, folder
        self.name = new_name()
        self.topic, self.out = fresh_topic(data), fresh_topic(data)

    def code(self, mark: str = "") -> Path:
        file = self.folder / f"{self.name}.py"
        file.write_text(COUNT.replace("OUT", self.out).replace("MARK", mark))
        return file

    def deploy(self, *options: str, mark: str = "") -> Result:
        return skerry(
            self.data, "function", "deploy", str(self.code(mark)), "--topic", self.topic, *options
        )

    def publish(self, *payloads: str) -> None:
        with connect(self.data) as client:
            for payload in payloads:
                client.publish(self.topic, payload)

    @property
    def results(self) -> list[str]:
        with connect(self.data) as client:
            return [event.data.decode() for event in client.read(self.out)]

    def wait(self, *results: str) -> None:
        """Wait for exactly these results."""
        wait_for(lambda: len(self.results) >= len(results), f"{len(results)} results")
        assert self.results == list(results)

    def shown(self) -> Any:
        return skerry(self.data, "function", "show", self.name, "--json").json


@pytest.fixture
def counting(data: Path, tmp_path: Path) -> Iterator[Deployed]:
    deployed = Deployed(data, tmp_path)
    yield deployed
    skerry(data, "function", "remove", deployed.name, "--yes")


def test_a_function_runs_on_what_is_published(data: Path, counting: Deployed) -> None:
    counting.publish("before")
    result = counting.deploy()
    assert result.code == 0, result.err
    assert result.lines == [
        f"function {counting.name}, version 1, is deployed",
        f"It runs on {counting.topic} at site local.",
    ]
    counting.publish("a", "b")
    counting.wait("1 a", "2 b")

    def listed() -> dict[str, Any]:
        found = skerry(data, "function", "list", "--json").json
        return next(each for each in found if each["name"] == counting.name)

    def figures() -> list[int]:
        here = listed()["running"][0]
        return [here[name] for name in ("handled", "index", "lag")]

    wait_for(lambda: figures() == [2, 3, 0], "the report")
    here = listed()
    assert (here["state"], here["version"], here["logs"]) == (
        "running", 1, {counting.topic: "local"}
    )  # fmt: skip
    row = next(
        line for line in skerry(data, "function", "list").lines if line.startswith(counting.name)
    )
    assert row.split()[1:6] == ["1", counting.topic, "local", "running", "2"]
    shown = skerry(data, "function", "show", counting.name).out
    for text in (f"publishes to  {counting.out}", "each topic's home", "no sockets", "count in"):
        assert text in shown

    def said() -> list[str]:
        return [line["text"] for line in skerry(data, *logs, "--json").objects]

    logs = ("function", "logs", counting.name)
    wait_for(lambda: len(said()) == 2, "the logs")
    assert said() == ["handled a", "handled b"]
    assert skerry(data, *logs).lines[1].endswith(f"local {counting.topic}  handled b")
    graph = skerry(data, "function", "graph")
    assert [counting.topic, f"└── ƒ {counting.name}  running", f"    └── {counting.out}"] == [
        line for line in graph.lines if counting.topic in line or counting.name in line
        or counting.out in line
    ]  # fmt: skip


def test_logs_are_followed(data: Path, counting: Deployed, tmp_path: Path) -> None:
    assert counting.deploy().code == 0
    counting.publish("a")
    command = ("function", "logs", counting.name, "--follow")
    with running(data, tmp_path / "logs", *command) as followed:
        followed.wait_line("handled a")
        counting.publish("b")
        followed.wait_line("handled b")
        assert followed.out.count("handled a") == 1


def test_a_new_version_goes_on_and_a_rollback_brings_the_old_one_back(
    data: Path, counting: Deployed
) -> None:
    assert counting.deploy().code == 0
    counting.publish("a")
    counting.wait("1 a")
    result = skerry(data, "function", "deploy", str(counting.code("!")))
    assert result.lines[0] == f"function {counting.name}, version 2, is deployed", result.err
    counting.publish("b")
    counting.wait("1 a", "2 b!")
    again = skerry(data, "function", "deploy", str(counting.code("!")), "--json").json
    assert (again["version"], again["changed"]) == (2, False)
    rolled = skerry(data, "function", "rollback", counting.name)
    assert rolled.lines[0] == f"function {counting.name}, version 3, is deployed", rolled.err
    counting.publish("c")
    counting.wait("1 a", "2 b!", "3 c")
    rolled = skerry(data, "function", "rollback", counting.name, "--to", "2", "--json")
    assert rolled.json["version"] == 4
    counting.publish("d")
    counting.wait("1 a", "2 b!", "3 c", "4 d!")
    assert [version["number"] for version in counting.shown()["versions"]] == [1, 2, 3, 4]


def test_a_paused_function_rests_and_misses_nothing(data: Path, counting: Deployed) -> None:
    assert counting.deploy().code == 0
    counting.publish("a")
    counting.wait("1 a")
    paused = skerry(data, "function", "pause", counting.name)
    assert (paused.code, "resume" in paused.out) == (0, True)
    assert counting.shown()["state"] == "paused"
    wait_for(lambda: not counting.shown()["running"], "its end")
    counting.publish("b", "c")
    assert skerry(data, "function", "resume", counting.name, "--json").json["paused"] is False
    counting.wait("1 a", "2 b", "3 c")


def test_a_removed_function_is_gone_with_its_state(data: Path, counting: Deployed) -> None:
    assert counting.deploy().code == 0
    counting.publish("a")
    counting.wait("1 a")

    def journals() -> list[str]:
        topics = skerry(data, "topic", "list", "--all", "--json").json
        return [t["name"] for t in topics if f"/{counting.name}/" in t["name"]]

    assert len(journals()) == 1
    removed = skerry(data, "function", "remove", counting.name, "--yes")
    assert removed.out.startswith(f"function {counting.name} is removed, with its 1 version")
    assert journals() == []
    assert skerry(data, "function", "show", counting.name).code == 3
    counting.publish("unseen")
    assert counting.deploy("--json").json["version"] == 2
    counting.publish("b")
    counting.wait("1 a", "1 b")


def test_dead_letters_are_replayed_once(data: Path, counting: Deployed) -> None:
    assert counting.deploy("--retries", "0").code == 0
    counting.publish("bad", "a")
    counting.wait("1 a")

    def dead() -> list[str]:
        topic = f"functions/dead/{counting.name}"
        return [event["data"] for event in skerry(data, "read", topic, "--json").objects]

    wait_for(lambda: dead() == ["bad"], "the dead letter")
    mended = counting.code().read_text().replace('event.data == "bad"', "False")
    file = counting.folder / f"{counting.name}.py"
    file.write_text(mended)
    assert skerry(data, "function", "deploy", str(file)).code == 0
    replayed = skerry(data, "function", "replay", counting.name, "--dead")
    assert replayed.code == 0, replayed.err
    counting.wait("1 a", "2 bad")
    again = skerry(data, "function", "replay", counting.name, "--dead", "--json")
    assert (again.code, again.error["kind"]) == (2, "BadSetting")


def test_a_range_is_replayed(data: Path, counting: Deployed) -> None:
    assert counting.deploy().code == 0
    counting.publish("a", "b", "c")
    counting.wait("1 a", "2 b", "3 c")
    result = skerry(
        data, "function", "replay", counting.name, "--from-index", "2", "--to-index", "9", "--json"
    )
    assert result.json["logs"] == {counting.topic: [2, 3]}
    counting.wait("1 a", "2 b", "3 c", "4 b", "5 c")


def test_a_function_waits_for_its_topic(data: Path, tmp_path: Path) -> None:
    name, out = new_name(), fresh_topic(data)
    file = tmp_path / f"{name}.py"
    file.write_text(COUNT.replace("OUT", out).replace("MARK", ""))
    result = skerry(data, "function", "deploy", str(file), "--topic", f"{name}/+")
    assert result.lines[1] == f"No topic matches {name}/+ yet; it starts when one appears."
    assert skerry(data, "function", "show", name, "--json").json["state"] == "idle"
    with connect(data) as client:
        client.create_topic(f"{name}/a")
        client.publish(f"{name}/a", "x")
        wait_for(lambda: client.latest_index(out) == 1, "the result")
    with connect(data, user="admin") as admin:  # its topic is deleted under it
        admin.delete_topic(f"{name}/a")
        wait_for(lambda: admin.function(name).state == "idle", "the end of it")
        wait_for(
            lambda: not [t for t in admin.topics() if f"/{name}/" in t.name], "the journal's end"
        )
    assert skerry(data, "function", "remove", name, "--yes").code == 0


BAD = {
    "syntax": ("def handler(ctx, event)\n    pass\n", "line 1: expected ':'"),
    "nothing": ("x = 1\n", "no handler"),
    "import": ("import no_such_thing\ndef handler(ctx, event): pass\n", "bad.py, line 1: "),
    "raises": ("\n1 / 0\ndef handler(ctx, event): pass\n", "bad.py, line 2: ZeroDivisionError"),
    "exits": ("raise SystemExit(3)\ndef handler(ctx, event): pass\n", ""),
    "dependency": (
        '# /// script\n# dependencies = ["nope @ file:///no/such/folder"]\n# ///\n'
        "def handler(ctx, event): pass\n",
        "the dependency nope could not be installed",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_deployment_leaves_the_version_before(
    data: Path, counting: Deployed, kind: str
) -> None:
    assert counting.deploy().code == 0
    counting.publish("a")
    counting.wait("1 a")
    code, what = BAD[kind]
    file = counting.folder / "bad.py"
    file.write_text(code)
    result = skerry(data, "function", "deploy", str(file), "--name", counting.name)
    assert (result.code, result.out) == (4, ""), result.err
    assert what in result.err
    assert "Traceback" not in result.err
    assert len(result.err.splitlines()) >= 2  # and what to do about it
    counting.publish("b")
    counting.wait("1 a", "2 b")
    assert counting.shown()["version"] == 1


def test_code_brings_its_dependencies(data: Path, counting: Deployed, tmp_path: Path) -> None:
    package = make_package(tmp_path)
    file = tmp_path / f"{counting.name}.py"
    file.write_text(
        f'# /// script\n# dependencies = ["tiny-thing @ file://{package}"]\n# ///\n'
        "import tiny_thing\n"
        f"def handler(ctx, event): ctx.publish('{counting.out}', str(tiny_thing.ANSWER))\n"
    )
    result = skerry(data, "function", "deploy", str(file), "--topic", counting.topic)
    assert result.code == 0, result.err
    counting.publish("a")
    counting.wait("42")
    assert counting.shown()["versions"][0]["requires"] == [f"tiny-thing @ file://{package}"]


def test_code_may_be_webassembly(data: Path, counting: Deployed, tmp_path: Path) -> None:
    file = tmp_path / f"{counting.name}.wat"
    file.write_text(ECHO.replace("OUT", counting.out).replace("LENGTH", str(len(counting.out))))
    result = skerry(data, "function", "deploy", str(file), "--topic", counting.topic)
    assert result.code == 0, result.err
    counting.publish("a", "b")
    counting.wait("a", "b")
    tried = skerry(data, "function", "test", str(file), "--data", "c", "--json")
    assert [each["data"] for each in tried.json["published"]] == ["c"]
    file.write_text("(module)")
    refused = skerry(data, "function", "deploy", str(file))
    assert refused.code == 4, refused.out
    counting.publish("c")
    counting.wait("a", "b", "c")


def test_variables_are_secret(data: Path, counting: Deployed, tmp_path: Path) -> None:
    secret = "hunter2-s3cret"
    variables = tmp_path / "variables"
    variables.write_text(f"TOKEN={secret}\n")
    file = tmp_path / f"{counting.name}.py"
    file.write_text(
        f"import os\ndef handler(ctx, event): ctx.publish('{counting.out}', os.environ['TOKEN'])\n"
    )
    result = skerry(
        data, "function", "deploy", str(file), "--topic", counting.topic,
        "--env-file", str(variables),
    )  # fmt: skip
    assert result.code == 0, result.err
    counting.publish("a")
    counting.wait(secret)
    for process in psutil.process_iter(["cmdline"]):
        assert secret not in " ".join(process.info["cmdline"] or [])
    kept = [path for path in data.rglob("*.json") if secret in path.read_text(errors="ignore")]
    assert [path.parent.name for path in kept] == ["secrets"]
    assert kept[0].stat().st_mode & 0o777 == 0o600
    assert secret not in json.dumps(counting.shown())
    assert secret not in skerry(data, "read", "functions/registry", "--json").out
    # They stay with the next version, until another file is given.
    file.write_text(file.read_text() + "# changed\n")
    assert skerry(data, "function", "deploy", str(file), "--json").json["version"] == 2
    counting.publish("b")
    counting.wait(secret, secret)
    variables.write_text("TOKEN=other\n")
    options = ("--env-file", str(variables), "--json")
    assert skerry(data, "function", "deploy", str(file), *options).json["version"] == 3
    counting.publish("c")
    counting.wait(secret, secret, "other")


def test_code_is_tried_without_any_effect(data: Path, counting: Deployed) -> None:
    file = str(counting.code("!"))
    result = skerry(data, "function", "test", file, "--data", "x")
    assert result.code == 0, result.err
    assert "says       handled x" in result.lines
    assert any(line.split() == ["publish", counting.out, "-", "1", "x!"] for line in result.lines)
    assert any(line.split() == ["keep", "number", "1"] for line in result.lines)
    counting.publish("past")
    tried = skerry(
        data, "function", "test", file, "--topic", counting.topic, "--index", "1", "--json"
    )
    assert [each["data"] for each in tried.json["published"]] == ["1 past!"]
    assert tried.json["state"] == {"number": 1}
    failed = skerry(data, "function", "test", file, "--data", "bad")
    assert (failed.code, "ValueError: this one is bad" in failed.err) == (1, True)
    assert "line 7" in failed.err  # where it was raised
    assert counting.results == []
    assert skerry(data, "function", "show", counting.name).code == 3


def test_a_trial_needs_no_site(tmp_path: Path) -> None:
    file = tmp_path / "echo.py"
    file.write_text("def handler(topic, index, data):\n    print(topic, index, data)\n")
    result = skerry(
        tmp_path / "nowhere", "function", "test", str(file), "--data", "x", "--as-topic", "a/b"
    )
    assert result.lines[0] == "says       a/b 1 b'x'", result.err


def test_topics_of_functions_are_hidden_unless_asked_for(data: Path, counting: Deployed) -> None:
    assert counting.deploy().code == 0
    assert "functions/" not in skerry(data, "topic", "list").out
    assert "functions/registry" in skerry(data, "topic", "list", "--all").out


def test_functions_are_back_with_the_site(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with site_up(data, tmp_path / "first") as site:
        counting = Deployed(data, tmp_path)
        assert counting.deploy().code == 0
        counting.publish("a")
        counting.wait("1 a")
        assert site.stop() == 0
    with site_up(data, tmp_path / "second") as site:
        counting.publish("b")
        counting.wait("1 a", "2 b")
        (host,) = [
            child
            for child in psutil.Process(site.process.pid).children()
            if "skerry.functions.host" in child.cmdline()
        ]
        host.kill()  # and so are they with their process
        counting.publish("c")
        counting.wait("1 a", "2 b", "3 c")


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (["show", "nobody"], 3, "UnknownFunction"),
        (["logs", "nobody"], 3, "UnknownFunction"),
        (["pause", "nobody"], 3, "UnknownFunction"),
        (["resume", "nobody"], 3, "UnknownFunction"),
        (["rollback", "nobody"], 3, "UnknownFunction"),
        (["remove", "nobody", "--yes"], 3, "UnknownFunction"),
        (["replay", "nobody", "--dead"], 3, "UnknownFunction"),
        (["replay", "nobody"], 2, "BadSetting"),
        (["show", "no/body"], 2, "BadName"),
        (["deploy", "FILE"], 2, "BadSetting"),
        (["deploy", "FILE", "--topic", "a b"], 2, "BadName"),
        (["deploy", "FILE", "--topic", "functions/registry"], 2, "BadSetting"),
        (["deploy", "FILE", "--topic", "a", "--site", "x", "--follow"], 2, "BadSetting"),
        (["deploy", "FILE", "--topic", "a", "--site", "elsewhere"], 10, "NotInFabric"),
        (["deploy", "FILE", "--topic", "a", "--memory", "1kB"], 2, "BadSetting"),
        (["deploy", "FILE", "--topic", "a", "--memory", "lots"], 2, "BadSetting"),
        (["deploy", "FILE", "--topic", "a", "--timeout", "0s"], 2, "BadSetting"),
        (["deploy", "FILE", "--topic", "a", "--concurrency", "4"], 2, "BadSetting"),
        (["deploy", "FILE", "--topic", "a", "--name", "a/b"], 2, "BadName"),
        (["deploy", "FILE", "--topic", "a", "--handler", "nobody"], 4, "FunctionBroken"),
        (["deploy", "/no/such/file.py", "--topic", "a"], 2, "BadSetting"),
        (["deploy", "FILE", "--topic", "a", "--env-file", "/no/such/file"], 2, "BadSetting"),
        (["test", "FILE"], 2, "BadSetting"),
        (["test", "FILE", "--topic", "nowhere"], 3, "UnknownTopic"),
    ],
)
def test_errors_have_their_exit_code_and_a_next_step(
    data: Path, tmp_path: Path, arguments: list[str], code: int, kind: str
) -> None:
    file = tmp_path / "fine.py"
    file.write_text("def handler(ctx, event): pass\n")
    given = [str(file) if argument == "FILE" else argument for argument in arguments]
    result = skerry(data, "function", *given, "--json")
    assert (result.code, result.out, result.error["kind"]) == (code, "", kind), result.err
    assert result.error["advice"]
