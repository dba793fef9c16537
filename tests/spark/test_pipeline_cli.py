"""`skerry pipeline` as a user runs it: real processes, a real engine, a real Spark."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from skerry.sync import SyncClient, connect
from tests.live import commandline
from tests.live.commandline import Terminal, running, shared_site, wait_for
from tests.live.commandline import skerry as command

PIPELINE = """
import skerry

@skerry.pipeline(source="a/#", sink="b", format="json", schema="n LONG")
def double(events):
    return events.selectExpr("cast(2 * n AS STRING) AS value")
"""
SMALL = (
    "--master", "local[1]", "--memory", "600m",
    "--conf", "spark.sql.shuffle.partitions=1",
    "--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)  # fmt: skip


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session takes long to start on a machine that is busy."""
    monkeypatch.setattr(commandline, "DEADLINE", 200.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder of a site."""
    yield from shared_site(tmp_path_factory)


@pytest.fixture
def client(data: Path) -> Iterator[SyncClient]:
    """Of a site with empty topics `a` and `b`."""
    with connect(data, user="admin") as client:
        for topic in ("a", "b"):
            client.create_topic(topic)
        yield client
        for topic in ("a", "b"):
            client.delete_topic(topic)


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A file with a pipeline."""
    file = tmp_path / "double.py"
    file.write_text(PIPELINE)
    return str(file)


def publish(client: SyncClient, *numbers: int) -> None:
    """Publish numbers to `a`."""
    for n in numbers:
        client.publish("a/x", json.dumps({"n": n}))


def written(client: SyncClient) -> list[int]:
    """What is in `b`."""
    return sorted(int(event.data) for event in client.read("b"))


def is_gone(pid: int) -> bool:
    """Whether a process has ended; somebody may still have to ask how."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def listed(data: Path, *more: str) -> dict[str, Any]:
    """The pipeline as `list` shows it."""
    done = command(data, "pipeline", "list", "--json", *more)
    assert done.code == 0, done.err
    found: dict[str, Any] = done.json[0]
    return found


@pytest.mark.long
@pytest.mark.timeout(600)
def test_run_goes_on_where_it_was(
    data: Path, client: SyncClient, file: str, tmp_path: Path
) -> None:
    state = ("--state", str(tmp_path / "state"))
    publish(client, 1, 2)
    with running(data, tmp_path / "run", "pipeline", "run", file, *state, *SMALL) as run:
        run.wait_line("pipeline double runs: a/# → b")
        assert "2 rows in" in run.wait_line("batch 0: ")
        publish(client, 3)
        line = run.wait_line("batch 1: 1 row in")
        assert "rows/s, lag 0 events, state 0 rows" in line
        taken = command(data, "pipeline", "run", file, *state)
        assert taken.code == 4
        assert "the pipeline double runs already" in taken.err
        assert run.stop(signal.SIGINT) == 0
        assert "pipeline double is stopped, 3 rows so far" in run.out
        assert run.err == ""
    publish(client, 4)
    done = command(data, "pipeline", "run", f"{file}:double", "--once", "--json", *state, *SMALL)
    assert done.code == 0, done.err
    first, *_, last = done.objects
    assert (first["state"], last["state"], last["rows"]) == ("running", "done", 4)
    assert last["topics"] == {"a": {"events": 0, "seconds": 0.0}}
    assert written(client) == [2, 4, 6, 8]
    with Terminal(data, "pipeline", "run", file, *state, *SMALL) as screen:
        screen.wait_for("waiting for events · Ctrl-C ends it")
        publish(client, 5)
        screen.wait_for("1 row in")
        screen.wait_for("0 events behind · 5 rows read")
        screen.process.send_signal(signal.SIGINT)
        assert screen.wait() == 0
        assert b"pipeline double is stopped, 5 rows so far" in screen.screen
    assert written(client) == [2, 4, 6, 8, 10]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_deployed_it_survives_its_own_death(
    data: Path, client: SyncClient, file: str, tmp_path: Path
) -> None:
    state = ("--state", str(tmp_path / "state"))
    publish(client, 1, 2)
    done = command(data, "pipeline", "deploy", file, *state, *SMALL)
    assert done.code == 0, done.err
    try:
        assert "pipeline double runs as process" in done.out
        Path(file).unlink()  # its copy runs
        wait_for(lambda: written(client) == [2, 4], "the first batch")
        wait_for(lambda: listed(data, *state)["status"]["rows"] == 2, "its figures")
        before = listed(data, *state)
        worker = before["status"]["pid"]
        assert worker != before["pid"]
        jvms = psutil.Process(worker).children(recursive=True)
        os.kill(worker, signal.SIGKILL)
        publish(client, 3)
        wait_for(lambda: written(client) == [2, 4, 6], "the batch after its death")
        psutil.wait_procs(jvms, timeout=60)
        assert not any(jvm.is_running() for jvm in jvms)
        wait_for(lambda: listed(data, *state)["status"]["rows"] == 3, "its figures")
        now = listed(data, *state)
        assert (now["state"], now["restarts"], now["pid"]) == ("running", 1, before["pid"])
        table = command(data, "pipeline", "list", *state).out
        assert table.split()[:4] == ["PIPELINE", "STATE", "PID", "ROWS"]
        log = command(data, "pipeline", "logs", "double", *state).out
        assert "was killed by signal 9; it is started anew in 1 s" in log
        again = command(data, "pipeline", "deploy", str(tmp_path / "state/double/code/double.py"),
                        *state)  # fmt: skip
        assert again.code == 4, again.err
    finally:
        stopped = command(data, "pipeline", "stop", "double", *state)
    assert stopped.code == 0, stopped.err
    assert "pipeline double is stopped after 3 rows" in stopped.out
    wait_for(lambda: is_gone(before["pid"]), "the end of its supervisor")
    assert listed(data, *state)["state"] == "stopped"
    modes = {
        file.name: file.stat().st_mode & 0o777
        for file in (tmp_path / "state" / "double").iterdir()
        if file.is_file()
    }
    assert set(modes) >= {"lock", "job.json", "shape.json", "status.json", "log", "spark.log"}
    assert set(modes.values()) == {0o600}
    (last,) = [json.loads(event.data) for event in client.read("pipelines/double")][-1:]
    assert (last["state"], last["rows"]) == ("stopped", 3)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_deploy_says_why_it_does_not_run(
    data: Path, client: SyncClient, file: str, tmp_path: Path
) -> None:
    state = ("--state", str(tmp_path / "state"))
    Path(file).write_text(PIPELINE.replace("AS value", "AS worth"))
    done = command(data, "pipeline", "deploy", file, *state, *SMALL)
    assert done.code == 2, done.err
    assert "the sink takes no column 'worth'" in done.err
    wait_for(lambda: listed(data, *state)["pid"] is None, "the end of its supervisor")
    found = listed(data, *state)
    assert (found["state"], found["restarts"]) == ("failed", 0)
