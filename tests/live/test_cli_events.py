"""`skerry pub`, `sub`, `get` and `read`."""

from __future__ import annotations

import base64
import re
import signal
import subprocess
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.live.commandline import (
    DEADLINE,
    SKERRY,
    Result,
    environment,
    filled_topic,
    fresh_topic,
    running,
    shared_site,
    skerry,
    wait_for,
)


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


# Publishing


def test_pub_prints_the_index(data: Path, topic: str) -> None:
    assert skerry(data, "pub", topic, "a").out == "1\n"
    assert skerry(data, "pub", f"{topic}/sub", "b", "--json").json == {
        "topic": f"{topic}/sub",
        "index": 2,
    }


def test_pub_carries_key_headers_and_id(data: Path, topic: str) -> None:
    options = ["--key", "roof", "--header", "unit=C", "--header", "eq=a=b", "--id", "x-1"]
    assert skerry(data, "pub", topic, "21.5", *options, "--lifespan", "1h").code == 0
    event = skerry(data, "get", topic, "1", "--json").json
    assert event["key"] == "roof"
    assert event["headers"] == {"unit": "C", "eq": "a=b"}
    assert event["id"] == "x-1"


def test_the_same_id_adds_nothing_twice(data: Path, topic: str) -> None:
    first = skerry(data, "pub", topic, "a", "--id", "once")
    again = skerry(data, "pub", topic, "a", "--id", "once")
    assert first.out == again.out == "1\n"
    assert skerry(data, "topic", "show", topic, "--json").json["events"] == 1


def test_an_event_with_a_short_lifespan_ends(data: Path, topic: str) -> None:
    assert skerry(data, "pub", topic, "soon gone", "--lifespan", "1s").code == 0
    wait_for(lambda: skerry(data, "get", topic, "1").code == 3, "the end of its lifespan")


@pytest.mark.parametrize("dash", [(), ("-",)])
def test_pub_takes_lines_from_stdin(data: Path, topic: str, dash: tuple[str, ...]) -> None:
    result = skerry(data, "pub", topic, *dash, stdin=b"a\nb\r\n\nlast without an end")
    assert result.code == 0
    assert result.out.startswith(f"4 events to {topic}, indexes 1 to 4, ")
    events = skerry(data, "read", topic, "--json").objects
    assert [event["data"] for event in events] == ["a", "b", "", "last without an end"]


def test_pub_streams_lines_as_they_come(data: Path, topic: str) -> None:
    with subprocess.Popen(
        [SKERRY, "pub", topic],
        env=environment(data),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(b"first\n")
            process.stdin.flush()
            wait_for(lambda: skerry(data, "get", topic, "1").raw == b"first", "the first line")
            process.stdin.write(b"second\n")
            process.stdin.close()
            assert b"2 events" in process.stdout.read()
        finally:
            process.kill()


def test_pub_takes_a_file(data: Path, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text("".join(f'{{"n":{number}}}\n' for number in range(5000)))
    result = skerry(data, "pub", topic, "--file", str(file), "--key", "k", "--json")
    summary = result.json
    assert (summary["events"], summary["first"], summary["last"]) == (5000, 1, 5000)
    assert result.err == ""
    last = skerry(data, "get", topic, "latest", "--json").json
    assert (last["data"], last["key"]) == ('{"n":4999}', "k")


def test_pub_of_nothing_is_no_error(data: Path, topic: str) -> None:
    result = skerry(data, "pub", topic, stdin=b"")
    assert (result.code, result.out) == (0, f"0 events to {topic}\n")


def test_lines_for_an_unknown_topic_end_as_one_event_would(data: Path) -> None:
    result = skerry(data, "pub", "nowhere", stdin=b"a\nb\n")
    assert result.code == 3
    assert result.out == "0 events to nowhere\n"
    assert "there is no topic nowhere" in result.err


def test_a_line_too_large_is_named_and_those_before_are_stored(
    data: Path, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"small\n" + b"x" * (9 * 1024 * 1024) + b"\nlater\n")
    result = skerry(data, "pub", topic, "--file", str(file))
    assert result.code == 2
    assert result.out == f"1 event to {topic}, index 1\n"
    assert "line 2: the event has" in result.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["x", "--file", "f"], "a payload and a file"),
        (["-", "--file", "f"], "stdin and a file"),
        (["-", "--id", "1"], "one id cannot name many"),
        (["x", "--header", "nothing"], "is no header"),
        (["x", "--header", "Nats-Foo=1"], "reserved"),
        (["x", "--lifespan", "soon"], "is not a duration"),
        (["--file", "/no/such/file"], "cannot read /no/such/file"),
        (["--file", "/"], "it is a folder"),
    ],
)
def test_pub_refuses_what_makes_no_sense(
    data: Path, topic: str, arguments: list[str], complaint: str
) -> None:
    result = skerry(data, "pub", topic, *arguments)
    assert result.code == 2
    assert complaint in result.err


# Subscribing


def payloads(result: Result) -> list[str]:
    return [event["data"] for event in result.objects]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("first", ["one", "two", "three", "four", "five"]),
        ("1", ["one", "two", "three", "four", "five"]),
        ("4", ["four", "five"]),
        ("latest", ["five"]),
        ("10m", ["one", "two", "three", "four", "five"]),
        ("2020-01-01T00:00Z", ["one", "two", "three", "four", "five"]),
    ],
)
def test_sub_begins_where_it_is_told_to(
    data: Path, filled: str, place: str, expected: list[str]
) -> None:
    result = skerry(data, "sub", filled, "--from", place, "--count", str(len(expected)), "--json")
    assert result.code == 0
    assert payloads(result) == expected


def test_sub_from_a_time_leaves_out_what_is_older(data: Path, topic: str) -> None:
    skerry(data, "pub", topic, "old")
    skerry(data, "pub", topic, "new")
    time = skerry(data, "get", topic, "2", "--json").json["time"]
    assert payloads(skerry(data, "sub", topic, "--from", time, "--count", "1", "--json")) == ["new"]


def test_sub_from_the_first_survives_that_older_events_are_gone(data: Path, filled: str) -> None:
    skerry(data, "topic", "set", filled, "--max-events", "2")
    result = skerry(data, "sub", filled, "--from", "first", "--count", "2", "--json")
    assert payloads(result) == ["four", "five"]
    result = skerry(data, "sub", filled, "--from", "1", "--count", "2")
    assert result.code == 3
    assert "aged out" in result.err


@pytest.mark.parametrize("place", ["banana", "0", "-3", "1.x"])
def test_sub_refuses_what_is_no_place(data: Path, filled: str, place: str) -> None:
    assert skerry(data, "sub", filled, "--from", place).code == 2


def test_sub_prints_new_events_until_interrupted(data: Path, filled: str, tmp_path: Path) -> None:
    with running(data, tmp_path / "sub", "sub", filled) as command:
        wait_for(
            lambda: skerry(data, "topic", "show", filled, "--json").json["subscriptions"],
            "the subscription",
        )
        skerry(data, "pub", f"{filled}/roof", "fresh")
        line = command.wait_line("fresh")
        assert re.fullmatch(rf"\S+T\S+Z +6  {filled}/roof +fresh", line)
        assert command.out.count("\n") == 1
        assert command.stop(signal.SIGINT) == 0
        assert command.err == ""


def test_a_durable_subscription_goes_on_where_it_was(data: Path, filled: str) -> None:
    durable = ["sub", filled, "--durable", "audit", "--json"]
    assert payloads(skerry(data, *durable, "--from", "first", "--count", "2")) == ["one", "two"]
    assert payloads(skerry(data, *durable, "--count", "1")) == ["three"]
    assert payloads(skerry(data, *durable, "--count", "2")) == ["four", "five"]


def test_a_durable_subscription_remembers_what_came_while_it_was_away(
    data: Path, filled: str, tmp_path: Path
) -> None:
    durable = ["sub", filled, "--durable", "audit"]
    with running(data, tmp_path / "first", *durable, "--from", "5") as command:
        command.wait_line("five")
        assert command.stop(signal.SIGINT) == 0
    skerry(data, "pub", filled, "six")
    skerry(data, "pub", filled, "seven")
    with running(data, tmp_path / "second", *durable) as command:
        command.wait_line("seven")
        assert "six" in command.out
        assert command.stop(signal.SIGINT) == 0


def test_json_events_carry_everything(data: Path, topic: str) -> None:
    skerry(data, "pub", topic, stdin=b"\xff\x00binary\n")
    skerry(data, "pub", f"{topic}/a", "grüße", "--key", "k", "--header", "h=v", "--id", "i")
    first, second = skerry(data, "sub", topic, "--from", "first", "--count", "2", "--json").objects
    assert base64.b64decode(first["data_base64"]) == b"\xff\x00binary"
    assert "data" not in first
    datetime.fromisoformat(second.pop("time"))
    assert second == {
        "topic": f"{topic}/a",
        "index": 2,
        "key": "k",
        "headers": {"h": "v"},
        "id": "i",
        "data": "grüße",
    }


def test_payloads_cannot_harm_a_terminal(data: Path, topic: str) -> None:
    skerry(data, "pub", topic, "\x1b[2Jtwo\nlines")
    skerry(data, "pub", topic, stdin=b"\xff\xfe" * 50)
    text, binary = skerry(data, "read", topic).lines
    assert text.endswith(r"\x1b[2Jtwo\nlines")
    assert "<100 bytes: ff fe ff" in binary


def test_a_reader_that_has_seen_enough_ends_it_quietly(data: Path, topic: str) -> None:
    skerry(data, "pub", topic, stdin=b"a line of some length\n" * 20_000)
    for command in (["read", topic], ["sub", topic, "--from", "first"]):
        with subprocess.Popen(
            [SKERRY, *command],
            env=environment(data),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                assert b"a line" in process.stdout.readline()
                process.stdout.close()
                assert process.stderr.read() == b""
                assert process.wait(DEADLINE) == 0
            finally:
                process.kill()


# Reading


def test_get_prints_the_bytes_as_they_are(data: Path, topic: str) -> None:
    skerry(data, "pub", topic, stdin=b"\x00\xff no end")
    assert skerry(data, "get", topic, "1").raw == b"\x00\xff no end"
    assert skerry(data, "get", topic, "latest").raw == b"\x00\xff no end"


@pytest.mark.parametrize(("index", "code"), [("6", 3), ("0", 2), ("x", 2), ("-1", 2)])
def test_get_of_what_is_not_there_fails(data: Path, filled: str, index: str, code: int) -> None:
    result = skerry(data, "get", filled, "--", index)
    assert (result.code, result.out) == (code, "")


def test_get_latest_of_an_empty_topic_fails(data: Path, topic: str) -> None:
    assert skerry(data, "get", topic, "latest").code == 3


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([], ["one", "two", "three", "four", "five"]),
        (["--from", "2", "--to", "3"], ["two", "three"]),
        (["--from", "latest"], ["five"]),
        (["--from", "first", "--to", "latest"], ["one", "two", "three", "four", "five"]),
        (["--from", "1h", "--to", "2"], ["one", "two"]),
        (["--from", "2020-01-01", "--to", "2020-01-02"], []),
        (["--to", "2020-01-02"], []),
    ],
)
def test_read_prints_a_range(
    data: Path, filled: str, places: list[str], expected: list[str]
) -> None:
    result = skerry(data, "read", filled, *places, "--json")
    assert result.code == 0
    assert payloads(result) == expected


def test_read_by_time_ends_where_it_is_told_to(data: Path, topic: str) -> None:
    for payload in ("one", "two", "three"):
        skerry(data, "pub", topic, payload)
    second = datetime.fromisoformat(skerry(data, "get", topic, "2", "--json").json["time"])
    before = (second - timedelta(microseconds=1)).isoformat()
    result = skerry(data, "read", topic, "--from", before, "--to", second.isoformat(), "--json")
    assert payloads(result) == ["two"]


def test_read_for_people_has_one_line_an_event(data: Path, filled: str) -> None:
    lines = skerry(data, "read", filled).lines
    assert [line.split()[1:] for line in lines[:2]] == [["1", filled, "one"], ["2", filled, "two"]]


def test_read_of_an_empty_topic_prints_nothing(data: Path, topic: str) -> None:
    result = skerry(data, "read", topic)
    assert (result.code, result.out) == (0, "")


def test_read_backwards_is_refused(data: Path, filled: str) -> None:
    assert skerry(data, "read", filled, "--from", "3", "--to", "2").code == 2
