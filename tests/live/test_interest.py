"""Plain subscribers at a site without a copy get one, and events from then on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from skerry import Client
from skerry.testing import LocalFabric
from tests.conftest import until
from tests.live.test_plain import Device, browser, nats_client

SITES = ["hub", "farm", "lab"]
LIFE = 2.0
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


def wanted_at(fabric: LocalFabric, site: str, topic: str) -> float:
    """When the copy was last asked for."""
    part = fabric.agent(site).fabric
    local = part.copies.local(topic) if part else None
    assert local is not None
    return local.touched


async def publish_all(client: Client, *texts: str) -> None:
    for text in texts:
        await client.publish("sensors/roof", text)


async def test_an_mqtt_subscriber_gets_a_copy_and_what_is_new(fabric: LocalFabric) -> None:
    """Not what was published before it came, however much that is; and the copy lasts as long as
    the subscriber does."""
    async with fabric.connect("farm") as client, Device(fabric["lab"]) as reader:
        await client.create_topic("sensors", home="farm")
        await publish_all(client, *(f"before {number}" for number in range(500)))
        await reader.subscribe("t/sensors/#", 0)
        await until(lambda: has_copy(fabric, "lab", "sensors"))
        await publish_all(client, "one", "two")
        await until(lambda: len(reader.received) >= 2)
        wanted = wanted_at(fabric, "lab", "sensors")
        await until(lambda: wanted_at(fabric, "lab", "sensors") > wanted + 2 * LIFE)
        await publish_all(client, "three")
        await until(lambda: len(reader.received) >= 3)
        assert reader.received == [("t/sensors/roof", text) for text in (b"one", b"two", b"three")]
    await until(lambda: not has_copy(fabric, "lab", "sensors"), 30)
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
        await plain.flush()
        await page.send("SUB t.other.deep.down 1")
        await until(lambda: all(has_copy(fabric, "lab", name) for name in names[:2]))
        await until(lambda: has_copy(fabric, "hub", "other"))
        assert not has_copy(fabric, "lab", "other")
        assert not has_copy(fabric, "hub", "area/1/logs")
        await client.publish("area/2/logs", "hello")
        await client.publish("other/deep/down", "there")
        assert (await subscription.next_msg(20)).data == b"hello"
        assert await page.message() == ("t.other.deep.down", "there")


async def test_a_topic_that_is_made_later_is_fetched_too(fabric: LocalFabric) -> None:
    async with fabric.connect("farm") as client, nats_client(fabric["lab"]) as plain:
        subscription = await plain.subscribe("t.>")
        await plain.flush()
        await client.create_topic("late", home="farm")
        await until(lambda: has_copy(fabric, "lab", "late"))
        await client.publish("late", "hello")
        assert (await subscription.next_msg(20)).data == b"hello"
