"""`skerry feed`."""

from __future__ import annotations

import re
import signal
import subprocess
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.live.commandline import (
    fresh_topic,
    new_name,
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
def mark() -> str:
    """A value that no other test's feeds have."""
    return new_name()


def register(data: Path, *arguments: str) -> Any:
    result = skerry(data, "feed", "register", *arguments, "--json")
    assert result.code == 0, result.err
    return result.json


def listed(data: Path, mark: str) -> list[Any]:
    feeds: list[Any] = skerry(data, "feed", "list", f'mark = "{mark}"', "--json").json
    return feeds


def publish(data: Path, feed: Any, *payloads: str) -> None:
    for payload in payloads:
        assert skerry(data, "pub", feed["topic"], payload).code == 0


def test_a_registered_feed_stays_and_is_found_by_what_it_is(data: Path, mark: str) -> None:
    feed = register(data, f"mark={mark}", "Floor=4", 'Room="410"', 'Tags=["new", 7]', "Wet=false")
    assert feed["metadata"] == {
        "mark": mark, "Floor": 4, "Room": "410", "Tags": ["new", 7], "Wet": False
    }  # fmt: skip
    assert (feed["site"], feed["owner"], feed["permanent"]) == ("local", "cli", True)
    assert feed["topic"] == f"feeds/local/log/{feed['id']}"
    datetime.fromisoformat(feed["since"])
    assert listed(data, mark) == [feed]
    query = f'mark = "{mark}" and Floor > 3 and Room = "410" and Tags = 7 and Wet = false'
    assert [f["id"] for f in skerry(data, "feed", "list", query, "--json").json] == [feed["id"]]


def test_registering_says_how_to_publish(data: Path, mark: str) -> None:
    id = str(uuid.uuid4())
    result = skerry(data, "feed", "register", f"mark={mark}", "--id", id.upper())
    assert result.lines == [
        f"feed {id} is registered at site local",
        f"Publish to it with `skerry pub feeds/local/log/{id} DATA`.",
    ]


def test_registering_again_makes_a_feed_as_it_is_said(data: Path, mark: str) -> None:
    topic = fresh_topic(data)
    first = register(data, f"mark={mark}", "old=1")
    again = register(data, f"mark={mark}", "new=2", "--id", first["id"], "--topic", topic)
    assert (again["metadata"], again["topic"]) == ({"mark": mark, "new": 2}, topic)
    assert listed(data, mark) == [again]


def test_list_is_a_table_for_people(data: Path, mark: str) -> None:
    topic = fresh_topic(data)
    one = register(data, f"mark={mark}", "Room=410")
    two = register(data, f"mark={mark}", "--topic", topic)
    heading, *rows = skerry(data, "feed", "list", f'mark = "{mark}"').lines
    assert heading.split() == ["ID", "SITE", "TOPIC", "METADATA"]
    assert sorted(row.split() for row in rows) == sorted(
        [
            [one["id"], "local", "feeds/…", "Room=410", f'mark="{mark}"'],
            [two["id"], "local", topic, f'mark="{mark}"'],
        ]
    )
    assert one["id"] in skerry(data, "feed", "list").out


def test_a_list_without_feeds_says_so(data: Path) -> None:
    result = skerry(data, "feed", "list", 'mark = "nobody"')
    assert (result.code, result.out) == (0, "")
    assert "no feed matches" in result.err
    assert skerry(data, "feed", "list", 'mark = "nobody"', "--json").json == []


def test_set_changes_keys_and_takes_keys_away(data: Path, mark: str) -> None:
    feed = register(data, f"mark={mark}", "a=1", "b=2", "c=3")
    result = skerry(data, "feed", "set", feed["id"], "a=x y", "d=[1]", "--unset", "b", "--json")
    assert result.json["metadata"] == {"mark": mark, "a": "x y", "c": 3, "d": [1]}
    assert result.json["version"] == feed["version"] + 1
    assert listed(data, mark) == [result.json]
    shown = skerry(data, "feed", "set", feed["id"], "--unset", "a", "--unset", "d").out
    assert re.search(rf'^metadata +c=3  mark="{mark}"$', shown, re.MULTILINE)


def test_remove_removes_the_feed_and_leaves_its_events(data: Path, mark: str) -> None:
    feed = register(data, f"mark={mark}")
    publish(data, feed, "one")
    result = skerry(data, "feed", "remove", feed["id"])
    assert (result.code, result.out) == (0, f"feed {feed['id']} is removed; its events stay\n")
    assert listed(data, mark) == []
    assert [event["data"] for event in skerry(data, "read", feed["topic"], "--json").objects] == [
        "one"
    ]
    again = register(data, f"mark={mark}")
    assert skerry(data, "feed", "remove", again["id"], "--json").json == {"removed": again["id"]}


def test_only_the_owner_changes_a_feed(data: Path, mark: str) -> None:
    feed = register(data, f"mark={mark}", "--owner", "somebody")
    for arguments in (["set", feed["id"], "a=1"], ["remove", feed["id"]]):
        result = skerry(data, "feed", *arguments)
        assert result.code == 4
        assert "belongs to 'somebody', not to 'cli'" in result.err
        assert "--owner" in result.err
    assert skerry(data, "feed", "register", "--id", feed["id"]).code == 4
    assert skerry(data, "feed", "set", feed["id"], "a=1", "--owner", "somebody").code == 0
    assert skerry(data, "feed", "remove", feed["id"], "--owner", "somebody").code == 0


def test_a_held_feed_goes_with_its_command(data: Path, mark: str, tmp_path: Path) -> None:
    with running(data, tmp_path / "held", "feed", "register", f"mark={mark}", "--hold") as command:
        command.wait_line("Publish to it")
        (feed,) = listed(data, mark)
        assert not feed["permanent"]
        assert command.stop(signal.SIGINT) == 0
        assert command.err == ""
    assert listed(data, mark) == []


def test_a_held_feed_outlives_its_engine(data: Path, mark: str, tmp_path: Path) -> None:
    with running(data, tmp_path / "held", "feed", "register", f"mark={mark}", "--hold") as command:
        command.wait_line("Publish to it")
        killed = skerry(data, "status", "--json").json["engine_pid"]
        subprocess.run(["kill", "-9", str(killed)], check=True)
        wait_for(
            lambda: skerry(data, "status", "--json").json["engine_pid"] != killed, "a new engine"
        )
        (feed,) = listed(data, mark)
        assert skerry(data, "feed", "set", feed["id"], "moved=true").code == 0
        assert command.stop(signal.SIGINT) == 0
    wait_for(lambda: listed(data, mark) == [], "the end of the feed")


NOBODY = "6f1c1b8e-5f0a-4b6e-9a3d-0d5f3f1d2c11"


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (["feed", "register", "nothing"], 2, "BadSetting"),
        (["feed", "register", "a=1", "a=2"], 2, "BadSetting"),
        (["feed", "register", "skerry/x=1"], 2, "BadMetadata"),
        (["feed", "register", "a=[[1]]"], 2, "BadMetadata"),
        (["feed", "register", "a=1", "--id", "banana"], 2, "BadMetadata"),
        (["feed", "register", "a=1", "--owner", ""], 2, "BadSetting"),
        (["feed", "register", "a=1", "--topic", "nowhere"], 3, "UnknownTopic"),
        (["feed", "set", NOBODY], 2, "BadSetting"),
        (["feed", "set", NOBODY, "a=1", "--unset", "a"], 2, "BadSetting"),
        (["feed", "set", NOBODY, "a=1"], 3, "UnknownFeed"),
        (["feed", "set", "banana", "a=1"], 2, "BadMetadata"),
        (["feed", "remove", NOBODY], 3, "UnknownFeed"),
        (["feed", "list", "a ="], 2, "BadQuery"),
    ],
)
def test_errors_have_their_exit_code_and_a_next_step(
    data: Path, arguments: list[str], code: int, kind: str
) -> None:
    result = skerry(data, *arguments)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("error: ")
    assert "Traceback" not in result.err
    again = skerry(data, *arguments, "--json")
    assert (again.code, again.error["kind"]) == (code, kind)
    assert again.error["advice"]
