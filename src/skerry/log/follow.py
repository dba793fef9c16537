"""Follow a log: live, from an index, from a time, or as a durable subscription.

Theory of operation. A subscription reads through a consumer of the engine. A *live* one has a
throw-away consumer and remembers its own position: when the engine restarts or the consumer is
gone, it makes another one at the next index, so that nothing is missed or doubled. A *durable* one
has a named consumer, kept by the engine on disk: what was acknowledged is not delivered again, what
was not acknowledged within `ack_wait` is, also after the reader crashed. That makes it
at-least-once; the index tells a repetition apart, and events that this very subscription has
acknowledged already are never handed out again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any, Self

from skerry.engine.jetstream import STREAM_NOT_FOUND, ApiError, JetStream
from skerry.engine.pull import NANO, Pull
from skerry.engine.wire import Down, Listener
from skerry.errors import (
    AccessDenied,
    AgedOut,
    BadSetting,
    SkerryError,
    SubscriptionError,
    Unavailable,
)
from skerry.log.topics import unknown_topic
from skerry.model.event import Event
from skerry.model.names import check_subscription, stored_subject, stream_of

log = logging.getLogger("skerry.subscription")

IDLE_CONSUMER = 60.0
"""Seconds after which the engine forgets the throw-away consumer of a vanished reader."""

ACKED_KEPT = 65536
"""How many acknowledged indexes a durable subscription remembers to drop repetitions."""


class Start:
    """Where a subscription begins."""

    def __init__(self, index: int | None = None, time: datetime | None = None) -> None:
        self.index = index
        self.time = time

    def policy(self) -> dict[str, Any]:
        """As the engine writes it."""
        if self.index is not None:
            return {"deliver_policy": "by_start_sequence", "opt_start_seq": self.index}
        if self.time is not None:
            text = self.time.astimezone(UTC).isoformat().replace("+00:00", "Z")
            return {"deliver_policy": "by_start_time", "opt_start_time": text}
        return {"deliver_policy": "new"}


class Subscription(Listener):
    """Events of one topic and its sub-topics, in index order. Iterate over it with `async for`.

    It ends only by `close`, by leaving its `async with` block, or by an error: `UnknownTopic` when
    the topic was deleted, `AgedOut` when the reader was so slow that events aged out unread
    (noticed for whole topics; for a sub-topic the log cannot tell), `Unavailable` when the site
    was away for longer than the client's timeout.
    """

    def __init__(
        self,
        jetstream: JetStream,
        owner: str,
        topic: str,
        start: Start,
        *,
        durable: str | None = None,
        window: int = 1024,
        window_bytes: int = 32 * 1024 * 1024,
        ack_wait: float = 30.0,
    ) -> None:
        if not 1 <= window <= 100_000:
            raise BadSetting(f"a window is 1 to 100000 events, not {window!r}")
        if not ack_wait >= 0.1:
            raise BadSetting(f"ack_wait is 0.1 seconds or more, not {ack_wait!r}")
        self.topic = topic
        self.durable = None if durable is None else check_subscription(durable)
        self._jetstream = jetstream
        self._connection = jetstream.connection
        self._stream = stream_of(owner)
        self._whole = topic == owner
        self._start = start
        self._ack_wait = ack_wait
        self._window = window
        self._consumer = ""
        self._position = 0
        self._placed = False
        self._held: deque[Event] = deque()
        self._held_bytes = 0
        self._suspects: list[int] = []
        self._held_back: list[Event] = []
        self._waiter: asyncio.Future[None] | None = None
        self._error: SkerryError | None = None
        self._closed = False
        self._bounded = False
        self._acked: dict[int, None] = {}
        self._repairing: asyncio.Task[None] | None = None
        self._checking: asyncio.Task[None] | None = None
        self.pending = 0
        """Events that the engine still had for this subscription behind the last one received."""
        self.missed = 0
        """Events that aged out before this durable subscription was given them."""
        self._pull = Pull(self._connection, window, window_bytes, self._take, self._on_lost)

    async def open(self) -> Self:
        """Make the consumer and begin; events stored after this returns are delivered."""
        try:
            await self._make_consumer()
        except BaseException:
            self._pull.close()
            raise
        self._connection.listen(self)
        self._pull.start(self._stream, self._consumer)
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._held:
            if self._error is not None:
                raise self._error
            if self._closed or (self._bounded and not self.pending and not self._held_back):
                raise StopAsyncIteration
            self._pull.ask(0, 0)
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        event = self._held.popleft()
        self._held_bytes -= len(event.data)
        self._pull.ask(len(self._held), self._held_bytes)
        return event

    async def drain(self, end: int) -> AsyncGenerator[Event, None]:
        """Events up to index `end`, as far as the log still has them; then stop."""
        self._bounded = True
        async for event in self:
            if event.index <= end:
                yield event
            if event.index >= end:
                return

    def ack(self, event: Event) -> None:
        """Say that `event` is done with. It is not delivered to this durable subscription again,
        unless the engine dies before it has written that down."""
        self._answer(event, b"+ACK")
        self._acked[event.index] = None
        if len(self._acked) > ACKED_KEPT:
            del self._acked[next(iter(self._acked))]

    def reject(self, event: Event, delay: float = 0.0) -> None:
        """Ask for `event` once more, after `delay` seconds."""
        body = b'-NAK {"delay":%d}' % int(delay * NANO) if delay else b"-NAK"
        self._answer(event, body)

    async def close(self) -> None:
        """Stop. A durable subscription stays at the engine and goes on when opened again."""
        if self._closed:
            return
        self._closed = True
        self._connection.unlisten(self)
        self._pull.close()
        self._wake()
        for task in (self._repairing, self._checking):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self.durable is None and self._consumer:
            # What is left over expires by itself.
            with contextlib.suppress(Down):
                self._connection.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._consumer}")

    def _answer(self, event: Event, body: bytes) -> None:
        if self.durable is None:
            raise BadSetting("only durable subscriptions acknowledge", "Subscribe with durable=….")
        # A lost acknowledgement is a redelivery, which `_take` drops if it was one of ours.
        with contextlib.suppress(Down):
            self._connection.publish(event.reply.decode(), body)

    def _take(self, event: Event, pending: int) -> None:
        self.pending = pending
        if self.durable is not None:
            if event.index in self._acked:
                with contextlib.suppress(Down):
                    self._connection.publish(event.reply.decode(), b"+ACK")
                self._ask()
                return
        elif event.index <= self._position:
            return
        else:
            if self._whole and event.index != self._position + 1:
                self._suspects.append(self._position + 1)
                if self._checking is None:
                    self._checking = asyncio.create_task(self._check_gap())
            self._position = event.index
        if self._checking is not None:
            self._held_back.append(event)
            return
        self._held.append(event)
        self._held_bytes += len(event.data)
        if self._waiter is not None:
            self._wake()

    async def _check_gap(self) -> None:
        """Indexes were skipped: by events whose lifespan is over, or by events that aged out
        unread? Hand nothing on before that is known."""
        try:
            info = await self._jetstream.stream(self._stream)
            if info is None:
                raise unknown_topic(self.topic)
            first = max(info["state"]["first_seq"], 1)
            if first > (missing := min(self._suspects)):
                raise AgedOut(
                    f"events from {missing} to {first - 1} of {self.topic} aged out before this "
                    "subscription read them",
                    f"Subscribe again from index {first}; read faster, or keep more events.",
                    first,
                )
            self._suspects.clear()
            self._held.extend(self._held_back)
            self._held_bytes += sum(len(event.data) for event in self._held_back)
            self._held_back.clear()
            self._wake()
        except SkerryError as error:
            self._fail(error)
        finally:
            self._checking = None

    def _ask(self) -> None:
        held_back = sum(len(event.data) for event in self._held_back)
        self._pull.ask(len(self._held) + len(self._held_back), self._held_bytes + held_back)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: SkerryError) -> None:
        self._error = error
        self._pull.stop()
        self._wake()

    def _on_lost(self, why: str) -> None:
        if why:
            self._repair(why)
        else:
            self._ask()

    def _repair(self, why: str) -> None:
        if self._repairing is None and not self._closed and self._error is None:
            self._repairing = asyncio.create_task(self._do_repair())

    async def _do_repair(self) -> None:
        """Make sure of the consumer, and go on behind the last event taken."""
        try:
            await self._make_consumer()
            if self._connection.is_up:
                self._pull.start(self._stream, self._consumer)
            self._wake()
        except SkerryError as error:
            self._fail(error)
        finally:
            self._repairing = None

    async def _make_consumer(self) -> None:
        if self.durable is not None:
            await self._find_durable(self.durable)
            return
        start = Start(index=self._position + 1) if self._placed else self._start
        self._consumer = f"live-{secrets.token_hex(8)}"
        answer = await self._create(
            self._consumer,
            {
                **start.policy(),
                "ack_policy": "none",
                "mem_storage": True,
                "inactive_threshold": int(IDLE_CONSUMER * NANO),
            },
        )
        if not self._placed:
            # With `new` and by time, the engine has just fixed where this one begins.
            self._position = answer["delivered"]["stream_seq"]
            self._placed = True
        self.pending = answer.get("num_pending", 0)

    async def _find_durable(self, name: str) -> None:
        self._consumer = name
        wanted = {
            "durable_name": name,
            "ack_policy": "explicit",
            "ack_wait": int(self._ack_wait * NANO),
            "max_ack_pending": self._window,
        }
        existing = await self._jetstream.consumer(self._stream, name)
        if existing is None:
            await self._create(name, {**self._start.policy(), **wanted})
            return
        config = existing["config"]
        if sorted(_filters(config)) != sorted(self._filter_subjects()):
            raise SubscriptionError(
                f"the durable subscription {name!r} exists for another sub-topic",
                "Give this one another name, or remove the other.",
            )
        if any(config.get(field) != value for field, value in wanted.items()):
            await self._create(name, {**config, **wanted})
        await self._count_missed(existing["delivered"]["stream_seq"])

    async def _count_missed(self, delivered: int) -> None:
        info = await self._jetstream.stream(self._stream) if self._whole else None
        missed = info["state"]["first_seq"] - delivered - 1 if info else 0
        if missed > self.missed:
            log.warning(
                "%d events of %s aged out before subscription %s was given them",
                missed, self.topic, self.durable,
            )  # fmt: skip
            self.missed = missed

    async def _create(self, name: str, config: dict[str, Any]) -> dict[str, Any]:
        config = {
            "replay_policy": "instant",
            "num_replicas": 1,
            **config,
            "name": name,
        }
        if subjects := self._filter_subjects():
            config["filter_subjects"] = subjects
        try:
            return await self._jetstream.call(
                f"CONSUMER.CREATE.{self._stream}.{name}",
                {"stream_name": self._stream, "config": config},
            )
        except ApiError as error:
            if error.code == STREAM_NOT_FOUND:
                raise unknown_topic(self.topic) from None
            raise

    def _filter_subjects(self) -> list[str]:
        subject = stored_subject(self.topic)
        return [] if self._whole else [subject, f"{subject}.>"]

    # Listener

    def on_up(self) -> None:
        """The connection is back: begin anew behind the last event taken."""
        self._repair("reconnected")

    def on_down(self) -> None:
        """The connection is lost; what was asked for will not come."""
        self._pull.stop()

    def on_tick(self, now: float) -> None:
        """Notice silence, and an outage that lasts too long."""
        down = self._connection.down_since
        if down is not None and now - down > self._connection.settings.timeout:
            if self._error is None:
                self._fail(self._connection.unavailable())
        else:
            self._pull.check(now)

    def on_denied(self, subject: str, error: AccessDenied) -> None:
        """This user may not read this topic."""
        if f".{self._stream}." in subject and self._error is None:
            self._fail(error)

    def on_closed(self, error: SkerryError) -> None:
        """The client was closed under the subscription."""
        self._error = self._error or Unavailable(error.what)
        self._wake()


def _filters(config: dict[str, Any]) -> list[str]:
    one = config.get("filter_subject")
    return [one] if one else list(config.get("filter_subjects") or [])
