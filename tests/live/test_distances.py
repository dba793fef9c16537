"""Sites find out how far apart they are: on an emulated WAN, and what goes wrong on the way."""

from __future__ import annotations

import asyncio
import itertools
import math
import socket

import msgspec
import pytest

import skerry.fabric.distances
from skerry import Client
from skerry.coords import Coordinate, between, pack
from skerry.coords.coordinate import DIMENSIONS, is_sound
from skerry.engine.handshake import handshake
from skerry.errors import UnknownSite
from skerry.fabric.distances import Distances
from skerry.model.control import RttInfo, RttRequest
from skerry.model.fabric import Presence, up_key
from skerry.site import Site
from skerry.testing import LocalFabric, LocalSite, Wan, WanFabric
from tests.conftest import until

needs_wan = pytest.mark.skipif(
    Wan.unavailable() is not None, reason=f"no emulated WAN: {Wan.unavailable()}"
)

PLACES = {
    "hub": (0.0, 0.0, 2.0),
    "farm": (40.0, 0.0, 4.0),
    "lab": (0.0, 60.0, 1.0),
    "ship": (60.0, 50.0, 10.0),
}
"""Where sites are, and their access lines, in milliseconds of round-trip time."""


def truth(one: str, other: str, places: dict[str, tuple[float, float, float]]) -> float:
    """Milliseconds there and back."""
    here, there = places[one], places[other]
    return math.dist(here[:2], there[:2]) + here[2] + there[2]


def agree(found: list[RttInfo], places: dict[str, tuple[float, float, float]]) -> bool:
    """Whether all estimates are right within 5 % or 3.5 ms."""

    def is_right(pair: RttInfo) -> bool:
        right = truth(pair.site, pair.peer, places)
        estimate = pair.estimate_ms
        return estimate is not None and abs(estimate - right) <= max(0.05 * right, 3.5)

    return len(found) == math.comb(len(places), 2) and all(map(is_right, found))


def distances(site: Site) -> Distances:
    """What a site knows of distances."""
    assert site.fabric is not None
    return site.fabric.distances


async def ask(site: LocalSite) -> list[RttInfo]:
    """What a client of the site is told."""
    async with site.connect() as client:
        return await client.rtt()


@needs_wan
async def test_estimates_agree_with_the_network_and_follow_a_site_that_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With samples five times as often as usual, so that it takes a fifth of the time."""
    for name in ("LINK_EVERY", "PROBE_FIRST", "PROBE_CALM", "TELL_SOON"):
        usual = getattr(skerry.fabric.distances, name)
        monkeypatch.setattr(skerry.fabric.distances, name, usual / 5)
    places = dict(PLACES)
    async with WanFabric(list(PLACES)) as fabric:
        for one, other in itertools.combinations(PLACES, 2):
            await fabric.wan.set(one, other, delay=truth(one, other, places) / 2000)

        async def estimated() -> bool:
            return agree(await fabric.run("ship", ask), places)

        await until(estimated, 90)
        found = {(p.site, p.peer): p for p in await fabric.run("farm", ask)}
        assert found["farm", "lab"].measured_by in ("farm", "lab")
        for name in PLACES:
            links = fabric.sites[name].site.fabric
            assert links is not None
            assert links.links.up == (set(PLACES) - {"hub"} if name == "hub" else {"hub"})

        places["lab"] = (20.0, -30.0, 3.0)
        moved = {peer: truth("lab", peer, places) / 2000 for peer in PLACES if peer != "lab"}
        await fabric.wan.move("lab", moved)
        await until(estimated, 90)


async def test_all_know_where_all_are_and_a_client_is_behind_its_site() -> None:
    async with LocalFabric(["hub", "farm", "lab"]) as fabric:
        for name in fabric.names:
            async with fabric.connect(name) as client:

                async def complete(client: Client = client) -> bool:
                    found = await client.rtt()
                    return all(p.estimate_ms is not None and p.measured_ms for p in found)

                await until(complete, 60)
                pairs = [(pair.site, pair.peer) for pair in await client.rtt()]
                assert pairs == [("farm", "hub"), ("farm", "lab"), ("hub", "lab")]
        async with fabric.connect("farm") as client:
            (pair,) = await client.rtt("lab", "farm")
            assert (pair.site, pair.peer) == ("farm", "lab")
            assert [p.peer for p in await client.rtt(origin="lab")] == ["farm", "hub"]
            with pytest.raises(UnknownSite, match="nowhere") as caught:
                await client.rtt("farm", "nowhere")
            assert "farm, hub, lab" in caught.value.advice
            site = distances(fabric.agent("farm")).coordinate
            place = await client.coordinate()
            assert place.height > site.height
            hub = distances(fabric.agent("hub")).coordinate
            assert between(place, hub) > 0


async def test_two_sites_that_only_dial_out_are_as_far_as_the_way_through_the_hub() -> None:
    async with LocalFabric(
        ["hub", "farm", "lab"], each={"farm": {"link_port": None}, "lab": {"link_port": None}}
    ) as fabric:
        found = distances(fabric.agent("farm"))
        await until(lambda: "lab" in found.position.peers, 60)
        links = fabric.agent("farm").fabric
        assert links is not None
        assert found.position.peers["lab"].rtt >= min(links.links.quiet_rtt.values())


async def test_a_site_that_lies_is_refused_or_harmless() -> None:
    async with LocalFabric(["hub", "farm", "lab"]) as fabric:
        farm = distances(fabric.agent("farm"))
        part = fabric.agent("hub").fabric
        assert part is not None
        await until(lambda: len(farm.position.peers) == 2, 60)
        presence = part.store.get(up_key("lab"), Presence)
        assert presence is not None

        async def tell(coordinate: str, rtt: dict[str, float]) -> None:
            lie = msgspec.structs.replace(presence, coordinate=coordinate, rtt=rtt)
            farm._on_presence(up_key("lab"), msgspec.json.encode(lie))

        refused = farm.position.counts.bad_coordinate
        nan = Coordinate((math.nan,) * DIMENSIONS)
        for lie in (pack(nan), pack(Coordinate(height=1e6)), "what?", "A" * 60):
            await tell(lie, {"farm": -1.0, "hub": 1e9})
        assert farm.position.counts.bad_coordinate == refused + 4
        (pair,) = farm.rtt(RttRequest(["hub", "lab"]))
        assert pair.measured_ms is None or pair.measured_by == "hub"
        await tell(pack(Coordinate((9.0,) * DIMENSIONS, 0.0, 0.0)), {})
        for _ in range(50):
            farm._observe("lab", 0.0005)
            farm._sample_link()
        assert is_sound(farm.position.coordinate)
        hub = distances(fabric.agent("hub")).position.coordinate
        assert between(farm.position.coordinate, hub) < 1.0
        assert farm.position.counts.doubted > 0


async def test_a_site_that_returns_is_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skerry.fabric.fabric.PRESENCE", 0.4)
    async with LocalFabric(["hub", "farm", "lab"]) as fabric:
        farm = distances(fabric.agent("farm"))
        await until(lambda: "lab" in farm.position.peers, 60)
        before = farm.position.peers["lab"]
        where = farm._heard["lab"].known.coordinate
        await fabric.crash("lab")
        await until(lambda: not farm._heard["lab"].is_there, 60)
        assert where is not None
        assert farm._heard["lab"].known.coordinate is not None  # the best guess
        await fabric.start("lab")
        await until(lambda: farm._heard["lab"].is_there, 60)
        await until(lambda: farm.position.peers.get("lab", before) is not before, 60)
        async with fabric.connect("hub", "admin") as admin:
            await fabric.stop("lab")
            await admin.drain_site("lab")
            await admin.remove_site("lab")
        await until(lambda: "lab" not in farm._heard, 60)
        assert "lab" not in farm.position.peers


async def test_a_way_that_takes_longer_is_measured_again_until_it_is_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with LocalFabric(["hub", "farm", "lab"]) as fabric:
        farm = distances(fabric.agent("farm"))
        await until(lambda: "lab" in farm._heard and "hub" in farm.position.peers, 60)
        await farm.close()
        farm.position.forget("lab")
        farm._surprise = None

        async def probe(rtt: float) -> None:
            async def measured(peer: str) -> float:
                return rtt

            monkeypatch.setattr(farm, "_measure", measured)
            await farm._probe()

        for _ in range(5):
            await probe(0.02)
            assert farm._surprise is None
        await probe(0.9)
        assert farm._surprise == "lab"
        await probe(0.02)  # it was a spike
        assert farm._surprise is None
        for _ in range(2):  # the third finds one low sample left in the filter, and a spike
            await probe(0.08)
            assert farm._surprise == "lab"
        await probe(0.08)
        assert farm._surprise is None
        assert farm.position.peers["lab"].rtt == 0.08


async def test_a_handshake_takes_a_round_trip_or_nobody_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        taken = await handshake(f"127.0.0.1:{port}", 5.0)
        assert taken is not None
        assert 0 < taken < 5
    assert await handshake(f"127.0.0.1:{port}", 5.0) is None
    assert await handshake("127.0.0.1:no-port", 5.0) is None
    assert await handshake("[::1", 5.0) is None
    with socket.socket() as full:  # its queue of one takes no more, and the rest hears nothing
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        held = [socket.socket() for _ in range(4)]
        try:
            for one in held:
                one.setblocking(False)
                one.connect_ex(address)
            await asyncio.sleep(0)
            assert await handshake(f"{address[0]}:{address[1]}", 0.2) is None
        finally:
            for one in held:
                one.close()
