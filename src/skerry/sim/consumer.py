"""Consumers of a simulated engine: they send what a stream holds, in order, to whoever asks or to a
mirror.

A durable one is told what is done with, sends again what is not in time, and outlives its engine:
what is on disk of it may be a tenth of a second old (server/consumer.go: getNextMsg, processAckMsg,
trackPending, checkPending; server/filestore.go: consumerFileStore.flushLoop).
"""

from __future__ import annotations

import copy
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from skerry.sim.subjects import fits

if TYPE_CHECKING:
    from skerry.sim.jetstream import Message, Stream

NANO = 1_000_000_000
HEARTBEAT = 1.0
STALLED = 10.0
"""Seconds without a message before a mirror asks again, or its consumer goes."""
FLUSH = 0.1
"""Seconds after which what a durable consumer knows is written down."""
ACK_WAIT = 30.0
BEGINS = ("deliver_policy", "opt_start_seq", "opt_start_time")
UNSURE = 0.001
"""Seconds in which a consumer that was just made may say that nothing is pending (ADR 10)."""
SAVED = ("config", "created", "next", "_sent", "waits", "times", "floor", "_floor_number")


class Consumer:
    """Sends the messages of a stream, in order."""

    def __init__(self, stream: Stream, name: str, config: dict[str, Any]) -> None:
        self.stream = stream
        self.name = name
        self._engine = stream.engine
        self.created = f"2026-01-01T00:00:01.{self._engine.count():09d}Z"
        self.deliver: str = config.get("deliver_subject", "")
        self.change(config)
        self._sent = 0
        policy = config.get("deliver_policy", "all")
        start = config.get("opt_start_seq", 0)
        self._only: list[int] | None = None
        if policy == "by_start_time":
            since = config["opt_start_time"]
            late = (one.index for one in stream.messages.values() if one.time >= since)
            start = next(late, stream.last + 1)
        if not start:
            start = stream.last + 1 if policy == "new" else stream.first
        if policy == "last_per_subject" and stream.config.get("max_msgs_per_subject") != 1:
            self._only = sorted(n[-1] for n in stream.subjects.values())
        self.next = max(start, stream.first, 1)
        self._requests: deque[list[Any]] = deque()
        self._busy = 0.0
        self._alone = 0.0
        self.waits: dict[int, int] = {}
        """What was sent and is not done with: by index, the number under which it was sent."""
        self.times: dict[int, int] = {}
        """How often it was sent."""
        self.floor, self._floor_number = self.next - 1, 0
        """Up to where all is done with: the index, and the number."""
        self._again: deque[int] = deque()
        """What is to be sent once more."""
        self._is_flushing = False
        self._made = self._engine.now()

    def open(self) -> None:
        """Begin."""
        if self.deliver:
            self._engine.after(HEARTBEAT, self._beat)
        if self._is_explicit:
            self._engine.subscribe(self._answers, self._on_answer)
            self._flush()

    @classmethod
    def recovered(cls, stream: Stream, name: str, saved: dict[str, Any]) -> Consumer:
        """One of which this is on disk. What was sent and is not done with is sent again later."""
        consumer = cls(stream, name, saved["config"])
        vars(consumer).update(copy.deepcopy(saved))
        consumer._made -= UNSURE
        consumer.on_purged()
        for index in list(consumer.waits):
            if index in stream.messages:
                consumer._await(index)
            else:
                consumer.done(index)
        consumer.open()
        return consumer

    def change(self, config: dict[str, Any]) -> None:
        """Take another configuration."""
        self.config = config
        filters = config.get("filter_subjects") or [config.get("filter_subject")]
        self._filters: list[str] = [one for one in filters if one]
        self._is_explicit = config.get("ack_policy") == "explicit"
        self._ack_wait = config.get("ack_wait", ACK_WAIT * NANO) / NANO
        self._most: int = config.get("max_ack_pending", 1000)

    def is_like(self, config: dict[str, Any]) -> bool:
        """Whether it was made with this configuration."""
        return {**self.config, "name": self.name} == {**config, "name": self.name}

    def begins_as(self, config: dict[str, Any]) -> bool:
        """Whether this configuration begins where that of this consumer does."""
        return all(self.config.get(part) == config.get(part) for part in BEGINS)

    def info(self, is_asked: bool = False) -> bytes:
        """What the engine says of a consumer, as JSON."""
        pending, engine = self._pending(), self._engine
        is_unsure = is_asked and self._is_explicit and engine.now() - self._made < UNSURE
        if is_unsure and engine.random.random() < 0.2:
            pending = 0
        sent = {"consumer_seq": self._sent, "stream_seq": self.next - 1}
        floor = {"consumer_seq": self._floor_number, "stream_seq": self.floor}
        return msgspec.json.encode(
            {
                "stream_name": self.stream.name, "name": self.name, "created": self.created,
                "config": {**self.config, "name": self.name}, "delivered": sent,
                "ack_floor": floor if self._is_explicit else sent,
                "num_ack_pending": len(self.waits), "num_redelivered": 0,
                "num_waiting": len(self._requests), "num_pending": pending,
            }
        )  # fmt: skip

    def close(self) -> None:
        """It goes, and who waits is told."""
        if self.stream.consumers.pop(self.name, None) is not None:
            self.stream.durables.pop(self.name, None)
            if self._is_explicit:
                self._engine.unsubscribe(self._answers, self._on_answer)
            for request in self._requests:
                self._engine.publish(request[0], "", b"NATS/1.0 409 Consumer Deleted\r\n\r\n", b"")
            self._requests.clear()

    # Sending

    def ask(self, reply: str, body: bytes) -> None:
        """Somebody wants the next messages."""
        asked = msgspec.json.decode(body) if body[:1] == b"{" else {"batch": int(body or 1)}
        request = [reply, asked.get("batch", 1)]
        self._requests.append(request)
        self.send()
        if request in self._requests:
            self._engine.after(asked.get("expires", 30 * NANO) / NANO, self._expire, request)
            if beat := asked.get("idle_heartbeat"):
                self._engine.after(beat / NANO, self._idle, request, beat / NANO)

    def send(self) -> None:
        """Send what can be sent."""
        stream, engine = self.stream, self._engine
        while self.deliver or self._requests:
            to = self.deliver or self._requests[0][0]
            if not engine.has_interest(to):
                if self.deliver:
                    return
                self._requests.popleft()  # who asked is gone
                continue
            if (one := self._upcoming()) is None:
                return
            self.next = max(self.next, one.index + 1)
            self._sent += 1
            if self._is_explicit:
                self.waits.setdefault(one.index, self._sent)
                self.times[one.index] = self.times.get(one.index, 0) + 1
                self._await(one.index)
                self._flush()
            reply = (
                f"$JS.ACK.{stream.name}.{self.name}.{self.times.get(one.index, 1)}.{one.index}."
                f"{self._sent}.{one.time}.{self._pending()}"
            )
            self._busy = engine.now()
            if not self.deliver:
                self._requests[0][1] -= 1
                if not self._requests[0][1]:
                    self._requests.popleft()
            engine.publish(to, reply, one.head, one.data, one.subject)

    def _upcoming(self) -> Message | None:
        messages, last = self.stream.messages, self.stream.last
        while self._again:
            index = self._again.popleft()
            if index in self.waits and index in messages:
                return messages[index]
        if self._is_explicit and len(self.waits) >= self._most:
            return None
        index = self.next
        while index <= last:
            one = messages.get(index)
            if one is not None and self._is_wanted(one):
                return one
            index += 1
        return None

    def _is_wanted(self, one: Message) -> bool:
        if self._only is not None and one.index not in self._only:
            return False
        return not self._filters or any(fits(f, one.subject) for f in self._filters)

    def _pending(self) -> int:
        if self.next > self.stream.last:
            return 0
        stream, messages = self.stream, self.stream.messages
        if self._only is None and not self._filters and stream.is_whole:
            return int(stream.last - max(self.next, stream.first) + 1)
        return sum(one.index >= self.next and self._is_wanted(one) for one in messages.values())

    def _expire(self, request: list[Any]) -> None:
        if request in self._requests:
            self._requests.remove(request)
            self._engine.publish(request[0], "", b"NATS/1.0 408 Request Timeout\r\n\r\n", b"")

    def _idle(self, request: list[Any], every: float) -> None:
        if request in self._requests:
            self._engine.publish(request[0], "", b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", b"")
            self._engine.after(every, self._idle, request, every)

    def _beat(self) -> None:
        """A mirror's consumer: a sign of life, or the end if nobody listens for long."""
        if self.stream.consumers.get(self.name) is not self:
            return
        now = self._engine.now()
        if self._engine.has_interest(self.deliver):
            self._alone = 0.0
            if now - self._busy >= HEARTBEAT:
                head = (
                    b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: %d\r\n"
                    b"Nats-Last-Stream: %d\r\n\r\n" % (self._sent, self.next - 1)
                )
                self._engine.publish(self.deliver, "", head, b"")
        else:
            self._alone += HEARTBEAT
            if self._alone > STALLED:
                self.close()
                return
        self._engine.after(HEARTBEAT, self._beat)

    # What is done with

    @property
    def _answers(self) -> str:
        return f"$JS.ACK.{self.stream.name}.{self.name}.>"

    def _on_answer(self, subject: str, reply: str, head: bytes, data: bytes) -> None:
        index = int(subject.split(".")[5])
        if index not in self.waits:
            return
        if data.startswith(b"-NAK"):
            delay = msgspec.json.decode(data[5:])["delay"] / NANO if len(data) > 4 else 0.0
            if delay:
                self._engine.after(delay, self._late, index, self.times[index])
            elif index not in self._again:
                self._again.append(index)
        else:
            self.done(index)
        self.send()

    def done(self, index: int) -> None:
        """A message is not to be sent any more."""
        number = self.waits.pop(index, 0)
        if not number:
            return
        self.times.pop(index, None)
        if not self.waits:
            self._floor_number, self.floor = self._sent, self.next - 1
        elif number == self._floor_number + 1:
            self._floor_number, self.floor = number, index
            first = next((n for n in range(index + 1, self.next) if n in self.waits), 0)
            if first:
                self._floor_number, self.floor = self.waits[first] - 1, first - 1
        self._flush()

    def on_removed(self, index: int) -> None:
        """The stream has let go of a message."""
        self.done(index)

    def on_purged(self) -> None:
        """The stream begins further on."""
        self.next = max(self.next, self.stream.first)
        self.floor = max(self.floor, self.stream.first - 1)
        self._flush()

    def _await(self, index: int) -> None:
        self._engine.after(self._ack_wait, self._late, index, self.times[index])

    def _late(self, index: int, times: int) -> None:
        if self.times.get(index) == times and self.stream.consumers.get(self.name) is self:
            if index not in self._again:
                self._again.append(index)
            self.send()

    def _flush(self) -> None:
        """Write it down soon."""
        if self._is_explicit and not self._is_flushing:
            self._is_flushing = True
            wait = 0.0 if self.name not in self.stream.durables else FLUSH
            self._engine.after(wait, self._write)

    def _write(self) -> None:
        self._is_flushing = False
        if self.stream.consumers.get(self.name) is self:
            self.stream.durables[self.name] = copy.deepcopy({k: getattr(self, k) for k in SAVED})
