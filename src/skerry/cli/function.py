"""`skerry function`: deploy, pause, resume, rollback, remove, replay; see `function_show`,
`function_trial` and `function_graph` for the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from skerry.cli.common import (
    TIMEOUT,
    AsJson,
    Connect,
    Targets,
    Timeout,
    Yes,
    agreed,
    connected,
    run,
)
from skerry.cli.function_show import FunctionArgument, listed, running_at
from skerry.cli.output import count, emit, emit_document, note
from skerry.client import Client
from skerry.errors import BadSetting
from skerry.functions.messages import DeployAnswer, FunctionInfo, ReplayAnswer
from skerry.functions.variables import read_env_file
from skerry.model.functions import Function, Order
from skerry.model.quantities import parse_duration, parse_size

DEPLOY_EXAMPLE = """Examples:
  skerry function deploy avg.py --topic sensors/+
  skerry function deploy avg.py --topic sensors --order key --concurrency 4 --memory 512MB
  skerry function deploy alarm.wasm --topic doors --site lab --timeout 500ms"""
PAUSE_EXAMPLE = "Example: skerry function pause avg"
RESUME_EXAMPLE = "Example: skerry function resume avg"
ROLLBACK_EXAMPLE = "Example: skerry function rollback avg --to 3"
REMOVE_EXAMPLE = "Example: skerry function remove avg"
REPLAY_EXAMPLE = """Examples:
  skerry function replay avg --dead
  skerry function replay avg --topic sensors --from-index 1200 --to-index 1300"""

BEGIN_TIME = 15.0
"""Seconds that a person waits to see a deployed function run."""

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="The code: a file of Python, or .wasm, or .wat.")
]
Handler = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Which handler of the file.", show_default="the only one, or `handler`"
    ),
]
EnvFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Variables for the code, KEY=VALUE lines. They are kept apart from the code, for the "
        "site's owner to read only.",
        show_default="those of the version before",
    ),
]
_LIMITS = "Limits"
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="Memory of a worker.", show_default="256MiB", rich_help_panel=_LIMITS
    ),
]
EventTime = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        help="How long one event may take.",
        show_default="5s",
        rich_help_panel=_LIMITS,
    ),
]
Cpu = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="CPU time that one event may take.",
        show_default="as --timeout",
        rich_help_panel=_LIMITS,
    ),
]
Network = Annotated[
    bool | None,
    typer.Option(
        "--allow-network/--no-network",
        help="Whether the code may open sockets.",
        show_default="no",
        rich_help_panel=_LIMITS,
    ),
]
OrderOption = Annotated[
    Order | None,
    typer.Option(
        help="Which events are handled one after the other: all of a topic, those of one key, or "
        "none.",
        show_default="topic",
    ),
]
ConnectTime = Annotated[
    float,
    typer.Option(
        "--connect-timeout",
        metavar="SECONDS",
        help="How long to wait for the site.",
        rich_help_panel="Connection",
    ),
]


def deploy(
    file: File,
    topic: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="What triggers it: a topic with all below it, or a pattern such as sensors/+.",
            show_default="as in the version before",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Its name.", show_default="the file's")
    ] = None,
    site: Annotated[
        str | None, typer.Option(metavar="SITE", help="Run it at this site, wherever topics are.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", metavar="", help="Run it at each topic's home, as is usual."),
    ] = False,
    order: OrderOption = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Worker processes for each topic, with --order key or none.",
            show_default="1",
        ),
    ] = None,
    retries: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Attempts after the first before an event goes to the dead letters.",
            show_default="3",
        ),
    ] = None,
    handler: Handler = "",
    env_file: EnvFile = None,
    memory: Memory = None,
    event_time: EventTime = None,
    cpu: Cpu = None,
    network: Network = None,
    connect: Connect = None,
    timeout: ConnectTime = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Deploy code that runs on every event of a topic, where the topic is.

    Under a name that is deployed already it becomes the next version, which goes on where the one
    before is; what is not given stays as it was. The code is loaded once before anything changes.
    Needs the administrator's credentials, which the data folder holds."""
    if site is not None and follow:
        raise BadSetting("--site and --follow contradict each other", "Give one of them.")
    given = {
        "topic": topic,
        "site": site,
        "order": order,
        "concurrency": concurrency,
        "retries": retries,
        **limits(memory, event_time, cpu, network),
    }
    settings: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if follow:
        settings["site"] = None
    env = None if env_file is None else read_env_file(env_file)

    async def ask() -> tuple[DeployAnswer, FunctionInfo]:
        async with connected(connect, timeout, "admin") as client:
            done = await client.deploy_function(file, name, handler=handler, env=env, **settings)
            return done, await _begun(client, done)

    done, info = run(ask())
    if as_json:
        emit_document({**listed(info), "changed": done.changed})
        return
    _say_deployed(done, info)


def limits(
    memory: str | None, event_time: str | None, cpu: str | None, network: bool | None
) -> dict[str, Any]:
    """The limits that were given."""
    given = {
        "memory": None if memory is None else parse_size(memory),
        "timeout": None if event_time is None else parse_duration(event_time),
        "cpu": None if cpu is None else parse_duration(cpu),
        "network": network,
    }
    return {name: value for name, value in given.items() if value is not None}


async def _begun(client: Client, done: DeployAnswer) -> FunctionInfo:
    """Wait until the version runs wherever it is to run, or it is known why it does not."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + BEGIN_TIME
    number = done.function.current.number
    while True:
        info = await client.function(done.function.name)
        ours = [r.running for r in info.running if info.logs.get(r.running.log) == r.site]
        there = {running.log for running in ours if running.version >= number}
        is_settled = set(info.logs) <= there and all(r.state != "starting" for r in ours)
        if info.function.paused or not info.logs or is_settled or clock() > deadline:
            return info
        await asyncio.sleep(0.1)


def _say_deployed(done: DeployAnswer, info: FunctionInfo) -> None:
    function, version = info.function, done.function.current
    if not done.changed:
        emit(f"function {function.name} is deployed like this already, as version {version.number}")
    else:
        emit(f"function {function.name}, version {version.number}, is deployed")
    if function.paused:
        emit(f"It is paused; have it go on with `skerry function resume {function.name}`.")
    elif not info.logs:
        emit(f"No topic matches {version.settings.topic} yet; it starts when one appears.")
    for log, site in info.logs.items():
        running = running_at(info, log, site)
        if running is None:
            emit(f"It is to run on {log} at site {site}, which has not said so yet.")
        elif running.running.state in ("running", "retrying"):
            emit(f"It runs on {log} at site {site}.")
        else:
            why = running.running.error or "look again in a moment"
            emit(f"It is {running.running.state} on {log} at site {site}: {why}")


def pause(
    name: FunctionArgument,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Have a function rest. Events wait for it, as long as their topic keeps them.

    Needs the administrator's credentials, which the data folder holds."""

    said = f"function {name} is paused; go on with `skerry function resume {name}`"
    _change(connect, timeout, lambda client: client.pause_function(name), said, as_json)


def resume(
    name: FunctionArgument,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Have a paused function go on where it was.

    Needs the administrator's credentials, which the data folder holds."""

    said = f"function {name} goes on where it was"
    _change(connect, timeout, lambda client: client.resume_function(name), said, as_json)


def _change(
    connect: Targets,
    timeout: float,
    change: Callable[[Client], Awaitable[Function]],
    said: str,
    as_json: bool,
) -> None:
    async def ask() -> Function:
        async with connected(connect, timeout, "admin") as client:
            return await change(client)

    function = run(ask())
    if as_json:
        emit_document({"name": function.name, "paused": function.paused})
    else:
        emit(said)


def rollback(
    name: FunctionArgument,
    to: Annotated[
        int | None,
        typer.Option(metavar="N", help="The version to have again.", show_default="the one before"),
    ] = None,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Have an earlier version again, with its code and settings, as a new version.

    It goes on where the function is, with the state as it is. Needs the administrator's
    credentials, which the data folder holds."""

    async def ask() -> tuple[DeployAnswer, FunctionInfo]:
        async with connected(connect, timeout, "admin") as client:
            done = await client.rollback_function(name, to)
            return done, await _begun(client, done)

    done, info = run(ask())
    if as_json:
        emit_document({**listed(info), "changed": done.changed})
        return
    _say_deployed(done, info)


def remove(
    name: FunctionArgument,
    yes: Yes = False,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Remove a function with its state and all its versions, for good. What it published stays.

    Needs the administrator's credentials, which the data folder holds."""

    async def look() -> FunctionInfo:
        async with connected(connect, timeout, "admin") as client:
            return await client.function(name)

    async def strike() -> None:
        async with connected(connect, timeout, "admin") as client:
            await client.remove_function(name)

    info = run(look())
    contents = f"{count(len(info.function.versions), 'version')} and its state"
    if not yes and not agreed(f"Remove {name} with its {contents} for good?", "removing"):
        note("nothing was removed")
        raise typer.Exit(1)
    run(strike())
    if as_json:
        emit_document({"removed": name})
    else:
        emit(f"function {name} is removed, with its {contents}")


def replay(
    name: FunctionArgument,
    dead: Annotated[
        bool,
        typer.Option("--dead", metavar="", help="Its dead letters that were not replayed yet."),
    ] = False,
    topic: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Of which topic.", show_default="all, or the only one"),
    ] = None,
    from_index: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The first index.")
    ] = None,
    to_index: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="The last index.", show_default="the latest"),
    ] = None,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Have a function handle events once more: what it publishes then is published again.

    Needs the administrator's credentials, which the data folder holds."""
    if not dead and from_index is None:
        raise BadSetting(
            "nothing says which events to handle once more",
            "Give --dead for dead letters, or --from-index.",
        )

    async def ask() -> ReplayAnswer:
        async with connected(connect, timeout, "admin") as client:
            return await client.replay_function(
                name, dead=dead, topic=topic, from_index=from_index, to_index=to_index
            )

    done = run(ask())
    if as_json:
        emit_document(done)
        return
    for log, (first, last) in done.logs.items():
        what = (
            f"dead letters of {log}, up to {last},"
            if dead
            else f"events {first} to {last} of {log}"
        )
        emit(f"{name} handles {what} once more")
