"""What goes wrong around placement: nothing suits, nobody has room, records go astray, sites
vanish, moves fail, and two decide at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any

import msgspec
import pytest

from skerry import Client
from skerry.errors import MoveFailed
from skerry.fabric.leader import Leader
from skerry.model.placement import MoveReport, PlanAnswer
from skerry.model.promotion import State
from skerry.placement.controller import Controller
from skerry.placement.gauge import Gauge
from skerry.testing import LocalFabric
from tests.conftest import until
from tests.live.fabrics import Load
from tests.live.placements import PLACES, Teller, controller, idle, placed

QUIET = 60.0
"""Seconds between records of the real sites: while a test lasts they say nothing of themselves."""


@pytest.fixture(autouse=True)
def _idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gauge, "read", idle)


@contextlib.asynccontextmanager
async def told(**settings: Any) -> Any:
    """A fabric whose sites say what the test says, with a topic at the hub."""
    async with placed() as (fabric, admin):
        await admin.create_topic("t", home="hub", latency=0.02)
        await admin.set_placement(period=QUIET, **settings)
        await admin.placement_plan()
        yield fabric, admin, Teller(admin)


def stays(plan: PlanAnswer) -> dict[str, str]:
    return {stay.topic: stay.hindrance for stay in plan.stays}


async def home(admin: Client, topic: str = "t") -> str:
    return (await admin.topic(topic)).home


async def test_no_site_suits_nobody_has_room_and_clients_of_one_kind() -> None:
    async with told(when_infeasible="stay") as (fabric, admin, teller):
        # Publishers at farm, subscribers at lab: 52 ms through the hub, 37 ms directly.
        await teller.tell_all(fabric, hub={"t": (0, 0)}, farm={"t": (1, 0)}, lab={"t": (0, 1)})
        plan = await admin.placement_plan()
        assert (plan.moves, stays(plan)) == ([], {"t": "no_site"})
        assert "no site suits it" in plan.stays[0].reason
        verdicts = {c.site: c.verdict for c in (await admin.placement_explain("t")).candidates}
        assert verdicts == {"hub": "home", "farm": "too far", "lab": "too far"}

        await admin.set_placement(when_infeasible="least_bad")
        plan = await admin.placement_plan()
        assert [move.target for move in plan.moves] in (["farm"], ["lab"])
        assert "no site suits it" in plan.moves[0].reason
        assert "is the least bad: 37" in plan.moves[0].reason

        # Clients of one kind only: nothing is late.
        for clients in ((3, 0), (0, 3)):
            await teller.tell_all(fabric, hub={"t": (0, 0)}, farm={"t": clients})
            plan = await admin.placement_plan()
            assert (plan.moves, plan.stays) == ([], [])
            why = await admin.placement_explain("t")
            assert "it has no" in why.decision
            assert why.estimated_ms is None

        # All sites are overloaded: a late topic finds no room, and a busy one neither.
        full = (3.9, 7.9e9, 1e5, 9e11, 400.0)
        records = [
            teller.record(site, {"t": (1, 1) if site == "farm" else (0, 0)}, load=full)
            for site in PLACES
        ]
        await teller.tell(*records)
        newest = controller(fabric).monitor.newest
        await until(lambda: all(newest[s][0].load == full for s in PLACES))
        plan = await admin.placement_plan()
        assert (plan.moves, stays(plan)) == ([], {"t": "no_room"})
        assert "add capacity" in plan.stays[0].reason
        assert await admin.placement_apply() == []


async def test_records_that_are_late_doubled_or_missing_change_nothing() -> None:
    async with told() as (fabric, admin, teller):
        away = {site: teller.record(site, {"t": (0, 0)}) for site in PLACES}
        near = teller.record("farm", {"t": (1, 1)})
        lost = teller.record("hub", {"t": (0, 0)})  # never told
        after = teller.record("hub", {"t": (0, 0)})
        fates = controller(fabric).monitor.fates
        before = Counter(fates)
        await teller.tell(near, after, *away.values(), near, away["lab"], after)
        await until(lambda: (fates - before).total() >= 9)
        assert fates - before == {"taken": 3, "late": 2, "doubled": 3, "missing": 1 + 2}
        assert lost.number < after.number
        plan = await admin.placement_plan()
        assert [move.target for move in plan.moves] == ["farm"]
        # A record of a site that tells of another, and one of a site that is none.
        record = teller.record("lab", {"t": (5, 5)})
        async with admin.publisher("placement/records") as publisher:
            data = msgspec.msgpack.encode(record)
            await publisher.send(data, topic="placement/records/farm")
            stranger = msgspec.structs.replace(record, site="stranger")
            await publisher.send(
                msgspec.msgpack.encode(stranger), topic="placement/records/stranger"
            )
        await until(lambda: fates["refused"] == before["refused"] + 2)
        assert [m.target for m in (await admin.placement_plan()).moves] == ["farm"]


async def test_a_site_that_vanishes_while_it_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    async with told(cool_down=0.5) as (fabric, admin, teller), Load(admin, "t") as load:
        await teller.tell_all(fabric, hub={"t": (0, 0)}, farm={"t": (1, 1)})
        leads = controller(fabric)
        moves = (await admin.placement_plan()).moves
        assert [move.target for move in moves] == ["farm"]
        decisions = leads._decisions(moves, "apply")
        await fabric.crash("farm")
        (future,) = leads.executor.decide(decisions)
        report = await future
        assert report.outcome == "failed"
        assert await home(admin) == "hub"
        await load.go_on()
        await until(lambda: not leads._leader.is_there("farm"))
        assert (await admin.placement_plan()).moves == []  # its clients are gone with it
        await fabric.start("farm")
        await until(lambda: leads._leader.is_there("farm"))

        async def moved() -> bool:
            await teller.tell_all(fabric, hub={"t": (0, 0)}, farm={"t": (1, 1)})
            reports = await admin.placement_apply()
            return [r.outcome for r in reports] == ["moved"]

        await until(moved, 30)
        await load.go_on()


async def test_a_move_that_fails_half_way_is_tried_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with told(late_cool_down=60.0) as (fabric, admin, teller), Load(admin, "t") as load:
        leads = controller(fabric)
        moves = leads._leader._moves
        wait_for, failures = moves._wait_for, iter([True])

        async def fails_once(*arguments: Any) -> State:
            if next(failures, False):
                raise MoveFailed("the next home did not get the last events in time")
            return await wait_for(*arguments)

        monkeypatch.setattr(moves, "_wait_for", fails_once)
        await teller.tell_all(fabric, hub={"t": (0, 0)}, farm={"t": (1, 1)})
        (report,) = await admin.placement_apply()  # the home was shut for it, and is open again
        assert (report.outcome, report.source) == ("failed", "hub")
        assert "last events" in report.why
        await load.go_on()
        assert await home(admin) == "hub"
        plan = await admin.placement_plan()
        assert (plan.moves, stays(plan)) == ([], {"t": "cooling"})
        await admin.set_placement("auto", period=0.5, cool_down=0.1)

        async def moved() -> bool:
            await teller.tell_all(fabric, hub={"t": (0, 0)}, farm={"t": (1, 1)})
            return await home(admin) == "farm"

        await until(moved, 30)
        await load.go_on()
        found = [r.outcome for r in (await admin.placement_status()).results]
        assert found == ["moved", "failed"]


async def test_a_leader_that_starts_anew_knows_what_has_just_moved() -> None:
    async with told() as (fabric, admin, teller):
        await teller.tell_all(fabric, hub={"t": (0, 0)}, farm={"t": (1, 1)})
        assert [r.outcome for r in await admin.placement_apply()] == ["moved"]
        await fabric.stop("hub")
        await fabric.start("hub")
        await until(lambda: _runs(fabric))
        async with fabric.connect("hub", "admin") as again:
            teller = Teller(again)
            await until(lambda: all(map(controller(fabric)._leader.is_there, PLACES)), 30)
            await teller.tell_all(fabric, farm={"t": (0, 0)}, lab={"t": (1, 1)})

            async def cools() -> bool:
                plan = await again.placement_plan()
                return stays(plan) == {"t": "cooling"} and not plan.moves

            await until(cools, 30)


def _runs(fabric: LocalFabric) -> bool:
    placement = fabric.agent("hub").placement
    return placement is not None and placement.controller is not None


async def test_two_controllers_at_once_move_a_topic_once() -> None:
    async with told() as (fabric, admin, teller), Load(admin, "t") as load:
        part = fabric.agent("farm").fabric
        assert part is not None
        for peer in ("hub", "lab"):
            part.links.want(peer)
        await until(lambda: part.links.up >= {"hub", "lab"}, 30)
        leader = Leader("farm", part.store, part.links, part.ask)
        connection = await fabric.agent("farm")._connect_again("second")
        second = Controller(part, leader, connection)
        second.start()
        try:
            for number, site in enumerate(("farm", "lab")):
                await _decide_together(fabric, teller, [controller(fabric), second], site)
                for where in ("hub", "farm"):
                    await _reached(fabric, where, number + 2)
                assert await home(admin) == site
                await load.go_on(5)
        finally:
            await second.close()
            await leader.close()
            await connection.close()


async def _decide_together(
    fabric: LocalFabric, teller: Teller, controllers: list[Controller], site: str
) -> None:
    """Both know that all clients are at `site`, and neither that anybody moved the topic."""
    await teller.tell_all(fabric, **everywhere(site))
    for each in controllers:
        await _knows(each, teller.number["farm"])
        each._moved_at.clear()
    reports = await asyncio.gather(*(each.apply() for each in controllers))
    outcomes = Counter(report.outcome for each in reports for report in each)
    assert outcomes["moved"] >= 1


async def _knows(controller: Controller, number: int) -> None:
    newest = controller.monitor.newest
    await until(lambda: len(newest) == 3 and all(r.number >= number for r, _ in newest.values()))


async def _reached(fabric: LocalFabric, site: str, epoch: int) -> None:
    await until(lambda: _epoch(fabric, site) == epoch)


def everywhere(site: str) -> dict[str, dict[str, tuple[int, int]]]:
    """All clients of the topic are at `site`."""
    return {name: {"t": (1, 1) if name == site else (0, 0)} for name in PLACES}


def _epoch(fabric: LocalFabric, site: str) -> int:
    part = fabric.agent(site).fabric
    assert part is not None
    entry = part.copies.entry("t")
    return 0 if entry is None else entry.epoch


async def test_clients_that_jump_to_and_fro_move_a_topic_once_a_cool_down() -> None:
    """Again and again all clients are at the other site. Decisions have to stand, and a topic rests
    after each move."""
    cool_down = 0.5
    async with told(cool_down=cool_down) as (fabric, admin, teller):
        await admin.set_placement("auto", period=0.25)
        clock = asyncio.get_running_loop().time
        began = clock()
        reports: list[MoveReport] = []
        rounds = 0
        while len(reports) < 2 and rounds < 1000:
            rounds += 1
            site = ("farm", "lab")[rounds // 8 % 2]
            await teller.tell_all(fabric, **everywhere(site))
            await asyncio.sleep(0.05)
            reports = (await admin.placement_status()).results
        assert len(reports) <= (clock() - began) / cool_down + 1
        assert {report.outcome for report in reports} <= {"moved"}
