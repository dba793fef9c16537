"""Events for topics that do not exist: kept where a person finds them, and counted.

Theory of operation. A client without the SDK cannot be told that there is no such topic: MQTT
acknowledges before anybody has looked, and a NATS publish without a reply is never answered. So the
site keeps what no topic takes in a log of its own, `strays/<site>`, as `strays/<site>/<topic>`. It
is made with the first of them, holds little, and forgets the oldest. Its index counts them.

At a site that stands alone the engine maps plain publishes to subjects that nobody else writes to
(docs/adr/0003-plain-publish.md), and the agent listens there beside the topics. So it hears every
plain publish, none of the SDK's, and passes over what a topic takes. That costs 1 µs an event here,
and the engine less than that (measured). It does so over a connection of its own, so that nothing
else waits behind them; what is published while the agent is away is not seen. Since somebody
listens now wherever a plain client may publish, the engine no longer answers a request to no topic
with "no responders": the agent does.

In a fabric plain publishes go to the site's outbox, which hands over what no topic takes.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from skerry.engine.jetstream import JetStream, error_of
from skerry.engine.link import Down
from skerry.engine.wire import Connection
from skerry.errors import EventTooLarge, SkerryError
from skerry.fabric.streams import OUTBOX
from skerry.fabric.tasks import Tasks
from skerry.functions.places import Places
from skerry.log.segments import Moved, last_index, look, segment_at
from skerry.model.event import parse_headers
from skerry.model.fabric import TopicEntry
from skerry.model.names import (
    outbox_subject,
    plain_subject,
    source_bytes,
    stored_subject,
    stray_topic,
    strays_of,
    topic_of_subject,
    write_subject,
)

log = logging.getLogger("skerry.site")

KEEP_BYTES = 16 * 1024 * 1024
KEEP_AGE = 30 * 24 * 3600.0
"""Bytes and seconds: enough to see what went astray, and too little to fill a disk with."""
WAITING = 1000
"""Events that wait for the log or for room, and that are taken of one subject of the outbox."""
NAMED = 100
"""Topics that the site's own log names; one that counts upwards would fill it."""
REMEMBERED = 10_000
"""Subjects that are known to be a topic's, so that they need not be looked up again."""
AGAIN = 5.0
"""Seconds before the log is tried again that could not be made."""

_OWN_LINES = re.compile(rb"^(?:nats|nmqtt)-[^\r]*\r\n", re.IGNORECASE | re.MULTILINE)


class Strays:
    """Keeps what is published to topics that do not exist."""

    def __init__(
        self, places: Places, jetstream: JetStream, connect: Callable[[], Awaitable[Connection]]
    ) -> None:
        self.topic = strays_of(places.site)
        self._site = places.site
        self._places = places
        self._jetstream = jetstream
        self._connect = connect
        self._events: Connection | None = None
        self._skip = len(plain_subject(places.site, ""))
        # A reply is any subject that the publisher chose, and we may publish anywhere.
        self._inbox = re.compile(rb"_INBOX\.")
        self._claimed: set[bytes] = set()
        """Subjects that a topic takes."""
        self._waiting: deque[tuple[str, bytes, bytes]] = deque()
        """Events, as topic, header and payload, that wait for the log to be made, or for room."""
        self._waiting_bytes = 0
        self._not_before = 0.0
        self._said_lost = -AGAIN
        self._named: set[str] = set()
        self._tasks = Tasks("keeping events without a topic")

    async def start(self) -> None:
        """Listen to plain publishes, at a site that stands alone."""
        self._events = await self._connect()
        self._places.watch(lambda *_: self._claimed.clear())
        self._events.subscribe(plain_subject(self._site, ">"), self._on_event)

    async def close(self) -> None:
        """Stop; what is kept stays."""
        await self._tasks.close()
        if self._events is not None:
            await self._events.close()

    async def kept(self) -> tuple[int, int, str]:
        """How many there ever were, how many are kept now, and the topic of the last."""
        kept = await look(self._jetstream, self.topic)
        if kept is None or not kept.events:
            return 0 if kept is None else kept.last, 0, ""
        name = ""
        with contextlib.suppress(SkerryError, Moved):
            subject = stored_subject(f"{self.topic}/>")
            index = await last_index(self._jetstream, kept.chain, subject)
            stream = segment_at(kept.chain, index).stream
            found = await self._direct_get(stream, {"seq": index})
            if found is not None:
                name = topic_of_subject(found[0]["Nats-Subject"]).removeprefix(f"{self.topic}/")
        return kept.last, kept.events, name

    # At a site that stands alone

    def _on_event(self, subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
        if subject in self._claimed:
            return
        topic = subject[self._skip :].decode("utf-8", "replace").replace(".", "/")
        if self._is_claimed(topic):
            if len(self._claimed) >= REMEMBERED:
                self._claimed.clear()
            self._claimed.add(subject)
        elif self._inbox.match(reply):
            self._refuse(reply)
        elif self._can_write and not self._waiting:
            self._write(topic, head, data)
        elif (
            len(self._waiting) < WAITING
            and self._waiting_bytes < KEEP_BYTES
            and self._jetstream.connection.now() >= self._not_before
        ):
            self._waiting.append((topic, head, data))
            self._waiting_bytes += len(head) + len(data)
            if len(self._waiting) == 1:
                self._tasks.spawn(self._begin())
        elif self._waiting and self._jetstream.connection.now() >= self._said_lost + AGAIN:
            self._said_lost = self._jetstream.connection.now()
            log.warning(
                "events for topics that do not exist, such as %s, come too fast to be kept; some "
                "are lost", topic,
            )  # fmt: skip

    @property
    def _can_write(self) -> bool:
        assert self._events is not None
        return self._places.log(self.topic) is not None and not self._events.is_congested

    def _is_claimed(self, topic: str) -> bool:
        tokens = topic.split("/")
        return any(
            self._places.log("/".join(tokens[: n + 1])) is not None for n in range(len(tokens))
        )

    def _refuse(self, reply: bytes) -> None:
        """Answer as the engine does where nobody listens; the publisher then knows."""
        assert self._events is not None
        with contextlib.suppress(Down):
            self._events.publish(reply, head=b"NATS/1.0 503\r\n\r\n")

    async def _begin(self) -> None:
        """Make the log for those that wait, and write them as fast as the engine takes them; they
        are given up if that fails."""
        assert self._events is not None
        try:
            await self._make()
        except (SkerryError, Down) as error:
            self._not_before = self._jetstream.connection.now() + AGAIN
            log.warning(
                "%d events for topics that do not exist, such as %s, are lost: %s",
                len(self._waiting), self._waiting[0][0], error,
            )  # fmt: skip
            self._waiting.clear()
            self._waiting_bytes = 0
        while self._waiting:
            await self._events.room()
            topic, head, data = self._waiting[0]
            self._write(topic, head, data)
            self._waiting.popleft()
            self._waiting_bytes -= len(head) + len(data)

    def _write(self, topic: str, head: bytes, data: bytes) -> None:
        assert self._events is not None
        self._say(topic)
        subject = write_subject(self._site, stray_topic(self._site, topic))
        with contextlib.suppress(Down):
            self._events.publish(subject, data, head=_own_head(head))

    # In a fabric

    async def take(self, topic: str, subject: str) -> None:
        """Keep what the outbox holds on `subject`, and remove it there. It goes the way that all
        events of the outbox go, for the log may have another home by now."""
        await self._make()
        if self._places.log(self.topic) is None:
            return  # the directory has yet to tell of it here; they are handed over again
        self._say(topic)
        is_literal = not {"*", ">"} & set(subject.split("."))
        if is_literal:
            await self._jetstream.call(
                f"STREAM.PURGE.{OUTBOX}", {"filter": subject, "keep": WAITING}
            )
        to = outbox_subject(self._site, stray_topic(self._site, topic))
        place = 0
        for _ in range(WAITING):
            found = await self._direct_get(OUTBOX, {"next_by_subj": subject, "seq": place + 1})
            if found is None:
                return
            place = int(found[0]["Nats-Sequence"])
            if found[0]["Nats-Subject"] == subject:  # else that is a pattern, published to
                await self._keep(to, *found)

    async def take_large(self, entry: TopicEntry, index: int) -> None:
        """Keep the first event that the outbox holds for a topic behind `index`, if the topic does
        not take it: it would hold up all behind it for ever."""
        subject = outbox_subject(self._site, entry.name)
        firsts = [
            await self._direct_get(OUTBOX, {"next_by_subj": one, "seq": index + 1})
            for one in (subject, f"{subject}.>")
        ]
        there = [found for found in firsts if found is not None]
        if not there:
            return
        headers, head, data = min(there, key=lambda found: int(found[0]["Nats-Sequence"]))
        size = len(_own_head(head)) + len(data)
        added = source_bytes(self._site, entry.name, headers["Nats-Subject"])
        if size + added <= (entry.settings.max_event_bytes or sys.maxsize):
            return
        await self._make()
        topic = headers["Nats-Subject"].removeprefix(f"o.{self._site}.").replace(".", "/")
        log.warning(
            "an event for %s has %d bytes, more than its topic takes; `skerry read %s` shows it",
            topic, len(data), self.topic,
        )  # fmt: skip
        await self._keep(
            outbox_subject(self._site, stray_topic(self._site, topic)), headers, head, data
        )

    async def _keep(self, to: str, headers: dict[str, str], head: bytes, data: bytes) -> None:
        """Move an event within the outbox."""
        place = int(headers["Nats-Sequence"])
        head = _own_head(head, f"Nats-Msg-Id:stray-{place}\r\n".encode())
        reply = await self._jetstream.ask(to, data, head)
        error = error_of(msgspec.json.decode(reply.data))
        if isinstance(error, EventTooLarge):  # with the id it is; what it says comes first
            reply = await self._jetstream.ask(to, data)
            error = error_of(msgspec.json.decode(reply.data))
        if error is not None:
            raise error
        await self._jetstream.call(f"STREAM.MSG.DELETE.{OUTBOX}", {"seq": place})

    # Both

    async def _make(self) -> None:
        settings = {"max_bytes": KEEP_BYTES, "max_age": KEEP_AGE}
        await self._places.make(self.topic, settings, self._site)

    def _say(self, topic: str) -> None:
        if topic in self._named or len(self._named) >= NAMED:
            return
        self._named.add(topic)
        log.warning(
            "there is no topic %r, and events are published to it; `skerry read %s` shows them",
            topic, self.topic,
        )  # fmt: skip
        if len(self._named) == NAMED:
            log.warning("no more topics that do not exist are named here")

    async def _direct_get(
        self, stream: str, body: dict[str, Any]
    ) -> tuple[dict[str, str], bytes, bytes] | None:
        """Headers, their bytes, and payload of a stored message; None: there is none."""
        subject = f"{self._jetstream.prefix}DIRECT.GET.{stream}"
        reply = await self._jetstream.ask(subject, msgspec.json.encode(body))
        if reply.status:
            return None
        return parse_headers(reply.head), reply.head, reply.data


def _own_head(head: bytes, more: bytes = b"") -> bytes:
    """A header block without what it tells the engine, and with `more`."""
    lines = _OWN_LINES.sub(b"", head.partition(b"\r\n")[2]).rstrip(b"\r\n")
    return b"NATS/1.0\r\n" + more + (lines + b"\r\n" if lines else b"") + b"\r\n"
