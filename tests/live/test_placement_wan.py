"""Placement on an emulated wide-area network: what is estimated holds for what is measured."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections import deque

import pytest

from skerry import Client
from skerry.model.placement import Explanation
from skerry.placement.gauge import Gauge
from skerry.testing import LocalSite, Wan, WanFabric
from tests.conftest import until
from tests.live.placements import idle

DELAY = 0.03
"""Seconds one way between any two sites: what goes there and back breaks the bound."""
BOUND = 0.04


class Swarm:
    """A publisher and a subscriber at one site, and how long their last events took, in ms."""

    def __init__(self) -> None:
        self.latencies: deque[float] = deque(maxlen=20)

    async def fly(self, site: LocalSite) -> None:
        """Publish 50 events a second and receive them, until cancelled."""
        async with (
            site.connect() as one,
            site.connect() as other,
            other.subscribe("swarm") as events,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(self._publish(one))
            async for event in events:
                self.latencies.append((time.monotonic_ns() - int(event.data)) / 1e6)

    async def _publish(self, client: Client) -> None:
        while True:
            await client.publish("swarm", b"%d" % time.monotonic_ns())
            await asyncio.sleep(0.02)

    def is_late(self) -> bool:
        """Whether the last events took longer than the bound, most of them."""
        return len(self.latencies) == 20 and statistics.median(self.latencies) > 1000 * BOUND

    def is_in_time(self) -> bool:
        """Whether they did not."""
        return len(self.latencies) == 20 and statistics.median(self.latencies) < 1000 * BOUND


@pytest.mark.skipif(Wan.unavailable() is not None, reason=f"no emulated WAN: {Wan.unavailable()}")
async def test_a_swarm_that_changes_zone_is_soon_below_its_bound_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """E7, UAV: the bound is 40 ms; from another zone an event takes 60."""
    monkeypatch.setattr(Gauge, "read", idle)

    async def prepare(site: LocalSite) -> None:
        async with site.connect("admin") as admin:
            await admin.create_topic("swarm", home="a", latency=BOUND)
            await admin.set_placement("auto", period=0.5, cool_down=2.0)

    async def told(site: LocalSite) -> Explanation:
        async with site.connect() as client:
            return await client.placement_explain("swarm")

    async with WanFabric(["hub", "a", "b"], delay=DELAY) as fabric:
        await fabric.run("hub", prepare)
        swarm = Swarm()
        flying = asyncio.create_task(fabric.run("b", swarm.fly))
        try:
            await until(swarm.is_late, 60)
            await until(swarm.is_in_time, 60)

            async def agrees() -> bool:
                found = await fabric.run("hub", told)
                return (
                    found.home == "b"
                    and found.estimated_ms is not None
                    and found.measured_ms is not None
                    and found.estimated_ms < 1000 * BOUND
                    and found.measured_ms < 1000 * BOUND
                )

            await until(agrees, 60)
        finally:
            flying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await flying
