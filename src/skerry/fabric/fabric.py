"""One site's part in a fabric: wires links, store, copies, outbox and, at one site, the leader."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from skerry.config import DUPLICATE_WINDOW, SiteSettings
from skerry.coords import pack
from skerry.directory.store import STREAM as STORE_STREAM
from skerry.directory.store import Store, mirror_config, origin_config
from skerry.engine.conf import ACCOUNT, Ports
from skerry.engine.folder import Folder
from skerry.engine.handshake import handshake
from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.engine.system import System
from skerry.engine.tide import Tide
from skerry.engine.wire import Connection, Listener
from skerry.errors import (
    Conflict,
    FabricError,
    InputError,
    SkerryError,
    TopicError,
    Unavailable,
)
from skerry.fabric.admission import Admission
from skerry.fabric.control import Control
from skerry.fabric.copies import Copies
from skerry.fabric.distances import Distances
from skerry.fabric.interest import Interest
from skerry.fabric.join import Membership, site_record
from skerry.fabric.leader import Leader
from skerry.fabric.links import Links
from skerry.fabric.losses import Lost
from skerry.fabric.mqtt import Mqtt
from skerry.fabric.outbox import Outbox
from skerry.fabric.peers import Peers
from skerry.fabric.progress import Progress
from skerry.fabric.readers import Readers
from skerry.fabric.relay import UPSTREAM
from skerry.fabric.services import Services
from skerry.fabric.standing import Standing
from skerry.fabric.tasks import Tasks
from skerry.fabric.upkeep import Upkeep
from skerry.log.topics import topic_of
from skerry.model.control import CreateRequest
from skerry.model.fabric import FabricRecord, Presence, SiteRecord, TopicEntry, site_key, up_key
from skerry.model.names import topic_of_stream
from skerry.model.records import ASIDE

log = logging.getLogger("skerry.fabric")

T = TypeVar("T")

FIRST_CONTACT = 3.0
FIRST_TRIPS = 12
"""Seconds that a starting site waits for the coordination site before it goes on without, and how
many round trips more: some five until the link is up, and as many for the directory."""
WAKE_TIME = 30.0
"""Seconds that a starting engine may take until it takes its configuration."""
PRESENCE = 10.0
"""Seconds between renewals of a site's presence, which lasts three times as long."""
LEAD_TIME = 100.0
"""Seconds that the leader may take for what we ask it to do for a client."""
ADOPT_TIME = 4.0
"""Seconds to wait until the leader has taken in a topic that was here before; then it is asked once
more, for the answer may be lost."""
DIAL_TIME = 0.5


class Fabric(Listener):
    """This site's part in the fabric."""

    def __init__(
        self,
        settings: SiteSettings,
        folder: Folder,
        ports: Ports,
        membership: Membership,
        connection: Connection,
        system: Connection,
    ) -> None:
        self.site = settings.site
        self.membership = membership
        self.leads = membership.coordination == settings.site
        self._settings = settings
        self._folder = folder
        self._ports = ports
        self._connection = connection
        self._jetstream = JetStream(connection)
        self.operator = operator = System(system, ACCOUNT)
        self.links = links = Links(connection, operator, settings, folder, ports, membership, self)
        self._peers = Peers(connection, links)
        origin = membership.coordination
        self.store = Store(self._jetstream, self.site, origin, lambda: links.way(origin))
        self.copies = Copies(
            self._jetstream, self.site, membership.id, self.store, self.links, self._peers,
            settings.deliver_plain, settings.silence,
        )  # fmt: skip
        self.readers = Readers(self._jetstream, self.copies, self.links, self._peers)
        self._upkeep = Upkeep(
            self.copies, self.readers, self.links, self._peers, settings.link_idle
        )
        self.outbox = Outbox(
            self._jetstream, self.site, self.copies, self.links, self._peers, self._ask_directory
        )
        self.progress = Progress(self._jetstream, self.copies)
        self.interest = Interest(
            operator, self.copies.names, self.readers.ensure, settings.link_idle
        )
        self.mqtt = Mqtt(self._jetstream, self.site, self._connect_again)
        self.standing = Standing(self.copies, self.links, self._peers, settings.silence)
        self.distances = Distances(self.site, self.store, self.links)
        self.leader: Leader | None = None
        if self.leads:
            self.leader = Leader(self.site, self.store, self.links, self.ask)
        self.admission = Admission(membership, folder, self.store, self.links)
        self._tide: Tide | None = None
        self.on_link_up: list[Callable[[str], None]] = []
        """Called with the peer's name when a link is up."""
        self._control: Control | None = None
        self._since = datetime.now(UTC)
        self._recovering: asyncio.Task[None] | None = None
        self._again = False
        """Whether to settle once more."""
        self._misfits: set[str] = set()
        """Topics whose logs here cannot be in the fabric."""
        self._has_started = False
        self._settling = asyncio.Lock()
        self._tasks = Tasks("the fabric's work")
        self._opened = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether this site has settled with the directory and lets clients write."""
        return self._opened.is_set()

    async def opened(self) -> None:
        """Wait for that."""
        await self._opened.wait()

    def heed(self, tide: Tide, is_flushed: bool) -> None:
        """Have homes know what the disk lost, or may have lost because it is not flushed."""
        self._tide = tide
        openings = self.copies.openings
        openings.tide = self.copies.tails.tide = self.links.tide = tide
        openings.is_flushed = is_flushed or not tide.is_over_power_cut
        tide.is_waiting = openings.are_running

    def hand_over(self) -> None:
        """Have other members take over what is at home here, where nothing can be written."""
        self.copies.is_full = True
        for entry in self.store.all("topic.", TopicEntry).values():
            if entry.home == self.site and len(entry.members) > 1:
                self.copies.give_up(entry)

    async def wake(self) -> None:
        """Have the engine open its logs; only now, because what opens asks us at once."""
        self.copies.young_until = self._connection.now() + DUPLICATE_WINDOW
        self._connection.listen(self)
        await self._wake_again(WAKE_TIME)

    async def start(self, control: Control, streams: list[dict[str, Any]]) -> None:
        """Join in: copy the store, settle every log with it, then let clients write."""
        self._control = control
        config = origin_config(self.site) if self.leads else mirror_config(self.site, UPSTREAM)
        if await self._jetstream.stream(STORE_STREAM) is None:
            await self._jetstream.call(f"STREAM.CREATE.{STORE_STREAM}", config)
        await self.store.open()
        if self.leads:
            await self._found()
        self.copies.load(streams)
        if self._ports.mqtt is not None:
            await self.mqtt.start()  # before copies go on, and deliver what they had missed
        Services(self).register(control)
        control.open()
        self.links.start(self.store)
        await self.outbox.open()
        try:
            await self._settle(await self._first_contact())
        except (SkerryError, Down) as error:  # an engine that died just now has not all logs yet
            log.warning("not settled yet: %s", error)
            self._again = True
        self.copies.start()
        self.store.watch("topic.", self._on_topic)
        self._upkeep.start()
        if self._settings.deliver_plain:
            self.interest.start()
        self._has_started = True
        if self._again:
            self._recover()
        self.distances.start()
        self._tasks.spawn(self._keep_presence())
        if self.leader is not None:
            self._tasks.spawn(self._keep_watch(self.leader))

    async def close(self) -> None:
        """Leave in order; topics stay as they are."""
        self._connection.unlisten(self)
        await self._tasks.close()
        if self.leader is not None:
            await self.leader.close()
        await self.distances.close()
        await self.standing.close()
        await self.mqtt.close()
        await self.interest.close()
        await self.progress.close()
        await self.outbox.close()
        await self._upkeep.close()
        await self.copies.close()
        await self.links.close()
        await self.store.close()

    async def _connect_again(self) -> Connection:
        """One more connection to our own engine, with the same rights."""
        return await Connection.open(self._connection.address, self._connection.settings, "mqtt")

    # Beginning, and beginning again

    async def _found(self) -> None:
        """Write down, at the coordination site, that there is a fabric."""
        record = FabricRecord(
            id=self.membership.id, name=self.membership.name, coordination=self.site
        )
        await self._put_if_new("fabric", record, FabricRecord)

    async def _register(self) -> None:
        """Have the directory know this site as it is now."""
        record = site_record(self._settings, self._ports)
        known = self.store.get(site_key(self.site), SiteRecord)
        if known is None and not self.leads:
            log.error("this site was removed from the fabric; it works on alone")
            return
        if known is not None:
            record = msgspec.structs.replace(record, joined=known.joined, draining=known.draining)
        await self._put_if_new(site_key(self.site), record, SiteRecord)

    async def _put_if_new(self, key: str, value: Any, kind: type[Any]) -> None:
        if self.store.get(key, kind) != value:
            await self.store.put(key, value)

    async def _first_contact(self) -> float:
        """Seconds to wait for the coordination site, by how far it is."""
        hub, began = self.membership.coordinator, self._connection.now()
        if hub is None or hub.link is None:
            return FIRST_CONTACT
        rtt = await handshake(hub.link, FIRST_CONTACT)
        left = FIRST_CONTACT - (self._connection.now() - began)
        return left if rtt is None else left + FIRST_TRIPS * rtt

    def _contact_again(self) -> float:
        """The same once the engine, or the coordination site, is back."""
        hub = self.store.origin
        if self.is_open:
            return 1.0 + (3 * self.links.way(hub) if hub in self.links.up else 0.0)
        return FIRST_CONTACT + FIRST_TRIPS * self.links.rtt.get(hub, 0.0)

    async def _ask_directory(self) -> bool:
        """Have the directory here be as new as any; whether that was possible, and this site has
        settled with it."""
        return self.is_open and (self.leads or await self.store.fresh(self._contact_again()))

    async def _settle(self, timeout: float) -> bool:
        """Settle with the directory and open; without it, with what is known. Whether the
        directory could be asked."""
        async with self._settling:
            return await self._do_settle(timeout)

    async def _do_settle(self, timeout: float) -> bool:
        starts = self.copies.starts
        is_fresh = self.leads or await self.store.fresh(timeout)
        error: SkerryError | None = None
        if is_fresh:
            with contextlib.suppress(Conflict, Unavailable):
                await self._register()
            error = await self._adopt()
        else:
            log.warning(
                "the coordination site %s is away; going on with what is known here",
                self.store.origin,
            )
        if is_fresh:
            await self.copies.reconcile()
        else:
            await self.copies.reconcile_alone(await self.standing.confirmed())
            self.standing.watch()
        if self.copies.starts != starts:
            raise FabricError("the engine was started anew while its logs were settled")
        if error is not None:
            raise error
        await self.links.unlock()
        self._opened.set()
        return is_fresh

    async def _adopt(self) -> SkerryError | None:
        """Logs here of topics that the directory does not know become its topics, with their homes
        here. Until then nobody is told that there is no such topic. Returns why that cannot be
        now, if it cannot."""
        misfits, self._misfits = self._misfits, set()
        for info in await self._jetstream.streams():
            local = self.copies.local(topic_of_stream(info["config"]["name"]) or "")
            if local is None or not self.copies.is_new(local):
                continue
            topic = topic_of(info)
            settings = {**msgspec.to_builtins(topic.settings), "prefer": [self.site]}
            request = CreateRequest(
                topic.name, settings, self.site, home=self.site, epoch=local.copy.root
            )
            try:
                await self.lead("topic.create", TopicEntry, request, ADOPT_TIME)
            except (InputError, TopicError) as error:
                # As long as that is so it stays aside; the others are served.
                if self.copies.entry(topic.name) is None:
                    self._put_aside(topic.name, error.what)
                    await self.copies.set_aside(local)
            except SkerryError as error:
                self._misfits |= misfits
                return error
        for name in self.copies.unknown():
            self._put_aside(name, "the directory knows no such topic, nor that it was deleted")
        for name in misfits - self._misfits:
            ASIDE.forget(f"log.{name}")
        return None

    def _put_aside(self, name: str, why: str) -> None:
        self._misfits.add(name)
        ASIDE.add(f"log.{name}", b"", why)

    def _on_topic(self, key: str, value: bytes | None) -> None:
        if value is None and self._misfits:  # it may have been in the way of one of those
            self._recover()

    def on_up(self) -> None:
        """The engine is back, locked."""
        self._opened.clear()
        self.copies.starts += 1
        self.copies.is_full = False
        self.copies.young_until = self._connection.now() + DUPLICATE_WINDOW
        self.links.engine_restarted()
        self._recover()

    def _recover(self) -> None:
        self._again = True
        if self._has_started and (self._recovering is None or self._recovering.done()):
            self._recovering = self._tasks.spawn(self._do_recover())
        else:  # so that what goes on can go on, if the engine has been started anew meanwhile
            self._tasks.spawn(self._wake_again(WAKE_TIME))

    async def _wake_again(self, timeout: float) -> None:
        """Have the engine open its logs; it may die meanwhile, and be started anew."""
        deadline = self._connection.now() + timeout
        while True:
            try:
                await self.links.wake()
                return
            except (SkerryError, Down):
                if self._connection.now() > deadline:
                    raise
            await asyncio.sleep(0.1)

    async def _do_recover(self) -> None:
        """Settle anew, again and again until the directory could be asked."""
        while self._again:
            self._again = False
            try:
                await self.links.wake()
                before = {local.name: local.copy for local in self.copies.logs}
                streams = await self._jetstream.streams()
                if self._tide is not None:
                    self._tide.look(streams)
                self.copies.load(streams, before)
                if not await self._settle(self._contact_again()):
                    self._again |= self.store.origin in self.links.up
            except (SkerryError, Down) as error:
                log.warning("not settled yet: %s", error)
                self._again = True
            if self._again:
                await asyncio.sleep(0.2)

    # Links that go and come

    def on_link(self, peer: str, is_up: bool, how: str) -> None:
        """A link changed."""
        log.info("link to %s: %s", peer, how)
        self.copies.following.on_link(peer, is_up)
        if is_up:
            self.outbox.on_link(peer)
            for told in self.on_link_up:
                told(peer)
        self._tasks.spawn(self._report(peer, is_up, how))
        if peer == self.store.origin:
            if is_up:
                self._recover()
                for other in self.links.missing() - {peer}:
                    self._tasks.spawn(self._report(other, False, "closed"))
            else:
                self.standing.watch()

    def on_tide(self, folder: str, number: int) -> None:
        """A peer knows how new a folder here was."""
        if self._tide is not None and self._tide.hear(folder, number):
            self.copies.doubt()

    def on_end(self, peer: str) -> None:
        """A link ended that was not up yet: what came over it comes no more."""
        self.copies.following.relay.lost(peer)

    async def _report(self, peer: str, is_up: bool, how: str) -> None:
        """Tell the leader what we see, and then whether anybody listens there."""
        if not is_up and not self.links.is_wanted(peer):
            return  # nobody uses the link any more, and so it was removed
        await self._tell_leader(Lost(peer, self.site, "heard" if is_up else how))
        if how == "closed" and await self._is_refused(peer) and peer not in self.links.up:
            await self._tell_leader(Lost(peer, self.site, "refused"))

    async def _tell_leader(self, report: Lost) -> None:
        if self.leader is not None:
            self.leader.observe(report)
        elif report.site != self.store.origin:
            with contextlib.suppress(SkerryError):
                await self._peers.ask(self.store.origin, "peer.lost", report)

    async def _keep_watch(self, leader: Leader) -> None:
        """Have the leader look at who is away, as time passes."""
        while True:
            await asyncio.sleep(self._settings.silence / 2)
            if self._connection.is_up and self.is_open:
                leader.look(self._connection.now())

    async def _is_refused(self, peer: str) -> bool:
        """Whether nobody listens where the peer takes links: then its engine is dead."""
        record = self.store.get(site_key(peer), SiteRecord)
        if record is None or record.link is None:
            return False
        host, _, port = record.link.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(DIAL_TIME + self.links.way(peer)):
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                with socket.socket(family, socket.SOCK_STREAM) as probe:
                    probe.setblocking(False)
                    await loop.sock_connect(probe, (host.strip("[]"), int(port)))
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        return False

    async def _keep_presence(self) -> None:
        while True:
            homes, copies = self.copies.count()
            presence = Presence(
                since=self._since, homes=homes, copies=copies,
                rtt=self.distances.measured(), coordinate=pack(self.distances.coordinate),
            )  # fmt: skip
            with contextlib.suppress(SkerryError, Down):
                await self.store.put(up_key(self.site), presence, ttl=3 * PRESENCE)
            await self.distances.worth_telling(PRESENCE)

    # Asking

    async def ask(self, site: str, name: str, body: object = None, timeout: float = 2.0) -> bytes:
        """Ask a site's agent, ourselves included without a detour."""
        if site == self.site and self._control is not None:
            return await self._control.call(name, msgspec.json.encode(body))
        return await self._peers.ask(site, name, body, timeout)

    async def lead(
        self, name: str, kind: type[T], body: object = None, timeout: float = LEAD_TIME
    ) -> T:
        """Have the leader do something; return its answer, of type `kind`."""
        data = await self.ask(self.store.origin, f"peer.lead.{name}", body, timeout)
        return msgspec.json.decode(data, type=kind)

    def removed(self) -> None:
        """The fabric has struck this site."""
        log.error("this site was removed from the fabric; it takes part no more")
        self.membership.removed = True
        self.membership.save(self._folder.path)
