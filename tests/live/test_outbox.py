"""The outbox: what is published where the home cannot be reached arrives there, once, in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import nats.errors
import pytest

from skerry import Client
from skerry.engine.jetstream import JetStream
from skerry.errors import EventTooLarge, OutcomeUnknown, Unavailable
from skerry.model.topic import Ack
from skerry.testing import LocalFabric, LocalSite, WanFabric
from tests.conftest import until
from tests.live.faults import refused
from tests.live.test_interest import delivers
from tests.live.test_links import linked
from tests.live.test_plain import Device, flushed, nats_client
from tests.live.test_replicas import (
    by_client,
    has,
    last_at,
    log_at,
    needs_wan,
    numbers,
    payloads,
    publish,
    take,
)

SITES = ("hub", "farm", "lab")


@pytest.fixture
async def fabric() -> AsyncIterator[LocalFabric]:
    """Three sites that take MQTT clients; the first coordinates."""
    async with LocalFabric(SITES, mqtt_port=0) as fabric:
        yield fabric


async def waiting_at(site: LocalSite) -> int:
    """How many events the outbox of a site holds."""
    async with site.connect("admin") as admin:
        info = await JetStream(admin._open.connection).stream("outbox")
        assert info is not None
        return int(info["state"]["messages"])


async def is_emptied(site: LocalSite) -> None:
    async def is_empty() -> bool:
        return await waiting_at(site) == 0

    await until(is_empty, 40)


async def texts_at(site: LocalSite, topic: str = "t") -> list[str]:
    return [data.decode() for _, data in await log_at(site, topic)]


async def send_all(client: Client, name: str, count: int, first: int = 0) -> None:
    """Have a publisher of its own send numbered events at level `outbox`."""
    async with client.publisher("t", ack="outbox") as publisher:
        for text in numbers(count, first):
            await publisher.send(f"{name} {text}")


@contextlib.asynccontextmanager
async def busy(client: Client, ack: Ack) -> AsyncIterator[None]:
    """Meanwhile, `busy` is published all the time; of a topic that keeps 1000 events it takes the
    place of none within the time that these tests wait at the most."""

    async def go_on() -> None:
        async with client.publisher("t", ack=ack) as publisher:
            while True:
                await publisher.send("busy")
                await asyncio.sleep(0.05)

    task = asyncio.create_task(go_on())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def check_order(texts: list[str], count: int, names: tuple[str, ...] = ("a", "b")) -> None:
    """Every publisher's events are there once and in its order."""
    assert Counter(texts) == Counter(f"{name} {n}" for name in names for n in range(count))
    for name in names:
        mine = [text for text in texts if text.startswith(f"{name} ")]
        assert mine == [f"{name} {n}" for n in range(count)]


async def has_lost(fabric: WanFabric, name: str, other: str) -> None:
    """Wait until a site takes the link to another for dead."""
    part = fabric.sites[name].site.fabric
    assert part is not None
    await until(lambda: other not in part.links.up)


async def reaches(fabric: WanFabric, name: str, last: int) -> None:
    """Wait until a site itself holds the log of `t` up to index `last`."""
    await fabric.run(name, lambda site: has(site, "t", last))


# An edge that is cut off


@pytest.mark.parametrize("killed", [False, True], ids=["", "engine killed"])
async def test_an_edge_that_lost_hub_and_home_publishes_on(
    fabric: LocalFabric, killed: bool
) -> None:
    async with fabric.connect("farm") as client:
        await client.create_topic("t", home="lab")
        await client.publish("t", "a 0", ack="outbox")
        await has(fabric["lab"], "t", 1)
        await fabric.crash("hub")
        await fabric.crash("lab")
        await asyncio.gather(send_all(client, "a", 299, 1), send_all(client, "b", 150))
        if killed:
            fabric["farm"].kill_engine()
        await send_all(client, "b", 150, 150)
        assert await waiting_at(fabric["farm"]) >= 599
        await fabric.start("hub")
        await fabric.start("lab")
        await has(fabric["lab"], "t", 600)
        check_order(await texts_at(fabric["lab"]), 300)
        await is_emptied(fabric["farm"])
        assert await client.publish("t", "after", ack="home") == 601
        check_order((await texts_at(fabric["lab"]))[:-1], 300)


async def test_an_edge_whose_site_is_started_anew_while_it_is_cut_off_keeps_its_outbox(
    fabric: LocalFabric,
) -> None:
    """Its own engine and agent die, and come back before anybody else does."""
    async with fabric.connect("farm") as client:
        await client.create_topic("t", home="lab")
        await client.publish("t", "a 0", ack="outbox")
        await has(fabric["lab"], "t", 1)
        await fabric.crash("hub")
        await fabric.crash("lab")
        await asyncio.gather(send_all(client, "a", 99, 1), send_all(client, "b", 50))
    await fabric.crash("farm")
    await fabric.start("farm")
    async with fabric.connect("farm") as client:
        await send_all(client, "b", 50, 50)
        await fabric.start("hub")
        await fabric.start("lab")
        await has(fabric["lab"], "t", 200)
        check_order(await texts_at(fabric["lab"]), 100)
        await is_emptied(fabric["farm"])


async def test_a_publisher_goes_on_while_the_edge_s_engine_is_killed(fabric: LocalFabric) -> None:
    async with fabric.connect("farm") as client:
        await client.create_topic("t", home="lab")
        await client.publish("t", "a 0", ack="outbox")
        await has(fabric["lab"], "t", 1)
        await fabric.crash("lab")
        async with client.publisher("t", ack="outbox") as publisher:
            for number in range(1, 1000):
                await publisher.send(f"a {number}")
                if number == 500:
                    fabric["farm"].kill_engine()
        await fabric.start("lab")
        await has(fabric["lab"], "t", 1000)
        check_order(await texts_at(fabric["lab"]), 1000, ("a",))


async def test_the_outbox_goes_to_the_home_that_was_elected_meanwhile(fabric: LocalFabric) -> None:
    async with fabric.connect("farm") as client:
        await client.create_topic("t", home="lab", replicas=1, spread="hub")
        await send_all(client, "a", 100)
        await has(fabric["lab"], "t", 100)
        await has(fabric["hub"], "t", 100)
        await fabric.crash("lab")
        await send_all(client, "a", 100, 100)
        await has(fabric["hub"], "t", 200)
        assert (await client.topic("t")).home == "hub"
        check_order(await texts_at(fabric["hub"]), 200, ("a",))
        await fabric.start("lab")
        await send_all(client, "a", 100, 200)
        for site in ("hub", "lab"):
            await has(fabric[site], "t", 300)
            check_order(await texts_at(fabric[site]), 300, ("a",))
        await is_emptied(fabric["farm"])


@needs_wan
@pytest.mark.parametrize("to", ["lab", "hub"])
async def test_the_outbox_of_an_edge_that_was_cut_off_goes_to_where_the_home_moved(
    to: str,
) -> None:
    async with WanFabric([*SITES, "field"], delay=0.002) as fabric:

        async def begin(client: Client) -> None:
            await client.create_topic("t", home="field")
            await asyncio.gather(send_all(client, "a", 50), send_all(client, "b", 50))

        async def go_on(client: Client) -> None:
            await asyncio.gather(send_all(client, "a", 50, 50), send_all(client, "b", 50, 50))

        await fabric.run("farm", by_client(begin))
        await reaches(fabric, "field", 100)
        await fabric.wan.cut("farm")
        await has_lost(fabric, "farm", "hub")
        await fabric.run("farm", by_client(go_on))
        await fabric.run("hub", by_client(lambda admin: admin.move_topic("t", to), "admin"))
        await fabric.wan.heal("farm")
        await reaches(fabric, to, 200)
        texts = await fabric.run(to, texts_at)
        check_order(texts, 100)
        await fabric.run("farm", is_emptied)


@needs_wan
async def test_a_link_that_is_cut_again_and_again_neither_loses_nor_doubles() -> None:
    """Events without an id, which no duplicate window could tell apart."""
    async with WanFabric(SITES, delay=0.002) as fabric:
        await fabric.run("lab", by_client(lambda client: client.create_topic("t")))

        async def send(first: int) -> None:
            async def there(site: LocalSite) -> None:
                async with nats_client(site) as client:
                    for text in numbers(200, first):
                        await client.request("p.t", text.encode(), timeout=20)

            await fabric.run("farm", there)

        for turn in range(3):
            sending = asyncio.create_task(send(200 * turn))
            await reaches(fabric, "lab", 200 * turn + 20)
            await fabric.wan.cut("farm", "lab")
            await has_lost(fabric, "farm", "lab")
            await fabric.wan.heal("farm", "lab")
            await sending
        await reaches(fabric, "lab", 600)
        assert await fabric.run("lab", texts_at) == numbers(600)
        await fabric.run("farm", is_emptied)


async def test_what_one_home_took_the_next_does_not_take_again(fabric: LocalFabric) -> None:
    """The events have no ids, so no duplicate window helps: the next home must find in its own
    log how far the outbox was read. They are still in the outbox, as the replica was away when
    the first home took them."""
    async with fabric.connect("lab", "admin") as admin:
        await admin.create_topic("t", home="lab", replicas=1, spread="hub")
        await admin.publish("t", "first", ack="quorum")
        await fabric.add("barn")
        topic = await admin.set_topic("t", replicas=1, spread="barn")
        assert topic.replicas == ("barn",)
        await fabric.stop("barn")
        async with nats_client(fabric["farm"]) as plain:
            for text in numbers(100):
                await plain.request("p.t", text.encode(), timeout=20)
        await has(fabric["lab"], "t", 101)
        assert await waiting_at(fabric["farm"]) == 100
        await fabric.crash("farm")
        await fabric.start("barn")
        await has(fabric["barn"], "t", 101)
        assert (await admin.move_topic("t", "barn")).home == "barn"
        await fabric.start("farm")
        async with nats_client(fabric["farm"]) as plain:
            for text in numbers(50, 100):
                await plain.request("p.t", text.encode(), timeout=20)
        await has(fabric["barn"], "t", 151)
        await is_emptied(fabric["farm"])
        assert await texts_at(fabric["barn"]) == ["first", *numbers(150)]


async def test_what_is_published_before_the_home_reads_arrives_though_its_log_lets_go_of_events(
    fabric: LocalFabric,
) -> None:
    """A home that finds nothing of this outbox in its log, whose first events are gone, begins with
    the first event of the outbox, and not with what came since its own last one."""
    async with fabric.connect("lab") as client, nats_client(fabric["farm"]) as plain:
        await client.create_topic("t", home="lab", max_events=1000)
        await publish(client, "t", numbers(1100))
        async with busy(client, "home"):
            for text in numbers(10):
                await plain.request("p.t", text.encode(), timeout=20)
            await is_emptied(fabric["farm"])
        assert [text for text in await texts_at(fabric["lab"]) if len(text) < 3] == numbers(10)


async def test_a_hub_that_passes_on_begins_with_the_first_event_of_an_outbox() -> None:
    """No link leads from the publisher's site to the home, and the hub's own outbox, which takes
    the events on their way, has let go of others before."""
    alone = {"link_port": None}
    async with (
        LocalFabric(SITES, mqtt_port=0, each={"farm": alone, "lab": alone}) as fabric,
        fabric.connect("hub") as client,
        nats_client(fabric["farm"]) as plain,
    ):
        await client.create_topic("t", home="lab")
        await publish(client, "t", numbers(5), ack="outbox")
        await is_emptied(fabric["hub"])
        async with busy(client, "outbox"):
            for text in numbers(10):
                await plain.request("p.t", text.encode(), timeout=20)
            await is_emptied(fabric["farm"])
        await is_emptied(fabric["hub"])
        texts = [text for text in await texts_at(fabric["lab"]) if text != "busy"]
        assert texts == [*numbers(5), *numbers(10)]


async def test_a_home_that_forgot_how_far_it_had_read_is_told(fabric: LocalFabric) -> None:
    """All that it had read of this outbox has aged out of its log, which a replica that is away has
    yet to get; and its site is started anew. Events without ids are stored once all the same."""
    async with fabric.connect("hub", "admin") as admin:
        await admin.create_topic("t", home="lab", replicas=1, spread="hub", max_events=20)
        await admin.publish("t", "first", ack="quorum")
        await fabric.add("barn")
        await admin.set_topic("t", replicas=1, spread="barn")
        await fabric.stop("barn")
        async with nats_client(fabric["farm"]) as plain:
            for text in numbers(10):
                await plain.request("p.t", text.encode(), timeout=20)
        await has(fabric["lab"], "t", 11)
        part = fabric.agent("farm").fabric
        assert part is not None
        await until(lambda: part.outbox._read.get("t", ("", 0, 0, 0))[3] == 11)
        await publish(admin, "t", [f"more {n}" for n in range(30)], ack="home")
        assert await waiting_at(fabric["farm"]) == 10
        await fabric.crash("lab")
        await fabric.start("lab")
        async with nats_client(fabric["farm"]) as plain:
            await plain.request("p.t", b"10", timeout=20)
        await has(fabric["lab"], "t", 42)
        assert (await texts_at(fabric["lab"]))[-2:] == ["more 29", "10"]
        await fabric.start("barn")
        await is_emptied(fabric["farm"])
        assert await last_at(fabric["lab"], "t") == 42


async def test_a_home_whose_log_lost_what_it_had_read_reads_it_again(fabric: LocalFabric) -> None:
    """It is told how far it had read, but its log ends earlier than it did then."""
    async with fabric.connect("hub", "admin") as admin:
        await admin.create_topic("t", home="lab", replicas=1, spread="hub", max_events=1000)
        await publish(admin, "t", numbers(1100))
        await fabric.add("barn")
        await admin.set_topic("t", replicas=1, spread="barn")
        await fabric.stop("barn")
        folder, copy = fabric.root / "lab", fabric.root / "copy"
        await fabric.stop("lab")
        shutil.copytree(folder, copy)
        await fabric.start("lab")
        async with nats_client(fabric["farm"]) as plain:
            for text in numbers(10):
                await plain.request("p.t", text.encode(), timeout=20)
        await has(fabric["lab"], "t", 1110)
        part = fabric.agent("farm").fabric
        assert part is not None
        await until(lambda: part.outbox._read.get("t", ("", 0, 0, 0))[3] == 1110)
        await fabric.crash("lab")
        shutil.rmtree(folder)
        copy.rename(folder)
        await fabric.start("lab")
        await fabric.start("barn")
        await is_emptied(fabric["farm"])
        assert (await texts_at(fabric["lab"]))[-10:] == numbers(10)


async def test_another_site_of_the_same_name_has_an_outbox_of_its_own(fabric: LocalFabric) -> None:
    """Its indexes are not those that the home has read."""
    async with fabric.connect("hub", "admin") as admin:
        await admin.create_topic("t", home="lab")
        async with nats_client(fabric["farm"]) as plain:
            for text in numbers(20):
                await plain.request("p.t", text.encode(), timeout=20)
        await is_emptied(fabric["farm"])
        await fabric.crash("farm")
        shutil.rmtree(fabric.root / "farm")
        await admin.drain_site("farm")
        await admin.remove_site("farm")
        await fabric.add("farm")
        async with nats_client(fabric["farm"]) as plain:
            for text in numbers(15, 20):
                await plain.request("p.t", text.encode(), timeout=20)
        await has(fabric["lab"], "t", 35)
        assert await texts_at(fabric["lab"]) == numbers(35)
        await is_emptied(fabric["farm"])


@pytest.mark.parametrize("end", ["crash", "stop"])
async def test_a_hub_that_starts_anew_passes_every_event_on_once(end: str) -> None:
    """Events without ids, while they come. What it passed on is gone from its own outbox."""
    alone = {"link_port": None}
    async with (
        LocalFabric(SITES, mqtt_port=0, each={"farm": alone, "lab": alone}) as fabric,
        nats_client(fabric["farm"]) as plain,
    ):
        async with fabric.connect("farm") as client:
            await client.create_topic("t", home="lab")

        async def go_on(count: int, first: int) -> None:
            for text in numbers(count, first):
                await plain.request("p.t", text.encode(), timeout=20)
                await asyncio.sleep(0.01)

        await go_on(200, 0)
        task = asyncio.create_task(go_on(300, 200))
        await asyncio.sleep(0.5)
        await getattr(fabric, end)("hub")
        await fabric.start("hub")
        await task
        await is_emptied(fabric["farm"])
        await is_emptied(fabric["hub"])
        await has(fabric["lab"], "t", 500)
        assert await texts_at(fabric["lab"]) == numbers(500)


async def test_outboxes_of_several_sites_are_read_side_by_side(fabric: LocalFabric) -> None:
    """And every one's own topics; the home's own outbox too."""
    names = {"hub": "a", "farm": "b", "lab": "c"}
    async with contextlib.AsyncExitStack() as stack:
        clients = {site: await stack.enter_async_context(fabric.connect(site)) for site in SITES}
        await clients["lab"].create_topic("t")
        await clients["farm"].create_topic("other")
        await asyncio.gather(*(send_all(clients[s], names[s], 200) for s in SITES))
        await publish(clients["lab"], "other/sub", numbers(20), ack="outbox")
        await has(fabric["lab"], "t", 600)
        check_order(await texts_at(fabric["lab"]), 200, ("a", "b", "c"))
        await has(fabric["farm"], "other", 20)
        assert await texts_at(fabric["farm"], "other") == numbers(20)
        for site in SITES:
            await is_emptied(fabric[site])


@pytest.mark.slow
async def test_events_of_a_topic_that_does_not_exist_leave_the_outbox_with_a_warning(
    fabric: LocalFabric, caplog: pytest.LogCaptureFixture
) -> None:
    async with fabric.connect("lab") as client, nats_client(fabric["farm"]) as plain:
        await client.create_topic("t")
        answer = await plain.request("p.unknown.sub", b"lost", timeout=20)
        assert json.loads(answer.data)["stream"] == "outbox"
        await plain.request("p.t", b"kept", timeout=20)
        await has(fabric["lab"], "t", 1)
        await is_emptied(fabric["farm"])
    assert any("unknown/sub" in r.message and r.levelno == logging.WARNING for r in caplog.records)


async def test_events_of_a_topic_that_is_made_a_little_later_are_kept(fabric: LocalFabric) -> None:
    async with fabric.connect("lab") as client, nats_client(fabric["farm"]) as plain:
        await plain.request("p.t.sub", b"early", timeout=20)
        await client.create_topic("t")
        await has(fabric["lab"], "t", 1)
        assert await texts_at(fabric["lab"]) == ["early"]
        await is_emptied(fabric["farm"])


# Clients without the SDK


@pytest.mark.parametrize("home", ["lab", "farm"])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_mqtt_publishes_at_any_site(fabric: LocalFabric, qos: int, home: str) -> None:
    async with fabric.connect(home) as client, Device(fabric["farm"]) as device:
        await client.create_topic("t")
        async with client.subscribe("t") as events:
            # The link is made first: QoS 2 is not exactly once while an engine reloads, see ADR 3.
            await device.publish("p/t/deep", "0", 1)
            seen = await take(events, 1)
            for text in numbers(49, 1):
                await device.publish("p/t/deep", text, qos)
            seen += await take(events, 49)
    assert [(e.topic, e.index, bytes(e.data).decode()) for e in seen] == [
        ("t/deep", n + 1, str(n)) for n in range(50)
    ]
    assert seen[0].headers == {}
    await is_emptied(fabric["farm"])


async def test_plain_nats_publishes_at_any_site(fabric: LocalFabric) -> None:
    async with fabric.connect("lab") as client, nats_client(fabric["farm"]) as plain:
        await client.create_topic("t")
        async with client.subscribe("t") as events:
            await plain.publish("p.t", b"0")  # nobody waits for an answer
            await plain.request("p.t.sub", b"1", headers={"unit": "K"}, timeout=20)
            for _ in range(2):
                await plain.request("p.t", b"2", headers={"Nats-Msg-Id": "once"}, timeout=20)
            await plain.request("p.t", b"3", timeout=20)
            seen = await take(events, 4)
        assert [(e.topic, bytes(e.data)) for e in seen] == [
            ("t", b"0"), ("t/sub", b"1"), ("t", b"2"), ("t", b"3")
        ]  # fmt: skip
        assert seen[1].headers == {"unit": "K"}
        assert seen[0].headers == seen[3].headers == {}


async def test_plain_clients_publish_while_the_edge_is_cut_off(fabric: LocalFabric) -> None:
    async with fabric.connect("lab") as client:
        await client.create_topic("t")
    await fabric.crash("hub")
    await fabric.crash("lab")
    async with nats_client(fabric["farm"]) as plain, Device(fabric["farm"]) as device:
        for number in range(50):
            await plain.request("p.t", f"a {number}".encode(), timeout=20)
            await device.publish("p/t", f"b {number}", 1)
        await fabric.start("hub")
        await fabric.start("lab")
        await has(fabric["lab"], "t", 100)
        check_order(await texts_at(fabric["lab"]), 50)
        await is_emptied(fabric["farm"])


async def received(device: Device, count: int) -> list[str]:
    """What an MQTT subscriber got, once it is `count` events."""
    await until(lambda: len(device.received) >= count, 20)
    return [data.decode() for _, data in device.received]


async def are_linked(fabric: LocalFabric) -> None:
    """Wait until farm and lab are linked. While an engine takes its configuration anew, it may lose
    what it asks itself, and refuses an MQTT subscription five seconds later."""
    await until(lambda: linked(fabric, "farm", "lab"))


async def publish_by(source: str, client: Client, writer: Device) -> list[str]:
    """Publish ten events by the SDK, by the outbox or by MQTT; what they hold."""
    texts = [f"{source} {number}" for number in range(10)]
    for text in texts:
        if source == "sdk":
            await client.publish("t", text)
        elif source == "outbox":
            await client.publish("t", text, ack="outbox")
        else:
            await writer.publish("p/t", text, int(source[-1]))
    return texts


# What was published by MQTT with QoS 1 for subscribers with QoS 1 is in `test_mqtt_sites.py`.
@pytest.mark.parametrize(
    ("qos", "sources"),
    [(0, ["sdk", "outbox", "mqtt 0", "mqtt 1"]), (1, ["sdk", "outbox", "mqtt 0"])],
)
@pytest.mark.parametrize("replicas", [0, 1])
async def test_an_mqtt_subscriber_at_another_site_gets_every_event_once(
    fabric: LocalFabric, qos: int, sources: list[str], replicas: int
) -> None:
    """The topic lives at farm; devices subscribe at lab, where a replica is, or only a copy that
    was fetched for them."""
    async with (
        fabric.connect("farm") as client,
        Device(fabric["lab"], "reader") as reader,
        Device(fabric["farm"], "writer") as writer,
    ):
        if replicas:
            await client.create_topic("t", replicas=1, spread="lab")
            await are_linked(fabric)
        else:
            await client.create_topic("t")
        assert await reader.subscribe("t/t/#", qos) == qos
        await until(lambda: delivers(fabric["lab"], "t"))
        expected: list[str] = []
        for source in sources:
            expected += await publish_by(source, client, writer)
            await has(fabric["farm"], "t", len(expected))
            assert await received(reader, len(expected)) == expected
        await client.publish("t", "last")
        assert await received(reader, len(expected) + 1) == [*expected, "last"]


@pytest.mark.parametrize("home", ["farm", "lab"])
@pytest.mark.parametrize("qos", [0, 1])
async def test_an_mqtt_subscriber_gets_every_event_once_while_other_sites_take_mqtt_too(
    fabric: LocalFabric, qos: int, home: str
) -> None:
    """Published and subscribed at farm. What the engine says to itself for MQTT must not cross
    links: with three sites linked in a ring it would come round for ever."""
    async with (
        fabric.connect("farm") as client,
        Device(fabric["farm"], "reader") as reader,
        Device(fabric["farm"], "writer") as writer,
        Device(fabric["lab"], "other") as other,
    ):
        replica = "lab" if home == "farm" else "farm"
        await client.create_topic("t", home=home, replicas=1, spread=replica)
        await are_linked(fabric)
        assert await reader.subscribe("t/t/#", qos) == qos
        await other.subscribe("t/t/#", 1)
        expected: list[str] = []
        for source in ("sdk", "outbox", "mqtt 0", "mqtt 1"):
            expected += await publish_by(source, client, writer)
            for site in ("farm", "lab"):
                await has(fabric[site], "t", len(expected))
        await client.publish("t", "last")
        await until(lambda: ("t/t", b"last") in reader.received)
        got = Counter(data.decode() for _, data in reader.received)
        assert got == Counter([*expected, "last"])


async def test_a_nats_subscriber_at_another_site_gets_every_event_once(
    fabric: LocalFabric,
) -> None:
    async with fabric.connect("farm") as client, nats_client(fabric["lab"]) as plain:
        await client.create_topic("t", replicas=1, spread="lab")
        subscription = await plain.subscribe("t.>")
        await flushed(plain)
        await publish(client, "t", numbers(20))
        seen = [await subscription.next_msg(20) for _ in range(20)]
        assert [message.data.decode() for message in seen] == numbers(20)
        with contextlib.suppress(nats.errors.TimeoutError):
            assert await subscription.next_msg(0.2) is None, "one came twice"


# A home that is cut off


async def is_shut(site: LocalSite) -> bool:
    """Whether the home of `t` at a site takes no events."""
    async with site.connect("admin") as admin:
        info = await JetStream(admin._open.connection).stream("t~t")
        assert info is not None
        return str(info["config"].get("subjects", [""])[0]).startswith("_frozen.")


async def test_a_home_that_lost_the_coordination_site_stops(fabric: LocalFabric) -> None:
    """And its replica: with it alone it would go on, see `test_partition.py`."""
    async with fabric.connect("farm") as client:
        await client.create_topic("t", replicas=1, spread="lab", on_partition="stop")
        assert await client.publish("t", "0", ack="quorum") == 1
        await fabric.crash("lab")
        await fabric.crash("hub")
        await until(lambda: is_shut(fabric["farm"]))
        with refused(OutcomeUnknown, "t"):
            await client.publish("t", "1", timeout=2)
        assert await last_at(fabric["farm"], "t") == 1
        assert await client.publish("t", "2", ack="outbox") == 0  # which waits here
        waiting = asyncio.create_task(client.publish("t", "3", timeout=60))
        await fabric.start("hub")
        await fabric.start("lab")
        assert await waiting > 1
        await has(fabric["farm"], "t", 3)
        texts = await texts_at(fabric["farm"])
        assert sorted(set(texts) - {"1"}) == ["0", "2", "3"]
        assert len(set(texts)) == len(texts)
        index = await client.publish("t", "4", ack="quorum")
        assert await last_at(fabric["lab"], "t") >= index


async def test_a_home_that_lost_the_coordination_site_may_go_on(fabric: LocalFabric) -> None:
    async with fabric.connect("farm") as client:
        await client.create_topic("t", replicas=1, spread="lab", on_partition="continue")
        assert await client.publish("t", "0", ack="quorum") == 1
        await fabric.crash("hub")
        part = fabric.agent("farm").fabric
        assert part is not None
        await until(lambda: part.standing.asked > 0)
        assert await publish(client, "t", numbers(20, 1), ack="quorum") == list(range(2, 22))
        await fabric.start("hub")
        await until(lambda: "hub" in part.links.up)
        assert await client.publish("t", "21", ack="quorum") == 22
        for site in ("farm", "lab"):
            assert await texts_at(fabric[site]) == numbers(22)


async def test_a_home_without_replicas_goes_on_alone(fabric: LocalFabric) -> None:
    """Nobody could have replaced it."""
    async with fabric.connect("farm") as client:
        await client.create_topic("t")
        await fabric.crash("hub")
        part = fabric.agent("farm").fabric
        assert part is not None
        await until(lambda: part.standing.asked > 0)
        assert await publish(client, "t", numbers(20)) == list(range(1, 21))


@needs_wan
async def test_a_home_that_is_cut_off_and_replaced_takes_nothing_until_it_is_back() -> None:
    async with WanFabric(SITES, delay=0.002) as fabric:

        async def begin(client: Client) -> None:
            await client.create_topic("t", replicas=1, spread="lab")
            await publish(client, "t", numbers(10), ack="quorum")

        await fabric.run("farm", by_client(begin))
        await fabric.wan.cut("farm")
        await fabric.run("farm", lambda site: until(lambda: is_shut(site)))

        async def denied(client: Client) -> None:
            with pytest.raises(Unavailable):
                await client.publish("t", "never", timeout=2)

        await fabric.run("farm", by_client(denied))
        assert await fabric.run("farm", lambda site: last_at(site, "t")) == 10
        await fabric.run("lab", by_client(lambda client: publish(client, "t", numbers(10, 10))))
        await fabric.wan.heal("farm")
        await reaches(fabric, "farm", 20)
        index = await fabric.run("farm", by_client(lambda client: client.publish("t", "20")))
        await reaches(fabric, "farm", index)
        await reaches(fabric, "lab", index)
        for site in ("farm", "lab"):
            texts = await fabric.run(site, texts_at)
            assert [text for text in texts if text != "never"] == numbers(21)
            assert texts.count("never") <= 1  # its outcome was unknown


@needs_wan
@pytest.mark.parametrize("then", ["", "site restarted", "engine killed"])
async def test_a_home_that_went_on_alone_brings_its_events_back_once(then: str) -> None:
    async with WanFabric(SITES, delay=0.002) as fabric:

        async def begin(client: Client) -> None:
            await client.create_topic("t", replicas=1, spread="lab", on_partition="continue")
            await publish(client, "t", numbers(10), ack="quorum")

        async def alone(client: Client) -> list[int]:
            return await publish(client, "t", [f"alone {n}" for n in range(20)])

        async def together(client: Client) -> list[int]:
            return await publish(client, "t", [f"together {n}" for n in range(30)])

        await fabric.run("farm", by_client(begin))
        await fabric.wan.cut("farm")
        await has_lost(fabric, "farm", "hub")
        assert await fabric.run("farm", by_client(alone)) == list(range(11, 31))
        if then == "site restarted":
            await fabric.crash("farm")
            await fabric.start("farm")
        elif then == "engine killed":
            fabric.sites["farm"].kill_engine()
        assert await fabric.run("lab", by_client(together)) == list(range(11, 41))
        await fabric.wan.heal("farm")
        for site in ("lab", "farm"):
            await reaches(fabric, site, 60)
            texts = await fabric.run(site, texts_at)
            assert Counter(texts) == Counter(
                [
                    *numbers(10),
                    *[f"alone {n}" for n in range(20)],
                    *[f"together {n}" for n in range(30)],
                ]
            )
            for kind in ("alone", "together"):
                mine = [text for text in texts if text.startswith(kind)]
                assert mine == [f"{kind} {n}" for n in range(len(mine))]


@needs_wan
async def test_subscribers_at_both_sides_of_a_cut_see_one_log_in_the_end() -> None:
    """One at the home that went on alone may see events twice: with the index they had there, and
    with the one that they have now. None is missed."""
    async with WanFabric(SITES, delay=0.002) as fabric:

        async def begin(client: Client) -> None:
            await client.create_topic("t", replicas=1, spread="lab", on_partition="continue")
            await publish(client, "t", numbers(10), ack="quorum")

        async def follow(client: Client) -> list[str]:
            async with client.subscribe("t", from_index=1) as events:
                return payloads(await take(events, 30, 60))

        async def alone(client: Client) -> Any:
            return await publish(client, "t", numbers(10, 20))

        async def together(client: Client) -> Any:
            return await publish(client, "t", numbers(10, 10))

        await fabric.run("farm", by_client(begin))
        following = asyncio.create_task(fabric.run("lab", by_client(follow)))
        await fabric.wan.cut("farm")
        await has_lost(fabric, "farm", "hub")
        await fabric.run("farm", by_client(alone))
        await fabric.run("lab", by_client(together))
        await fabric.wan.heal("farm")
        assert await following == numbers(30)


async def test_an_event_that_its_topic_does_not_take_holds_up_no_other(
    fabric: LocalFabric,
) -> None:
    """The SDK refuses it. What a plain client published is kept where strays are."""
    async with fabric.connect("farm") as client, nats_client(fabric["farm"]) as plain:
        await client.create_topic("t", home="hub", max_event_bytes=2000)
        with pytest.raises(EventTooLarge):
            await client.publish("t", "x" * 1990, ack="outbox")
        for size in (10, 5000, 1700, 1990, 20):
            await plain.publish("p.t.x", b"x" * size)
        await flushed(plain)
        assert await client.publish("t", "the last", ack="outbox") == 0
        await has(fabric["hub"], "t", 4)
        assert [len(text) for text in await texts_at(fabric["hub"])] == [10, 1700, 20, 8]
        await has(fabric["farm"], "strays/farm", 2)
        kept = [(e.topic, len(e.data)) async for e in client.read("strays/farm")]
        assert kept == [("strays/farm/t/x", 5000), ("strays/farm/t/x", 1990)]


@pytest.mark.parametrize("ack", ["outbox", "quorum"])
async def test_the_largest_event_goes_everywhere(fabric: LocalFabric, ack: Ack) -> None:
    """What engines add to it on its way ends no link."""
    async with fabric.connect("farm") as client:
        await client.create_topic("t", home="hub", replicas=1, spread="lab")
        most = client._open.connection.info.max_event - 60
        with pytest.raises(EventTooLarge):
            await client.publish("t", b"x" * (most + 60), ack=ack)
        await client.publish("t", b"x" * most, ack=ack)
        await client.publish("t", "the last", ack=ack)
        for site in SITES:
            async with fabric.connect(site) as reader, reader.subscribe("t", from_index=1) as all_:
                assert [len((await anext(all_)).data) for _ in range(2)] == [most, 8]
