"""Topics live near their clients: from what clients use to the move, on real sites."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import msgspec
import nats
import pytest

import skerry
from skerry import Client, errors
from skerry.engine.address import Address
from skerry.model.placement import MOVES, RECORDS, MoveReport, PlacementStatus
from skerry.placement.gauge import Gauge
from skerry.testing import LocalFabric
from tests.conftest import beside, until
from tests.live.placements import PLACES, controller, idle, placed


@pytest.fixture(autouse=True)
def _idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gauge, "read", idle)


async def publishing(client: Client, topic: str) -> None:
    """Publish now and then, for ever."""
    while True:
        await client.publish(topic, b"x" * 100)
        await asyncio.sleep(0.02)


async def reading(client: Client, topic: str) -> None:
    """Subscribe, for ever."""
    async with client.subscribe(topic) as events:
        async for _ in events:
            pass


async def results(admin: Client) -> AsyncIterator[MoveReport]:
    """What was moved."""
    async with admin.subscribe(MOVES, from_index=1) as events:
        async for event in events:
            yield msgspec.json.decode(event.data, type=MoveReport)


async def sees(admin: Client, topic: str, producers: int, consumers: int) -> None:
    """Wait until the controller knows of so many clients."""

    async def known() -> bool:
        found = (await admin.placement_explain(topic)).clients
        return (sum(c.producers for c in found), sum(c.consumers for c in found)) == (
            producers, consumers,
        )  # fmt: skip

    await until(known, 30)


async def test_a_topic_is_planned_explained_pinned_and_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("skerry.client.usage.LINGER", 0.5)
    async with placed() as (fabric, admin), fabric.connect("farm") as client:
        assert not (await client.placement_status()).running
        await client.create_topic("t", home="hub", latency=0.03)
        await client.create_topic("free", home="hub")
        await admin.set_placement(period=0.5)
        async with beside(publishing(client, "t"), reading(client, "t"), reading(client, "free")):
            await sees(admin, "t", 1, 1)
            plan = await client.placement_plan()
            assert [(m.topic, m.source, m.target, m.cause) for m in plan.moves] == [
                ("t", "hub", "farm", "latency")
            ]
            assert (plan.mode, plan.topics, plan.silent) == ("off", 2, [])
            told = await client.placement_explain("t")
            assert told.estimated_ms is not None
            assert told.estimated_ms >= 42  # and the lines of the clients
            assert told.measured_ms is not None
            assert {c.site: c.verdict for c in told.candidates} == {
                "hub": "home", "farm": "chosen", "lab": "too far",
            }  # fmt: skip
            assert "free" in (await client.placement_explain("free")).topic
            with pytest.raises(errors.AccessDenied):
                await client.placement_apply()
            await admin.pin_topic("t")
            plan = await client.placement_plan()
            assert [(s.topic, s.hindrance) for s in plan.stays] == [("t", "pinned")]
            assert await admin.placement_apply() == []
            await admin.pin_topic("t", False)
            (report,) = await admin.placement_apply()
            assert (report.outcome, report.by, report.target) == ("moved", "apply", "farm")
            assert (await client.topic("t")).home == "farm"
            written = await anext(results(admin))
            assert written == report
            status: PlacementStatus = await client.placement_status()
            assert (status.running, status.bounded, status.pinned) == (True, 1, [])
            assert {s.site for s in status.sites if s.fresh} == set(PLACES)
            # It is at home where its clients are, and nobody is late.
            plan = await client.placement_plan()
            assert plan.moves == []
        await sees(admin, "t", 0, 0)  # who has stopped is forgotten soon
        with pytest.raises(errors.UnknownTopic):
            await client.placement_explain("nowhere")


async def test_a_swarm_that_changes_zone_takes_its_topic_along() -> None:
    """The UAV's case (section 5.2.1): bound 40 ms, and the clients go from one site to another."""
    async with placed() as (fabric, admin):
        await admin.create_topic("swarm", home="farm", latency=0.04)
        await admin.set_placement("auto", period=0.5, cool_down=1.0)
        for site in ("farm", "lab", "farm"):
            async with (
                fabric.connect(site) as client,
                beside(publishing(client, "swarm"), reading(client, "swarm")),
            ):

                async def near(site: str = site) -> bool:
                    return (await admin.topic("swarm")).home == site

                await until(near, 30)

                async def kept() -> bool:
                    told = await admin.placement_explain("swarm")
                    return told.estimated_ms is not None and told.estimated_ms < 40

                await until(kept, 30)
        reports = [report async for report in _first(results(admin), 2)]
        assert [(r.source, r.target, r.outcome) for r in reports] == [
            ("farm", "lab", "moved"), ("lab", "farm", "moved"),
        ]  # fmt: skip
        assert {r.by for r in reports} == {"auto"}


async def _first(reports: AsyncIterator[MoveReport], count: int) -> AsyncIterator[MoveReport]:
    for _ in range(count):
        yield await anext(reports)


async def test_only_agents_write_what_decides() -> None:
    async with placed() as (fabric, admin), fabric.connect("farm") as client:
        for topic in ("placement", "placement/mine"):
            with pytest.raises(errors.AccessDenied, match="Skerry's own"):
                await client.create_topic(topic)
        await client.placement_plan()
        with pytest.raises(errors.AccessDenied):
            await client.publish(f"{RECORDS}/farm", b"lies")
        refused = controller(fabric).monitor.fates["refused"]
        await admin.publish(f"{RECORDS}/farm", b"nonsense")
        await until(lambda: controller(fabric).monitor.fates["refused"] == refused + 1)
        assert (await client.placement_plan()).silent == []
        for name in ("open.placement.plan", "open.usage"):
            client._open.connection.publish(f"_sk.farm.{name}", b"nonsense")  # nobody is harmed
        assert await client.placement_status()


async def test_settings_are_checked_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async with placed({"hub": (0.0, 0.0), "farm": (40.0, 0.0)}) as (fabric, admin):
        made = await admin.set_placement(period=2.0, margin=0.1, when_infeasible="stay")
        assert (made.period, made.policy) == (2.0, {"margin": 0.1, "when_infeasible": "stay"})
        made = await admin.set_placement("auto", margin=None)
        assert (made.mode, made.policy) == ("auto", {"when_infeasible": "stay"})
        for bad in ({"period": 0.0}, {"margin": 5.0}, {"nonsense": 1}, {"at_once": 0}):
            with pytest.raises(errors.BadSetting):
                await admin.set_placement(**bad)
        assert (await admin.placement_status()).settings == made
        await fabric.stop("farm")
        await fabric.start("farm")
        agent = fabric.agent("farm").placement
        assert agent is not None
        await until(lambda: agent.reporter is not None)  # it goes on by itself


async def test_a_site_that_stands_alone_says_so(client: Client) -> None:
    with pytest.raises(errors.NotInFabric):
        await client.placement_plan()
    with pytest.raises(errors.NotInFabric):
        await client.create_topic("t", latency=0.04)


async def test_a_latency_bound_begins_the_monitoring_and_nothing_else_does() -> None:
    async with LocalFabric(["hub", "farm"]) as fabric, fabric.connect("hub", "admin") as admin:
        await admin.create_topic("t")
        agent = fabric.agent("farm").placement
        assert agent is not None
        assert [t.name for t in await admin.topics()] == ["t"]
        assert agent.reporter is None
        await admin.set_topic("t", latency=0.04)
        await until(lambda: agent.reporter is not None)
        assert (await admin.topic("t")).settings.latency == 0.04
        with pytest.raises(errors.BadSetting, match="1 ms to 60 s"):
            await admin.set_topic("t", latency=0.0)


async def test_settings_that_are_changed_at_the_same_time_are_all_changed() -> None:
    async with placed() as (_, admin):
        changes: list[dict[str, Any]] = [{"period": 0.5}, {"mode": "auto"}, {"period": 0.5}]
        await asyncio.gather(*(admin.set_placement(**change) for change in changes))
        settings = (await admin.placement_status()).settings
        assert (settings.period, settings.mode) == (0.5, "auto")


async def test_plain_clients_count_too_and_one_that_fails_over_counts_once() -> None:
    async with placed(plain=True) as (fabric, admin):
        await admin.create_topic("t", home="hub", latency=0.03)
        await admin.set_placement(period=0.5)
        farm, lab = (plain_address(fabric, name) for name in ("farm", "lab"))
        publisher = await nats.connect(farm.url, user="plain", password=farm.password)
        reader = await nats.connect(lab.url, user="plain", password=lab.password)
        try:
            await reader.subscribe("t.t")

            async def both() -> bool:
                await publisher.publish("p.t", b"x")
                found = (await admin.placement_explain("t")).clients
                return {(at.site, at.producers, at.consumers) for at in found} == {
                    ("farm", 1, 0), ("lab", 0, 1),
                }  # fmt: skip

            await until(both, 30)
        finally:
            await publisher.close()
            await reader.close()
        await admin.create_topic("u", home="hub")
        targets = [fabric[name].data for name in ("farm", "lab")]
        async with skerry.connect(targets) as client, beside(reading(client, "u")):
            await sees(admin, "u", 0, 1)
            first = client.site
            fabric[first].site.engine.stop_watching()
            fabric[first].kill_engine()
            other = {"farm": "lab", "lab": "farm"}[first]

            async def there() -> bool:
                found = (await admin.placement_explain("u")).clients
                return [(at.site, at.consumers) for at in found] == [(other, 1)]

            await until(there, 30)


class PlainAddress(NamedTuple):
    url: str
    password: str


def plain_address(fabric: LocalFabric, site: str) -> PlainAddress:
    """Where a client without the SDK connects to."""
    address = Address.load(fabric[site].data / "credentials" / "plain.json")
    return PlainAddress(f"nats://{address.host}:{address.port}", address.password)
