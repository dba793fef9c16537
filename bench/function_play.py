"""What the benchmarks of functions play on: a site, and functions that tell when they were called.

Their clock is ours (CLOCK_MONOTONIC, one machine): a message says when it was published, the
function compares. What it found it publishes to the topic `done` when a message says that it is the
last one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec

import skerry
from bench.stage import Stage, running_site

SCALE = float(os.environ.get("FUNCTION_SCALE", "1"))
"""Times the number of messages: less than 1 to try whether everything works."""
PATIENCE = 120.0
"""Seconds after which a run that does not end has failed."""
HEAD = 21
"""Bytes at the beginning of a message: when it was published, and `!` on the last one."""

CODE = '''
"""Notes when it was called; says so, to the topic done, on the last message."""

import time

import skerry

taken = []


@skerry.function
def note(ctx, event):
    now = time.monotonic_ns()
    taken.append(now - int(event.data[:20]))
    if event.data[20:21] == b"!":
        said = {"function": ctx.function, "now": now}
        ctx.publish("done", {**said, "handled": len(taken), "taken": taken[-1000:]})
        taken.clear()


@skerry.function
def answer(ctx, event):
    ctx.publish("results", event.data[:20])
    if event.data[20:21] == b"!":
        said = {"function": ctx.function, "now": time.monotonic_ns()}
        ctx.publish("done", {**said, "handled": 1, "taken": []})
'''


class Said(msgspec.Struct):
    """What the function says at the end, in nanoseconds."""

    function: str
    now: int
    """When the last message was in the handler."""
    handled: int
    taken: list[int]
    """From publishing to the handler, the last thousand."""


def message(size: int, last: bool = False) -> bytes:
    """A message that is published now."""
    return b"%020d%b" % (time.monotonic_ns(), b"!" if last else b".") + b"x" * (size - HEAD)


class Play:
    """A site with the topics that the functions publish to."""

    def __init__(self, stage: Stage, client: skerry.Client, code: Path) -> None:
        self.stage = stage
        self.client = client
        self.code = code
        self._count = 0

    @contextlib.asynccontextmanager
    async def function(self, topic: str, handler: str) -> AsyncIterator[str]:
        """A function on `topic` that has handled its first event; removed at the end."""
        self._count += 1
        name = f"{handler}-{self._count}"
        await self.deploy(name, topic, handler)
        try:
            await self.handled(topic, message(64, last=True))
            yield name
        finally:
            await self.stage.admin.remove_function(name)

    async def deploy(self, name: str, topic: str, handler: str) -> None:
        """Deploy it, and return when that is known."""
        await self.stage.admin.deploy_function(self.code, topic=topic, name=name, handler=handler)

    async def handled(self, topic: str, data: bytes) -> Said:
        """Publish a message that is the last, and wait for what the function says."""
        async with self.done() as said:
            await self.client.publish(topic, data)
            return await said()

    @contextlib.asynccontextmanager
    async def done(self) -> AsyncIterator[Callable[[], Awaitable[Said]]]:
        """Listen to functions that are done: each call returns what the next one says."""
        async with self.client.subscribe("done") as events:

            async def said() -> Said:
                async with asyncio.timeout(PATIENCE):
                    async for event in events:
                        return msgspec.json.decode(event.data, type=Said)
                raise RuntimeError("the subscription ended")

            yield said


@contextlib.asynccontextmanager
async def playing() -> AsyncIterator[Play]:
    """A fresh site, and the code in a file."""
    with tempfile.TemporaryDirectory(prefix="skerry-bench-") as folder:
        code = Path(folder) / "bench.py"
        code.write_text(CODE)
        async with running_site() as stage, skerry.connect(stage.sdk) as client:
            for topic in ("done", "results"):
                await client.create_topic(topic)
            yield Play(stage, client, code)
