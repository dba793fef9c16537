"""Becoming part of a fabric: its beginning, join tokens, and what a site remembers of them.

A token carries where the coordination site is and a pass for one site, and expires. The pass is an
HMAC by a key that only the coordination site has; a token is used up by the first site that joins
with it. A site that joined keeps `fabric.json`: with it, it needs no token again.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import re
import secrets
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from skerry.config import VERSION, ClientSettings, SiteSettings
from skerry.engine.address import Address, host_port, read_secret, write_secret
from skerry.engine.answers import open_answer
from skerry.engine.folder import Folder
from skerry.engine.link import Down
from skerry.engine.nkeys import is_public_key, new_pair, public_key
from skerry.engine.wire import Connection
from skerry.errors import (
    BadSetting,
    FolderCorrupt,
    JoinRefused,
    NotInFabric,
    SiteTaken,
    Unavailable,
)
from skerry.model.fabric import PROTOCOL, SiteRecord
from skerry.model.names import check_site

if TYPE_CHECKING:
    from skerry.engine.conf import Ports

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
MARK = "skerry1."
TOKEN_LIFE = 24 * 3600.0
"""Seconds that a join token is good for if nobody says otherwise."""
JOIN_TIME = 15.0
"""Seconds to reach the coordination site when joining."""


class Membership(msgspec.Struct, kw_only=True):
    """What a site remembers of its fabric, in `fabric.json` of its data folder, 0600."""

    id: str
    name: str
    coordination: str
    """The site that keeps the store."""
    coordinator: SiteRecord | None = None
    """How to reach it; None at that site itself."""
    secret: str = ""
    """Signs join tokens; only the coordination site has it."""
    link_port: int = 0
    """Where this site takes links; 0: it does not."""
    removed: bool = False
    """Whether the fabric has struck this site."""
    seeds: dict[str, str] = {}
    """For each peer that this site dials: the seed of its key."""

    def save(self, folder: Path) -> None:
        """Write it down."""
        write_secret(
            folder / "fabric.json", msgspec.json.format(msgspec.json.encode(self), indent=2)
        )

    @classmethod
    def load(cls, folder: Path) -> Membership | None:
        """What the site in `folder` remembers; None: it is in no fabric."""
        file = folder / "fabric.json"
        if not file.exists():
            return None
        try:
            return msgspec.json.decode(file.read_bytes(), type=cls)
        except (OSError, ValueError) as error:
            raise FolderCorrupt(
                f"{file} cannot be read: {error}", "Restore it from a backup, or join anew."
            ) from None


class Pass(msgspec.Struct, kw_only=True):
    """What a join token holds."""

    id: str
    fabric: str
    expires: float
    address: Address
    """The coordination site's client port, as the user `join`."""
    mac: str = ""


class JoinRequest(msgspec.Struct, kw_only=True):
    """What a site says when it joins."""

    token: str
    site: SiteRecord
    """The site as it describes itself; since when it is part, and whether it is drained, the
    coordination site says."""
    key: str
    """The public key that it dials the coordination site with."""


class Welcome(msgspec.Struct, kw_only=True):
    """What the coordination site answers."""

    fabric: str
    name: str
    coordinator: SiteRecord


class Used(msgspec.Struct):
    """A token that was used, and by whom."""

    site: str
    key: str


def begin(folder: Folder, name: str) -> Membership:
    """Make the site of `folder` the coordination site of a new fabric."""
    if (known := Membership.load(folder.path)) is not None:
        raise BadSetting(
            f"{folder.path} is already part of the fabric {known.name!r}",
            f"Start it with `skerry up --site {folder.site}`.",
        )
    membership = Membership(
        id=secrets.token_hex(8),
        name=name,
        coordination=folder.site,
        secret=secrets.token_urlsafe(32),
    )
    membership.save(folder.path)
    return membership


def make_token(membership: Membership, address: Address, life: float = TOKEN_LIFE) -> str:
    """A token for one site to join with, good for `life` seconds."""
    if not membership.secret:
        raise NotInFabric(
            f"only the coordination site {membership.coordination} makes tokens",
            "Ask there: `skerry fabric token` with its data folder or connection file.",
        )
    if not 1 <= life <= 365 * 24 * 3600:
        raise BadSetting(f"a token lives for 1 second to 365 days, not {life!r} seconds")
    bare = Pass(
        id=secrets.token_hex(8), fabric=membership.id, expires=time.time() + life, address=address
    )
    signed = msgspec.structs.replace(bare, mac=_mac(membership.secret, bare))
    return MARK + base64.urlsafe_b64encode(msgspec.json.encode(signed)).decode().rstrip("=")


def read_token(text: str) -> Pass:
    """What a token says; whether it is genuine only the coordination site can tell."""
    try:
        if not text.startswith(MARK):
            raise ValueError
        raw = text[len(MARK) :]
        return msgspec.json.decode(base64.urlsafe_b64decode(raw + "=" * (-len(raw) % 4)), type=Pass)
    except ValueError:
        raise BadSetting(
            "this is no join token", "Make one with `skerry fabric token` at the coordination site."
        ) from None


def check_token(membership: Membership, text: str) -> Pass:
    """Raise `JoinRefused` unless `text` is a token of this fabric that has not expired."""
    given = read_token(text)
    bare = msgspec.structs.replace(given, mac="")
    advice = "Ask for a new one: `skerry fabric token`."
    if given.fabric != membership.id or not hmac.compare_digest(
        given.mac.encode(), _mac(membership.secret, bare).encode()
    ):
        raise JoinRefused("the join token is not one of this fabric's", advice)
    if time.time() > given.expires:
        late = datetime.fromtimestamp(given.expires, UTC).isoformat(timespec="seconds")
        raise JoinRefused(f"the join token expired at {late}", advice)
    return given


def _mac(secret: str, bare: Pass) -> str:
    return hmac.new(secret.encode(), msgspec.json.encode(bare), hashlib.sha256).hexdigest()


def site_record(settings: SiteSettings, ports: Ports) -> SiteRecord:
    """This site as the others are to know it."""
    host = settings.advertise or settings.host
    return SiteRecord(
        name=settings.site,
        tier=settings.tier,
        version=VERSION,
        protocol=PROTOCOL,
        link=None if ports.link is None else host_port(host, ports.link),
        tls=settings.tls_cert is not None,
        ca=settings.tls_cert.read_text() if settings.tls_cert else "",
        joined=datetime.now(UTC),
    )


async def join(folder: Folder, record: SiteRecord, token: str) -> Membership:
    """Join with `token`; return what to remember, written down already."""
    given = read_token(token)
    seed = _seed(folder.path / "joining.json", given.id)
    request = JoinRequest(token=token, site=record, key=public_key(seed))
    settings = ClientSettings(timeout=JOIN_TIME)
    connection = await Connection.open(given.address, settings, f"join-{record.name}")
    try:
        reply = await connection.request(
            f"_sk.{given.address.site}.join", msgspec.json.encode(request), timeout=JOIN_TIME
        )
    except (Down, TimeoutError):
        raise Unavailable(
            f"the coordination site {given.address.site} did not answer",
            "Is its `skerry up` running? Try again with the same token.",
        ) from None
    finally:
        await connection.close()
    welcome = msgspec.json.decode(open_answer(reply), type=Welcome)
    membership = Membership(
        id=welcome.fabric,
        name=welcome.name,
        coordination=welcome.coordinator.name,
        coordinator=welcome.coordinator,
        seeds={welcome.coordinator.name: seed},
    )
    membership.save(folder.path)
    return membership


def _seed(file: Path, token: str) -> str:
    """The seed of the key to join with: for the same token the same, whoever else shows that is
    refused. It is kept in `joining.json` of the data folder, by the token's id, and written before
    anybody is asked: this site may have been let in, and not have heard of that."""
    seeds: dict[str, str] = {}
    with contextlib.suppress(ValueError):
        seeds = msgspec.json.decode(read_secret(file) or b"", type=dict[str, str])
    if token not in seeds:
        seeds[token], _ = new_pair()
        write_secret(file, msgspec.json.encode(seeds))
    return seeds[token]


def check_joiner(request: JoinRequest, known: SiteRecord | None) -> None:
    """Raise unless a site may join that says this of itself."""
    site = request.site
    check_site(site.name)
    if site.protocol != PROTOCOL:
        raise JoinRefused(
            f"site {site.name} runs Skerry {site.version} (protocol {site.protocol}), "
            f"this fabric {VERSION} (protocol {PROTOCOL})",
            "Install the same version on both.",
        )
    if known is not None:
        raise SiteTaken(
            f"the fabric has a site {site.name!r} already",
            f"Choose another name with --site, or remove it: `skerry site remove {site.name}`.",
        )
    if not is_public_key(request.key):
        raise JoinRefused("the joining site shows no good key", "Install the same version on both.")
    if site.link is not None and not _ADDRESS.fullmatch(site.link):
        raise JoinRefused(
            f"{site.link!r} is no address for links", "Give --advertise a host name or address."
        )
