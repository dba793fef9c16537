"""Who takes part in the demonstration: publishers and subscribers, with and without the SDK."""

from __future__ import annotations

import asyncio
import time

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from skerry import Client
from skerry.engine.address import find_address
from skerry.model.topic import Ack
from skerry.testing import LocalSite

PAUSE = 0.01
"""Seconds between two events of one publisher."""


class Publisher:
    """Publishes 0, 1, 2, … to a sub-topic of its own, and knows what was acknowledged."""

    def __init__(self, site: str, topic: str, does: str) -> None:
        self.site = site
        self.topic = topic
        self.does = does
        self.sent = 0
        self.acked = 0
        self.longest_gap = 0.0
        """Seconds between two acknowledgements, at the most, since this was last set to 0."""
        self._last = 0.0

    def __str__(self) -> str:
        return f"{self.site:4} publishes to {self.topic} ({self.does})"

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until told to stop; then wait for every acknowledgement."""
        raise NotImplementedError

    def _acknowledged(self) -> None:
        now = time.monotonic()
        if self.acked:
            self.longest_gap = max(self.longest_gap, now - self._last)
        self._last = now
        self.acked += 1


class Sensor(Publisher):
    """Publishes through the SDK: many events in flight, each acknowledged at level `ack`."""

    def __init__(self, client: Client, topic: str, ack: Ack) -> None:
        super().__init__(client.site, topic, f"SDK, acknowledged at level {ack}")
        self._client = client
        self._ack = ack

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until told to stop; then wait for every acknowledgement."""
        async with self._client.publisher(self.topic.split("/")[0], ack=self._ack) as publisher:
            while not stop.is_set():
                ack = await publisher.send(str(self.sent), topic=self.topic)
                ack.add_done_callback(self._done)
                self.sent += 1
                await asyncio.sleep(PAUSE)

    def _done(self, ack: asyncio.Future[int]) -> None:
        if ack.exception() is None:  # if not, leaving the publisher's block raises it
            self._acknowledged()


class Device(Publisher):
    """A plain MQTT 3.1.1 client that knows nothing of Skerry: publishes with QoS 1."""

    def __init__(self, site: LocalSite, topic: str) -> None:
        super().__init__(site.settings.site, topic, "plain MQTT, QoS 1")
        self._address = find_address(site.data, user="plain")
        self._port = site.site.ports.mqtt or 0

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until told to stop; then wait for every acknowledgement."""
        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="door")
        client.username_pw_set(self._address.user, self._address.password)
        client.on_publish = lambda *_: self._acknowledged()
        client.connect(self._address.host, self._port)
        client.loop_start()
        try:
            while not stop.is_set():
                client.publish(f"p/{self.topic}", str(self.sent), qos=1)
                self.sent += 1
                await asyncio.sleep(PAUSE)
            async with asyncio.timeout(20):
                while self.acked < self.sent:
                    await asyncio.sleep(0.05)
        finally:
            client.disconnect()
            client.loop_stop()


class Subscriber:
    """Follows a topic at its own site: live, or by a durable subscription."""

    def __init__(self, client: Client, topic: str, durable: str | None = None) -> None:
        self.site = client.site
        self.topic = topic
        self.does = "live" if durable is None else "durable"
        self.seen: list[int] = []
        """The indexes that came, in that order."""
        self.ready = asyncio.Event()
        self._client = client
        self._durable = durable

    def __str__(self) -> str:
        return f"{self.site:4} subscribes to {self.topic} ({self.does})"

    async def run(self) -> None:
        """Take what comes."""
        async with self._client.subscribe(self.topic, durable=self._durable) as events:
            self.ready.set()
            async for event in events:
                self.seen.append(event.index)
                if self._durable is not None:
                    events.ack(event)
