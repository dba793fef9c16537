"""Plain subscribers at a site without a copy get one, and events from then on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from nats.aio.msg import Msg

from skerry import Client
from skerry.fabric import interest
from skerry.testing import LocalFabric, LocalSite
from tests.conftest import until
from tests.live.test_plain import Device, browser, flushed, nats_client
from tests.live.test_replicas import stream_at

SITES = ["hub", "farm", "lab"]
LIFE = 3.0
"""Seconds after which a copy is removed that nobody wants."""


@pytest.fixture
async def fabric() -> AsyncIterator[LocalFabric]:
    """Three sites that take plain clients."""
    async with LocalFabric(SITES, mqtt_port=0, websocket_port=0, link_idle=LIFE) as fabric:
        yield fabric


def has_copy(fabric: LocalFabric, site: str, topic: str) -> bool:
    part = fabric.agent(site).fabric
    local = part.copies.local(topic) if part else None
    return local is not None and local.kind == "copy" and local.delivers


async def delivers(site: LocalSite, topic: str) -> bool:
    """Whether a site has a copy, and its engine hands on to plain clients what is new there."""
    info = await stream_at(site, topic)
    return bool(info and info["config"].get("mirror") and info["config"].get("republish"))


def wanted_at(fabric: LocalFabric, site: str, topic: str) -> float:
    """When the copy was last asked for."""
    part = fabric.agent(site).fabric
    local = part.copies.local(topic) if part else None
    assert local is not None
    return local.touched


async def publish_all(client: Client, *texts: str) -> None:
    for text in texts:
        await client.publish("sensors/roof", text)


@pytest.mark.parametrize("share", [interest.SHARE, 1e-9])
async def test_an_mqtt_subscriber_gets_a_copy_and_what_is_new(
    fabric: LocalFabric, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """Not what was published before it came, however much that is; and the copy lasts as long as
    the subscriber does, on a machine that is too busy to look often, too."""
    monkeypatch.setattr(interest, "SHARE", share)
    async with fabric.connect("farm") as client, Device(fabric["lab"]) as reader:
        await client.create_topic("sensors", home="farm")
        await publish_all(client, *(f"before {number}" for number in range(500)))
        await reader.subscribe("t/sensors/#", 0)
        await until(lambda: delivers(fabric["lab"], "sensors"))
        await publish_all(client, "one", "two")
        await until(lambda: len(reader.received) >= 2)
        wanted = wanted_at(fabric, "lab", "sensors")
        await until(lambda: wanted_at(fabric, "lab", "sensors") > wanted + 2 * LIFE, 60)
        await publish_all(client, "three")
        await until(lambda: len(reader.received) >= 3, 60)
        assert reader.received == [("t/sensors/roof", text) for text in (b"one", b"two", b"three")]
    await until(lambda: not has_copy(fabric, "lab", "sensors"), 60)
    assert not has_copy(fabric, "hub", "sensors")


async def test_nats_and_websocket_subscribers_get_copies_of_all_that_they_match(
    fabric: LocalFabric,
) -> None:
    async with (
        fabric.connect("farm") as client,
        nats_client(fabric["lab"]) as plain,
        browser(fabric["hub"]) as page,
    ):
        names = ["area/1/logs", "area/2/logs", "other"]
        for name in names:
            await client.create_topic(name, home="farm")
        subscription = await plain.subscribe("t.area.*.logs")
        await flushed(plain)
        await page.send("SUB t.other.deep.down 1")
        for name in names[:2]:
            await until(lambda name=name: delivers(fabric["lab"], name))  # type: ignore[misc]
        await until(lambda: delivers(fabric["hub"], "other"))
        assert not has_copy(fabric, "lab", "other")
        assert not has_copy(fabric, "hub", "area/1/logs")
        await client.publish("area/2/logs", "hello")
        await client.publish("other/deep/down", "there")
        assert (await subscription.next_msg(20)).data == b"hello"
        assert await page.message() == ("t.other.deep.down", "there")


async def test_a_topic_that_is_made_later_is_fetched_too(fabric: LocalFabric) -> None:
    async with fabric.connect("farm") as client, nats_client(fabric["lab"]) as plain:
        subscription = await plain.subscribe("t.>")
        await flushed(plain)
        await client.create_topic("late", home="farm")
        await until(lambda: delivers(fabric["lab"], "late"))
        await client.publish("late", "hello")
        assert (await subscription.next_msg(20)).data == b"hello"


async def test_a_former_home_delivers_nothing_twice_to_its_subscribers(
    fabric: LocalFabric,
) -> None:
    """It copies its whole log again."""
    async with (
        fabric.connect("lab") as client,
        fabric.connect("hub", "admin") as admin,
        nats_client(fabric["farm"]) as plain,
    ):
        got: list[int] = []

        async def on_event(message: Msg) -> None:
            assert message.headers is not None
            got.append(int(message.headers["Nats-Sequence"]))

        await client.create_topic("sensors", home="farm", replicas=1, spread="lab")
        await plain.subscribe("t.sensors.>", cb=on_event)
        await flushed(plain)
        await publish_all(client, *map(str, range(300)))
        await admin.move_topic("sensors", "lab", replicas=["farm"])
        await until(lambda: delivers(fabric["farm"], "sensors"))
        await publish_all(client, *map(str, range(20)))
        await until(lambda: 320 in got)
        assert got == list(range(1, 321))
