"""Run a function once, on one event, without deploying it. Nothing it does takes effect."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec

from skerry.client import Client
from skerry.errors import BadSetting, FunctionBroken
from skerry.functions.code import Code, keep
from skerry.functions.deploying import broken, setup_of
from skerry.functions.environments import Environments
from skerry.functions.frames import Answer, Ask, Done, Failed, Published, Result, Task
from skerry.functions.lane import End, Lane, Launch
from skerry.model.event import Event
from skerry.model.functions import FunctionSettings

LARGEST = 8 * 1024 * 1024
"""Bytes of an event that it may publish."""
READ = 256
"""Events that one answer holds at the most; the worker asks for the rest."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    handler: str
    seconds: float
    error: str = ""
    trace: str = ""
    published: tuple[Published, ...] = ()
    state: dict[str, bytes | None] = {}
    text: tuple[str, ...] = ()
    """What the code printed or logged."""
    confined: tuple[str, ...] = ()


def task_of(event: Event) -> Task:
    """A past event, as the worker is given it."""
    return Task(
        number=1,
        topic=event.topic,
        index=event.index,
        time_ns=event.timestamp_ns,
        key=event.key,
        headers=event.headers,
        data=bytes(event.data),
    )


def made_up(topic: str, data: bytes, key: str | None) -> Task:
    """An event that never was."""
    return Task(
        number=1, topic=topic, index=1, time_ns=time.time_ns(), key=key, headers={}, data=data
    )


async def run_once(
    name: str,
    code: Code,
    task: Task,
    settings: FunctionSettings,
    *,
    cache: Path,
    handler: str = "",
    variables: dict[str, str] | None = None,
    client: Client | None = None,
) -> Trial:
    """Handle one event in a real worker, with the limits that it would have. Its state is empty;
    topics it reads through `client`. Raises `FunctionBroken` if the code cannot be loaded."""
    python = await Environments(cache).python(code.requires)
    folder = Path(tempfile.mkdtemp(prefix="skerry-trial-"))
    text: list[str] = []
    came: asyncio.Future[Result | End] = asyncio.get_running_loop().create_future()

    def settle(what: Result | End) -> None:
        if not came.done():
            came.set_result(what)

    try:
        path = keep(folder, code.digest, code.kind, code.data)
        lane = Lane(
            Launch(
                setup=setup_of(name, code, path, settings, handler, LARGEST),
                python=python,
                env=variables or {},
                memory=settings.memory,
                timeout=settings.timeout,
                network=settings.network,
            ),
            on_results=lambda results: settle(results[0]),
            on_end=settle,
            answer=_answering(client),
            on_text=text.append,
        )
        try:
            try:
                ready = await lane.start()
            except FunctionBroken as error:
                raise broken(name, code, error) from None
            began = time.perf_counter()
            lane.give([task])
            result = await came
            seconds = time.perf_counter() - began
        finally:
            await lane.close()
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    about: dict[str, Any] = {
        "handler": ready.handler, "seconds": seconds, "text": tuple(text),
        "confined": ready.confined,
    }  # fmt: skip
    match result:
        case Done():
            return Trial(published=result.published, state=result.state, **about)
        case Failed():
            return Trial(error=result.error, trace=result.trace, **about)
        case End():
            return Trial(error=f"the function {result.reason}", **about)
    return Trial(error="the event was skipped", **about)


def _answering(client: Client | None) -> Callable[[Ask], Awaitable[Answer]]:
    async def answer(ask: Ask) -> Answer:
        if ask.what == "state":
            return Answer()
        if client is None:
            raise BadSetting(
                "the handler reads a topic, and this trial is connected to no site",
                "Start one with `skerry up`, or name one with --connect.",
            )
        match ask.what, ask.arguments:
            case "latest_index", (topic,):
                return Answer(await client.latest_index(topic))
            case "get", (topic, index):
                return Answer(_plain(await client.get(topic, index)))
            case "read", (topic, first, last):
                found: list[Any] = []
                async with aclosing(client.read(topic, first, last)) as events:  # type: ignore[type-var]
                    async for event in events:
                        found.append(_plain(event))
                        if len(found) == READ:
                            break
                return Answer(found)
        raise BadSetting(f"{ask.what} is not asked for like this")

    return answer


def _plain(event: Event) -> tuple[Any, ...]:
    return (
        event.topic, event.index, event.timestamp_ns, event.key, event.headers, bytes(event.data)
    )  # fmt: skip
