"""Functions as sites keep them: who may write where, what a deployment writes, what runs where."""

from __future__ import annotations

import asyncio

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from skerry import Client, errors
from skerry.functions.deploying import make_topics
from skerry.model.functions import REGISTRY
from skerry.testing import LocalFabric, LocalSite
from tests.live.test_security import address_of, intruder

# Rights: whoever writes below functions/ decides which code runs.


@pytest.mark.parametrize("name", ["functions", "functions/registry", "functions/mine"])
async def test_nobody_makes_a_topic_below_functions(admin: Client, name: str) -> None:
    with pytest.raises(errors.AccessDenied, match="Skerry's own"):
        await admin.create_topic(name)


async def test_nobody_makes_a_topic_below_functions_in_a_fabric() -> None:
    async with LocalFabric(1) as fabric, fabric.connect("site1", "admin") as admin:
        with pytest.raises(errors.AccessDenied, match="Skerry's own"):
            await admin.create_topic("functions/mine")


@pytest.mark.parametrize("user", ["sdk", "plain"])
async def test_clients_cannot_write_below_functions(site: LocalSite, user: str) -> None:
    async with intruder(site, user) as client:
        for subject in (
            "s.local.0.functions.registry.spec.x",
            "s.local.0.functions",
            "s.local.7.functions.journals.x.y.w",
        ):
            assert await client.is_denied(subject), subject
        await client.client.publish("p.functions.registry.spec.x", b"{}")
        assert "functions.registry.spec.x" in await client._answers()
        assert not await client.is_denied("s.local.0.other.functions.x")


async def test_the_process_that_runs_functions_can(site: LocalSite) -> None:
    async with intruder(site, "functions") as host:
        assert not await host.is_denied("s.local.0.functions.journals.x.y.w")
        for subject in ("_sk.local.admin.function.deploy", "$JS.API.STREAM.DELETE.x", "e.x"):
            assert await host.is_denied(subject), subject


@pytest.mark.parametrize("user", ["sdk", "plain"])
async def test_clients_cannot_write_below_functions_of_a_fabric(user: str) -> None:
    fabric = LocalFabric(["local", "other"])
    async with fabric, intruder(fabric["local"], user) as client:
        for subject in (
            "s.other.1.functions.registry.spec.x",
            "o.local.functions.registry.spec.x",
            "o.local.functions",
        ):
            assert await client.is_denied(subject), subject


async def test_nor_over_mqtt() -> None:
    async with LocalSite(mqtt_port=0) as site, site.connect("admin") as admin:
        assert site.site.functions is not None
        await make_topics(site.site.functions.places)
        await admin.create_topic("other")
        address = address_of(site, "plain")
        client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv311)
        client.username_pw_set(address.user, address.password)
        assert site.site.ports.mqtt is not None
        client.connect(address.host, site.site.ports.mqtt)
        client.loop_start()
        try:
            client.publish("p/functions/registry/spec/x", b"{}", qos=0).wait_for_publish(20)
            client.publish("p/other", b"behind it", qos=0).wait_for_publish(20)
            async with asyncio.timeout(20):
                while not await admin.latest_index("other"):
                    await asyncio.sleep(0.01)
        finally:
            client.loop_stop()
            client.disconnect()
        assert await admin.latest_index(REGISTRY) == 0


async def test_a_feed_is_no_way_around_it(site: LocalSite, client: Client) -> None:
    """The agent publishes for simple clients, with its own rights."""
    assert site.site.functions is not None
    await make_topics(site.site.functions.places)
    with pytest.raises(errors.AccessDenied, match="Skerry's own"):
        await client.feed({"a": 1}, topic=f"{REGISTRY}/spec/x")
