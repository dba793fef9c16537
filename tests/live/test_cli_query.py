"""`skerry query`."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skerry.sync import connect
from tests.live.commandline import (
    DEADLINE,
    SKERRY,
    Terminal,
    environment,
    new_name,
    running,
    shared_site,
    skerry,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder of a running site."""
    yield from shared_site(tmp_path_factory)


@pytest.fixture
def mark() -> str:
    """A value that no other test's feeds have."""
    return new_name()


def register(data: Path, *arguments: str) -> Any:
    result = skerry(data, "feed", "register", *arguments, "--json")
    assert result.code == 0, result.err
    return result.json


def publish(data: Path, feed: Any, *payloads: str) -> None:
    for payload in payloads:
        assert skerry(data, "pub", feed["topic"], payload).code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (["query", "a = b"], 2, "BadQuery"),
        (["query", "has a", "--from-time", "soon"], 2, "BadSetting"),
        (["query", "has a", "--for", "long"], 2, "BadSetting"),
        (["query", "has a", "--count", "0"], 2, "UsageError"),
    ],
)
def test_errors_have_their_exit_code_and_a_next_step(
    data: Path, arguments: list[str], code: int, kind: str
) -> None:
    result = skerry(data, *arguments, "--json")
    assert (result.code, result.out) == (code, "")
    assert result.error["kind"] == kind
    assert result.error["advice"]


@pytest.mark.parametrize("command", [["query"], ["feed", "list"]])
def test_a_bad_query_shows_where_also_without_a_site(tmp_path: Path, command: list[str]) -> None:
    result = skerry(tmp_path, *command, "Location/Room = Soda")
    assert result.code == 2
    assert result.err.splitlines() == [
        "error: the query is wrong at column 17: "
        "expected a text in quotes, a number, true or false, found Soda",
        "  Location/Room = Soda",
        "                  ^",
        "Text stands in quotes.",
    ]


def test_query_prints_a_line_for_each_thing_that_happens(
    data: Path, mark: str, tmp_path: Path
) -> None:
    feed = register(data, f"mark={mark}", "Room=410")
    publish(data, feed, "before")
    with running(data, tmp_path / "query", "query", f'mark = "{mark}"') as command:
        assert command.wait_line("joined") == (
            f'joined  {feed["id"]}  local  Room=410  mark="{mark}"'
        )
        publish(data, feed, "21.5", "\x1b[2J")
        line = command.wait_line("21.5")
        assert re.fullmatch(rf"event   {feed['id']}  \S+T\S+Z +\d+  21\.5", line)
        assert command.wait_line("2J").endswith(r"\x1b[2J")
        skerry(data, "feed", "remove", feed["id"])
        assert command.wait_line("left") == f"left    {feed['id']}"
        assert command.stop(signal.SIGINT) == 0
        assert command.err == ""
        assert len(command.out.splitlines()) == 4


def test_a_feed_that_changes_joins_and_leaves(data: Path, mark: str, tmp_path: Path) -> None:
    there, other = register(data, f"mark={mark}", "Room=410"), register(data, f"mark={mark}")
    query = f'mark = "{mark}" and Room = 410'
    with running(data, tmp_path / "query", "query", query, "--json") as command:
        command.wait_line(there["id"])
        publish(data, other, "not this")
        skerry(data, "feed", "set", other["id"], "Room=410")
        command.wait_line(other["id"])
        publish(data, other, "this")
        command.wait_line('"data":"this"')
        skerry(data, "feed", "set", there["id"], "Room=411")
        command.wait_line('"left"')
        assert command.stop(signal.SIGINT) == 0
        assert "not this" not in command.out


def test_query_as_json_carries_everything(data: Path, mark: str) -> None:
    feed = register(data, f"mark={mark}")
    publish(data, feed, "one", "two")
    result = skerry(
        data, "query", f'mark = "{mark}"', "--from-time", "10m", "--count", "2", "--json"
    )
    assert result.code == 0
    joined, first, second = result.objects
    assert joined == {"kind": "joined", "feed": feed}
    assert (first["kind"], first["feed"], first["event"]["data"]) == ("event", feed, "one")
    assert second["event"]["topic"] == feed["topic"]
    read = skerry(data, "read", feed["topic"], "--json").objects
    assert [first["event"], second["event"]] == read


def test_query_begins_at_the_time_that_is_given(data: Path, mark: str) -> None:
    feed = register(data, f"mark={mark}")
    publish(data, feed, "old", "new")
    times = [event["time"] for event in skerry(data, "read", feed["topic"], "--json").objects]
    query = ["query", f'mark = "{mark}"', "--count", "1", "--json"]
    assert skerry(data, *query, "--from", "first").objects[1]["event"]["data"] == "old"
    assert skerry(data, *query, "--from", times[1]).objects[1]["event"]["data"] == "new"


def test_query_ends_after_a_while(data: Path, mark: str) -> None:
    feed = register(data, f"mark={mark}")
    result = skerry(data, "query", f'mark = "{mark}"', "--for", "100ms")
    assert (result.code, result.err) == (0, "")
    assert [line.split()[:2] for line in result.lines] in ([], [["joined", feed["id"]]])


def test_query_looks_into_payloads(data: Path, mark: str) -> None:
    feed = register(data, f"mark={mark}")
    publish(data, feed, '{"c": 20}', '{"c": 31}', "no json")
    query = f'mark = "{mark}" and payload.c > 30'
    result = skerry(data, "query", query, "--from", "first", "--count", "1", "--json")
    assert [item["event"]["data"] for item in result.objects[1:]] == ['{"c": 31}']


def test_at_a_terminal_feeds_stand_above_their_events(data: Path, mark: str) -> None:
    feed = register(data, f"mark={mark}", "Room=410")
    with Terminal(data, "query", f'mark = "{mark}"') as screen:
        screen.wait_for("1 feed")
        screen.wait_for(f'Room=410  mark="{mark}"')
        publish(data, feed, "21.5")
        screen.wait_for("21.5")
        screen.wait_for("1 event")
        other = register(data, f"mark={mark}")
        screen.wait_for("2 feeds")
        screen.wait_for(other["id"])
        skerry(data, "feed", "remove", other["id"])
        screen.wait_for("left")
        screen.process.send_signal(signal.SIGINT)
        assert screen.wait() == 0
    left, last = screen.screen.split(b"\x1b[?1049l")  # the terminal is as it was
    assert b"\x1b[?1049h" in left
    assert b"1 feed" in last
    assert b"21.5" in last
    assert b"Ctrl-C" not in last


def test_a_bad_query_at_a_terminal_takes_no_screen(data: Path) -> None:
    with Terminal(data, "query", "Room = 410 and") as screen:
        assert screen.wait() == 2
    assert b"^" in screen.screen
    assert b"\x1b[?1049h" not in screen.screen


def test_a_screen_shows_as_many_as_fit(data: Path, mark: str) -> None:
    with connect(data) as client:
        for number in range(40):
            client.feed({"mark": mark, "n": number}, permanent=True, owner="cli")
        (feed,) = client.feeds(f'mark = "{mark}" and n = 7')
        with Terminal(data, "query", f'mark = "{mark}"') as screen:
            screen.wait_for("40 feeds")
            screen.wait_for("… and ")
            for number in range(100):
                client.publish(feed.topic, f"number {number}")
            screen.wait_for("number 99")
            screen.process.send_signal(signal.SIGINT)
            assert screen.wait() == 0
    last = screen.screen.split(b"\x1b[?1049l")[-1].decode()
    assert len(last.strip().splitlines()) <= 24
    assert "number 99" in last


def test_a_reader_that_has_seen_enough_ends_a_query_quietly(data: Path, mark: str) -> None:
    feed = register(data, f"mark={mark}")
    skerry(data, "pub", feed["topic"], stdin=b"a line of some length\n" * 5_000)
    with subprocess.Popen(
        [SKERRY, "query", f'mark = "{mark}"', "--from", "first"],
        env=environment(data),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert b"joined" in process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(DEADLINE) == 0
        finally:
            process.kill()


def test_a_durable_query_goes_on_where_it_was(data: Path, mark: str) -> None:
    feed = register(data, f"mark={mark}")
    query = ["query", f'mark = "{mark}"', "--durable", mark, "--json"]
    assert skerry(data, *query, "--for", "1s").code == 0
    publish(data, feed, "1", "2", "3")
    for expected in (["1", "2"], ["3"]):
        done = skerry(data, *query, "--count", str(len(expected)))
        assert done.code == 0, done.err
        assert [o["event"]["data"] for o in done.objects if o["kind"] == "event"] == expected
