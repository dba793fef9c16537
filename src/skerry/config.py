"""Every setting: its unit, its effect, its default and where the default comes from."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from skerry.errors import BadSetting
from skerry.model.fabric import Tier
from skerry.model.topic import Durability

VERSION = "0.1.0"

ADDED_BYTES = 4096
"""Bytes, of the largest event's, that are kept for what engines add to it on its way. One that grew
beyond what an engine takes would end the link that brings it, again and again."""
DUPLICATE_WINDOW = 120.0
"""Seconds. For so long a topic remembers the ids of its events and refuses a second copy.
The engine's own default. It holds each id in memory (about 110 bytes), so that a topic at
50 000 events/s costs the engine some 650 MB; a shorter window would shorten the longest
outage that a publisher may ride out."""

MIN_ENGINE = (2, 15, 0)
"""The oldest nats-server that the tests run with."""

DEFAULT_PORT = 4222
"""The port NATS clients try by themselves."""
DEFAULT_MQTT_PORT = 1883
"""MQTT's registered port."""
DEFAULT_WEBSOCKET_PORT = 4280
DEFAULT_LINK_PORT = 7422
"""The port that NATS' own documentation uses for leaf nodes, which links are."""


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a client behaves when the site is slow or away."""

    timeout: float = 30.0
    """Seconds that one call may take, engine restarts included, before it raises `Unavailable`.
    A restart takes 0.1 s and recovery of 2 000 topics 1.3 s (measured), so 30 s means that
    somebody has to look. Below the duplicate window, so that a retry never adds an event twice."""
    connect_timeout: float = 2.0
    """Seconds for one attempt to connect; a frozen engine accepts and then says nothing. Where the
    way is long the rest of the greeting may take longer, by how long its first part took."""
    ping_interval: float = 2.0
    """Seconds between pings on a silent connection. Two unanswered pings end it, so a frozen
    or unplugged site is noticed in 6 to 7 seconds (NATS' own default: up to 6 minutes)."""
    reconnect_first: float = 0.02
    """Seconds before the first attempt to reconnect; each further wait doubles. The engine is
    ready 9 ms after its start (measured)."""
    reconnect_most: float = 1.0
    """Seconds between attempts at the most."""
    return_every: float = 2.0
    """Seconds between looks whether the nearest site is back, while connected to another."""

    def check(self) -> ClientSettings:
        """Return self if every value is in range; else raise `BadSetting`."""
        check_timeout(self.timeout)
        return self


def check_timeout(seconds: float) -> float:
    """Return `seconds` if a call may take so long; else raise `BadSetting`."""
    if not 0.1 <= seconds <= DUPLICATE_WINDOW - 10:
        raise BadSetting(
            f"a timeout is 0.1 to {DUPLICATE_WINDOW - 10:.0f} seconds, not {seconds!r}",
            "Beyond the duplicate window a retried publish could be stored twice.",
        )
    return seconds


DEFAULT_SILENCE = 0.8
LEAST_SILENCE = 0.4
MOST_SILENCE = 20.0
"""Seconds. Two beats of a site with default settings; and less than `ClientSettings.timeout`."""
MOST_BEAT = 0.2
"""Seconds."""


class SiteSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a site runs: what `skerry up` takes."""

    site: str = "local"
    """The site's name; it becomes part of subjects and cannot change later."""
    data: Path
    """The data folder; it holds everything of the site and belongs to one process at a time."""
    host: str = "127.0.0.1"
    """The address to listen on. Loopback unless told otherwise."""
    advertise: str | None = None
    """The name or address that clients elsewhere reach this site by; it goes into the connection
    files of `sdk` and `plain`. With TLS the certificate must be valid for it. None: `host`."""
    port: int = DEFAULT_PORT
    """The TCP port for NATS clients and the SDK; 0 picks a free one."""
    mqtt_port: int | None = None
    """The TCP port for MQTT 3.1.1; None: off, 0: a free one."""
    websocket_port: int | None = None
    """The TCP port for NATS over WebSocket; None: off, 0: a free one."""
    plain: bool = False
    """Deliver every event on `t.<topic>` too, for NATS clients without the SDK. On by itself where
    MQTT or WebSocket is on. It costs the engine a third of its capacity (4 µs more than the 10 µs
    that storing an event takes, measured), so it is off where nobody needs it."""
    durability: Durability = "process"
    """`process`: acknowledged means written; it survives kill -9 of the engine, and the engine
    flushes to disk every two minutes. `power`: flushed to disk before it is acknowledged; one
    event after another it is some 30 times slower (measured)."""
    max_store: int | None = None
    """Bytes of disk that all topics together may take; None: what the engine finds fit,
    three quarters of what is free or taken by topics already."""
    max_event_bytes: int = 8 * 1024 * 1024
    """The largest event, in bytes, that any topic takes; `ADDED_BYTES` of that are the engine's.
    8 MiB is where NATS' advice ends."""
    tls_cert: Path | None = None
    """PEM file with the certificate chain. With `tls_key`, every listener speaks TLS only."""
    tls_key: Path | None = None
    """PEM file with the private key."""
    tier: Tier = "edge"
    """`hub`: well connected, takes links; `edge`: may be cut off, and may only dial out."""
    link_port: int | None = None
    """The TCP port for links of other sites; None: this site only dials out, 0: a free one."""
    silence: float = DEFAULT_SILENCE
    """Seconds without a heartbeat after which a link is taken for dead, and the site at its other
    end for lost if others say so too. Four beats: below a second, and above any pause seen here
    under full load. The same at all sites, or each judges the others by its own. A far site may be
    silent for longer, by what its round trips take."""
    beat: float = 0.0
    """Seconds between heartbeats on each link; 0: a quarter of `silence`, and 0.2 at the most, so
    that a site which waits long does not seem lost to one that does not."""
    link_idle: float = 60.0
    """Seconds after which a link, or a copy for readers, that nobody uses is removed."""
    insecure: bool = False
    """Listen beyond loopback without TLS all the same."""
    hang_timeout: float = 10.0
    """Seconds after which an engine that does not answer is killed and started anew.
    Longer than any pause seen under full load here (below 1 s)."""

    def __post_init__(self) -> None:
        """Derive what was not given."""
        if self.beat == 0:
            msgspec.structs.force_setattr(self, "beat", min(self.silence / 4, MOST_BEAT))

    def check(self) -> SiteSettings:
        """Return self if heartbeat and silence fit each other; else raise `BadSetting`."""
        if not LEAST_SILENCE <= self.silence <= MOST_SILENCE:
            raise BadSetting(
                f"a site counts as lost after {LEAST_SILENCE:g} to {MOST_SILENCE:g} seconds of "
                f"silence, not {self.silence:g}",
                "Sooner, every pause of a busy machine would look like a loss; later, publishers "
                "would have given up. Correct --silence.",
            )
        if not 0 < self.beat <= self.silence / 2:
            raise BadSetting(
                f"a heartbeat every {self.beat:g} s cannot tell within {self.silence:g} s that a "
                "site is lost",
                "Let two of them or more fit into that time, or leave `beat` out.",
            )
        return self

    @property
    def deliver_plain(self) -> bool:
        """Whether plain clients can receive here."""
        return self.plain or self.mqtt_port is not None or self.websocket_port is not None


def default_data() -> Path:
    """Where a site lives if nobody says otherwise: `$SKERRY_DATA`, or `~/.skerry`."""
    return Path(os.environ.get("SKERRY_DATA") or Path.home() / ".skerry")
