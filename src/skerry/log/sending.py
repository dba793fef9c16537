"""A publisher's sending: which event goes when, and what its caller is told. Pure, no I/O.

Exactly once. Every event carries an id, and a log refuses an id that it has seen within its
duplicate window, answering with the index of the first copy. So whatever was not acknowledged when
a connection was lost, or a home, is sent again, in order. It stops before the window ends: then the
caller gets `OutcomeUnknown`, not a guess.

Order. A publisher's events are stored in the order it sent them. Each connection delivers a prefix
of that order, beginning with the oldest event not yet acknowledged; two copies of one prefix,
interleaved, store every event behind all before it. Between sites a link may swallow some and
deliver later ones, so there the publisher looks: when nobody answers, or nothing is acknowledged
for a while, or the home changes, it holds back, sends the oldest alone, and the rest once that is
acknowledged. How long a while is goes by the trips that were measured; a link always takes longer
to come back. An acknowledgement that comes later all the same counts.

A lost home. What the home acknowledged and too few replicas have yet is kept. What of it the next
home lacks is sent there, in order, before anything newer, and for as long as that takes: its caller
relies on it. So even at level `home` a lost home costs nothing while the publisher lives; what a
publisher leaves behind is salvaged when the old home is back. What is older than the duplicate
window is looked for in the log before it is sent, for its former home may have brought it.

Last values. Where a topic keeps the last event of each sub-topic alone, an event goes when a later
one has come, and its id with the engine's next start. Sent again, it would take the place of that
later one. So where there is no fabric the publisher looks, when the connection is back, before it
sends anything again. What it sent before an event of the same sub-topic that is there, counts as
stored, for that came for it: its caller is told that one's index.

A forgetful home. Whoever gives an event its id may have sent it before, by another publisher. A
home that took over just after its engine was started does not know ids from before. So the first
such event has it asked for all that it may have forgotten, once; what is there already is not sent.

So an event is in one of four places, in this order of age: *kept*, acknowledged, and of that *lost*
what has to be stored again; *waiting* for replicas, at level `quorum`, or *in flight* to the home:
for these two a caller waits, and is told if it takes too long.

    in flight ──answer──▶ waiting ──report──▶ told          (level quorum)
        │  ▲                 │
        │  └─────on_route────┘
        └─────answer─────▶ told, kept ──report──▶ let go    (level home)
                               │  ▲
                       on_route▼  │answer
                               lost

And the way to the home is in one of six phases:

    phase      what goes out        until
    nowhere    nothing, none taken  on_located ▶ probing
    away       nothing              on_up ▶ probing
    recalling  nothing              on_recalled ▶ probing
    probing    the oldest, alone    answered ▶ free; nobody took it ▶ pausing; silence ▶ again
    pausing    nothing              on_retry ▶ probing; answered ▶ free
    free       each as it is sent   silence ▶ probing; nobody took it ▶ pausing

From any but nowhere: on_gone ▶ nowhere; on_down ▶ away, but recalling goes on; on_route ▶ recalling
if the home may have forgotten what it has, else probing. Where there is no fabric the engine at the
other end of the connection is the home, and the way is free as soon as there is one, or, after a
loss with events in flight, as soon as it has been asked: on_up ▶ recalling, on_last_values ▶ free.

Whoever drives it tells what happened, then carries out `actions` in order, and settles the tickets
in `told` and `failed`. Each ticket is in one of them once.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Literal, NamedTuple

from skerry.config import DUPLICATE_WINDOW
from skerry.errors import OutcomeUnknown, SkerryError, StorageFull
from skerry.log.frames import InFlight, Ticket, id_of, is_nobody, number_of, outcome_of
from skerry.log.kept import BYTES, EVENTS, Kept
from skerry.log.topics import unknown_topic
from skerry.model.fabric import TopicEntry
from skerry.model.placement import TopicUse
from skerry.model.promotion import confirmed
from skerry.model.topic import Ack
from skerry.model.way import Way

log = logging.getLogger("skerry.publisher")

LINGER = 10.0
"""Seconds that a closed publisher goes on keeping what replicas lack."""
REMEMBERED = DUPLICATE_WINDOW - 10
"""Seconds for which a home surely refuses a second copy of an event."""
SUSPECT = 0.15
SUSPECT_MOST = 0.45
"""Seconds without an acknowledgement after which what was sent over a link counts as lost: half as
much again as the way there and back may take; the former at the least; at the most the latter and
two trips, as long as the shortest of late. A link is dialled again after 0.5 s, and needs more than
two trips then."""
RETRY_FIRST = 0.002
RETRY_MOST = 0.1
"""Seconds before the oldest event is tried again when nobody took it."""
CONDITION = b"\r\nNats-Expected-"
"""How a header of an event begins that is stored on a condition."""
TRIPS = 64
"""Answers of which it is remembered how long they took, until somebody asks: to events that were
sent while none was in flight, so that none waited behind another."""

Phase = Literal["nowhere", "away", "recalling", "probing", "pausing", "free"]


class Write(NamedTuple):
    """Write these events to today's home, in this order."""

    events: list[InFlight]


class LastValues(NamedTuple):
    """Look which ids the last events of these sub-topics have, if the log keeps no others, and tell
    with `on_last_values`."""

    topics: set[str]


class Recall(NamedTuple):
    """Look which events a home has, and tell with `on_recalled`."""

    entry: TopicEntry
    first: int
    last: int | None
    """The indexes to look at; None: up to the newest."""
    wanted: dict[str, int]
    """Their ids, with their numbers."""
    began: float
    after: float
    """Seconds to wait before that."""
    past: bool = False
    """Whether to tell of all that it has from as long ago as ids are remembered."""
    old: bool = False
    """Whether what is lost was sent so long ago that ids may be forgotten."""


class Retry(NamedTuple):
    """Call `on_retry` after so many seconds; any earlier wish is void."""

    after: float


Action = Write | Recall | LastValues | Retry | Literal["aim", "reach", "look", "end"]
"""Aim: write to today's home from now on, and ignore answers to what was written before. Reach: ask
for links to home and replicas, and replicas for reports. Look: call `on_look` soon. End: nothing is
left to do, for good."""


class Sending:
    """What one publisher has to send, and how far that is."""

    def __init__(
        self, topic: str, ack: Ack | None, window: int, window_bytes: int, timeout: float,
        is_up: bool,
    ) -> None:  # fmt: skip
        self.actions: list[Action] = []
        self.told: dict[Ticket, int] = {}
        self.failed: dict[Ticket, SkerryError] = {}
        self.phase: Phase = "nowhere"
        self.takes = False
        """Whether another event may be sent now."""
        self.is_open = True
        self.entry: TopicEntry | None = None
        self.level: Ack = "home"
        self.outbox = ""
        """The site whose outbox this publisher writes to: in another, its events could overtake."""
        self.in_flight: dict[int, InFlight] = {}
        self.kept = Kept()
        """What was acknowledged to its caller, and too few replicas have."""
        self.waits = Kept()
        """What the home has stored, and whose caller waits for replicas."""
        self._topic = topic
        self._ack = ack
        self._window = window
        self._window_bytes = window_bytes
        self._most = window
        self._most_bytes = window_bytes
        """What of the window is left for what is in flight."""
        self._timeout = timeout
        self._is_up = is_up
        self._site = ""
        """Where the connection leads."""
        self._bytes = 0
        """Of what is in flight."""
        self._keeps = False
        self._overflowed = False
        """Whether it was said that there is more to keep than there is room for."""
        self._acked_last = 0
        """The highest index in the topic's history of what was acknowledged to this publisher."""
        self._held = 0
        """The last index that enough replicas hold."""
        self._question: Recall | None = None
        self._gives_ids = False
        """Whether the caller gives ids of its own."""
        self._past: dict[str, int] | None = None
        """Ids that a forgetful home has, with their indexes; None: it was not asked."""
        self._past_until = 0.0
        self._closing = 0.0
        self._wait = RETRY_FIRST
        self._watched = False
        self._progressed = 0.0
        self._suspect = SUSPECT
        self._first_sent = 0.0
        self._probe_sent = 0.0
        """When the event that went alone was sent, the first time and the last."""
        self._way = Way()
        self._shortest: deque[float] = deque(maxlen=8)
        """Seconds that the last of such trips took at the least."""
        self._timed = False
        """Whether `_progressed` is when the only event in flight was sent."""
        self._trips: deque[float] = deque(maxlen=TRIPS)
        self._stored = 0
        self._stored_bytes = 0
        """What was acknowledged since `used` was asked, frames included."""

    # Where to

    def on_located(self, entry: TopicEntry | None, site: str, now: float) -> None:
        """The topic was found, by a connection to `site`; None: there is no fabric."""
        self._site = site
        self._enter(entry)
        self._restart(now)
        self.actions.append("reach")
        self._make_room()

    def on_route(self, entry: TopicEntry, now: float) -> None:
        """The topic has another home, or other replicas, or another level."""
        before, level = self.entry, self.level
        assert before is not None
        self._enter(entry)
        if level == "quorum" != self.level:
            # What waits for replicas has reached its home: if that is enough now, it waits no more.
            for number, (index, event) in self.waits.items():
                self.kept.add(number, index, event)
                self.told[event[0]] = index
            self.waits.clear()
        self._wait = RETRY_FIRST
        recalls = self.phase == "recalling"
        if entry.epoch != before.epoch:
            self._take_back(entry.fork(before.epoch))
            recalls = entry.forgetful
        elif level == "outbox" != self.level:
            recalls |= entry.forgetful and self._gives_ids and self._past is None
        if self.phase == "recalling":
            self.phase = "away"
        if recalls or self._is_old(now):
            self._look_back(now)
        if self._is_up:
            self._restart(now)
            self.actions.append("reach")
        self._confirm()
        self._make_room()

    def _enter(self, entry: TopicEntry | None) -> None:
        before, self.entry = self.entry, entry
        if entry is not None:
            if before is None or before.epoch != entry.epoch:
                self._held = confirmed(sys.maxsize, entry.epoch, len(entry.members), ())
                self._past = None
            self.level = self._ack or entry.settings.ack
        self._keeps = entry is not None and len(entry.members) > 1 and self.level != "outbox"

    def _take_back(self, fork: int) -> None:
        """Send again what a home stored and is not part of the history: beyond `fork`."""
        self.kept.lose_beyond(fork)
        self._wait_anew(self.waits.take_beyond(fork))
        self._acked_last = min(self._acked_last, fork)

    def _wait_anew(self, events: dict[int, InFlight]) -> None:
        """What waited for replicas is in flight to the home again."""
        self.in_flight = events | self.in_flight  # older than all in flight
        self._bytes += sum(len(event[1]) for event in events.values())

    def on_gone(self, now: float) -> None:
        """The topic was deleted. One of its name may be made again, and is looked for then."""
        self.entry = None
        self.phase = "nowhere"
        self._watched = False
        self.kept.clear()  # it is deleted with all its events
        self._wait_anew(self.waits.clear())
        self._acked_last = 0
        self.give_up(unknown_topic(self._topic))
        if not self.is_open:
            self._end(now)

    def on_up(self, site: str, now: float) -> None:
        """The connection is back, perhaps at another site."""
        self._is_up, self._site = True, site
        if self.phase == "nowhere":
            return
        if self.entry is None:
            self.phase = "recalling" if self.in_flight else "away"
        self._restart(now)
        if self.entry is None and self.in_flight:
            self.actions.append(LastValues({event[3] for event in self.in_flight.values()}))

    def on_down(self) -> None:
        """The connection is lost."""
        self._is_up = False
        if self.phase not in ("nowhere", "recalling"):
            self.phase = "away"

    # Holding back

    def _restart(self, now: float) -> None:
        """Send everything again that has to be stored, the oldest first and alone."""
        if self.level == "outbox":
            self.outbox = self.outbox or self._site
        self.actions.append("aim")
        self._timed = False  # what is sent again says nothing of the way
        self._progressed = self._first_sent = now
        if self.phase != "recalling":
            self._probe(now)

    def _probe(self, now: float) -> None:
        """Send the oldest alone; if there is none, the next one sent is the probe."""
        if not self._is_up or (self.level == "outbox" and self.outbox != self._site):
            self.phase = "away"  # until the client is back at its own site
        elif self.entry is None:
            self._go_on()
        else:
            self.phase = "probing"
            self._probe_sent = now
            if (oldest := next(self._to_store(), None)) is not None:
                self.actions.append(Write([oldest]))

    def _to_store(self) -> Iterator[InFlight]:
        """What the home has not stored, the oldest first."""
        return chain(self.kept.lost.values(), self.in_flight.values())

    def _go_on(self) -> None:
        """The way is free."""
        self.phase = "free"
        self._wait = RETRY_FIRST
        if events := list(self._to_store()):
            self.actions.append(Write(events))

    def _stumble(self) -> None:
        """Nobody took an event: the home is shut, moving or lost. Try the oldest again soon."""
        if self.phase in ("probing", "free"):
            self.phase = "pausing"
            self.actions.append(Retry(self._wait))
            self._wait = min(self._wait * 1.6, RETRY_MOST)

    def on_retry(self, now: float) -> None:
        """It is time to try again."""
        if self.phase == "pausing":
            self.actions.append("reach")
            self._restart(now)

    def on_look(self, now: float) -> None:
        """Look after what no message tells: silence, the end."""
        self._watched = False
        if not self.is_open and (not self.kept or now > self._closing):
            self._end(now)
            return
        if not self.in_flight and not self.waits and not self.kept:
            return  # the next one sent looks again
        self._watch()
        sent = self.in_flight or self.kept.lost
        if sent and self.phase in ("probing", "free") and now - self._progressed > self._suspect:
            # What was sent may be lost, or only late. Send the oldest again, alone; should what
            # was sent before be acknowledged after all, it counts.
            if self.phase == "probing":
                self._suspect = min(self._suspect * 2, 5.0)
            self._timed = False
            self._progressed = now
            self._probe(now)

    def _watch(self) -> None:
        if not self._watched:
            self._watched = True
            self.actions.append("look")

    # Recalling

    def _is_old(self, now: float) -> bool:
        """Whether the home may have had, and forgotten, what was lost with another."""
        oldest = next(iter(self.kept.lost.values()), None)
        return oldest is not None and now - oldest[2] > REMEMBERED

    def _look_back(self, now: float, after: float = 0.0, first: int | None = None) -> None:
        """Send nothing again before it is known which of it the home has, from index `first` on. It
        knows the ids of what it took itself, unless that was long ago."""
        entry = self.entry
        if entry is None or self.level == "outbox" or not (self.in_flight or self.kept.lost):
            return
        self.phase = "recalling"
        places = self.kept.lost | self.in_flight
        wanted = {id_of(event[1]): number for number, event in places.items()}
        old = self._is_old(now)
        # A home of last values may lead with more than what it was chosen for (`promotion.elect`).
        last = None if old or entry.settings.keep_last is not None else entry.base
        past = self._gives_ids and entry.forgetful and self._past is None
        if first is None or last is None:
            first = self._acked_last + 1
        self._question = Recall(entry, first, last, wanted, now, after, past, old)
        self.actions.append(self._question)

    def on_recalled(self, question: Recall, found: dict[str, int] | None, now: float) -> None:
        """The home has these ids, with their indexes; None: it did not say."""
        if self.phase != "recalling" or question is not self._question:
            return  # it is about another home
        if found is None and (self.in_flight or self.kept.lost):
            self.actions.append("reach")
            self._look_back(now, RETRY_MOST, question.first)
            return
        known, places = found or {}, self.kept.lost | self.in_flight
        stored = {
            number: index
            for number, event in places.items()
            if (index := known.get(id_of(event[1]))) is not None
        }
        if question.entry.settings.keep_last == 1:
            stored |= _replaced(places, known)
        for number, index in sorted(stored.items()):
            if self.kept.lost.pop(number, None) is None:
                self._take(number)
            self._acknowledged(number, index, places[number])
        if question.past and found is not None:
            self._past, self._past_until = found, now + DUPLICATE_WINDOW
        if found is not None and question.old:
            self.kept.stamp(question.began)
        self._progressed = self._first_sent = now
        self._confirm()
        self._probe(now)
        self._make_room()

    def on_last_values(self, found: dict[str, int], now: float) -> None:
        """The log, which keeps the last event of each sub-topic alone, has these ids, with their
        indexes. What was written on a condition is sent all the same: the engine judges that."""
        if self.phase != "recalling" or self.entry is not None:
            return
        stored = _replaced(self.in_flight, found)
        self.phase = "free"
        self.on_answers(stored, now)
        self._restart(now)

    # Sending, and answers

    def on_send(self, number: int, event: InFlight, now: float, given: str = "") -> bool:
        """An event was made; whether to write it now. `now` matters only in a fabric; `given` is
        the id that its caller gave it."""
        in_flight = self.in_flight
        if self.entry is not None:
            if not in_flight and not self.kept.lost:
                self._progressed = self._first_sent = self._probe_sent = now
                self._timed = True
                if not self._watched:
                    self._watch()
            elif now - self._progressed > self._suspect and self.phase == "free":
                self.phase = "probing"  # the loop stood still, and `on_look` has yet to look
        in_flight[number] = event
        self._bytes += len(event[1])
        if len(in_flight) >= self._most or self._bytes >= self._most_bytes:
            self.takes = False
        if given and self._may_be_there(number, given, now):
            return False
        if self.phase == "free":
            return True
        if self.phase in ("probing", "pausing") and len(in_flight) == 1 and not self.kept.lost:
            self.phase = "probing"
            return True
        return False

    def _may_be_there(self, number: int, given: str, now: float) -> bool:
        """Whether an event that its caller may have sent before is in the log, or its home has
        forgotten ids and is asked for them first."""
        self._gives_ids = True
        if self.entry is None or not self.entry.forgetful or self.level == "outbox":
            return False
        if self._past is None:
            question = self._question if self.phase == "recalling" else None
            if question is None:
                self._look_back(now, first=sys.maxsize)  # what is in flight was asked for
            elif not question.past:
                self._look_back(now, first=question.first)
            return True
        if (index := self._past.get(given.strip())) is None:
            return False
        if (event := self._take(number)) is not None:
            self._acknowledged(number, index, event)
        self._confirm()
        self._make_room()
        return True

    def on_answers(self, answers: dict[int, int], now: float) -> None:
        """The home, or the outbox, has stored these numbers, at these indexes."""
        take, told, alone = self.in_flight.pop, self.told, self.entry is None
        taken = size = 0
        again = False
        for number, index in answers.items():
            event = take(number, None)
            if event is not None:
                taken += 1
                size += len(event[1])
                if alone:
                    told[event[0]] = index
                else:
                    self._acknowledged(number, index, event)
            elif (event := self.kept.lost.pop(number, None)) is not None:
                again = True
                self._acknowledged(number, index, event)
        self._bytes -= size
        self._stored += taken
        self._stored_bytes += size
        if taken or again:
            self._progress(now)
        self._make_room()

    def on_refusal(self, number: int, head: bytes, data: bytes, now: float) -> None:
        """An event was answered with something else than an index."""
        event = self.in_flight.get(number) or self.kept.lost.get(number)
        if event is None:
            return
        if self.entry is not None and is_nobody(head):
            self._stumble()
            return
        error = outcome_of(event[3], head, data)
        assert not isinstance(error, int)
        if self._take(number):
            self.failed[event[0]] = error
            self._progress(now)
        elif isinstance(error, StorageFull):  # until there is room; and none overtakes it
            self.give_up(error)
            self._stumble()
        else:
            del self.kept.lost[number]
            log.warning(
                "%s: an acknowledged event was lost with its home, and the next one refuses it: %s",
                event[3], error.what,
            )  # fmt: skip
            self._progress(now)
        self._make_room()

    def _take(self, number: int) -> InFlight | None:
        """Take an event out of what is in flight."""
        event = self.in_flight.pop(number, None)
        self._bytes -= 0 if event is None else len(event[1])
        return event

    def _acknowledged(self, number: int, index: int, event: InFlight) -> None:
        is_told = event[0].done()
        if self.level == "outbox":
            index = 0  # of the outbox; the home gives another
        elif index > self._acked_last:
            self._acked_last = index
        if self._keeps:
            if self.level == "quorum" and not is_told:
                self.waits.add(number, index, event)
                return
            self.kept.add(number, index, event)
            if self.kept.trim() and not self._overflowed:
                self._overflowed = True
                log.warning(
                    "%s: replicas lack more acknowledged events than a publisher keeps (%d, or %d "
                    "bytes); the oldest are lost if their home is lost for good",
                    self._topic, EVENTS, BYTES,
                )  # fmt: skip
        if not is_told:
            self.told[event[0]] = index

    def _progress(self, now: float) -> None:
        """The home answered."""
        if self._timed or self.phase != "free":
            self._shortest.append(now - self._probe_sent)
            most = SUSPECT_MOST + 2 * min(self._shortest)
            self._way.observe(min(now - self._first_sent, most))  # an outage is no distance
            self._suspect = min(max(SUSPECT, 1.5 * self._way.wait()), most)
        if self._timed:
            self._timed = False
            self._trips.append(now - self._progressed)
        self._progressed = now
        if self._keeps:
            self._confirm()
        if self.phase in ("probing", "pausing"):
            self._go_on()

    def on_report(self, held: int) -> None:
        """Enough replicas hold everything up to index `held`."""
        self._held = held
        self._confirm()
        self._make_room()

    def _confirm(self) -> None:
        """Let go of what enough replicas have."""
        for _ in self.kept.release(self._held):
            self._overflowed = False
        for index, event in self.waits.release(self._held):
            self.told[event[0]] = index

    def _make_room(self) -> None:
        self._most = self._window - len(self.waits)
        self._most_bytes = self._window_bytes - self.waits.bytes
        has_room = len(self.in_flight) < self._most and self._bytes < self._most_bytes
        self.takes = has_room and self.is_open and self.phase != "nowhere"

    # Giving up

    def is_overdue(self, now: float) -> bool:
        """Whether somebody waits for an event, and for too long. The oldest is first, and none
        behind it may be stored before it, so all of it is given up together (`fail_all`)."""
        oldest = next(iter(self.in_flight.values()), None) or self.waits.oldest()
        return oldest is not None and now - oldest[2] > self._timeout

    def on_tick(self, now: float) -> None:
        """About a second has passed."""
        if self._past and now > self._past_until:
            self._past = {}  # nobody is to send that again any more
        if self.phase not in ("nowhere", "recalling") and self._is_up and self._is_old(now):
            self._look_back(now)
            self._restart(now)

    def fail_all(self, why: str) -> None:
        """Wait no more for anything; it may be stored all the same."""
        for event in (self.waits.clear() | self.in_flight).values():
            self.failed[event[0]] = OutcomeUnknown(
                f"publishing to {event[3]}: {why}",
                f"It may or may not be stored; its id is {id_of(event[1])}.",
            )
        self.in_flight = {}
        self._bytes = 0
        if self.phase == "free" and self.entry is not None:
            self.phase = "probing"  # what was sent may be lost
        self._make_room()

    def give_up(self, error: SkerryError) -> None:
        """Nothing in flight can be stored."""
        for event in self.in_flight.values():
            self.failed[event[0]] = error
        self.in_flight = {}
        self._bytes = 0
        self._make_room()

    def forget(self, ticket: Ticket) -> None:
        """Send the event of this ticket no more; it may be stored all the same."""
        for number, event in self.in_flight.items():
            if event[0] is ticket:
                self._take(number)
                self._make_room()
                return

    def on_close(self, now: float) -> None:
        """Nothing more is sent; what replicas lack is kept for a while."""
        self.is_open = False
        self.fail_all("the publisher was closed before the acknowledgement")
        self._closing = now + LINGER  # `on_look` ends it
        if not self.kept:
            self._end(now)

    def on_closed(self, why: str, now: float) -> None:
        """The client was closed under the publisher."""
        self.is_open = False
        self.fail_all(why)
        self._end(now)

    def _end(self, now: float) -> None:
        """Keep nothing any more, and say what that may cost."""
        long_ago = now - LINGER  # replicas that are up have what is older
        alone = sum(event[2] < long_ago for _, (_, event) in self.kept.items())
        if self.kept.lost:
            log.warning(
                "%s: the publisher ends, and %d acknowledged events that were lost with their home "
                "are not stored again; that home brings them if it comes back",
                self._topic, len(self.kept.lost),
            )  # fmt: skip
        if alone:
            log.warning(
                "%s: the publisher ends, and %d acknowledged events have too few replicas; they "
                "are lost if their home is lost for good",
                self._topic, alone,
            )  # fmt: skip
        self.kept.clear()
        self.phase = "nowhere"
        self.actions.append("end")

    # What others ask

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight, and nothing is kept for a next home."""
        return not (self.in_flight or self.waits or self.kept)

    def why(self) -> str:
        """What keeps the oldest event from being acknowledged; empty: it is the connection."""
        if self.entry is None or not self._is_up:
            return ""
        if self.waits and not self.in_flight:
            return f"too few replicas of {self.entry.name} have it"
        return f"the home of {self.entry.name}, {self.entry.home}, did not answer in time"

    def used(self) -> TopicUse | None:
        """What was published since this was last asked."""
        if self.entry is None:
            return None
        stored, size, trips = self._stored, self._stored_bytes, sorted(self._trips)
        self._stored = self._stored_bytes = 0
        self._trips.clear()
        # The own site's outbox says nothing of the way to the home.
        trip = trips[len(trips) // 2] if trips and self.level != "outbox" else 0.0
        return TopicUse(self.entry.name, stored > 0, 0, stored, size, publish_s=trip)


def _replaced(events: dict[int, InFlight], found: dict[str, int]) -> dict[int, int]:
    """Which of the publisher's own events a log has stored that keeps the last of each sub-topic
    alone, and has these ids: those that are there, and those that went for one of these, with the
    index of that."""
    later: dict[tuple[str, str], int] = {}
    stored: dict[int, int] = {}
    for number, event in sorted(events.items(), reverse=True):
        identity, topic = id_of(event[1]), event[3]
        own = number_of(identity)
        if own is None or own[1] != number or event[1].find(CONDITION) > 0:
            continue
        index = found.get(identity) or later.get((own[0], topic))
        if index is not None:
            stored[number] = later[own[0], topic] = index
    return dict(sorted(stored.items()))
