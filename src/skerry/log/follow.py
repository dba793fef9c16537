"""Follow a log: what live and durable subscriptions have in common.

A subscription reads through a consumer of the engine. It pulls events into a bounded store of its
own, hands them out in order, and when the connection or the consumer is lost it *repairs*: makes
sure of a consumer, which the kinds do differently, and pulls again.

A consumer reads one segment of the log (`skerry.log.segments`). What lies beyond the end of a
frozen one is dropped, and at its end the subscription goes on in the next one, as a repair.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Self

from skerry.engine.jetstream import STREAM_NOT_FOUND, ApiError, JetStream
from skerry.engine.pull import Pull
from skerry.engine.wire import Listener
from skerry.errors import (
    AccessDenied,
    BadSetting,
    SkerryError,
    SubscriptionError,
    Unavailable,
    UnknownTopic,
)
from skerry.log.segments import (
    Chain,
    Extent,
    Segment,
    alone,
    index_since,
    look,
    look_at_chain,
    segment_at,
)
from skerry.log.topics import unknown_topic
from skerry.model.event import Event
from skerry.model.fabric import TopicEntry
from skerry.model.names import stored_subject, stream_of
from skerry.model.placement import TopicUse

LAGS = 256
"""Batches of which it is remembered how long their events took, until somebody asks."""
LEAST_LAG = 1e-6


class Start:
    """Where a subscription begins: at an index, at a time, or with the next event."""

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
    the topic was deleted, `AgedOut` when the reader was so slow that events aged out unread,
    `Unavailable` when the site was away for longer than the client's timeout.
    """

    def __init__(
        self,
        jetstream: JetStream,
        owner: str,
        topic: str,
        start: Start,
        *,
        window: int,
        window_bytes: int = 32 * 1024 * 1024,
        settle: Callable[[], Awaitable[TopicEntry | None]] | None = None,
        stream: str | None = None,
        chain: Chain | None = None,
    ) -> None:
        if not 1 <= window <= 100_000:
            raise BadSetting(f"a window is 1 to 100000 events, not {window!r}")
        self.topic = topic
        self.pending = 0
        """Events that the engine still had for this subscription behind the last one received."""
        self.missed = 0
        """Events that aged out before this durable subscription was given them."""
        self._jetstream = jetstream
        self._connection = jetstream.connection
        self._owner = owner
        self._only = None if stream is None else alone(stream)
        """Read this one stream, whatever the log's chain is."""
        self._known = chain
        """The chain, where somebody has just looked."""
        self._segment = (self._only or chain or alone(stream_of(owner)))[-1]
        """The segment that is read now."""
        self._whole = topic == owner
        self._start = start
        self._window = window
        self._settle = settle
        """Has the site make sure of its copy; None outside a fabric."""
        self._entry: TopicEntry | None = None
        self.epoch = 0
        """The topic's, when this subscription last found its place; 0: not known."""
        self._consumer = ""
        self._held: deque[Event] = deque()
        self._mean = 0.0
        """Bytes of an event, from what came lately; it falls slowly and rises at once."""
        self._delivered = 0
        self._lags: deque[float] = deque(maxlen=LAGS)
        """Seconds that some of the events took from when the home stored them until they came."""
        self._waiter: asyncio.Future[None] | None = None
        self._error: SkerryError | None = None
        self._closed = False
        self._is_broken = False
        self._repairing: asyncio.Task[None] | None = None
        self._pull = Pull(
            self._connection, window, window_bytes, self._take, self._on_lost, jetstream.prefix
        )
        self._pull.idle = self._on_idle

    async def open(self) -> Self:
        """Make the consumer and begin; events stored after this returns are delivered."""
        try:
            try:
                await self._find_consumer()
            except UnknownTopic:
                if self._settle is None:
                    raise
                await self._find_again()  # the log here may just be made anew
            self._connection.listen(self)
            await self._begin()
        except BaseException:
            self._end()
            raise
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events()  # a generator costs less an event than calls of __anext__

    async def __anext__(self) -> Event:
        await self._wait()
        event = self._held.popleft()
        self._ask()
        return event

    async def _events(self) -> AsyncGenerator[Event, None]:
        take, held = self._held.popleft, self._held
        while True:
            if not held:
                try:
                    await self._wait()
                except StopAsyncIteration:
                    return
            with suppress(IndexError):  # another reader of this subscription took the rest
                for _ in range(len(held)):
                    yield take()
            self._ask()

    async def _wait(self) -> None:
        """Until an event is held; raise what ends the subscription."""
        while not self._held:
            if self._error is not None:
                raise self._error
            if self._closed or self._is_over():
                raise StopAsyncIteration
            self._ask()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def ack(self, event: Event) -> None:
        """Say that `event` is done with. It is not delivered to this durable subscription again,
        unless the engine dies before it has written that down."""
        raise BadSetting("only durable subscriptions acknowledge", "Subscribe with durable=….")

    def reject(self, event: Event, delay: float = 0.0) -> None:
        """Ask for `event` once more, after `delay` seconds."""
        raise BadSetting("only durable subscriptions reject", "Subscribe with durable=….")

    async def close(self) -> None:
        """Stop. A durable subscription stays at the engine and goes on when opened again."""
        if self._closed:
            return
        await asyncio.gather(*self._end(), return_exceptions=True)

    def _end(self) -> list[asyncio.Task[None]]:
        """Ask for nothing more, and have what is under way end; return that."""
        self._closed = True
        self._connection.unlisten(self)
        self._pull.close()
        self._wake()
        tasks = [task for task in self._under_way() if task is not None]
        for task in tasks:
            task.cancel()
        return tasks

    def _under_way(self) -> list[asyncio.Task[None] | None]:
        """The tasks of this subscription."""
        return [self._repairing]

    async def _begin(self) -> None:
        """Pull."""
        self._pull.start(self._stream, self._consumer)
        self._ask()

    # What the kinds do differently

    async def _find_consumer(self) -> None:
        """Make sure that the engine has a consumer at the right place, and name it."""
        raise NotImplementedError

    def _take(self, events: list[Event], size: int, pending: int) -> None:
        """Events came in; hold or drop each."""
        raise NotImplementedError

    def _end_segment(self) -> None:
        """A frozen segment has nothing more: go on in the next one."""
        raise NotImplementedError

    def _is_over(self) -> bool:
        """Whether no more events are to be handed out."""
        return False

    def _is_bounded(self) -> bool:
        """Whether it only reads what there is."""
        return False

    # What they share

    def _hold(self, events: list[Event], size: int) -> None:
        self._held.extend(events)
        self._delivered += len(events)
        if (
            self.pending <= len(events) and self._segment.is_active
        ):  # who reads what was stored earlier measures nothing
            self._lags.append(time.time() - events[-1].timestamp_ns / 1e9)
        self._mean = max(size / len(events), self._mean * 0.9)
        self._ask()
        if self._waiter is not None:
            self._wake()

    def _ask(self) -> None:
        # Bytes are estimated: to add up what is held would cost more than to hand it out.
        self._pull.ask(len(self._held), int(len(self._held) * self._mean))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: SkerryError) -> None:
        if self._error is None:
            self._error = error
            self._pull.stop()
            self._wake()

    def _on_lost(self, why: str) -> None:
        if why:
            self._repair()
        else:
            self._ask()

    def _on_idle(self) -> None:
        # What a frozen segment still had may have aged out.
        if not self._segment.is_active:
            self._end_segment()

    def _repair(self) -> None:
        self._is_broken = True
        if self._repairing is None and not self._closed and self._error is None:
            self._repairing = asyncio.create_task(self._do_repair())

    async def _do_repair(self) -> None:
        try:
            while self._is_broken:  # it may break again before this is over
                self._is_broken = False
                await self._find_again()
                if self._connection.is_up:
                    await self._begin()
            self._wake()
        except SkerryError as error:
            self._fail(error)
        finally:
            self._repairing = None

    async def _find_again(self) -> None:
        """Make sure of a consumer. In a fabric the log here may just be made anew, or the client
        be at another site: then wait for the site's copy."""
        if self._settle is None:
            await self._find_consumer()
            return
        deadline = self._connection.now() + self._connection.settings.timeout
        while True:
            self._entry = await self._settle()  # says so if the topic is gone for good
            if self._entry is not None and self._entry.is_another(self.epoch):
                raise unknown_topic(self.topic)  # it was deleted; what is here has its name
            try:
                await self._find_consumer()
                self.epoch = self._entry.epoch if self._entry else 0
                return
            except (UnknownTopic, SubscriptionError):
                if self._connection.now() > deadline:
                    raise
            await asyncio.sleep(0.1)

    async def _create(self, name: str, config: dict[str, Any]) -> dict[str, Any]:
        """Create or change the consumer `name` of the segment that is read now."""
        config = {"replay_policy": "instant", "num_replicas": 1, **config, "name": name}
        if subjects := self._filters():
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

    @property
    def _stream(self) -> str:
        return self._segment.stream

    async def _chain(self) -> Chain:
        """The chain of the log; looked up, unless somebody did so just before."""
        chain, self._known = self._known, None
        return chain or await self._chain_now()

    async def _chain_now(self) -> Chain:
        chain = self._only or await look_at_chain(self._jetstream, self._owner)
        if chain is None:
            raise unknown_topic(self.topic)
        return chain

    async def _start_in(self, chain: Chain, start: Start) -> tuple[Segment, Start]:
        """The segment that a subscription begins in. Raises `Moved`."""
        if start.time is not None and len(chain) > 1:
            index = await index_since(self._jetstream, chain, start.time)
            start = start if index is None else Start(index)
        return (chain[-1] if start.index is None else segment_at(chain, start.index)), start

    async def _look(self) -> Extent | None:
        """What the log holds; None: there is none at the moment."""
        if self._only is None:
            return await look(self._jetstream, self._owner)
        info = await self._jetstream.stream(self._stream)
        return None if info is None else Extent(self._only, (info,))

    async def _log(self) -> Extent:
        if (log := await self._look()) is None:
            raise unknown_topic(self.topic)
        return log

    def _filters(self) -> list[str]:
        subject = stored_subject(self.topic)
        return [] if self._whole else [subject, f"{subject}.>"]

    def used(self) -> TopicUse | None:
        """What was delivered since this was last asked."""
        if self._settle is None or self._is_bounded():
            return None
        lags = sorted(self._lags)
        delivered, self._delivered = self._delivered, 0
        self._lags.clear()
        use = TopicUse(self._owner, False, 1, delivered=delivered)
        if lags:  # clocks differ: nothing arrives before it was sent
            use.deliver_s = max(lags[len(lags) // 2], LEAST_LAG)
            use.deliver_most_s = max(lags[-1], LEAST_LAG)
        return use

    # Listener

    def on_up(self) -> None:
        """The connection is back: begin anew behind the last event taken."""
        self._repair()

    def on_down(self) -> None:
        """The connection is lost; what was asked for will not come."""
        self._pull.stop()

    def on_tick(self, now: float) -> None:
        """Notice silence, and an outage that lasts too long."""
        down = self._connection.down_since
        if down is not None and now - down > self._connection.settings.timeout:
            self._fail(self._connection.unavailable())
        else:
            self._pull.check(now)

    def on_denied(self, subject: str, error: AccessDenied) -> None:
        """This user may not read this topic."""
        if f".{self._stream}." in subject:
            self._fail(error)

    def on_closed(self, error: SkerryError) -> None:
        """The client was closed under the subscription."""
        self._fail(Unavailable(error.what))
