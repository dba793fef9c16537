"""Sites beyond a satellite: waits go by the distance that was measured."""

from __future__ import annotations

import pytest

from skerry.engine.wire import Connection
from skerry.testing import LocalSite, Wan, WanFabric
from tests.conftest import until

pytestmark = pytest.mark.skipif(
    Wan.unavailable() is not None, reason=f"no emulated WAN: {Wan.unavailable()}"
)

EVENTS = 3


@pytest.mark.parametrize(("delay", "jitter"), [(0.4, 0.0), (0.2, 0.6)])
async def test_sites_half_a_second_away_join_and_publish_at_quorum(
    delay: float, jitter: float
) -> None:
    """The second is 500 ± 300 ms one way. None of the events ends in `OutcomeUnknown`."""

    async def create(site: LocalSite) -> None:
        async with site.connect("admin") as admin:
            assert all(one.up for one in await admin.sites())
            topic = await admin.create_topic("t", home="farm", replicas=2, ack="quorum")
            assert {topic.home, *topic.replicas} == {"hub", "farm", "lab"}

    async def publish(site: LocalSite) -> list[int]:
        async with site.connect() as client:
            return [await client.publish("t", b"%d" % n) for n in range(EVENTS)]

    async with WanFabric(["hub", "farm", "lab"], delay=delay, jitter=jitter) as fabric:
        await fabric.run("hub", create)
        assert await fabric.run("hub", publish) == list(range(1, EVENTS + 1))
        assert await fabric.run("farm", publish) == list(range(EVENTS + 1, 2 * EVENTS + 1))


async def test_an_acknowledgement_that_takes_long_counts() -> None:
    """Else each event to a far home is sent twice, and its publisher waits for the second."""
    count = 10

    async def create(site: LocalSite) -> None:
        async with site.connect("admin") as admin:
            await admin.create_topic("t", home="farm")

    async def publish(site: LocalSite) -> list[int]:
        async with site.connect() as client:
            return [await client.publish("t", b"%d" % n) for n in range(count)]

    copies: list[bytes] = []

    async def listen(site: LocalSite) -> Connection:
        connection = await Connection.open(site.site.address)
        connection.subscribe("s.farm.*.t", lambda *message: copies.append(message[3]))
        return connection

    def is_far() -> bool:
        part = fabric.sites["hub"].site.fabric
        assert part is not None
        return part.links.rtt.get("farm", 0.0) > 0.6

    async with WanFabric(["hub", "farm"]) as fabric:
        await fabric.run("hub", create)
        listening = await fabric.run("farm", listen)
        await fabric.wan.set("hub", "farm", delay=0.35)
        await until(is_far)
        assert await fabric.run("hub", publish) == list(range(1, count + 1))
        await fabric.run("farm", lambda site: listening.close())
    assert {*copies} == {b"%d" % n for n in range(count)}
    assert len(copies) < 2 * count
