"""What placement is told, what it decides, and what it says of that.

Below the topic `placement`, which only agents write to:

    placement/records   what each site reports once a monitoring period (`skerry.placement.records`)
    placement/moves     what was moved, or was not, and why (`MoveReport`, JSON)
    placement/plans     plans that were made elsewhere, by Spark (`PlanRecord`, JSON)

The coordination store has `placement.settings` once placement is used, and `pin.<stream>` for a
topic that stays where it is.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from skerry.errors import BadSetting
from skerry.model.names import stream_of

ROOT = "placement"
RECORDS = f"{ROOT}/records"
MOVES = f"{ROOT}/moves"
PLANS = f"{ROOT}/plans"
SETTINGS_KEY = "placement.settings"

PERIOD = 5.0
"""Seconds between records of a site; ePulsar's value."""
LEAST_PERIOD = 0.2
MOST_PERIOD = 300.0
AT_ONCE = 16
"""Moves at a time; the number of executors in ePulsar's measurements."""

Mode = Literal["off", "auto", "spark"]
Outcome = Literal["moved", "failed", "dropped"]

_OWN = (ROOT, "feeds", "functions")


def is_placed(topic: str) -> bool:
    """Whether placement may move a topic: those that Skerry keeps for itself stay where they are
    made."""
    return topic.split("/", 1)[0] not in _OWN


def usage_subject(site: str) -> str:
    """Where clients of `site` tell what they use."""
    return f"_sk.{site}.open.usage"


def pin_key(topic: str) -> str:
    """The store's key of a topic's pin."""
    return f"pin.{stream_of(topic)}"


class PlacementSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How placement runs; while the store has none, no site reports."""

    mode: Mode = "off"
    """`off`: plans are shown, and carried out when somebody says so. `auto`: the leader carries out
    its plans. `spark`: it carries out those that come in the topic `placement/plans`."""
    period: float = PERIOD
    """Seconds between two records of a site at the most. When its clients change it tells sooner,
    up to five times as often."""
    at_once: int = AT_ONCE
    """Moves under way at a time."""
    policy: dict[str, Any] = {}
    """What differs from the defaults of `skerry.placement.PolicySettings`."""

    def check(self) -> PlacementSettings:
        """Return self if every value is in range; else raise `BadSetting`."""
        if self.mode not in ("off", "auto", "spark"):
            raise BadSetting(f"a mode is 'off', 'auto' or 'spark', not {self.mode!r}")
        if not LEAST_PERIOD <= self.period <= MOST_PERIOD:
            raise BadSetting(
                f"a monitoring period is {LEAST_PERIOD:g} to {MOST_PERIOD:g} seconds, not "
                f"{self.period:g}"
            )
        if not 1 <= self.at_once <= 1000:
            raise BadSetting(f"1 to 1000 topics move at a time, not {self.at_once}")
        return self


class TopicUse(msgspec.Struct, array_like=True):
    """What one client used of one topic since its last report."""

    name: str
    publishes: bool
    """Whether it published in the last seconds."""
    subscriptions: int
    events: int = 0
    """Published and acknowledged."""
    bytes: int = 0
    delivered: int = 0
    publish_s: float = 0.0
    """Seconds that a publish waited for its acknowledgement, the median; 0: none was measured."""
    deliver_s: float = 0.0
    """Seconds from when the home stored an event until it was here, the median; 0: none."""
    deliver_most_s: float = 0.0


class Usage(msgspec.Struct, array_like=True):
    """What a client tells its site now and then. Without topics it says goodbye."""

    client: str
    access: float = 0.0
    """Seconds to the site and back."""
    topics: list[TopicUse] = []


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One topic's way, with its reason."""

    topic: str
    source: str
    target: str
    """The same as `source` where only replicas change."""
    replicas: tuple[str, ...]
    cause: str
    """`drain`, `latency`, `overload` or `replica`."""
    reason: str


class Stay(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that should move and does not."""

    topic: str
    home: str
    cause: str
    hindrance: str
    reason: str


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What placement would do now, and why."""

    mode: Mode
    moves: list[Move] = []
    stays: list[Stay] = []
    topics: int = 0
    """How many were looked at."""
    reporting: list[str] = []
    """Sites whose records are fresh."""
    silent: list[str] = []
    """Sites that nothing fresh is known of: nothing moves there, nor away from there."""


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that was made elsewhere, by the newest records that it had."""

    number: int
    moves: list[Move] = []


class MoveReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a decision."""

    topic: str
    source: str
    target: str
    cause: str
    reason: str
    by: str
    """`auto`, `apply` or `spark`."""
    outcome: Outcome
    """`dropped`: a newer plan took its place before it began."""
    why: str = ""
    """Why it failed or was dropped."""
    seconds: float = 0.0
    """How long the move took."""
    epoch: int = 0
    """The topic's epoch afterwards."""


class ClientsAt(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's clients at one site. Times are milliseconds one way."""

    site: str
    producers: int
    consumers: int
    home_ms: float
    """From the site to the home, by coordinates."""
    producer_access_ms: float
    consumer_access_ms: float
    publish_ms: float | None
    """Measured: half of the longest wait for an acknowledgement."""
    deliver_ms: float | None
    """Measured: from the home's clock to the subscriber's."""
    deliver_most_ms: float | None


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A site that a topic might have as its home."""

    site: str
    worst_ms: float | None
    """What an event may take at the most, if the home were there; None: nobody knows."""
    verdict: str
    """`home`, `chosen`, `feasible`, `too far`, `full`, `down`, `draining` or `unfit`."""
    why: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a topic is where it is."""

    topic: str
    home: str
    bound_ms: float | None
    estimated_ms: float | None
    """E(t): the worst case at its home, by coordinates; None: it lacks publishers, subscribers or
    records."""
    measured_ms: float | None
    """The same as clients measured it: the slowest publisher and the slowest subscriber."""
    pinned: bool
    decision: str
    clients: list[ClientsAt] = []
    candidates: list[Candidate] = []


class SiteLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A site as it reports itself."""

    site: str
    fresh: bool
    age: float
    """Seconds since its last record."""
    cpu: float
    """Share of what it has, as the others; None of them is above 1 unless it is overloaded."""
    memory: float
    bandwidth: float
    disk: float
    rate: float
    """Events/s in and out."""
    topics: int
    record_bytes: int


class PlacementStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How placement is."""

    settings: PlacementSettings
    running: bool
    """Whether sites report."""
    sites: list[SiteLoad] = []
    moving: dict[str, str] = {}
    queued: int = 0
    pinned: list[str] = []
    bounded: int = 0
    """Topics with a latency bound."""
    fates: dict[str, int] = {}
    """How many records were taken, late, doubled, refused; and how many are missing."""
    results: list[MoveReport] = []
    """The last moves, the newest first."""


class SetRequest(msgspec.Struct):
    """Asks to change how placement runs: fields of `PlacementSettings`, and of the policy's."""

    changes: dict[str, Any] = {}


class PinRequest(msgspec.Struct):
    """Asks to keep a topic where it is, or to let it go."""

    name: str
    pinned: bool = True
