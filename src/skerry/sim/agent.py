"""A site with the agent that ships: `Fabric` and all below it, on a simulated engine.

What is done here is what `skerry.site.Site` does for a site of a fabric, less what needs a machine:
the engine's process, ports, and files. What a site keeps on disk is in `Disk`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

import skerry.engine.tide
import skerry.fabric.join
import skerry.fabric.links
import skerry.fabric.outbox
import skerry.fabric.progress
import skerry.model.promotion
from skerry.config import ClientSettings, SiteSettings
from skerry.engine.address import Address
from skerry.engine.conf import Ports, Wiring
from skerry.engine.jetstream import JetStream
from skerry.engine.tide import Tide, _File
from skerry.engine.wire import Connection
from skerry.errors import Unavailable
from skerry.fabric.control import Control
from skerry.fabric.fabric import Fabric
from skerry.fabric.join import Membership, join, make_token, site_record
from skerry.fabric.links import first_wiring
from skerry.fabric.streams import OUTBOX
from skerry.sim.engine import CLIENT_PORT, LINK_PORT, Engine, Network
from skerry.sim.jetstream import Stream
from skerry.sim.loop import Process

Folder = tuple[dict[str, dict[str, Any]], dict[str, bytes], _File]
"""Streams, files, and what the site knows of them."""
FULL = 1.0
"""Seconds between two looks at the disk."""
HANGS = 2.0
"""Seconds that a write may take before the disk counts as one that hangs."""
RESTART = 0.05
"""Seconds after which an engine that died is started anew (`skerry.engine.process`)."""
PATIENCE = ClientSettings(ping_interval=10 / 3)


@contextlib.contextmanager
def stand_ins(quick: float, slow: float, lineage: int) -> Iterator[None]:
    """Have what ships use these for what it does with files; and look less often where it looks all
    the time, for each look costs as much as a message: every `quick` to `slow` seconds. Topics
    remember so many epochs."""
    changed: list[tuple[Any, str, Any]] = [
        (skerry.fabric.links, "write_conf", write_conf),
        (skerry.fabric.join, "write_secret", write_secret),
        (skerry.fabric.join, "read_secret", read_secret),
        (skerry.fabric.progress, "QUICK", quick),
        (skerry.fabric.progress, "SLOW", slow),
        (skerry.fabric.outbox, "LOOK", 0.5),
        (skerry.engine.tide, "PERIOD", 0.5),
        (skerry.model.promotion, "LINEAGE_KEPT", lineage),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in changed]
    for module, name, value in changed:
        setattr(module, name, value)
    try:
        yield
    finally:
        DISKS.clear()
        for module, name, value in before:
            setattr(module, name, value)


class Disk:
    """The files of one site, in memory; stands for its `Folder`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.path = PurePosixPath(f"/sim/{engine.site}")
        self.files: dict[str, bytes] = {}
        self.tide = _File(boot="1")
        self.boot = 1


DISKS: dict[str, Disk] = {}
"""Of the simulation that runs, by path."""


def write_secret(path: Path, content: bytes) -> None:
    """Stands for `skerry.engine.address.write_secret`."""
    DISKS[str(path.parent)].files[path.name] = content


def read_secret(path: Path) -> bytes | None:
    """Stands for `skerry.engine.address.read_secret`."""
    return DISKS[str(path.parent)].files.get(path.name)


def write_conf(folder: Any, settings: SiteSettings, ports: Ports, wiring: Wiring) -> None:
    """Stands for `skerry.engine.conf.write_conf`: the engine takes it as it is."""
    folder.engine.file = wiring


class DiskTide(Tide):
    """The tide, in memory."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        super().__init__(Path("/sim-has-no-files"))

    def _read(self) -> tuple[str, _File]:
        return str(self._disk.boot), self._disk.tide

    def _write(self, file: _File) -> None:
        self._known = self._disk.tide = file


class Agent:
    """One site of the fabric: its engine, and a process that is its agent while it runs."""

    def __init__(self, net: Network, engine: Engine, silence: float) -> None:
        self.site = engine.site
        self.net = net
        self.engine = engine
        self.disk = Disk(engine)
        DISKS[str(self.disk.path)] = self.disk
        self.settings = SiteSettings(
            site=self.site, data=Path(str(self.disk.path)), host=self.site, port=CLIENT_PORT,
            link_port=LINK_PORT, tier="hub", silence=silence,
        )  # fmt: skip
        self.ports = Ports(CLIENT_PORT, None, None, LINK_PORT)
        self.process: Process | None = None
        self.fabric: Fabric | None = None
        self.restarts = 0
        """Of the engine, while the agent ran."""
        self.is_destroyed = False
        self._token: str | None = None
        """What it is to join with, if it has not."""
        self._starting: asyncio.Task[None] | None = None

    def address(self, user: str) -> Address:
        """Where to connect."""
        return Address(site=self.site, host=self.site, port=CLIENT_PORT, user=user)

    def found(self) -> None:
        """Begin a fabric here."""
        membership = Membership(
            id="f",
            name="sim",
            coordination=self.site,
            link_port=LINK_PORT,
            secret=secrets.token_hex(8),
        )
        self.disk.files["fabric.json"] = msgspec.json.encode(membership)

    def token(self) -> str:
        """A token to join with, made at the coordination site."""
        return make_token(self._membership(), self.address("join"), 3600.0)

    def start(self, token: str | None = None) -> asyncio.Task[None]:
        """Run engine and agent."""
        assert self.process is None
        self.process = Process(f"agent {self.site}", self.site)
        self._token = token or self._token
        loop = self.net.loop
        work = self.process.context().run(loop.create_task, self._run(self._token))
        self._starting = work
        return work

    def kill(self, *, power: bool = False) -> None:
        """End both at once; with `power`, the machine went down."""
        if self.process is not None:
            self.process.is_alive = False
            self.process = None
            self.fabric = None
        self.engine.kill(silently=power)
        if power:
            self.disk.boot += 1
            self.net.dark.add(self.site)

    def snapshot(self) -> Folder:
        """A copy of all that the site has on its disk."""
        streams = {name: stream.copied() for name, stream in self.engine.streams.items()}
        return streams, dict(self.disk.files), self.disk.tide

    def restore(self, folder: Folder) -> None:
        """End the site, and put that in the place of what it has."""
        self.kill()
        streams, files, self.disk.tide = folder
        self.disk.files = dict(files)
        outbox = self.engine.streams[OUTBOX]  # spared: see guarantees.md
        self.engine.streams = {
            name: Stream.restored(self.engine, parts) for name, parts in streams.items()
        }
        self.engine.streams[OUTBOX] = outbox

    def destroy(self) -> None:
        """Lose the site, with all that it has."""
        self.kill()
        self.is_destroyed = True
        self.engine.streams.clear()
        self.disk.files.clear()
        self.disk.tide = _File(boot="1")
        self.disk.boot = 1

    def begin_anew(self, token: str) -> None:
        """Start another site of this name, which has nothing."""
        self.is_destroyed = False
        self.start(token)

    def fill(self) -> None:
        """The disk is full; the agent notices (`skerry.site.disk`)."""
        self.engine.is_full = True
        self._notice(FULL)

    def make_room(self) -> None:
        """There is room again, and the engine is started anew."""
        self.engine.is_full = False
        self.kill_engine()

    def lag(self, seconds: float) -> None:
        """The disk is slow; if too slow, the agent notices."""
        self.engine.lag = seconds
        self._notice(HANGS)

    def keep_up(self) -> None:
        """The disk is as fast as ever."""
        self.engine.lag = 0.0
        if self.fabric is not None and not self.engine.is_full:
            self.fabric.copies.is_full = False

    def _notice(self, wait: float) -> None:
        self.net.loop.call_later(wait, self._while_stuck, context=self.net.loop.world)

    def _while_stuck(self) -> None:
        if self.engine.is_full or self.engine.lag > HANGS:
            if self.fabric is not None and self.process is not None:
                self.process.context().run(self.fabric.hand_over)
            self._notice(FULL)

    def kill_engine(self) -> None:
        """End the engine alone; the agent starts it anew."""
        if self.process is not None and self.engine.is_up:
            self.engine.kill()
            self._restart_later(self.process)

    def _restart(self, process: Process) -> None:
        if self.process is not process or self.engine.is_up:
            return
        if process.missed is not None:  # it stands still, and nobody starts one
            self._restart_later(process)
            return
        self.restarts += 1
        self.engine.start()

    def _restart_later(self, process: Process) -> None:
        self.net.loop.call_later(RESTART, self._restart, process, context=self.net.loop.world)

    @property
    def is_open(self) -> bool:
        """Whether the site runs and has settled."""
        return self.fabric is not None and self.fabric.is_open

    @property
    def is_doubted(self) -> bool:
        """Whether it knows that its folder is an older one."""
        tide = self.fabric.copies.openings.tide if self.fabric is not None else None
        return tide is not None and bool(tide.doubted)

    def knows_of(self, site: str) -> int:
        """The highest number of another site's folder that this one was told."""
        return self.fabric.links.tide_of(site)[1] if self.fabric is not None else 0

    def _membership(self) -> Membership:
        return msgspec.json.decode(self.disk.files["fabric.json"], type=Membership)

    async def _run(self, token: str | None) -> None:
        """What `Site._start` does."""
        folder: Any = self.disk
        self.net.dark.discard(self.site)
        while token is not None and "fabric.json" not in self.disk.files:
            try:
                await join(folder, site_record(self.settings, self.ports), token)
            except Unavailable:  # its operator tries again
                await asyncio.sleep(1.0)
        membership = self._membership()
        self.engine.file = first_wiring(self.site, membership)
        self.engine.start()
        connection = await Connection.open(self.address("admin"), PATIENCE, "agent")
        system = await Connection.open(self.address("system"), PATIENCE, "operator")
        fabric = Fabric(self.settings, folder, self.ports, membership, connection, system)
        await fabric.wake()
        jetstream = JetStream(connection)
        streams = await jetstream.streams()
        tide = DiskTide(self.disk)
        tide.look(streams)
        fabric.heed(tide, self.settings.durability == "power")
        control = Control(connection, self.site)
        control.is_alone = False
        self.fabric = fabric
        await fabric.start(control, streams)
        engine: Any = self
        asyncio.get_running_loop().create_task(tide.watch(engine, jetstream))
