"""Who takes part in the demonstration: publishers and subscribers, with and without the SDK."""

from __future__ import annotations

import asyncio
import json
import math
import time
from functools import partial

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from skerry import Client
from skerry.engine.address import find_address
from skerry.testing import LocalSite

RATE = 500
"""Events a second that each sensor publishes."""


class Sensor:
    """Publishes through the SDK, many events in flight."""

    does = "SDK, publishes"

    def __init__(self, client: Client, topic: str) -> None:
        self.name = topic.rpartition("/")[2] + " sensor"
        self.topic = topic
        self.events = 0
        self.acked: int | None = 0
        self.longest: float | None = 0.0
        self._client = client

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until told to stop; then wait for every acknowledgement."""
        async with self._client.publisher("sensors") as publisher:
            while not stop.is_set():
                temperature = 20 + 5 * math.sin(self.events / 500)
                data = json.dumps({"n": self.events, "celsius": round(temperature, 2)})
                ack = await publisher.send(data, topic=self.topic)
                ack.add_done_callback(partial(self._acknowledged, time.monotonic()))
                self.events += 1
                await asyncio.sleep(1 / RATE)

    def _acknowledged(self, sent: float, ack: asyncio.Future[int]) -> None:
        ack.result()
        self.acked = (self.acked or 0) + 1
        self.longest = max(self.longest or 0.0, time.monotonic() - sent)


class Device:
    """A plain MQTT 3.1.1 client that knows nothing of Skerry: publishes with QoS 1."""

    name = "MQTT device"
    does = "plain MQTT, publishes"

    def __init__(self, site: LocalSite, topic: str) -> None:
        self.events = 0
        self.sure: set[bytes] = set()
        self.longest: float | None = None
        self._topic = topic
        self._waiting: dict[int, bytes] = {}
        self._address = find_address(site.data, user="plain")
        self._port = site.site.ports.mqtt or 0

    @property
    def acked(self) -> int | None:
        """How many publishes the engine has acknowledged."""
        return len(self.sure)

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until told to stop; then wait for every acknowledgement."""
        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="cellar")
        client.username_pw_set(self._address.user, self._address.password)
        client.reconnect_delay_set(1, 1)
        client.on_publish = lambda _c, _u, mid, _r, _p: self.sure.add(self._waiting.pop(mid, b""))
        client.connect(self._address.host, self._port)
        client.loop_start()
        try:
            while not stop.is_set():
                data = json.dumps({"n": self.events, "celsius": 12.5}).encode()
                self._waiting[client.publish(f"p/{self._topic}", data, qos=1).mid] = data
                self.events += 1
                await asyncio.sleep(0.02)
            async with asyncio.timeout(20):
                while self._waiting:
                    await asyncio.sleep(0.05)
        finally:
            client.disconnect()
            client.loop_stop()
            self.sure.discard(b"")


class Dashboard:
    """Follows the topic live."""

    name = "dashboard"
    does = "SDK, live"
    acked: int | None = None
    longest: float | None = None

    def __init__(self, client: Client, topic: str) -> None:
        self.events = 0
        self.ready = asyncio.Event()
        self._client, self._topic = client, topic

    async def run(self) -> None:
        """Count what comes."""
        async with self._client.subscribe(self._topic) as subscription:
            self.ready.set()
            async for _ in subscription:
                self.events += 1


class Archive:
    """Follows the topic by a durable subscription and acknowledges each event."""

    name = "archive"
    does = "SDK, durable"
    acked: int | None = None
    longest: float | None = None

    def __init__(self, client: Client, topic: str) -> None:
        self.indexes: set[int] = set()
        self.ready = asyncio.Event()
        self._client, self._topic = client, topic

    @property
    def events(self) -> int:
        """How many different events came."""
        return len(self.indexes)

    async def run(self) -> None:
        """Take and acknowledge what comes."""
        async with self._client.subscribe(self._topic, durable="archive") as subscription:
            self.ready.set()
            async for event in subscription:
                self.indexes.add(event.index)
                subscription.ack(event)
