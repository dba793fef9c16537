"""Feeds and queries for clients without the SDK: requests on `q.in.<client>`, answers on
`q.out.<client>` (docs/simple-clients.md).

Theory of operation. Requests of one client are carried out in order, one at a time; those of
different clients beside each other. What a client sends beyond `WAITING` is refused at once and
costs next to nothing, so one that floods delays only itself. They come over a connection of their
own: if even reading them is too much, the engine slows their senders and nobody else.

No event passes through here, except those that come with a request to publish: clients listen where
the engine tells of them (see `skerry.feeds.simple_held`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from skerry.config import ClientSettings
from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.engine.wire import Connection, Listener
from skerry.errors import BadSetting, SkerryError, Unavailable
from skerry.fabric.tasks import Tasks
from skerry.feeds.simple_held import Held, Places, fault_of, owner_of
from skerry.feeds.site import Feeds
from skerry.log.append import Publisher
from skerry.log.route import Routes
from skerry.model.control import ChangeRequest, RegisterRequest, RemoveRequest, RenewRequest
from skerry.model.event import VERSION_HEADER
from skerry.model.feeds import Feed
from skerry.model.names import check_not_own
from skerry.model.simple import (
    AnyRequest,
    End,
    Publish,
    Query,
    Register,
    Remove,
    Renew,
    Set,
    check_client,
    is_msgpack,
    log_of,
    payload_of,
    read,
    ref_of,
    written,
)

log = logging.getLogger("skerry.simple")

REQUESTS, ANSWERS = "q.in.", "q.out."
WAITING = 32
"""Requests of one client that wait at the most."""
WAITING_BYTES = 64 * 1024 * 1024
"""Bytes of all requests that wait at the most."""
PATIENCE = ClientSettings().timeout
"""Seconds that a request to publish may wait for its event's acknowledgement; the client's next
ones wait behind it."""
PUBLISHERS = 64
"""Topics that are kept ready to be published to."""
LOOK = 1.0
"""Seconds between looks at who is silent."""
AGAIN = 0.5
"""Seconds before a connection that could not be made is tried again."""
START = 2.0
"""Seconds that a site waits for this service when it starts."""


class SimpleClients(Listener):
    """Serves the simple clients of one site. `connect` makes a connection of its own to the
    engine; `places` knows where feeds can be listened to."""

    def __init__(
        self, feeds: Feeds, connect: Callable[[], Awaitable[Connection]], places: Places
    ) -> None:
        self.held = Held(feeds, places, self._say)
        self._feeds = feeds
        self._connect = connect
        self._connection: Connection | None = None
        self._serves = asyncio.Event()
        self._routes: Routes | None = None
        self._publishers: dict[str, Publisher] = {}
        self._waiting: dict[str, deque[bytes]] = {}
        self._bytes = 0
        self._tasks = Tasks("the service of simple clients")

    async def start(self) -> None:
        """Begin to serve. A request that nobody takes is lost, and its client waits for ever; so
        this returns when requests are taken, unless the engine keeps us waiting."""
        self._tasks.spawn(self._run())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START):
                await self._serves.wait()

    async def close(self) -> None:
        """Stop; what clients hold expires, or is asked for again."""
        await self._tasks.close()
        await self.held.close()
        for publisher in self._publishers.values():
            publisher.close()
        if self._connection is not None:
            await self._connection.close()

    def on_up(self) -> None:
        """The connection is back; differences that were told meanwhile are lost."""
        self.held.end_all("the site's agent had lost its engine")

    async def _run(self) -> None:
        while True:
            try:
                connection = self._connection = await self._connect()
                break
            except (SkerryError, Down) as error:
                log.warning("simple clients are not served yet: %s", error)
                await asyncio.sleep(AGAIN)
        self._routes = Routes(JetStream(connection))
        connection.listen(self)
        connection.subscribe(REQUESTS + "*", self._on_request)
        with contextlib.suppress(SkerryError, Down, TimeoutError):
            await JetStream(connection).call("INFO")  # behind what was said before it
        self._serves.set()
        while True:
            await asyncio.sleep(LOOK)
            self.held.look()

    # Requests

    def _on_request(self, subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
        client = subject[len(REQUESTS) :].decode("ascii", "replace")
        try:
            check_client(client)
        except SkerryError as error:
            if client.isascii() and client.isprintable():
                self._refuse(client, data, error)
            return
        waiting = self._waiting.get(client)
        if self._bytes + len(data) > WAITING_BYTES:
            what = "too many requests wait at this site; this one was not taken"
            self._refuse(client, data, Unavailable(what, "Send it again."))
        elif waiting is not None and len(waiting) >= WAITING:
            what = f"{WAITING} requests of {client} wait already; this one was not taken"
            advice = "Wait for answers, and publish events without a change directly."
            self._refuse(client, data, Unavailable(what, advice))
        else:
            self._bytes += len(data)
            if waiting is None:
                waiting = self._waiting[client] = deque()
                self._tasks.spawn(self._work(client, waiting))
            waiting.append(data)

    def _refuse(self, client: str, data: bytes, error: SkerryError) -> None:
        if self._connection is not None and not self._connection.is_congested:
            self._fail(client, data, error)

    async def _work(self, client: str, waiting: deque[bytes]) -> None:
        """Carry out what waits, in order."""
        assert self._connection is not None
        try:
            while waiting:
                data = waiting.popleft()
                self._bytes -= len(data)
                await self._answer(client, data)
                await self._connection.room()
                await asyncio.sleep(0)  # others are served as well
        finally:
            del self._waiting[client]

    async def _answer(self, client: str, data: bytes) -> None:
        try:
            request = read(data)
            packed = is_msgpack(data)
            # What a query matches is told before anything else happens: no other await here.
            ok = await self._carry_out(client, request, packed)
            self._say(client, {**_named(request.ref), "ok": ok}, packed)
        except SkerryError as error:
            self._fail(client, data, error)
        except Exception:
            log.exception("a request of the simple client %s failed", client)
            self._fail(client, data, SkerryError("the request failed; see the site's log"))

    async def _carry_out(self, client: str, request: AnyRequest, packed: bool) -> dict[str, Any]:
        owner = owner_of(client)
        await self.held.keep(client)
        match request:
            case Register():
                asked = RegisterRequest(
                    owner=owner,
                    id=request.feed,
                    topic=request.topic,
                    metadata=request.metadata,
                    permanent=request.permanent,
                )
                feed = await self._feeds.register(asked)
                self.held.session(client).has_feeds = True
                return _own(feed)
            case Set():
                return _own(await self._change(client, request.feed, request.change))
            case Publish():
                payload = payload_of(request.data, packed)
                feed = await self._change(client, request.feed, request.change)
                id = None if request.id is None else f"{owner}:{request.id}"
                return {"index": await self._publish(feed, payload, id)}
            case Remove():
                await self._feeds.remove(RemoveRequest(owner=owner, id=request.feed))
                return {}
            case Renew():
                return await self.held.renew(client)
            case Query():
                return await self.held.query(client, request, packed)
            case End():
                self.held.end(client, request.query)
                return {}

    # Feeds

    async def _change(self, client: str, feed: str, change: dict[str, Any]) -> Feed:
        owner = owner_of(client)
        changed = await self._feeds.change(ChangeRequest(owner=owner, id=feed, change=change))
        session = self.held.session(client)
        if not session.has_feeds:  # it registered the feed before this agent was started
            session.has_feeds = True
            await self._feeds.renew(RenewRequest(owner=owner))
        return changed

    async def _publish(self, feed: Feed, payload: bytes, id: str | None) -> int:
        check_not_own(feed.topic)  # we may write there, and the client may not
        mark = b"%b:%d\r\n" % (VERSION_HEADER, feed.version)
        publisher = self._publisher(log_of(feed.topic) or feed.topic)
        return await (await publisher.send(payload, topic=feed.topic, mark=mark, id=id))

    def _publisher(self, topic: str) -> Publisher:
        assert self._connection is not None
        assert self._routes is not None
        publisher = self._publishers.pop(topic, None)
        if publisher is None:
            for other in list(self._publishers)[: 1 - PUBLISHERS]:  # the longest unused
                if self._publishers[other].is_idle:
                    self._publishers.pop(other).close()
            publisher = Publisher(self._connection, self._routes, topic, timeout=PATIENCE)
        self._publishers[topic] = publisher
        return publisher

    # What clients are told

    def _fail(self, client: str, data: bytes, error: SkerryError) -> None:
        message = {**_named(ref_of(data)), "error": fault_of(error)}
        self._say(client, message, is_msgpack(data))

    def _say(self, client: str, message: dict[str, Any], packed: bool) -> None:
        """Tell a client. While the engine is away nobody hears it; whoever comes back asks anew."""
        if self._connection is None:
            return
        try:
            data = written(message, packed)
            if len(data) > self._connection.info.max_event:
                error = BadSetting(
                    f"the answer has {len(data)} bytes, more than the engine takes",
                    "Raise the site's --max-event-bytes.",
                )
                kept = {k: v for k, v in message.items() if k in ("ref", "query")}
                data = written({**kept, "error": fault_of(error)}, packed)
            with contextlib.suppress(Down):
                self._connection.publish(ANSWERS + client, data)
        except Exception:
            log.exception("the simple client %s could not be told", client)


def _own(feed: Feed) -> dict[str, Any]:
    return {"feed": feed.id, "metadata": feed.metadata, "publish": f"p/{feed.topic}"}


def _named(ref: str | int | None) -> dict[str, Any]:
    return {} if ref is None else {"ref": ref}
