"""The knobs of a position: unit, effect, and the measurement behind each default.

Figures are median / 90th-percentile relative error over all pairs in percent, after 200 samples a
site unless told otherwise, with 5 % of noise and 2 % of spikes, in the worlds of `bench/worlds.py`:
50 sites at random 2.9/5, 48 in towns 8.4/24, 64 real hosts 5.8/20. Each knob was turned alone.
"""

from __future__ import annotations

import msgspec


class CoordinateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a position is found. The defaults fit fabrics from three sites to hundreds."""

    memory: int = 32
    """Peers that are remembered, with what was measured: the newest ones. A sample is computed
    together with all of them. Real hosts: 16 gave 6.6/23, 48 gave 5.6/19 for half more work."""
    window: int = 5
    """Samples of each peer that the latency filter looks at."""
    rank: int = 1
    """Which of them it takes, counted from the least, once there are four: delays only ever add,
    so that a low one is nearer to the truth than the median, and the very least would stick to one
    that was wrong. In a forerunner of this code, 50 sites at random: Serf's median of 3 gave
    3.8/6, this 2.4/4."""
    age: float = 600.0
    """Seconds after which what was measured is forgotten. Ten minutes: with a probe every ten
    seconds, all of `memory` is measured anew in that time."""
    steepness: float = 1.25
    """Weight of a peer is its round-trip time to this power, inverted: 1 would look at the
    errors in milliseconds, 2 at those in percent. Towns: with 1 9.0/27, with 2 9.5/25 and after 30
    samples 24/77 instead of 13/66."""
    near: float = 0.002
    """Seconds. Below, peers do not weigh more for being nearer: one in the same rack would outweigh
    a continent."""
    robust_least: float = 0.05
    robust_most: float = 0.5
    robust_part: float = 0.5
    """A peer that fits worse than this part of our own usual error, within the bounds, pulls no
    harder than one that fits just so well (Huber's loss). Wide at first, while all fit badly, it
    converges fast; narrow later, spikes, lies and detours count little. Real hosts: fixed at 0.3 it
    gave 6.8/19; least squares, with no bound, 7.2/21 and after 30 samples 17/57 instead of 10/45.
    """
    doubt: float = 0.1
    """Added to the error that a peer claims. So one that claims none weighs twice one that claims
    10 %, and no more."""
    detour: float = 3.0
    slack: float = 0.05
    """A peer that claims to be farther from others than so many times the way through here, and so
    many seconds, contradicts them. Routes do not keep to the triangle inequality: of the ways
    between 100 real hosts up to 0.7 % are three times as long as another through a third host."""
    gain: float = 0.25
    """How fast our own error follows what samples show; Vivaldi's and Serf's."""
    warm: float = 0.3
    """Above this error of our own the position is computed in `warm_passes` passes a sample, else
    in as many as a full memory would take the time of (32 peers one, 8 peers four), each of which
    goes `step` of the way. This is the adaptive time step of Vivaldi: fast while lost, quiet once
    found. With one pass only, towns after 30 samples: 16/206 instead of 13/66."""
    warm_passes: int = 4
    step: float = 0.7
    gravity: float = 10.0
    """Seconds. A pull to the origin of (distance / gravity)² seconds a sample, so that all sites
    together do not drift away; see Ledlie, Gardner and Seltzer 2007. Serf's 150 does nothing on the
    scale of this planet, and 2 squeezes it: random sites 12 instead of 4 at the 90th percentile."""
    stray: float = 0.5
    """Beyond this relative error (and three times our own) a sample is a stray. When more than half
    of the remembered peers, or `strays` of them, stray one after the other, then we have moved,
    and what was known before is forgotten."""
    strays: int = 4


DEFAULTS = CoordinateSettings()
