"""One site: its data folder, its engine and the services beside it, as one thing with a life."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from typing import Any, Self

import msgspec
import psutil

from skerry.config import ClientSettings, SiteSettings
from skerry.engine.address import Address
from skerry.engine.binary import check_version, find_binary, parse_version
from skerry.engine.conf import Ports, write_conf
from skerry.engine.folder import Folder
from skerry.engine.jetstream import JetStream
from skerry.engine.process import Engine
from skerry.engine.tide import Tide
from skerry.engine.wire import Connection
from skerry.errors import (
    BadSetting,
    DurabilityUnavailable,
    EngineFailed,
    EngineUnfit,
    FolderCorrupt,
    NotInFabric,
    SkerryError,
    Unavailable,
)
from skerry.fabric.control import Control
from skerry.fabric.fabric import Fabric
from skerry.fabric.join import Membership, join, site_record
from skerry.fabric.links import first_wiring
from skerry.feeds.simple import SimpleClients
from skerry.feeds.simple_held import Places
from skerry.feeds.site import Feeds
from skerry.functions.places import Alone, InFabric
from skerry.functions.site import Functions
from skerry.log.topics import Topics, topics_of
from skerry.model.control import SiteStatus, TopicName, TopicRequest
from skerry.model.demands import settings_of
from skerry.model.names import (
    check_not_own,
    check_site,
    feed_records,
    is_feed_records,
    plain_subject,
    segment_of_stream,
    stream_of,
)
from skerry.model.records import ASIDE
from skerry.model.topic import Topic, TopicSettings
from skerry.site.checks import check_tls, maybe_port, port_of
from skerry.site.disk import watch_disk
from skerry.site.mqtt import prepare_mqtt
from skerry.site.placement import Placement
from skerry.site.strays import Strays

log = logging.getLogger("skerry.site")

SET_ASIDE_SHOWN = 20
"""Records that were set aside, of which a site's status tells."""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")

START_ATTEMPTS = 3
"""How often an engine is started that somebody kills at once."""
EXTERNAL_TIME = 10.0
"""Seconds to wait for an engine that the user runs; it may be starting at this moment."""
RECOVERY_TIME = 110.0
"""Seconds after which we say that our engine is still recovering its logs; it is left to it.
10 000 topics take 30 s (measured)."""


class Site:
    """A running site: `async with Site(settings) as site`.

    With `engine` it uses an engine that the user runs, at that address, instead of its own. With
    `join`, a token, it becomes part of a fabric; it stays that without one.
    """

    def __init__(
        self, settings: SiteSettings, engine: str | None = None, join: str | None = None
    ) -> None:
        self.settings = settings
        self.address: Address
        self.ports = Ports(settings.port, settings.mqtt_port, settings.websocket_port)
        self.fabric: Fabric | None = None
        """This site's part in a fabric; None: it stands alone."""
        self.placement: Placement | None = None
        self._external = engine
        self._token = join
        self._system: Connection | None = None
        self._engine: Engine | None = None
        self._folder: Folder | None = None
        self._connection: Connection | None = None
        self._control: Control | None = None
        self._feeds: Feeds | None = None
        self._simple: SimpleClients | None = None
        self.functions: Functions | None = None
        """This site's part in functions; None: it has not started yet."""
        self._strays: Strays | None = None
        self._own_records: list[str] = []
        self._tide: Tide | None = None
        self._watches: list[asyncio.Task[None]] = []
        self._membership: Membership | None = None
        self._started = time.monotonic()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.close(failed=True)
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def engine(self) -> Engine:
        """The supervised engine; only a site with its own engine has one."""
        if self._engine is None:
            raise BadSetting("this site uses an engine that somebody else runs")
        return self._engine

    @property
    def is_up(self) -> bool:
        """Whether the agent is connected to its engine."""
        return self._connection is not None and self._connection.is_up

    async def close(self, failed: bool = False) -> None:
        """Stop serving, stop the engine in order, free the folder; forget it too, if this was its
        first start and it failed."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        if self._strays is not None:
            await self._strays.close()
        if self._simple is not None:
            await self._simple.close()
        if self._control is not None:
            await self._control.close()
        if self.functions is not None:
            await self.functions.close()
        if self._feeds is not None:
            await self._feeds.close()
        if self.placement is not None:
            await self.placement.close()
        if self.fabric is not None:
            await self.fabric.close()
        if self._system is not None:
            await self._system.close()
        is_running = self._engine is not None and self._engine.pid is not None
        if self._connection is not None:
            if is_running and self._connection.is_up and self._tide is not None:
                await self._tide.note_last(JetStream(self._connection))
            await self._connection.close()
        if self._engine is not None:
            await self._engine.stop()
            if is_running and not self._engine.was_killed and self._tide is not None:
                self._tide.close()
        if self._folder is not None:
            if failed:
                self._folder.forget()
            self._folder.close()
            self._folder = None

    async def status(self) -> SiteStatus:
        """How the site is now."""
        assert self._connection is not None
        jetstream = JetStream(self._connection)
        info = await jetstream.call("INFO")
        subject = f"s.{self.settings.site}.>"
        topics = await jetstream.call("STREAM.NAMES", {"subject": subject})
        engine_pid = self._engine.pid if self._engine else None
        memory = 0
        for pid in filter(None, (engine_pid, os.getpid())):
            with contextlib.suppress(psutil.Error):
                memory += psutil.Process(pid).memory_info().rss
        strays = await self._strays.kept() if self._strays is not None else (0, 0, "")
        return SiteStatus(
            site=self.settings.site,
            address=str(self.address),
            data=str(self.settings.data),
            durability=self.settings.durability,
            engine=self._connection.info.version,
            engine_pid=engine_pid,
            agent_pid=os.getpid(),
            restarts=self._engine.restarts if self._engine else 0,
            uptime=time.monotonic() - self._started,
            topics=topics["total"],
            subscriptions=info["consumers"],
            stored_bytes=info["storage"],
            memory_bytes=memory,
            mqtt_port=self.ports.mqtt,
            websocket_port=self.ports.websocket,
            lost=self._tide.lost if self._tide is not None else {},
            set_aside=ASIDE.names()[:SET_ASIDE_SHOWN],
            strays=strays[0],
            strays_kept=strays[1],
            last_stray=strays[2],
        )

    async def _start(self) -> None:
        settings = self.settings
        check_site(settings.site)
        settings.check()
        self._check_exposure()
        if self._external is None:
            await self._start_engine()
        else:
            await self._use_engine(self._external)
        connection = self._connection
        assert connection is not None
        if self._engine is not None:
            self._engine.watch()
            connection.listen(self._engine)
        jetstream = JetStream(connection)
        topics = Topics(jetstream, settings.site, settings.durability, settings.deliver_plain)
        membership = self._membership
        if membership is not None:
            self.fabric = await self._open_fabric(membership)
            await self.fabric.wake()
        streams = await jetstream.streams()
        self._check_recovered(streams)
        if self._engine is not None:
            is_flushed = settings.durability == "power"
            self._tide = Tide(settings.data, is_flushed)
            self._tide.look(streams)
            if self.fabric is not None:
                self.fabric.heed(self._tide, is_flushed)
        if membership is None:
            await topics.settle(streams)
        if self.ports.mqtt is not None:
            mapped = f"s.{settings.site}.p" if membership is None else f"o.{settings.site}"
            await prepare_mqtt(jetstream, mapped)
        self._control = Control(connection, settings.site)
        self._control.is_alone = membership is None
        own = feed_records(settings.site)
        if any(info["config"]["name"] == stream_of(own) for info in streams):
            self._own_records = [own]
        alone = Alone(topics, settings.site, streams if membership is None else ())
        self._serve(self._control, topics, alone)
        self._feeds = Feeds(settings.site, self._control, self._connect_again, self._feed_topics)
        self._feeds.serve()
        self._simple = SimpleClients(
            self._feeds,
            lambda: self._connect_again("simple clients"),
            Places.known_to(settings.site, self.fabric, settings.deliver_plain),
        )
        places = InFabric(self.fabric) if self.fabric is not None else alone
        self._strays = Strays(places, jetstream, lambda: self._connect_again("strays"))
        if self.fabric is not None:
            self.fabric.outbox.on_stray = self._strays.take
            self.fabric.outbox.on_large = self._strays.take_large
        self.functions = Functions(
            places,
            self._control,
            lambda: self._connect_again("functions"),
            self._address_of_host(),
            settings.data / "functions",
        )
        self.functions.serve()
        if self.fabric is not None:
            self.fabric.on_link_up.append(self._feeds.on_link)
            self.fabric.store.watch("topic.", self._simple.held.on_entry)
        if self.fabric is None:
            await self._strays.start()
            self._control.open()
        else:
            self.placement = Placement(self.fabric, connection, settings)
            self.placement.serve(self._control)
            await self.fabric.start(self._control, streams)
            self.placement.start()
        self._feeds.start()
        await self._simple.start()
        self.functions.start()
        if self._engine is not None:
            assert self._tide is not None
            self._watches = [
                asyncio.create_task(self._watch_hang(self._engine, connection)),
                asyncio.create_task(
                    watch_disk(self._engine, settings.data, settings.durability == "power", self)
                ),
                asyncio.create_task(self._tide.watch(self._engine, jetstream)),
            ]

    def on_stuck(self) -> None:
        """Nothing can be written here; see `watch_disk`."""
        if self.fabric is not None:
            self.fabric.hand_over()

    def on_well(self) -> None:
        """Everything can again."""
        if self.fabric is not None:
            self.fabric.copies.is_full = False

    async def _open_fabric(self, membership: Membership) -> Fabric:
        """Be there before the engine opens its logs."""
        assert self._folder is not None
        assert self._connection is not None
        address = Address.load(self._folder.credentials / "system.json")
        self._system = await Connection.open(
            address, _patience(self.settings.hang_timeout), "operator"
        )
        return Fabric(
            self.settings, self._folder, self.ports, membership, self._connection, self._system
        )

    async def _connect_again(self, name: str = "feeds") -> Connection:
        """One more connection to the own engine, with the same rights."""
        assert self._connection is not None
        return await Connection.open(self.address, self._connection.settings, name)

    def _feed_topics(self) -> list[str]:
        """The topics that hold records of feeds, of every site that is known."""
        if self.fabric is not None:
            return [name for name in self.fabric.copies.names() if is_feed_records(name)]
        return self._own_records

    def _address_of_host(self) -> Address:
        """Who the process that runs functions is; at an engine of the user's, who we are."""
        if self._engine is None or self._folder is None:
            return self.address
        return Address.load(self._folder.credentials / "functions.json")

    def _serve(self, control: Control, topics: Topics, alone: Alone) -> None:
        async def create(request: TopicRequest) -> Topic:
            check_not_own(request.name)
            return await create_any(request)

        async def create_any(request: TopicRequest) -> Topic:
            settings = settings_of(request.name, request.settings)
            return alone.made(await topics.create(request.name, settings))

        async def change(request: TopicRequest) -> Topic:
            settings_of(request.name, request.settings)
            return alone.made(await topics.change(request.name, request.settings))

        async def delete(request: TopicName) -> None:
            await topics.delete(request.name)
            alone.gone(request.name)

        control.serve("open.status", None, self.status)
        control.serve("open.topic.create", TopicRequest, create)
        control.serve("admin.topic.create", TopicRequest, create_any)
        control.serve("admin.topic.set", TopicRequest, change)
        control.serve("admin.topic.delete", TopicName, delete)

    def _check_exposure(self) -> None:
        settings = self.settings
        if (settings.tls_cert is None) != (settings.tls_key is None):
            raise BadSetting(
                "TLS needs both a certificate and a key", "Give --tls-cert and --tls-key."
            )
        if settings.tls_cert is not None and settings.tls_key is not None:
            check_tls(settings.tls_cert, settings.tls_key)
        if settings.host not in _LOOPBACK and settings.tls_cert is None and not settings.insecure:
            raise BadSetting(
                f"listening on {settings.host} without TLS would send passwords in the clear",
                "Give --tls-cert and --tls-key, or force it with --insecure.",
            )

    async def _start_engine(self) -> None:
        settings = self.settings
        binary, version = find_binary()
        self._folder = Folder.open(settings.data, settings.site, version)
        self.ports = Ports(
            port_of(settings.host, settings.port, "--port"),
            maybe_port(settings.host, settings.mqtt_port, "--mqtt-port"),
            maybe_port(settings.host, settings.websocket_port, "--websocket-port"),
        )
        self._membership = await self._find_fabric(self._folder)
        wiring = first_wiring(settings.site, self._membership) if self._membership else None
        conf = write_conf(self._folder, settings, self.ports, wiring)
        self.address = Address.load(self._folder.credentials / "admin.json")
        self._engine = Engine(binary, conf, self._folder)
        patience = _patience(settings.hang_timeout)
        for attempts_left in reversed(range(START_ATTEMPTS)):
            self._engine.start()
            try:
                self._connection = await _first_connection(self.address, self._engine, patience)
                return
            except EngineFailed:
                if not self._engine.was_killed or not attempts_left:
                    raise
            log.warning("the engine was killed as it started; starting it anew")

    async def _find_fabric(self, folder: Folder) -> Membership | None:
        """What this site knows of its fabric: from before, or by joining now."""
        settings = self.settings
        membership = Membership.load(folder.path)
        if membership is not None and membership.removed:
            if self._token is None:
                raise NotInFabric(
                    f"site {settings.site} was removed from the fabric {membership.name!r}",
                    "Join again with a new token: `skerry up --join …`.",
                )
            membership = None
        if membership is None and self._token is None:
            return None
        # Other sites remember where this one takes links, so a free port is chosen once.
        port = settings.link_port
        if port == 0 and membership is not None and membership.link_port:
            port = membership.link_port
        link = maybe_port(settings.host, port, "--link-port")
        self.ports = msgspec.structs.replace(self.ports, link=link)
        if membership is None:
            assert self._token is not None
            membership = await join(folder, site_record(settings, self.ports), self._token)
        if membership.coordination == settings.site and link is None:
            raise BadSetting(
                "the coordination site must take links", "Give it a port with --link-port."
            )
        if membership.link_port != (link or 0):
            membership.link_port = link or 0
            membership.save(folder.path)
        return membership

    async def _use_engine(self, url: str) -> None:
        settings = self.settings
        if self._token is not None or Membership.load(settings.data) is not None:
            raise BadSetting(
                "a site with an engine of your own cannot be part of a fabric yet",
                "Start it without --engine.",
            )
        self.address = msgspec.structs.replace(Address.parse(url), site=settings.site)
        self._connection = await Connection.open(
            self.address, ClientSettings(timeout=EXTERNAL_TIME), "agent"
        )
        info = self._connection.info
        version = check_version(parse_version(info.version), str(self.address))
        if not info.jetstream:
            raise EngineUnfit(
                f"the engine at {self.address} has JetStream off",
                "Start it with `nats-server -js`.",
            )
        await self._check_rights(self._connection)
        self._folder = Folder.open(settings.data, settings.site, version)
        self._folder.credentials.mkdir(mode=0o700, exist_ok=True)
        for user in ("admin", "sdk"):
            self.address.save(self._folder.credentials / f"{user}.json")

    async def _check_rights(self, connection: Connection) -> None:
        """Use what we need once, and clean up: storing, transforming, mapping plain publishes."""
        site = self.settings.site
        jetstream = JetStream(connection, wakes=False)
        topics = Topics(jetstream, site, deliver_plain=True)
        probe = f"skerry-check-{os.getpid()}"
        mapped = asyncio.Event()
        sid = connection.subscribe(f"t.{probe}", lambda *_: mapped.set())
        try:
            await topics.create(probe, TopicSettings(max_events=1))
            connection.publish(f"p.{probe}", b"?")
            async with asyncio.timeout(2):
                await mapped.wait()
        except TimeoutError:
            log.warning(
                "plain clients cannot publish here: the engine lacks the account's subject mapping "
                '`mappings: {"p.>": "%s"}`',
                plain_subject(site, ">"),
            )
        except SkerryError as error:
            raise EngineUnfit(
                f"the engine at {connection.address} does not let us make a topic: {error.what}",
                "Give the user the rights of an account's administrator.",
            ) from None
        finally:
            connection.unsubscribe(sid)
            with contextlib.suppress(SkerryError):
                await topics.delete(probe)

    def _check_recovered(self, streams: list[dict[str, Any]]) -> None:
        """Every log on disk must be there, and nobody's demand for `power` be broken."""
        if self._folder is not None and self._engine is not None:
            stored = self._folder.stored_streams()
            lost = stored.keys() - {info["config"]["name"] for info in streams}
            if lost:
                found = {stream: segment_of_stream(stream) for stream in lost}
                names = ", ".join(sorted({one[0] if one else name for name, one in found.items()}))
                where = ", ".join(str(stored[name]) for name in sorted(lost))
                raise FolderCorrupt(
                    f"the engine could not recover {names}: {where} is damaged",
                    "Restore it from a backup, or move it away to start without it. "
                    f"The reason is in {self._engine.log_path}.",
                )
        if self.settings.durability == "process":
            strict = [t.name for t in topics_of(streams) if t.settings.durability == "power"]
            if strict:
                raise DurabilityUnavailable(
                    f"{', '.join(strict[:5])} demand durability 'power'; this site gives 'process'",
                    "Start it with --durability power.",
                )

    async def _watch_hang(self, engine: Engine, connection: Connection) -> None:
        """Kill an engine that takes connections and says nothing: it is frozen or stuck. One that
        refuses them is starting, however long its recovery takes."""
        while True:
            await asyncio.sleep(0.5)
            silent = connection.now() - connection.last_heard
            if (
                connection.down_since is not None
                and silent > self.settings.hang_timeout
                and connection.last_fault == "no answer"
                and engine.pid is not None
            ):
                log.error("the engine is silent for %.1f s; killing it", silent)
                engine.kill()
                with contextlib.suppress(SkerryError):  # still away: look again
                    await connection.wait_up(connection.now() + self.settings.hang_timeout)


def _patience(hang_timeout: float) -> ClientSettings:
    """Look often enough that a hung engine is noticed in about `hang_timeout`."""
    usual = ClientSettings()
    return ClientSettings(
        timeout=RECOVERY_TIME,
        ping_interval=min(usual.ping_interval, hang_timeout / 4),
        connect_timeout=min(usual.connect_timeout, hang_timeout / 4),
        reconnect_most=0.1,
    )


async def _first_connection(
    address: Address, engine: Engine, settings: ClientSettings
) -> Connection:
    """Connect to an engine that was just started, however long it recovers its logs; say why if
    it died instead."""
    while True:
        opening = asyncio.create_task(Connection.open(address, settings, "agent"))
        try:
            while not opening.done():
                await asyncio.wait({opening}, timeout=0.05)
                if not opening.done() and (death := engine.death()):
                    raise death
            return opening.result()
        except SkerryError as error:
            if death := engine.death():
                raise death from None
            if not isinstance(error, Unavailable) or "refused" not in error.what:
                raise
            log.warning("the engine is still recovering its logs; see %s", engine.log_path)
        finally:
            if not opening.done():
                opening.cancel()
                await asyncio.gather(opening, return_exceptions=True)
