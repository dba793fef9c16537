"""One connection to the engine: the NATS client protocol, and coming back after a loss.

Theory of operation. A `Connection` is *up*, *down* or *closed*. While it is down a task tries to
come up again, for ever; what bounds the waiting is the deadline of each call. Whoever needs to act
on a change (a publisher sends again what was not acknowledged, a subscription asks again for
events) registers as a `Listener`; listeners are told in the order they registered, and before
anything new is written. Nothing is buffered for a connection that is down: `write` refuses, and
the caller, who knows whether it may send twice, decides.

"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import ssl
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from skerry.config import ADDED_BYTES, ClientSettings
from skerry.engine import lines
from skerry.engine.address import Address
from skerry.engine.lines import Frame
from skerry.engine.link import Down, Handler, Link, Run, denied
from skerry.errors import AccessDenied, EngineUnfit, SkerryError, Unavailable
from skerry.model.event import status_of
from skerry.model.names import inbox_of
from skerry.model.placement import TopicUse
from skerry.model.way import Way

log = logging.getLogger("skerry.wire")

NO_RESPONDERS = 503
DENIED_TIME = 0.4
"""Seconds for which credentials are refused before a client that was never connected gives up."""


class Reply(NamedTuple):
    """The answer to a request. `status` is 0 unless the engine sent one in the headers."""

    status: int
    head: bytes
    data: bytes


class ServerInfo(msgspec.Struct, frozen=True):
    """What the engine says of itself when a client connects."""

    version: str = ""
    server_name: str = ""
    max_payload: int = 1024 * 1024
    headers: bool = False
    jetstream: bool = False
    tls_required: bool = False
    auth_required: bool = False
    domain: str = ""

    @property
    def added(self) -> int:
        """Bytes that engines may add to an event on its way."""
        return min(ADDED_BYTES, self.max_payload // 4)

    @property
    def max_event(self) -> int:
        """Bytes of the largest event that may be published, its headers included."""
        return self.max_payload - self.added


class Listener:
    """Told what happens to a connection. Override what matters."""

    def on_up(self) -> None:
        """It is back; what is written from now on goes out."""

    def on_down(self) -> None:
        """It is lost."""

    def on_tick(self, now: float) -> None:
        """About a second has passed."""

    def used(self) -> TopicUse | None:
        """What it used of a topic of a fabric since it was last asked; None: it is not one that
        does."""
        return None

    def on_denied(self, subject: str, error: AccessDenied) -> None:
        """The engine refused a message to `subject`."""

    def on_closed(self, error: SkerryError) -> None:
        """It is closed for good."""


class Connection:
    """A connection that comes back. Make it with `Connection.open`."""

    def __init__(self, addresses: Sequence[Address], settings: ClientSettings, name: str) -> None:
        self.addresses = list(addresses)
        """Where to connect, the best first."""
        self.address = self.addresses[0]
        """Where it is connected, or was last."""
        self.settings = settings
        self.info = ServerInfo()
        self._token = secrets.token_hex(8)
        self.inbox = self._inbox_at(self.address)
        """Where answers go; it changes when the connection comes up at another site."""
        self.down_since: float | None = None
        self.clock = 0.0
        """The time as of the last read or tick: exact to a second, and free."""
        self.last_heard = 0.0
        """When the engine gave its last sign of life on a connection that is lost by now."""
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._up = asyncio.Event()
        self.is_congested = False
        """Whether the socket's buffer is full; wait with `room`."""
        self._room = asyncio.Event()
        self._room.set()
        self._closed: SkerryError | None = None
        self._listeners: list[Listener] = []
        self._subscriptions: dict[bytes, tuple[bytes, Handler, Run | None]] = {}
        self._next_sid = 1
        self._requests: dict[bytes, tuple[str, asyncio.Future[Reply]]] = {}
        self._next_request = 0
        self._keeper: asyncio.Task[None] | None = None
        self._returning: asyncio.Task[None] | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self.last_fault = ""
        """Why the connection was lost, or could not be made, last."""
        self.subscribe(f"{self.inbox}.r.*", self._on_reply)

    @classmethod
    async def open(
        cls,
        address: Address | Sequence[Address],
        settings: ClientSettings | None = None,
        name: str = "skerry",
    ) -> Connection:
        """Connect, trying until `settings.timeout`. Raises `AccessDenied` or `Unavailable`.

        With several addresses, to the nearest site: the one that answers first when all are asked
        at once. When it is lost, to the next; when it is back, to it again.
        """
        addresses = [address] if isinstance(address, Address) else list(address)
        settings = settings or ClientSettings()
        if len(addresses) > 1:
            addresses = await _nearest_first(addresses, settings.connect_timeout)
        connection = cls(addresses, settings, name)
        connection.down_since = connection._loop.time()
        connection._reconnecting = asyncio.create_task(connection._reconnect())
        try:
            await connection.wait_up(connection._loop.time() + connection.settings.timeout)
        except BaseException:
            await connection.close()
            raise
        connection._keeper = asyncio.create_task(connection._keep())
        return connection

    async def close(self, error: SkerryError | None = None) -> None:
        """Close for good. Calls under way raise `Unavailable`."""
        if self._link is not None and self._closed is None:
            self._link.flush()
        self._close(error or Unavailable("the client is closed"))
        for task in (self._keeper, self._returning, self._reconnecting):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    @property
    def is_up(self) -> bool:
        """Whether a message written now goes out."""
        return self._link is not None

    @property
    def rtt(self) -> float | None:
        """Seconds to the engine and back: the least of the last pings, the nearest to the truth."""
        return min(self._link.trips, default=None) if self._link is not None else None

    def ping(self) -> None:
        """Measure `rtt` anew."""
        if self._link is not None:
            self._link.ping()

    def used(self) -> list[TopicUse]:
        """What all listeners used of topics since they were last asked."""
        return [use for each in list(self._listeners) if (use := each.used()) is not None]

    def now(self) -> float:
        """The event loop's clock, in seconds."""
        return self._loop.time()

    async def wait_up(self, deadline: float) -> None:
        """Wait until the connection is up; raise `Unavailable` at `deadline`."""
        if self._closed is not None:
            raise self._closed
        if self._link is not None:
            return
        try:
            async with asyncio.timeout_at(deadline):
                await self._up.wait()
        except TimeoutError:
            raise self.unavailable() from None
        if self._closed is not None:
            raise self._closed

    def unavailable(self) -> Unavailable:
        """The error to raise when the site was away for too long."""
        if self.down_since is None:
            what = f"{self.address} is connected but did not answer in time"
        else:
            away = self.now() - self.down_since
            what = f"{self.address} was not reached for {away:.1f} s ({self.last_fault})"
        return Unavailable(what, "Look with `skerry doctor`; is `skerry up` running there?")

    # Sending

    def write(self, frame: Frame) -> None:
        """Send `frame`, a whole protocol message. Raises `Down` if the connection is not up."""
        if self._link is None:
            raise Down
        self._link.write(frame)

    async def room(self) -> None:
        """Wait until the socket's buffer takes more."""
        await self._room.wait()

    def on_congested(self, is_so: bool) -> None:
        self.is_congested = is_so
        if is_so:
            self._room.clear()
        else:
            self._room.set()

    def publish(
        self,
        subject: str | bytes,
        data: bytes = b"",
        *,
        reply: str | bytes = b"",
        head: bytes = b"",
    ) -> None:
        """Send a message. Who wants an answer listens on `reply`. Raises `Down`."""
        self.write(lines.pub(subject, data, reply, head))

    async def request(
        self, subject: str, data: bytes = b"", head: bytes = b"", *, timeout: float
    ) -> Reply:
        """Send a request; return its answer. Raises `Down` if the connection is lost meanwhile,
        `TimeoutError`, or `AccessDenied`."""
        token = b"%d" % self._next_request
        self._next_request += 1
        future: asyncio.Future[Reply] = self._loop.create_future()
        inbox = f"{self.inbox}.r.".encode() + token
        self.publish(subject, data, reply=inbox, head=head)
        self._requests[token] = (subject, future)
        timer = self._loop.call_later(timeout, self._expire, token)
        try:
            return await future
        finally:
            timer.cancel()
            self._requests.pop(token, None)

    def _expire(self, token: bytes) -> None:
        entry = self._requests.pop(token, None)
        if entry is not None and not entry[1].done():
            entry[1].set_exception(TimeoutError())

    def _on_reply(self, subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
        entry = self._requests.pop(subject[subject.rindex(b".") + 1 :], None)
        if entry is not None and not entry[1].done():
            entry[1].set_result(Reply(status_of(head) if head else 0, head, data))

    # Receiving

    def subscribe(self, subject: str, handler: Handler, run: Run | None = None) -> bytes:
        """Have `handler` called for each message on `subject`, also after reconnecting."""
        sid = b"%d" % self._next_sid
        self._next_sid += 1
        raw = lines.word(subject)
        self._subscriptions[sid] = (raw, handler, run)
        if self._link is not None:
            self._link.write(self._link.route(sid, raw, handler, run))
        return sid

    def unsubscribe(self, sid: bytes) -> None:
        """Undo `subscribe`."""
        if self._subscriptions.pop(sid, None) is not None and self._link is not None:
            self._link.handlers.pop(sid, None)
            self._link.runs.pop(sid, None)
            self._link.write(lines.unsub(sid))

    def leave(self, sid: bytes) -> None:
        """Ask the engine to send no more for `sid`; what is under way still reaches the handler."""
        if self._link is not None:
            self._link.write(lines.unsub(sid))

    def listen(self, listener: Listener) -> None:
        """Tell `listener` of what happens from now on."""
        self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        """Undo `listen`."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    # Life

    async def _reconnect(self) -> None:
        wait = self.settings.reconnect_first
        denied_since = 0.0
        while self._closed is None:
            for address in self.addresses:
                try:
                    link = await self._dial(address)
                except (AccessDenied, EngineUnfit) as error:
                    # An engine that starts, or takes a new configuration, refuses good
                    # credentials for a moment, so they are shown more than once.
                    now = self._loop.time()
                    denied_since = denied_since or now
                    patience = self.settings.timeout if self._keeper else DENIED_TIME
                    is_final = isinstance(error, EngineUnfit) or now - denied_since > patience
                    if len(self.addresses) == 1 and is_final:
                        self._close(error)
                        return
                    self.last_fault = error.what
                    wait = min(wait, self.settings.reconnect_most / 10)
                except ssl.SSLCertVerificationError as error:
                    if len(self.addresses) == 1:
                        self._close(_untrusted(address, error))
                        return
                    self.last_fault = _fault(error)
                except (OSError, TimeoutError, ssl.SSLError, Down, ValueError) as error:
                    self.last_fault = _fault(error)
                else:
                    self._come_up(link, address)
                    return
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(wait * 2, self.settings.reconnect_most)

    async def _return(self) -> None:
        """While connected to another site than the nearest, look whether that one is back."""
        while self._closed is None and self.address is not self.addresses[0]:
            await asyncio.sleep(self.settings.return_every)
            if self._link is None:
                continue
            try:
                link = await self._dial(self.addresses[0])
            except (OSError, TimeoutError, ssl.SSLError, Down, ValueError, SkerryError):
                continue
            old = self._link
            if old is None or self._closed is not None:
                link.transport.close()
                continue
            self._link = None
            self._up.clear()
            self._fail_requests(Down())
            for listener in list(self._listeners):
                listener.on_down()
            old.flush()
            old.transport.close()
            self._come_up(link, self.addresses[0])

    def _moved(self, subject: bytes, address: Address) -> bytes:
        """What `subject` is called at another site: inboxes and news bear the site's name."""
        here, there = self.address.site.encode(), address.site.encode()
        subject = subject.replace(self.inbox.encode(), self._inbox_at(address).encode(), 1)
        for told in (b"_sk.%b.news.", b"_sk.%b.query."):
            subject = subject.replace(told % here, told % there, 1)
        return subject

    def _inbox_at(self, address: Address) -> str:
        return f"{inbox_of(address.site, address.user or 'x')}.{self._token}"

    async def _dial(self, address: Address) -> Link:
        patience, began, way = self.settings.connect_timeout, self._loop.time(), Way()
        async with asyncio.timeout_at(began + patience) as limit:
            transport, link = await self._loop.create_connection(
                lambda: Link(self), address.host, address.port
            )
            # That was one way there and back. What follows are two, or four with TLS.
            now = self._loop.time()
            way.observe(now - began)
            limit.reschedule(max(began + patience, now + 2 * way.wait()))
            try:
                info = msgspec.json.decode(await link.greeting, type=ServerInfo)
                if not info.headers or not info.version:
                    raise EngineUnfit(
                        f"{address} is no NATS server with headers",
                        "Check host and port; Skerry needs nats-server 2.15 or newer.",
                    )
                if info.tls_required:
                    upgraded = await self._loop.start_tls(
                        transport,
                        link,
                        address.tls_context(),
                        server_hostname=address.verify or address.host,
                    )
                    if upgraded is None:
                        raise Down
                    transport = upgraded
                    link.secure(transport)
                elif address.tls:
                    raise EngineUnfit(
                        f"{address} does not speak TLS, and the address asks for it",
                        "Start the site with --tls-cert and --tls-key, or write nats:// instead.",
                    )
                frames = [lines.connect(self._hello(address))]
                for sid, (subject, handler, run) in self._subscriptions.items():
                    moved = self._moved(subject, address)
                    frames.append(link.route(sid, moved, handler, run))
                link.ping(lines.joined(frames))
                await link.welcome
            except BaseException:
                transport.abort()
                raise
        self.info = info
        return link

    def _hello(self, address: Address) -> dict[str, object]:
        return {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "echo": True,
            "protocol": 1,
            "lang": "python-skerry",
            "version": "1",
            "name": self._name,
            "user": address.user,
            "pass": address.password,
            "auth_token": address.token,
            "tls_required": address.tls,
        }

    def _come_up(self, link: Link, address: Address) -> None:
        if link.lost:
            self.last_fault = "the connection ended at once"
            self._reconnecting = asyncio.create_task(self._reconnect())
            return
        if self.down_since is not None and self._up.is_set() is False and self._keeper is not None:
            log.warning(
                "%s is back after %.2f s", self.address, self._loop.time() - self.down_since
            )
        if address is not self.address:
            log.warning("connected to site %s instead of %s", address.site, self.address.site)
            self._move_to(address)
        self._link = link
        link.ready = True
        self.down_since = None
        self.on_congested(False)
        for sid, how in self._subscriptions.items():
            if sid not in link.handlers:  # subscribed while dialling
                link.write(link.route(sid, *how))
        for listener in list(self._listeners):
            listener.on_up()
        self._up.set()

    def _move_to(self, address: Address) -> None:
        """Answers go elsewhere from now on."""
        self._subscriptions = {
            sid: (self._moved(subject, address), handler, run)
            for sid, (subject, handler, run) in self._subscriptions.items()
        }
        self.inbox = self._inbox_at(address)
        self.address = address
        if address is not self.addresses[0] and (self._returning is None or self._returning.done()):
            self._returning = asyncio.create_task(self._return())

    def on_link_lost(self, link: Link, error: Exception | None) -> None:
        if link is not self._link:
            return
        self._link = None
        self._up.clear()
        self.on_congested(False)
        if self._closed is not None:
            return
        self.down_since = self._loop.time()
        self.last_heard = link.heard
        self.last_fault = _fault(error) if error else "the engine closed the connection"
        log.warning("connection to %s lost: %s; reconnecting", self.address, self.last_fault)
        self._fail_requests(Down())
        for listener in list(self._listeners):
            listener.on_down()
        self._reconnecting = asyncio.create_task(self._reconnect())

    def _close(self, error: SkerryError) -> None:
        if self._closed is not None:
            return
        self._closed = error
        self._fail_requests(error)
        for listener in list(self._listeners):
            listener.on_closed(error)
        self._listeners.clear()
        if self._link is not None:
            self._link.transport.close()
            self._link = None
        self._up.set()
        self.on_congested(False)

    def _fail_requests(self, error: Exception) -> None:
        requests, self._requests = self._requests, {}
        for _, future in requests.values():
            if not future.done():
                future.set_exception(error)

    def on_complaint(self, text: str) -> None:
        """The engine sent -ERR on a connection that is up."""
        if text.startswith("Permissions Violation"):
            subject = text.partition('"')[2].partition('"')[0]
            error = denied(self.address, text)
            for token, (asked, future) in list(self._requests.items()):
                if asked == subject and not future.done():
                    future.set_exception(error)
                    del self._requests[token]
            for listener in list(self._listeners):
                listener.on_denied(subject, error)
        else:
            self.last_fault = text
            log.warning("%s says: %s", self.address, text)

    async def _keep(self) -> None:
        """Once a ping interval: end a connection that is silent, and tell listeners the time."""
        tick = min(1.0, self.settings.ping_interval)
        while self._closed is None:
            await asyncio.sleep(tick)
            now = self.clock = self._loop.time()
            link = self._link
            if link is not None and link.overdue(now, self.settings.ping_interval):
                self.last_fault = f"no answer to pings for {now - link.heard:.1f} s"
                link.abort(TimeoutError(self.last_fault))
            for listener in list(self._listeners):
                listener.on_tick(now)


async def _nearest_first(addresses: list[Address], timeout: float) -> list[Address]:
    """Sort sites by how soon they answer; within 2 ms the order stays as given."""

    async def measure(address: Address) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await asyncio.open_connection(address.host, address.port)
                try:
                    await reader.readline()
                finally:
                    writer.close()
        except (OSError, TimeoutError, ValueError):
            return timeout
        return loop.time() - began

    times = await asyncio.gather(*map(measure, addresses))
    ranked = sorted(range(len(addresses)), key=lambda i: (round(times[i] / 0.002), i))
    return [addresses[i] for i in ranked]


def _untrusted(address: Address, error: ssl.SSLCertVerificationError) -> EngineUnfit:
    """The engine could not prove who it is. Trying again would not help."""
    return EngineUnfit(
        f"the certificate of {address} is not trusted: {error.verify_message or error}",
        "Use the connection file from credentials/ in the site's data folder: it holds what to "
        "trust. The certificate must be valid for the host name in that file.",
    )


def _fault(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return str(error) or type(error).__name__
