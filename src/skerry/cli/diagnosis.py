"""The checks of `skerry doctor`. Each looks, and changes nothing."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shlex
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from skerry.cli.common import Targets, connected, find_targets, run
from skerry.cli.output import count
from skerry.config import default_data
from skerry.engine.binary import find_binary, parse_version, show_version
from skerry.errors import SkerryError, Unavailable
from skerry.model.control import SiteStatus
from skerry.model.names import strays_of
from skerry.model.quantities import show_duration, show_size

MIN_PYTHON = (3, 11)
LITTLE_SPACE = 1_000_000_000
"""Bytes of free disk below which to warn: a busy topic writes that in minutes."""
NO_SPACE = 100_000_000
"""Bytes of free disk below which the engine may fail at any moment."""
LOG_READ = 64 * 1024
"""Bytes of the engine's log, from its end, that are looked at."""
HARMLESS = ("Plaintext passwords", "TLS leafnode handshake error: EOF")
"""What the engine warns of and need not: that it knows passwords, which its file holds anyway, and
that somebody hung up, as sites do that measure how far away this one is."""
REFUSED = re.compile(r'Publish Violation .*Subject "([^"]*)"')
"""The engine's line for an event that its publisher may not send there."""
ROUND_TRIPS = 5

State = Literal["ok", "warning", "problem"]


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    subject: str
    state: State
    what: str
    advice: str = ""


def examine(given: Targets, timeout: float) -> list[Finding]:
    """Look at everything that the sites, as `--connect` takes them, let us see."""
    places = find_targets(given) or [str(default_data())]
    findings = [check_python(), check_binary(any(_is_folder(place) for place in places))]
    for place in places:
        findings += examine_site(place, timeout)
    return findings


def _is_folder(place: str) -> bool:
    return "://" not in place and not Path(place).expanduser().is_file()


def examine_site(place: str, timeout: float) -> list[Finding]:
    """Look at one site."""
    folder = None if "://" in place else Path(place).expanduser()
    findings: list[Finding] = []
    running = True
    if folder is not None and folder.is_file():
        findings += check_modes([folder])
    elif folder is not None:
        findings += check_folder(folder)
        if not folder.is_dir():
            return findings
        holder = check_holder(folder)
        running = holder.state == "ok"
        findings += [holder, *check_modes(secret_files(folder))]
    if running:
        findings += run(check_site([place], timeout))
    if folder is not None and folder.is_dir():
        findings += check_log(folder / "engine.log")
    return findings


def check_python() -> Finding:
    """Python is new enough."""
    version = platform.python_version()
    if sys.version_info < MIN_PYTHON:
        return Finding(
            "python", "problem", f"Python {version} is too old", "Install Python 3.11 or newer."
        )
    return Finding("python", "ok", f"Python {version}")


def check_binary(needed: bool) -> Finding:
    """There is an engine to run; where only a client runs, its absence is no problem."""
    try:
        path, version = find_binary()
    except SkerryError as error:
        return Finding("engine", "problem" if needed else "warning", error.what, error.advice)
    return Finding("engine", "ok", f"nats-server {show_version(version)}, {path}")


def check_folder(folder: Path) -> Iterator[Finding]:
    """The data folder is there, ours, roomy, and of a format that we know."""
    if not folder.is_dir():
        yield Finding(
            "data folder",
            "problem",
            f"there is no {folder}: no site was ever started here",
            "Start one with `skerry up`, or name one with --connect.",
        )
        return
    if os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("data folder", "ok", str(folder))
    else:
        yield Finding(
            "data folder", "problem", f"{folder} cannot be written by this user",
            "Change its owner or permissions, or run as the user that it belongs to.",
        )  # fmt: skip
    free = shutil.disk_usage(folder).free
    state: State = "ok" if free >= LITTLE_SPACE else "warning" if free >= NO_SPACE else "problem"
    advice = "" if state == "ok" else "Free some, or limit topics with `skerry topic set`."
    yield Finding("disk", state, f"{show_size(free)} free", advice)
    yield check_site_file(folder / "site.json")


def check_site_file(file: Path) -> Finding:
    """`site.json` can be read and is not from the future."""
    from skerry.engine.folder import FORMAT, SiteFile

    try:
        found = msgspec.json.decode(file.read_bytes(), type=SiteFile)
    except FileNotFoundError:
        return Finding(
            "site file", "problem", f"{file} is missing: no site was ever started here",
            "Start one with `skerry up`; if the folder holds topics, restore it from a backup.",
        )  # fmt: skip
    except (OSError, msgspec.DecodeError) as error:
        return Finding(
            "site file", "problem", f"{file} cannot be read: {error}", "Restore it from a backup."
        )
    what = f"site {found.site}, format {found.format}, last run by nats-server {found.engine}"
    if found.format > FORMAT:
        return Finding(
            "site file", "problem", f"{what}: it is of a newer Skerry", "Upgrade Skerry."
        )
    if found.format < FORMAT:
        return Finding(
            "site file", "problem", f"{what}: it is of an older Skerry",
            "Start with another --data folder; the older Skerry still reads this one.",
        )  # fmt: skip
    return Finding("site file", "ok", what)


def check_holder(folder: Path) -> Finding:
    """A site runs in the folder: the process that its lock names is alive."""
    from skerry.engine.folder import lock_holder

    holder = lock_holder(folder)
    pid, engine = holder.get("pid"), holder.get("engine")
    if is_alive(pid, holder):
        return Finding("process", "ok", f"process {pid} runs site {holder.get('site')}")
    start = f"Start it with `skerry up --data {shlex.quote(str(folder))}`."
    if is_alive(engine, holder):
        return Finding(
            "process", "problem",
            f"process {pid} is gone, and its engine, process {engine}, is not",
            f"{start} That ends the old engine.",
        )  # fmt: skip
    gone = f" (process {pid} is gone)" if pid else ""
    return Finding("process", "problem", f"no site runs here{gone}", start)


def is_alive(pid: object, holder: dict[str, Any]) -> bool:
    """Whether `pid` still is the process that wrote the lock, or its engine."""
    import psutil

    try:
        since = datetime.fromisoformat(holder["since"]).timestamp()
        process = psutil.Process(pid if isinstance(pid, int) else -1)
        return process.create_time() <= since + 2 and process.status() != psutil.STATUS_ZOMBIE
    except (KeyError, TypeError, ValueError, psutil.Error):
        return False


def secret_files(folder: Path) -> list[Path]:
    """The files of a data folder that hold passwords and keys."""
    return [
        *sorted(folder.glob("credentials/*.json")),
        *folder.glob("engine.json"),
        *folder.glob("fabric.json"),
        *folder.glob("settings.json"),
    ]


def check_modes(files: list[Path]) -> Iterator[Finding]:
    """Nobody but their owner can read files with passwords."""
    loose = False
    for file in files:
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & 0o077:
            loose = True
            yield Finding(
                "credentials", "problem",
                f"{file} holds a password, and others may use it (mode {mode:04o})",
                f"Run `chmod 600 {shlex.quote(str(file))}`; if somebody may have read it, "
                + ("join anew in another folder." if file.name == "fabric.json" else
                   "delete it and restart."),
            )  # fmt: skip
        elif not os.access(file, os.R_OK):
            loose = True
            yield Finding(
                "credentials", "problem", f"{file} cannot be read by this user",
                "Run as the user that it belongs to, or ask for a connection file of your own.",
            )  # fmt: skip
    if files and not loose:
        yield Finding("credentials", "ok", f"{count(len(files), 'file')}, for their owner only")


async def check_site(target: Targets, timeout: float) -> list[Finding]:
    """The site answers."""
    trips = []
    try:
        async with connected(target, timeout) as client:
            for _ in range(ROUND_TRIPS):
                started = time.perf_counter()
                status = await client.status()
                trips.append(time.perf_counter() - started)
            address = str(client.address)
            lacking: list[str] = []
            with contextlib.suppress(SkerryError):
                lacking = [topic.name for topic in await client.topics() if topic.lacking]
    except Unavailable as error:
        return [Finding("site", "problem", error.what, "Is `skerry up` running there?")]
    except SkerryError as error:
        return [Finding("site", "problem", error.what, error.advice)]
    answer = f"site {status.site} at {address} answers in {min(trips) * 1000:.1f} ms"
    return [Finding("site", "ok", answer), *_check_status(status), *_check_replicas(lacking)]


def _check_replicas(lacking: list[str]) -> Iterator[Finding]:
    if lacking:
        yield Finding(
            "replicas", "warning",
            f"{count(len(lacking), 'topic')} short of replicas, such as {lacking[0]}",
            "They are made as soon as another site can take them: let one join, start one, or "
            "`skerry site undrain` one.",
        )  # fmt: skip


def _check_status(status: SiteStatus) -> Iterator[Finding]:
    yield Finding(
        "site engine",
        "ok",
        f"nats-server {show_version(parse_version(status.engine))}, "
        f"up {show_duration(max(status.uptime, 1))}",
    )
    means = {
        "process": "an acknowledged event survives kill -9, not a power cut",
        "power": "an acknowledged event survives a power cut",
    }
    yield Finding(
        "durability", "ok", f"{status.durability}: {means.get(status.durability, 'unknown')}"
    )
    if status.restarts:
        yield Finding(
            "restarts", "warning",
            f"the engine died {count(status.restarts, 'time')} since the start",
            f"Look into {status.data}/engine.log.",
        )  # fmt: skip
    else:
        yield Finding("restarts", "ok", "the engine never died since the start")
    for name, what in status.lost.items():
        yield Finding(
            "logs", "problem", f"{name} lost events on this site's disk: {what}",
            "If the topic has replicas, it is brought back from one that has all; look with "
            f"`skerry topic show {name}`. Else restore a backup. Check the disk.",
        )  # fmt: skip
    if status.set_aside:
        yield Finding(
            "records", "warning",
            f"{count(len(status.set_aside), 'record')} cannot be read or do not fit, and are set "
            f"aside: {', '.join(status.set_aside)}",
            "The site's log says why. What was there before counts until something good is "
            "written; change or deploy anew what they are about.",
        )  # fmt: skip
    if status.strays_kept:
        log = strays_of(status.site)
        yield Finding(
            "strays", "warning",
            f"{count(status.strays_kept, 'event')} for topics that do not exist, the last for "
            f"{status.last_stray}",
            f"Read them with `skerry read {log}`, and create the topic or correct the publisher; "
            f"`skerry topic delete {log}` clears them.",
        )  # fmt: skip
    else:
        yield Finding("strays", "ok", "no event was for a topic that does not exist")


def check_log(file: Path) -> Iterator[Finding]:
    """The engine complained of nothing since it was started last."""
    try:
        with file.open("rb") as log:
            log.seek(max(file.stat().st_size - LOG_READ, 0))
            lines = log.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        yield Finding("engine log", "warning", f"{file} cannot be read: {error.strerror}")
        return
    starts = [number for number, line in enumerate(lines) if "Starting nats-server" in line]
    lines = lines[starts[-1] if starts else 0 :]
    complaints = [
        re.sub(r"^\[\d+\] ", "", line)
        for line in lines
        if re.search(r"\[(WRN|ERR|FTL)\]", line) and not any(text in line for text in HARMLESS)
    ]
    refused = [REFUSED.search(line) for line in complaints]
    complaints = [line for line, found in zip(complaints, refused, strict=True) if not found]
    if subjects := [found[1] for found in refused if found]:
        yield Finding(
            "refused", "warning",
            f"{count(len(subjects), 'event')} to where nobody may publish, the last to "
            f"{subjects[-1]}",
            "Clients without the SDK publish to p.<topic>, in MQTT p/<topic>; MQTT acknowledges "
            "also what is refused. Who it was is in the engine's log.",
        )  # fmt: skip
    if complaints:
        number = count(len(complaints), "warning")
        yield Finding(
            "engine log", "warning", f"{number}, the last: {complaints[-1]}", f"Look into {file}."
        )
    else:
        yield Finding("engine log", "ok", "no warnings since the engine was started")
