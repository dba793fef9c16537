"""MQTT with QoS 1 and 2 between sites.

Theory of operation. The engine hands what an MQTT client published with QoS 1 or 2 to subscribers
with QoS 1 or 2 only out of its own stream `$MQTT_msgs`, and files it there at the publisher's site
alone (docs/adr/0003-plain-publish.md). At every other site the event arrives by the topic's log,
which delivers it on `t.…` with the publisher's QoS mark, and such subscribers are passed over. So
the agent of their site files it: it listens where sessions with QoS 1 or 2 have subscribed, present
or not, and puts what bears the mark and comes from elsewhere into `$MQTT_msgs`. The rest is between
the engine and the device.

An event is known by the outbox that it came from and its place there, so that it is filed once
however often it is delivered. What is delivered while the agent is away, or in the last
milliseconds before the engine crashes, is not filed.

The agent so reads every event of these topics, which costs it 2 µs, and 5 for one that it files
(measured). It does so over a connection of its own, so that nothing else waits behind them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable

from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.engine.wire import Connection
from skerry.errors import SkerryError
from skerry.fabric.tasks import Tasks

log = logging.getLogger("skerry.fabric")

STREAM = "$MQTT_msgs"
FILED = "$MQTT.msgs."
LOOK = 0.1
"""Seconds from a new MQTT subscription to a look at all of them; more come meanwhile."""
AGAIN = 30.0
"""Seconds between looks although nothing was heard."""

_MARK = re.compile(rb"\r\nNmqtt-Pub: ?([12])\r\n")
_LOG = re.compile(rb"\r\nNats-Stream: ?(\S+)\r\n(?:[^\r]*\r\n)*?Nats-Sequence: ?(\d+)\r\n")
_SOURCE = re.compile(rb"\r\nNats-Stream-Source: ?(\S+) (\d+) [^\r]* o\.([^. \r]+)\.[^ \r]*\r\n")


class Filer:
    """Decides which events to file, and how; knows which were filed. No I/O."""

    def __init__(self, site: str) -> None:
        self._site = site.encode()
        self._filed: dict[tuple[bytes, bytes], tuple[int, int]] = {}
        """By log and outbox: place there and index of the last event filed."""

    def file(self, head: bytes) -> bytes | None:
        """The header to file an event with that arrived with `head`; None: it is not to be."""
        mark, log_, source = _MARK.search(head), _LOG.search(head), _SOURCE.search(head)
        if mark is None or log_ is None or source is None or source[3] == self._site:
            return None
        outbox, place, index = source[1], int(source[2]), int(log_[2])
        last_place, last_index = self._filed.get((log_[1], outbox), (0, 0))
        # Both: a log that is copied anew has the old indexes, an outbox made anew the old places.
        if place <= last_place and index <= last_index:
            return None
        self._filed[log_[1], outbox] = (place, index)
        return b"NATS/1.0\r\nNmqtt-Pub:%b\r\nNats-Msg-Id:%b-%d\r\n\r\n" % (mark[1], outbox, place)


class Mqtt:
    """Files events of other sites for MQTT sessions of this one."""

    def __init__(
        self, jetstream: JetStream, site: str, connect: Callable[[], Awaitable[Connection]]
    ) -> None:
        self._jetstream = jetstream
        self._connect = connect
        self._filer = Filer(site)
        self._events: Connection | None = None
        self._listening: dict[str, bytes] = {}
        """Subjects of `t.…` that we listen on, and the subscriptions."""
        self._changed = asyncio.Event()
        self._tasks = Tasks("filing for MQTT sessions")

    async def start(self) -> None:
        """Listen for the sessions that there are; from now on, for others as they come and go."""
        self._events = await self._connect()
        advisories = f"$JS.EVENT.ADVISORY.CONSUMER.*.{STREAM}.*"
        self._jetstream.connection.subscribe(advisories, lambda *_: self._changed.set())
        await self._look()
        self._tasks.spawn(self._keep())

    async def close(self) -> None:
        """Stop; what was filed stays."""
        await self._tasks.close()
        if self._events is not None:
            await self._events.close()

    async def _keep(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN):
                    await self._changed.wait()
            await asyncio.sleep(LOOK)
            self._changed.clear()
            await self._look()

    async def _look(self) -> None:
        """Listen on exactly what sessions want with QoS 1 or 2."""
        assert self._events is not None
        try:
            wanted = await self._wanted()
        except (SkerryError, Down) as error:
            log.debug("MQTT sessions: %s", error)
            return
        for subject in self._listening.keys() - wanted:
            self._events.unsubscribe(self._listening.pop(subject))
        for subject in wanted - self._listening.keys():
            self._listening[subject] = self._events.subscribe(subject, self._on_event)

    async def _wanted(self) -> set[str]:
        found: set[str] = set()
        offset, total = 0, 1
        while offset < total:
            page = await self._jetstream.call(f"CONSUMER.LIST.{STREAM}", {"offset": offset})
            consumers = page.get("consumers") or []
            for consumer in consumers:
                subject = str(consumer["config"].get("filter_subject", "")).removeprefix(FILED)
                if subject.startswith("t."):
                    found.add(subject)
            offset, total = offset + max(len(consumers), 1), page["total"]
        return found

    def _on_event(self, subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
        if b"Nmqtt-Pub" not in head:
            return
        filed = self._filer.file(head)
        if filed is not None and self._events is not None:
            with contextlib.suppress(Down):
                self._events.publish(FILED.encode() + subject, data, head=filed)
