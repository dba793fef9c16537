"""Pulls messages from a consumer with a bounded window.

Theory of operation. The engine sends only what was asked for. A `Pull` asks for half a window at a
time and asks again when what its owner holds, plus what is still to come, has fallen to half. A
reader that stops reading therefore stops the asking, and holds at most a window of messages; it
slows nobody else. Bytes are bounded likewise, at one and a half times `window_bytes`. A request
ends when it is filled, when it expires (status 408, 409) or when nobody is there to take it (503).
While one is open the engine sends heartbeats, so silence means that something is wrong, and the
owner is told (`lost`) to look and to begin anew.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable

import msgspec

from skerry.engine.link import Down
from skerry.engine.wire import Connection
from skerry.model.event import ACK_PREFIX, Event, index_of, status_of

EXPIRES = 30.0
"""Seconds that a request stays open; then it is renewed."""
HEARTBEAT = 2.0
"""Seconds between the engine's signs of life on an idle request."""
SILENCE = 3
"""Heartbeats that may be missing before the consumer is taken for lost."""
NANO = 1_000_000_000

_numbers = itertools.count()
"""No two pulls share an inbox: what one asked for must not reach the other."""


class Pull:
    """Asks one consumer for messages and hands them on as events.

    `deliver` is called with a list of events in the order they came, with their size in bytes and
    with the number that the engine still had behind the last one. `lost` is called with what is
    wrong, or with an empty text when a request ended in order and it is time to `ask` again.
    """

    def __init__(
        self,
        connection: Connection,
        window: int,
        window_bytes: int,
        deliver: Callable[[list[Event], int, int], None],
        lost: Callable[[str], None],
        prefix: str = "$JS.API.",
    ) -> None:
        self._prefix = prefix
        self._connection = connection
        self._window = window
        self._window_bytes = window_bytes
        self._deliver = deliver
        self._lost = lost
        self.idle: Callable[[], None] = lambda: None
        """Called while a request is open and the engine has nothing to send."""
        self._listen()
        self._own = b"?"
        """How replies of the consumer begin."""
        self._name = b"?"
        self._next: bytes | None = None
        self._number = 0
        self._open: deque[list[int]] = deque()
        self._expected = 0
        self._heard = 0.0

    def _listen(self) -> None:
        self._suffix = f".s.{next(_numbers)}."
        self._inbox = self._connection.inbox + self._suffix
        self._sid = self._connection.subscribe(
            self._inbox + "*", self._on_message, self._on_messages
        )

    @property
    def is_open(self) -> bool:
        """Whether the engine has a request: if the consumer goes, it says so."""
        return bool(self._open)

    def start(self, stream: str, consumer: str) -> None:
        """Pull from `consumer` from now on, whenever the owner asks."""
        self.stop()
        self._inbox = self._connection.inbox + self._suffix  # it may be at another site now
        self._own = f"$JS.ACK.{stream}.{consumer}.".encode()
        self._name = f".{consumer}.".encode()
        self._next = f"{self._prefix}CONSUMER.MSG.NEXT.{stream}.{consumer}".encode()
        self._heard = self._connection.now()

    def stop(self) -> None:
        """Forget what was asked for."""
        self._next = None
        self._open.clear()
        self._expected = 0

    def renew(self) -> None:
        """Take nothing more of what was asked for, even of a consumer of the same name."""
        self.stop()
        self._connection.unsubscribe(self._sid)
        self._listen()

    def forget(self) -> None:
        """Take nothing more of the consumer: some of what it sent is lost."""
        self.stop()
        self._own = self._name = b"?"

    def leave(self) -> None:
        """Ask for nothing more; what is under way is still delivered."""
        self.stop()
        self._connection.leave(self._sid)

    def close(self) -> None:
        """Stop for good."""
        self.stop()
        self._connection.unsubscribe(self._sid)

    def ask(self, held: int, held_bytes: int) -> None:
        """Ask for more if the owner holds so little that there is room for half a window."""
        if (
            self._next is None
            or held + self._expected > self._window // 2
            or held_bytes > self._window_bytes // 2
        ):
            return
        batch = max(self._window - held - self._expected, 1)
        body = msgspec.json.encode(
            {
                "batch": batch,
                "max_bytes": max(
                    self._window_bytes // 2, self._connection.info.max_payload + 65536
                ),
                "expires": int(EXPIRES * NANO),
                "idle_heartbeat": int(HEARTBEAT * NANO),
            }
        )
        self._number += 1
        inbox = f"{self._inbox}{self._number}".encode()
        if not self._open:
            self._heard = self._connection.now()
        try:
            self._connection.publish(self._next, body, reply=inbox)
        except Down:
            self.stop()
            return
        self._open.append([self._number, batch])
        self._expected += batch

    def check(self, now: float) -> None:
        """Tell the owner if an open request is silent for too long."""
        if self._open and now - self._heard > SILENCE * HEARTBEAT:
            self.stop()
            self._lost("the engine is silent")

    def _on_messages(self, data: bytes, position: int) -> int:
        """Take a run of whole messages of this consumer. This loop is the cost of reading: it
        looks at each message once, and only for what it needs."""
        find, end, sid, own = data.find, len(data), self._sid, self._own
        after = len(own) + 2  # behind `…stream.consumer.1.`, the reply of a first delivery
        events: list[Event] = []
        began = position
        while (line_end := find(b"\n", position)) > 0:
            # HMSG subject sid reply head-size size, or MSG subject sid reply size
            words = data[position:line_end].split(b" ")
            if len(words) < 5 or words[2] != sid:
                break
            reply = words[3]
            if not reply.startswith(own):
                break
            start = line_end + 1
            stop = start + int(words[-1])  # int() strips the \r
            if stop + 2 > end:
                break
            split = start + int(words[4]) if len(words) == 6 else start
            index = (
                int(reply[after : reply.find(b".", after)])
                if reply[after - 1] == 46
                else index_of(reply)
            )
            events.append(Event(words[1], index, data[start:split], data[split:stop], reply))
            position = stop + 2
        if events:
            self._received(events, position - began)
        return position

    def _on_message(self, subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
        if not reply.startswith(ACK_PREFIX):
            self._on_status(subject, head)
            return
        if self._name not in reply:
            return  # of an earlier consumer
        event = Event(subject, index_of(reply), head, data, reply)
        self._received([event], len(head) + len(data))

    def _received(self, events: list[Event], size: int) -> None:
        self._heard = self._connection.now()
        left = len(events)
        while left and self._open:
            request = self._open[0]
            filled = min(left, request[1])
            request[1] -= filled
            left -= filled
            self._expected -= filled
            if not request[1]:
                self._open.popleft()
        self._deliver(events, size, int(events[-1].reply.rpartition(b".")[2]))

    def _on_status(self, subject: bytes, head: bytes) -> None:
        self._heard = self._connection.now()
        status = status_of(head)
        if status == 100:
            self.idle()
            return
        number = int(subject[len(self._inbox) :])
        for request in self._open:
            if request[0] == number:
                self._open.remove(request)
                self._expected -= request[1]
                break
        else:
            return  # of an earlier consumer, or already filled
        if status == 503 or (status == 409 and b"Deleted" in head):
            self.stop()
            self._lost("the subscription's consumer is gone")
        else:
            self._lost("")
