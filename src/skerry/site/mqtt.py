"""MQTT subscribers with QoS 1 and 2 on `t/<topic>`.

The engine hands a message that an MQTT client published with QoS 1 or 2 to QoS 1 and 2 subscribers
only out of its own stream `$MQTT_msgs`, never directly. What a topic's log republishes to `t.…`
still carries the publisher's QoS mark but is not in that stream, so such subscribers would get
nothing (docs/adr/0003-plain-publish.md). We therefore have that stream take `t.>` as well. It
keeps a message only while a session with QoS 1 or 2 waits for it.
"""

from __future__ import annotations

from typing import Any

from skerry.engine.jetstream import JetStream

STREAM = "$MQTT_msgs"
KEEP = 7 * 24 * 3600
"""Seconds that a message waits for an absent MQTT session. The engine's default is for ever, and
a device that never comes back would fill the disk."""


async def prepare_mqtt(jetstream: JetStream) -> None:
    """Make or change the engine's MQTT stream so that it takes what topics deliver."""
    wanted: dict[str, Any] = {
        "name": STREAM,
        "subjects": ["$MQTT.msgs.>", "t.>"],
        "subject_transform": {"src": "t.>", "dest": "$MQTT.msgs.t.>"},
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
