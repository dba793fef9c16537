"""`skerry up` and `skerry doctor`."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skerry.engine.process import free_port
from tests.live.commandline import (
    DEADLINE,
    SKERRY,
    Result,
    engines,
    environment,
    running,
    shared_site,
    site_up,
    skerry,
    wait_for,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder of a running site."""
    yield from shared_site(tmp_path_factory)


# Running a site


def test_up_says_where_it_is_and_what_to_do_next(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with site_up(data, tmp_path / "up", "--site", "harbour") as up:
        first = up.out.splitlines()[0]
        status = skerry(data, "status", "--json").json
        assert "site harbour is up at " in first
        assert status["address"] in first
        assert str(data) in first
        assert "skerry topic create sensors" in first
        assert status["agent_pid"] == up.process.pid


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_up_stops_in_order_when_asked_to(tmp_path: Path, number: int) -> None:
    data = tmp_path / "data"
    with site_up(data, tmp_path / "up") as up:
        assert len(engines(data)) == 1
        assert up.stop(number) == 0
        assert engines(data) == []
        assert up.out.splitlines()[-1].endswith("site local is stopped")
        assert up.err == ""


def test_up_stopped_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(data, tmp_path / "up", "up", "--port", "0") as up:
        wait_for(lambda: engines(data), "the engine")
        assert up.stop() == 0
        assert engines(data) == []


def test_a_second_up_on_the_folder_names_the_first(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with site_up(data, tmp_path / "up") as up:
        result = skerry(None, "up", "--data", str(data), "--port", "0")
        assert result.code == 9
        assert f"in use by process {up.process.pid}" in result.err


def test_a_killed_up_leaves_no_engine_and_a_usable_folder(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with site_up(data, tmp_path / "first") as up:
        skerry(data, "topic", "create", "sensors")
        skerry(data, "pub", "sensors", "kept")
        assert up.stop(signal.SIGKILL) == -signal.SIGKILL
        wait_for(lambda: not engines(data), "the end of the engine")
    with site_up(data, tmp_path / "second"):
        assert skerry(data, "get", "sensors", "1").out == "kept"


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = skerry(None, "up", "--data", str(tmp_path / "data"), "--port", port)
    assert result.code == 8
    assert f"127.0.0.1:{port}" in result.err
    assert "--port" in result.err


def test_a_first_start_that_fails_leaves_the_folder_to_any_site(tmp_path: Path) -> None:
    """Because of a port that is taken, or a fabric that cannot be reached."""
    data = tmp_path / "data"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert skerry(None, "up", "--data", str(data), "--port", port).code == 8
        assert not (data / "site.json").exists()
        options = ("--site", "barn", "--port", "0", "--mqtt-port", port)
        assert skerry(None, "up", "--data", str(data), *options).code == 8
    with site_up(data, tmp_path / "up", "--site", "farm") as up:
        assert up.stop() == 0
    assert skerry(None, "up", "--data", str(data), "--site", "barn", "--port", "0").code == 2
    assert json.loads((data / "site.json").read_text())["site"] == "farm"


def test_a_later_start_that_fails_leaves_the_folder_to_its_site(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with site_up(data, tmp_path / "up", "--site", "farm") as up:
        assert up.stop() == 0
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert skerry(None, "up", "--data", str(data), "--port", port).code == 8
    assert json.loads((data / "site.json").read_text())["site"] == "farm"
    assert json.loads((data / "settings.json").read_text())["port"] == 0


def test_a_site_starts_again_as_it_was_with_its_folder_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    ports = [free_port("127.0.0.1") for _ in range(3)]
    options = ["--site", "farm", "--port", str(ports[0]), "--mqtt-port", str(ports[1])]
    options += ["--durability", "power", "--max-store", "1GB"]
    shown = ("site", "address", "mqtt_port", "websocket_port", "durability")

    def started(*options: str) -> dict[str, Any]:
        with running(data, tmp_path / "up", "up", "--data", str(data), *options) as up:
            up.wait_line(" is up at ")
            found = skerry(data, "status", "--json").json
            assert up.stop() == 0
        return {name: found[name] for name in shown}

    first = started(*options)
    assert first["mqtt_port"] == ports[1]
    assert stat.S_IMODE((data / "settings.json").stat().st_mode) == 0o600
    assert json.loads((data / "engine.json").read_text())["jetstream"]["max_file_store"] == 10**9
    assert started() == first
    assert json.loads((data / "engine.json").read_text())["jetstream"]["max_file_store"] == 10**9
    changed = {**first, "mqtt_port": None, "websocket_port": ports[2]}
    assert started("--no-mqtt", "--websocket-port", str(ports[2]), "--max-store", "none") == changed
    assert started() == changed
    assert "max_file_store" not in json.loads((data / "engine.json").read_text())["jetstream"]


def test_a_settings_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for text in ("{", '{"port": "many"}', '{"colour": "red"}'):
        (tmp_path / "settings.json").write_text(text)
        result = skerry(None, "up", "--data", str(tmp_path))
        assert result.code == 9
        assert "settings.json" in result.err


@pytest.mark.parametrize(
    "options",
    [
        ["--host", "0.0.0.0"],
        ["--max-store", "lots"],
        ["--site", "no spaces"],
        ["--durability", "some"],
        ["--tls-cert", "/no/such/file", "--tls-key", "/no/such/file"],
    ],
)
def test_up_refuses_settings_that_make_no_sense(tmp_path: Path, options: list[str]) -> None:
    result = skerry(None, "up", "--data", str(tmp_path / "data"), "--port", "0", *options)
    assert result.code == 2
    assert result.err.startswith("error: ")


def test_up_listens_for_mqtt_and_websockets_when_asked_to(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with site_up(data, tmp_path / "up", "--mqtt-port", "0", "--websocket-port", "0") as up:
        status = skerry(data, "status", "--json").json
        first = up.out.splitlines()[0]
        assert f"mqtt://127.0.0.1:{status['mqtt_port']}" in first
        assert f"ws://127.0.0.1:{status['websocket_port']}" in first
        for port in (status["mqtt_port"], status["websocket_port"]):
            socket.create_connection(("127.0.0.1", port), DEADLINE).close()


def test_up_tells_that_its_engine_died_and_is_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with site_up(data, tmp_path / "up") as up:
        engines(data)[0].kill()
        up.wait_line("the engine was started anew; 1 restart so far")
        assert skerry(data, "status", "--json").json["restarts"] == 1
        result = skerry(data, "doctor", "--json")
        assert result.code == 0
        states = {finding["subject"]: finding["state"] for finding in result.json["findings"]}
        assert states["restarts"] == "warning"


def test_up_can_use_an_engine_of_the_users_own(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    engine = subprocess.Popen(
        [
            Path(sys.executable).parent / "nats-server", "-js", "-a", "127.0.0.1",
            "-p", str(port), "-sd", tmp_path / "store", "--user", "u", "--pass", "hush",
        ],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        with (tmp_path / "log").open("wb") as log:
            up = subprocess.Popen(
                [SKERRY, "up"],
                env=environment(data, SKERRY_ENGINE=f"nats://u:hush@127.0.0.1:{port}"),
                stdout=log,
                stderr=log,
            )
        try:
            output = tmp_path / "log"
            wait_for(lambda: "is up at" in output.read_text() or up.poll(), "the site")
            assert f"is up at nats://127.0.0.1:{port}" in output.read_text()
            assert "hush" not in output.read_text()
            assert skerry(data, "topic", "create", "sensors").code == 0
            assert skerry(data, "pub", "sensors", "x").out == "1\n"
            assert "run by somebody else" in skerry(data, "status").out
            up.terminate()
            assert up.wait(DEADLINE) == 0
            assert engine.poll() is None
        finally:
            up.kill()
            up.wait(DEADLINE)
    finally:
        engine.kill()
        engine.wait(DEADLINE)


def test_up_shows_a_status_line_at_a_terminal(tmp_path: Path) -> None:
    data = tmp_path / "data"
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [SKERRY, "up", "--port", "0"],
            env=environment(data, TERM="xterm"),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        screen = b""

        def shows(text: str) -> bool:
            nonlocal screen
            if select.select([ours], [], [], 0.05)[0]:
                screen += os.read(ours, 65536)
            return text.encode() in screen

        try:
            wait_for(lambda: shows("0 topics"), "the status line")
            skerry(data, "topic", "create", "sensors")
            wait_for(lambda: shows("1 topic"), "the topic in the status line")
            assert b"restarts" in screen
            assert str(data).encode() in screen
            process.send_signal(signal.SIGINT)
            wait_for(lambda: shows("site local is stopped"), "the end")
            assert process.wait(DEADLINE) == 0
        finally:
            process.kill()
            process.wait(DEADLINE)
    finally:
        os.close(ours)
        os.close(theirs)


# Doctor


def findings(result: Result) -> dict[str, Any]:
    return {finding["subject"]: finding for finding in result.json["findings"]}


def test_doctor_finds_a_healthy_site_healthy(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with site_up(data, tmp_path / "up"):
        result, as_json = skerry(data, "doctor"), skerry(data, "doctor", "--json")
    assert result.code == 0, result.out
    assert result.lines[-1] == "no problems, no warnings"
    assert all(line.startswith("ok ") for line in result.lines[:-1])
    assert as_json.json["healthy"] is True
    assert {"python", "engine", "disk", "credentials", "site", "durability"} <= set(
        findings(as_json)
    )


def test_doctor_finds_that_no_site_was_ever_started(tmp_path: Path) -> None:
    result = skerry(tmp_path / "none", "doctor")
    assert result.code == 1
    assert "skerry up" in result.out
    assert not (tmp_path / "none").exists()


def test_doctor_finds_a_stopped_site_and_changes_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with site_up(data, tmp_path / "up") as up:
        up.stop()
    before = snapshot(data)
    result = skerry(data, "doctor", "--json")
    assert result.code == 1
    assert findings(result)["process"]["state"] == "problem"
    assert str(data) in findings(result)["process"]["advice"]
    assert snapshot(data) == before


def snapshot(folder: Path) -> dict[Path, tuple[int, int, bytes]]:
    """Everything in a folder: modes, times, contents."""
    return {
        path: (
            path.stat().st_mode,
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [folder, *folder.rglob("*")]
    }


def test_doctor_finds_credentials_that_others_can_read(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with site_up(data, tmp_path / "up"):
        (data / "credentials" / "sdk.json").chmod(0o644)
        result = skerry(data, "doctor")
        assert result.code == 1
        assert "chmod 600" in result.out
        assert findings(skerry(data, "doctor", "--json"))["credentials"]["state"] == "problem"


def test_doctor_finds_what_the_engine_complained_of(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with site_up(data, tmp_path / "up"):
        with (data / "engine.log").open("a") as log:
            log.write("[1] 2026/11/15 08:00:00.000000 [WRN] Something is odd\n")
        result = skerry(data, "doctor", "--json")
        assert result.code == 0
        finding = findings(result)["engine log"]
        assert finding["state"] == "warning"
        assert "Something is odd" in finding["what"]


def test_doctor_finds_a_folder_of_the_future(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with site_up(data, tmp_path / "up") as up:
        up.stop()
    described = json.loads((data / "site.json").read_text())
    (data / "site.json").write_text(json.dumps({**described, "format": 99}))
    result = skerry(data, "doctor", "--json")
    assert result.code == 1
    assert findings(result)["site file"]["state"] == "problem"


def test_doctor_finds_a_missing_engine(data: Path) -> None:
    result = skerry(data, "doctor", "--json", SKERRY_NATS_SERVER="/no/such/file")
    assert result.code == 1
    assert findings(result)["engine"]["state"] == "problem"


def test_doctor_looks_at_a_site_by_its_address_alone(data: Path) -> None:
    file = data / "credentials" / "sdk.json"
    assert skerry(None, "doctor", "--connect", str(file)).code == 0
    address = json.loads(file.read_text())
    url = f"nats://{address['user']}:{address['password']}@{address['host']}:{address['port']}"
    result = skerry(None, "doctor", SKERRY_CONNECT=url)
    assert result.code == 0
    assert address["password"] not in result.out + result.err
