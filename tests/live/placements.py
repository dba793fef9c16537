"""What the tests of placement share: sites at given places, and records made up."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np

from skerry import Client
from skerry.coords import Coordinate
from skerry.model.placement import RECORDS
from skerry.placement import SiteRecord, pack
from skerry.placement.controller import Controller
from skerry.placement.gauge import Reading
from skerry.placement.records import topic_columns
from skerry.site import Site
from skerry.testing import LocalFabric
from tests.conftest import until

PLACES = {"hub": (0.0, 0.0), "farm": (40.0, 0.0), "lab": (0.0, 60.0)}
"""Where sites are, in ms of round-trip time."""


def idle(*_: object) -> Reading:
    """A machine with nothing to do, in place of the one that runs all sites and the tests."""
    return Reading((4.0, 8e9, 1e9, 1e12, float("inf")), (0.1, 1e8, 0.0, 1e9, 0.0))


async def place(site: Site, at: tuple[float, float], height: float = 1.0) -> None:
    """Have a site believe that it is there."""
    assert site.fabric is not None
    distances = site.fabric.distances
    await distances.close()
    vector = (at[0] / 1000, at[1] / 1000, *[0.0] * 6)
    distances._steady.coordinate = Coordinate(vector, height / 1000, 0.01)


@contextlib.asynccontextmanager
async def placed(
    places: Mapping[str, tuple[float, float]] = PLACES, **settings: Any
) -> AsyncIterator[tuple[LocalFabric, Client]]:
    """A fabric whose sites are at `places`, and its administrator at the first of them."""
    async with LocalFabric(list(places), **settings) as fabric:
        for name, at in places.items():
            await place(fabric.agent(name), at)
        async with fabric.connect(fabric.names[0], "admin") as admin:
            yield fabric, admin


def controller(fabric: LocalFabric) -> Controller:
    """The controller at the leader, which runs."""
    placement = fabric.agent(fabric.names[0]).placement
    assert placement is not None
    assert placement.controller is not None
    return placement.controller


class Teller:
    """Tells, in place of the sites, what they would report."""

    def __init__(self, admin: Client, places: Mapping[str, tuple[float, float]] = PLACES) -> None:
        self._admin = admin
        self._places = dict(places)
        self.started = time.time_ns() + 10**12  # later than any agent started
        self.number = dict.fromkeys(places, 0)

    def record(
        self, site: str, topics: Mapping[str, tuple[int, int]] | None = None, **about: Any
    ) -> SiteRecord:
        """The next record of a site: publishers and subscribers of each topic."""
        self.number[site] += 1
        topics = topics or {}
        count = len(topics)
        columns: dict[str, Any] = {
            name: np.zeros(count)
            for name in ("producer_access", "consumer_access", "stored_bytes", "publish_ms",
                         "deliver_ms", "deliver_most_ms")
        }  # fmt: skip
        columns |= {name: np.full(count, 100.0) for name in ("rate_in", "rate_out", "event_bytes")}
        columns["producers"] = np.array([use[0] for use in topics.values()])
        columns["consumers"] = np.array([use[1] for use in topics.values()])
        reading = idle()
        given: dict[str, Any] = {
            "site": site,
            "started": self.started,
            "number": self.number[site],
            "position": tuple(x / 2 for x in (*self._places[site], *[0.0] * 6)),
            "height": 0.5,
            "capacity": reading.capacity,
            "load": reading.load,
            "topics": topic_columns(list(topics), **columns),
            **about,
        }
        return SiteRecord(**given)

    async def tell(self, *records: SiteRecord) -> None:
        """Publish records, in this order."""
        async with self._admin.publisher(RECORDS) as publisher:
            for record in records:
                await publisher.send(pack(record), topic=f"{RECORDS}/{record.site}")

    async def tell_all(self, fabric: LocalFabric, **topics: Mapping[str, tuple[int, int]]) -> None:
        """A record of every site, and wait until the controller has them."""
        records = [self.record(site, topics.get(site)) for site in self._places]
        await self.tell(*records)
        newest = controller(fabric).monitor.newest
        await until(
            lambda: all(
                r.site in newest and newest[r.site][0].number >= r.number
                and newest[r.site][0].started == r.started for r in records
            )
        )  # fmt: skip
