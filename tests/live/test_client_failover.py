"""A client of several sites: it goes on at the next when its own fails, and returns."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import pytest

import skerry
from skerry import Client
from skerry.config import ClientSettings
from skerry.engine.address import Address
from skerry.errors import AccessDenied, BadSetting, Unavailable
from skerry.log.follow import Subscription
from skerry.model.topic import Ack
from skerry.testing import LocalFabric, LocalSite, WanFabric
from tests.conftest import until
from tests.live.faults import unused_port
from tests.live.test_replicas import has, log_at, needs_wan, numbers, publish, take

SITES = ("hub", "farm", "lab")
SETTINGS = ClientSettings(return_every=0.2)


@pytest.fixture
async def fabric() -> AsyncIterator[LocalFabric]:
    """Three sites; the first coordinates."""
    async with LocalFabric(SITES) as fabric:
        yield fabric


def address(site: LocalSite) -> Address:
    return Address.load(site.data / "credentials" / "sdk.json")


@contextlib.asynccontextmanager
async def roaming(
    fabric: LocalFabric, *sites: str, settings: ClientSettings = SETTINGS
) -> AsyncIterator[tuple[Client, str, str]]:
    """A client of two sites, the site that it uses, and the other. On one machine either may
    answer first."""
    async with skerry.connect([fabric[site].data for site in sites], settings=settings) as client:
        own = client.site
        (other,) = set(sites) - {own}
        yield client, own, other


async def is_at(client: Client, site: str) -> None:
    """Wait until a client is connected to a site."""
    await until(lambda: client.site == site and client._open.connection.is_up, 40)


# Which site it uses


async def test_a_client_uses_the_site_that_is_there(fabric: LocalFabric) -> None:
    nobody = Address(site="farm", host="127.0.0.1", port=unused_port(), user="sdk", password="x")
    async with skerry.connect([nobody, address(fabric["lab"])]) as client:
        assert client.site == "lab"
        await client.create_topic("t")
        assert await client.publish("t", "x") == 1


@needs_wan
async def test_a_client_uses_the_nearest_site() -> None:
    """Whatever the order in which they are given."""
    async with WanFabric(SITES, delay=0.03) as fabric:
        await fabric.wan.move("lab", {"farm": 0.001})
        await fabric.wan.move("hub", {"farm": 0.2})
        near, far = (address(fabric.sites[name]) for name in ("lab", "hub"))

        async def look(_: LocalSite) -> list[str]:
            found = []
            for addresses in ([near, far], [far, near]):
                async with skerry.connect(addresses) as client:
                    found.append(client.site)
            return found

        assert await fabric.run("farm", look) == ["lab", "lab"]


async def test_a_client_of_no_site_or_of_sites_that_are_away_is_told_so() -> None:
    with pytest.raises(BadSetting):
        skerry.connect([])
    nobody = [
        Address(site=site, host="127.0.0.1", port=unused_port(), user="sdk", password="x")
        for site in ("farm", "lab")
    ]
    with pytest.raises(Unavailable):
        async with skerry.connect(nobody, timeout=1):
            pass


async def test_a_site_that_refuses_the_credentials_is_passed_over(fabric: LocalFabric) -> None:
    good = address(fabric["lab"])
    farm = address(fabric["farm"])
    bad = Address(site="farm", host=farm.host, port=farm.port, user="sdk", password="wrong")
    async with skerry.connect([bad, good]) as client:
        assert client.site == "lab"
        await client.create_topic("t")
        assert await client.publish("t", "x") == 1
    with pytest.raises((AccessDenied, Unavailable)):
        async with skerry.connect([bad, bad], timeout=1):
            pass


# Publishing


@pytest.mark.parametrize("ack", ["home", "quorum"])
async def test_publish_goes_on_at_the_next_site_and_returns(fabric: LocalFabric, ack: Ack) -> None:
    async with roaming(fabric, "farm", "lab") as (client, own, other):
        await client.create_topic("t", home="hub", replicas=1, spread=other)
        sent = 0

        async def send(count: int) -> None:
            nonlocal sent
            await publish(client, "t", numbers(count, sent), ack=ack)
            sent += count

        await send(20)
        await fabric.crash(own)
        await send(20)
        assert client.site == other
        await fabric.start(own)
        await is_at(client, own)
        await send(20)
        log = await log_at(fabric["hub"], "t")
        assert [data.decode() for _, data in log] == numbers(60)


async def test_at_level_outbox_a_publish_waits_for_its_own_site(fabric: LocalFabric) -> None:
    """What is before it waits in the outbox there, and another outbox could overtake."""
    async with roaming(fabric, "farm", "lab") as (client, own, other):
        await client.create_topic("t", home="hub")
        await publish(client, "t", numbers(20), ack="outbox")
        await fabric.crash(own)
        waiting = asyncio.create_task(client.publish("t", "20", ack="outbox"))
        await is_at(client, other)
        await fabric.start(own)
        assert await waiting == 0
        assert client.site == own
        await has(fabric["hub"], "t", 21)
        log = await log_at(fabric["hub"], "t")
        assert [data.decode() for _, data in log] == numbers(21)


async def test_a_publish_under_way_is_done_once_when_its_site_is_lost(fabric: LocalFabric) -> None:
    """One after another, without a pause, while the site goes and comes."""
    async with roaming(fabric, "farm", "lab") as (client, own, _):
        await client.create_topic("t", home="hub")
        count, stop = 0, asyncio.Event()

        async def send() -> None:
            nonlocal count
            while not stop.is_set():
                await client.publish("t", str(count))
                count += 1

        sending = asyncio.create_task(send())
        await until(lambda: count > 20)
        await fabric.crash(own)
        goal = count + 20
        await until(lambda: count > goal or sending.done(), 60)
        await fabric.start(own)
        await is_at(client, own)
        goal = count + 20
        await until(lambda: count > goal or sending.done(), 60)
        stop.set()
        await sending
        log = await log_at(fabric["hub"], "t")
        assert [data.decode() for _, data in log] == numbers(count)


@pytest.mark.parametrize("ack", ["home", "quorum"])
async def test_a_publisher_goes_on_at_the_next_site_in_order(fabric: LocalFabric, ack: Ack) -> None:
    async with roaming(fabric, "farm", "lab") as (client, own, other):
        await client.create_topic("t", home="hub", replicas=1, spread=other)
        async with client.publisher("t", ack=ack) as publisher:
            acks = [await publisher.send(text) for text in numbers(1000)]
            await acks[500]
            await fabric.crash(own)
            acks += [await publisher.send(text) for text in numbers(1000, 1000)]
            await publisher.flush()
            assert client.site == other
            await fabric.start(own)
            await is_at(client, own)
            acks += [await publisher.send(text) for text in numbers(1000, 2000)]
        assert [future.result() for future in acks] == list(range(1, 3001))
        log = await log_at(fabric["hub"], "t")
        assert [data.decode() for _, data in log] == numbers(3000)


async def test_publishing_goes_on_when_the_lost_site_was_the_home(fabric: LocalFabric) -> None:
    """The replica becomes the home, and the client goes there too."""
    async with roaming(fabric, "farm", "lab") as (client, own, other):
        await client.create_topic("t", home=own, replicas=1, spread=other)
        await publish(client, "t", numbers(20), ack="quorum")
        async with client.publisher("t") as publisher:
            acks = [await publisher.send(text) for text in numbers(500, 20)]
            await fabric.crash(own)
            acks += [await publisher.send(text) for text in numbers(500, 520)]
        assert len({future.result() for future in acks}) == 1000
        assert (await client.topic("t")).home == other
        log = await log_at(fabric[other], "t")
        assert [data.decode() for _, data in log] == numbers(1020)


# Subscribing


async def follow(events: Subscription, indexes: list[int], durable: bool) -> None:
    async for event in events:
        indexes.append(event.index)
        if durable:
            events.ack(event)


@pytest.mark.parametrize("durable", [None, "d"], ids=["live", "durable"])
@pytest.mark.parametrize("replicas", [0, 1])
async def test_a_subscription_goes_on_at_the_next_site_and_returns(
    fabric: LocalFabric, replicas: int, durable: str | None
) -> None:
    """Without a gap or a repeat, also where the next site has no copy yet."""
    async with (
        roaming(fabric, "farm", "lab") as (client, own, other),
        fabric.connect("hub") as writer,
    ):
        await writer.create_topic("t", replicas=replicas, spread=other)
        await publish(writer, "t", numbers(20))
        async with client.subscribe("t", from_index=1, durable=durable) as events:
            assert [e.index for e in await take(events, 20)] == list(range(1, 21))
            await fabric.crash(own)
            await publish(writer, "t", numbers(20, 20))
            assert [e.index for e in await take(events, 20)] == list(range(21, 41))
            assert client.site == other
            await fabric.start(own)
            await is_at(client, own)
            await publish(writer, "t", numbers(20, 40))
            assert [e.index for e in await take(events, 20)] == list(range(41, 61))


@pytest.mark.parametrize("durable", [None, "d"], ids=["live", "durable"])
async def test_a_subscription_misses_nothing_under_load_while_sites_go_and_come(
    fabric: LocalFabric, durable: str | None
) -> None:
    """A live one sees each event once. A durable one may see again what it had not acknowledged,
    or what the lost site had not told."""
    async with (
        roaming(fabric, "farm", "lab") as (client, own, other),
        fabric.connect("hub") as writer,
    ):
        await writer.create_topic("t")
        indexes: list[int] = []
        stop = asyncio.Event()

        async def send() -> int:
            last = 0
            while not stop.is_set():
                last = await writer.publish("t", "x")
                await asyncio.sleep(0.002)
            return last

        async with client.subscribe("t", durable=durable) as events:
            reading = asyncio.create_task(follow(events, indexes, durable is not None))
            sending = asyncio.create_task(send())
            await until(lambda: len(indexes) > 50)
            await fabric.crash(own)
            await is_at(client, other)
            goal = indexes[-1] + 50
            await until(lambda: indexes[-1] > goal or reading.done(), 40)
            await fabric.start(own)
            await is_at(client, own)
            goal = indexes[-1] + 50
            await until(lambda: indexes[-1] > goal or reading.done(), 40)
            stop.set()
            last = await sending
            await until(lambda: indexes[-1] >= last or reading.done(), 40)
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
        if durable is None:
            assert indexes == list(range(1, last + 1))
        else:
            assert sorted(set(indexes)) == list(range(1, last + 1))
            assert len(indexes) == len(set(indexes)), "what was acknowledged came again"


async def test_a_client_reads_at_the_next_site(fabric: LocalFabric) -> None:
    async with (
        roaming(fabric, "farm", "lab") as (client, own, other),
        fabric.connect("hub") as writer,
    ):
        await writer.create_topic("t")
        await publish(writer, "t", numbers(20))
        assert await client.latest_index("t") == 20
        await fabric.crash(own)
        assert await client.latest_index("t") == 20
        assert client.site == other
        assert [bytes(e.data).decode() async for e in client.read("t")] == numbers(20)
        assert bytes((await client.get("t", 7)).data) == b"6"
        assert (await client.status()).site == other
        assert {topic.name for topic in await client.topics()} == {"t"}


@needs_wan
async def test_a_client_goes_on_when_its_site_falls_silent() -> None:
    """Nothing closes the connection: pings go unanswered."""
    settings = ClientSettings(ping_interval=1.0, return_every=0.3)
    async with WanFabric([*SITES, "field"], delay=0.01) as fabric:
        await fabric.wan.move("farm", {"field": 0.001})
        addresses = [address(fabric.sites[name]) for name in ("farm", "lab")]

        async def work(_: LocalSite) -> None:
            async with skerry.connect(addresses, settings=settings) as client:
                assert client.site == "farm"
                await client.create_topic("t", home="hub")
                async with client.subscribe("t") as events:
                    assert await client.publish("t", "0") == 1
                    silent.set()
                    await is_at(client, "lab")
                    assert await client.publish("t", "1") == 2
                    assert [e.index for e in await take(events, 2)] == [1, 2]
                    heal.set()
                    await is_at(client, "farm")
                    assert await client.publish("t", "2") == 3
                    assert [e.index for e in await take(events, 1)] == [3]

        # The work is done in another thread.
        silent, heal = threading.Event(), threading.Event()
        working = asyncio.create_task(fabric.run("field", work))
        for event, change in ((silent, fabric.wan.cut), (heal, fabric.wan.heal)):
            await until(lambda e=event: e.is_set() or working.done(), 60)  # type: ignore[misc]
            await change("farm")
        await working
