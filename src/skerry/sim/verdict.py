"""Sees every disk at once, and says what must never be; nothing here asks what ships.

rule        what breaks it
one home    a site takes an event in an epoch whose home is another, or which is not written
epochs      an entry that does not follow on the one before
kept        a new epoch begins below an event that was acknowledged at level `quorum`, or with a
            home that has not got it, or a home gives its index to another event; the same of one
            that so many replicas have told of that a publisher may be acknowledged it any moment
held        an event is acknowledged at level `quorum` that too few members have on disk
reader      a live reader misses an index, gets the very same event again, or gets another one in
            place of an event that was acknowledged at level `quorum`; a durable one gets again what
            it has acknowledged, within one subscription
progress    nothing is acknowledged for long, though all that it takes is up and connected
end         when all is healed: a copy differs or is not settled, an acknowledged event is not
            there once, a publisher's events are out of order, a reader has not what the log has, a
            durable one was never given some of it
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from skerry.fabric.streams import OUTBOX
from skerry.model.control import ProgressReport
from skerry.model.fabric import TopicEntry
from skerry.sim.engine import Engine
from skerry.sim.jetstream import Message, Stream

if TYPE_CHECKING:
    from skerry.sim.trial import Trial

TOPIC = "t"
STREAM = "t~t"
KEY = f"$KV.skerry.topic.{STREAM}"


class Violation(Exception):
    """Something that must never be."""


class Acked(msgspec.Struct, frozen=True):
    """An event that was acknowledged."""

    level: str
    index: int
    epoch: int


class Verdict:
    """Of one trial."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self.violation: str | None = None
        self.entries: dict[int, TopicEntry] = {}
        self.acked: dict[bytes, Acked] = {}
        self.kept: dict[int, tuple[bytes, int]] = {}
        """By index, what was promised at level `quorum`, and in which epoch."""
        self.forgiven: set[bytes] = set()
        """What of it a disk has lost, and too few others have: it may come late, or never."""
        self.has_lost = False
        """Whether a disk has lost what it had: then what members have is not judged."""
        self.taken = 0
        self.thins = False
        """Whether a later event of a sub-topic takes the place of those before it. These are not
        judged any more: a copy that catches up may count as having them, and have neither; and what
        is brought home may be replaced by an older one that its publisher sends again."""
        self.limit: int | None = None
        """How many events the topic keeps; None: all. Of those before the last ones nothing is
        asked any more. (A home that was replaced may have had so many more, which nobody has.)"""
        self._told: dict[int, dict[str, int]] = {}
        """By epoch, how far each replica has told that it is."""
        self._taken: dict[tuple[str, int], tuple[int, bytes]] = {}
        """What a site has taken as a home, by its index: the epoch, and the event."""
        self._subjects: dict[bytes, str] = {}
        self._newest: dict[str, bytes] = {}
        self._late: dict[str, dict[int, Message]] = {}
        """What homes have taken that were replaced."""
        self._first: dict[bytes, int] = {}
        """The lowest index that each event was given."""
        self._last = 0
        """The highest index that was given."""

    def fail(self, text: str) -> None:
        """The first one counts; the trial ends there."""
        if self.violation is None:
            self.violation = text
            self._trial.note(f"VIOLATION {text}")
            self._trial.over.set()

    @property
    def forgets(self) -> bool:
        """Whether events may go."""
        return self.thins or self.limit is not None

    @property
    def entry(self) -> TopicEntry:
        """The newest."""
        return self.entries[max(self.entries)]

    # What happens

    def on_stored(self, engine: Engine, stream: Stream, one: Message) -> None:
        """A disk has taken a message."""
        if one.subject == KEY and stream.mirror is None and one.data:
            self._on_entry(msgspec.json.decode(one.data, type=TopicEntry))
        elif stream.name.startswith(STREAM) and stream.mirror is None and one.data:
            self._on_taken(engine.site, int(stream.config["metadata"]["skerry.epoch"]), one)

    def _on_entry(self, new: TopicEntry) -> None:
        if not self.entries:
            self.entries[new.epoch] = new
            return
        old = self.entry
        if new.epoch == old.epoch and new.home == old.home:
            self.entries[new.epoch] = new
            return
        self._trial.note(f"epoch {new.epoch}: {new.home} of {new.members} from {new.base}")
        if new.epoch != old.epoch + 1:
            self.fail(f"epoch {new.epoch} at {new.home} after epoch {old.epoch} at {old.home}")
        self.entries[new.epoch] = new
        log = self._trial.net.engines[new.home].streams.get(new.stream)
        for index, one in self._late.pop(new.home, {}).items():
            if log is not None and log.messages.get(index) == one:  # it leads with that
                self._newest[one.subject] = one.data
        self._let_go()
        for index, (data, epoch) in self.kept.items():
            if index > new.base:
                self.fail(f"epoch {new.epoch} begins at {new.base}, and {data!r} was promised "
                          f"at {index} in epoch {epoch}")  # fmt: skip
            # One that is lost since it was chosen is replaced in its turn.
            is_there = not self._trial.agents[new.home].is_destroyed
            if is_there and not self.has(new.home, index, data):
                self.fail(f"{new.home} leads epoch {new.epoch} without {data!r} at {index}")

    def _let_go(self) -> None:
        """Ask no more for what may be gone."""
        self.kept = {n: kept for n, kept in self.kept.items() if not self.is_over(kept[0])}

    def _on_taken(self, site: str, epoch: int, one: Message) -> None:
        self.taken += 1
        self._last = max(self._last, one.index)
        self._first[one.data] = min(one.index, self._first.get(one.data, one.index))
        if self.thins:
            self._subjects[one.data] = one.subject
            if epoch >= max(self.entries):
                self._newest[one.subject] = one.data
            else:
                self._late.setdefault(site, {})[one.index] = one
        if self.forgets:
            self._let_go()
        entry = self.entries.get(epoch)
        if entry is None or entry.home != site:
            home = entry.home if entry else "nobody"
            self.fail(f"{site} takes {one.data!r} in epoch {epoch}, whose home is {home}")
        self._taken[site, one.index] = epoch, one.data
        data, since = self.kept.get(one.index, (one.data, 0))
        if data != one.data and since <= epoch:
            self.fail(f"{site} gives index {one.index} to {one.data!r} in epoch {epoch}, and "
                      f"{data!r} was promised there in epoch {since}")  # fmt: skip

    def on_acked(self, data: bytes, level: str, index: int, epoch: int) -> None:
        """A publisher was told that an event is stored."""
        self.acked[data] = Acked(level, index, epoch)
        # A home that was replaced may have taken later ones alone, in the place of this.
        if level != "quorum" or self.is_over(data) or (self.thins and epoch < max(self.entries)):
            return
        self._keep(index, data, epoch)
        if not self.has_lost and not any(
            self._is_held(entry, index, data) for entry in (self.entries[epoch], self.entry)
        ):
            members = self.entries[epoch].members
            holding = [site for site in members if self.has(site, index, data)]
            self.fail(f"{data!r} is acknowledged at {index} in epoch {epoch} and only {holding} of "
                      f"{members} have it")  # fmt: skip

    def on_report(self, data: bytes) -> None:
        """A replica tells publishers how far it is. With enough others, that is a promise: whoever
        gets all of these reports acknowledges the events."""
        report = msgspec.json.decode(data, type=ProgressReport)
        entry = self.entries.get(report.epoch)
        if entry is None or report.site not in entry.members[1:]:
            return
        told = self._told.setdefault(report.epoch, {})
        told[report.site] = max(report.last, told.get(report.site, 0))
        need = len(entry.members) // 2
        lasts = sorted(told.values(), reverse=True)
        held = lasts[need - 1] if len(lasts) >= need else 0
        for index in range(max(self.kept, default=0) + 1, held + 1):
            epoch, event = self._taken.get((entry.home, index), (sys.maxsize, b""))
            # Else of a replica that has yet to hear that its home goes on in another epoch.
            is_its = epoch <= report.epoch and not self.is_over(event)
            if is_its and (not self.has_lost or self._is_held(entry, index, event)):
                self._keep(index, event, report.epoch)

    def _keep(self, index: int, data: bytes, epoch: int) -> None:
        self.kept[index] = data, epoch
        for later in self.entries.values():
            if later.epoch > epoch and index > later.base:
                self.fail(f"{data!r} is promised at {index} in epoch {epoch}, and epoch "
                          f"{later.epoch} began at {later.base}")  # fmt: skip

    def _is_held(self, entry: TopicEntry, index: int, data: bytes) -> bool:
        """Whether a majority has an event. Members may have gone since it was told of."""
        holding = sum(
            self.has(site, index, data) or self._has_later(site, index, data)
            for site in entry.members
        )
        return holding > len(entry.members) // 2

    def _has_later(self, site: str, index: int, data: bytes) -> bool:
        """Whether a disk has an event that came for another: a home that was replaced, and does not
        know it, may have taken that alone."""
        subject = self._subjects.get(data)
        return self.thins and any(
            one.subject == subject and one.index > index
            for name, stream in self._trial.net.engines[site].streams.items()
            if name == STREAM or name.startswith(f"{STREAM}~~")
            for one in stream.messages.values()
        )

    def forgive(self) -> None:
        """A disk has lost what it had. What too few members have now is promised to nobody: it is
        as if so many sites were lost at a time."""
        self.has_lost = True
        self._told.clear()
        self.forgiven |= {data for data, one in self.acked.items() if not self._is_safe(data, one)}
        self.kept = {
            index: (data, epoch)
            for index, (data, epoch) in self.kept.items()
            if self._is_held(self.entry, index, data)
        }

    def _is_safe(self, data: bytes, acked: Acked) -> bool:
        """Whether an outbox, or a majority, has an acknowledged event."""
        if acked.level != "outbox":
            return self._is_held(self.entry, acked.index, data)
        engines = self._trial.net.engines
        members = self.entry.members
        holding = sum(any(data in log for log in self._logs(site)) for site in members)
        return holding > len(members) // 2 or any(
            data in [one.data for one in engine.streams[OUTBOX].messages.values()]
            for engine in engines.values() if OUTBOX in engine.streams
        )  # fmt: skip

    def _logs(self, site: str) -> list[set[bytes]]:
        return [
            {one.data for one in stream.messages.values()}
            for name, stream in self._trial.net.engines[site].streams.items()
            if name == STREAM or name.startswith(f"{STREAM}~~")
        ]

    def has(self, site: str, index: int, data: bytes) -> bool:
        """Whether a disk has an event."""
        return any(
            (one := stream.messages.get(index)) is not None and one.data == data
            for name, stream in self._trial.net.engines[site].streams.items()
            if name == STREAM or name.startswith(f"{STREAM}~~")
        )

    def is_over(self, data: bytes) -> bool:
        """Whether a later event has taken its place, or so many have come that it may be gone."""
        if self.limit is not None:
            return self._first.get(data, self._last) <= self._last - self.limit
        return self.thins and self._newest.get(self._subjects.get(data, ""), data) != data

    # How it ends

    def unsettled(self) -> str | None:
        """Why the fabric has not come to rest; None: it has."""
        trial, entry = self._trial, self.entry
        logs = {}
        for site, agent in trial.agents.items():
            if not agent.is_open or agent.fabric is None:
                return f"{site} is not open"
            if any(name.startswith("r~") for name in agent.engine.streams):
                return f"{site} still has a tail"
            if agent.engine.streams[OUTBOX].messages:
                return f"{site} still has something in its outbox"
            local = agent.fabric.copies.logs.get(TOPIC)
            if site in entry.members:
                if local is None or local.is_split or local.ends or local.is_mending:
                    return f"the log at {site} is not in order"
                if local.kind != ("home" if site == entry.home else "copy"):
                    return f"{site} is {local.kind or 'nothing'} in epoch {entry.epoch}"
                if local.copy.label != entry.epoch:
                    return f"{site} is of epoch {local.copy.label}, not {entry.epoch}"
                logs[site] = self.log(site, local.stream)
        last = max(logs[entry.home], default=0)
        for site, log in logs.items():
            if max(log, default=0) < last:
                return f"{site} is behind"
        for publisher in trial.publishers:
            if not publisher.is_done:
                return f"{publisher.name} waits: {publisher.waits}"
        for reader in trial.readers:
            for index, (data, _) in logs[entry.home].items():
                if (had := reader.had.get(index, (b"nothing",))[0]) != data:
                    return f"the reader at {reader.site} had {had!r} at {index}, not {data!r}"
            if reader.last > last:
                return f"the reader at {reader.site} had {reader.last} events"
        for durable in trial.durables:
            for index, (data, _) in logs[entry.home].items():
                if (index, data) not in durable.given:
                    return f"the durable reader at {durable.site} was not given {data!r} at {index}"
        return None

    def log(self, site: str, stream: str) -> dict[int, tuple[bytes, int]]:
        """The events that a site has, and when their home stored them."""
        messages = self._trial.net.engines[site].streams[stream].messages
        return {index: (one.data, one.time) for index, one in messages.items()}

    def finish(self) -> None:
        """Judge the end."""
        if (why := self.unsettled()) is not None:
            self.fail(f"no end: {why}")
            return
        trial, entry = self._trial, self.entry
        logs = {}
        for site in entry.members:
            fabric = trial.agents[site].fabric
            assert fabric is not None
            logs[site] = self.log(site, fabric.copies.logs.of(TOPIC).stream)
        of_home = logs[entry.home]
        for site, other in logs.items():
            # What came beyond a fork may have let go of some more.
            first = max(min(of_home, default=1), min(other, default=1)) if self.limit else 1
            for index in sorted(one for one in of_home.keys() | other.keys() if one >= first):
                one, same = of_home.get(index), other.get(index)
                if one != same:
                    self.fail(f"{site} has {same} at {index}, and {entry.home} {one}")
        log = [data for data, _ in of_home.values()]
        counts = Counter(log)
        for data, acked in self.acked.items():
            if counts[data] == 1 or (not counts[data] and data in self.forgiven):
                continue
            has_let_go = self.limit and min(of_home, default=1) > 1
            if has_let_go and not counts[data] and acked.epoch < entry.epoch and acked.index:
                continue  # its home was replaced, and the next let go of all that it had then
            if counts[data] or not self.is_over(data):
                self.fail(f"{data!r}, {acked}, is {counts[data]} times in the log")
        judged = self.acked.keys() - self.forgiven
        for publisher in trial.publishers:
            mine = [data for data in log if data in judged
                    and data.startswith(publisher.name.encode() + b":")]  # fmt: skip
            if mine != sorted(mine, key=_number):
                self.fail(f"{publisher.name} out of order: {mine}")


def _number(data: bytes) -> int:
    return int(data.partition(b":")[2])
