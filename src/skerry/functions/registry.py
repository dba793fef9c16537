"""Which functions there are: a topic that every site follows.

    functions/registry/spec/<name>     the `Function`, or that it was removed; by compare-and-set
    functions/registry/code/<digest>   its code

Only the last event of each sub-topic is kept. Every site has a copy, so that one that is cut off
goes on with what it knows. Whoever changes a function does so on the condition that what it has
seen is still the newest: of two who deploy at the same time one is told `Conflict`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from skerry.engine.link import Down
from skerry.errors import (
    AgedOut,
    Conflict,
    FolderCorrupt,
    NotYet,
    SkerryError,
    Unavailable,
    UnknownFunction,
    UnknownTopic,
)
from skerry.feeds.home import Homes
from skerry.functions.access import Access
from skerry.log.append import Publisher
from skerry.log.frames import only_if
from skerry.model.functions import REGISTRY, Function, check_function
from skerry.model.records import read

log = logging.getLogger("skerry.functions")

SPECS = f"{REGISTRY}/spec"
CODES = f"{REGISTRY}/code"
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
AGAIN = 0.5
"""Seconds before a registry that could not be followed is tried again."""
WRITE_TIME = 15.0
"""Seconds that a change may take."""
KNOW_TIME = 5.0
"""Seconds to wait until this site's copy has what the home has."""


class Known(msgspec.Struct, frozen=True):
    """What the registry says of a name."""

    revision: int
    """The index at which it says so; 0: it says nothing."""
    function: Function | None
    last: int
    """The number of the last version that there ever was. Numbers are not used again, not by a
    function that was removed and deployed anew either: ids of what it publishes hold them."""


UNKNOWN = Known(0, None, 0)


class Registry:
    """One site's view of the registry. `changed` is called with the name of a function that is new,
    changed, or gone."""

    def __init__(self, access: Access, changed: Callable[[str], None]) -> None:
        self._access = access
        self._homes = Homes(access.jetstream, access.routes, access.reader)
        self._changed = changed
        self._known: dict[str, Known] = {}
        self._publisher: Publisher | None = None
        self._arrived = asyncio.Condition()
        self.caught_up = asyncio.Event()
        """Whether all is known that this site's copy held when it was first read."""

    def close(self) -> None:
        """Stop writing."""
        if self._publisher is not None:
            self._publisher.close()

    # Reading

    @property
    def functions(self) -> dict[str, Function]:
        """All functions, by name."""
        return {
            name: known.function
            for name, known in self._known.items()
            if known.function is not None
        }

    @property
    def is_empty(self) -> bool:
        """Whether there never was a function, as far as is known here."""
        return not self._known

    def get(self, name: str) -> Function | None:
        """A function as it is known here."""
        return self._known.get(name, UNKNOWN).function

    async def newest(self, name: str) -> Known:
        """What the registry's home says of a name."""
        topic = f"{SPECS}/{check_function(name)}"
        index = await self._homes.newest(topic)
        known = self._known.get(name, UNKNOWN)
        if index == known.revision:
            return known
        if not index:
            return UNKNOWN
        try:
            async with asyncio.timeout(KNOW_TIME):
                while True:
                    try:
                        data = (await self._access.reader.get(topic, index)).data
                        return _read(name, index, data, known)
                    except NotYet:
                        await asyncio.sleep(0.02)
        except AgedOut:  # somebody has changed it since
            return await self.newest(name)
        except TimeoutError:
            raise Unavailable(
                f"this site's copy of {REGISTRY} is behind", "Try again; look with `skerry links`."
            ) from None

    async def found(self, name: str) -> tuple[Known, Function]:
        """The same of a function that must be there; else raises `UnknownFunction`."""
        try:
            known = await self.newest(name)
        except UnknownTopic:
            known = UNKNOWN
        if known.function is None:
            raise unknown_function(name, self.functions)
        return known, known.function

    async def code(self, digest: str) -> bytes:
        """Code, verified."""
        topic = f"{CODES}/{digest}"
        index = await self._access.reader.latest_index(topic)
        if not index:
            raise Unavailable(f"the code {digest[:12]} is not here yet", "It is waited for.")
        data = (await self._access.reader.get(topic, index)).data
        if hashlib.sha256(data).hexdigest() != digest:
            raise FolderCorrupt(f"the code {digest[:12]} in {REGISTRY} is not what it should be")
        return data

    # Writing

    async def put_code(self, digest: str, code: bytes) -> None:
        """Keep code. It is there, for all sites, when this returns."""
        await (await self._write(code, f"{CODES}/{digest}"))

    async def put(self, function: Function, before: Known) -> None:
        """Write a function down if what is known of it is still `before`. Returns when it is known
        here; raises `Conflict`."""
        await self._put(function.name, msgspec.json.encode(function), before)

    async def remove(self, name: str, before: Known) -> None:
        """Write down that a function is gone."""
        await self._put(name, msgspec.json.encode({"removed": before.last}), before)

    async def _put(self, name: str, data: bytes, before: Known) -> None:
        topic = f"{SPECS}/{name}"
        try:
            index = await (await self._write(data, topic, only_if(topic, before.revision)))
        except Conflict:
            # What is sent again after a lost answer is refused by its own first copy.
            newest = await self.newest(name)
            if newest != _read(name, newest.revision, data, newest):
                raise Conflict(
                    f"somebody else changed the function {name} at the same time",
                    f"See what it is now with `skerry function show {name}`; if you still want to "
                    "change it, do so again.",
                ) from None
            index = newest.revision
        await self.know(name, index)

    async def _write(self, data: bytes, topic: str, mark: bytes = b"") -> asyncio.Future[int]:
        if self._publisher is None:
            self._publisher = self._access.publisher(REGISTRY, ack=None, timeout=WRITE_TIME)
        return await self._publisher.send(data, topic=topic, mark=mark)

    async def know(self, name: str, index: int) -> None:
        """Wait until what was written at `index` is known here, but not for ever."""

        def there() -> bool:
            return self._known.get(name, UNKNOWN).revision >= index

        try:
            async with asyncio.timeout(KNOW_TIME), self._arrived:
                await self._arrived.wait_for(there)
        except TimeoutError:
            log.warning("this site has not heard yet of the change of the function %s", name)

    # Following

    async def follow(self) -> None:
        """Take in what is written, until the topic is gone."""
        reader = self._access.reader
        while True:
            try:
                async with await reader.subscribe(SPECS, from_time=BEGINNING) as events:
                    newest = await reader.latest_index(SPECS)
                    if not newest:
                        self.caught_up.set()
                    async for event in events:
                        name = event.topic.rsplit("/", 1)[-1]
                        await self._take(name, event.index, event.data)
                        if event.index >= newest:
                            self.caught_up.set()
            except UnknownTopic:
                gone, self._known = list(self.functions), {}
                if self._publisher is not None:
                    self._publisher.close()
                    self._publisher = None
                for name in gone:
                    self._changed(name)
                self.caught_up.set()
                return
            except (SkerryError, Down) as error:
                log.info("the functions cannot be read now: %s", error)
            await asyncio.sleep(AGAIN)

    async def _take(self, name: str, index: int, data: bytes) -> None:
        if index <= self._known.get(name, UNKNOWN).revision:
            return
        self._known[name] = _read(name, index, data, self._known.get(name, UNKNOWN))
        self._changed(name)
        async with self._arrived:
            self._arrived.notify_all()


def unknown_function(name: str, functions: dict[str, Function]) -> UnknownFunction:
    """The error for a function that is not there."""
    known = ", ".join(sorted(functions)) or "none"
    return UnknownFunction(
        f"there is no function {name!r}",
        f"There are: {known}. Deploy one with `skerry function deploy`.",
    )


class _Removed(msgspec.Struct):
    removed: int


def _read(name: str, index: int, data: bytes, before: Known) -> Known:
    """What stands at an index. It is looked at as closely as when somebody deploys it, for it
    decides what is installed and run; what is no good is set aside, and what was known before
    counts."""

    def fits(function: Function) -> bool:
        return function.check().name == name

    where = f"{SPECS}/{name}"
    if b'"removed"' in data and (gone := read(data, _Removed, where)) is not None:
        return Known(index, None, gone.removed)
    function = read(data, Function, where, fits=fits)
    if function is None:
        return Known(index, before.function, before.last)
    return Known(index, function, function.current.number)
