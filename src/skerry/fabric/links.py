"""Links between sites: wanted, made, watched, removed.

Theory of operation. Whoever needs a link writes a record of it into the store. The dialer adds a
public key of its own making, the acceptor lets that key in and says so, the dialer dials; each of
these is a change of the engine's configuration and a reload, some milliseconds. The link to the
coordination site is there from the day a site joined. A link that neither side has used for a while
loses its record, and both engines drop it.

An edge dials a hub; the reverse only where the hub takes no links and the edge does. Of two sites
of one tier the first by name dials, if the other takes links. Two sites that both only dial out
cannot be linked, and meet at the coordination site, which always takes links.

A link is *up* while the engine says so and heartbeats come in: a black hole closes no connection.
Heartbeats are as frequent from afar as from nearby, but there a packet that is lost, and comes once
more, holds up those behind it for a round trip. So much longer a far site may be silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Protocol

import msgspec

from skerry.config import MOST_SILENCE, SiteSettings
from skerry.coords.latency import LatencyFilter
from skerry.directory.store import Store
from skerry.engine.conf import Inbound, Outbound, Ports, Wiring, write_conf
from skerry.engine.folder import Folder
from skerry.engine.link import Down
from skerry.engine.nkeys import is_public_key, new_pair, public_key
from skerry.engine.system import LinkState, System
from skerry.engine.tide import Tide
from skerry.engine.wire import Connection
from skerry.errors import Conflict, SkerryError, Unavailable
from skerry.fabric.join import Membership
from skerry.fabric.tasks import Tasks
from skerry.model.control import LinkInfo
from skerry.model.fabric import LinkRecord, Presence, SiteRecord, link_key, site_key
from skerry.model.way import Way

log = logging.getLogger("skerry.fabric")

REDIAL = 4.0
"""Silences in a row after which a link that looks alive to the engine is closed, to be dialled anew
(an LTE link was once seen to hang for 8 hours, nats-server#7615)."""

_UNKNOWN = Way()


class Beat(msgspec.Struct, array_like=True):
    """A heartbeat: the sender's clock; the receiver's own clock as last heard, and how long ago."""

    clock: float
    echo: float = 0.0
    held: float = 0.0
    tide: tuple[str, int] = ("", 0)
    """The sender's folder, and how often its logs had grown (`skerry.engine.tide`)."""
    known: tuple[str, int] = ("", 0)
    """The same of the receiver, the highest that the sender has heard."""


class Watcher(Protocol):
    """Told of links as they go and come."""

    def on_link(self, peer: str, is_up: bool, how: str) -> None:
        """The link to `peer` is up, or is not; `how` says what was seen."""

    def on_tide(self, folder: str, number: int) -> None:
        """The highest number of this site's tide that a peer has heard."""

    def on_end(self, peer: str) -> None:
        """A link ended before `peer` was heard over it; an answer may have come all the same."""


def first_wiring(site: str, membership: Membership) -> Wiring:
    """What an engine starts with: the one link that every site has."""
    outbound: tuple[Outbound, ...] = ()
    if membership.coordinator is not None:
        found = _outbound(membership, membership.coordinator)
        outbound = (found,) if found else ()
    leads = membership.coordination == site
    return Wiring(outbound=outbound, coordinates=leads, locked=True, asleep=True)


class Links:
    """The links of one site."""

    def __init__(
        self,
        connection: Connection,
        system: System,
        settings: SiteSettings,
        folder: Folder,
        ports: Ports,
        membership: Membership,
        watcher: Watcher,
    ) -> None:
        self.site = settings.site
        self.up: set[str] = set()
        """Peers whose link is up."""
        self.rtt: dict[str, float] = {}
        """Seconds to each peer and back, as heartbeats measured it last."""
        self.quiet_rtt: dict[str, float] = {}
        """The same without noise: a low one of the last few."""
        self._filters: dict[str, LatencyFilter] = {}
        self._ways: dict[str, Way] = {}
        self._connection = connection
        self._settings = settings
        self._folder = folder
        self._ports = ports
        self._membership = membership
        self._watcher = watcher
        self._store: Store | None = None
        self._connected: set[str] = set()
        self._ids: dict[str, int] = {}
        """What the engine called the link to a peer when we looked last."""
        self._heard: dict[str, tuple[float, float]] = {}
        """When each peer was heard last, and its clock then."""
        self.tide: Tide | None = None
        """What is remembered of the logs here."""
        self._tides: dict[str, tuple[str, int]] = {}
        """The folder of each peer, and its highest number."""
        self._now: dict[str, tuple[str, int]] = {}
        """The same as it says now."""
        self._beaten = time.monotonic()
        """When the last heartbeats were sent."""
        self._resumed = 0.0
        """When we went on after a standstill: what was under way then measures that."""
        self._used: dict[str, float] = {}
        self._locked = True
        self._applied: Wiring | None = None
        self._starts = 0
        self._leaving: set[str] = set()
        """Peers that may not dial any more, and may still be linked."""
        self._apply_lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._look_again = False
        self._tasks = Tasks("work on links")
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._system = system
        system.watch(self._on_engine)
        connection.subscribe(f"_sk.{self.site}.beat.*", self._on_beat)

    def start(self, store: Store) -> None:
        """Begin to make and watch links."""
        self._store = store
        for peer, presence in store.all("up.", Presence).items():
            if rtt := presence.rtt.get(self.site):  # as it was before we were started
                self._ways.setdefault(peer, Way()).observe(rtt)
        store.watch("link.", self._on_record)
        store.watch("site.", lambda key, value: self._changed.set())
        self._tasks.spawn(self._keep_wired())
        self._tasks.spawn(self._beat())

    async def close(self) -> None:
        """Stop watching; links stay as they are."""
        await self._tasks.close()

    # What others ask for

    def want(self, peer: str) -> None:
        """Make sure of a link to `peer`, if there can be one; it stays while it is asked for."""
        if peer == self.site:
            return
        self._used[peer] = time.monotonic()
        record = self._record(peer)
        is_known = record is not None and self.site in record.wanted_by
        if not is_known and peer not in self._asking:
            task = self._tasks.spawn(self._ask_for(peer))
            self._asking[peer] = task
            task.add_done_callback(lambda _: self._asking.pop(peer, None))

    def is_wanted(self, peer: str) -> bool:
        """Whether there is a link on record."""
        return self._record(peer) is not None

    def missing(self) -> set[str]:
        """Peers that have a link on record, and none that is up."""
        return self._peers() - self.up

    def can_reach(self, peer: str) -> bool:
        """Whether there is, or can be, a link to `peer`. A site that has only just joined has not
        heard who can be reached, and not even of itself: it says yes."""
        if peer == self.site or peer in self.up or self._plan(peer) is not None:
            return True
        assert self._store is not None
        is_known = self._store.get(site_key(self.site), SiteRecord) is not None
        return not is_known and not self._membership.removed

    def way(self, peer: str) -> float:
        """Seconds that the way to `peer` and back may take, to be added to what it needs to
        answer."""
        return 0.0 if peer == self.site else self._ways.get(peer, _UNKNOWN).wait()

    def silence(self, peer: str) -> float:
        """Seconds without a heartbeat after which the link to `peer` is taken for dead."""
        settings = self._settings
        return max(settings.silence, min(2 * settings.beat + self.way(peer), MOST_SILENCE))

    async def reach(self, peer: str, timeout: float) -> bool:
        """Wait until the link to `peer` is up; whether it is."""
        deadline = time.monotonic() + timeout
        while peer != self.site and peer not in self.up:
            self.want(peer)
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.005)
        return True

    def tide_of(self, peer: str) -> tuple[str, int]:
        """The folder of a peer, and the highest number of it that was heard."""
        return self._tides.get(peer, ("", 0))

    def is_newest(self, peer: str, *heard: tuple[str, int]) -> bool:
        """Whether a peer's folder is as new as we, and what others have `heard` of it, know."""
        folder, number = self._now.get(peer, ("", -1))
        marks = [mark for mark in (self.tide_of(peer), *heard) if mark[0]]
        return all(folder not in ("", name) or most <= number for name, most in marks)

    @property
    def is_locked(self) -> bool:
        """Whether clients may not write here yet, and nobody is linked who dials."""
        return self._locked

    async def wake(self) -> None:
        """Have an engine that was just started open its logs, still locked."""
        if self._applied is None:
            await self._apply(locked=True)

    async def unlock(self) -> None:
        """Let clients write to this site's homes. What is written to disk stays locked, so that an
        engine that dies and comes back asks first."""
        await self._apply(locked=False)

    async def settle(self) -> None:
        """Have the engine's configuration match the records now."""
        await self._apply()

    async def list(self) -> list[LinkInfo]:
        """Every link of this site."""
        states = {state.name: state for state in await self._system.links()}
        now = time.monotonic()
        found = []
        for peer in sorted(self._peers() | states.keys()):
            state = states.get(peer, LinkState(peer, 0))
            record = self._record(peer)
            heard = self._heard.get(peer)
            found.append(
                LinkInfo(
                    site=self.site,
                    peer=peer,
                    dialer=record.dialer if record else "?",
                    up=peer in self.up,
                    rtt_ms=round(self.rtt[peer] * 1000, 3) if peer in self.rtt else None,
                    heard_ms=round((now - heard[0]) * 1000, 1) if heard else None,
                    in_bytes=state.in_bytes,
                    out_bytes=state.out_bytes,
                    in_msgs=state.in_msgs,
                    out_msgs=state.out_msgs,
                )
            )
        return found

    async def drop(self, peer: str) -> None:
        """Close the link to `peer` at once."""
        await self._system.drop(peer)

    # Records

    def _record(self, peer: str) -> LinkRecord | None:
        store = self._store
        return store.get(link_key(self.site, peer), LinkRecord) if store else None

    def _peers(self) -> set[str]:
        peers: set[str] = set()
        if self._store is None:
            return peers
        for key, record in self._store.all("link.", LinkRecord).items():
            if self.site in key.split("."):
                peers.add(record.acceptor if record.dialer == self.site else record.dialer)
        return peers

    def _plan(self, peer: str) -> tuple[str, str] | None:
        """Who dials whom; None: neither can."""
        assert self._store is not None
        mine = self._store.get(site_key(self.site), SiteRecord)
        other = self._store.get(site_key(peer), SiteRecord)
        if mine is None or other is None:
            return None
        ways = [
            (dialer.name, acceptor.name)
            for dialer, acceptor in ((mine, other), (other, mine))
            if acceptor.link is not None
        ]
        if not ways:
            return None
        rank = {
            mine.name: (mine.tier == "hub", mine.name),
            other.name: (other.tier == "hub", other.name),
        }
        return min(ways, key=lambda way: rank[way[0]])

    async def _ask_for(self, peer: str) -> None:
        """Write down that we want the link."""
        assert self._store is not None
        for _ in range(5):
            key, plan = link_key(self.site, peer), self._plan(peer)
            record = self._record(peer)
            if plan is None or (record is not None and self.site in record.wanted_by):
                return
            if record is None:
                record = LinkRecord(dialer=plan[0], acceptor=plan[1])
            wanted = tuple(sorted({*record.wanted_by, self.site}))
            record = msgspec.structs.replace(record, wanted_by=wanted)
            try:
                await self._store.put(key, self._with_key(record))
                return
            except Conflict:
                await asyncio.sleep(0.02)
            except Unavailable:
                return

    def _key(self, peer: str) -> str | None:
        """What we show to `peer`. Another one is in the record, if that was gone for a moment from
        what we know of the directory, and we could not write it anew."""
        seed = self._membership.seeds.get(peer)
        return None if seed is None else public_key(seed)

    def _with_key(self, record: LinkRecord) -> LinkRecord:
        """Add our public key where we are to dial: one key a peer, whoever of us asks first."""
        if record.dialer != self.site or record.key:
            return record
        seed = self._membership.seeds.get(record.acceptor)
        if seed is None:
            seed, _ = new_pair()
            self._membership.seeds[record.acceptor] = seed
            self._membership.save(self._folder.path)
        return msgspec.structs.replace(record, key=public_key(seed), ready=False)

    def _on_record(self, key: str, value: bytes | None) -> None:
        self._changed.set()
        pair = set(key.split(".")[1:])
        if value is None and self.site in pair:
            # The link is gone, and its key with it: the next one has another.
            for peer in pair - {self.site, self._membership.coordination}:
                if self._membership.seeds.pop(peer, None) is not None:
                    try:
                        self._membership.save(self._folder.path)
                    except OSError as error:  # whoever watches the store beside us is told too
                        log.warning("the key of the link to %s stays on disk: %s", peer, error)

    async def _keep_wired(self) -> None:
        """Follow the records; drop wants that nobody renews."""
        assert self._store is not None
        while True:
            self._changed.clear()
            try:
                await self._tend()
            except SkerryError as error:
                log.warning("links could not be changed now: %s", error.what)
            except (Down, OSError) as error:  # the latter if the disk is full
                log.warning("links could not be changed now: %r", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self._settings.link_idle / 4, 0.05)):
                    await self._changed.wait()

    async def _tend(self) -> None:
        assert self._store is not None
        now = time.monotonic()
        for key in self._store.all("link.", LinkRecord):
            record = self._store.get("link." + key, LinkRecord)  # as it is by now
            if record is None or self.site not in key.split("."):
                continue
            peer = record.acceptor if record.dialer == self.site else record.dialer
            fresh = record
            if record.dialer == self.site and record.key != self._key(record.acceptor):
                fresh = self._with_key(msgspec.structs.replace(record, key=""))
            elif self.site in record.wanted_by and self._is_idle(peer, now):
                left = tuple(site for site in record.wanted_by if site != self.site)
                fresh = msgspec.structs.replace(record, wanted_by=left)
            is_known = self._store.get(site_key(peer), SiteRecord) is not None
            try:
                if not (fresh.wanted_by and is_known):
                    await self._store.delete("link." + key)
                elif fresh != record:
                    await self._store.put("link." + key, fresh)
            except (Conflict, Unavailable):
                continue
        await self.settle()
        for key in self._store.all("link.", LinkRecord):
            record = self._store.get("link." + key, LinkRecord)
            if record and record.acceptor == self.site and record.key and not record.ready:
                with contextlib.suppress(Conflict, Unavailable):
                    await self._store.put(
                        "link." + key, msgspec.structs.replace(record, ready=True)
                    )

    def _is_idle(self, peer: str, now: float) -> bool:
        if self._membership.coordination in (peer, self.site):
            return False
        return now - self._used.setdefault(peer, now) > self._settings.link_idle

    # The engine's side

    def wiring(self, locked: bool) -> Wiring:
        """The links as the engine is to have them."""
        inbound: list[Inbound] = []
        outbound: list[Outbound] = []
        coordination = self._membership.coordination
        if self._store is not None:
            for record in self._store.all("link.", LinkRecord).values():
                if self._store.get(site_key(record.dialer), SiteRecord) is None:
                    continue  # it was removed; its link may have been written once more meanwhile
                if record.acceptor == self.site and is_public_key(record.key):
                    inbound.append(Inbound(record.dialer, record.key))
                elif (
                    record.dialer == self.site and record.ready and record.acceptor != coordination
                ):
                    peer = self._store.get(site_key(record.acceptor), SiteRecord)
                    if peer is not None and (found := _outbound(self._membership, peer)):
                        outbound.append(found)
        if self._membership.coordinator is not None:
            known = self._store and self._store.get(site_key(coordination), SiteRecord)
            if found := _outbound(self._membership, known or self._membership.coordinator):
                outbound.append(found)
        return Wiring(
            inbound=tuple(sorted(inbound, key=lambda link: link.peer)),
            outbound=tuple(sorted(outbound, key=lambda link: link.peer)),
            coordinates=coordination == self.site,
            locked=locked,
        )

    async def _apply(self, locked: bool | None = None) -> None:
        async with self._apply_lock:
            if locked is None:
                locked = self._locked
            if not locked and (self._applied is None or not self._connection.is_up):
                raise Unavailable("the engine starts anew, and is not to take events yet")
            self._locked = locked
            wiring = self.wiring(locked)
            if wiring != self._applied:
                await self._load(wiring)
            for peer in sorted(self._leaving):
                await self._system.drop(peer)  # a reload does not end what is already linked
                self._leaving.discard(peer)

    async def _load(self, wiring: Wiring) -> None:
        """Have the engine take its configuration anew."""
        self._leaving |= {link.peer for link in self._applied.inbound} if self._applied else set()
        self._leaving -= {link.peer for link in wiring.inbound}
        write_conf(self._folder, self._settings, self._ports, wiring)
        starts = self._starts
        try:
            await self._system.reload()
        except (Down, SkerryError) as error:
            log.warning("the engine was not reloaded: %s", error)
            raise Unavailable(
                "the engine did not take its configuration",
                "Look into engine.log in the data folder.",
            ) from None
        finally:
            # Should the engine die, it comes back asleep and locked.
            asleep = msgspec.structs.replace(wiring, asleep=True, locked=True)
            write_conf(self._folder, self._settings, self._ports, asleep)
        if starts != self._starts:
            raise Unavailable("the engine was started anew while it took its configuration")
        self._applied = wiring

    def engine_restarted(self) -> None:
        """The engine came back, locked and with the links that the file named."""
        self._starts += 1
        self._applied = None
        self._locked = True
        for peer in list(self.up):
            self._lost(peer, "closed")
        self._connected.clear()
        self._ids.clear()
        self._look_soon()  # it may have dialled before we could hear of it

    def _on_engine(self, peer: str, is_up: bool) -> None:
        if peer and is_up:
            if peer not in self._connected:
                # Silence counts from now on. By what was heard before an outage, `_beat` would end
                # the new link before the first heartbeat comes, and with it what is under way.
                self._heard[peer] = (time.monotonic(), 0.0)
            self._connected.add(peer)
            self._send_beat(peer)
            return
        if peer:
            self._connected.discard(peer)
            self._ids.pop(peer, None)
            self._lost(peer, "closed")
        # Of a link that we dialled the engine tells no name; and what ended may be an old
        # connection in whose place a new one is already.
        self._look_soon()

    def _look_soon(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = self._tasks.spawn(self._look())
        self._look_again = True

    async def _look(self) -> None:
        """Ask the engine which links there are, and act on the difference."""
        while self._look_again:
            self._look_again = False
            try:
                states = await self._system.links()
            except (SkerryError, Down):
                return
            # Of two links to a peer, one of which is about to go, the newer counts.
            there = {one.name: one.id for one in sorted(states, key=lambda one: one.id)}
            for peer in list(self._connected):  # or there is another link to it already
                if there.get(peer) != self._ids.get(peer, there.get(peer, 0)):
                    self._on_engine(peer, False)
            self._ids = there
            for peer in there.keys() - self._connected:
                self._on_engine(peer, True)

    # Heartbeats

    async def _beat(self) -> None:
        beat = self._settings.beat
        with contextlib.suppress(SkerryError, Down):
            self._connected |= {state.name for state in await self._system.links()}
        while True:
            self._beaten = time.monotonic()
            for peer in [*self._connected, self.site]:
                self._send_beat(peer)
            await asyncio.sleep(beat)
            now = time.monotonic()
            late = self._late(now)
            own = now - self._heard.get(self.site, (0.0, 0.0))[0]
            if max(late, own - beat) > self._settings.silence / 2:
                # We, or our engine, were held up; what we have not heard says nothing.
                self._heard = {peer: (now, clock) for peer, (_, clock) in self._heard.items()}
                continue
            for peer in list(self.up):
                if now - self._heard[peer][0] > self.silence(peer):
                    self._lost(peer, "silent")
            for peer in list(self._connected - self.up):
                silent = now - self._heard.get(peer, (now, 0.0))[0]
                if silent > REDIAL * self.silence(peer):
                    self._heard.pop(peer, None)
                    with contextlib.suppress(SkerryError, Down):
                        await self._system.drop(peer)

    def _late(self, now: float) -> float:
        """How late we are to send heartbeats, in seconds."""
        late = now - self._beaten - self._settings.beat
        if late > self._settings.silence / 2:
            self._resumed = now
        return late

    def _send_beat(self, peer: str) -> None:
        now = time.monotonic()
        heard, clock = self._heard.get(peer, (now, 0.0))
        with contextlib.suppress(Down):
            self._connection.publish(
                f"_sk.{peer}.beat.{self.site}",
                msgspec.json.encode(
                    Beat(
                        now,
                        clock,
                        now - heard,
                        self.tide.mark if self.tide is not None else ("", 0),
                        self.tide_of(peer),
                    )
                ),
            )

    def _on_beat(self, subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
        peer = subject.decode().rpartition(".")[2]
        beat = msgspec.json.decode(data, type=Beat)
        now = time.monotonic()
        self._heard[peer] = (now, beat.clock)
        if peer == self.site:
            return
        self._now.pop(peer, None)
        if beat.tide[0]:  # else it has not looked yet
            self._now[peer] = beat.tide
            folder, number = self._tides.get(peer, beat.tide)
            if folder != beat.tide[0] or number <= beat.tide[1]:
                self._tides[peer] = beat.tide
        self._watcher.on_tide(*beat.known)
        self._late(now)
        if beat.echo > self._resumed:
            self._measured(peer, max(now - beat.echo - beat.held, 0.0))
        self._connected.add(peer)
        if peer not in self.up:
            self.up.add(peer)
            self._send_beat(peer)
            self._watcher.on_link(peer, True, "heard")

    def _measured(self, peer: str, rtt: float) -> None:
        self.rtt[peer] = rtt
        self._ways.setdefault(peer, Way()).observe(rtt)
        self.quiet_rtt[peer] = self._filters.setdefault(peer, LatencyFilter()).add(rtt)

    def _lost(self, peer: str, how: str) -> None:
        self._filters.pop(peer, None)  # it may come back by another way
        self.quiet_rtt.pop(peer, None)
        if peer in self.up:
            self.up.discard(peer)
            self._watcher.on_link(peer, False, how)
        else:
            self._watcher.on_end(peer)


def _outbound(membership: Membership, peer: SiteRecord) -> Outbound | None:
    seed = membership.seeds.get(peer.name)
    if seed is None or peer.link is None:
        return None
    scheme = "tls" if peer.tls else "nats-leaf"
    return Outbound(peer.name, f"{scheme}://{peer.link}", seed, peer.ca)
