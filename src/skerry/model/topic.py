"""What a topic is set to, and what is known of it."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from skerry.errors import BadSetting

Durability = Literal["process", "power"]
Ack = Literal["outbox", "home", "quorum"]
OnPartition = Literal["stop", "continue"]

MAX_REPLICAS = 6

MIN_AGE = 120.0
"""Seconds. A log forgets the ids of aged-out events, and a retried publish needs them for as long
as the duplicate window."""


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a topic's log is kept. `None` means no limit of that kind.

    When a limit is reached the oldest events age out; publishing never stops for it.
    """

    max_events: int | None = None
    """Keep at most so many events."""
    max_bytes: int | None = None
    """Keep at most so many bytes, payloads, headers and the engine's own few bytes an event."""
    max_age: float | None = None
    """Keep an event for at most so many seconds (120 or more; see `lifespan` for less)."""
    max_event_bytes: int | None = None
    """Refuse an event whose payload and headers together are larger."""
    keep_last: int | None = None
    """Of each sub-topic keep only the newest so many events: with 1, its latest state."""
    durability: Durability = "process"
    """`process`: an acknowledged event survives kill -9. `power`: it also survives a power cut;
    only a site that runs with durability `power` takes such a topic."""

    replicas: int = 0
    """Copies at other sites that count. With the home that makes N = replicas + 1 sites, of which
    N // 2 may be lost at a time, the home among them: nothing that was acknowledged at level
    `quorum` is lost, and another home is found by itself. While N // 2 of an even N are lost, level
    `quorum` waits, for it needs more than half; level `home` goes on. With 0 a lost home is waited
    for."""
    spread: str = "distributed"
    """Where replicas go: `distributed`, far from each other; `colocated`, near the home; or the
    names of sites, with commas between them."""
    prefer: tuple[str, ...] = ()
    """Sites that the home should be at, the best first."""
    ack: Ack = "home"
    """What a publish waits for unless it says otherwise; see `docs/guarantees.md`."""
    on_partition: OnPartition = "stop"
    """What a home with replicas does when it loses the coordination site: `stop` taking events, or
    `continue`; what it took alone is added at the end of the log when it is back."""
    latency: float | None = None
    """Seconds that an event may take from any publisher to any subscriber: placement finds a home
    that keeps to it; see `docs/placement.md`. None: no bound."""

    @property
    def forgets(self) -> bool:
        """Whether events age out."""
        limits = (self.max_events, self.max_bytes, self.max_age, self.keep_last)
        return any(limit is not None for limit in limits)

    def check(self) -> TopicSettings:
        """Return self if every value is in range; else raise `BadSetting`."""
        if not isinstance(self.replicas, int) or not 0 <= self.replicas <= MAX_REPLICAS:
            raise BadSetting(f"replicas are 0 to {MAX_REPLICAS}, not {self.replicas!r}")
        if self.ack not in ("outbox", "home", "quorum"):
            raise BadSetting(f"ack is 'outbox', 'home' or 'quorum', not {self.ack!r}")
        if self.on_partition not in ("stop", "continue"):
            raise BadSetting(f"on_partition is 'stop' or 'continue', not {self.on_partition!r}")
        if len(set(self.prefer)) != len(self.prefer):
            raise BadSetting("a site is named twice among the preferred")
        for name in ("max_events", "max_bytes", "max_event_bytes", "keep_last"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadSetting(f"{name} is a whole number of 1 or more, not {value!r}")
        if self.max_age is not None and not self.max_age >= MIN_AGE:
            raise BadSetting(
                f"max_age is {MIN_AGE:.0f} seconds or more, not {self.max_age!r}",
                "For shorter-lived events publish them with a lifespan.",
            )
        if self.latency is not None and not 0.001 <= self.latency <= 60:
            raise BadSetting(
                f"a latency bound is 1 ms to 60 s, not {self.latency:g} s", "Write it as 40ms."
            )
        if self.durability not in ("process", "power"):
            raise BadSetting(f"durability is 'process' or 'power', not {self.durability!r}")
        if self.max_bytes and self.max_event_bytes and self.max_event_bytes > self.max_bytes:
            raise BadSetting("max_event_bytes is larger than max_bytes")
        return self

    def differences(self, other: TopicSettings) -> dict[str, tuple[object, object]]:
        """Each setting that differs: name → (this one's, the other's)."""
        return {
            name: (getattr(self, name), getattr(other, name))
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(other, name)
        }


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as it was when asked for."""

    name: str
    home: str
    settings: TopicSettings
    created: datetime
    events: int
    """How many events the log holds now."""
    bytes: int
    first_index: int
    """The first index still kept; `latest_index + 1` when the log is empty."""
    latest_index: int
    """The index of the newest event ever stored; 0 before the first."""
    subscriptions: int
    """Consumers of the log at this moment, durable and live."""
    epoch: int = 0
    """How often home or replicas changed; 0 outside a fabric."""
    replicas: tuple[str, ...] = ()
    """The sites of the replicas: fewer than `settings` asks for where no site can take one now."""

    @property
    def lacking(self) -> int:
        """How many replicas it should have and has not."""
        return max(0, self.settings.replicas - len(self.replicas)) if self.epoch else 0
