"""A topic leaves its home, and somebody still holds the directory's entry from before."""

from __future__ import annotations

import sys

from skerry import Client
from skerry.log.route import Routes
from skerry.model.fabric import TopicEntry
from skerry.testing import LocalFabric
from tests.conftest import until


async def leave(fabric: LocalFabric, admin: Client, topic: str, target: str) -> TopicEntry:
    """Move a topic, and wait until the stream that was its home's is empty; return the entry from
    before."""
    entry = await admin._open.routes.find(topic)
    assert entry is not None
    part = fabric.agent(entry.home).fabric
    assert part is not None
    await admin.move_topic(topic, target)

    async def is_empty() -> bool:
        info = await part.copies._jetstream.stream(entry.stream)
        return info is not None and not info["state"]["messages"]

    await until(is_empty, 60)
    return entry


def hold(routes: Routes, entry: TopicEntry) -> None:
    """Have a client hear of nothing that came behind `entry`."""
    routes._entries[entry.name] = (sys.maxsize, entry)


def let_go(routes: Routes, entry: TopicEntry) -> None:
    """Have it look again."""
    del routes._entries[entry.name]
