"""Links between sites: made on demand, watched, removed; and what may cross them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from skerry import errors
from skerry.client import Client
from skerry.config import ClientSettings
from skerry.engine.address import Address
from skerry.engine.conf import link_rights, write_conf
from skerry.engine.wire import NO_RESPONDERS, Connection
from skerry.fabric.fabric import Fabric
from skerry.fabric.join import Membership
from skerry.fabric.links import Watcher
from skerry.model.control import LinkInfo
from skerry.model.fabric import LinkRecord, link_key
from skerry.testing.fabric import LocalFabric
from skerry.testing.local import LocalSite
from skerry.testing.wan import Wan
from skerry.testing.wanfabric import WanFabric
from tests.conftest import until
from tests.live.faults import nats_server, refused
from tests.live.test_join import ask_to_join

SITES = ["hub", "farm", "lab"]
needs_wan = pytest.mark.skipif(
    Wan.unavailable() is not None, reason=f"no emulated WAN: {Wan.unavailable()}"
)


@pytest.fixture
async def fabric() -> AsyncIterator[LocalFabric]:
    async with LocalFabric(SITES) as fabric:
        yield fabric


def part_of(fabric: LocalFabric, name: str) -> Fabric:
    part = fabric.agent(name).fabric
    assert part is not None
    return part


def linked(fabric: LocalFabric, one: str, other: str) -> bool:
    """Whether both ends have the link up."""
    pair = (part_of(fabric, one), other), (part_of(fabric, other), one)
    return all(peer in part.links.up for part, peer in pair)


def record_of(fabric: LocalFabric, one: str, other: str) -> LinkRecord | None:
    return part_of(fabric, "hub").store.get(link_key(one, other), LinkRecord)


async def link_of(client: Client, peer: str) -> LinkInfo | None:
    return next((link for link in await client.links() if link.peer == peer), None)


async def events_of(client: Client, topic: str) -> list[bytes]:
    return [event.data async for event in client.read(topic)]


# On demand


async def test_a_site_begins_with_a_link_to_the_coordination_site_only(
    fabric: LocalFabric,
) -> None:
    await until(lambda: linked(fabric, "hub", "farm") and linked(fabric, "hub", "lab"))
    async with fabric.connect("farm") as client, fabric.connect("hub") as other:
        assert [(link.peer, link.dialer, link.up) for link in await client.links()] == [
            ("hub", "farm", True)
        ]
        assert [(link.peer, link.dialer) for link in await other.links()] == [
            ("farm", "farm"),
            ("lab", "lab"),
        ]


async def test_a_publish_across_makes_a_link_and_shows_it(fabric: LocalFabric) -> None:
    async with fabric.connect("farm") as client, fabric.connect("lab") as other:
        await client.create_topic("t")
        assert await link_of(other, "farm") is None
        assert await other.publish("t", b"x" * 10_000) == 1
        await until(lambda: linked(fabric, "farm", "lab"))

        async def is_measured() -> bool:
            link = await link_of(other, "farm")
            return link is not None and link.rtt_ms is not None and link.out_bytes > 10_000

        await until(is_measured)
        here, there = await link_of(other, "farm"), await link_of(client, "lab")
        assert here is not None
        assert there is not None
        assert (here.site, here.peer, there.site, there.peer) == ("lab", "farm", "farm", "lab")
        assert here.dialer == there.dialer == "farm"
        assert here.up
        assert there.up
        assert here.heard_ms is not None
        assert here.out_msgs > 0
        assert there.in_bytes > 10_000


async def test_an_edge_dials_a_hub() -> None:
    async with LocalFabric(SITES, each={"farm": {"tier": "hub"}}) as fabric:
        async with fabric.connect("farm") as client, fabric.connect("lab") as other:
            await client.create_topic("t")
            assert await other.publish("t", "x") == 1
        record = record_of(fabric, "farm", "lab")
        assert record is not None
        assert (record.dialer, record.acceptor, record.ready) == ("lab", "farm", True)


async def test_an_idle_link_is_removed_and_made_again() -> None:
    async with (
        LocalFabric(SITES, link_idle=1.0) as fabric,
        fabric.connect("farm") as client,
        fabric.connect("lab") as other,
    ):
        await client.create_topic("t")
        keys = set()
        for number in range(1, 4):
            assert await other.publish("t", "x") == number
            await until(lambda: linked(fabric, "farm", "lab"))
            record = record_of(fabric, "farm", "lab")
            assert record is not None
            keys.add(record.key)

            async def is_gone() -> bool:
                ends = await link_of(other, "farm"), await link_of(client, "lab")
                return ends == (None, None)

            await until(is_gone)
            assert record_of(fabric, "farm", "lab") is None
            assert not part_of(fabric, "lab").links.up - {"hub"}
        assert len(keys) == 3  # an old key opens nothing
        assert linked(fabric, "hub", "farm")
        assert linked(fabric, "hub", "lab")


async def test_a_link_in_use_is_not_idle() -> None:
    """A durable copy and a busy publisher both keep it."""
    async with (
        LocalFabric(SITES, link_idle=0.5) as fabric,
        fabric.connect("farm") as client,
        fabric.connect("lab") as other,
    ):
        await client.create_topic("t")
        part = part_of(fabric, "lab")
        lost: list[str] = []
        async with other.subscribe("t", from_index=1) as events:
            await until(lambda: linked(fabric, "farm", "lab"))
            part.store.watch(
                "link.farm.lab", lambda key, value: lost.append(key) if value is None else None
            )
            seen = 0
            stop = time.monotonic() + 3
            while time.monotonic() < stop:
                await client.publish("t", "x")
                async for _ in events:
                    seen += 1
                    break
        assert seen > 1
        assert lost == []


async def test_a_link_comes_back_after_either_engine_died(fabric: LocalFabric) -> None:
    async with fabric.connect("farm") as client, fabric.connect("lab") as other:
        await client.create_topic("t")
        assert await other.publish("t", "0") == 1
        await until(lambda: linked(fabric, "farm", "lab"))
        for number, name in enumerate(["farm", "lab", "hub"], 2):
            fabric[name].kill_engine()
            assert await other.publish("t", "x") == number
        for one, another in (("farm", "lab"), ("hub", "farm"), ("hub", "lab")):
            await until(lambda pair=(one, another): linked(fabric, *pair))  # type: ignore[misc]


async def test_what_follows_a_link_goes_on_when_it_was_lost_for_a_moment(
    fabric: LocalFabric,
) -> None:
    """The engine that dials is back before its silence is noticed; that it was away must be, or
    the copies beyond wait until the engine misses their heartbeats."""
    gone: list[str] = []
    part = part_of(fabric, "lab")
    await until(lambda: linked(fabric, "hub", "lab"))
    part.links._watcher = _Watching(part.links._watcher, gone)
    fabric["hub"].kill_engine()
    await until(lambda: fabric.agent("hub").engine.restarts == 1)
    await until(lambda: linked(fabric, "hub", "lab"))
    await part_of(fabric, "hub").store.put("x.a", 1)
    await until(lambda: part.store.get("x.a", int) == 1)
    assert gone == ["hub"]


class _Watching:
    """Notes which links were lost, and passes everything on."""

    def __init__(self, watcher: Watcher, gone: list[str]) -> None:
        self._watcher = watcher
        self._gone = gone

    def on_link(self, peer: str, is_up: bool, how: str) -> None:
        if not is_up:
            self._gone.append(peer)
        self._watcher.on_link(peer, is_up, how)

    def on_tide(self, folder: str, number: int) -> None:
        self._watcher.on_tide(folder, number)

    def on_end(self, peer: str) -> None:
        self._watcher.on_end(peer)


async def test_a_starting_site_is_not_troubled_by_beats_that_come_early(
    fabric: LocalFabric, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    for _ in range(5):
        await fabric.stop("lab")
        await fabric.start("lab")
        await until(lambda: linked(fabric, "hub", "lab"))
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_coordination_site_whose_link_is_down_is_not_up(fabric: LocalFabric) -> None:
    """Its presence in the store says nothing: it is the one that would take it away."""
    await fabric.stop("hub")
    await until(lambda: "hub" not in part_of(fabric, "farm").links.up)
    async with fabric.connect("farm") as client:
        sites = {site.site: site.up for site in await client.sites()}
    assert sites["hub"] is False


# Behind a NAT


@pytest.fixture
async def hidden() -> AsyncIterator[LocalFabric]:
    """Two sites that only dial out."""
    each: dict[str, dict[str, Any]] = {name: {"link_port": None} for name in ("farm", "lab")}
    async with LocalFabric(SITES, each=each) as fabric:
        yield fabric


async def test_a_site_without_a_link_port_dials_out_only(hidden: LocalFabric) -> None:
    await until(lambda: linked(hidden, "hub", "farm") and linked(hidden, "hub", "lab"))
    process = psutil.Process(hidden.agent("farm").engine.pid)
    listening = {c.laddr.port for c in process.net_connections() if c.status == "LISTEN"}
    assert listening == {hidden.agent("farm").ports.client}
    async with hidden.connect("farm") as client, hidden.connect("hub") as other:
        await client.create_topic("t")
        assert await other.publish("t", "x") == 1
        assert await events_of(other, "t") == [b"x"]
        assert {site.site: site.link for site in await client.sites()}["farm"] is None


async def test_a_site_that_only_dials_out_is_reached_by_being_dialled_from() -> None:
    """A site that takes links is dialled by one that does not, whatever their names and tiers."""
    for name in ("farm", "lab"):
        async with LocalFabric(SITES, each={name: {"link_port": None, "tier": "hub"}}) as fabric:
            async with fabric.connect("farm") as client, fabric.connect("lab") as other:
                await client.create_topic("t")
                assert await other.publish("t", "x") == 1
            record = record_of(fabric, "farm", "lab")
            assert record is not None
            assert record.dialer == name


async def test_two_sites_that_only_dial_out_meet_at_the_hub(hidden: LocalFabric) -> None:
    """There can be no link between them, and yet one reads what the other has."""
    async with hidden.connect("farm") as client, hidden.connect("lab") as other:
        await client.create_topic("t")
        for number in range(1, 4):
            await client.publish("t", str(number))
        async with other.subscribe("t", from_index=1) as events:
            seen: list[bytes] = []
            async with asyncio.timeout(40):
                async for event in events:
                    seen.append(event.data)
                    if len(seen) == 3:
                        await client.publish("t", "4")
                    elif len(seen) == 4:
                        break
        assert seen == [b"1", b"2", b"3", b"4"]
        assert record_of(hidden, "farm", "lab") is None
        assert not part_of(hidden, "lab").links.can_reach("farm")


async def test_a_site_that_only_dials_out_publishes_to_another_such(hidden: LocalFabric) -> None:
    """Its home cannot be asked, and whoever publishes is told so; the outbox goes by the hub."""
    async with hidden.connect("farm") as client, hidden.connect("lab") as other:
        await client.create_topic("t")
        with refused(errors.FabricError, "lab", "farm", "only dial out"):
            await other.publish("t", "lost")
        assert await other.publish("t", "x", ack="outbox") == 0

        async def has_arrived() -> bool:
            return await events_of(client, "t") == [b"x"]

        await until(has_arrived, 60)


async def test_a_replica_that_could_not_copy_from_its_home_is_refused(hidden: LocalFabric) -> None:
    """Both only dial out. With a home that takes links, both may be members."""
    apart = (errors.FabricError, "farm", "lab", "only dial out")
    async with hidden.connect("farm", user="admin") as client:
        with refused(*apart):
            await client.create_topic("t", replicas=1, spread="lab")
        with refused(errors.BadSetting, "can be linked with farm; there are 2"):
            await client.create_topic("t", replicas=2)
        await client.create_topic("t", replicas=1)
        placed = await client.topic("t")
        assert (placed.home, placed.replicas) == ("farm", ("hub",))
        with refused(*apart):
            await client.move_topic("t", "lab")
        with refused(*apart):
            await client.move_topic("t", "hub", replicas=["farm", "lab"])
        await client.move_topic("t", "hub")
        await client.move_topic("t", "hub", replicas=["farm", "lab"])
        assert await client.publish("t", "x", ack="quorum") == 1
        with refused(*apart):
            await client.move_topic("t", "farm")
        await client.move_topic("t", "hub", replicas=[])
        await client.move_topic("t", "lab")  # by way of the hub
        assert (await client.topic("t")).home == "lab"


# Black holes


@needs_wan
async def test_a_black_hole_is_noticed_by_both_ends_and_heals_by_itself() -> None:
    """No connection is closed: the engines would go on to think that all is well."""
    async with WanFabric(["hub", "farm"], delay=0.01) as fabric:

        async def is_linked(name: str, peer: str) -> bool:
            async def look(site: LocalSite) -> bool:
                assert site.site.fabric is not None
                return peer in site.site.fabric.links.up

            return await fabric.run(name, look)

        async def has_connection(name: str, peer: str) -> bool:
            """Whether the engine has an open connection to the peer's."""
            address = fabric.wan.address(peer)

            async def look(site: LocalSite) -> bool:
                # A thread would be asked for by its own network; this one is the site's.
                table = Path(f"/proc/{site.site.engine.pid}/net/tcp").read_text()
                return f" {_hexadecimal(address)}:" in table

            return await fabric.run(name, look)

        pairs = [("hub", "farm"), ("farm", "hub")]
        for _ in range(2):
            for pair in pairs:
                await until(_is(is_linked, *pair))
            await fabric.wan.cut("farm")
            began = time.monotonic()
            noticed: dict[str, float] = {}
            open_then: dict[str, bool] = {}

            async def notice(name: str, peer: str) -> None:
                async def is_lost() -> bool:
                    return not await is_linked(name, peer)

                await until(is_lost)
                noticed[name] = time.monotonic() - began  # noqa: B023
                open_then[name] = await has_connection(name, peer)  # noqa: B023

            await asyncio.gather(*(notice(*pair) for pair in pairs))
            print({name: f"noticed after {seconds:.2f} s" for name, seconds in noticed.items()})
            assert open_then == {"hub": True, "farm": True}
            await fabric.wan.heal("farm")
            healed = time.monotonic()
            for pair in pairs:
                await until(_is(is_linked, *pair))
            print(f"healed after {time.monotonic() - healed:.2f} s")


@needs_wan
async def test_a_link_heals_after_an_outage_that_outlasts_its_connection() -> None:
    """After some silences in a row each end closes the connection and dials anew."""
    async with WanFabric(["hub", "farm"], silence=0.4, beat=0.1) as fabric:

        async def create(site: LocalSite) -> None:
            async with site.connect() as client:
                await client.create_topic("t")

        async def publish(site: LocalSite) -> int:
            async with site.connect() as client:
                return await client.publish("t", "x")

        await fabric.run("hub", create)
        assert await fabric.run("farm", publish) == 1
        await fabric.wan.cut("farm")

        async def is_closed() -> bool:
            async def look(site: LocalSite) -> bool:
                async with site.connect() as client:
                    links = await client.links()
                assert site.site.fabric is not None
                return not links[0].up and links[0].in_msgs == 0

            return await fabric.run("hub", look) and await fabric.run("farm", look)

        await until(is_closed)
        await fabric.wan.heal("farm")
        assert await fabric.run("farm", publish) == 2


@needs_wan
async def test_a_cut_between_two_sites_leaves_their_other_links_alone() -> None:
    async with WanFabric(SITES, delay=0.01) as fabric:

        async def create(site: LocalSite) -> None:
            async with site.connect() as client:
                await client.create_topic("t")

        async def publish(site: LocalSite) -> int:
            async with site.connect() as client:
                return await client.publish("t", "x")

        def sees(name: str, *peers: str) -> Any:
            async def is_so() -> bool:
                async def look(site: LocalSite) -> bool:
                    assert site.site.fabric is not None
                    return site.site.fabric.links.up == set(peers)

                return await fabric.run(name, look)

            return is_so

        await fabric.run("farm", create)
        assert await fabric.run("lab", publish) == 1
        await until(sees("lab", "hub", "farm"))
        await fabric.wan.cut("farm", "lab")
        await until(sees("lab", "hub"))
        await until(sees("farm", "hub"))
        await until(sees("hub", "farm", "lab"))
        await fabric.wan.heal("farm", "lab")
        assert await fabric.run("lab", publish) == 2


def _is(condition: Callable[..., Any], *arguments: str) -> Callable[[], Any]:
    return lambda: condition(*arguments)


def _hexadecimal(address: str) -> str:
    """An IPv4 address as /proc writes it."""
    return "".join(f"{int(part):02X}" for part in reversed(address.split(".")))


# What may cross


def conf_of(fabric: LocalFabric, name: str) -> dict[str, Any]:
    conf: dict[str, Any] = json.loads((fabric.root / name / "engine.json").read_text())
    return conf


async def test_the_engine_is_told_what_a_peer_may(fabric: LocalFabric) -> None:
    def rights() -> dict[str, Any]:
        part = fabric.agent("hub").fabric
        assert part is not None
        # What is on disk is locked: nobody is let in before the site has settled.
        users = conf_of(fabric, "hub")["accounts"]["SKERRY"]["users"]
        assert not any("nkey" in user for user in users)
        write_conf(part._folder, part._settings, part._ports, part.links.wiring(locked=False))
        users = conf_of(fabric, "hub")["accounts"]["SKERRY"]["users"]
        return {user["nkey"]: user["permissions"] for user in users if "nkey" in user}

    found = rights()
    for peer in ("farm", "lab"):
        record = record_of(fabric, "hub", peer)
        assert record is not None
        given = found[record.key]
        assert given == link_rights("hub", peer)
        other = "lab" if peer == "farm" else "farm"
        assert given["publish"]["deny"] == ["$MQTT.>"]
        assert given["subscribe"]["deny"] == ["$MQTT.>", f"s.{peer}.*"]
        for way, end in (("publish", "hub"), ("subscribe", peer)):
            allowed = given[way]["allow"]
            assert f"s.{end}.>" in allowed
            # Nothing of a third site, nothing that only an administrator may, nothing wholesale.
            words = [subject.split(".") for subject in allowed]
            assert not [word for word in words if other in word]
            assert not [word for word in words if word[0] in (">", "*")]
            assert not {"_sk.hub.admin.>", "_sk.hub.>", "$JS.API.>", "$KV.>", "t.>"} & set(allowed)
            assert not [s for s in allowed if "STREAM.DELETE" in s or "STREAM.CREATE" in s]


async def test_beats_of_a_third_site_do_not_cross() -> None:
    """A site that could send them would keep one alive that is dead."""
    rights = link_rights("hub", "farm")
    assert [s for s in rights["publish"]["allow"] if ".beat." in s] == ["_sk.hub.beat.farm"]
    assert [s for s in rights["subscribe"]["allow"] if ".beat." in s] == ["_sk.farm.beat.hub"]


class Rogue:
    """An engine of somebody who has the key of site `farm`, and no rules of its own."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def is_heard(self, subject: str) -> bool:
        """Whether anybody beyond the link answers, or could."""
        with contextlib.suppress(TimeoutError):
            reply = await self.connection.request(subject, b"{}", timeout=1.0)
            return reply.status != NO_RESPONDERS
        return True


@contextlib.asynccontextmanager
async def rogue(folder: Path, port: int | None, seed: str) -> AsyncIterator[Rogue]:
    folder.mkdir()
    conf = {
        "server_name": "farm",
        "jetstream": {"store_dir": str(folder / "store"), "domain": "farm"},
        "leafnodes": {
            "reconnect": "200ms",
            "remotes": [{"urls": [f"nats-leaf://127.0.0.1:{port}"], "nkey": seed}],
        },
    }
    async with nats_server(folder, **conf) as own:
        address = Address(site="farm", host="127.0.0.1", port=own)
        connection = await Connection.open(address, ClientSettings(timeout=20), "rogue")
        try:
            yield Rogue(connection)
        finally:
            await connection.close()


def seed_of(fabric: LocalFabric, name: str, peer: str = "hub") -> str:
    membership = Membership.load(fabric.root / name)
    assert membership is not None
    return membership.seeds[peer]


async def test_a_peer_reaches_only_what_is_addressed_to_the_other_end(
    fabric: LocalFabric, tmp_path: Path
) -> None:
    async with fabric.connect("hub") as client, fabric.connect("lab") as other:
        await client.create_topic("victim")
        await other.create_topic("private")
        await client.publish("victim", "x")
        await other.publish("private", "x")
        seed = seed_of(fabric, "farm")
        await fabric.stop("farm")
        async with rogue(tmp_path / "rogue", fabric.agent("hub").ports.link, seed) as peer:
            await until(lambda: peer.is_heard("_sk.hub.open.status"))  # so it is linked
            for subject in (
                "_sk.hub.admin.topic.delete", "_sk.hub.admin.fabric.token", "_sk.hub.join",
                "_sk.lab.open.status", "_sk.lab.peer.state",
                "$JS.hub.API.STREAM.DELETE.t~victim", "$JS.hub.API.STREAM.PURGE.t~victim",
                "$JS.hub.API.STREAM.UPDATE.t~victim", "$JS.hub.API.STREAM.NAMES",
                "$JS.hub.API.STREAM.MSG.DELETE.t~victim", "$JS.hub.API.STREAM.CREATE.x",
                "$JS.lab.API.STREAM.INFO.t~private", "$JS.lab.API.DIRECT.GET.t~private",
                "s.lab.1.private", "o.hub.victim", "o.lab.private", "$KV.skerry.fabric",
                "_INBOX_sk.lab.sdk.x", "$SYS.REQ.SERVER.PING",
            ):  # fmt: skip
                assert not await peer.is_heard(subject), subject
        assert await events_of(client, "victim") == [b"x"]
        assert await events_of(other, "private") == [b"x"]


async def test_a_peer_hears_only_what_is_addressed_to_it(
    fabric: LocalFabric, tmp_path: Path
) -> None:
    seed = seed_of(fabric, "farm")
    await fabric.stop("farm")
    heard: list[tuple[str, bytes]] = []
    async with (
        fabric.connect("hub") as client,
        fabric.connect("lab") as other,
        rogue(tmp_path / "rogue", fabric.agent("hub").ports.link, seed) as peer,
    ):
        for subject in (
            ">",
            "s.>",
            "t.>",
            "o.>",
            "_sk.>",
            "_INBOX.>",
            "$KV.>",
            "$JS.M.>",
            "$SYS.>",
        ):
            peer.connection.subscribe(
                subject, lambda subject, reply, head, data: heard.append((subject.decode(), data))
            )
        await until(lambda: peer.is_heard("_sk.hub.open.status"))
        await client.create_topic("t")
        assert await client.publish("t", b"the secret of the hub") == 1
        assert await other.publish("t", b"the secret of the lab") == 2
        assert len(await events_of(other, "t")) == 2
        assert await peer.is_heard("_sk.hub.open.status")  # answered behind all that
        assert [entry for entry in heard if b"secret" in entry[1]] == []
        from_elsewhere = {
            subject
            for subject, _ in heard
            if not subject.startswith(
                ("_INBOX_sk.farm.", "_sk.farm.", "_sk.hub.open.status", "$JS.")
            )
        }
        assert from_elsewhere == set()


async def test_a_peer_cannot_speak_for_another(fabric: LocalFabric, tmp_path: Path) -> None:
    """Its beats are its own."""
    seed = seed_of(fabric, "farm")
    await fabric.stop("farm")
    await fabric.stop("lab")
    await until(lambda: part_of(fabric, "hub").links.up == set())
    async with rogue(tmp_path / "rogue", fabric.agent("hub").ports.link, seed) as peer:
        await until(lambda: peer.is_heard("_sk.hub.open.status"))
        peer.connection.publish("_sk.hub.beat.lab", b"[1.0,0.0,0.0]")
        peer.connection.publish("_sk.hub.beat.farm", b"[1.0,0.0,0.0]")
        assert await peer.is_heard("_sk.hub.open.status")
        assert part_of(fabric, "hub").links.up == {"farm"}


async def test_a_peer_does_not_misdirect_the_agents_answers(
    fabric: LocalFabric, tmp_path: Path
) -> None:
    seed = seed_of(fabric, "farm")
    await fabric.stop("farm")
    async with (
        fabric.connect("hub") as client,
        rogue(tmp_path / "rogue", fabric.agent("hub").ports.link, seed) as peer,
    ):
        await client.create_topic("victim")
        await until(lambda: peer.is_heard("_sk.hub.open.status"))
        peer.connection.publish("_sk.hub.open.status", b"{}", reply="$KV.skerry.site.evil")
        peer.connection.publish("_sk.hub.open.status", b"{}", reply="o.hub.victim")
        assert await peer.is_heard("_sk.hub.open.status")
        assert [site.site for site in await client.sites()] == SITES_BY_NAME
        assert await events_of(client, "victim") == []


SITES_BY_NAME = sorted(SITES)


# Leaving


async def test_a_site_with_topics_is_not_removed(fabric: LocalFabric) -> None:
    async with fabric.connect("hub", "admin") as admin, fabric.connect("farm") as client:
        await client.create_topic("t")
        await client.publish("t", "x")
        with refused(errors.FabricError, "farm", "1 topics", "t"):
            await admin.remove_site("farm")
        with refused(errors.BadSetting, "coordination site"):
            await admin.remove_site("hub")
        with refused(errors.UnknownSite, "'barn'"):
            await admin.remove_site("barn")
        assert linked(fabric, "hub", "farm")
        assert await client.publish("t", "y") == 2


async def test_a_drained_site_is_removed_and_its_key_is_worthless(
    fabric: LocalFabric, tmp_path: Path
) -> None:
    async with fabric.connect("hub", "admin") as admin:
        async with fabric.connect("farm") as client, fabric.connect("lab") as other:
            await client.create_topic("t")
            assert await other.publish("t", "x") == 1
            await until(lambda: linked(fabric, "farm", "lab"))
        assert await admin.drain_site("farm") == ["t"]
        assert (await admin.topic("t")).home != "farm"
        seed = seed_of(fabric, "farm")
        key = part_of(fabric, "hub").store.get(link_key("hub", "farm"), LinkRecord)
        assert key is not None
        await admin.remove_site("farm")
        await until(lambda: "farm" not in part_of(fabric, "hub").links.up)
        await until(lambda: "hub" not in part_of(fabric, "farm").links.up)
        await until(lambda: "farm" not in part_of(fabric, "lab").links.up)
        assert [site.site for site in await admin.sites()] == ["hub", "lab"]
        # A write of the link may have been under way from a site that did not know yet.
        await part_of(fabric, "hub").store.put(link_key("hub", "farm"), key)
        await until(lambda: key.key not in (fabric.root / "hub" / "engine.json").read_text())
        await fabric.stop("farm")
        log = fabric.root / "hub" / "engine.log"
        before = log.stat().st_size
        async with rogue(tmp_path / "rogue", fabric.agent("hub").ports.link, seed) as peer:
            await until(lambda: b"authentication error" in log.read_bytes()[before:])
            assert not await peer.is_heard("_sk.hub.open.status")
        with refused(errors.NotInFabric, "farm", "removed"):
            await fabric.start("farm")
        assert "farm" not in part_of(fabric, "hub").links.up
        assert [site.site for site in await admin.sites()] == ["hub", "lab"]
        assert await events_of(admin, "t") == [b"x"]


async def test_a_removed_site_does_not_come_back_with_the_token_that_it_had(
    fabric: LocalFabric,
) -> None:
    """A token lets the same site in again while its answer may be lost; not after its removal."""
    async with fabric.connect("hub", "admin") as admin:
        token = await admin.join_token()
        key = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
        await ask_to_join(token, name="barn", key=key)
        await admin.remove_site("barn")
        with refused(errors.JoinRefused, "barn"):
            await ask_to_join(token, name="barn", key=key)
        assert [site.site for site in await admin.sites()] == SITES_BY_NAME


async def test_the_name_of_a_removed_site_can_be_used_again(fabric: LocalFabric) -> None:
    async with fabric.connect("hub", "admin") as admin:
        await admin.remove_site("farm")
        async with (
            LocalSite(join=await admin.join_token(), site="farm", link_port=0) as farm,
            farm.connect() as client,
        ):
            await client.create_topic("t")
            assert await admin.publish("t", "x") == 1
            assert [site.site for site in await admin.sites()] == SITES_BY_NAME


# Side by side


async def test_two_fabrics_do_not_mix() -> None:
    """The same names, the same machine, and nothing in common."""
    async with LocalFabric(["hub", "farm"]) as one, LocalFabric(["hub", "farm"]) as another:
        for fabric, text in ((one, b"one"), (another, b"another")):
            async with fabric.connect("farm") as client, fabric.connect("hub") as other:
                await client.create_topic("t")
                assert await other.publish("t", text) == 1
        for fabric, text in ((one, b"one"), (another, b"another")):
            async with fabric.connect("hub", "admin") as client:
                assert await events_of(client, "t") == [text]
                assert [site.site for site in await client.sites()] == ["farm", "hub"]
        async with one.connect("hub", "admin") as admin:
            token = await admin.join_token()
        given = part_of(another, "hub").membership
        assert given.id != part_of(one, "hub").membership.id
        async with LocalSite(join=token, site="lab", link_port=0):
            async with another.connect("hub") as client:
                assert [site.site for site in await client.sites()] == ["farm", "hub"]
            async with one.connect("hub") as client:
                assert [site.site for site in await client.sites()] == ["farm", "hub", "lab"]


async def test_a_site_of_one_fabric_is_not_let_into_another() -> None:
    """Neither by its key nor by the secret of its fabric."""
    async with LocalFabric(["hub", "farm"]) as one, LocalFabric(["hub"]) as another:
        seed = seed_of(one, "farm")
        port = another.agent("hub").ports.link
        log = another.root / "hub" / "engine.log"
        async with rogue(one.root / "rogue", port, seed) as peer:
            await until(lambda: b"authentication error" in log.read_bytes())
            assert not await peer.is_heard("_sk.hub.open.status")
        assert part_of(another, "hub").links.up == set()
