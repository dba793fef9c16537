"""The streams of one site's topics: which there are, and changing one of them.

What they are to be is decided by `Copies`. Whoever changes a stream holds the lock of its `Local`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from skerry.directory.store import Store
from skerry.engine.jetstream import STREAM_NOT_FOUND, ApiError, JetStream
from skerry.errors import FabricError
from skerry.fabric.streams import (
    MARKS,
    OPENING,
    Local,
    copy_config,
    home_config,
    learn,
    reserve_config,
    reserve_in,
    restored_config,
    whole,
)
from skerry.model.fabric import TopicEntry, topic_key
from skerry.model.names import reserve_of, topic_of_reserve, topic_of_stream
from skerry.model.promotion import Copy

Info = dict[str, Any]
"""What the engine says of a stream."""

STANDSTILL = 10.0
"""Seconds after which copying a log at one engine, without getting on, is given up."""


class Logs:
    """The streams of one site. Each topic has one `Local`, which stays the same for as long as
    there is a stream, or somebody who wants one."""

    def __init__(
        self, jetstream: JetStream, site: str, fabric: str, store: Store, deliver_plain: bool
    ) -> None:
        self.site = site
        self._jetstream = jetstream
        self._fabric = fabric
        self._store = store
        self._deliver_plain = deliver_plain
        self._locals: dict[str, Local] = {}
        self.unfinished: set[str] = set()
        """Topics whose log was being put aside when the site went down."""

    def __iter__(self) -> Iterator[Local]:
        return iter(list(self._locals.values()))

    def get(self, name: str) -> Local | None:
        """The topic's stream here, if anybody knows of it."""
        return self._locals.get(name)

    def of(self, name: str) -> Local:
        """The topic's stream here, to be."""
        if name not in self._locals:
            self._locals[name] = Local(name, self.site)
        return self._locals[name]

    def entry(self, name: str) -> TopicEntry | None:
        """Where a topic lives, as far as this site knows."""
        return self._store.get(topic_key(name), TopicEntry)

    # What the engine has

    def load(
        self, streams: Iterable[Info], now: float, before: Mapping[str, Copy] | None = None
    ) -> None:
        """Learn what is here; forget what is gone and not wanted. `before` are the copies as they
        were when the engine was asked: it takes a while to tell, and one that was begun anew since
        is known better."""
        before = before or {}

        def is_older(local: Local) -> bool:
            known = before.get(local.name, local.copy)
            return local.lock.locked() or local.is_busy or known is not local.copy

        there: set[str] = set()
        for info in streams:
            stream = info["config"]["name"]
            if (owner := topic_of_reserve(stream)) is not None:
                kept = self.of(owner)
                if is_older(kept):
                    continue
                if (found := reserve_in(self.site, info)) is not None:
                    kept.copy.reserve = found
                else:
                    self.unfinished.add(owner)
                continue
            name = topic_of_stream(stream)
            if name is None:
                continue
            there.add(name)
            local = self.of(name)
            if is_older(local):
                continue  # whoever changes it knows better
            learn(local, info, self._fabric)
            if local.kind == "copy" and not local.is_wanted:
                local.touched = now  # until it proves to be idle
        for local in self:
            if local.name not in there and not is_older(local):
                local.kind = ""
                if not local.is_wanted and not local.is_busy and local.copy.reserve is None:
                    del self._locals[local.name]

    async def info(self, local: Local) -> Info | None:
        """What the engine says of a stream now."""
        return await self._jetstream.stream(local.stream)

    async def look(self, local: Local) -> Info | None:
        """The same, taken in."""
        info = await self.info(local)
        if info is None:
            local.kind = ""
            local.copy = Copy(self.site, reserve=local.copy.reserve)
        else:
            learn(local, info, self._fabric)
        return info

    async def measure(self, local: Local) -> int:
        """The last index of a log that must be there."""
        info = await self.info(local)
        if info is None:
            local.kind = ""
            raise FabricError(
                f"site {self.site} has lost its log of {local.name}",
                "Restore the data folder, or move the topic to a site that has a copy.",
            )
        local.copy.last = int(info["state"]["last_seq"])
        local.count = int(info["state"]["messages"])
        return local.copy.last

    # Changing one

    def home(self, local: Local, entry: TopicEntry) -> Info:
        """The configuration of the topic's home here."""
        return home_config(local, entry, self._fabric, self._deliver_plain)

    def copy(self, local: Local, entry: TopicEntry) -> Info:
        """The configuration of a copy here."""
        return copy_config(local, entry, self._fabric, self._deliver_plain and local.delivers)

    async def create(self, local: Local, config: Info) -> None:
        """Make the stream."""
        await self._jetstream.call(f"STREAM.CREATE.{local.stream}", config)

    async def update(self, local: Local, config: Info) -> None:
        """Change the stream."""
        try:
            await self._jetstream.call(f"STREAM.UPDATE.{local.stream}", config)
        except ApiError as error:
            if error.code == STREAM_NOT_FOUND:
                local.kind = ""
            raise

    async def write_marks(self, local: Local) -> None:
        """Write down what the copy has promised and reached."""
        info = await self.info(local)
        if info is None:
            return
        config = info["config"]
        marks = {f"skerry.{mark}": str(getattr(local.copy, mark)) for mark in MARKS}
        await self.update(
            local, {**config, "metadata": {**(config.get("metadata") or {}), **marks}}
        )

    async def freeze(self, local: Local, opening: bool = False) -> None:
        """Have a home take no more events; learn where it ends. With `opening` only until its
        members were asked."""
        if local.kind != "home":
            return
        info = await self.info(local)
        if info is None:
            local.kind = ""
            return
        config = {
            key: value for key, value in info["config"].items() if key not in ("sources", "mirror")
        }
        config["subjects"] = [f"_frozen.{local.stream}"]
        if opening:
            config["metadata"] = {**(config.get("metadata") or {}), OPENING: "1"}
        await self.update(local, config)
        local.kind = "frozen"
        local.is_reopened = opening
        local.sources.clear()
        await self.measure(local)

    async def delete(self, local: Local) -> None:
        """Remove the stream and all that it held; a reserve stays."""
        with contextlib.suppress(ApiError):
            await self._jetstream.call(f"STREAM.DELETE.{local.stream}")
        local.kind = ""
        local.parent = ""
        local.copy = Copy(self.site, reserve=local.copy.reserve)

    # Reserves

    async def put_aside(self, local: Local, entry: TopicEntry) -> None:
        """Have a second stream here hold all that the log holds, and count for it."""
        await self.measure(local)
        name = reserve_of(local.name)
        config = reserve_config(local, entry.settings, self._fabric)
        await self.drop_reserve(local)
        await self._jetstream.call(f"STREAM.CREATE.{name}", config)
        await self._fill(local.stream, name)
        # From now on it follows nobody, whatever becomes of the log.
        del config["mirror"]
        config["subjects"] = [f"_frozen.{name}"]
        config["metadata"] |= whole(local)
        info = await self._jetstream.call(f"STREAM.UPDATE.{name}", config)
        local.copy.reserve = reserve_in(self.site, info)

    async def bring_back(self, local: Local, entry: TopicEntry) -> None:
        """Have the reserve as the log again; it stays until that is promoted."""
        reserve = local.copy.reserve
        assert reserve is not None
        await self.delete(local)
        config = restored_config(local, entry.settings, self._fabric)
        await self._jetstream.call(f"STREAM.CREATE.{local.stream}", config)
        await self._fill(reserve_of(local.name), local.stream)
        if await self.measure(local) < reserve.last:
            raise FabricError(
                f"the log of {local.name} that was put aside ends before index {reserve.last}",
                "Start the site that was the topic's home last.",
            )
        local.kind = "copy"
        local.copy.restore()

    async def _fill(self, origin: str, mirror: str) -> None:
        """Wait until a mirror at this engine has what its origin has."""
        most, deadline = -1, 0.0
        while True:
            wanted = (await self._jetstream.call(f"STREAM.INFO.{origin}"))["state"]
            have = (await self._jetstream.call(f"STREAM.INFO.{mirror}"))["state"]
            if have["messages"] >= wanted["messages"] and have["last_seq"] >= wanted["last_seq"]:
                return
            now = asyncio.get_running_loop().time()
            if have["messages"] > most:
                most, deadline = have["messages"], now + STANDSTILL
            elif now > deadline:
                raise FabricError(
                    f"{origin} could not be copied into {mirror}: it ends at {have['last_seq']}",
                    "Is there room on the disk, and below --max-store?",
                )
            await asyncio.sleep(0.01)

    async def is_of_former_home(self, local: Local) -> bool:
        """Whether the reserve was written by a home, not by one that followed it."""
        info = await self._jetstream.stream(reserve_of(local.name))
        marks = info["config"].get("metadata") or {} if info else {}
        return marks.get("skerry.former") == "1"

    async def drop_reserve(self, local: Local) -> None:
        """Remove the log that was put aside."""
        with contextlib.suppress(ApiError):
            await self._jetstream.call(f"STREAM.DELETE.{reserve_of(local.name)}")
        local.copy.reserve = None
