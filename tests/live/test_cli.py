"""The command line as a user meets it: help, status, topics, errors. See also `test_cli_*`."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from skerry import __version__
from skerry.cli.app import app
from tests.live.commandline import engines, filled_topic, fresh_topic, new_name, shared_site, skerry

ESCAPE = "\x1b"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder of a running site."""
    yield from shared_site(tmp_path_factory)


@pytest.fixture
def topic(data: Path) -> str:
    """A fresh topic."""
    return fresh_topic(data)


@pytest.fixture
def filled(data: Path) -> str:
    """A topic with the events `one` to `five`, indexes 1 to 5."""
    return filled_topic(data)


# Help, version, completion


@pytest.mark.parametrize(
    "command",
    ["up", "status", "pub", "sub", "get", "read", "query", "sites", "links", "rtt", "doctor"]
    + [f"feed {name}" for name in ("register", "set", "list", "remove")]
    + [f"topic {name}" for name in ("create", "list", "show", "set", "move", "delete")]
    + ["fabric init", "fabric token", "site drain", "site undrain", "site remove"],
)
def test_help_of_each_command_shows_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert f"skerry {command}" in result.output.split("Example")[-1]


def test_version_is_printed() -> None:
    assert skerry(None, "--version").out == f"skerry {__version__}\n"


def test_completion_offers_commands() -> None:
    result = skerry(None, _SKERRY_COMPLETE="complete_bash", COMP_WORDS="skerry do", COMP_CWORD="1")
    assert result.lines == ["doctor"]


# Status


def test_status_shows_the_site(data: Path) -> None:
    result = skerry(data, "status")
    assert result.code == 0
    shown = dict(line.split(maxsplit=1) for line in result.lines)
    assert shown["site"] == "local"
    assert shown["data"] == str(data)
    assert re.fullmatch(r"nats://127\.0\.0\.1:\d+", shown["address"])


def test_status_as_json_names_living_processes(data: Path) -> None:
    status = skerry(data, "status", "--json").json
    assert psutil.pid_exists(status["agent_pid"])
    assert [engine.pid for engine in engines(data)] == [status["engine_pid"]]


# Topics


def test_creating_without_a_limit_says_that_everything_is_kept(data: Path) -> None:
    name = new_name()
    result = skerry(data, "topic", "create", name)
    assert result.code == 0
    assert "keeps everything" in result.out
    assert f"skerry topic set {name}" in result.out


def test_creating_with_limits_sets_them(data: Path) -> None:
    name = new_name()
    limits = ["--max-events", "10", "--max-bytes", "2GB", "--max-age", "7d"]
    result = skerry(data, "topic", "create", name, *limits, "--max-event-bytes", "1KiB", "--json")
    asked = {
        "max_events": 10,
        "max_bytes": 2_000_000_000,
        "max_age": 7 * 86400.0,
        "max_event_bytes": 1024,
        "durability": "process",
    }
    assert asked.items() <= result.json["settings"].items()
    shown = skerry(data, "topic", "show", name).out
    assert re.search(r"^keeps +10 events, 2\.0 GB, 7d$", shown, re.MULTILINE)


def test_creating_again_with_other_settings_is_refused(data: Path, topic: str) -> None:
    assert skerry(data, "topic", "create", topic).code == 0
    result = skerry(data, "topic", "create", topic, "--max-events", "5")
    assert result.code == 4
    assert "exists with other settings" in result.err


def test_a_durability_that_the_site_does_not_give_is_refused(data: Path) -> None:
    result = skerry(data, "topic", "create", "strict", "--durability", "power")
    assert result.code == 4
    assert "skerry up --durability power" in result.err


def test_list_has_a_row_for_each_topic(data: Path, filled: str) -> None:
    result = skerry(data, "topic", "list")
    row = next(line.split() for line in result.lines if line.startswith(filled + " "))
    assert row[1] == "5"
    assert row[-1] == "everything"
    names = [found["name"] for found in skerry(data, "topic", "list", "--json").json]
    assert filled in names
    assert names == sorted(names)


def test_numbers_of_the_list_are_aligned(data: Path, filled: str) -> None:
    lines = skerry(data, "topic", "list").lines
    end = lines[0].index("EVENTS") + len("EVENTS")
    row = next(line for line in lines if line.startswith(filled + " "))
    assert row[:end].endswith(" 5")


def test_show_gives_state_and_settings(data: Path, filled: str) -> None:
    shown = skerry(data, "topic", "show", filled)
    assert re.search(r"^events +5$", shown.out, re.MULTILINE)
    as_json = skerry(data, "topic", "show", filled, "--json").json
    assert (as_json["first_index"], as_json["latest_index"]) == (1, 5)


def test_set_changes_a_limit_and_none_lifts_it(data: Path, filled: str) -> None:
    result = skerry(data, "topic", "set", filled, "--max-events", "2", "--json")
    assert result.json["settings"]["max_events"] == 2
    assert result.json["first_index"] == 4
    result = skerry(data, "topic", "set", filled, "--max-events", "none")
    assert re.search(r"^keeps +everything$", result.out, re.MULTILINE)


def test_set_without_a_setting_is_refused(data: Path, topic: str) -> None:
    result = skerry(data, "topic", "set", topic)
    assert result.code == 2
    assert "nothing to change" in result.err


def test_delete_wants_to_be_confirmed(data: Path, filled: str) -> None:
    result = skerry(data, "topic", "delete", filled)
    assert result.code == 2
    assert "--yes" in result.err
    assert skerry(data, "topic", "show", filled).code == 0
    result = skerry(data, "topic", "delete", filled, "--yes")
    assert result.code == 0
    assert "5 events" in result.out
    assert skerry(data, "topic", "show", filled).code == 3


def test_delete_as_json_says_what_went(data: Path, filled: str) -> None:
    result = skerry(data, "topic", "delete", filled, "--yes", "--json")
    assert result.json == {"deleted": filled, "events": 5}


# Errors


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (["pub", "no spaces", "x"], 2, "BadName"),
        (["topic", "create", "a//b"], 2, "BadName"),
        (["topic", "create", "a", "--max-bytes", "lots"], 2, "BadSetting"),
        (["pub", "nowhere", "x"], 3, "UnknownTopic"),
        (["sub", "nowhere"], 3, "UnknownTopic"),
        (["read", "nowhere"], 3, "UnknownTopic"),
        (["topic", "delete", "nowhere", "--yes"], 3, "UnknownTopic"),
        (["status", "--timeout", "0"], 2, "BadSetting"),
        (["status", "--bogus"], 2, "UsageError"),
        (["pub"], 2, "UsageError"),
    ],
)
def test_errors_have_their_exit_code_and_a_json_form(
    data: Path, arguments: list[str], code: int, kind: str
) -> None:
    result = skerry(data, *arguments)
    assert result.code == code
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert "Traceback" not in result.err
    again = skerry(data, *arguments, "--json")
    assert again.code == again.error["exit_code"] == code
    assert again.error["kind"] == kind
    assert f"error: {again.error['what']}\n" in result.err


def test_an_error_says_what_to_do_in_the_next_line(data: Path) -> None:
    assert skerry(data, "pub", "nowhere", "x").err.splitlines() == [
        "error: there is no topic nowhere",
        "Create it with `skerry topic create nowhere`.",
    ]


def test_a_folder_without_a_site_is_unavailable(tmp_path: Path) -> None:
    result = skerry(tmp_path, "status")
    assert result.code == 5
    assert "skerry up" in result.err


def test_a_site_that_is_away_is_unavailable() -> None:
    with socket.socket() as bound:  # nobody listens: connections are refused
        bound.bind(("127.0.0.1", 0))
        target = f"nats://sdk:hush@127.0.0.1:{bound.getsockname()[1]}"
        result = skerry(None, "status", "--connect", target, "--timeout", "0.3")
    assert result.code == 5
    assert "hush" not in result.err


def test_wrong_credentials_are_denied_and_not_shown(data: Path) -> None:
    address = skerry(data, "status", "--json").json["address"].removeprefix("nats://")
    result = skerry(None, "status", SKERRY_CONNECT=f"nats://sdk:hush@{address}")
    assert result.code == 6
    assert "refused the credentials" in result.err
    assert "hush" not in result.err


def test_the_sdk_user_may_not_change_topics(data: Path, topic: str) -> None:
    file = str(data / "credentials" / "sdk.json")
    result = skerry(None, "topic", "set", topic, "--max-events", "1", "--connect", file)
    assert result.code == 6


def test_piped_output_has_no_control_codes(data: Path, filled: str) -> None:
    commands = (
        ["status"], ["topic", "list"], ["topic", "show", filled], ["read", filled], ["doctor"],
        ["pub", "nowhere", "x"],
    )  # fmt: skip
    for command in commands:
        result = skerry(data, *command, FORCE_COLOR="1", COLUMNS="20", TERM="xterm-256color")
        assert ESCAPE not in result.out + result.err
    row = next(line for line in skerry(data, "status", COLUMNS="20").lines if "data" in line)
    assert row.endswith(str(data)), "nothing is folded to a width"
