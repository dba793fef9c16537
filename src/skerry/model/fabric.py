"""What the sites of a fabric know of each other: the records of the coordination store.

    fabric                 which fabric this is, and where its store lives
    site.<name>            a site that joined
    up.<name>              … and is there; expires by itself when its agent vanishes
    link.<a>.<b>           a link that somebody wants between two sites, names in order
    topic.<stream>         where a topic lives (`TopicEntry`)
    copy.<stream>.<site>   a copy that is kept for readers only
    sub.<stream>.<name>    where a durable subscription is read, and how far
    token.<id>             a join token that was used
    gone.<stream>          the last epoch of a topic that was deleted
    pin.<stream>           a topic that placement leaves where it is
    placement.settings     how placement runs, once it is used

No record holds a secret: links are opened with key pairs, and only public keys are written down.
"""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from skerry.model.names import SiteText, TopicText, stream_of
from skerry.model.placement import SETTINGS_KEY, PlacementSettings
from skerry.model.topic import TopicSettings

Tier = Literal["edge", "hub"]

PROTOCOL = 2
"""What agents say to each other. Sites of one fabric must agree on it."""


class FabricRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Which fabric this is."""

    id: str
    name: str
    coordination: SiteText
    """The site that keeps the origin of the store, and whose agent leads."""


class SiteRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A site that joined the fabric."""

    name: SiteText
    tier: Tier
    version: str
    protocol: int
    link: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:%\[\]-]+:[0-9]{1,5}\Z")] | None
    """`host:port` where it takes links; None: it only dials out."""
    tls: bool = False
    ca: str = ""
    """PEM text that proves the site's certificate."""
    joined: datetime
    draining: bool = False
    """No home may be put here."""


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """A site whose agent is there; the entry expires unless it is renewed."""

    since: datetime
    homes: int = 0
    copies: int = 0
    rtt: dict[str, float] = {}
    """Seconds to other sites and back, as this site measured it in the last minutes: to all that it
    is linked with, and some others."""
    coordinate: str = ""
    """Where the site is among the others; see `skerry.coords`. Empty: it does not say."""


class LinkRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A link between two sites, wanted by at least one of them."""

    dialer: SiteText
    acceptor: SiteText
    key: str = ""
    """The dialer's public key for this link; empty until it has made one."""
    ready: bool = False
    """Whether the acceptor knows that key."""
    wanted_by: tuple[str, ...] = ()


class Step(NamedTuple):
    """One epoch of a topic."""

    epoch: int
    base: int
    """The last index of the epoch before: every copy that counts has the log up to there."""
    goes_on: bool = False
    """Whether its home is that of the epoch before, with the same log: then nothing forks here."""


class TopicEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Where a topic lives. Whoever changes home, epoch or members does so by compare-and-set."""

    name: TopicText
    home: SiteText
    epoch: int
    """Grows with every change of home or members; part of the write subject."""
    lineage: Annotated[tuple[Step, ...], msgspec.Meta(min_length=1)]
    """The last epochs, ending with the current one."""
    members: Annotated[tuple[SiteText, ...], msgspec.Meta(min_length=1)]
    """The sites that keep a copy which counts, the home first."""
    settings: TopicSettings
    forgetful: bool = False
    """Whether the home may not know ids from before its epoch; see `skerry.log.recall`."""
    segment: int = 0
    """The number of the home's stream; see `skerry.log.segments`."""
    born: int = 0
    """The topic's first epoch: earlier ones were those of a deleted topic of this name. 0: it was
    made before this was written down."""

    @property
    def base(self) -> int:
        """The last index of the epoch before."""
        return self.lineage[-1].base

    @property
    def replicas(self) -> tuple[str, ...]:
        """The members but the home."""
        return self.members[1:]

    @property
    def stream(self) -> str:
        """The name of the topic's stream at its home. Other sites' are their own affair."""
        return stream_of(self.name, self.segment)

    def is_another(self, root: int) -> bool:
        """Whether a log of epoch `root` is that of an earlier topic of the same name."""
        born = self.born or (self.epoch if len(self.lineage) == 1 else 0)
        return 0 < root < born

    def fork(self, epoch: int) -> int:
        """The last index up to which the history as of an earlier `epoch` is still the topic's; 0
        if that is too long ago to tell."""
        return 0 if epoch < self.lineage[0].epoch - 1 else self.known_fork(epoch)

    def known_fork(self, epoch: int) -> int:
        """The same as far as the lineage tells: beyond this index it is another history, and
        before it may be, if epochs that are forgotten made it so."""
        forks = (s.base for s in self.lineage if s.epoch > epoch and not s.goes_on)
        return min(forks, default=sys.maxsize)


class CopyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A copy for readers. `parent` is the holder that it follows."""

    site: SiteText
    parent: SiteText
    depth: int


class SubscriptionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A durable subscription: the site where it is read, and the last index below which
    everything is acknowledged."""

    site: SiteText
    floor: int
    root: int = 0
    """The epoch whose history that index belongs to."""
    config: dict[str, object] = {}


def site_key(name: str) -> str:
    """The store's key of a site."""
    return f"site.{name}"


def up_key(name: str) -> str:
    """The store's key of a site's presence."""
    return f"up.{name}"


def link_key(one: str, other: str) -> str:
    """The store's key of the link between two sites, whoever asks."""
    return "link." + ".".join(sorted((one, other)))


def topic_key(name: str) -> str:
    """The store's key of a topic."""
    return f"topic.{stream_of(name)}"


def copy_key(name: str, site: str) -> str:
    """The store's key of a reader's copy."""
    return f"copy.{stream_of(name)}.{site}"


def subscription_key(name: str, subscription: str) -> str:
    """The store's key of a durable subscription."""
    return f"sub.{stream_of(name)}.{subscription}"


_KINDS: dict[str, type] = {
    "fabric": FabricRecord, "site": SiteRecord, "up": Presence, "link": LinkRecord,
    "topic": TopicEntry, "copy": CopyRecord, "sub": SubscriptionRecord, "gone": int, "pin": bool,
    SETTINGS_KEY: PlacementSettings,
}  # fmt: skip


def kind_of(key: str) -> type | None:
    """What the store holds at a key; None: something that is not listed here."""
    return _KINDS.get(key) or _KINDS.get(key.partition(".")[0])


def fits(key: str, record: Any) -> bool:
    """Whether a record belongs at that key."""
    match record:
        case TopicEntry():
            return key == topic_key(record.name) and record.members[0] == record.home
        case SiteRecord():
            return key == site_key(record.name)
        case LinkRecord():
            return key == link_key(record.dialer, record.acceptor)
        case CopyRecord():
            return key.rpartition(".")[2] == record.site
    return True
