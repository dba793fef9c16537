"""Where this site is among the others, and how far apart any two sites are.

Theory of operation. Samples cost next to nothing. The round-trip times of links are measured by
their heartbeats anyway; one link's is taken every half second. Of the sites without a link one at
a time is probed: a TCP handshake with the port where it takes links, closed at once, which the
kernels do among themselves. No link is made for it. Probes begin five a second and become rarer,
down to one in ten seconds, and frequent again when this site finds that it has moved.

A site that takes no links cannot be probed, but it probes those that do, and tells. Two sites
that both take none meet at the coordination site, and so their distance is the way through it.

Each site tells its coordinate, and what it measured, with its presence in the store: everybody
knows all of them, and computes the same estimates, also while the coordination site is away. It
tells sooner than it has to when the coordinate has changed in earnest.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import time
from datetime import datetime

import msgspec

from skerry.coords import Coordinate, Known, Position, Steady, estimate, pack, unpack
from skerry.coords.coordinate import REACH
from skerry.coords.estimates import Estimate
from skerry.directory.store import Store
from skerry.engine.handshake import handshake
from skerry.errors import BadSetting, UnknownSite
from skerry.fabric.links import Links
from skerry.fabric.tasks import Tasks
from skerry.model.control import CoordinateInfo, RttInfo, RttRequest
from skerry.model.fabric import Presence, SiteRecord, site_key, up_key
from skerry.model.records import read

log = logging.getLogger("skerry.fabric")

LINK_EVERY = 0.5
"""Seconds between samples of links. One costs some 0.1 ms of computation."""
PROBE_FIRST = 0.2
PROBE_SLOWER = 1.05
PROBE_CALM = 10.0
"""Seconds between probes at first, the factor by which that grows, and seconds at the most. That
makes 36 probes in the first 20 seconds, after which eight sites are right within 3 % (simulated),
and then one in ten seconds. Each leaves two lines in the log of the engine that was probed."""
PROBE_TIME = 3.0
SURPRISE = 0.2
SURPRISE_LEAST = 0.002
"""A probe that misses what was expected by such a part of it, and so many seconds, is made again at
once: the latency filter believes in a longer way after four samples, in a shorter one after two."""
TELL_SOON = 1.0
TELL_SHARE = 0.05
"""Seconds between two tellings of a changed coordinate at the least, and by how much that grows
with each site of the fabric: all together tell no more than 20 times a second."""
MOST_PAIRS = 20_000
"""What fits into one answer, 200 sites against each other."""


class _Heard(msgspec.Struct):
    """What another site told last."""

    since: datetime
    known: Known
    is_there: bool = True


class Distances:
    """The distances that one site knows of."""

    def __init__(self, site: str, store: Store, links: Links) -> None:
        self.site = site
        self._store = store
        self._links = links
        self._random = random.Random()
        self.position = Position(self._random)
        self._steady = Steady()
        self._heard: dict[str, _Heard] = {}
        self._turn = 0
        self._surprise: str | None = None
        """The site whose last probe took another time than those before."""
        self._changed = asyncio.Event()
        self._tasks = Tasks("measuring distances")

    def start(self) -> None:
        """Begin to measure, where this site was before if it was there lately."""
        for name, presence in self._store.all("up.", Presence).items():
            self._hear(name, presence)
        if (before := self._store.get(up_key(self.site), Presence)) is not None:
            self.position = Position(self._random, unpack(before.coordinate))
        self._store.watch("up.", self._on_presence)
        self._store.watch("site.", self._on_site)
        self._tasks.spawn(self._keep_sampling())

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()

    # Telling and hearing

    @property
    def coordinate(self) -> Coordinate:
        """Where this site is, for applications: it changes only when it matters."""
        return self._steady.coordinate or self.position.coordinate

    def measured(self) -> dict[str, float]:
        """Seconds to other sites and back, as measured in the last minutes."""
        found = {name: peer.rtt for name, peer in self.position.peers.items()}
        found |= {peer: self._links.quiet_rtt[peer] for peer in self._linked()}
        return {peer: round(rtt, 6) for peer, rtt in found.items()}

    async def worth_telling(self, most: float) -> None:
        """Wait for a change that others should hear of, or for `most` seconds."""
        self._changed.clear()
        soon = min(max(TELL_SOON, TELL_SHARE * len(self._heard)), most)
        await asyncio.sleep(soon)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most - soon):
                await self._changed.wait()

    def _on_presence(self, key: str, value: bytes | None) -> None:
        name = key.removeprefix("up.")
        if value is not None:
            if (presence := read(value, Presence, key)) is not None:
                self._hear(name, presence)
        elif name in self._heard:
            self._heard[name].is_there = False  # where it was is still the best guess

    def _on_site(self, key: str, value: bytes | None) -> None:
        if value is None:
            name = key.removeprefix("site.")
            self._heard.pop(name, None)
            self.position.forget(name)

    def _hear(self, name: str, presence: Presence) -> None:
        if name == self.site:
            return
        coordinate = unpack(presence.coordinate)
        if coordinate is None and presence.coordinate:
            self.position.counts.bad_coordinate += 1
            log.debug("%s tells a coordinate that is no place", name)
        before = self._heard.get(name)
        if before is not None and before.since != presence.since:
            self.position.forget(name)  # it was started anew, and may be elsewhere
        if coordinate is not None:
            self.position.heard(name, coordinate)
        rtt = {peer: rtt for peer, rtt in presence.rtt.items() if 0 < rtt <= REACH}
        self._heard[name] = _Heard(presence.since, Known(coordinate, rtt))

    # Measuring

    async def _keep_sampling(self) -> None:
        pause, due, moves = PROBE_FIRST, 0.0, 0
        while True:
            wait = max(due - time.monotonic(), PROBE_FIRST)
            await asyncio.sleep(min(wait, LINK_EVERY))
            self._sample_link()
            if time.monotonic() >= due:
                await self._probe()
                pause = min(pause * PROBE_SLOWER, PROBE_CALM)
                next_one = pause * self._random.uniform(0.5, 1.5)
                due = time.monotonic() + (PROBE_FIRST if self._surprise else next_one)
            if self.position.counts.moves > moves:
                moves = self.position.counts.moves
                pause, due = PROBE_FIRST, 0.0

    def _linked(self) -> list[str]:
        return [peer for peer in self._links.quiet_rtt if peer in self._links.up]

    def _sample_link(self) -> None:
        """Take in what heartbeats of the next link measured."""
        linked = self._linked()
        if linked:
            self._turn += 1
            peer = linked[self._turn % len(linked)]
            self._observe(peer, self._links.quiet_rtt[peer])

    async def _probe(self) -> None:
        """Measure the way to a site without a link. One that took another time than
        before comes next again: either that was a spike, or the way is another now."""
        there = [name for name, heard in self._heard.items() if heard.is_there]
        choice = [name for name in there if name not in self._links.up]
        peer = self._surprise if self._surprise in choice else None
        self._surprise = None
        if peer is None and choice:
            peer = self._random.choice(choice)
        if peer is not None and (rtt := await self._measure(peer)) is not None:
            self._observe(peer, rtt)
            known = self.position.peers.get(peer)
            if known is not None:
                off = abs(rtt - known.rtt)
                self._surprise = peer if off > SURPRISE * known.rtt + SURPRISE_LEAST else None

    async def _measure(self, peer: str) -> float | None:
        record = self._store.get(site_key(peer), SiteRecord)
        if record is None:
            return None
        if record.link is not None:
            return await handshake(record.link, PROBE_TIME)
        heard = self._heard.get(peer)
        theirs = heard.known.rtt if heard is not None else {}
        if self.site in theirs or self._links.can_reach(peer):
            return theirs.get(self.site)
        hub = self._store.origin
        way = (self._links.quiet_rtt.get(hub), theirs.get(hub))
        return None if way[0] is None or way[1] is None else way[0] + way[1]

    def _observe(self, peer: str, rtt: float) -> None:
        heard = self._heard.get(peer)
        if heard is None or heard.known.coordinate is None:
            return
        position, resets = self.position, self.position.counts.resets
        position.observe(peer, heard.known.coordinate, rtt, time.monotonic())
        if position.counts.resets > resets:
            log.warning("this site's coordinate was no number any more, and was begun anew")
        times = sorted(known.rtt for known in position.peers.values())
        if times and self._steady.follow(position.coordinate, times[len(times) // 2]):
            self._changed.set()

    # Answers

    def known(self) -> dict[str, Known]:
        """What each site tells of itself, this one included."""
        others = {name: heard.known for name, heard in self._heard.items()}
        return others | {self.site: Known(self.coordinate, self.measured())}

    def rtt(self, request: RttRequest) -> list[RttInfo]:
        """What is known of the ways between sites, each pair once. Raises `UnknownSite`."""
        sites = self._store.keys("site.")
        for name in (*request.sites, *filter(None, [request.origin])):
            if name not in sites:
                raise UnknownSite(
                    f"the fabric has no site {name!r}", f"There are: {', '.join(sorted(sites))}."
                )
        chosen = sorted(set(request.sites or sites))
        if request.origin is not None:
            pairs = [(request.origin, peer) for peer in chosen if peer != request.origin]
        else:
            pairs = list(itertools.combinations(chosen, 2))
        if len(pairs) > MOST_PAIRS:
            raise BadSetting(
                f"{len(chosen)} sites make {len(pairs):,} pairs, too many for one answer",
                "Name the sites to look at, 200 at the most.",
            )
        known = self.known()
        return [_info(one, other, estimate(one, other, known)) for one, other in pairs]

    def info(self) -> CoordinateInfo:
        """Where this site is, and what was refused on the way there."""
        return CoordinateInfo(
            site=self.site,
            coordinate=pack(self.coordinate),
            counts=msgspec.to_builtins(self.position.counts),
        )


def _info(one: str, other: str, found: Estimate) -> RttInfo:
    return RttInfo(
        site=one,
        peer=other,
        estimate_ms=_milliseconds(found.rtt),
        error_ms=_milliseconds(found.error),
        measured_ms=_milliseconds(found.measured),
        measured_by=found.measured_by,
    )


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
