"""Which holder a copy follows: the engine asks us each time it (re)connects a mirror.

Theory of operation. The engine cannot change where a mirror follows. So every copy names `UP`, a
site that does not exist, as its origin; when its engine wants to read, it asks `$JS.UP.API.…`, and
we answer by asking the holder that we chose. The events then flow from engine to engine, and Python
sees none of them. To change the holder we make the engine ask again: a heartbeat that does not fit
on the mirror's delivery subject makes it believe that it missed something (6 ms, measured; the
engine asks at most every two seconds).

A mirror that has stored all that a stream of this site had to send can be sent on by the next, and
its engine need not ask (`go_on`): it takes what comes to the delivery subject from a consumer of
the name it knows, if the first index follows on its last. If not, it asks. Only so within a site:
the engine counts deliveries, and what a link lost could fit to its count by chance.

Sources, which bring outboxes home, do the same with `$JS.UP.<site>.API.…`. An engine that finds
nothing of an outbox in a log whose first events are gone asks for what came since the log's last
event was stored, by the clock (measured: it left out what an outbox had from before). An outbox
has only what is still to be brought home, so it is read from its first event on, or from where the
outbox's site knows that this home was (`begin`).

An engine that gets an error, or no answer within 30 s, is deaf for 10 s, then 20, up to 120: it
neither asks nor hears a heartbeat (measured: a copy followed 24 s after its holder was back). So it
gets neither. Errors of a holder count as "not yet". A question that nobody could answer for `HELD`
seconds is answered with a consumer that does not exist: the engine then listens to its delivery
subject, and asks again when it hears a heartbeat that does not fit, which it gets at once, or
nothing for ten to twenty seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from skerry.engine.link import Down
from skerry.engine.wire import NO_RESPONDERS, Connection
from skerry.errors import SkerryError
from skerry.fabric.tasks import Tasks
from skerry.model.names import STREAM_PREFIX

log = logging.getLogger("skerry.fabric")

UPSTREAM = "$JS.UP.API"
ASKS = 2.1
"""Seconds between two questions for the same stream: the engine does not ask earlier again."""
HELD = 20.0
"""Seconds that a question may wait for a holder to be known; the engine itself gives up at 30."""
LISTENS = 0.2
"""Seconds after which an engine listens to the consumer that it was told of."""
ATTEMPT = 2.0
"""Seconds for one attempt to ask a holder, beside the way there and back."""

_MISFIT = (
    b"NATS/1.0 100 Idle Heartbeat\r\n"
    b"Nats-Last-Consumer: 999999999999\r\nNats-Last-Stream: 999999999999\r\n\r\n"
)


class Question(msgspec.Struct, frozen=True):
    """What the engine wants to know to connect a mirror or a source."""

    stream: str
    source: str
    """The site whose outbox is read; empty for a mirror."""
    start: int
    """The first index it lacks; 0: from the beginning."""


Choose = Callable[[Question], Awaitable[tuple[str, str] | None]]
"""The holder to ask and its stream, or None: not yet. The holder may be this site itself."""
Begin = Callable[[Question, str, int], Awaitable[bool]]
"""Told from which index on a holder will send what was asked for; False: it is not to."""


class Reading(msgspec.Struct, frozen=True):
    """What a mirror or source was given: the holder, its stream, and the consumer there."""

    site: str
    stream: str
    consumer: str


class _Config(msgspec.Struct):
    deliver_subject: str = ""
    opt_start_seq: int = 0
    filter_subjects: list[str] = []


class _Create(msgspec.Struct):
    config: _Config


class _Delivered(msgspec.Struct, frozen=True):
    stream_seq: int = 0


class _Created(msgspec.Struct):
    name: str = ""
    delivered: _Delivered = _Delivered()


def source_api(site: str) -> str:
    """The origin that a source of the outbox of `site` names."""
    return f"$JS.UP.{site}.API"


class Relay:
    """Answers the engine's questions."""

    def __init__(
        self, connection: Connection, choose: Choose, begins: Begin, way: Callable[[str], float]
    ) -> None:
        self._connection = connection
        self._choose = choose
        self._begins_at = begins
        self._way = way
        """Seconds that the way to a holder and back may take."""
        self._delivery: dict[tuple[str, str], str] = {}
        self._holders: dict[tuple[str, str], Reading] = {}
        """Who was asked last, as long as the link to it holds."""
        self._asked: dict[tuple[str, str], tuple[str, bytes, float]] = {}
        """The engine's last questions: the call, what it says, and when."""
        self._answering: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._begins: dict[tuple[str, str], int] = {}
        """Where sources begin of which the engine knows nothing."""
        self._begun: dict[tuple[str, str], int] = {}
        """Where sources have begun so. The engine tells how far they are once something came."""
        self._stale: set[tuple[str, str]] = set()
        """Questions whose answer, if one is under way, would be another one now."""
        self._tasks = Tasks("answering the engine")
        self._changed = asyncio.Event()
        connection.subscribe("$JS.UP.>", self._on_question)

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()

    def lost(self, peer: str) -> None:
        """The link to `peer` is gone, and with it what it was sending."""
        self._holders = {key: one for key, one in self._holders.items() if one.site != peer}

    def forget(self, stream: str) -> None:
        """A mirror was removed; one of its name may be made."""
        for known in (self._holders, self._asked, self._delivery):
            known.pop((stream, ""), None)
        if (task := self._answering.pop((stream, ""), None)) is not None:
            task.cancel()

    def is_reading(self, stream: str, source: str = "") -> bool:
        """Whether the engine was given a holder whose link has held since, or is about to be. To
        ask again would only cost time: the engine does so at most every two seconds."""
        return (stream, source) in self._holders or (stream, source) in self._answering

    def begin(self, stream: str, source: str, start: int, is_new: bool) -> None:
        """Have a source of which the engine finds nothing in its log begin there."""
        self._begins[stream, source] = start
        if is_new:
            self._begun.pop((stream, source), None)

    def begun(self, stream: str, source: str) -> int:
        """Where a source has begun so; 1: it has not."""
        return self._begun.get((stream, source), 1)

    def reads(self, stream: str) -> Reading | None:
        """What a mirror reads now."""
        return self._holders.get((stream, ""))

    def may_ask(self, stream: str) -> bool:
        """Whether the engine asks at once if it is to ask again."""
        asked = self._asked.get((stream, ""))
        return asked is None or self._connection.now() - asked[2] > ASKS

    def again(self, stream: str, source: str = "") -> None:
        """Have the engine ask again for this mirror, or this source of it, because the answer
        would be another one now."""
        self._changed.set()
        self._changed = asyncio.Event()
        self._stale.add((stream, source))  # an engine that waits for its answer hears nothing
        self._holders.pop((stream, source), None)
        if subject := self._delivery.get((stream, source)):
            with contextlib.suppress(Down):
                self._connection.publish(subject, head=_MISFIT)

    def go_on(self, stream: str, start: int) -> None:
        """Have a mirror read from `start` on at the stream of this site that is next. It must have
        stored all that the former one was to send. A question that is open is answered so."""
        key = (stream, "")
        if key in self._answering or key not in self._asked:
            return
        call, data, _ = self._asked[key]
        former = self._holders.pop(key, None)
        if former is not None:
            self._answer_by(key, self._send_on(former, Question(stream, "", start), call, data))

    async def _send_on(self, former: Reading, question: Question, call: str, data: bytes) -> None:
        wanted = msgspec.json.decode(data)
        wanted["config"] |= {
            "name": former.consumer,
            "sourcing": False,  # else the engine adds to the name
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": question.start,
        }
        with contextlib.suppress(Down, TimeoutError):
            # Its heartbeats would not fit to what comes next.
            await self._connection.request(
                f"$JS.{former.site}.API.CONSUMER.DELETE.{former.stream}.{former.consumer}",
                timeout=ATTEMPT + self._way(former.site),
            )
        await self._answer(question, call, "", msgspec.json.encode(wanted))

    def _on_question(self, subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
        words = subject.decode().split(".")
        source = "" if words[2] == "API" else words[2]
        call = ".".join(words[words.index("API") + 1 :])
        if "CONSUMER.CREATE" not in call or not reply:
            return
        wanted = msgspec.json.decode(data, type=_Create).config
        stream = words[words.index("CREATE") + 1]
        if source and wanted.filter_subjects:  # of the outbox, for the topic that it filters
            stream = STREAM_PREFIX + wanted.filter_subjects[0].removesuffix(".>").replace(
                f"o.{source}.", ""
            ).replace(".", "~")
        question = Question(stream, source, wanted.opt_start_seq)
        key = (stream, source)
        self._delivery[key] = wanted.deliver_subject
        self._asked[key] = (call, data, self._connection.now())
        self._holders.pop(key, None)
        self._answer_by(key, self._answer(question, call, reply.decode(), data))

    def _answer_by(self, key: tuple[str, str], answer: Coroutine[Any, Any, None]) -> None:
        if (old := self._answering.pop(key, None)) is not None:
            old.cancel()
        task = self._tasks.spawn(answer)
        self._answering[key] = task
        task.add_done_callback(lambda done: self._forget(key, done))

    def _forget(self, key: tuple[str, str], done: asyncio.Task[None]) -> None:
        if self._answering.get(key) is done:
            del self._answering[key]

    async def _answer(self, question: Question, call: str, reply: str, data: bytes) -> None:
        deadline = self._connection.now() + HELD
        wait = 0.01
        key = question.stream, question.source
        while self._connection.now() < deadline:
            changed = self._changed
            self._stale.discard(key)
            try:
                if self._is_clear(question) and (holder := await self._choose(question)):
                    site, origin = holder
                    answer = await self._connection.request(
                        f"$JS.{site}.API.{_at(call, question, origin)}",
                        self._from(data, question, origin),
                        timeout=ATTEMPT + self._way(site),
                    )
                    if answer.status != NO_RESPONDERS and b'"error":' not in answer.data:
                        made = msgspec.json.decode(answer.data, type=_Created)
                        name, first = made.name, made.delivered.stream_seq + 1
                        is_wanted = await self._begins_at(question, site, first)
                        if key in self._stale or not is_wanted:
                            self._connection.publish(
                                f"$JS.{site}.API.CONSUMER.DELETE.{origin}.{name}"
                            )
                            continue
                        self._holders[key] = Reading(*holder, name)
                        if reply:
                            self._connection.publish(reply, answer.data)
                        return
            except Down:
                return
            except (TimeoutError, SkerryError) as error:
                log.debug("nobody is asked for %s yet: %s", question.stream, error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await changed.wait()
            wait = min(wait * 1.5, 0.2)
        if reply:
            with contextlib.suppress(Down):
                self._connection.publish(reply, _nobody(question.stream, data))
                await asyncio.sleep(LISTENS)
                # So that there is always a question to be answered.
                self._connection.publish(self._delivery[key], head=_MISFIT)

    def _is_clear(self, question: Question) -> bool:
        """Whether it is known where to begin: the site of an outbox says so when it has us read."""
        key = question.stream, question.source
        return question.start > 0 or not question.source or key in self._begins

    def _from(self, data: bytes, question: Question, origin: str) -> bytes:
        """What the call says, said to the holder."""
        if not question.source:
            if origin == question.stream:
                return data
            return msgspec.json.encode({**msgspec.json.decode(data), "stream_name": origin})
        if question.start:
            return data
        wanted = msgspec.json.decode(data)
        wanted["config"].pop("opt_start_time", None)
        key = question.stream, question.source
        start = self._begun[key] = self._begins[key]
        wanted["config"] |= {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
        return msgspec.json.encode(wanted)


def _at(call: str, question: Question, origin: str) -> str:
    """The call that makes a consumer of `origin`, which the holder has as the log asked for."""
    return call if question.source else call.replace(f".{question.stream}", f".{origin}", 1)


def _nobody(stream: str, asked: bytes) -> bytes:
    """The answer that a consumer was made, which there is not."""
    none = {"consumer_seq": 0, "stream_seq": 0}
    return msgspec.json.encode(
        {
            "type": "io.nats.jetstream.api.v1.consumer_create_response",
            "stream_name": stream,
            "name": "nobody",
            "created": "2000-01-01T00:00:00Z",
            "config": msgspec.json.decode(asked)["config"],
            "delivered": none,
            "ack_floor": none,
            "num_ack_pending": 0,
            "num_redelivered": 0,
            "num_waiting": 0,
            "num_pending": 0,
        }
    )
