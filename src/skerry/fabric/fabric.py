"""One site's part in a fabric: wires links, store, copies, outbox and, at one site, the leader."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from datetime import UTC, datetime
from typing import Any

import msgspec

from skerry.config import DUPLICATE_WINDOW, SiteSettings
from skerry.directory.store import STREAM as STORE_STREAM
from skerry.directory.store import Store, mirror_config, origin_config
from skerry.engine.address import Address
from skerry.engine.conf import ACCOUNT, Ports
from skerry.engine.folder import Folder
from skerry.engine.jetstream import JetStream
from skerry.engine.link import Down
from skerry.engine.system import System
from skerry.engine.wire import Connection, Listener
from skerry.errors import Conflict, JoinRefused, SkerryError, Unavailable
from skerry.fabric.control import Control
from skerry.fabric.copies import Copies
from skerry.fabric.interest import Interest
from skerry.fabric.join import (
    JoinRequest,
    Membership,
    Used,
    Welcome,
    check_joiner,
    check_token,
    make_token,
    site_record,
)
from skerry.fabric.leader import FreezeRequest, Leader, Lost, SealRequest, settings_of
from skerry.fabric.links import Links
from skerry.fabric.mqtt import Mqtt
from skerry.fabric.outbox import Outbox, SourceRequest
from skerry.fabric.peers import Peers
from skerry.fabric.progress import Progress
from skerry.fabric.promotion import State
from skerry.fabric.relay import UPSTREAM
from skerry.log.topics import topic_of, unknown_topic
from skerry.model.control import (
    CreateRequest,
    MoveRequest,
    ProgressRequest,
    Reach,
    SiteInfo,
    SiteName,
    TokenRequest,
    TopicName,
    TopicRequest,
    Want,
)
from skerry.model.fabric import (
    FabricRecord,
    LinkRecord,
    Presence,
    SiteRecord,
    TopicEntry,
    link_key,
    site_key,
    up_key,
)
from skerry.model.topic import Topic

log = logging.getLogger("skerry.fabric")

FIRST_CONTACT = 3.0
"""Seconds that a starting site waits for the coordination site before it goes on without."""
PRESENCE = 10.0
"""Seconds between renewals of a site's presence, which lasts three times as long."""
LEAD_TIME = 100.0
"""Seconds that the leader may take for what we ask it to do for a client."""
DIAL_TIME = 0.5


class _Reached(msgspec.Struct):
    name: str
    last: int
    timeout: float


class _Taking(msgspec.Struct):
    name: str
    subscription: str


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
        self._peers = Peers(connection)
        self.store = Store(self._jetstream, self.site, membership.coordination)
        self.links = Links(connection, system, ACCOUNT, settings, folder, ports, membership, self)
        self.copies = Copies(
            self._jetstream, self.site, membership.id, self.store, self.links, self._peers,
            settings.deliver_plain, settings.link_idle,
        )  # fmt: skip
        self.outbox = Outbox(self._jetstream, self.site, self.copies, self.links, self._peers)
        self.progress = Progress(self._jetstream, self.copies)
        self.interest = Interest(
            System(system, ACCOUNT), self.copies.names, self.copies.ensure, settings.link_idle
        )
        self.mqtt = Mqtt(self._jetstream, self.site, self._connect_again)
        self.leader = Leader(self.site, self.store, self.links, self._ask) if self.leads else None
        self._control: Control | None = None
        self._since = datetime.now(UTC)
        self._fence: asyncio.TimerHandle | None = None
        self._recovering: asyncio.Task[None] | None = None
        self._again = False
        self._settling = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_open = False
        """Whether this site has settled with the directory and lets clients write."""

    async def wake(self) -> None:
        """Have the engine open its logs; only now, because what opens asks us at once."""
        self.copies.young_until = self._connection.now() + DUPLICATE_WINDOW
        await self.links.wake()

    async def start(self, control: Control, streams: list[dict[str, Any]]) -> None:
        """Join in: copy the store, settle every log with it, then let clients write."""
        self._control = control
        config = origin_config(self.site) if self.leads else mirror_config(self.site, UPSTREAM)
        if await self._jetstream.stream(STORE_STREAM) is None:
            await self._jetstream.call(f"STREAM.CREATE.{STORE_STREAM}", config)
        await self.store.open()
        if self.leads:
            await self._found()
        await self.copies.load(streams)
        if self._ports.mqtt is not None:
            await self.mqtt.start()  # before copies go on, and deliver what they had missed
        self._serve(control)
        control.open()
        self.links.start(self.store)
        await self.outbox.open()
        await self._settle(FIRST_CONTACT)
        self.copies.start()
        if self._settings.deliver_plain:
            self.interest.start()
        self._connection.listen(self)
        self._spawn(self._keep_presence())
        if self.leader is not None:
            self._spawn(self._keep_watch(self.leader))

    async def close(self) -> None:
        """Leave in order; topics stay as they are."""
        self._connection.unlisten(self)
        if self._fence is not None:
            self._fence.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.leader is not None:
            await self.leader.close()
        await self.mqtt.close()
        await self.interest.close()
        await self.progress.close()
        await self.outbox.close()
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

    async def _settle(self, timeout: float) -> bool:
        """Settle with the directory and open; without it, with what is known. Whether the
        directory could be asked."""
        async with self._settling:
            return await self._do_settle(timeout)

    async def _do_settle(self, timeout: float) -> bool:
        is_fresh = self.leads or await self.store.fresh(timeout)
        if is_fresh:
            with contextlib.suppress(Conflict, Unavailable):
                await self._register()
                await self._adopt()
        else:
            log.warning(
                "the coordination site %s is away; going on with what is known here",
                self.store.origin,
            )
        await self.copies.reconcile(is_fresh)
        await self.links.unlock()
        self.is_open = True
        return is_fresh

    async def _adopt(self) -> None:
        """Topics that were made before this site was part of a fabric become its topics."""
        for info in await self._jetstream.streams():
            metadata = info["config"].get("metadata") or {}
            if "skerry.home" in metadata and "skerry.fabric" not in metadata:
                topic = topic_of(info)
                if self.copies.entry(topic.name) is None:
                    request = CreateRequest(
                        topic.name,
                        {**msgspec.to_builtins(topic.settings), "prefer": [self.site]},
                        self.site,
                    )
                    await self._lead("topic.create", request)

    def on_up(self) -> None:
        """The engine is back, locked."""
        self.is_open = self.leads
        self.copies.young_until = self._connection.now() + DUPLICATE_WINDOW
        self.links.engine_restarted()
        self._recover()

    def _recover(self) -> None:
        self._again = True
        if self._recovering is None or self._recovering.done():
            self._recovering = self._spawn(self._do_recover())

    async def _do_recover(self) -> None:
        """Settle anew, again and again until the directory could be asked."""
        while self._again:
            self._again = False
            try:
                await self.links.wake()
                await self.copies.load(await self._jetstream.streams())
                if not await self._settle(1.0 if self.is_open else FIRST_CONTACT):
                    self._again = self.store.origin in self.links.up
            except (SkerryError, Down) as error:
                log.warning("not settled yet: %s", error)
                self._again = True
            if self._again:
                await asyncio.sleep(0.2)

    # Links that go and come

    def on_link(self, peer: str, is_up: bool, how: str) -> None:
        """A link changed."""
        log.info("link to %s: %s", peer, how)
        self.copies.on_link(peer, is_up)
        if is_up:
            self.outbox.on_link(peer)
        self._spawn(self._report(peer, is_up, how))
        if peer == self.store.origin:
            if is_up:
                if self._fence is not None:
                    self._fence.cancel()
                    self._fence = None
                self._recover()
                for other in self.links.missing() - {peer}:
                    self._spawn(self._report(other, False, "closed"))
            elif self._fence is None:
                loop = asyncio.get_running_loop()
                self._fence = loop.call_later(
                    self._settings.silence, lambda: self._spawn(self._stand_alone())
                )

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
            if self._connection.is_up:
                leader.look(self._connection.now())

    async def _is_refused(self, peer: str) -> bool:
        """Whether nobody listens where the peer takes links: then its engine is dead."""
        record = self.store.get(site_key(peer), SiteRecord)
        if record is None or record.link is None:
            return False
        host, _, port = record.link.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(DIAL_TIME):
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                with socket.socket(family, socket.SOCK_STREAM) as probe:
                    probe.setblocking(False)
                    await loop.sock_connect(probe, (host.strip("[]"), int(port)))
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        return False

    async def _stand_alone(self) -> None:
        """The coordination site has been away for long enough that others may have replaced homes
        here: those whose topic says so stop."""
        self._fence = None
        for name in self.copies.homes():
            entry = self.copies.entry(name)
            if entry is None or len(entry.members) == 1:
                continue
            if entry.settings.on_partition == "stop":
                log.warning("%s takes no events: the coordination site is away", name)
                with contextlib.suppress(SkerryError, Down):
                    await self.copies.shut(name)

    async def _keep_presence(self) -> None:
        while True:
            homes, copies = self.copies.count()
            presence = Presence(
                since=self._since, homes=homes, copies=copies,
                rtt={peer: round(rtt, 6) for peer, rtt in self.links.rtt.items()},
            )  # fmt: skip
            with contextlib.suppress(SkerryError, Down):
                await self.store.put(up_key(self.site), presence, ttl=3 * PRESENCE)
            await asyncio.sleep(PRESENCE)

    # Services

    def _serve(self, control: Control) -> None:
        serve = control.serve
        serve("open.topic.create", self._create)
        serve("open.topic.show", self._show)
        serve("open.topic.list", self._list)
        serve("open.topic.find", self._find)
        serve("open.topic.want", self._want)
        serve("open.reach", self._reach)
        serve("open.progress", self._progress)
        serve("open.sites", self._sites)
        serve("open.links", lambda data: self.links.list())
        serve("open.unsubscribe", self._unsubscribe)
        serve("admin.topic.set", self._change)
        serve("admin.topic.delete", self._delete)
        serve("admin.topic.move", self._move)
        serve("admin.fabric.token", self._token)
        serve("admin.site.drain", self._drain)
        serve("admin.site.remove", self._remove)
        serve("peer.seal", self._seal)
        serve("peer.state", self._state)
        serve("peer.reached", self._reached)
        serve("peer.freeze", self._freeze)
        serve("peer.settle", self._settle_entry)
        serve("peer.prepare", self._prepare)
        serve("peer.source", self._source)
        serve("peer.taken", self._taken)
        serve("peer.subscription.take", self._take)
        serve("peer.homes", self._homes)
        serve("peer.hold", self._hold)
        serve("peer.holding", self._holding)
        serve("peer.removed", self._removed)
        if self.leader is not None:
            serve("join", self._join)
            serve("peer.lost", self._lost)
            serve("peer.lead.topic.create", self._lead_create)
            serve("peer.lead.topic.set", self._lead_change)
            serve("peer.lead.topic.delete", self._lead_delete)
            serve("peer.lead.topic.move", self._lead_move)
            serve("peer.lead.topic.renew", self._lead_renew)
            serve("peer.lead.topic.list", self._lead_list)
            serve("peer.lead.sites", self._lead_sites)
            serve("peer.lead.site.drain", self._lead_drain)
            serve("peer.lead.site.remove", self._lead_remove)
            serve("peer.lead.token", self._lead_token)

    async def _ask(self, site: str, name: str, body: object = None, timeout: float = 2.0) -> bytes:
        """Ask a site's agent, ourselves included without a detour."""
        if site == self.site and self._control is not None:
            return await self._control.call(name, msgspec.json.encode(body))
        return await self._peers.ask(site, name, body, timeout)

    async def _lead(self, name: str, body: object = None, timeout: float = LEAD_TIME) -> bytes:
        return await self._ask(self.store.origin, f"peer.lead.{name}", body, timeout)

    # … for clients

    async def _create(self, data: bytes) -> Topic:
        request = msgspec.json.decode(data, type=TopicRequest)
        settings_of(request.name, request.settings).check()
        body = CreateRequest(request.name, request.settings, self.site)
        entry = msgspec.json.decode(await self._lead("topic.create", body), type=TopicEntry)
        return await self._topic(entry)

    async def _change(self, data: bytes) -> Topic:
        request = msgspec.json.decode(data, type=TopicRequest)
        body = CreateRequest(request.name, request.settings, self.site)
        entry = msgspec.json.decode(await self._lead("topic.set", body), type=TopicEntry)
        return await self._topic(entry)

    async def _delete(self, data: bytes) -> None:
        await self._lead("topic.delete", msgspec.json.decode(data, type=TopicName))

    async def _move(self, data: bytes) -> Topic:
        body = msgspec.json.decode(data, type=MoveRequest)
        entry = msgspec.json.decode(await self._lead("topic.move", body), type=TopicEntry)
        return await self._topic(entry)

    async def _token(self, data: bytes) -> str:
        body = msgspec.json.decode(data, type=TokenRequest)
        return msgspec.json.decode(await self._lead("token", body), type=str)

    async def _drain(self, data: bytes) -> list[str]:
        body = msgspec.json.decode(data, type=SiteName)
        return msgspec.json.decode(await self._lead("site.drain", body), type=list[str])

    async def _remove(self, data: bytes) -> None:
        await self._lead("site.remove", msgspec.json.decode(data, type=SiteName))

    async def _show(self, data: bytes) -> Topic:
        name = msgspec.json.decode(data, type=TopicName).name
        entry = self.copies.entry(name)
        if entry is None:
            raise unknown_topic(name)
        return await self._topic(entry)

    async def _list(self, data: bytes) -> list[Topic]:
        with contextlib.suppress(Unavailable):
            return msgspec.json.decode(await self._lead("topic.list", timeout=10), type=list[Topic])
        entries = sorted(self.store.all("topic.", TopicEntry).values(), key=lambda e: e.name)
        return [await self._topic(entry) for entry in entries]

    async def _topic(self, entry: TopicEntry) -> Topic:
        info = await self.copies.look(entry)
        return as_topic(entry, info)

    async def _find(self, data: bytes) -> bool:
        """Whether there is a topic of that name; asked when a client's site does not know it."""
        name = msgspec.json.decode(data, type=TopicName).name
        if self.copies.owner(name) is None:
            await self.store.fresh(FIRST_CONTACT)
        return self.copies.owner(name) is not None

    async def _want(self, data: bytes) -> TopicEntry:
        request = msgspec.json.decode(data, type=Want)
        entry = await self.copies.ensure(request.name)
        if request.durable is not None:
            await self.copies.durables.fetch(entry, request.durable)
        return entry

    async def _reach(self, data: bytes) -> list[str]:
        sites = msgspec.json.decode(data, type=Reach).sites
        for site in sites:
            self.links.want(site)
        return [site for site in sites if not self.links.can_reach(site)]

    async def _holding(self, data: bytes) -> object:
        return await self.copies.holding(msgspec.json.decode(data, type=TopicName).name)

    async def _hold(self, data: bytes) -> None:
        await self.copies.ensure(msgspec.json.decode(data, type=TopicName).name)

    async def _progress(self, data: bytes) -> None:
        await self.progress.watch(msgspec.json.decode(data, type=ProgressRequest))

    async def _sites(self, data: bytes) -> list[SiteInfo]:
        with contextlib.suppress(Unavailable):
            return msgspec.json.decode(await self._lead("sites", timeout=5), type=list[SiteInfo])
        return self._site_list()

    async def _unsubscribe(self, data: bytes) -> None:
        await self.copies.durables.forget(*msgspec.json.decode(data, type=tuple[str, str]))

    # … for peers

    async def _seal(self, data: bytes) -> dict[str, State]:
        topics = msgspec.json.decode(data, type=SealRequest).topics
        states = await asyncio.gather(*(self.copies.seal(name, epoch) for name, epoch in topics))
        return {
            name: state
            for (name, _), state in zip(topics, states, strict=True)
            if state is not None
        }

    async def _state(self, data: bytes) -> State | None:
        return await self.copies.state(msgspec.json.decode(data, type=TopicName).name)

    async def _reached(self, data: bytes) -> State | None:
        request = msgspec.json.decode(data, type=_Reached)
        deadline = self._connection.now() + request.timeout
        while True:
            state = await self.copies.state(request.name)
            if state is None or state.last >= request.last:
                return state
            if self._connection.now() > deadline:
                return state
            await asyncio.sleep(0.001)

    async def _freeze(self, data: bytes) -> int:
        request = msgspec.json.decode(data, type=FreezeRequest)
        return await self.copies.freeze(request.name, request.epoch, request.lease)

    async def _settle_entry(self, data: bytes) -> State:
        return await self.copies.settle(msgspec.json.decode(data, type=TopicEntry))

    async def _prepare(self, data: bytes) -> None:
        await self.copies.prepare(msgspec.json.decode(data, type=TopicEntry))

    async def _source(self, data: bytes) -> None:
        await self.outbox.read(msgspec.json.decode(data, type=SourceRequest))

    async def _taken(self, data: bytes) -> object:
        return await self.outbox.taken(msgspec.json.decode(data, type=SourceRequest))

    async def _take(self, data: bytes) -> object:
        request = msgspec.json.decode(data, type=_Taking)
        return await self.copies.durables.take(request.name, request.subscription)

    async def _homes(self, data: bytes) -> dict[str, Any]:
        infos = await self._jetstream.streams()
        return {info["config"]["name"]: info for info in infos}

    async def _removed(self, data: bytes) -> None:
        log.error("this site was removed from the fabric; it takes part no more")
        self.membership.removed = True
        self.membership.save(self._folder.path)

    # … at the leader

    def _site_list(self) -> list[SiteInfo]:
        found = []
        for name, record in sorted(self.store.all("site.", SiteRecord).items()):
            presence = self.store.get(up_key(name), Presence)
            there = name == self.site or name in self.links.up
            rtt = self.links.rtt.get(name)
            found.append(
                SiteInfo(
                    site=name,
                    tier=record.tier,
                    up=there,
                    coordinates=name == self.store.origin,
                    draining=record.draining,
                    version=record.version,
                    link=record.link,
                    homes=sum(
                        e.home == name for e in self.store.all("topic.", TopicEntry).values()
                    ),
                    copies=presence.copies if presence else 0,
                    rtt_ms=None if rtt is None else round(rtt * 1000, 3),
                )
            )
        return found

    async def _lead_sites(self, data: bytes) -> list[SiteInfo]:
        return self._site_list()

    async def _lead_create(self, data: bytes) -> TopicEntry:
        assert self.leader is not None
        return await self.leader.create(msgspec.json.decode(data, type=CreateRequest))

    async def _lead_change(self, data: bytes) -> TopicEntry:
        assert self.leader is not None
        return await self.leader.change(msgspec.json.decode(data, type=CreateRequest))

    async def _lead_delete(self, data: bytes) -> None:
        assert self.leader is not None
        await self.leader.delete(msgspec.json.decode(data, type=TopicName).name)

    async def _lead_move(self, data: bytes) -> TopicEntry:
        assert self.leader is not None
        return await self.leader.move(msgspec.json.decode(data, type=MoveRequest))

    async def _lead_renew(self, data: bytes) -> None:
        assert self.leader is not None
        await self.leader.renew(msgspec.json.decode(data, type=TopicName).name)

    async def _lead_drain(self, data: bytes) -> list[str]:
        assert self.leader is not None
        return await self.leader.drain(msgspec.json.decode(data, type=SiteName).site)

    async def _lead_remove(self, data: bytes) -> None:
        assert self.leader is not None
        await self.leader.remove(msgspec.json.decode(data, type=SiteName).site)

    async def _lead_list(self, data: bytes) -> list[Topic]:
        """Every topic, with the state that its home tells."""
        entries = self.store.all("topic.", TopicEntry)
        homes = sorted({entry.home for entry in entries.values()})

        async def ask(site: str) -> dict[str, Any]:
            with contextlib.suppress(SkerryError):
                return dict(msgspec.json.decode(await self._ask(site, "peer.homes", timeout=5)))
            return {}

        infos = dict(zip(homes, await asyncio.gather(*map(ask, homes)), strict=True))
        return [
            as_topic(entry, infos[entry.home].get(entry.stream))
            for entry in sorted(entries.values(), key=lambda entry: entry.name)
        ]

    async def _lead_token(self, data: bytes) -> str:
        life = msgspec.json.decode(data, type=TokenRequest).life
        address = Address.load(self._folder.credentials / "join.json")
        return make_token(self.membership, address, life)

    async def _lost(self, data: bytes) -> None:
        assert self.leader is not None
        self.leader.observe(msgspec.json.decode(data, type=Lost))

    async def _join(self, data: bytes) -> Welcome:
        """A site wants to join."""
        request = msgspec.json.decode(data, type=JoinRequest)
        given = check_token(self.membership, request.token)
        token_key = f"token.{given.id}"
        used = self.store.get(token_key, Used)
        mine = Used(request.name, request.key)
        known = self.store.get(site_key(request.name), SiteRecord)
        if used is not None and (used != mine or known is None):
            raise JoinRefused(
                f"the join token was used by site {used.site}",
                "A token is for one site. Make another: `skerry fabric token`.",
            )
        if used is None:
            check_joiner(request, known)
            left = max(given.expires - datetime.now(UTC).timestamp(), 1.0) + 60
            await self.store.put(token_key, mine, revision=0, ttl=left)
        record = SiteRecord(
            name=request.name,
            tier=request.tier,
            version=request.version,
            protocol=request.protocol,
            link=request.link,
            tls=request.tls,
            ca=request.ca,
            joined=datetime.now(UTC),
        )
        await self.store.put(site_key(request.name), record)
        link = LinkRecord(
            dialer=request.name,
            acceptor=self.site,
            key=request.key,
            ready=True,
            wanted_by=tuple(sorted((request.name, self.site))),
        )
        await self.store.put(link_key(self.site, request.name), link)
        await self.links.settle()
        log.warning("site %s joined", request.name)
        mine_record = self.store.get(site_key(self.site), SiteRecord)
        assert mine_record is not None
        return Welcome(
            fabric=self.membership.id, name=self.membership.name, coordinator=mine_record
        )

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the fabric's work failed: %s", error, exc_info=error)


def as_topic(entry: TopicEntry, info: dict[str, Any] | None) -> Topic:
    """A topic for people and programs: its entry, and the state of one of its copies."""
    state = info["state"] if info else {}
    return Topic(
        name=entry.name,
        home=entry.home,
        settings=entry.settings,
        created=datetime.fromisoformat(info["created"]) if info else datetime.fromtimestamp(0, UTC),
        events=state.get("messages", 0),
        bytes=state.get("bytes", 0),
        first_index=max(state.get("first_seq", 1), 1),
        latest_index=state.get("last_seq", 0),
        subscriptions=state.get("consumer_count", 0),
        epoch=entry.epoch,
        replicas=entry.members[1:],
    )
