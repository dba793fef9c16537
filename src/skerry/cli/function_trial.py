"""`skerry function test`: run code once on an event, without any effect."""

from __future__ import annotations

import os
from base64 import b64encode
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from skerry.cli.common import TIMEOUT, AsJson, Connect, Targets, connected, run
from skerry.cli.events import as_text, readable
from skerry.cli.function import (
    ConnectTime,
    Cpu,
    EnvFile,
    EventTime,
    File,
    Handler,
    Memory,
    Network,
    OrderOption,
    limits,
)
from skerry.cli.output import columns, draw, emit, emit_document, note
from skerry.client import Client
from skerry.errors import BadSetting, FunctionError, SkerryError
from skerry.functions.code import Code, read_file
from skerry.functions.variables import read_env_file
from skerry.model.functions import FunctionSettings
from skerry.model.names import check_topic

if TYPE_CHECKING:
    from skerry.functions.trial import Trial

EXAMPLE = """Examples:
  skerry function test avg.py --data '{"value": 21.5}'
  skerry function test avg.py --topic sensors --index 1200"""


def trial(
    file: File,
    data: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The data of an event that never was.")
    ] = None,
    as_topic: Annotated[
        str, typer.Option(metavar="TOPIC", help="The topic of that event.")
    ] = "test",
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Its key.")] = None,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="A topic with the event to handle.")
    ] = None,
    index: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Its index.", show_default="the latest"),
    ] = None,
    order: OrderOption = None,
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
    """Run code once, on this machine, and print what it would publish and keep.

    It runs in a worker with the limits that it would have; its state is empty. Nothing is
    published, and nothing is written."""
    # Not every command should wait for it.
    from skerry.functions.trial import made_up, run_once, task_of

    if (data is None) == (topic is None):
        raise BadSetting("an event is needed", "Give --data, or --topic with an --index.")
    code = read_file(file)
    given = limits(memory, event_time, cpu, network) | ({"order": order} if order else {})
    settings = FunctionSettings(topic=check_topic(topic or as_topic), **given).check()
    variables = {} if env_file is None else read_env_file(env_file)

    async def work() -> Trial:
        async with AsyncExitStack() as stack:
            client = await _client(stack, connect, timeout, needed=topic is not None)
            if topic is None:
                task = made_up(as_topic, (data or "").encode(), key)
            else:
                assert client is not None
                wanted = index or await client.latest_index(topic)
                task = task_of(await client.get(topic, wanted))
            return await run_once(
                file.stem, code, task, settings,
                cache=_cache(), handler=handler, variables=variables, client=client,
            )  # fmt: skip

    done = run(work())
    if as_json:
        emit_document(_as_object(done))
    else:
        _print(done, code)
    if done.error:
        if done.trace and not as_json:
            note(done.trace.rstrip())
        raise FunctionError(done.error, "Nothing was published and nothing kept.")


async def _client(
    stack: AsyncExitStack, connect: Targets, timeout: float, needed: bool
) -> Client | None:
    """A site to read topics at; without one, code that reads none runs all the same."""
    if needed:
        return await stack.enter_async_context(connected(connect, timeout))
    with suppress(SkerryError):
        return await stack.enter_async_context(connected(connect, min(timeout, 1.0)))
    return None


def _cache() -> Path:
    """Where environments are kept that were made for trials."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "skerry"


def _value(value: bytes | None) -> Any:
    """A value of the state: what the code put there, or its bytes."""
    if value is None:
        return None
    try:
        found: Any = msgspec.to_builtins(msgspec.msgpack.decode(value))
    except (msgspec.DecodeError, TypeError):
        return b64encode(value).decode()
    return found


def _as_object(done: Trial) -> dict[str, Any]:
    published = []
    for each in done.published:
        text = as_text(each.data)
        payload = {"data": text} if text is not None else {"data_base64": b64encode(each.data)}
        published.append({"topic": each.topic, "key": each.key, "headers": each.headers, **payload})
    return {
        "ok": not done.error,
        "handler": done.handler,
        "seconds": round(done.seconds, 6),
        "error": done.error,
        "trace": done.trace,
        "published": published,
        "state": {key: _value(value) for key, value in done.state.items()},
        "text": done.text,
        "confined": done.confined,
    }


def _print(done: Trial, code: Code) -> None:
    for line in done.text:
        emit(f"says       {readable(line.encode())}")
    if done.error:
        return
    emit(f"{done.handler} of {code.file} took {done.seconds * 1000:.1f} ms; it would do this:")
    table = columns("WHAT", "WHERE", "KEY", "DATA")
    for each in done.published:
        table.add_row("publish", each.topic, each.key or "-", readable(each.data))
    for key, value in done.state.items():
        if value is None:
            table.add_row("forget", key, "", "")
        else:
            table.add_row("keep", key, "", readable(msgspec.json.encode(_value(value))))
    if done.published or done.state:
        draw(table)
    else:
        emit("nothing")
