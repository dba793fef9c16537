"""What travels between a client and a site's agent: requests, answers, status.

Requests go to `_sk.<site>.open.<service>` (any SDK user) or `_sk.<site>.admin.<service>`
(administrators: the engine lets nobody else publish there). Bodies are JSON.
"""

from __future__ import annotations

from typing import Any

import msgspec

from skerry.model.feeds import FEED_LEASE, Feed
from skerry.model.names import InboxText, SiteText, SubscriptionText, TopicText


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
    """Names a topic."""

    name: TopicText


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
    lost: dict[str, str] = {}
    """Topics whose logs here lost events while the engine was down, and what is known of it."""
    set_aside: list[str] = []
    """Records that the agent could not read, or that do not fit, by where they stand."""
    strays: int = 0
    """Events, ever, that were published here to topics that do not exist."""
    strays_kept: int = 0
    """How many of them the topic `strays/<site>` still holds."""
    last_stray: str = ""
    """The topic that the last of these was for."""


class Reach(msgspec.Struct):
    """Asks the agent for links, for a while: a publisher is about to write there."""

    sites: list[SiteText]


class Want(msgspec.Struct):
    """Asks the agent for a copy of a topic to read, and for a durable subscription of it."""

    name: TopicText
    durable: SubscriptionText | None = None


class ProgressRequest(msgspec.Struct):
    """Asks the agent of a replica to tell how far it is, for a while."""

    name: TopicText
    inbox: InboxText
    every: float = 0.001
    """Seconds between two tellings at the least."""


class ProgressReport(msgspec.Struct, array_like=True):
    """How far a replica is, in which epoch."""

    site: str
    epoch: int
    last: int


class CreateRequest(msgspec.Struct):
    """Asks for a topic in a fabric. `site` is the site that the request came from."""

    name: str
    settings: dict[str, Any] = {}
    site: str = ""
    home: SiteText | None = None
    """The only site that may be its home, for its log is there already."""
    epoch: int = 0
    """The epoch of that log."""


class MoveRequest(msgspec.Struct):
    """Asks to move a topic's home, or to change its replicas, or both."""

    name: TopicText
    to: SiteText | None = None
    members: list[SiteText] | None = None
    epoch: int | None = None
    """Only if the topic is still in this epoch."""


class SiteName(msgspec.Struct):
    """Names a site."""

    site: SiteText


class TokenRequest(msgspec.Struct):
    """Asks for a join token that lives for so many seconds."""

    life: float


class SiteInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A site of the fabric, for people to look at."""

    site: str
    tier: str
    up: bool
    coordinates: bool
    draining: bool
    version: str
    link: str | None
    homes: int
    copies: int
    rtt_ms: float | None


class LinkInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A link for people to look at."""

    site: str
    peer: str
    dialer: str
    up: bool
    rtt_ms: float | None
    heard_ms: float | None
    in_bytes: int
    out_bytes: int
    in_msgs: int
    out_msgs: int


class RttRequest(msgspec.Struct):
    """Asks for round-trip times between `sites`, or all; with `origin`, only from there."""

    sites: list[str] = []
    origin: str | None = None


class RttInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The round-trip time between two sites, for people to look at."""

    site: str
    peer: str
    estimate_ms: float | None
    """By the coordinates of the two; None: one of them has none yet."""
    error_ms: float | None
    """By how much that is usually wrong, up or down."""
    measured_ms: float | None
    """As one of them measured it; None: neither did in the last minutes."""
    measured_by: str | None

    @property
    def best_ms(self) -> float | None:
        """What was measured, or else the estimate."""
        return self.estimate_ms if self.measured_ms is None else self.measured_ms


class CoordinateInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Where a site is, packed (`skerry.coords`), and how many samples it took, or refused."""

    site: str
    coordinate: str
    counts: dict[str, int]


class RegisterRequest(msgspec.Struct, kw_only=True):
    """Asks for a feed, or to have one as this says. Without an id it gets one, without a topic a
    sub-topic of the site's feed log."""

    owner: str
    id: str | None = None
    topic: str | None = None
    metadata: dict[str, Any] = {}
    permanent: bool = False
    lease: float = FEED_LEASE
    version: int = 0
    since: int = 0
    """What its owner knows of it from another site, which this one may not have heard of yet."""


class ChangeRequest(msgspec.Struct, kw_only=True):
    """Asks to change a feed's metadata: what changes, and null for what goes."""

    owner: str
    id: str
    change: dict[str, Any]


class RemoveRequest(msgspec.Struct, kw_only=True):
    """Asks to remove a feed."""

    owner: str
    id: str


class RenewRequest(msgspec.Struct, kw_only=True):
    """Says that an owner is there. The answer names its feeds at this site."""

    owner: str
    lease: float = FEED_LEASE


class FeedsRequest(msgspec.Struct, kw_only=True):
    """Asks for the feeds that match a query, or all, behind an id."""

    query: str | None = None
    after: str = ""


class QueryRequest(msgspec.Struct, kw_only=True):
    """Asks for a query's result, and to be told of differences; or, with its key, not to forget
    that. `holder` names the subscriber."""

    holder: str
    text: str = ""
    key: str = ""
    after: str = ""


class QueryAnswer(msgspec.Struct, kw_only=True):
    """A query's result, or a page of it: then `more` is true, and the next one begins behind the
    last id. Differences from number `number` + 1 on are not in it."""

    key: str
    number: int
    run: str = ""
    """Which start of the agent counts these numbers."""
    feeds: list[Feed]
    more: bool = False
    marks: dict[str, int] = {}
    """By site: how far into its records of feeds this goes."""


class Differences(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Which feeds joined or left a query's result. Numbers have no gaps."""

    number: int
    run: str = ""
    joined: list[Feed] = []
    left: list[Feed] = []
    marks: dict[str, int] = {}
    """As in `QueryAnswer`; only what changed."""


class CheckRequest(msgspec.Struct, kw_only=True):
    """Asks, once the site knows that version of a feed, whether the feed matches a query."""

    key: str
    feed: str
    version: int


class CheckAnswer(msgspec.Struct, kw_only=True):
    """The feed, if it matches now. Differences up to `number` tell how it came to that."""

    number: int
    run: str = ""
    feed: Feed | None = None
