"""Which holder a copy follows: the engine asks us each time it (re)connects a mirror.

Theory of operation. The engine cannot change where a mirror follows. So every copy names `UP`, a
site that does not exist, as its origin; when its engine wants to read, it asks `$JS.UP.API.…`, and
we answer by asking the holder that we chose. The events then flow from engine to engine, and Python
sees none of them. To change the holder we make the engine ask again: a heartbeat that does not fit
on the mirror's delivery subject makes it believe that it missed something (6 ms, measured; the
engine asks at most every two seconds).

Sources, which bring outboxes home, do the same with `$JS.UP.<site>.API.…`.

An engine that gets an error, or no answer within 30 s, is deaf for 10 s, then 20, up to 120: it
neither asks nor hears a heartbeat (measured: a copy followed 24 s after its holder was back). So it
gets neither. Errors of a holder count as "not yet". A question that nobody could answer for `HELD`
seconds is answered with a consumer that does not exist: the engine then listens to its delivery
subject, and asks again when it hears a heartbeat that does not fit, or nothing for ten seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import msgspec

from skerry.engine.link import Down
from skerry.engine.wire import NO_RESPONDERS, Connection
from skerry.fabric.tasks import Tasks
from skerry.model.names import STREAM_PREFIX

log = logging.getLogger("skerry.fabric")

UPSTREAM = "$JS.UP.API"
HELD = 20.0
"""Seconds that a question may wait for a holder to be known; the engine itself gives up at 30."""
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


Choose = Callable[[Question], Awaitable[str | None]]
"""The holder to ask, or None: not yet."""


class _Config(msgspec.Struct):
    deliver_subject: str = ""
    opt_start_seq: int = 0
    filter_subjects: list[str] = []


class _Create(msgspec.Struct):
    config: _Config


def source_api(site: str) -> str:
    """The origin that a source of the outbox of `site` names."""
    return f"$JS.UP.{site}.API"


class Relay:
    """Answers the engine's questions."""

    def __init__(self, connection: Connection, choose: Choose, way: Callable[[str], float]) -> None:
        self._connection = connection
        self._choose = choose
        self._way = way
        """Seconds that the way to a holder and back may take."""
        self._delivery: dict[tuple[str, str], str] = {}
        self._holders: dict[tuple[str, str], str] = {}
        """Who was asked last, as long as the link to it holds."""
        self._answering: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._tasks = Tasks("answering the engine")
        self._changed = asyncio.Event()
        connection.subscribe("$JS.UP.>", self._on_question)

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()

    def lost(self, peer: str) -> None:
        """The link to `peer` is gone, and with it what it was sending."""
        self._holders = {key: site for key, site in self._holders.items() if site != peer}

    def is_reading(self, stream: str, source: str = "") -> bool:
        """Whether the engine was given a holder whose link has held since, or is about to be. To
        ask again would only cost time: the engine does so at most every two seconds."""
        return (stream, source) in self._holders or (stream, source) in self._answering

    def again(self, stream: str, source: str = "") -> None:
        """Have the engine ask again for this mirror, or this source of it, because the answer
        would be another one now."""
        self._changed.set()
        self._changed = asyncio.Event()
        self._holders.pop((stream, source), None)
        if subject := self._delivery.get((stream, source)):
            with contextlib.suppress(Down):
                self._connection.publish(subject, head=_MISFIT)

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
        if (old := self._answering.pop(key, None)) is not None:
            old.cancel()
        task = self._tasks.spawn(self._answer(question, call, reply.decode(), data))
        self._answering[key] = task
        task.add_done_callback(lambda done: self._forget(key, done))

    def _forget(self, key: tuple[str, str], done: asyncio.Task[None]) -> None:
        if self._answering.get(key) is done:
            del self._answering[key]

    async def _answer(self, question: Question, call: str, reply: str, data: bytes) -> None:
        deadline = self._connection.now() + HELD
        wait = 0.01
        while self._connection.now() < deadline:
            changed = self._changed
            try:
                holder = question.source or await self._choose(question)
                if holder is not None:
                    answer = await self._connection.request(
                        f"$JS.{holder}.API.{call}", data, timeout=ATTEMPT + self._way(holder)
                    )
                    if answer.status != NO_RESPONDERS and b'"error":' not in answer.data:
                        self._holders[question.stream, question.source] = holder
                        self._connection.publish(reply, answer.data)
                        return
            except Down:
                return
            except TimeoutError:
                pass
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await changed.wait()
            wait = min(wait * 1.5, 0.2)
        with contextlib.suppress(Down):
            self._connection.publish(reply, _nobody(question.stream, data))


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
