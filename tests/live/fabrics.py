"""What the tests of a fabric share: load that checks itself, and looking at every copy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from skerry import Client
from skerry.model.names import topic_of_stream
from skerry.model.topic import Ack
from skerry.site import Site
from skerry.testing import LocalFabric
from tests.conftest import until


class Load:
    """Publishes `<name>-0`, `<name>-1`, … one after the other; knows what was acknowledged."""

    def __init__(self, client: Client, topic: str, name: str = "n", ack: Ack | None = None) -> None:
        self.count = 0
        """How many events were acknowledged."""
        self._client = client
        self._topic = topic
        self._name = name
        self._ack = ack
        self._stop = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Load:
        self._task = asyncio.create_task(self._run())
        await self.go_on(5)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._stop = True
        assert self._task is not None
        await self._task

    async def _run(self) -> None:
        while not self._stop:
            await self._client.publish(
                self._topic, f"{self._name}-{self.count}", ack=self._ack, timeout=60
            )
            self.count += 1

    async def go_on(self, events: int = 20) -> None:
        """Wait until so many more were acknowledged; raise what ended it, if anything did."""
        goal = self.count + events

        def reached() -> bool:
            assert self._task is not None
            if self._task.done():
                self._task.result()
            return self.count >= goal

        await until(reached, 60)


async def contents(client: Client, topic: str) -> list[bytes]:
    """What a site's own copy of a log holds."""
    return [bytes(event.data) async for event in client.read(topic)]


async def last_index(site: Site, stream: str) -> int | None:
    """The last index of a site's own copy; None: it has none."""
    assert site.fabric is not None
    local = site.fabric.copies.local(topic_of_stream(stream) or "")
    info = await site.fabric.copies._jetstream.stream(local.stream if local else stream)
    return None if info is None else int(info["state"]["last_seq"])


async def converged(fabric: LocalFabric, topic: str, sites: list[str]) -> None:
    """Wait until the copies at `sites` end at the same index, none is being replaced, and none is
    about to be: all are of the newest epoch that one of them knows of, and nothing is to be brought
    home."""
    stream = "t~" + topic.replace("/", "~")

    async def same() -> bool:
        lasts = {await last_index(fabric.agent(site), stream) for site in sites}
        return len(lasts) == 1 and None not in lasts and is_settled()

    def is_settled() -> bool:
        parts = [part for site in sites if (part := fabric.agent(site).fabric)]
        entries = [entry for part in parts if (entry := part.copies.entry(topic))]
        logs = [local for part in parts if (local := part.copies.local(topic))]
        is_home = not any(topic in part.copies.tails.kept for part in parts)
        return (
            is_home
            and len(logs) == len(sites)
            and all(
                local.kind in ("home", "copy")
                and local.copy.label == max(e.epoch for e in entries)
                and not local.ends
                for local in logs
            )
        )

    await until(same, 60)


async def check_all(fabric: LocalFabric, topic: str, sites: list[str], expected: list[str]) -> None:
    """Every copy holds exactly `expected`, in that order."""
    await converged(fabric, topic, sites)
    for site in sites:
        async with fabric.connect(site) as client:
            got = [data.decode() for data in await contents(client, topic)]
            place = next(
                (i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), len(got)
            )
            assert got == expected, (
                f"{site} differs at {place}: has {got[place : place + 8]} of {len(got)}, "
                f"not {expected[place : place + 8]} of {len(expected)}"
            )


@contextlib.asynccontextmanager
async def three_sites(**settings: Any) -> AsyncIterator[LocalFabric]:
    """Hub, farm and lab."""
    async with LocalFabric(["hub", "farm", "lab"], **settings) as fabric:
        yield fabric
