"""`skerry function list`, `show` and `logs`: how functions are."""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer

from skerry.cli.common import TIMEOUT, AsJson, Connect, Targets, Timeout, connected, run
from skerry.cli.events import readable
from skerry.cli.output import columns, count, draw, emit, emit_document, facts, note
from skerry.errors import UnknownTopic
from skerry.functions.messages import FunctionInfo, RunningAt, published_to
from skerry.model.event import Event
from skerry.model.functions import LOGS, FunctionSettings, Version
from skerry.model.quantities import show_duration, show_size

LIST_EXAMPLE = "Example: skerry function list"
SHOW_EXAMPLE = "Example: skerry function show avg"
LOGS_EXAMPLE = "Example: skerry function logs avg --follow"

FunctionArgument = Annotated[str, typer.Argument(metavar="NAME", help="A function's name.")]


def list_functions(
    connect: Connect = None, timeout: Timeout = TIMEOUT, as_json: AsJson = False
) -> None:
    """List the functions of the site, in a fabric of all sites."""
    found = run(_all(connect, timeout))
    if as_json:
        emit_document([listed(info) for info in found])
        return
    if not found:
        note("no functions yet; deploy one with `skerry function deploy avg.py --topic sensors`")
        return
    table = columns(
        "FUNCTION", ">VERSION", "TOPIC", "WHERE", "STATE", ">HANDLED", ">LAG", ">FAILED", ">DEAD"
    )
    for info in found:
        version = info.function.current
        numbers = [each.running for each in info.running]
        table.add_row(
            info.name,
            str(version.number),
            version.settings.topic,
            ", ".join(sorted(set(info.logs.values()))) or version.settings.site or "-",
            info.state if info.state not in ("broken", "waiting") else info.state.upper(),
            f"{sum(each.handled for each in numbers):,}",
            f"{sum(_lag(each) for each in info.running):,}",
            f"{sum(each.failed for each in numbers):,}",
            f"{sum(each.dead for each in numbers):,}",
        )
    draw(table)


async def _all(connect: Targets, timeout: float) -> list[FunctionInfo]:
    async with connected(connect, timeout) as client:
        return await client.functions()


def show(
    name: FunctionArgument,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Show a function: its settings, its versions, and how it is on each topic."""

    async def ask() -> FunctionInfo:
        async with connected(connect, timeout) as client:
            return await client.function(name)

    info = run(ask())
    if as_json:
        emit_document(listed(info))
        return
    draw(facts(_facts(info)))
    if info.logs:
        emit("")
        _draw_logs(info)
    emit("")
    table = columns(">VERSION", "DEPLOYED", "FROM", "CODE", "TOPIC")
    for version in reversed(info.function.versions):
        table.add_row(
            str(version.number), _time(version.deployed), version.site, version.code[:12],
            version.settings.topic,
        )  # fmt: skip
    draw(table)


def _draw_logs(info: FunctionInfo) -> None:
    table = columns(
        "RUNS ON", "AT", "STATE", ">INDEX", ">LAG", ">HANDLED", ">FAILED", ">DEAD", ">PUBLISHED",
        ">KEYS", ">WORKERS", "ERROR",
    )  # fmt: skip
    for log, site in info.logs.items():
        running = running_at(info, log, site)
        if running is None:
            state = "AWAY" if site in info.away else "starting"
            table.add_row(log, site, "paused" if info.function.paused else state)
            continue
        now = running.running
        table.add_row(
            log, site, now.state, str(now.index), f"{_lag(running):,}", f"{now.handled:,}",
            f"{now.failed:,}", f"{now.dead:,}", f"{now.published:,}", f"{now.keys:,}",
            str(now.workers), readable(now.error.encode()) or "-",
        )  # fmt: skip
    draw(table)


def logs(
    name: FunctionArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", metavar="", help="Go on until Ctrl-C.")
    ] = False,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Print what a function's code printed and logged, and its errors."""
    with suppress(KeyboardInterrupt):
        run(_print_logs(name, follow, connect, timeout, as_json))


async def _print_logs(
    name: str, follow: bool, connect: Targets, timeout: float, as_json: bool
) -> None:
    async with connected(connect, timeout) as client:
        known = (await client.function(name)).name
        topic = f"{LOGS}/{known}"
        try:
            async with client.subscribe(topic) as fresh:
                latest = 0
                async for event in client.read(topic):
                    latest = event.index
                    _print_log(event, as_json)
                if not follow:
                    return
                async for event in fresh:
                    if event.index > latest:
                        _print_log(event, as_json)
        except UnknownTopic:
            return


def _print_log(event: Event, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(event.data.decode("utf-8", "replace") + "\n")
        sys.stdout.flush()
        return
    try:
        entry = msgspec.json.decode(event.data, type=dict[str, Any])
    except msgspec.DecodeError:
        entry = {"text": event.data.decode("utf-8", "replace")}
    time = event.time.strftime("%Y-%m-%dT%H:%M:%S.") + f"{event.time.microsecond // 1000:03}Z"
    level = str(entry.get("level", "")).ljust(5)
    where = f"{entry.get('site', '-')} {entry.get('log', '-')}"
    emit(f"{time}  {level}  {where}  {readable(str(entry.get('text', '')).encode())}")


# Words


def running_at(info: FunctionInfo, log: str, site: str) -> RunningAt | None:
    """How a function is on a log, as that site says."""
    found = (r for r in info.running if r.site == site and r.running.log == log)
    return next(found, None)


def _lag(running: RunningAt) -> int:
    return max(running.running.latest - running.running.index, 0)


def listed(info: FunctionInfo) -> dict[str, Any]:
    """A function as a JSON object."""
    return {
        "name": info.name,
        "state": info.state,
        "version": info.function.current.number,
        "paused": info.function.paused,
        "logs": info.logs,
        "running": [
            {"site": each.site, "lag": _lag(each), **msgspec.to_builtins(each.running)}
            for each in info.running
        ],
        "away": info.away,
        "versions": info.function.versions,
    }


def _facts(info: FunctionInfo) -> list[tuple[str, str]]:
    version: Version = info.function.current
    settings: FunctionSettings = version.settings
    confined = sorted({part for each in info.running for part in each.running.confined})
    cpu = "" if settings.cpu is None else f", {show_duration(settings.cpu)} of CPU time"
    return [
        ("function", info.name),
        ("version", f"{version.number}, deployed from {version.site} {_time(version.deployed)}"),
        ("state", info.state),
        ("topic", settings.topic),
        ("runs at", settings.site or "each topic's home"),
        ("order", f"{settings.order}, {count(settings.concurrency, 'worker')} a topic"),
        (
            "an event has",
            f"{show_duration(settings.timeout)}{cpu}, {settings.retries + 1} attempts",
        ),
        ("a worker has", f"{show_size(settings.memory)}, {_sockets(settings)}"),
        ("code", f"{version.handler} in {version.kind}, {version.code[:12]}"),
        ("depends on", ", ".join(version.requires) or "-"),
        ("variables", "yes" if version.env else "none"),
        ("publishes to", ", ".join(published_to(info)) or "-"),
        ("confined by", ", ".join(confined) or "-"),
        *([("away", ", ".join(info.away))] if info.away else []),
    ]


def _sockets(settings: FunctionSettings) -> str:
    return "may open sockets" if settings.network else "no sockets"


def _time(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
