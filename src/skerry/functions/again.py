"""Events that are to be handled once more, as somebody asked for.

Requests are events of `functions/again`, below the function's name; a request's index is its
number, and part of the ids of what comes of it.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing

from skerry.engine.link import Down
from skerry.errors import AgedOut, NotYet, SkerryError, UnknownTopic
from skerry.functions.access import Access, home_stream
from skerry.functions.intake import BATCH, Tail
from skerry.functions.journal import Progress
from skerry.functions.work import ABOUT, Item, item_of
from skerry.log.follow import Start
from skerry.model.event import Event
from skerry.model.functions import AGAIN, DEAD, Again
from skerry.model.records import read

log = logging.getLogger("skerry.functions")

LOOK = 2.0
"""Seconds between looks whether there are requests at all."""


class Requests:
    """All requests to functions, as this site's copy has them."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._requests: dict[str, list[tuple[int, Again]]] = {}
        self._came = asyncio.Condition()

    async def run(self) -> None:
        """Follow them until cancelled."""
        last = 0
        while True:
            try:
                _, first, latest = await self._access.reader.bounds(AGAIN)
                start = min(max(last + 1, first), latest + 1)
                async with await self._access.reader.subscribe(AGAIN, from_index=start) as events:
                    async for event in events:
                        last = event.index
                        await self._take(event)
            except (SkerryError, Down, TimeoutError) as error:
                log.debug("requests to handle events again: %s", error)
            await asyncio.sleep(LOOK)

    async def _take(self, event: Event) -> None:
        function = event.topic.removeprefix(f"{AGAIN}/")
        request = read(event.data, Again, f"{event.topic} #{event.index}")
        if request is None:
            return
        async with self._came:
            self._requests.setdefault(function, []).append((event.index, request))
            self._came.notify_all()

    async def next(self, function: str, after: int) -> tuple[int, Again]:
        """The first request to `function` behind number `after`; waits for one."""
        async with self._came:
            while True:
                requests = self._requests.get(function, [])
                place = bisect.bisect_right(requests, after, key=lambda request: request[0])
                if place < len(requests):
                    return requests[place]
                await self._came.wait()


async def items(
    access: Access, function: str, subjects: tuple[str, ...], number: int, request: Again, done: int
) -> AsyncIterator[list[tuple[Item, int]]]:
    """What a request asks for behind index `done`: items, each with its index among what was asked
    for. What aged out is left out."""
    topic = f"{DEAD}/{function}" if request.dead else request.log
    owner, entry = await access.owner(topic)
    await access.reach(entry)
    state = (await access.stream(owner, entry))["state"]
    first = max(request.first, done + 1, int(state["first_seq"]), 1)
    last = min(request.last, int(state["last_seq"]))
    if first > last:
        return
    if request.dead:
        base = "e." + topic.replace("/", ".")
        subjects = (base,)
    tail = Tail(
        access.at_home(entry),
        owner,
        owner,
        Start(index=first),
        subjects=subjects,
        stream=home_stream(owner, entry),
    )
    batch: list[tuple[Item, int]] = []
    async with await tail.open(), aclosing(tail.drain(last)) as events:
        async for event in events:
            item = _buried(event, request.log) if request.dead else item_of(event, event.topic)
            if item is None:
                continue
            item.again = number
            batch.append((item, event.index))
            if len(batch) >= BATCH:
                yield batch
                batch = []
    if batch:
        yield batch


def _buried(event: Event, log_topic: str) -> Item | None:
    """The event of a dead letter, if it was of that log."""
    item = item_of(event, event.topic)
    about = {
        name.removeprefix(ABOUT): value
        for name, value in item.headers.items()
        if name.startswith(ABOUT)
    }
    if about.get("Log") != log_topic or "Cut" in about:
        return None
    try:
        index, time_ns = int(about["Index"]), int(about["Time"])
    except (KeyError, ValueError):
        return None
    own = {name: value for name, value in item.headers.items() if not name.startswith(ABOUT)}
    return Item(about.get("Topic", log_topic), index, time_ns, item.key, own, item.data, 0)


def after(progress: Progress, number: int, index: int) -> Progress:
    """The progress once index `index` of request `number` is done."""
    return Progress(progress.log, progress.again, index)


def closed(progress: Progress, number: int) -> Progress:
    """The progress once request `number` is done."""
    return Progress(progress.log, number, 0)


GONE = (UnknownTopic, AgedOut, NotYet)
"""What a request fails with that no further attempt would change."""
