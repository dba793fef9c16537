"""`skerry archive` and `skerry sql` as real commands."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from skerry import Client, errors
from skerry.cli import archive
from skerry.cli.app import app
from skerry.testing import LocalSite
from tests.conftest import until
from tests.live.commandline import (
    SKERRY,
    Result,
    Running,
    Terminal,
    environment,
    running,
    skerry,
)
from tests.spark.test_archive_tables import TABLE, rows, written
from tests.spark.test_stream import fill

SMALL = ("--memory", "600m")


DEADLINE = 240.0
"""Seconds; starting Spark takes five, and a minute on a machine that does much else."""


async def command(site: LocalSite | None, *arguments: str, **more: str) -> Result:
    """Run a command beside the loop that the site lives in."""

    def work() -> Result:
        return Result(
            subprocess.run(
                [SKERRY, *arguments],
                env=environment(site.data if site else None, **more),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=DEADLINE,
                check=False,
            )
        )

    return await asyncio.to_thread(work)


async def line_of(running: Running, text: str) -> str:
    """Wait for a line of output with `text` in it; return it."""

    def found() -> list[str]:
        assert running.process.poll() is None, running.err
        return [line for line in running.out.splitlines() if text in line]

    await until(lambda: bool(found()), DEADLINE)
    return found()[0]


def made(folder: Path, table: Any = "delta", topics: str = "s/#") -> Path:
    """An archive without Spark: 40 events of s/a, 10 of s/b, around midnight."""
    from skerry.archive.folder import Archive
    from skerry.archive.table import open_table

    about = Archive.create(folder, topics, table, "binary")
    about.save()
    opened = open_table(about)
    opened.prepare(TABLE)
    opened.commit(0, written(folder, 0, rows("s/a", 81, 120)))
    opened.commit(1, written(folder, 1, rows("s/b", 95, 104, "x")))
    return folder


@pytest.mark.parametrize(
    "command", ["sql", *(f"archive {n}" for n in ("start", "status", "stop", "compact", "replay"))]
)
def test_help_of_each_command_shows_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert f"skerry {command}" in result.output.split("Example")[-1]


@pytest.mark.timeout(900)
async def test_an_archive_is_started_watched_queried_and_stopped(
    client: Client, site: LocalSite, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    start = ("archive", "start", "s/#", "--to", str(folder), "--trigger", "200ms", *SMALL)

    async def archived(count: int) -> Any:
        while True:
            found = (await command(site, "archive", "status", str(folder), "--json")).json
            if found["rows"] >= count:
                return found

    with running(site.data, tmp_path / "start", *start) as archiving:
        await line_of(archiving, f"archiving s/# to {folder} as delta, every")
        assert archiving.err == "no topic matches s/# yet; waiting for one\n"
        lock = folder / "_skerry" / "lock"
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600
        again = await command(site, *start)
        assert again.code == 9
        assert f"process {archiving.process.pid} archives into" in again.err
        await client.create_topic("s/a")
        await fill(client, "s/a", 0, 130)
        shown = await asyncio.wait_for(archived(130), DEADLINE)
        assert (shown["pid"], shown["rows"], shown["lag"]) == (archiving.process.pid, 130, 0)
        line = await line_of(archiving, "lag 0 events")
        assert "rows/s" in line
        stopped = await command(site, "archive", "stop", str(folder))
        assert (stopped.code, stopped.out) == (0, f"the archive in {folder} is stopped\n")
        assert archiving.process.wait(60) == 0
        assert "stopped: 130 rows in " in archiving.out
        assert archiving.err.count("\n") == 1
    await fill(client, "s/a", 130, 150)
    shown = (await command(site, "archive", "status", str(folder))).out
    assert "state   stopped" in shown
    assert shown.splitlines()[-1].split()[:4] == ["s/a", "130", "1", "130"]
    assert shown.splitlines()[-1].split()[-1] == "20"
    query = "select topic, count(*) AS n, sum(index) AS sum from s group by topic"
    found = await command(site, "sql", query, "--archive", str(folder), *SMALL)
    assert (found.code, found.err) == (0, "")
    assert [line.split() for line in found.lines] == [
        ["topic", "n", "sum"],
        ["s/a", "150", str(150 * 151 // 2)],
    ]


async def test_a_slice_is_replayed_once_with_keys_and_headers(
    client: Client, site: LocalSite, tmp_path: Path
) -> None:
    folder = str(await asyncio.to_thread(made, tmp_path / "archive"))
    await client.create_topic("r")
    replay = ("archive", "replay", folder, "--topic", "s/a", "--to", "r", "--speed", "max")
    slice = ("--from", "91", "--until", "2026-11-16T00:00:00Z", "--json")
    done = (await command(site, *replay, *slice)).json
    assert (done["events"], done["of"], done["added"]) == (10, 10, 10)
    assert (await command(site, *replay, *slice)).json["added"] == 0
    assert (await command(site, *replay, *slice, "--id", "second")).json["added"] == 10
    found = [event async for event in client.read("r", to_index=10)]
    assert [event.data for event in found] == [b"%d" % n for n in range(91, 101)]
    assert [event.key for event in found] == [f"k{n % 3}" for n in range(91, 101)]
    assert [event.headers for event in found[:2]] == [{"unit": "C"}, {}]
    done = await command(site, *replay[:4], "s", *replay[5:])
    assert done.out.startswith("50 events of 50 from s to r, 50 events new")
    names = {event.topic async for event in client.read("r")}
    assert names == {"r", "r/a", "r/b/x"}


async def test_a_replay_keeps_the_distances_and_shows_how_far_it_is(
    client: Client, site: LocalSite, tmp_path: Path
) -> None:
    folder = str(await asyncio.to_thread(made, tmp_path / "archive"))
    await client.create_topic("r")
    replay = ("archive", "replay", folder, "--topic", "s/a", "--to", "r")

    def watch() -> int:
        with Terminal(site.data, *replay, "--speed", "8") as terminal:
            terminal.wait_for("/40")
            return terminal.wait()

    assert await asyncio.to_thread(watch) == 0
    times = [event.time async for event in client.read("r")]
    assert len(times) == 40
    # 39 s at 8 times the speed: never faster, but for what the first one was late.
    assert (times[-1] - times[0]).total_seconds() > 3.9
    with running(site.data, tmp_path / "replay", *replay, "--id", "x") as slow:

        async def begun() -> None:
            while await client.latest_index("r") < 42:
                await asyncio.sleep(0.02)

        await asyncio.wait_for(begun(), 60)
        assert await asyncio.to_thread(slow.stop, signal.SIGINT) == 130
        assert " of 40 from s/a to r" in slow.out


async def test_small_files_are_merged(site: LocalSite, tmp_path: Path) -> None:
    folder = await asyncio.to_thread(made, tmp_path / "archive")
    done = await command(site, "archive", "compact", str(folder))
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("4 files of ")
    plain = await asyncio.to_thread(made, tmp_path / "plain", "parquet")
    refused = await command(site, "archive", "compact", str(plain), "--json")
    assert "plain parquet cannot be compacted" in refused.error["what"]
    refused = await command(site, "archive", "compact", str(folder), "--retention", "10m")
    assert "shorter than an hour" in refused.err


async def test_status_without_a_site_tells_what_is_held(tmp_path: Path) -> None:
    folder = await asyncio.to_thread(made, tmp_path / "archive", "parquet")
    shown = await command(None, "archive", "status", str(folder), SKERRY_DATA=str(tmp_path / "no"))
    assert shown.code == 0
    assert "the lag is not known: no site was ever started" in shown.err
    assert [line.split()[:4] for line in shown.lines[-2:]] == [
        ["s/a", "40", "81", "120"],
        ["s/b", "10", "95", "104"],
    ]


async def test_what_is_wrong_is_said_before_anything_is_written(
    client: Client, site: LocalSite, tmp_path: Path
) -> None:
    await client.create_topic("s/a")
    held = await asyncio.to_thread(made, tmp_path / "held")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").touch()
    new = str(tmp_path / "new")
    for code, why, arguments in [
        (2, "there is no format 'orc'", ["start", "s/#", "--to", new, "--format", "orc"]),
        (2, "something else", ["start", "s/#", "--to", str(tmp_path / "other")]),
        (2, "with topics s/#, not s/a", ["start", "s/a", "--to", str(held)]),
        (2, "with format delta", ["start", "s/#", "--to", str(held), "--format", "parquet"]),
        (3, "there is no topic nope", ["start", "nope", "--to", new]),
        (3, "no topic matches n/#", ["start", "n/#", "--to", new, "--once"]),
        (2, "need a schema", ["start", "s/#", "--to", new, "--payload", "json"]),
        (2, "payloads that are decoded", ["start", "s/#", "--to", new, "--schema", "a INT"]),
        (2, "'soon' is not a duration", ["start", "s/#", "--to", new, "--trigger", "soon"]),
        (9, "cannot be written", ["start", "s/#", "--to", "/proc/x"]),
        (9, "holds no archive", ["stop", new]),
        (9, "nothing archives into", ["stop", str(held)]),
        (9, "holds no archive", ["status", new]),
        (2, "holds no events of s/z", ["replay", str(held), "--topic", "s/z", "--to", "r"]),
        (3, "there is no topic r", ["replay", str(held), "--topic", "s/a", "--to", "r"]),
        (2, "'fast' is no speed", ["replay", str(held), "--topic", "s", "--to", "r", "--speed",
                                   "fast"]),
    ]:  # fmt: skip
        result = await command(site, "archive", *arguments, "--json")
        assert (result.code, why in result.error["what"]) == (code, True), result.err
        assert not (tmp_path / "new").exists()
    nothing = await command(site, "sql", "select 1")
    assert (nothing.code, "nothing to query" in nothing.err) == (2, True)
    nowhere = await command(site, "sql", "select 1", "--archive", new)
    assert nowhere.code == 9


async def test_without_java_nothing_is_written(
    client: Client, site: LocalSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_topic("s/a")

    def nowhere() -> None:
        raise errors.EngineMissing("Spark needs Java 17 or newer, and none was found")

    monkeypatch.setattr("skerry.spark.java.find_java", nowhere)
    with pytest.raises(errors.EngineMissing, match="Spark needs Java"):
        await asyncio.to_thread(
            lambda: archive.start("s/#", to=tmp_path / "new", connect=[str(site.data)])
        )
    assert not (tmp_path / "new").exists()


def test_the_lock_of_a_process_that_was_killed_is_nobodys(tmp_path: Path) -> None:
    folder = made(tmp_path / "archive")
    (folder / "_skerry" / "lock").write_text(json.dumps({"pid": os.getpid()}))
    result = skerry(tmp_path, "archive", "stop", str(folder))
    assert (result.code, "nothing archives" in result.err) == (9, True)
