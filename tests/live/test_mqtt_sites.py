"""MQTT with QoS 1 and 2 from one site to another."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from skerry import Client
from skerry.testing import LocalFabric
from tests.conftest import until
from tests.live.test_interest import delivers
from tests.live.test_plain import Device, nothing_waits


@pytest.fixture
async def fabric() -> AsyncIterator[LocalFabric]:
    """Three sites that take MQTT clients; topic `t` is at home at the first."""
    async with (
        LocalFabric(["hub", "farm", "lab"], mqtt_port=0) as fabric,
        fabric.connect("hub") as client,
    ):
        await client.create_topic("t")
        yield fabric


def numbers(name: str, count: int = 20) -> list[bytes]:
    return [f"{name} {number}".encode() for number in range(count)]


async def is_listening(fabric: LocalFabric, site: str) -> None:
    """Wait until a site's agent has noticed that a session wants topic `t`, and fetched it."""
    part = fabric.agent(site).fabric
    assert part is not None
    await until(lambda: bool(part.mqtt._listening))
    if site != "hub":
        await until(lambda: delivers(fabric[site], "t"))


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("reader_at", ["lab", "hub"])
async def test_a_subscriber_elsewhere_gets_every_event_once_with_its_qos(
    fabric: LocalFabric, qos: int, reader_at: str
) -> None:
    """At a site that only now gets a copy, and at the topic's home; two subscriptions that overlap
    make no second one."""
    async with (
        Device(fabric[reader_at], "reader") as reader,
        Device(fabric[reader_at], "other") as other,
        Device(fabric["farm"], "writer") as writer,
        fabric.connect(reader_at, "admin") as admin,
    ):
        assert await other.subscribe("t/+/x", qos) == qos
        assert await reader.subscribe("t/t/#", qos) == qos
        await is_listening(fabric, reader_at)
        for data in numbers("a"):
            await writer.publish("p/t/x", data.decode(), qos)
        await until(lambda: len(reader.received) >= 20 and len(other.received) >= 20)
        await until(lambda: nothing_waits(admin))  # the engine counts them as delivered
        for device in (reader, other):
            assert device.received == [("t/t/x", data) for data in numbers("a")]


async def test_a_session_that_was_away_gets_what_was_published_elsewhere(
    fabric: LocalFabric,
) -> None:
    async with Device(fabric["lab"], "sleeper", persistent=True) as sleeper:
        await sleeper.subscribe("t/t/#", 1)
        await is_listening(fabric, "lab")
    async with Device(fabric["farm"], "writer") as writer, fabric.connect("lab") as client:
        for data in numbers("a"):
            await writer.publish("p/t", data.decode(), 1)
        await until(lambda: _has(client, 20))
    async with Device(fabric["lab"], "sleeper", persistent=True) as sleeper:
        await until(lambda: len(sleeper.received) >= 20)
        assert [data for _, data in sleeper.received] == numbers("a")


async def test_it_goes_on_after_the_engine_of_the_subscriber_was_killed(
    fabric: LocalFabric,
) -> None:
    async with (
        Device(fabric["lab"], "reader", persistent=True) as reader,
        Device(fabric["farm"], "writer") as writer,
    ):
        await reader.subscribe("t/t/#", 1)
        await is_listening(fabric, "lab")
        await writer.publish("p/t", "before", 1)
        await until(lambda: len(reader.received) == 1)
        losses = reader.losses
        fabric["lab"].kill_engine()
        await until(lambda: reader.losses > losses)
        for data in numbers("meanwhile"):
            await writer.publish("p/t", data.decode(), 1)
        texts = numbers("meanwhile")
        await until(lambda: reader.received[-1][1] == texts[-1])
        received = [data for _, data in reader.received]
        # The engine may have died before it knew that the first had come: QoS 1 sends it again.
        assert received in ([b"before", *texts], [b"before", b"before", *texts])


async def _has(client: Client, index: int) -> bool:
    return await client.latest_index("t") >= index
