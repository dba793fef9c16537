"""What travels between a client and a site's agent: requests, answers, status.

Requests go to `_sk.<site>.open.<service>` (any SDK user) or `_sk.<site>.admin.<service>`
(administrators: the engine lets nobody else publish there). Bodies are JSON.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Fault(msgspec.Struct):
    """An error as it travels; `kind` names a class of `skerry.errors`."""

    kind: str
    what: str
    advice: str = ""


class Answer(msgspec.Struct, omit_defaults=True):
    """What a service answers: `ok` or `error`."""

    ok: msgspec.Raw = msgspec.Raw(b"null")
    error: Fault | None = None


class TopicRequest(msgspec.Struct):
    """Asks to create or to change a topic. `settings` holds what differs from the default, or
    what is to change."""

    name: str
    settings: dict[str, Any] = {}


class TopicName(msgspec.Struct):
    """Asks to delete a topic."""

    name: str


class SiteStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a site is at this moment."""

    site: str
    address: str
    data: str
    durability: str
    engine: str
    engine_pid: int | None
    agent_pid: int
    restarts: int
    uptime: float
    topics: int
    subscriptions: int
    stored_bytes: int
    memory_bytes: int
    """Resident memory of the engine and this process."""
    mqtt_port: int | None
    websocket_port: int | None
