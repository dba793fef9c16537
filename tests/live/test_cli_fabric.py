"""The command line with several sites: a fabric begun, joined, used, moved within, and left."""

from __future__ import annotations

import base64
import json
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from skerry.cli.common import find_targets
from skerry.cli.joining import find_link_port
from skerry.config import DEFAULT_LINK_PORT
from skerry.fabric.join import Membership
from tests.live.commandline import (
    Running,
    Terminal,
    engines,
    new_name,
    shared_site,
    site_up,
    skerry,
    wait_for,
)


class Sites:
    """A hub that coordinates, and the sites that joined it; folders by name."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self.hub = folder / "hub"
        assert skerry(self.hub, "fabric", "init", "--name", "coast").code == 0
        self.up = self.start("hub", "--tier", "hub")

    def start(self, name: str, *options: str, **more: str) -> Running:
        """Run a site that takes links on a free port."""
        up = site_up(
            self.folder / name, self.folder / f"{name}.up",
            "--site", name, "--link-port", "0", *options, **more,
        )  # fmt: skip
        return self._stack.enter_context(up)

    def token(self) -> str:
        return skerry(self.hub, "fabric", "token").out.strip()

    def join(self, name: str) -> Path:
        """Have a new site join; return its data folder."""
        self.start(name, SKERRY_JOIN=self.token())
        wait_for(lambda: self.sees(name), f"site {name}")
        return self.folder / name

    def sees(self, name: str) -> bool:
        """Whether the hub sees site `name`."""
        return site_list(self.hub).get(name, {}).get("up") is True


def site_list(data: Path) -> dict[str, Any]:
    return {site["site"]: site for site in skerry(data, "sites", "--json").json}


def payloads(data: Path, topic: str) -> list[str]:
    return [event["data"] for event in skerry(data, "read", topic, "--json").objects]


def shown(data: Path, topic: str) -> Any:
    return skerry(data, "topic", "show", topic, "--json").json


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """A running fabric: `hub` and `farm`."""
    with ExitStack() as stack:
        sites = Sites(tmp_path_factory.mktemp("fabric"), stack)
        sites.join("farm")
        yield sites


@pytest.fixture
def hub(sites: Sites) -> Path:
    return sites.hub


@pytest.fixture
def farm(sites: Sites) -> Path:
    return sites.folder / "farm"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder of a running site that stands alone."""
    yield from shared_site(tmp_path_factory)


# The whole way


def test_a_fabric_from_its_beginning_to_a_site_that_leaves(tmp_path: Path) -> None:
    with ExitStack() as stack:
        sites = Sites(tmp_path, stack)
        hub, lab = sites.hub, sites.join("lab")
        assert list(site_list(lab)) == ["hub", "lab"]
        made = skerry(lab, "topic", "create", "orders", "--replicas", "1")
        assert "ready at site lab, with replicas at hub" in made.out
        assert skerry(lab, "pub", "orders", "one", "--ack", "quorum").out == "1\n"
        assert skerry(hub, "pub", "orders", "two").out == "2\n"
        wait_for(lambda: payloads(hub, "orders") == ["one", "two"], "both events at the hub")
        wait_for(lambda: payloads(lab, "orders") == ["one", "two"], "both events at the lab")
        moved = skerry(lab, "topic", "move", "orders", "--to", "hub")
        assert moved.out == "orders has its home at hub now, epoch 2, replicas at lab\n"
        assert skerry(lab, "pub", "orders", "three").out == "3\n"
        drained = skerry(hub, "site", "drain", "lab")
        assert "1 topic moved away" in drained.out
        assert site_list(hub)["lab"]["draining"] is True
        assert skerry(hub, "site", "remove", "lab", "--yes").code == 0
        assert list(site_list(hub)) == ["hub"]
        wait_for(lambda: skerry(hub, "links", "--json").json == [], "the end of the link")
        assert payloads(hub, "orders") == ["one", "two", "three"]


# Beginning and joining


def test_init_names_the_next_steps_and_no_secret(tmp_path: Path) -> None:
    data = tmp_path / "data"
    result = skerry(data, "fabric", "init", "--site", "port", "--name", "coast")
    assert result.code == 0
    assert f"skerry up --site port --tier hub --link-port {DEFAULT_LINK_PORT}" in result.out
    assert "skerry fabric token" in result.out
    membership = json.loads((data / "fabric.json").read_text())
    assert membership["secret"] not in result.out
    assert membership["name"] == "coast"


def test_init_takes_the_site_that_the_folder_has(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with site_up(data, tmp_path / "up", "--site", "harbour") as up:
        assert skerry(data, "topic", "create", "old").code == 0
        assert skerry(data, "pub", "old", "kept").code == 0
        up.stop()
    result = skerry(data, "fabric", "init", "--json")
    assert result.json["site"] == "harbour"
    with site_up(data, tmp_path / "again", "--site", "harbour", "--link-port", "0"):
        assert (shown(data, "old")["home"], shown(data, "old")["epoch"]) == ("harbour", 1)
        assert payloads(data, "old") == ["kept"]


def test_init_twice_is_refused(tmp_path: Path) -> None:
    assert skerry(tmp_path, "fabric", "init").code == 0
    before = (tmp_path / "fabric.json").read_bytes()
    result = skerry(tmp_path, "fabric", "init", "--json")
    assert result.code == 2
    assert "already part of the fabric" in result.error["what"]
    assert "skerry up" in result.error["advice"]
    assert (tmp_path / "fabric.json").read_bytes() == before


def test_init_of_a_running_site_is_refused(alone: Path) -> None:
    result = skerry(alone, "fabric", "init")
    assert result.code == 9
    assert "in use by process" in result.err
    assert not (alone / "fabric.json").exists()


@pytest.mark.parametrize("options", [["--site", "no spaces"], ["--name", ""], ["--name", "a\nb"]])
def test_init_refuses_names_that_are_none(tmp_path: Path, options: list[str]) -> None:
    data = tmp_path / "data"
    assert skerry(data, "fabric", "init", *options).code == 2
    assert not data.exists()


def test_a_token_is_all_that_is_printed(hub: Path, farm: Path) -> None:
    for data in (hub, farm):
        result = skerry(data, "fabric", "token", "--life", "5m")
        assert result.code == 0
        assert len(result.lines) == 1
        assert result.out.startswith("skerry1.")
        assert "only sites on that machine" in result.err
    as_json = skerry(hub, "fabric", "token", "--life", "1h30m", "--json").json
    assert as_json["life"] == 5400.0
    assert as_json["token"].startswith("skerry1.")


@pytest.mark.parametrize("life", ["0", "soon", "366d"])
def test_a_token_has_a_life_of_some_length(hub: Path, life: str) -> None:
    assert skerry(hub, "fabric", "token", "--life", life).code == 2


def test_a_token_needs_the_administrator(hub: Path) -> None:
    file = str(hub / "credentials" / "sdk.json")
    assert skerry(None, "fabric", "token", "--connect", file).code == 6


def mangled(token: str) -> list[tuple[str, int]]:
    """Tokens that are none, and the exit code that each deserves."""
    mark, _, body = token.partition(".")
    held = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    later = json.dumps({**held, "expires": held["expires"] + 1}).encode()
    forged = f"{mark}.{base64.urlsafe_b64encode(later).decode().rstrip('=')}"
    return [(token[:-9], 2), (token[1:], 2), ("", 2), (forged, 6)]


def test_a_mangled_token_is_refused(sites: Sites, tmp_path: Path) -> None:
    token, data = sites.token(), tmp_path / "data"
    for bad, code in mangled(token):
        options = ("--site", "lab", "--data", str(data), "--port", "0", "--join", bad)
        result = skerry(None, "up", *options)
        assert (result.code, result.out) == (code, ""), result.err
        assert "skerry fabric token" in result.err
        assert not (data / "fabric.json").exists()
        assert engines(data) == []
    assert "lab" not in site_list(sites.hub)


def test_a_token_works_once(sites: Sites, tmp_path: Path) -> None:
    file, data = tmp_path / "token", tmp_path / "data"
    file.write_text(sites.token() + "\n")
    options = ("--join-file", str(file))
    with site_up(data, tmp_path / "up", "--site", "once", *options) as up:
        assert "in the fabric coast, edge" in up.wait_line(" is up at ")
        other = ("--site", "twice", "--data", str(tmp_path / "other"), "--port", "0")
        result = skerry(None, "up", *other, "--join-file", "-", stdin=file.read_bytes())
        assert result.code == 6
        assert "was used by site once" in result.err
        up.stop()
    with site_up(data, tmp_path / "again", "--site", "once", *options):  # … and does no harm
        wait_for(lambda: sites.sees("once"), "the site's return")
    assert skerry(sites.hub, "site", "remove", "once", "--yes").code == 0
    assert file.read_text().strip() not in sites.up.out + sites.up.err


def test_a_name_is_given_once(sites: Sites, tmp_path: Path) -> None:
    options = ("--site", "farm", "--data", str(tmp_path), "--port", "0")
    result = skerry(None, "up", *options, SKERRY_JOIN=sites.token())
    assert result.code == 4
    assert "--site" in result.err


def test_the_token_of_another_fabric_is_refused(sites: Sites, tmp_path: Path) -> None:
    assert skerry(tmp_path, "fabric", "init", "--site", "other").code == 0
    options = ("--site", "other", "--port", "0", "--link-port", "0")
    result = skerry(tmp_path, "up", *options, SKERRY_JOIN=sites.token())
    assert result.code == 2
    assert "is part of the fabric 'skerry'" in result.err


def test_two_tokens_are_one_too_many(tmp_path: Path) -> None:
    result = skerry(tmp_path, "up", "--join-file", "token", SKERRY_JOIN="skerry1.x")
    assert result.code == 2
    assert "two join tokens" in result.err


def test_links_without_a_fabric_are_refused(tmp_path: Path) -> None:
    result = skerry(tmp_path, "up", "--port", "0", "--link-port", "0")
    assert result.code == 2
    assert "skerry fabric init" in result.err


def test_a_hub_that_coordinates_takes_links_by_itself(tmp_path: Path) -> None:
    known = Membership(id="i", name="n", coordination="hub")
    port, said = find_link_port("hub", "hub", None, known)
    assert port == DEFAULT_LINK_PORT
    assert f"taking links on port {port}" in said
    assert find_link_port("hub", "hub", 0, known)[0] == 0
    assert find_link_port("hub", "edge", None, known)[0] is None
    assert find_link_port("farm", "hub", None, known)[0] is None
    with ExitStack() as stack:
        sites = Sites(tmp_path, stack)
        where = sites.up.wait_line(" is up at ").partition("links on 127.0.0.1:")[2].split(",")[0]
        sites.up.stop()
        options = ("--site", "hub", "--tier", "hub")
        with site_up(sites.hub, tmp_path / "again", *options) as up:
            assert f"links on 127.0.0.1:{where}" in up.out


# Looking


def test_up_shows_the_fabric(sites: Sites) -> None:
    first = sites.up.out.splitlines()[0]
    assert "in the fabric coast, hub, coordinates" in first
    assert first.endswith("next: skerry fabric token")
    sites.up.wait_line("link to farm is up")


def test_up_shows_the_fabric_at_a_terminal(sites: Sites, tmp_path: Path) -> None:
    file, data = tmp_path / "token", tmp_path / "data"
    file.write_text(sites.token())
    arguments = ("up", "--site", "screen", "--port", "0", "--join-file", str(file))
    with Terminal(data, *arguments) as up:
        up.wait_for("fabric coast, edge · linked to 1 site (hub) · 0 homes · 0 copies")
        assert skerry(data, "topic", "create", "here").code == 0
        up.wait_for("· 1 home ·")
        up.process.send_signal(signal.SIGINT)
        assert up.wait() == 0
    assert skerry(sites.hub, "topic", "delete", "here", "--yes").code == 0
    assert skerry(sites.hub, "site", "remove", "screen", "--yes").code == 0


def test_sites_are_the_same_from_everywhere(hub: Path, farm: Path) -> None:
    for data in (hub, farm):
        rows = {row.split()[0]: row for row in skerry(data, "sites").lines[1:]}
        assert {"hub", "farm"} <= set(rows)
        assert "up, coordinates" in rows["hub"]
        known = site_list(data)
        assert (known["hub"]["tier"], known["farm"]["tier"]) == ("hub", "edge")
        assert known["farm"]["link"] in rows["farm"]


def test_links_name_the_peer(hub: Path, farm: Path) -> None:
    row = next(line.split() for line in skerry(farm, "links").lines if line.startswith("hub "))
    assert row[:3] == ["hub", "up", "farm"]
    link = next(link for link in skerry(hub, "links", "--json").json if link["peer"] == "farm")
    assert (link["site"], link["up"], link["dialer"]) == ("hub", True, "farm")
    assert link["in_bytes"] > 0


def test_rtt_shows_how_far_sites_are_apart(hub: Path, farm: Path) -> None:
    def is_known() -> bool:
        (pair,) = skerry(hub, "rtt", "farm", "hub", "--json").json
        return pair["estimate_ms"] is not None and pair["measured_ms"] is not None

    wait_for(is_known, "an estimate")
    for data in (hub, farm):
        (pair,) = skerry(data, "rtt", "hub", "farm", "--json").json
        assert (pair["site"], pair["peer"]) == ("farm", "hub")
        assert pair["error_ms"] > 0
        shown = dict(line.split(maxsplit=1) for line in skerry(data, "rtt", "farm", "hub").lines)
        assert shown["between"] == "farm and hub"
        assert re.fullmatch(r"\d[\d.]* ms ± \d[\d.]* ms", shown["estimate"])
        assert re.fullmatch(r"\d[\d.]* ms, by (farm|hub)", shown["measured"])
    table = skerry(farm, "rtt").lines
    assert table[0].split() == ["FROM", "TO", "ESTIMATE", "ERROR", "MEASURED", "BY"]
    assert all(line.startswith("farm ") for line in table[1:])
    assert any(line.split()[1] == "hub" for line in table[1:])
    assert skerry(farm, "rtt", "hub").lines[1].startswith("hub ")


def test_rtt_as_a_matrix(hub: Path, farm: Path) -> None:
    head, *rows = skerry(hub, "rtt", "--matrix").lines
    names = head.split()[1:]
    assert head.split()[0] == "ms"
    assert {"farm", "hub"} <= set(names)
    cells = {row.split()[0]: dict(zip(names, row.split()[1:], strict=True)) for row in rows}
    assert all(cells[name][name] == "·" for name in names)
    assert cells["farm"]["hub"] == cells["hub"]["farm"]
    assert len(skerry(hub, "rtt", "--matrix", "farm", "hub").lines) == 3
    pairs = skerry(hub, "rtt", "--matrix", "--json").json
    assert len(pairs) == len(names) * (len(names) - 1) // 2


def test_rtt_says_what_is_wrong_with_names(hub: Path, farm: Path) -> None:
    unknown = skerry(hub, "rtt", "farm", "nowhere", "--json")
    assert (unknown.code, unknown.error["kind"]) == (3, "UnknownSite")
    assert "farm" in unknown.error["advice"]
    assert skerry(hub, "rtt", "nowhere").code == 3
    twice = skerry(hub, "rtt", "farm", "farm", "--json")
    assert (twice.code, twice.error["kind"]) == (2, "BadSetting")


@pytest.mark.parametrize(
    "arguments",
    [
        ["sites"],
        ["links"],
        ["rtt"],
        ["rtt", "farm", "lab"],
        ["rtt", "--matrix"],
        ["fabric", "token"],
        ["site", "drain", "local"],
        ["site", "remove", "local", "--yes"],
        ["topic", "move", "a", "--to", "local"],
        ["topic", "move", "a", "b", "--to", "local"],
        ["topic", "create", "a", "--replicas", "1"],
    ],
)
def test_a_site_that_stands_alone_says_so(alone: Path, arguments: list[str]) -> None:
    result = skerry(alone, *arguments, "--json")
    assert result.code == 10
    assert result.error["kind"] == "NotInFabric"
    assert "skerry fabric init" in result.error["advice"]


def test_doctor_finds_a_fabric_healthy(hub: Path, farm: Path) -> None:
    for data in (hub, farm):
        result = skerry(data, "doctor", "--json")
        assert result.code == 0, result.out
        assert str(data / "fabric.json") not in result.out
    (farm / "fabric.json").chmod(0o644)
    result = skerry(farm, "doctor")
    (farm / "fabric.json").chmod(0o600)
    assert result.code == 1
    assert "fabric.json" in result.out


# Connecting to several sites


def test_a_command_goes_to_a_site_that_is_there(farm: Path, tmp_path: Path) -> None:
    known = json.loads((farm / "credentials" / "sdk.json").read_text())
    away = tmp_path / "away.json"
    with socket.socket() as bound:  # nobody listens: connections are refused
        bound.bind(("127.0.0.1", 0))
        away.write_text(json.dumps({**known, "site": "gone", "port": bound.getsockname()[1]}))
        away.chmod(0o600)
        one_by_one = skerry(None, "status", "--connect", str(away), "--connect", str(farm))
        at_once = skerry(None, "status", "--connect", f"{away},{farm}")
        by_variable = skerry(None, "status", SKERRY_CONNECT=f"{away}, {farm}")
        doctor = skerry(None, "doctor", "--connect", f"{away},{farm}", "--timeout", "0.3")
    for result in (one_by_one, at_once, by_variable):
        assert result.code == 0, result.err
        assert result.lines[0].split() == ["site", "farm"]
    assert doctor.code == 1, "the one that is away is a problem"
    assert "site farm at" in doctor.out


def test_a_comma_may_be_part_of_a_path_or_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "a,b"
    odd.mkdir()
    url = "nats://me:pa,ss@here:4222"
    assert find_targets([str(odd)]) == [str(odd)]
    assert find_targets([url]) == [url]
    assert find_targets([f"{tmp_path},{url}", str(odd)]) == [f"{tmp_path},{url}", str(odd)]
    assert find_targets([f"{tmp_path},nats://here"]) == [str(tmp_path), "nats://here"]
    assert find_targets(["no/such,folder"]) == ["no/such,folder"]
    monkeypatch.setenv("SKERRY_CONNECT", f"nats://a,{tmp_path}")
    assert find_targets(None) == ["nats://a", str(tmp_path)]
    monkeypatch.delenv("SKERRY_CONNECT")
    assert find_targets(None) == []


# Topics


def test_a_topic_is_put_where_it_is_wished(hub: Path, farm: Path) -> None:
    name = new_name()
    made = skerry(hub, "topic", "create", name, "--home", "farm,hub", "--replicas", "1", "--json")
    assert (made.json["home"], made.json["replicas"]) == ("farm", ["hub"])
    assert made.json["settings"]["prefer"] == ["farm", "hub"]
    lines = skerry(farm, "topic", "list").lines
    assert lines[0].split()[:4] == ["TOPIC", "HOME", "EPOCH", "REPLICAS"]
    assert next(line.split() for line in lines if line.startswith(f"{name} "))[1:4] == [
        "farm", "1", "hub",
    ]  # fmt: skip
    told = dict(line.split(maxsplit=1) for line in skerry(farm, "topic", "show", name).lines)
    assert (told["home"], told["epoch"], told["replicas"]) == (
        "farm (preferred: farm, hub)", "1", "hub",
    )  # fmt: skip


def test_set_changes_what_a_topic_wishes(hub: Path) -> None:
    name = new_name()
    assert skerry(hub, "topic", "create", name).code == 0
    options = ["--home", "farm", "--home", "hub", "--ack", "quorum", "--on-partition", "continue"]
    changed = skerry(hub, "topic", "set", name, *options, "--replicas", "1", "--spread", "farm")
    assert changed.code == 0, changed.err
    found = shown(hub, name)
    assert found["replicas"] == ["farm"]
    wishes = {
        "prefer": ["farm", "hub"], "ack": "quorum", "on_partition": "continue", "replicas": 1,
        "spread": "farm",
    }  # fmt: skip
    assert wishes.items() <= found["settings"].items()
    lifted = skerry(hub, "topic", "set", name, "--home", "none", "--json").json
    assert lifted["settings"]["prefer"] == []


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--home", "nowhere"], 3),
        (["--replicas", "1", "--spread", "nowhere"], 3),
        (["--replicas", "6"], 2),
        (["--replicas", "7"], 2),
        (["--spread", "farm"], 2),
        (["--ack", "some"], 2),
        (["--on-partition", "panic"], 2),
    ],
)
def test_a_topic_that_cannot_be_placed_is_not_made(
    hub: Path, options: list[str], code: int
) -> None:
    name = new_name()
    result = skerry(hub, "topic", "create", name, *options)
    assert (result.code, result.out) == (code, "")
    assert len(result.err.splitlines()) == 2, "what happened, and what to do"
    assert skerry(hub, "topic", "show", name).code == 3


def test_pub_waits_for_what_it_is_told_to(hub: Path, farm: Path) -> None:
    name = new_name()
    assert skerry(hub, "topic", "create", name, "--replicas", "1").code == 0
    assert skerry(farm, "pub", name, "a", "--ack", "quorum").out == "1\n"
    assert skerry(farm, "pub", name, "b", "--ack", "home").out == "2\n"
    assert skerry(farm, "pub", name, "c", "--ack", "outbox").out == "-\n"
    wait_for(lambda: payloads(hub, name) == ["a", "b", "c"], "what the outbox held")
    lines = skerry(farm, "pub", name, "--ack", "outbox", stdin=b"d\ne\n")
    assert lines.out.startswith(f"2 events to {name}, kept in this site's outbox")
    wait_for(lambda: payloads(hub, name) == ["a", "b", "c", "d", "e"], "what the outbox held")
    as_json = skerry(farm, "pub", name, "f", "--ack", "outbox", "--json").json
    assert as_json == {"topic": name, "index": None}
    assert skerry(farm, "pub", name, "x", "--ack", "some").code == 2


# Moves


def test_move_gives_a_topic_another_home(hub: Path, farm: Path) -> None:
    name = new_name()
    assert skerry(hub, "topic", "create", name).code == 0
    assert skerry(hub, "pub", name, "before").out == "1\n"
    result = skerry(farm, "topic", "move", name, "--to", "farm", "--replicas", "hub", "--json")
    moved = result.json["moved"][0]
    assert (moved["home"], moved["replicas"], moved["epoch"]) == ("farm", ["hub"], 2)
    assert skerry(hub, "pub", name, "behind").out == "2\n"
    wait_for(lambda: payloads(hub, name) == ["before", "behind"], "both events")
    result = skerry(farm, "topic", "move", name, "--to", "farm", "--replicas", "none")
    assert result.out == f"{name} has its home at farm now, epoch 3\n"


def test_one_topic_that_cannot_be_moved_keeps_no_other_back(hub: Path) -> None:
    names = [new_name() for _ in range(4)]
    for name in names:
        assert skerry(hub, "topic", "create", name).code == 0
    result = skerry(hub, "topic", "move", *names[:2], "nope", *names[2:], "--to", "farm")
    assert result.code == 3
    assert result.out == "4 topics moved to farm\n"
    assert result.err.splitlines()[0] == "not moved: 1 topic"
    assert "there is no topic nope" in result.err
    assert {shown(hub, name)["home"] for name in names} == {"farm"}
    options = ("--to", "hub", "--replicas", "farm", "--at-once", "2", "--json")
    again = skerry(hub, "topic", "move", "nope", *names, *options)
    assert again.code == 3
    assert [topic["replicas"] for topic in again.json["moved"]] == [["farm"]] * 4
    assert [(fault["topic"], fault["kind"]) for fault in again.json["failed"]] == [
        ("nope", "UnknownTopic")
    ]


def test_many_moves_show_how_far_they_are(hub: Path) -> None:
    names = [new_name() for _ in range(3)]
    for name in names:
        assert skerry(hub, "topic", "create", name).code == 0
    with Terminal(hub, "topic", "move", *names, "--to", "farm") as move:
        move.wait_for("0/3")
        move.wait_for("3 topics moved to farm")
        assert move.wait() == 0


@pytest.mark.parametrize(
    ("options", "code", "what"),
    [
        (["--to", "nowhere"], 3, "There are: "),
        (["--to", "farm", "--replicas", "nowhere"], 3, "There are: "),
        (["--to", "farm", "--at-once", "0"], 2, "--help"),
        ([], 2, "--to"),
    ],
)
def test_a_move_to_nowhere_is_refused(hub: Path, options: list[str], code: int, what: str) -> None:
    name = new_name()
    assert skerry(hub, "topic", "create", name).code == 0
    result = skerry(hub, "topic", "move", name, *options)
    assert (result.code, result.out) == (code, "")
    assert what in result.err
    topic = shown(hub, name)
    assert (topic["home"], topic["epoch"]) == ("hub", 1)


def test_a_move_needs_the_administrator(hub: Path) -> None:
    name = new_name()
    assert skerry(hub, "topic", "create", name).code == 0
    file = str(hub / "credentials" / "sdk.json")
    assert skerry(None, "topic", "move", name, "--to", "farm", "--connect", file).code == 6


# Leaving


@pytest.mark.parametrize("command", ["drain", "remove"])
def test_only_other_sites_of_the_fabric_can_leave(hub: Path, command: str) -> None:
    more = ["--yes"] if command == "remove" else []
    unknown = skerry(hub, "site", command, "nowhere", *more)
    assert unknown.code == 3
    assert "There are: " in unknown.err
    assert skerry(hub, "site", command, "hub", *more).code == 2
    assert site_list(hub)["hub"]["draining"] is False


def test_remove_wants_to_be_confirmed_and_a_site_without_topics(sites: Sites) -> None:
    hub, name = sites.hub, new_name()
    pier = sites.join("pier")
    assert skerry(pier, "topic", "create", name).code == 0
    assert skerry(pier, "pub", name, "kept").out == "1\n"
    unasked = skerry(hub, "site", "remove", "pier")
    assert unasked.code == 2
    assert "--yes" in unasked.err
    refused = skerry(hub, "site", "remove", "pier", "--yes")
    assert refused.code == 10
    assert "skerry site drain pier" in refused.err
    with Terminal(hub, "site", "remove", "pier") as asked:
        asked.wait_for("[y/N]")
        asked.type("n\n")
        asked.wait_for("nothing was removed")
        assert asked.wait() == 1
    drained = skerry(hub, "site", "drain", "pier", "--json").json
    assert drained == {"site": "pier", "moved": [name], "lacking_replicas": []}
    assert shown(hub, name)["home"] != "pier"
    late = skerry(hub, "topic", "move", name, "--to", "pier")
    assert late.code == 10
    assert skerry(hub, "site", "remove", "pier", "--yes", "--json").json == {"removed": "pier"}
    assert "pier" not in site_list(hub)
    assert payloads(hub, name) == ["kept"]
