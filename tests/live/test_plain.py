"""Clients without the SDK: MQTT, WebSocket and plain NATS publish, and receive, as anyone else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import nats.errors
import paho.mqtt.client as mqtt
import pytest
from nats.aio.client import Client as NATS
from paho.mqtt.enums import CallbackAPIVersion
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket

from skerry import Client
from skerry.engine.address import Address
from skerry.engine.jetstream import JetStream
from skerry.testing import LocalSite
from tests.conftest import until


@pytest.fixture
async def site() -> AsyncIterator[LocalSite]:
    """A site that takes MQTT and WebSocket clients, with topic `t`."""
    async with LocalSite(mqtt_port=0, websocket_port=0) as site, site.connect() as client:
        await client.create_topic("t")
        yield site


def plain(site: LocalSite) -> Address:
    """Where plain clients connect, and with which password."""
    return Address.load(site.data / "credentials" / "plain.json")


async def log_of(client: Client) -> list[tuple[str, bytes]]:
    return [(event.topic, event.data) async for event in client.read("t")]


# MQTT


async def flushed(client: NATS) -> None:
    """Until the engine has taken what a client of nats-py said. Its `flush` pings past what it has
    not written yet; by the answer that is written, and the second ping is behind it."""
    await client.flush()
    await client.flush()


class Device:
    """An MQTT client in a thread of its own."""

    def __init__(self, site: LocalSite, name: str = "", *, persistent: bool = False) -> None:
        self.received: list[tuple[str, bytes]] = []
        self.granted: list[int] = []
        """What the last subscription was granted: a QoS, or 128 for none."""
        self.up = threading.Event()
        self.losses = 0
        """How often the connection was lost."""
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=name, clean_session=not persistent
        )
        address = plain(site)
        self._client.username_pw_set(address.user, address.password)
        self._client.reconnect_delay_set(min_delay=1, max_delay=1)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message
        self._client.on_subscribe = self._on_subscribe
        self._port = site.site.ports.mqtt or 0

    async def __aenter__(self) -> Device:
        await asyncio.to_thread(self._client.connect, "127.0.0.1", self._port)
        self._client.loop_start()
        await until(self.up.is_set)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._client.disconnect()
        await asyncio.to_thread(self._client.loop_stop)

    async def subscribe(self, pattern: str, qos: int) -> int:
        """Subscribe and wait for the answer; return what was granted."""
        self.granted = []
        self._client.subscribe(pattern, qos)
        await until(lambda: bool(self.granted))
        return self.granted[0]

    async def publish(self, topic: str, data: str | bytes, qos: int) -> None:
        """Publish, and for QoS 1 and 2 wait for the acknowledgement."""
        sending = self._client.publish(topic, data, qos)
        await until(sending.is_published)

    def _on_connect(self, client: Any, userdata: Any, flags: Any, code: Any, _: Any) -> None:
        assert not code.is_failure, code
        self.up.set()

    def _on_disconnect(self, *_: Any) -> None:
        self.up.clear()
        self.losses += 1

    def _on_subscribe(self, client: Any, userdata: Any, number: Any, codes: Any, _: Any) -> None:
        self.granted = [code.value for code in codes]

    def _on_message(self, client: Any, userdata: Any, message: mqtt.MQTTMessage) -> None:
        self.received.append((message.topic, bytes(message.payload)))


async def nothing_waits(admin: Client) -> bool:
    """Whether every MQTT session has acknowledged everything the engine keeps for it."""
    info = await JetStream(admin._open.connection).stream("$MQTT_msgs")
    return info is not None and info["state"]["messages"] == 0


async def test_the_engine_s_own_streams_for_mqtt_are_no_topics(
    site: LocalSite, client: Client
) -> None:
    """It makes several when the first MQTT client comes."""
    async with Device(site) as device:
        await device.subscribe("t/t", 1)
        assert (await client.status()).topics == len(await client.topics()) == 1


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_mqtt_publishes_is_in_the_log_and_reaches_subscribers(
    site: LocalSite, client: Client, qos: int
) -> None:
    async with Device(site) as device, client.subscribe("t") as events:
        await device.publish("p/t", "one", qos)
        await device.publish("p/t/sub/deep", "two", qos)
        seen = [await anext(events) for _ in range(2)]
    assert [(e.index, e.topic, e.data) for e in seen] == [
        (1, "t", b"one"),
        (2, "t/sub/deep", b"two"),
    ]
    assert await log_of(client) == [("t", b"one"), ("t/sub/deep", b"two")]
    assert seen[0].headers == {}


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_an_mqtt_subscriber_gets_every_event_once(
    site: LocalSite, client: Client, admin: Client, qos: int
) -> None:
    """From MQTT publishers of every QoS and from the SDK, of the topic and its sub-topics."""
    async with Device(site, "reader") as reader, Device(site, "writer") as writer:
        assert await reader.subscribe("t/t/#", qos) == qos
        expected = []
        for number in range(20):
            for level in (0, 1, 2):
                await writer.publish("p/t/mqtt", f"{level}-{number}", level)
                expected.append(("t/t/mqtt", b"%d-%d" % (level, number)))
            await client.publish("t", f"sdk-{number}")
            expected.append(("t/t", b"sdk-%d" % number))
        await until(lambda: len(reader.received) >= len(expected))
        await until(lambda: nothing_waits(admin))  # nor does a second copy
        await client.publish("t", "last")
        await until(lambda: ("t/t", b"last") in reader.received)
        counts = Counter(reader.received)
    assert counts == Counter([*expected, ("t/t", b"last")])


async def test_an_mqtt_session_is_not_stalled_by_events_of_others(
    site: LocalSite, client: Client
) -> None:
    """The engine lets 1024 events wait for a session's acknowledgement. Those of the SDK, which
    are never acknowledged, must not be among them."""
    async with Device(site, "reader", persistent=True) as reader, Device(site, "writer") as writer:
        await reader.subscribe("t/t/#", 1)
        async with client.publisher("t") as publisher:
            for number in range(1500):
                await publisher.send(str(number))
        await writer.publish("p/t", "from MQTT", 1)
        await until(lambda: ("t/t", b"from MQTT") in reader.received)
        await until(lambda: len(reader.received) == 1501)


async def test_an_mqtt_session_gets_what_was_published_while_it_was_away(
    site: LocalSite, admin: Client
) -> None:
    async with Device(site, "sleeper", persistent=True) as sleeper:
        assert await sleeper.subscribe("t/t/#", 1) == 1
    async with Device(site, "writer") as writer:
        for number in range(50):
            await writer.publish("p/t", str(number), 1)
    async with Device(site, "sleeper", persistent=True) as sleeper:
        await until(lambda: len(sleeper.received) >= 50)
        await until(lambda: nothing_waits(admin))
        assert Counter(sleeper.received) == Counter(("t/t", b"%d" % n) for n in range(50))


async def test_mqtt_goes_on_after_an_engine_kill(site: LocalSite, client: Client) -> None:
    """A session that lasts finds its subscription again, and the log takes its publishes."""
    async with (
        Device(site, "reader", persistent=True) as reader,
        Device(site, "writer", persistent=True) as writer,
    ):
        await reader.subscribe("t/t/#", 1)
        await writer.publish("p/t", "before", 1)
        await until(lambda: ("t/t", b"before") in reader.received)
        site.kill_engine()
        await until(lambda: not reader.up.is_set() and not writer.up.is_set())
        await until(lambda: reader.up.is_set() and writer.up.is_set())
        await writer.publish("p/t", "after", 1)
        await client.publish("t", "from the SDK")
        await until(lambda: {("t/t", b"after"), ("t/t", b"from the SDK")} <= set(reader.received))
    assert await log_of(client) == [("t", b"before"), ("t", b"after"), ("t", b"from the SDK")]


async def test_mqtt_to_an_unknown_topic_does_no_harm(site: LocalSite, client: Client) -> None:
    """MQTT 3.1.1 cannot refuse a publish; the device stays connected and the next one counts."""
    async with Device(site) as device:
        await device.publish("p/unknown", "lost", 1)
        await device.publish("p/t", "kept", 1)
        await until(lambda: _has_one(client))
    assert await log_of(client) == [("t", b"kept")]


async def _has_one(client: Client) -> bool:
    return await client.latest_index("t") == 1


async def test_mqtt_may_not_subscribe_beyond_delivery(site: LocalSite) -> None:
    async with Device(site) as device:
        for pattern in ("#", "s/#", "e/#", "_INBOX/#"):
            assert await device.subscribe(pattern, 0) == 128, pattern
        assert await device.subscribe("t/#", 0) == 0


# WebSocket: the NATS protocol by hand


class Browser:
    """The NATS protocol over a WebSocket, as a page would speak it."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._text = b""

    async def send(self, *lines: str) -> None:
        await self._socket.send("".join(f"{line}\r\n" for line in lines).encode())

    async def line(self) -> str:
        """The next line; pings are answered."""
        while b"\r\n" not in self._text:
            await self._more()
        line, _, self._text = self._text.partition(b"\r\n")
        if line == b"PING":
            await self.send("PONG")
            return await self.line()
        return line.decode()

    async def message(self) -> tuple[str, str]:
        """Subject and payload of the next message; headers are dropped."""
        words = (await self.line()).split()
        assert words[0] in ("MSG", "HMSG"), words
        size = int(words[-1])
        while len(self._text) < size + 2:
            await self._more()
        body, self._text = self._text[:size], self._text[size + 2 :]
        return words[1], body[int(words[-2]) if words[0] == "HMSG" else 0 :].decode()

    async def _more(self) -> None:
        data = await self._socket.recv()
        assert isinstance(data, bytes)
        self._text += data


@contextlib.asynccontextmanager
async def browser(site: LocalSite) -> AsyncIterator[Browser]:
    address = plain(site)
    async with (
        asyncio.timeout(20),
        connect_websocket(f"ws://127.0.0.1:{site.site.ports.websocket}") as socket,
    ):
        page = Browser(socket)
        assert (await page.line()).startswith("INFO {")
        hello = {"user": address.user, "pass": address.password, "verbose": False}
        hello |= {"headers": True, "no_responders": True}
        await page.send(f"CONNECT {json.dumps(hello)}", "PING")
        assert await page.line() == "PONG"
        yield page


async def test_a_browser_publishes_and_is_told_the_index(site: LocalSite, client: Client) -> None:
    await client.publish("t", "first")
    async with browser(site) as page:
        await page.send("SUB _INBOX.page.* 1", "PUB p.t.web _INBOX.page.1 5", "hello")
        subject, answer = await page.message()
    assert subject == "_INBOX.page.1"
    assert (json.loads(answer)["stream"], json.loads(answer)["seq"]) == ("t~t", 2)
    assert await log_of(client) == [("t", b"first"), ("t/web", b"hello")]


async def test_a_browser_receives_what_others_publish(site: LocalSite, client: Client) -> None:
    async with browser(site) as page:
        await page.send("SUB t.t 1", "SUB t.t.> 2", "PING")
        assert await page.line() == "PONG"
        await client.publish("t", "one")
        await client.publish("t/sub", "two", headers={"unit": "K"})
        assert [await page.message() for _ in range(2)] == [("t.t", "one"), ("t.t.sub", "two")]


async def test_a_browser_is_told_at_once_that_a_topic_is_unknown(site: LocalSite) -> None:
    async with browser(site) as page:
        await page.send("SUB _INBOX.page.* 1", "PUB p.unknown _INBOX.page.1 1", "x")
        assert (await page.line()).startswith("HMSG _INBOX.page.1 1 ")
        assert await page.line() == "NATS/1.0 503"


# NATS


@contextlib.asynccontextmanager
async def nats_client(site: LocalSite) -> AsyncIterator[NATS]:
    address = plain(site)
    client = await nats.connect(str(address), user=address.user, password=address.password)
    try:
        yield client
    finally:
        await client.close()


async def test_a_nats_client_publishes_and_is_told_the_index(
    site: LocalSite, client: Client
) -> None:
    async with nats_client(site) as plain_client, client.subscribe("t") as events:
        answer = await plain_client.request("p.t.nats", b"hello", headers={"unit": "K"})
        assert json.loads(answer.data)["seq"] == 1
        event = await anext(events)
    assert (event.topic, event.index, event.data) == ("t/nats", 1, b"hello")
    assert event.headers == {"unit": "K"}


async def test_a_nats_client_may_repeat_a_publish_with_the_same_id(
    site: LocalSite, client: Client
) -> None:
    async with nats_client(site) as plain_client:
        for _ in range(2):
            answer = await plain_client.request("p.t", b"x", headers={"Nats-Msg-Id": "once"})
            assert json.loads(answer.data)["seq"] == 1
    assert await client.latest_index("t") == 1


async def test_a_nats_client_receives_what_others_publish(site: LocalSite, client: Client) -> None:
    async with nats_client(site) as plain_client, Device(site) as device:
        subscription = await plain_client.subscribe("t.>")
        await flushed(plain_client)
        await client.publish("t", "from the SDK")
        await device.publish("p/t/mqtt", "from MQTT", 1)
        seen = [await subscription.next_msg(20) for _ in range(2)]
    assert [(message.subject, message.data) for message in seen] == [
        ("t.t", b"from the SDK"),
        ("t.t.mqtt", b"from MQTT"),
    ]


async def test_a_nats_client_is_told_at_once_that_a_topic_is_unknown(site: LocalSite) -> None:
    async with nats_client(site) as plain_client:
        with pytest.raises(nats.errors.NoRespondersError):
            await plain_client.request("p.unknown", b"x", timeout=20)


async def test_delivery_to_plain_clients_can_be_turned_on_and_off(tmp_path: Path) -> None:
    """It costs, so it is off where nobody asked for it; topics follow at the next start."""
    for is_on in (False, True, False):
        async with (
            LocalSite(data=tmp_path, plain=is_on) as site,
            site.connect() as client,
            nats_client(site) as plain_client,
        ):
            await client.create_topic("t")
            subscription = await plain_client.subscribe("t.>")
            await flushed(plain_client)
            answer = await plain_client.request("p.t", b"x", timeout=20)
            assert "error" not in json.loads(answer.data)
            await flushed(plain_client)  # the engine delivers before it acknowledges
            assert subscription.pending_msgs == is_on


async def test_plain_credentials_stay_the_same_when_the_site_restarts(tmp_path: Path) -> None:
    """Devices are given a password once."""
    passwords = set()
    for _ in range(2):
        async with LocalSite(data=tmp_path, mqtt_port=0) as site, Device(site):
            passwords.add(plain(site).password)
    assert len(passwords) == 1
