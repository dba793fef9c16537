"""How long the way to another site and back may take, as far as measured.

A wait that is a constant is too long for a site nearby or too short for one beyond a satellite.
So whoever waits for an answer adds this: the mean of the round trips and four times their spread,
both smoothed, as TCP does for its own timeouts (RFC 6298). Nothing that must hold depends on it: a
wait that is too short costs another attempt, one that is too long costs time.
"""

from __future__ import annotations

UNKNOWN = 1.0
"""Seconds for a way that was never measured, as TCP begins; from nearby the first heartbeat
measures it."""
MOST = 10.0
"""Seconds at the most, whatever was measured."""


class Way:
    """The way to one site and back."""

    def __init__(self) -> None:
        self._mean = 0.0
        self._spread: float | None = None

    def observe(self, rtt: float) -> None:
        """Take in how many seconds it took there and back just now."""
        if self._spread is None:
            self._mean, self._spread = rtt, rtt / 2
            return
        self._spread += (abs(rtt - self._mean) - self._spread) / 4
        self._mean += (rtt - self._mean) / 8

    def wait(self) -> float:
        """Seconds within which an answer that is sent at once is here, unless something is lost."""
        if self._spread is None:
            return UNKNOWN
        return min(self._mean + 4 * self._spread, MOST)
