"""The engine's configuration: listeners, users and their rights, storage.

Four users share one account. `admin` is the site's own agent and the command line's: it may do
everything in the account. `sdk` publishes, reads and subscribes; topics it has made for it by the
agent, and it can neither change nor delete one. `functions` is the process that runs functions: it
may what `sdk` may, and write below the topic `functions`, which nobody else but the agent may, for
what is written there decides which code runs. `plain` is for clients without the SDK: it
publishes to `p.>` and receives from `t.>`, asks for feeds and queries on `q.in.*` and is answered
on `q.out.*`, and listens to feeds on `f.>`; nothing else.

A site of a fabric has more of them: `system` operates the engine, `join` may ask to join, and each
link that comes in has a key pair of its own with the rights of that one peer.

Outside a fabric a plain publish is mapped by the engine from `p.<topic>` to a write subject that
the topic takes too, so it costs no second copy (docs/adr/0003-plain-publish.md). The engine checks
rights after the mapping, which is why `plain` is allowed the mapped subject. In a fabric it goes to
the site's outbox, wherever the topic's home is (docs/adr/0004-fabric.md).
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import msgspec

from skerry.config import SiteSettings
from skerry.engine.address import Address, host_port, write_secret
from skerry.engine.folder import Folder, unwritable
from skerry.model.names import INBOX, OWN, inbox_of, plain_subject

USERS = ("admin", "sdk", "plain", "functions")
FABRIC_USERS = ("system", "join")
ACCOUNT = "SKERRY"
SYSTEM_ACCOUNT = "SYSTEM"

READ_API = (
    "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO.*", "DIRECT.GET.*", "CONSUMER.CREATE.>",
    "CONSUMER.INFO.*.*", "CONSUMER.MSG.NEXT.*.*", "CONSUMER.DELETE.*.*",
)  # fmt: skip
"""What of JetStream's API a client needs to read and to subscribe."""

_MQTT = ("$MQTT_msgs", "$MQTT_rmsgs", "$MQTT_sess", "$MQTT_qos2in", "$MQTT_out")
INNER_API = tuple(
    f"{api}.{call}"
    for api in ("$JS.API", "$JS.*.API")
    for call in (
        *(f"DIRECT.GET.{stream}" for stream in ("outbox", *_MQTT)),
        *(
            f"CONSUMER.{what}.{stream}.>"
            for stream in ("outbox", "KV_skerry", *_MQTT)
            for what in ("CREATE", "DELETE", "INFO", "MSG.NEXT")
        ),
    )
)
"""What of it touches streams that are no topics: the outbox, MQTT's sessions, the directory, of
which clients look up single keys. The logs of topics they may read."""

LINK_API = (
    "STREAM.INFO.*", "CONSUMER.CREATE.>", "CONSUMER.DELETE.*.*", "CONSUMER.MSG.NEXT.*.*",
    "DIRECT.GET.*", "$KV.skerry.>",
)  # fmt: skip
"""What of a site's JetStream API its peers use: to follow its logs, and to write to the store."""


def _written(*topics: str) -> tuple[str, ...]:
    """Every subject that an event of these topics, and of those below, can be written on."""
    return tuple(
        f"{prefix}.{topic}{rest}"
        for topic in topics
        for prefix in ("s.*.*", "o.*", "p")
        for rest in ("", ".>")
    )


OWN_SUBJECTS = _written(*OWN, "feeds.*.about")
"""Where topics of Skerry's own are written: what is written there decides which code runs, where
topics live, and which feeds there are."""

LINK_RECONNECT = "500ms"
"""Before the engine dials a lost link again. Longer than a publisher needs to notice that what it
sent was lost, see `skerry.log.sending`."""
LINK_DIAL = "5s"
LINK_GREETING = "10s"
"""For one attempt to dial, and for the other engine's greeting, which takes two round trips. The
engine's own default, 1 s for each, lets nobody in whose round trip takes half a second. Longer
costs nothing: the kernel itself asks again each second."""
SIGN_IN = 10
"""Seconds for whoever connects to say who it is, and to agree on TLS."""


class Ports(msgspec.Struct, frozen=True):
    """The ports in use, after 0 was replaced by a free one."""

    client: int
    mqtt: int | None
    websocket: int | None
    link: int | None = None


class Inbound(msgspec.Struct, frozen=True):
    """A link that a peer may open to this site, and the public key that it shows."""

    peer: str
    key: str


class Outbound(msgspec.Struct, frozen=True):
    """A link that this site opens to a peer, and the seed of the key that it shows."""

    peer: str
    url: str
    seed: str
    ca: str = ""


class Wiring(msgspec.Struct, frozen=True):
    """What being part of a fabric adds to the configuration."""

    inbound: tuple[Inbound, ...] = ()
    outbound: tuple[Outbound, ...] = ()
    coordinates: bool = False
    """Whether sites join here."""
    locked: bool = False
    """Nobody may write to a home here yet: it may have been replaced."""
    asleep: bool = False
    """Logs are not opened yet, and only the agent may connect. A mirror asks for its origin as soon
    as its log is opened; were nobody listening then, it would ask again only after 40 seconds."""


def rights(site: str, user: str, in_fabric: bool = False) -> dict[str, Any] | None:
    """What `user` may publish and subscribe to; None: everything in the account."""
    inbox = f"{inbox_of(site, user)}.>"
    if user in ("sdk", "functions"):
        api = [f"$JS.API.{call}" for call in READ_API]
        write = [f"s.{site}.>"]
        if in_fabric:
            write = ["s.>", f"o.{site}.>", "_sk.*.open.>", "$JS.*.API.DIRECT.GET.*"]
        if in_fabric and user == "functions":
            # What an event did is looked up at the home of where it went to.
            write += [f"$JS.*.API.{call}" for call in LINK_API if not call.startswith("$KV")]
        denied = [one for one in OWN_SUBJECTS if user == "sdk" or ".functions" not in one]
        if user == "functions":
            denied += _written("feeds.*.queries")
        return {
            "publish": {
                "allow": [*write, f"_sk.{site}.open.>", "$JS.ACK.>", *api],
                "deny": [*denied, *INNER_API],
            },
            "subscribe": {
                "allow": [inbox, "t.>", "f.>", f"_sk.{site}.news.>", f"_sk.{site}.query.>"]
            },
        }
    if user == "plain":
        return {
            "publish": {
                "allow": [f"o.{site}.>" if in_fabric else f"s.{site}.>", "q.in.*"],
                "deny": [*OWN_SUBJECTS, *_written("feeds.*.queries")],
            },
            # MQTT's `t/#` takes in the level above: the engine asks for `t` as well.
            "subscribe": {"allow": ["t", "t.>", "f.>", "q.out.*", "_INBOX.>"]},
        }
    if user == "join":
        return {
            "publish": {"allow": [f"_sk.{site}.join"]},
            "subscribe": {"allow": [inbox]},
        }
    return None


def link_rights(site: str, peer: str) -> dict[str, Any]:
    """What may cross the link from `peer` into `site`, and out of it: only what is addressed to
    the one at the other end. That keeps a mesh of links free of circles."""
    return {
        # MQTT's own messages would cross all the same, and go round a ring of links for ever.
        "publish": {"allow": _addressed_to(site, peer), "deny": ["$MQTT.>"]},
        # A locked engine maps `s.<site>.>` away, and tells those it dials that it listens there;
        # it never takes that back, so that writes which nobody takes would not be refused. `*`
        # stands for the `>` of such interest: what a home listens on has more tokens.
        "subscribe": {"allow": _addressed_to(peer, site), "deny": ["$MQTT.>", f"s.{peer}.*"]},
    }


def _addressed_to(site: str, sender: str) -> list[str]:
    return [
        f"s.{site}.>", f"{INBOX}.{site}.>", f"$JS.M.{site}.>", "$JS.ACK.>", "$JS.FC.>", "$JSC.R.*",
        f"_sk.{site}.open.>", f"_sk.{site}.peer.>", f"_sk.{site}.beat.{sender}",
        f"f.{sender}.>",
        *[f"$JS.{site}.API.{call}" for call in LINK_API],
    ]  # fmt: skip


def write_conf(
    folder: Folder, settings: SiteSettings, ports: Ports, wiring: Wiring | None = None
) -> Path:
    """Write the configuration and the users' connection files; return the former's path.
    Passwords are made once and kept."""
    ca = settings.tls_cert.read_text() if settings.tls_cert else ""
    try:
        return _write(folder, settings, ports, ca, wiring)
    except OSError as error:
        raise unwritable(folder.path, error) from None


def _write(
    folder: Folder, settings: SiteSettings, ports: Ports, ca: str, wiring: Wiring | None
) -> Path:
    folder.credentials.mkdir(mode=0o700, exist_ok=True)
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104
    if ca and host == "127.0.0.1":
        host = "localhost"
    name = settings.advertise
    users: dict[str, dict[str, Any]] = {}
    for user in (*USERS, *(FABRIC_USERS if wiring else ())):
        file = folder.credentials / f"{user}.json"
        password = Address.load(file).password if file.exists() else secrets.token_urlsafe(24)
        address = Address(
            site=settings.site,
            host=host if user in ("admin", "system") else name or host,
            port=ports.client,
            user=user,
            password=password,
            tls=bool(ca),
            ca=ca,
            verify=name if name and user in ("admin", "system") else "",
        )
        address.save(file)
        allowed = rights(settings.site, user, wiring is not None)
        users[user] = {
            "user": user, "password": password, **({"permissions": allowed} if allowed else {})
        }  # fmt: skip
    tls = (
        {"cert_file": str(settings.tls_cert), "key_file": str(settings.tls_key), "timeout": SIGN_IN}
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
        "authorization": {"timeout": SIGN_IN},
        "jetstream": {
            "store_dir": str(folder.path),
            "domain": settings.site,
            "sync_interval": "always" if settings.durability == "power" else "2m",
            **({"max_file_store": settings.max_store} if settings.max_store else {}),
        },
        "accounts": {
            ACCOUNT: {
                "jetstream": "enabled",
                "mappings": {"p.>": plain_subject(settings.site, ">")},
                "users": [users[user] for user in USERS],
            }
        },
    }
    if wiring is not None:
        _wire(conf, folder, settings, ports, wiring, users, tls)
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


def _wire(
    conf: dict[str, Any],
    folder: Folder,
    settings: SiteSettings,
    ports: Ports,
    wiring: Wiring,
    users: dict[str, dict[str, Any]],
    tls: dict[str, Any] | None,
) -> None:
    """Add what a fabric needs: links, their users, the outbox, the operator."""
    site = settings.site
    account = conf["accounts"][ACCOUNT]
    account["mappings"] = {"p.>": f"o.{site}.>"}
    if wiring.asleep:
        account["jetstream"] = "disabled"
        account["users"] = [users["admin"]]
    if wiring.locked:
        account["mappings"][f"s.{site}.>"] = f"_locked.{site}.>"
    if wiring.coordinates:
        account["users"].append(users["join"])
    if not wiring.locked:  # nor is anybody linked who would be told of the mapping
        for link in wiring.inbound:
            account["users"].append({"nkey": link.key, "permissions": link_rights(site, link.peer)})
    conf["accounts"][SYSTEM_ACCOUNT] = {"users": [users["system"]]}
    conf["system_account"] = SYSTEM_ACCOUNT
    remotes = []
    for remote in wiring.outbound:
        entry: dict[str, Any] = {
            "urls": [remote.url],
            "nkey": remote.seed,
            "account": ACCOUNT,
            "isolate_leafnode_interest": True,
            "first_info_timeout": LINK_GREETING,
        }
        if remote.url.startswith("tls"):
            entry["tls"] = {"timeout": SIGN_IN}
            if remote.ca:
                ca_file = folder.path / f"peer-{remote.peer}.pem"
                write_secret(ca_file, remote.ca.encode())
                entry["tls"]["ca_file"] = str(ca_file)
        remotes.append(entry)
    conf["leafnodes"] = {
        "reconnect": LINK_RECONNECT,
        "dial_timeout": LINK_DIAL,
        "authorization": {"timeout": SIGN_IN},
        "isolate_leafnode_interest": True,
        "remotes": remotes,
        **({"listen": host_port(settings.host, ports.link)} if ports.link is not None else {}),
        **({"tls": tls} if tls and ports.link is not None else {}),
    }
