"""Which sites are lost, without any I/O.

Sites tell the leader which links they lost, and how. A connection that is refused is proof: nobody
listens there. Anything else may be a fault of the link, or of whoever tells; it takes a second
observer, if there is one that is linked to the site and not lost itself, or time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

ALONE = 3.0
"""Times of `silence` after which one observer is enough. By then a home that lost its members as
well has shut itself, if its topic says `stop`; one that lost only us does so when they are
sealed."""
ABSENT = 3.0
ABSENT_WAYS = 3.0
"""Seconds that a site with homes may take to appear after the leader started; and how often the
time for the way there and back comes on top."""


class Lost(msgspec.Struct):
    """An observer cannot reach a site, or can again."""

    site: str
    observer: str
    how: str
    """`refused`: nobody listens there; `closed`, `silent`; or `heard`: it is back."""


class Losses:
    """What the leader at `me` knows. `observers` tells who else would notice the loss of a site;
    `silence` the time in seconds for which a site may say nothing, `way` how long the way to it and
    back may take."""

    def __init__(
        self,
        me: str,
        observers: Callable[[str], Iterable[str]],
        silence: Callable[[str], float],
        way: Callable[[str], float],
    ) -> None:
        self._me = me
        self._observers = observers
        self._silence = silence
        self._way = way
        self.dead: set[str] = set()
        self._seen: dict[str, dict[str, str]] = {}
        """For each site: who cannot reach it, and how that was noticed."""
        self._since: dict[str, float] = {}
        """Since when `me` has not heard a site."""

    def observe(self, report: Lost) -> None:
        """Somebody noticed that a site is away, or back: `dead` is what follows from it."""
        if report.site == self._me:
            return
        seen = self._seen.setdefault(report.site, {})
        if report.how != "heard":
            seen[report.observer] = report.how
            self._judge(report.site, 0.0)
            return
        seen.pop(report.observer, None)
        if not seen or report.observer == self._me:
            self._seen.pop(report.site, None)
            self._since.pop(report.site, None)
            self.dead.discard(report.site)

    def look(self, sites: Iterable[str], up: Iterable[str], now: float) -> None:
        """Judge anew, with the time that has passed; and notice sites that never came."""
        there = {self._me, *up}
        for site in sites:
            if site in there:
                self._since.pop(site, None)
                continue
            away = now - self._since.setdefault(site, now)
            if away > ABSENT + ABSENT_WAYS * self._way(site):
                self._seen.setdefault(site, {}).setdefault(self._me, "absent")
            self._judge(site, away)

    def why(self, site: str) -> str:
        """Who told what of a site, for people."""
        return ", ".join(f"{who}: {how}" for who, how in sorted(self._seen.get(site, {}).items()))

    def _judge(self, site: str, away: float) -> None:
        seen = self._seen.get(site, {})
        if "refused" in seen.values():
            self.dead.add(site)
        elif self._me in seen:
            needed = min(2, len({self._me, *self._observers(site)}))
            if away > ALONE * self._silence(site) or len(seen) >= needed:
                self.dead.add(site)
