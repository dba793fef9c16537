"""The streams of a simulated engine: what Skerry uses of JetStream, as nats-server 2.15 does it.

A `Stream` is what is on disk, and what its engine remembers of it while it runs. What it holds is
sent by its consumers (`skerry.sim.consumer`). A `Mirror` asks for such a consumer, at most
every two seconds, and stores what comes; what it does when something does not fit is the engine's
own way (server/stream.go: setupMirrorConsumer, processInboundMirrorMsg), times included. A `Source`
does the same beside what the stream takes itself (setStartingSequenceForSources,
trySetupSourceConsumer, processInboundSourceMsg).
"""

from __future__ import annotations

import base64
import copy
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from skerry.model.event import parse_headers
from skerry.sim.consumer import NANO, STALLED, Consumer
from skerry.sim.loop import EPOCH
from skerry.sim.subjects import fits

if TYPE_CHECKING:
    from skerry.sim.engine import Engine

ASK_EVERY = 2.0
JITTER = 0.1
ANSWER = 30.0
BACKOFF = 10.0
BACKOFF_MOST = 120.0
"""Seconds: between a mirror's questions at the least; before its first, once or twice as long; that
it waits for an answer; that it is deaf after each error in a row, and at the most."""
ON_DISK = ("config", "created", "messages", "first", "last", "subjects", "durables")
SOURCE = "Nats-Stream-Source"

NOT_FOUND = {"code": 404, "err_code": 10059, "description": "stream not found"}
NO_MESSAGE = {"code": 404, "err_code": 10037, "description": "no message found"}
NO_CONSUMER = {"code": 404, "err_code": 10014, "description": "consumer not found"}
MISMATCH = {"code": 400, "err_code": 10060, "description": "expected stream does not match"}
WRONG = {"code": 400, "err_code": 10071}
NO_ROOM = {"code": 500, "err_code": 10023, "description": "no space left on device"}
CONSUMER_EXISTS = {"code": 400, "err_code": 10148, "description": "consumer already exists"}
CANNOT_CHANGE = {"code": 500, "err_code": 10012, "description": "deliver policy can not be updated"}
EXISTS = {"code": 400, "err_code": 10058, "description": "stream name already in use"}
REMEMBERED = 100
"""Messages that went because of a limit, of which a stream remembers that."""


class Message(NamedTuple):
    """One stored message."""

    index: int  # type: ignore[assignment]
    subject: str
    head: bytes
    data: bytes
    time: int
    """Nanoseconds since 1970."""
    id: str


class Stream:
    """One stream."""

    def __init__(self, engine: Engine, config: dict[str, Any]) -> None:
        self.engine = engine
        self.name: str = config["name"]
        self.config = config
        self.created = f"2026-01-01T00:00:00.{engine.count():09d}Z"
        self.messages: dict[int, Message] = {}
        self.first: int = config.get("first_seq", 0)
        """The first index; 0: nothing was ever here."""
        self.last: int = max(self.first - 1, 0)
        self.subjects: dict[str, list[int]] = {}
        self.ids: dict[str, tuple[int, int]] = {}
        self.consumers: dict[str, Consumer] = {}
        self.durables: dict[str, dict[str, Any]] = {}
        """What is on disk of those that are to outlive the engine."""
        self.mirror: Mirror | None = None
        self.sources: dict[str, Source] = {}
        """By name: where it reads, and what (composeIName)."""
        self.places: dict[str, int] = {}
        """How far it has read each of them."""
        self._pushed_out: deque[tuple[int, Message]] = deque(maxlen=REMEMBERED)
        """What went because of a limit, and the message that came for it."""
        self._listens: list[str] = []
        self._inbox: deque[tuple[str, str, bytes, bytes]] = deque()
        self._is_stuck = False
        self._json: tuple[Any, bytes] | None = None
        self._told: tuple[str, str] | None = None

    # Life

    def open(self) -> None:
        """The engine has started, or the stream was made."""
        self.consumers.clear()
        for name, saved in self.durables.items():
            self.consumers[name] = Consumer.recovered(self, name, saved)
        self._inbox.clear()
        self._is_stuck = False
        self._listens = []
        self.mirror = None
        self.sources = {}
        self.places.clear()  # the messages tell
        self.ids.clear()
        if "mirror" not in self.config:  # the engine does not read ids back for a mirror
            oldest = self._now() - self._window
            for one in self.messages.values():
                if one.id and one.time > oldest:
                    self.ids[one.id] = one.index, one.time
        self._tune()

    def change(self, config: dict[str, Any]) -> None:
        """Take another configuration."""
        self.config = config
        self._tune()

    def close(self) -> None:
        """The stream goes."""
        for consumer in list(self.consumers.values()):
            consumer.close()
        self.config = {**self.config, "subjects": [], "sources": []}
        self.config.pop("mirror", None)
        self._tune()

    def _tune(self) -> None:
        self._json = None
        wanted = [] if "mirror" in self.config else list(self.config.get("subjects") or ())
        for subject in [s for s in self._listens if s not in wanted]:
            self.engine.unsubscribe(subject, self._take)
        for subject in [s for s in wanted if s not in self._listens]:
            self.engine.subscribe(subject, self._take)
        self._listens = wanted
        if "mirror" in self.config and self.mirror is None:
            self.mirror = Mirror(self)
        elif "mirror" not in self.config and self.mirror is not None:
            self.mirror.close()
            self.mirror = None
        self._tune_sources()
        told = self.config.get("republish")
        self._told = (told["src"][:-1], told["dest"][:-1]) if told else None

    def _tune_sources(self) -> None:
        wanted = {_name_of(one): one for one in self.config.get("sources") or ()}
        for name in self.sources.keys() - wanted.keys():
            self.sources.pop(name).close()
        self.places = {name: self.places.get(name, 0) for name in wanted}
        unknown = {name for name, place in self.places.items() if not place}
        for one in reversed(self.messages.values()) if unknown else ():
            name, place = _place_of(one.head)
            if name in unknown:
                self.places[name] = place
                unknown.discard(name)
        for name in wanted.keys() - self.sources.keys():
            self.sources[name] = Source(self, wanted[name], name)

    def copied(self) -> dict[str, Any]:
        """What of it is on disk."""
        return {part: copy.deepcopy(getattr(self, part)) for part in ON_DISK}

    @classmethod
    def restored(cls, engine: Engine, parts: dict[str, Any]) -> Stream:
        """A stream of which this is on disk."""
        stream = cls(engine, parts["config"])
        vars(stream).update(copy.deepcopy(parts))
        return stream

    # Storing

    @property
    def _window(self) -> int:
        return int(self.config.get("duplicate_window", 120 * NANO))

    def _now(self) -> int:
        """No two engines store at the same nanosecond."""
        now = self.engine.now() + self.engine.loop.skews.get(self.engine.site, 0.0)
        return int(EPOCH) * NANO + int(now * NANO) // 8 * 8 + self.engine.number

    def _take(self, subject: str, reply: str, head: bytes, data: bytes) -> None:
        """Somebody published. A busy engine stores it later."""
        self._inbox.append((subject, reply, head, data))
        if self.engine.lag:
            self.engine.after(self.engine.lag, self._store_next)
        else:
            self._store_next()

    def _store_next(self) -> None:
        if not self._inbox:
            return
        subject, reply, head, data = self._inbox.popleft()
        answer = self._judge(subject, head, data)
        if reply and answer:
            self.engine.publish(reply, "", b"", answer)

    def take_sourced(self, subject: str, head: bytes, data: bytes) -> None:
        """Store what a source brings, unless its id is known."""
        self._judge(subject, head, data)
        self._json = None

    def _judge(self, subject: str, head: bytes, data: bytes) -> bytes:
        site = self.engine.site
        if self.name not in self.engine.streams or not self.has_room():
            return b""
        if "subject_transform" in self.config and subject.startswith("s."):
            subject = "e." + subject.split(".", 3)[3]
        fields = parse_headers(head) if head else {}
        if fields.get("Nats-Expected-Stream", self.name) != self.name:
            return _error(MISMATCH)
        if (wanted := fields.get("Nats-Expected-Last-Subject-Sequence")) is not None:
            about = fields.get("Nats-Expected-Last-Subject-Sequence-Subject", subject)
            have = (self.subjects.get(about) or [0])[-1]
            if have != int(wanted):
                return _error({**WRONG, "description": f"wrong last sequence: {have}"})
        id = fields.get("Nats-Msg-Id", "")
        if id and (known := self.ids.get(id)) and known[1] > self._now() - self._window:
            return b'{"stream":"%b","domain":"%b","seq":%d,"duplicate":true}' % (
                self.name.encode(), site.encode(), known[0],
            )  # fmt: skip
        self.store(self.last + 1, subject, head, data, self._now(), id)
        return b'{"stream":"%b","domain":"%b","seq":%d}' % (
            self.name.encode(), site.encode(), self.last,
        )  # fmt: skip

    def has_room(self) -> bool:
        """Whether it takes messages: not once it has met a full disk."""
        self._is_stuck = self._is_stuck or self.engine.is_full
        return not self._is_stuck

    def store(self, index: int, subject: str, head: bytes, data: bytes, when: int, id: str) -> None:
        """Store a message as the next one."""
        self._json = None
        one = Message(index, subject, head, data, when, id)
        self.messages[index] = one
        self.first = self.first or index
        self.last = index
        if id:
            self.ids[id] = index, when
        of_subject = self.subjects.setdefault(subject, [])
        of_subject.append(index)
        if 0 < self.config.get("max_msgs_per_subject", -1) < len(of_subject):
            self._push_out(of_subject[0])
        if 0 < self.config.get("max_msgs", -1) < len(self.messages):
            self._push_out(next(iter(self.messages)))
        self.engine.stored(self, one)
        if self._told is not None and subject.startswith(self._told[0]):
            lines = head[10:-2] if head else b""
            told = b"NATS/1.0\r\n%bNats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\n\r\n"
            told %= lines, self.name.encode(), subject.encode(), index
            self.engine.publish(self._told[1] + subject[len(self._told[0]) :], "", told, data)
        for consumer in list(self.consumers.values()):
            consumer.send()

    def _push_out(self, index: int) -> None:
        self._pushed_out.append((self.last, self.messages[index]))
        self.remove(index)

    def skip(self, last: int) -> None:
        """Count on, without messages."""
        self._json = None
        self.last = last
        if not self.messages:
            self.first = last + 1

    def remove(self, index: int) -> bool:
        """Remove a message; whether it was there."""
        one = self.messages.pop(index, None)
        if one is None:
            return False
        self._json = None
        self.subjects[one.subject].remove(index)
        if not self.subjects[one.subject]:
            del self.subjects[one.subject]
        self.first = next(iter(self.messages), self.last + 1)
        for consumer in self.consumers.values():
            consumer.on_removed(index)
        return True

    def purge(self, index: int | None, pattern: str | None = None) -> int:
        """Remove what is before `index`, or all; of an empty stream it sets the first index."""
        gone = [
            one.index
            for one in self.messages.values()
            if (index is None or one.index < index) and (not pattern or fits(pattern, one.subject))
        ]
        for each in gone:
            self.remove(each)
        if index is not None and not pattern and not self.messages and index > self.last:
            self.skip(index - 1)
        elif not self.messages:
            self.skip(self.last)
        for consumer in self.consumers.values():
            consumer.on_purged()
        return len(gone)

    def lose(self, count: int) -> None:
        """A power cut: the newest messages were never written. What had gone for them is there
        again: it leaves the disk later (tried with 2.15.1)."""
        for index in [index for index in self.messages if index > self.last - count]:
            self.remove(index)
        back = []
        while self._pushed_out and self._pushed_out[-1][0] > self.last - count:
            _, one = self._pushed_out.pop()
            back += [one] if one.index <= self.last - count else []
        self.messages = dict(sorted({**self.messages, **{one.index: one for one in back}}.items()))
        for one in back:
            self.subjects[one.subject] = sorted([*self.subjects.get(one.subject, []), one.index])
        self.last = max(self.messages, default=max(self.last - count, 0))
        self.first = next(iter(self.messages), self.last + 1)

    # Telling

    @property
    def last_time(self) -> int:
        """When the last message was stored; 0: there was none."""
        return next(reversed(self.messages.values())).time if self.messages else 0

    @property
    def is_whole(self) -> bool:
        """Whether no message is gone from inside."""
        return self.last - self.first + 1 == len(self.messages)

    def info(self, about: dict[str, Any] | None = None) -> bytes:
        """What the engine says of a stream, as JSON."""
        count = len(self.messages)
        state: dict[str, Any] = {
            "messages": count, "bytes": 100 * count, "first_seq": self.first, "last_seq": self.last,
            "num_deleted": self.last - self.first + 1 - count if count else 0,
            "consumer_count": len(self.consumers),
        }  # fmt: skip
        if about and "subjects_filter" in about:
            state["subjects"] = {s: len(all) for s, all in self.subjects.items()}
        elif self._json is not None and self._json[0] == len(self.consumers):
            return self._json[1]
        told: dict[str, Any] = {
            "config": self.config, "created": self.created, "state": state,
        }  # fmt: skip
        if self.sources:
            told["sources"] = [
                {**one.origin, "seq": self.places[n]} for n, one in self.sources.items()
            ]
        body = msgspec.json.encode(told)
        if not about:
            self._json = len(self.consumers), body
        return body

    def find(self, asked: dict[str, Any]) -> Message | None:
        """A message by its index, or by subject."""
        if (pattern := asked.get("last_by_subj")) is not None:
            last = max((n[-1] for s, n in self.subjects.items() if fits(pattern, s)), default=0)
            return self.messages.get(last)
        start = asked.get("seq", 0)
        if (pattern := asked.get("next_by_subj")) is None:
            return self.messages.get(start)
        return next(
            (m for m in self.messages.values() if m.index >= start and fits(pattern, m.subject)),
            None,
        )

    def direct(self, asked: dict[str, Any], reply: str) -> None:
        """Answer a direct get."""
        publish = self.engine.publish
        if "batch" not in asked:
            found = self.find(asked)
            if found is None:
                publish(reply, "", b"NATS/1.0 404 Message Not Found\r\n\r\n", b"")
            else:
                publish(reply, "", self._got(found), found.data)
            return
        left = asked["batch"]
        for one in list(self.messages.values()):
            if one.index >= asked.get("seq", 0) and left:
                left -= 1
                publish(reply, "", self._got(one), one.data)
        publish(reply, "", b"NATS/1.0 204 EOB\r\n\r\n", b"")

    def _got(self, one: Message) -> bytes:
        lines = one.head[10:-2] if one.head else b""
        stamp = f"{datetime.fromtimestamp(one.time // NANO, UTC):%Y-%m-%dT%H:%M:%S}"
        return (
            b"NATS/1.0\r\n%bNats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\n"
            b"Nats-Time-Stamp: %b.%09dZ\r\n\r\n"
        ) % (
            lines, self.name.encode(), one.subject.encode(), one.index,
            stamp.encode(), one.time % NANO,
        )  # fmt: skip


class Mirror:
    """Follows another stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._engine = stream.engine
        self._name = ""
        """Of the consumer that it listens to; empty: it listens to nobody."""
        self._subject = ""
        self._inbox: deque[Any] = deque()
        self._reply = ""
        """Where it waits for an answer."""
        self._sent = 0
        self._index = 0
        self._asked = -ASK_EVERY
        self._heard = 0.0
        self._fails = 0
        self._timer: Any = None
        self._is_open = True
        self._later()

    @property
    def follows(self) -> str:
        """The consumer that it listens to; empty: none."""
        return self._name

    @property
    def is_asking(self) -> bool:
        """Whether it waits for an answer."""
        return bool(self._reply)

    def close(self) -> None:
        """The stream follows nobody any more."""
        self._is_open = False
        self._cancel()
        if self._reply:
            self._engine.unsubscribe(self._reply, self._on_answer)
            self._reply = ""

    def _cancel(self) -> None:
        if self._subject:
            self._engine.unsubscribe(self._subject, self._on_message)
        self._subject = self._name = ""
        self._inbox.clear()

    def _later(self) -> None:
        now = self._engine.now()
        wait = max(ASK_EVERY - (now - self._asked), 0.0)
        wait += min(BACKOFF * self._fails, BACKOFF_MOST)
        wait += JITTER + self._engine.random.random() * JITTER
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._engine.after(wait, self._ask)

    def again(self) -> None:
        """Something does not fit: ask anew."""
        self._cancel()
        self._ask()

    @property
    def origin(self) -> dict[str, Any]:
        """Where it reads, as its stream's configuration says."""
        return self.stream.config["mirror"]  # type: ignore[no-any-return]

    def _beginning(self) -> dict[str, Any]:
        """From where on."""
        stream, start = self.stream, self.stream.last + 1
        if not stream.messages and not stream.first:
            start = self.origin.get("opt_start_seq", 0)
        policy = "by_start_sequence" if start else "all"
        return {"deliver_policy": policy, **({"opt_start_seq": start} if start else {})}

    def _ask(self) -> None:
        now = self._engine.now()
        if not self._is_open:
            return
        self._cancel()
        if now - self._asked < ASK_EVERY or self._reply:
            self._later()
            return
        self._asked = now
        number, name, external = self._engine.count(), self.origin["name"], self.origin["external"]
        config = {
            "name": f"JS_MIRROR_{self.stream.name}", "sourcing": True, "ack_policy": "none",
            "deliver_subject": f"{external['deliver']}.{number}", **self._beginning(),
        }  # fmt: skip
        self._reply = f"$JSC.R.{number}"
        self._engine.subscribe(self._reply, self._on_answer)
        body = msgspec.json.encode({"stream_name": name, "config": config})
        subject = f"{external['api']}.CONSUMER.CREATE.{name}"
        self._engine.after(ANSWER, self._give_up, self._reply)
        self._engine.publish(subject, self._reply, b"", body)

    def _give_up(self, reply: str) -> None:
        if self._is_open and self._reply == reply:
            self._answered()
            self._fails += 1
            self._later()

    def _answered(self) -> None:
        self._engine.unsubscribe(self._reply, self._on_answer)
        self._reply = ""

    def _on_answer(self, subject: str, reply: str, head: bytes, data: bytes) -> None:
        answer = msgspec.json.decode(data)
        self._answered()
        if "error" in answer:
            self._fails += 1
            self._later()
            return
        self._fails = 0
        self._name, self._sent = answer["name"], 0
        self._begin(answer["delivered"]["stream_seq"])
        self._heard = self._engine.now()
        self._subject = answer["config"]["deliver_subject"]
        self._engine.subscribe(self._subject, self._on_message)
        self._engine.after(STALLED, self._check, self._subject)

    def _begin(self, delivered: int) -> None:
        if self.stream.last < delivered:
            self.stream.skip(delivered)
        self._index = self.stream.last

    def _check(self, subject: str) -> None:
        if self._is_open and self._subject == subject:
            if self._engine.now() - self._heard > STALLED:
                self.again()
            else:
                self._engine.after(STALLED, self._check, subject)

    def _on_message(self, *message: Any) -> None:
        """A busy engine looks at it later, in order: also at what tells it to ask again."""
        if self._engine.lag or self._inbox:
            self._inbox.append(message)
            self._engine.after(self._engine.lag, self._next)
        else:
            self._take(*message)

    def _next(self) -> None:
        if self._inbox:
            self._take(*self._inbox.popleft())

    def _is_beat(self, head: bytes) -> bool:
        """Whether it is a sign of life alone. It tells whether something was lost."""
        self._heard = self._engine.now()
        if not head.startswith(b"NATS/1.0 100"):
            return False
        last = int(parse_headers(head).get("Nats-Last-Consumer", 0))
        if last > 0 and last != self._sent:
            self.again()
        return True

    def _take(self, subject: str, reply: str, head: bytes, data: bytes) -> None:
        if self._is_beat(head):
            return
        words = reply.split(".")
        name, index, sent, when = words[-6], int(words[-4]), int(words[-3]), int(words[-2])
        if name != self._name:
            return
        if index <= self._index:
            if sent == self._sent + 1:
                self._sent = sent
            return
        if index > self._index + 1:
            if sent != self._sent + 1:
                self.again()
                return
            self.stream.skip(index - 1)
        if not self.stream.has_room():
            return
        self._index, self._sent = index, sent
        if self.stream.last != index - 1:
            self.again()
            return
        id = parse_headers(head).get("Nats-Msg-Id", "") if head else ""
        if b"Nats-Expected-" in head:
            kept = [line for line in head.split(b"\r\n") if not line.startswith(b"Nats-Expected-")]
            head = b"\r\n".join(kept)
        self.stream.store(index, subject, head, data, when, id)


class Source(Mirror):
    """Reads some subjects of another stream, and stores them beside what else comes."""

    def __init__(self, stream: Stream, origin: dict[str, Any], name: str) -> None:
        self._origin = origin
        self._called = name
        super().__init__(stream)

    @property
    def origin(self) -> dict[str, Any]:
        """As for a mirror."""
        return self._origin

    def _beginning(self) -> dict[str, Any]:
        stream, place = self.stream, self.stream.places[self._called]
        told: dict[str, Any] = {"deliver_policy": "all"}
        if place:
            told = {"deliver_policy": "by_start_sequence", "opt_start_seq": place + 1}
        elif stream.first > 1 and stream.last_time:
            told = {"deliver_policy": "by_start_time", "opt_start_time": stream.last_time}
        return {**told, "filter_subjects": [one["src"] for one in self._transforms]}

    @property
    def _transforms(self) -> list[dict[str, str]]:
        return self._origin["subject_transforms"]  # type: ignore[no-any-return]

    def _begin(self, delivered: int) -> None:
        self.stream.places[self._called] = max(self.stream.places[self._called], delivered)

    def _take(self, subject: str, reply: str, head: bytes, data: bytes) -> None:
        if self._is_beat(head):
            return
        words = reply.split(".")
        name, index, sent = words[-6], int(words[-4]), int(words[-3])
        places = self.stream.places
        if name != self._name:
            return
        if index <= places[self._called]:
            if sent == self._sent + 1:
                self._sent = sent
            return
        if sent != self._sent + 1:
            if sent > self._sent:
                self.again()
            return
        if not self.stream.has_room():
            return
        self._sent = sent
        places[self._called] = index
        kept = [
            line for line in head[10:-2].split(b"\r\n")
            if line and not line.startswith((b"Nats-Expected-", SOURCE.encode()))
        ]  # fmt: skip
        outbox, *rest = self._called.split(" ")
        kept.append(f"{SOURCE}: {' '.join([outbox, str(index), *rest, subject])}".encode())
        new = next(
            _transformed(one, subject) for one in self._transforms if fits(one["src"], subject)
        )
        self.stream.take_sourced(new, b"\r\n".join([b"NATS/1.0", *kept, b"", b""]), data)


def _name_of(source: dict[str, Any]) -> str:
    ways = source["subject_transforms"]
    words = ("\f".join(one[end] for one in ways) for end in ("src", "dest"))
    return " ".join([f"{source['name']}:{source['external']['api']}", *words])


def _place_of(head: bytes) -> tuple[str, int]:
    """Which source brought a message, and its place there."""
    if SOURCE.encode() not in head:
        return "", 0
    outbox, place, src, dest, _ = parse_headers(head)[SOURCE].split(" ")
    return f"{outbox} {src} {dest}", int(place)


def _transformed(way: dict[str, str], subject: str) -> str:
    """The subject that it is stored under: `>` stands at the end of both, or of none."""
    src, dest = way["src"].removesuffix(">"), way["dest"].removesuffix(">")
    return dest + subject[len(src) :]


def answer_of(engine: Engine, call: str, reply: str, data: bytes) -> bytes | None:
    """What JetStream's API answers; None: nobody is there, or it answers by itself."""
    words = call.split(".")
    what, name = ".".join(words[:2]), words[2] if len(words) > 2 else ""
    asked = msgspec.json.decode(data) if data[:1] == b"{" else {}
    streams = engine.streams
    if what in ("STREAM.LIST", "STREAM.NAMES"):
        wanted = asked.get("subject")
        found = [
            s for _, s in sorted(streams.items())
            if not wanted or any(fits(p, wanted) for p in s.config.get("subjects") or ())
        ]  # fmt: skip
        page = found[asked.get("offset", 0) :]
        told = [msgspec.Raw(s.info()) if what == "STREAM.LIST" else s.name for s in page]
        return msgspec.json.encode({"total": len(found), "streams": told})
    if engine.is_full and what in ("STREAM.CREATE", "STREAM.UPDATE"):
        return _error(NO_ROOM)
    if what == "STREAM.CREATE":
        if name in streams and streams[name].config != asked:
            return _error(EXISTS)
        if name not in streams:
            streams[name] = Stream(engine, asked)
            streams[name].open()
        return streams[name].info()
    if what == "CONSUMER.MSG":
        stream, consumer = words[3], words[4]
        streams[stream].consumers[consumer].ask(reply, data)
        return None
    if what == "DIRECT.GET":
        streams[name].direct(asked, reply)
        return None
    if what == "STREAM.MSG":
        name = words[3]
    if (found_one := streams.get(name)) is None:
        return _error(NOT_FOUND)
    stream_ = found_one
    match what:
        case "STREAM.INFO":
            return stream_.info(asked)
        case "STREAM.UPDATE":
            stream_.change(asked)
            return stream_.info()
        case "STREAM.DELETE":
            del streams[name]
            stream_.close()
            return b'{"success":true}'
        case "STREAM.PURGE":
            gone = stream_.purge(asked.get("seq"), asked.get("filter"))
            return b'{"success":true,"purged":%d}' % gone
        case "STREAM.MSG" if words[2] == "DELETE":
            return b'{"success":true}' if stream_.remove(asked["seq"]) else _error(NO_MESSAGE)
        case "STREAM.MSG":
            one = stream_.find(asked)
            if one is None:
                return _error(NO_MESSAGE)
            told_one = {"subject": one.subject, "seq": one.index,
                        "data": base64.b64encode(one.data).decode()}  # fmt: skip
            return msgspec.json.encode({"message": told_one})
        case "CONSUMER.LIST":
            all = [msgspec.Raw(c.info()) for c in stream_.consumers.values()]
            return msgspec.json.encode(
                {"total": len(all), "consumers": all[asked.get("offset", 0) :]}
            )
        case "CONSUMER.CREATE":
            config = asked["config"]
            called = config.get("durable_name") or config.get("name") or f"c{engine.count()}"
            if config.get("sourcing"):
                called = f"{called}_{engine.count()}"
            if (known := stream_.consumers.get(called)) is not None:
                if asked.get("action") == "create" and not known.is_like(config):
                    return _error(CONSUMER_EXISTS)
                if not known.begins_as(config):
                    return _error(CANNOT_CHANGE)
                known.change(config)
                return known.info()
            consumer_ = Consumer(stream_, called, config)
            stream_.consumers[called] = consumer_
            consumer_.open()
            told_first = consumer_.info()
            engine.after(0.0, consumer_.send)
            return told_first
    consumer_or = stream_.consumers.get(words[3])
    if consumer_or is None:
        return _error(NO_CONSUMER)
    if what == "CONSUMER.DELETE":
        consumer_or.close()
        return b'{"success":true}'
    return consumer_or.info(is_asked=True)


def is_there(engine: Engine, call: str) -> bool:
    """Whether anybody listens to a call: those that single streams and consumers answer."""
    words = call.split(".")
    if call.startswith("DIRECT.GET."):
        stream = engine.streams.get(words[2])
        return stream is not None and bool(
            stream.config.get("allow_direct") or stream.config.get("mirror_direct")
        )
    if call.startswith("CONSUMER.MSG.NEXT."):
        stream = engine.streams.get(words[3])
        return stream is not None and words[4] in stream.consumers
    return True


def _error(error: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"error": error})
