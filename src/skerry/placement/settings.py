"""The knobs of placement: unit, effect, and where each default comes from."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from skerry.errors import BadSetting

RESOURCES = ("cpu", "memory", "bandwidth", "disk", "rate")
"""What a site has and its topics use: cores, bytes, bytes/s, bytes, and events/s in and out."""

RATE_CAPACITY = 1_500_000.0
"""Events/s. ePulsar measured that a broker's latency suffers above it (section 5.4)."""


class PolicySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How placement decides. All times are in the unit that the name ends with, else seconds."""

    thresholds: tuple[float, float, float, float, float] = (0.85, 0.85, 0.85, 0.85, 1.0)
    """Share of each of `RESOURCES` above which a site is overloaded. 85 % is ePulsar's and Pulsar's
    value (section 3.4.2); the rate is compared with its capacity itself."""
    fill: float = 0.95
    """A site takes topics up to this share of its thresholds, and an overloaded one gives topics
    away down to it. The band between keeps a site that has just been filled from giving away at
    once: load shedding without one never settles."""
    margin: float = 0.05
    """A site is feasible for a topic if its worst case stays below the bound by this share of it. A
    topic leaves its home if it is not below by half of it there. Coordinates are 3.5 ms or 6 % off
    (ePulsar, section 5.3)."""
    gain_ms: float = 2.0
    """A topic that no site suits moves only if it gains as much; below it is the coordinates'
    noise."""
    gain_ratio: float = 0.1
    """… and this share of what it has now."""
    cool_down: float = 30.0
    """Seconds for which a topic that has moved stays, whatever the load says: six monitoring
    periods, for loads are means over some of them. A site that is drained is left all the same."""
    late_cool_down: float = 4.0
    """Seconds for which it stays though its bound is broken: less than a period, so that a swarm
    which crosses the corner of a zone is late for one period and the move, not longer. With 10 s it
    was 14 s in the paper's scenario, with no move less (`examples.roaming.simulate`)."""
    move_cost_ms_per_gb: float = 1.0
    """How many milliseconds nearer a site must be to make up for copying one GB to it. Sites that
    hold a copy already cost nothing: the move is a promotion."""
    move_cost_max_ms: float = 10.0
    """… but never more than this: for a large log too, a near site wins over a far one at last."""
    max_in_flight: int | None = 64
    """Moves under way at a time, those of earlier plans among them; None: no limit. The most urgent
    are first. A cut-over takes 4 to 65 ms, so a monitoring period has room for more; copying the
    logs before it is what fills links."""
    when_infeasible: Literal["stay", "least_bad"] = "least_bad"
    """What a topic does that no site with room suits: `stay`, or go where it is less bad by
    `gain_ms` and `gain_ratio`. ePulsar takes the least bad (section 3.4.1)."""
    apart_ms: float = 5.0
    """One way. Members of a replica set that are nearer to each other are thought to fail together,
    unless the topic asks for `colocated`."""
    copy_bonus_ms: float = 10.0
    """A site that holds a copy stays a replica unless another is so much nearer to the home."""
    tries: int = 4
    """If some of the busiest topics of an overloaded site find no place, the next busiest are
    tried, so often at most."""

    def check(self) -> PolicySettings:
        """Return self if every value is in range; else raise `BadSetting`."""
        if len(self.thresholds) != len(RESOURCES):
            raise BadSetting(f"thresholds are {len(RESOURCES)} numbers, for {', '.join(RESOURCES)}")
        for name, share in zip(RESOURCES, self.thresholds, strict=True):
            if not 0 < share <= 1:
                raise BadSetting(f"the threshold of {name} is above 0 and at most 1, not {share!r}")
        if not 0 < self.fill <= 1:
            raise BadSetting(f"fill is above 0 and at most 1, not {self.fill!r}")
        if not 0 <= self.margin < 1:
            raise BadSetting(f"margin is 0 or more and below 1, not {self.margin!r}")
        for field in ("gain_ms", "gain_ratio", "cool_down", "late_cool_down", "move_cost_ms_per_gb",
                      "move_cost_max_ms", "apart_ms", "copy_bonus_ms"):  # fmt: skip
            value = getattr(self, field)
            if not (value >= 0 and math.isfinite(value)):
                raise BadSetting(f"{field} is 0 or more, not {value!r}")
        if self.max_in_flight is not None and self.max_in_flight < 0:
            raise BadSetting(f"max_in_flight is 0 or more, not {self.max_in_flight!r}")
        if self.tries < 1:
            raise BadSetting(f"tries is 1 or more, not {self.tries!r}")
        if self.when_infeasible not in ("stay", "least_bad"):
            raise BadSetting(
                f"when_infeasible is 'stay' or 'least_bad', not {self.when_infeasible!r}"
            )
        return self
