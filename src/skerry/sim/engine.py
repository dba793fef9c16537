"""A simulated nats-server for each site, and the wires between them.

Theory of operation. An `Engine` speaks the client protocol with what ships (`skerry.engine.wire`)
over a `Client`, which is a transport to the one and a connection to the other. It sends messages to
all whose subscription fits: clients, its own streams, and engines that are linked, as far as the
rights allow that the shipped configuration gives (`conf._addressed_to`). What the far end of a
`Leaf` subscribes to is told over it, so that it is known late. A configuration is the shipped
`Wiring`, which `Links` writes; an engine that starts takes the last one that was written.

A `Pipe` keeps order and takes time. One that is held keeps what was sent, as TCP does while packets
are lost: it comes through when the pipe is let go, unless somebody has closed the connection.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from contextvars import Context
from random import Random
from typing import Any

import msgspec

from skerry.engine import nkeys
from skerry.engine.conf import ACCOUNT, Outbound, Wiring, _addressed_to
from skerry.sim.jetstream import Message, Stream, answer_of, is_there
from skerry.sim.loop import Loop, Process
from skerry.sim.subjects import Subjects

public_key = functools.cache(nkeys.public_key)

Target = Callable[[str, str, bytes, bytes], None]

LOCAL = 0.0002
"""Seconds between a client and its engine, one way."""
REDIAL = 0.5
"""Seconds before a lost link is dialled again (`conf.LINK_RECONNECT`)."""
RESET = 0.25
"""Seconds between the packets that one end sends of a link which the other has closed."""
NEVER = 3600.0
AGAIN = 0.2
"""Seconds after which what was lost on its way is sent again, at the least."""
CLIENT_PORT, LINK_PORT = 4222, 7422

_NOT_ENABLED = b'{"error":{"code":503,"err_code":10039,"description":"jetstream not enabled"}}'


class Pipe:
    """One way between two ends: in order, and not before its time."""

    def __init__(self, loop: Loop, delay: Callable[[], float], arrive: Callable[[Any], None]):
        self._loop = loop
        self._delay = delay
        self._arrive = arrive
        self._queue: deque[tuple[float, Any]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._last = 0.0
        self.is_held = False
        self.is_open = True

    def send(self, item: Any) -> None:
        """Send it on its way."""
        if not self.is_open:
            return
        self._last = max(self._last, self._loop.time() + self._delay())
        self._queue.append((self._last, item))
        self._arm()

    def close(self) -> None:
        """What is under way is lost."""
        self.is_open = False
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()

    def hold(self, is_held: bool) -> None:
        """Let nothing through; or let it through again, after the sender's next attempt."""
        self.is_held = is_held
        self._arm()

    def _arm(self) -> None:
        if self._timer is None and self._queue and not self.is_held and self.is_open:
            when = max(self._queue[0][0], self._loop.time())
            self._timer = self._loop.call_at(when, self._pump, context=self._loop.world)

    def _pump(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._queue and self._queue[0][0] <= now and not self.is_held:
            self._arrive(self._queue.popleft()[1])
        self._arm()


class Client(asyncio.Transport):
    """A connection of a client to an engine."""

    def __init__(self, engine: Engine, protocol: asyncio.Protocol, process: Process, way: float):
        super().__init__()
        self._engine = engine
        self._protocol = protocol
        self.process = process
        self._context: Context = process.context()
        self._loop = engine.loop
        self.user = ""
        self._sids: dict[bytes, tuple[str, Target]] = {}
        self._is_closed = False
        self._to = Pipe(engine.loop, lambda: way + engine.slowness, self._receive)
        self._from = Pipe(engine.loop, lambda: way + engine.slowness, self._hand_over)
        self._out: list[bytes] = []
        engine.clients.append(self)
        hello = {"server_name": engine.site, "version": "2.15.1", "headers": True,
                 "jetstream": True, "max_payload": 8388608, "domain": engine.site}  # fmt: skip
        self.put(b"INFO " + msgspec.json.encode(hello) + b"\r\n")

    # For the client

    def write(self, data: Any) -> None:
        self._to.send(bytes(data))

    def set_write_buffer_limits(self, high: Any = None, low: Any = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        self.end(None)

    def abort(self) -> None:
        self.end(None)

    def hold(self, is_held: bool) -> None:
        """Let nothing through."""
        self._to.hold(is_held)
        self._from.hold(is_held)

    # For the engine

    def end(self, error: Exception | None) -> None:
        """Close it, from either side."""
        if self._is_closed:
            return
        self._is_closed = True
        self._to.close()
        self._from.close()
        if self in self._engine.clients:
            self._engine.clients.remove(self)
        for subject, target in self._sids.values():
            self._engine.unsubscribe(subject, target)
        self._loop.call_soon(self._protocol.connection_lost, error, context=self._context)

    def put(self, data: bytes) -> None:
        """Send to the client; what is sent at one moment arrives as one."""
        if not self._out:
            self._loop.call_soon(self._flush, context=self._loop.world)
        self._out.append(data)

    def _flush(self) -> None:
        self._from.send(b"".join(self._out))
        self._out.clear()

    def _hand_over(self, data: bytes) -> None:
        self._loop.call_soon(self._protocol.data_received, data, context=self._context)

    def _receive(self, data: bytes) -> None:
        place = 0
        while place < len(data) and not self._is_closed:
            end = data.index(b"\r\n", place)
            words = data[place:end].split(b" ")
            place = end + 2
            kind = words[0]
            if kind == b"PUB" or kind == b"HPUB":
                size = int(words[-1])
                cut = int(words[-2]) if kind == b"HPUB" else 0
                body = data[place : place + size]
                place += size + 2
                reply = words[2].decode() if len(words) == (5 if kind == b"HPUB" else 4) else ""
                self._publish(words[1].decode(), reply, body[:cut], body[cut:])
            elif kind == b"SUB":
                self._subscribe(words[1].decode(), words[2])
            elif kind == b"UNSUB":
                if (known := self._sids.pop(words[1], None)) is not None:
                    self._engine.unsubscribe(*known)
            elif kind == b"PING":
                self.put(b"PONG\r\n")
            elif kind == b"CONNECT":
                self.user = msgspec.json.decode(data[end - len(b" ".join(words)) + 8 : end])["user"]
                if not self._engine.lets_in(self.user):
                    self.put(b"-ERR 'Authorization Violation'\r\n")

    def _publish(self, subject: str, reply: str, head: bytes, data: bytes) -> None:
        engine = self._engine
        if subject.startswith("$SYS."):
            engine.operate(subject, reply, data, self)
            return
        if ".q." in subject and self.user == "admin":
            engine.net.on_report(data)
        if not engine.publish(subject, reply, head, data) and reply:
            engine.publish(reply, "", b"NATS/1.0 503\r\n\r\n", b"")

    def _subscribe(self, subject: str, sid: bytes) -> None:
        def target(shown: str, reply: str, head: bytes, data: bytes) -> None:
            to = b"%b %b %b" % (shown.encode(), sid, reply.encode() + b" " if reply else b"")
            if head:
                size = len(head)
                self.put(b"HMSG %b%d %d\r\n%b%b\r\n" % (to, size, size + len(data), head, data))
            else:
                self.put(b"MSG %b%d\r\n%b\r\n" % (to, len(data), data))

        self._sids[sid] = subject, target
        self._engine.subscribe(subject, target)


class Leaf:
    """A link between two engines: `ends[0]` has dialled `ends[1]`."""

    def __init__(self, net: Network, dialer: Engine, acceptor: Engine) -> None:
        self._net = net
        self.number = net.count()
        self.ends = (dialer, acceptor)
        self.known: tuple[Subjects[int], Subjects[int]] = (Subjects(), Subjects())
        """What each end knows that the other subscribes to."""
        self.may: tuple[Subjects[int], Subjects[int]] = (Subjects(), Subjects())
        """What each end may send."""
        self.marks = (f".{acceptor.site}.", f".{dialer.site}.")
        """What a subject has in it that concerns the other end."""
        self.pipes: list[Pipe] = []
        for place in (0, 1):
            here, there = self.ends[place], self.ends[1 - place]
            for subject in _addressed_to(there.site, here.site):
                self.may[place].add(subject, 1)
            self.pipes.append(net.pipe(here.site, there.site, self._receiver(1 - place)))

    def open(self) -> None:
        """Both ends know of it."""
        for place in (0, 1):
            here, there = self.ends[place], self.ends[1 - place]
            here.leaves[there.site] = self
            for pattern in here.interest.patterns():
                self.tell(here, pattern, True)
            here.told_of_link(there.site if place else "", True)

    def close(self, *, quiet_at: Engine | None = None) -> None:
        """It is lost; an end that does not hear of it keeps it."""
        for pipe in self.pipes:
            pipe.close()
        for place in (0, 1):
            here, there = self.ends[place], self.ends[1 - place]
            if here is not quiet_at and here.leaves.get(there.site) is self:
                del here.leaves[there.site]
                here.told_of_link(there.site if place else "", False)
                if not place:
                    here.dial(there.site)

    def place(self, engine: Engine) -> int:
        """Which end an engine is."""
        return 0 if engine is self.ends[0] else 1

    def tell(self, engine: Engine, pattern: str, is_new: bool) -> None:
        """Have the other end know what this one subscribes to, if it may send that."""
        if engine.site in pattern.split(".", 3)[:3]:
            self.pipes[self.place(engine)].send((is_new, pattern))

    def wants(self, engine: Engine, subject: str) -> bool:
        """Whether the other end subscribes to it, as far as this one knows."""
        place = self.place(engine)
        if self.marks[place] not in subject:  # most name another site, or none
            return False
        return bool(self.known[place].match(subject)) and bool(self.may[place].match(subject))

    def _receiver(self, place: int) -> Callable[[Any], None]:
        def receive(item: Any) -> None:
            engine = self.ends[place]
            if len(item) == 2:
                is_new, pattern = item
                if is_new:
                    self.known[place].add(pattern, 1)
                    engine.heard_of_interest(pattern)
                else:
                    self.known[place].remove(pattern, 1)
            else:
                subject, reply, head, data, shown = item
                engine.publish(subject, reply, head, data, shown, is_from_link=True)

        return receive


class Engine:
    """The engine of one site: what is on its disk, and what it does while it runs."""

    def __init__(self, net: Network, site: str, random: Random) -> None:
        self.net = net
        self.loop = net.loop
        self.site = site
        self.number = len(net.engines)
        self.random = random
        self.is_up = False
        self.is_asleep = True
        self.lag = 0.0
        """Seconds that a message waits before it is stored."""
        self.slowness = 0.0
        """Seconds that clients wait for it, each way."""
        self.is_full = False
        """Whether its disk is. A stream that meets this takes nothing, and gives no answer, until
        the engine is started anew."""
        self.streams: dict[str, Stream] = {}
        self.file = Wiring(asleep=True, locked=True)
        """The configuration that was written last."""
        self.wiring = self.file
        self.interest: Subjects[Target] = Subjects()
        self.clients: list[Client] = []
        self.leaves: dict[str, Leaf] = {}
        self._dialling: set[str] = set()
        self.life = 0
        self._count = 0
        self.on_stored: Callable[[Engine, Stream, Message], None] = lambda *_: None

    def now(self) -> float:
        """Seconds."""
        return self.loop.time()

    def count(self) -> int:
        """A number that was not there before."""
        self._count += 1
        return self._count

    def after(self, delay: float, call: Callable[..., None], *args: Any) -> asyncio.TimerHandle:
        """Call later, unless the engine has died meanwhile."""
        life = self.life

        def ring() -> None:
            if self.life == life:
                call(*args)

        return self.loop.call_later(delay, ring, context=self.loop.world)

    def hang_up(self, process: Process) -> None:
        """A client's process has died."""
        for client in list(self.clients):
            if client.process is process:
                client.end(None)

    @property
    def is_well(self) -> bool:
        """Whether it does what it is asked, soon."""
        return self.is_up and not self.is_full and self.lag < 1.0

    def stored(self, stream: Stream, one: Message) -> None:
        """A stream has stored a message."""
        self.on_stored(self, stream, one)

    # Life

    def start(self) -> None:
        """Run, as the file says."""
        self.is_up = True
        self.is_asleep = True
        self._take(self.file)

    def kill(self, silently: bool = False) -> None:
        """Stop at once; with `silently`, as in a power cut, nobody is told."""
        self.is_up = False
        self.life += 1
        self.interest = Subjects()
        for client in list(self.clients):
            client.end(ConnectionResetError("the engine is gone"))
        for leaf in list(self.leaves.values()):
            far = leaf.ends[1 - leaf.place(self)]
            for pipe in leaf.pipes:
                pipe.close()
            if not silently and not self.net.is_cut(self.site, far.site):
                far.after(self.net.way(self.site, far.site), leaf.close)
        self.leaves.clear()
        self._dialling.clear()

    def lets_in(self, user: str) -> bool:
        """Whether a user may connect."""
        return user in ("admin", "system") or not self.wiring.asleep

    def reload(self) -> None:
        """Take the file anew."""
        self._take(self.file)

    def _take(self, wiring: Wiring) -> None:
        self.wiring = wiring
        if self.is_asleep and not wiring.asleep:
            self.is_asleep = False
            self.unsubscribe("$JS.API.>", self._refuse)
            self.subscribe("$JS.API.>", self._serve)
            self.subscribe(f"$JS.{self.site}.API.>", self._serve_far)
            for stream in self.streams.values():
                stream.open()
        elif self.is_asleep:
            self.subscribe("$JS.API.>", self._refuse)
        for remote in wiring.outbound:
            if remote.peer not in self.leaves:
                self.dial(remote.peer, 0.0)
        for peer, leaf in list(self.leaves.items()):
            if leaf.ends[0] is self and peer not in {one.peer for one in wiring.outbound}:
                leaf.close()

    # Links

    def dial(self, peer: str, wait: float = REDIAL) -> None:
        """Open a link soon, and again until there is one."""
        if peer not in self._dialling:
            self._dialling.add(peer)
            self.after(wait, self._dial, peer)

    def _dial(self, peer: str) -> None:
        self._dialling.discard(peer)
        if self._remote(peer) is None or peer in self.leaves:
            return
        far, lives = self.net.engines[peer], (self.life, self.net.engines[peer].life)

        def greet() -> None:
            self._dialling.discard(peer)
            if not self._is_let_in(far) or (self.life, far.life) != lives:
                self.dial(peer)
            elif peer not in self.leaves:
                if (stale := far.leaves.get(self.site)) is not None:
                    stale.close()
                Leaf(self.net, self, far).open()

        if self._is_let_in(far):
            self._dialling.add(peer)
            self.after(2 * self.net.rtt(self.site, peer), greet)
        else:
            self.dial(peer)

    def _remote(self, peer: str) -> Outbound | None:
        return next((one for one in self.wiring.outbound if one.peer == peer), None)

    def _is_let_in(self, far: Engine) -> bool:
        """Whether a link could be opened now."""
        remote, net = self._remote(far.site), self.net
        if remote is None or not far.is_up or far.wiring.locked:
            return False
        if net.is_cut(self.site, far.site) or net.is_cut(far.site, self.site):
            return False
        return any(one.key == public_key(remote.seed) for one in far.wiring.inbound)

    def told_of_link(self, peer: str, is_up: bool) -> None:
        """Tell the operator."""
        what = "CONNECT" if is_up else "DISCONNECT"
        body = msgspec.json.encode({"client": {"name": peer, "kind": "Leafnode"}})
        self.publish(f"$SYS.ACCOUNT.{ACCOUNT}.{what}", "", b"", body)

    # Messages

    def subscribe(self, pattern: str, target: Target) -> None:
        """Have `target` called with what fits `pattern`."""
        if self.interest.add(pattern, target):
            for leaf in self.leaves.values():
                leaf.tell(self, pattern, True)
            if pattern.startswith("$JS.M."):
                self.after(0.0, self.heard_of_interest, pattern)

    def unsubscribe(self, pattern: str, target: Target) -> None:
        """Undo that."""
        try:
            is_last = self.interest.remove(pattern, target)
        except (KeyError, ValueError):
            return  # the engine has died since
        if is_last:
            for leaf in self.leaves.values():
                leaf.tell(self, pattern, False)

    def has_interest(self, subject: str) -> bool:
        """Whether anybody would get it."""
        return bool(self.interest.match(subject)) or any(
            leaf.wants(self, subject) for leaf in self.leaves.values()
        )

    def heard_of_interest(self, pattern: str) -> None:
        """Somebody subscribes, here or where a link leads: a mirror's consumer may go on."""
        if pattern.startswith("$JS.M."):
            for stream in self.streams.values():
                for consumer in list(stream.consumers.values()):
                    if consumer.deliver == pattern:
                        consumer.send()

    def publish(
        self, subject: str, reply: str, head: bytes, data: bytes, shown: str = "",
        is_from_link: bool = False,
    ) -> int:  # fmt: skip
        """Send to all that listen; to how many. `shown` is the subject that they are told."""
        if not self.is_up:
            return 0
        if ".peer." in subject and subject.startswith(f"_sk.{self.site}."):
            self.net.on_call(self.site, subject.rpartition(".peer.")[2])
        if self.wiring.locked and subject.startswith(f"s.{self.site}."):
            subject = f"_locked.{subject}"
        count = 0
        for target in self.interest.match(subject):
            count += 1
            if target(shown or subject, reply, head, data) is False:
                count -= 1
        if not is_from_link:
            for leaf in list(self.leaves.values()):
                if leaf.wants(self, subject):
                    count += 1
                    leaf.pipes[leaf.place(self)].send((subject, reply, head, data, shown))
        return count

    # Services

    def _serve(self, subject: str, reply: str, head: bytes, data: bytes) -> Any:
        return self._answer(subject[len("$JS.API.") :], reply, data)

    def _serve_far(self, subject: str, reply: str, head: bytes, data: bytes) -> Any:
        call = subject[len(f"$JS.{self.site}.API.") :]
        if call.startswith("$KV."):
            return self.publish(call, reply, head, data) > 0
        return self._answer(call, reply, data)

    def _answer(self, call: str, reply: str, data: bytes) -> bool:
        if not is_there(self, call):
            return False
        answer = answer_of(self, call, reply, data)
        if answer is not None and reply:
            self.publish(reply, "", b"", answer)
        return True

    def _refuse(self, subject: str, reply: str, head: bytes, data: bytes) -> Any:
        if ".DIRECT.GET." in subject or ".MSG.NEXT." in subject:
            return False
        if reply:
            self.publish(reply, "", b"", _NOT_ENABLED)
        return True

    def operate(self, subject: str, reply: str, data: bytes, client: Client) -> None:
        """Do what the operator asks."""
        what = subject.split(".")[-1]
        answer: dict[str, Any] = {}
        if what == "IDZ":
            answer = {"id": f"N{self.site}"}
        elif what == "RELOAD":
            self.reload()
        elif what == "LEAFZ":
            leafs = [{"name": peer, "id": leaf.number} for peer, leaf in self.leaves.items()]
            answer = {"data": {"leafs": leafs}}
        elif what == "KICK":
            number = msgspec.json.decode(data)["cid"]
            for peer, leaf in list(self.leaves.items()):
                if leaf.number == number:
                    is_cut = self.net.is_cut(self.site, peer)
                    far = leaf.ends[1 - leaf.place(self)]
                    leaf.close(
                        quiet_at=far if is_cut or far.leaves.get(self.site) is not leaf else None
                    )
        else:
            answer = {"data": {}}
        self.publish(reply, "", b"", msgspec.json.encode(answer))


class Network:
    """The hosts, and the ways between them."""

    def __init__(self, loop: Loop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.engines: dict[str, Engine] = {}
        self.ways: dict[tuple[str, str], float] = {}
        """Seconds from one host to another; `usual` if it is not here."""
        self.usual = 0.005
        self.cut: set[tuple[str, str]] = set()
        """Ways that let nothing through."""
        self.dark: set[str] = set()
        """Hosts without power."""
        self.loss = 0.0
        """The share of messages that are sent once more, after a while."""
        self.on_call: Callable[[str, str], None] = lambda *_: None
        """Told of each call that an agent gets of another: the site, and what it is asked."""
        self.on_report: Callable[[bytes], None] = lambda *_: None
        """Told of each report that an agent sends to a publisher."""
        self._pipes: dict[tuple[str, str], list[Pipe]] = {}
        self._count = 0

    def tend(self) -> None:
        """From now on, reset links that only one end still has, once packets pass again."""
        for engine in self.engines.values():
            for peer, leaf in list(engine.leaves.items()):
                if self.engines[peer].leaves.get(engine.site) is not leaf and not (
                    self.is_cut(engine.site, peer) or self.is_cut(peer, engine.site)
                ):
                    leaf.close()
        self.loop.call_later(RESET, self.tend, context=self.loop.world)

    def count(self) -> int:
        """A number that no link had before."""
        self._count += 1
        return self._count

    def is_cut(self, here: str, there: str) -> bool:
        """Whether nothing comes from one host to the other."""
        return (here, there) in self.cut or here in self.dark or there in self.dark

    def way(self, here: str, there: str) -> float:
        """Seconds that a message takes now."""
        if here == there:
            return LOCAL
        way = self.ways.get((here, there), self.usual) * (1.0 + 0.2 * self.random.random())
        if self.loss and self.random.random() < self.loss:
            way = 3 * way + AGAIN
        return way

    def rtt(self, here: str, there: str) -> float:
        """Seconds there and back."""
        return self.way(here, there) + self.way(there, here)

    def pipe(self, here: str, there: str, arrive: Callable[[Any], None]) -> Pipe:
        """One way of a link."""
        pipe = Pipe(self.loop, lambda: self.way(here, there), arrive)
        pipe.is_held = (here, there) in self.cut
        known = self._pipes.setdefault((here, there), [])
        known[:] = [one for one in known if one.is_open]
        known.append(pipe)
        return pipe

    def set_cut(self, here: str, there: str, is_cut: bool) -> None:
        """Cut one way, or mend it."""
        if is_cut:
            self.cut.add((here, there))
        else:
            self.cut.discard((here, there))
        for pipe in self._pipes.get((here, there), ()):
            pipe.hold(is_cut)

    async def connect(self, process: Process, host: str, port: int) -> None:
        """Come back when somebody there has answered."""
        here = process.host
        if here != host and (self.is_cut(here, host) or self.is_cut(host, here)):
            await asyncio.sleep(NEVER)
        await asyncio.sleep(self.rtt(here, host))
        if not self.engines[host].is_up:
            raise ConnectionRefusedError(f"nobody listens at {host}")

    async def dial(self, process: Process, protocol: asyncio.Protocol, host: str, port: int) -> Any:
        """The same, and return a transport."""
        await self.connect(process, host, port)
        client = Client(self.engines[host], protocol, process, self.way(process.host, host))
        protocol.connection_made(client)
        return client
