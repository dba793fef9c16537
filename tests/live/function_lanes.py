"""A worker with code of a test in it, and what came of its tasks."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, cast

import msgspec

from skerry.functions.frames import Answer, Ask, Done, Failed, Ready, Result, Setup, Task
from skerry.functions.lane import End, Lane, Launch
from skerry.model.functions import Kind, Order
from tests.conftest import until

MB = 1024 * 1024


class Bench:
    """`async with Bench(folder, "…code…") as bench: await bench.run(b"one", b"two")`.

    It answers questions about the state out of what came of the tasks so far, as a host does.
    """

    def __init__(
        self,
        folder: Path,
        code: str,
        *,
        kind: Kind = "python",
        handler: str = "",
        order: Order = "topic",
        cpu: float | None = None,
        fuel: int = 0,
        memory: int = 256 * MB,
        timeout: float = 20.0,
        network: bool = False,
        env: dict[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        path = folder / "code"
        path.write_text(textwrap.dedent(code))
        self.launch = Launch(
            setup=Setup("f", kind, str(path), handler, order, cpu, MB, fuel),
            python=python,
            env=env or {},
            memory=memory,
            timeout=timeout,
            network=network,
        )
        self.lane = Lane(
            self.launch,
            on_results=self._take,
            on_end=self._ended,
            answer=self._answered,
            on_text=self._say,
        )
        self.results: list[Result] = []
        self.ended: list[End] = []
        self.text: list[str] = []
        self.asked: list[Ask] = []
        self.state: dict[str, bytes] = {}
        self.answers: Callable[[Ask], Answer] | None = None
        self.ready: Ready
        self.given = 0

    async def __aenter__(self) -> Self:
        self.ready = await self.lane.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.lane.close()

    def give(
        self, *data: bytes, topic: str = "t", key: str | None = None, attempt: int = 1
    ) -> None:
        """Give events; the index of each is its number."""
        tasks = []
        for each in data:
            self.given += 1
            number = self.given
            tasks.append(Task(number, topic, number, 10**18, key, {"A": "b"}, each, attempt))
        self.lane.give(tasks)

    async def run(self, *data: bytes, **how: Any) -> list[Result]:
        """Give events and wait for what comes of them."""
        first = len(self.results)
        self.give(*data, **how)
        await until(lambda: len(self.results) == self.given, 60)
        return self.results[first:]

    async def done(self, data: bytes = b"", **how: Any) -> Done:
        """Give one event; it ends well."""
        [result] = await self.run(data, **how)
        assert isinstance(result, Done), result
        return result

    async def fails(self, data: bytes = b"", **how: Any) -> Failed:
        """Give one event; it fails."""
        [result] = await self.run(data, **how)
        assert isinstance(result, Failed), result
        return result

    async def says(self, data: bytes = b"", **how: Any) -> Any:
        """Give one event; what it publishes, from JSON."""
        [event] = (await self.done(data, **how)).published
        return msgspec.json.decode(event.data)

    async def end(self) -> End:
        """Wait for the worker's end."""
        await until(lambda: bool(self.ended), 60)
        assert len(self.ended) == 1
        return self.ended[0]

    def _take(self, results: list[Result]) -> None:
        self.results += results
        for result in results:
            if isinstance(result, Done):
                for key, value in result.state.items():
                    if value is None:
                        self.state.pop(key, None)
                    else:
                        self.state[key] = value

    def _ended(self, end: End) -> None:
        self.ended.append(end)

    def _say(self, line: str) -> None:
        self.text.append(line)

    async def _answered(self, ask: Ask) -> Answer:
        self.asked.append(ask)
        if ask.what == "state":
            return Answer(self.state.get(cast(str, ask.arguments[0])))
        assert self.answers is not None
        return self.answers(ask)
