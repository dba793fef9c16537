"""The engine's configuration: listeners, users and their rights, storage.

Three users share one account. `admin` is the site's own agent and the command line's: it may do
everything in the account. `sdk` publishes, reads and subscribes; topics it has made for it by the
agent, and it can neither change nor delete one. `plain` is for clients without the SDK: it
publishes to `p.>` and receives from `t.>`, nothing else.

A plain publish is mapped by the engine from `p.<topic>` to the topic's write subject, so it costs
no second copy (docs/adr/0003-plain-publish.md). The engine checks rights after the mapping, which
is why `plain` is allowed the mapped subject.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import msgspec

from skerry.config import SiteSettings
from skerry.engine.address import Address, host_port, write_secret
from skerry.engine.folder import Folder, unwritable

USERS = ("admin", "sdk", "plain")
ACCOUNT = "SKERRY"

READ_API = (
    "INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO.*", "DIRECT.GET.*", "CONSUMER.CREATE.>",
    "CONSUMER.INFO.*.*", "CONSUMER.MSG.NEXT.*.*", "CONSUMER.DELETE.*.*", "CONSUMER.NAMES.*",
)  # fmt: skip
"""What of JetStream's API a client needs to read and to subscribe."""


class Ports(msgspec.Struct, frozen=True):
    """The ports in use, after 0 was replaced by a free one."""

    client: int
    mqtt: int | None
    websocket: int | None


def rights(site: str, user: str) -> dict[str, Any] | None:
    """What `user` may publish and subscribe to; None: everything in the account."""
    inbox = f"_INBOX.{site}.{user}.>"
    if user == "sdk":
        api = [f"$JS.API.{call}" for call in READ_API]
        return {
            "publish": {
                "allow": [f"s.{site}.>", f"_sk.{site}.open.>", "$JS.ACK.>", *api],
            },
            "subscribe": {"allow": [inbox, "t.>"]},
        }
    if user == "plain":
        return {
            "publish": {"allow": [f"s.{site}.>"]},
            # MQTT's `t/#` takes in the level above: the engine asks for `t` as well.
            "subscribe": {"allow": ["t", "t.>", "_INBOX.>"], "deny": [f"_INBOX.{site}.>"]},
        }
    return None


def write_conf(folder: Folder, settings: SiteSettings, ports: Ports) -> Path:
    """Write the configuration and the users' connection files; return the former's path.
    Passwords are made once and kept."""
    ca = settings.tls_cert.read_text() if settings.tls_cert else ""
    try:
        return _write(folder, settings, ports, ca)
    except OSError as error:
        raise unwritable(folder.path, error) from None


def _write(folder: Folder, settings: SiteSettings, ports: Ports, ca: str) -> Path:
    folder.credentials.mkdir(mode=0o700, exist_ok=True)
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104
    if ca and host == "127.0.0.1":
        host = "localhost"
    name = settings.advertise
    users = []
    for user in USERS:
        file = folder.credentials / f"{user}.json"
        password = Address.load(file).password if file.exists() else secrets.token_urlsafe(24)
        address = Address(
            site=settings.site,
            host=host if user == "admin" else name or host,
            port=ports.client,
            user=user,
            password=password,
            tls=bool(ca),
            ca=ca,
            verify=name if name and user == "admin" else "",
        )
        address.save(file)
        allowed = rights(settings.site, user)
        users.append(
            {"user": user, "password": password, **({"permissions": allowed} if allowed else {})}
        )
    tls = (
        {"cert_file": str(settings.tls_cert), "key_file": str(settings.tls_key), "timeout": 5}
        if settings.tls_cert
        else None
    )
    conf: dict[str, Any] = {
        "server_name": settings.site,
        "listen": host_port(settings.host, ports.client),
        "max_payload": settings.max_event_bytes,
        "max_pending": max(67108864, 2 * settings.max_event_bytes),
        "write_deadline": "10s",
        "ping_interval": "20s",
        "jetstream": {
            "store_dir": str(folder.path),
            "domain": settings.site,
            "sync_interval": "always" if settings.durability == "power" else "2m",
            **({"max_file_store": settings.max_store} if settings.max_store else {}),
        },
        "accounts": {
            ACCOUNT: {
                "jetstream": "enabled",
                "mappings": {"p.>": f"s.{settings.site}.>"},
                "users": users,
            }
        },
    }
    if tls:
        conf["tls"] = tls
    if ports.mqtt is not None:
        conf["mqtt"] = {
            "listen": host_port(settings.host, ports.mqtt),
            **({"tls": tls} if tls else {}),
        }
    if ports.websocket is not None:
        conf["websocket"] = {
            "listen": host_port(settings.host, ports.websocket),
            **({"tls": tls} if tls else {"no_tls": True}),
        }
    path = folder.path / "engine.json"
    write_secret(path, msgspec.json.format(msgspec.json.encode(conf), indent=2))
    return path
