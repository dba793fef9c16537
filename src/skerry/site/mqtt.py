"""MQTT subscribers with QoS 1 and 2 on `t/<topic>`.

The engine hands a message that an MQTT client published with QoS 1 or 2 to QoS 1 and 2 subscribers
only out of its own stream `$MQTT_msgs`, never directly, and it files the message there under the
subject it was mapped to: `$MQTT.msgs.s.<site>.p.<topic>`. What a topic's log republishes to `t.…`
still carries the publisher's QoS mark, so such subscribers would get nothing
(docs/adr/0003-plain-publish.md). We therefore have that stream file it under `t.<topic>`. It keeps
a message only while a session with QoS 1 or 2 waits for it.

The stream must not take `t.>` itself: events without that mark (from the SDK, from plain NATS, with
QoS 0) go to all subscribers directly, and copies of them in the stream are never acknowledged.
After 1024 of those a session would be given nothing any more.
"""

from __future__ import annotations

from typing import Any

from skerry.engine.jetstream import JetStream

STREAM = "$MQTT_msgs"
KEEP = 7 * 24 * 3600
"""Seconds that a message waits for an absent MQTT session. The engine's default is for ever, and
a device that never comes back would fill the disk."""


async def prepare_mqtt(jetstream: JetStream, mapped: str) -> None:
    """Make or change the engine's MQTT stream so that subscribers of `t.…` find there what was
    published to `p.…`, which the engine maps to `mapped` (`s.<site>.p`)."""
    wanted: dict[str, Any] = {
        "name": STREAM,
        "subjects": ["$MQTT.msgs.>"],
        "subject_transform": {"src": f"$MQTT.msgs.{mapped}.>", "dest": "$MQTT.msgs.t.>"},
        "retention": "interest",
        "storage": "file",
        "num_replicas": 1,
        "max_age": KEEP * 1_000_000_000,
    }
    existing = await jetstream.stream(STREAM)
    if existing is None:
        await jetstream.call(f"STREAM.CREATE.{STREAM}", wanted)
    elif any(existing["config"].get(name) != value for name, value in wanted.items()):
        config = {k: v for k, v in existing["config"].items() if k != "metadata"}
        await jetstream.call(f"STREAM.UPDATE.{STREAM}", {**config, **wanted})
