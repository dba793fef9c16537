"""Whether who was read at is a topic's home."""

from __future__ import annotations

import msgspec

from skerry.directory.store import PREFIX, STREAM
from skerry.engine.link import Down
from skerry.engine.wire import Connection
from skerry.errors import Unavailable
from skerry.model.fabric import TopicEntry, topic_key
from skerry.model.records import read

ANSWER = 2.0
"""Seconds without an answer after which the home counts as away."""


async def check_home(connection: Connection, home: str, topic: str, stream: str) -> None:
    """Raise `Unavailable` unless site `home` takes itself for the home of `topic`, in `stream`.

    Whoever read there asks this afterwards. A site that hears of another home goes on in another
    stream, and soon empties the one that was the home's: whoever knows only the earlier entry finds
    nothing there, and no error. The site's agent acts on what its engine's copy of the directory
    has. So if that still has such an entry, all that was read before was read from the home, be its
    epoch another one. (What the emptied stream says of itself does not tell: its metadata is that
    of the home which it was. And clients may not ask another site's engine for that.)"""
    key = topic_key(topic)
    body = msgspec.json.encode({"last_by_subj": PREFIX + key})
    try:
        reply = await connection.request(
            f"$JS.{home}.API.DIRECT.GET.{STREAM}", body, timeout=ANSWER
        )
    except (Down, TimeoutError):
        raise Unavailable(f"site {home} does not answer for {topic}") from None
    known = None
    if not reply.status and reply.data:  # else it is deleted, or nobody is there
        known = read(reply.data, TopicEntry, key, is_newest=False)
    if known is None or (known.home, known.stream) != (home, stream):
        raise Unavailable(f"{home} is not the home of {topic} yet, or not any more")
