"""Events of plain clients for topics that do not exist: kept, counted and reported."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import nats.errors
import pytest

from skerry import Client
from skerry.errors import AccessDenied
from skerry.fabric import outbox
from skerry.site import strays
from skerry.testing import LocalFabric, LocalSite
from tests.conftest import until
from tests.live.commandline import skerry
from tests.live.test_plain import Device, flushed, nats_client


@pytest.fixture
async def site() -> AsyncIterator[LocalSite]:
    """A site that takes MQTT clients, with topic `t`."""
    async with LocalSite(mqtt_port=0) as site, site.connect() as client:
        await client.create_topic("t")
        yield site


async def strays_at(client: Client, name: str = "local") -> list[tuple[str, bytes]]:
    """What is kept of them: topics, as they were meant, and payloads."""
    log = f"strays/{name}"
    if log not in [topic.name for topic in await client.topics()]:
        return []
    return [(e.topic.removeprefix(f"{log}/"), e.data) async for e in client.read(log)]


async def are_kept(client: Client, count: int, name: str = "local") -> list[tuple[str, bytes]]:
    """Wait until so many are kept; return them."""

    async def there() -> bool:
        return len(await strays_at(client, name)) >= count

    await until(there)
    return await strays_at(client, name)


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_mqtt_publishes_to_no_topic_is_kept_and_what_a_topic_takes_is_not(
    site: LocalSite, client: Client, qos: int
) -> None:
    async with Device(site) as device:
        await device.publish("p/t/roof", "stored", qos)
        for number in range(50):
            await device.publish("p/sensor/roof", f"lost {number}", qos)
        await device.publish("p/t", "stored too", qos)
        found = await are_kept(client, 50)
    assert found == [("sensor/roof", b"lost %d" % number) for number in range(50)]
    assert [event.data async for event in client.read("t")] == [b"stored", b"stored too"]
    status = await client.status()
    assert (status.strays, status.strays_kept, status.last_stray) == (50, 50, "sensor/roof")


async def test_status_and_doctor_tell_of_strays_and_how_to_read_them(
    site: LocalSite, client: Client
) -> None:
    async def run(*command: str) -> str:
        result = await asyncio.to_thread(skerry, site.data, *command)
        assert result.code == 0, result.err
        return result.out

    assert "no event was for a topic that does not exist" in await run("doctor")
    async with Device(site) as device:
        await device.publish("p/sensor/roof", "21.5", 1)
    await are_kept(client, 1)
    assert "the last for sensor/roof" in await run("status")
    doctor = await run("doctor")
    assert "1 event for topics that do not exist, the last for sensor/roof" in doctor
    assert "skerry read strays/local" in doctor
    assert "21.5" in await run("read", "strays/local")
    assert "strays" not in await run("topic", "list")
    await run("topic", "delete", "strays/local", "--yes")
    assert "no event was for a topic that does not exist" in await run("doctor")
    async with Device(site) as device:
        await device.publish("p/sensor/roof", "again", 1)
    assert await are_kept(client, 1) == [("sensor/roof", b"again")]


async def test_doctor_tells_of_a_forgotten_prefix(site: LocalSite) -> None:
    """MQTT acknowledges that too."""
    async with Device(site) as device:
        await device.publish("sensors/x", "21.5", 1)
    doctor = await asyncio.to_thread(skerry, site.data, "doctor")
    assert "1 event to where nobody may publish, the last to sensors.x" in doctor.out
    assert "p/<topic>" in doctor.out


async def test_a_nats_publish_without_a_reply_is_kept_and_a_request_is_refused(
    site: LocalSite, client: Client
) -> None:
    async with nats_client(site) as plain:
        await plain.publish("p.unknown", b"one", headers={"unit": "K", "Nats-Msg-Id": "1"})
        with pytest.raises(nats.errors.NoRespondersError):
            await plain.request("p.unknown", b"two", timeout=20)
        await plain.publish("p.unknown", b"three", headers={"Nats-Expected-Stream": "other"})
        await flushed(plain)
        assert await are_kept(client, 2) == [("unknown", b"one"), ("unknown", b"three")]
    assert [event.headers async for event in client.read("strays/local")] == [{"unit": "K"}, {}]


async def test_strays_are_kept_across_restarts_and_counted_on(tmp_path: Path) -> None:
    for number in range(2):
        async with LocalSite(mqtt_port=0, data=tmp_path) as site, site.connect() as client:
            async with Device(site) as device:
                await device.publish("p/unknown", str(number), 1)
                await are_kept(client, number + 1)
            assert (await client.status()).strays == number + 1


async def test_a_topic_that_is_made_takes_what_was_astray_before(
    site: LocalSite, client: Client, admin: Client
) -> None:
    async with Device(site) as device:
        await device.publish("p/late/x", "astray", 1)
        await are_kept(client, 1)
        await client.create_topic("late")
        await device.publish("p/late/x", "stored", 1)
        await until(lambda: _reaches(client, "late", 1))
        await admin.delete_topic("late")
        await device.publish("p/late/x", "astray again", 1)
        found = await are_kept(client, 2)
    assert found == [("late/x", b"astray"), ("late/x", b"astray again")]


async def _reaches(client: Client, topic: str, index: int) -> bool:
    return await client.latest_index(topic) >= index


async def test_strays_never_fill_the_disk(site: LocalSite, client: Client) -> None:
    """Here 4 MB at most, of 12 MB that were sent; the index counts all of them."""
    async with site.connect("admin") as admin, nats_client(site) as plain:
        await plain.publish("p.unknown", b"first")
        await are_kept(client, 1)
        log = await client.topic("strays/local")
        assert log.settings.max_bytes == strays.KEEP_BYTES == 16 * 1024 * 1024
        await admin.set_topic("strays/local", max_bytes=4_000_000)
        for number in range(12):
            await plain.publish(f"p.unknown.{number}", bytes(1_000_000))
        await flushed(plain)
        await until(lambda: _counts(client, 13))
    log = await client.topic("strays/local")
    assert log.bytes <= 4_000_000
    assert log.events == 3


async def _counts(client: Client, number: int) -> bool:
    return (await client.status()).strays == number


async def test_strays_that_come_faster_than_they_can_be_written_are_kept(
    site: LocalSite, client: Client
) -> None:
    async with nats_client(site) as plain:
        await plain.publish("p.unknown", b"0")
        await are_kept(client, 1)
        found = site.site._strays
        assert found is not None
        assert found._events is not None
        found._events.on_congested(True)
        for number in range(1, 4):
            await plain.publish("p.unknown", str(number).encode())
        await until(lambda: len(found._waiting) == 3)
        found._events.on_congested(False)
        assert await are_kept(client, 4) == [("unknown", b"%d" % number) for number in range(4)]
    assert found._waiting_bytes == 0


async def test_only_the_site_writes_to_its_strays(site: LocalSite, client: Client) -> None:
    with pytest.raises(AccessDenied):
        await client.create_topic("strays/other")
    async with nats_client(site) as plain:
        await plain.publish("p.unknown", b"astray")
        await are_kept(client, 1)
        await plain.publish("p.strays.local.unknown", b"forged")
        await plain.publish("p.unknown", b"behind it")
        await flushed(plain)
    assert await are_kept(client, 2) == [("unknown", b"astray"), ("unknown", b"behind it")]
    with pytest.raises(AccessDenied):
        await client.publish("strays/local/unknown", b"forged")


async def test_a_reply_that_is_no_inbox_of_a_client_is_not_answered(
    site: LocalSite, client: Client, admin: Client
) -> None:
    """The agent may publish where the client may not. The first shows that it does answer."""
    heard: list[str] = []
    for subject in ("_INBOX.mine", "_INBOX_sk.local.sdk.x", "$JS.API.STREAM.PURGE.t~t", "t.t"):
        admin._open.connection.subscribe(subject, lambda s, *_: heard.append(s.decode()))
    await client.publish("t", "stays")
    await admin.status()  # the engine knows what we listen to
    heard.clear()
    async with nats_client(site) as plain:
        for reply in ("$JS.API.STREAM.PURGE.t~t", "_INBOX_sk.local.sdk.x", "t.t", "_INBOX.mine"):
            await plain.publish("p.unknown", b"", reply=reply)
        await flushed(plain)
        await until(lambda: "_INBOX.mine" in heard)
    assert heard == ["_INBOX.mine"]
    assert (await client.topic("t")).events == 1


async def test_names_that_no_topic_can_have_are_kept_under_good_ones(
    site: LocalSite, client: Client
) -> None:
    async with nats_client(site) as plain:
        for subject in ("p.a$b.c", "p.>", "p.*.x", "p." + ".".join("abcdefghijklmnopqrst")):
            await plain.publish(subject, b"x")
        await flushed(plain)
        found = [topic for topic, _ in await are_kept(client, 4)]
    assert found == ["a_b/c", "_", "_/x", "/".join("abcdefghijklmn")]


async def test_the_log_names_each_stray_topic_once(
    site: LocalSite, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "skerry.site")
    async with Device(site) as device:
        for number in range(3 * strays.NAMED):
            await device.publish(f"p/unknown/{number // 2}", "x", 0)
        await are_kept(client, 3 * strays.NAMED)
    lines = [r.message for r in caplog.records if "there is no topic" in r.message]
    assert len(lines) == len(set(lines)) == strays.NAMED


# In a fabric


async def test_a_site_of_a_fabric_keeps_its_strays_though_the_leader_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They wait in the outbox until the log can be made."""
    monkeypatch.setattr(outbox, "UNKNOWN", 0.5)
    async with LocalFabric(["hub", "farm"], mqtt_port=0) as fabric:
        async with fabric.connect("farm") as client:
            await client.create_topic("t")
        await fabric.crash("hub")
        async with Device(fabric["farm"]) as device, nats_client(fabric["farm"]) as plain:
            for number in range(5):
                await device.publish("p/unknown/x", str(number), 1)
            await plain.request("p.unknown.y", b"5", headers={"Nats-Msg-Id": "5"}, timeout=20)
            await device.publish("p/t", "stored", 1)
            async with fabric.connect("farm") as client:
                await until(lambda: _reaches(client, "t", 1))  # nothing waits behind them
        await fabric.start("hub")
        async with fabric.connect("farm") as client:
            found = await are_kept(client, 6, "farm")
            assert sorted(found) == [
                *(("unknown/x", b"%d" % number) for number in range(5)),
                ("unknown/y", b"5"),
            ]
            assert (await client.topic("strays/farm")).home == "farm"
            assert (await client.status()).strays == 6
        async with fabric.connect("hub") as client:
            assert len(await strays_at(client, "farm")) == 6
            assert (await client.status()).strays == 0


async def test_what_the_directory_may_know_is_not_astray(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site cannot ask whether there is the topic that a device publishes to: the event waits."""
    monkeypatch.setattr(outbox, "UNKNOWN", 0.2)
    tries = 0
    give_away = outbox.Outbox._give_away

    async def count(self: outbox.Outbox, topic: str, subject: str) -> None:
        nonlocal tries
        await give_away(self, topic, subject)
        tries += topic == "late"

    monkeypatch.setattr(outbox.Outbox, "_give_away", count)
    async with (
        LocalFabric(["hub", "farm"], mqtt_port=0) as fabric,
        Device(fabric["farm"]) as device,
        fabric.connect("farm") as client,
    ):
        await device.publish("p/unknown", "astray", 1)
        assert await are_kept(client, 1, "farm") == [("unknown", b"astray")]
        await fabric.crash("hub")
        await device.publish("p/late", "not astray", 1)
        await until(lambda: tries > 0)
        monkeypatch.setattr(outbox, "UNKNOWN", 60.0)
        await fabric.start("hub")
        async with fabric.connect("hub") as other:
            await other.create_topic("late")
        await until(lambda: _reaches(client, "late", 1))
        assert len(await strays_at(client, "farm")) == 1


async def test_a_publish_to_a_pattern_empties_nobody_s_outbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine takes `p.>` for a name. What the outbox holds of topics stays in it."""
    monkeypatch.setattr(outbox, "UNKNOWN", 0.2)
    async with LocalFabric(["hub", "farm"]) as fabric:
        async with fabric.connect("hub") as client:
            await client.create_topic("t", home="hub")
        await fabric.crash("hub")
        async with nats_client(fabric["farm"]) as plain:
            for number in range(20):
                await plain.publish("p.t.x", str(number).encode())
            await plain.publish("p.>", b"a pattern")
            await plain.publish("p.t.*", b"another")
            await flushed(plain)
        await fabric.start("hub")
        async with fabric.connect("farm") as client:
            assert await are_kept(client, 1, "farm") == [("_", b"a pattern")]
            await until(lambda: _reaches(client, "t", 21))
            texts = [event.data async for event in client.read("t")]
        assert texts == [*(b"%d" % number for number in range(20)), b"another"]
