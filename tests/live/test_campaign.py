"""A short fault campaign against real sites; `make soak` runs the long ones.

As root every site has a network of its own and cuts are among the faults; without, the same runs on
loopback and without cuts.
"""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from skerry.testing import LocalFabric
from skerry.testing.wan import Wan
from tests.conftest import until
from tests.soak import publisher, subscriber
from tests.soak.campaign import Campaign, Options
from tests.soak.judge import Ack, Delivery, Judge
from tests.soak.plan import RECOVERY, draw, draw_hard
from tests.soak.process import Disk
from tests.soak.tail import Tail, ack_of, delivery_of

SITES = ["hub", "site1", "site2"]


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_campaign() -> None:
    """What was acknowledged is there once and in order, and all copies agree."""
    options = Options(seed=11, faults=12, seconds=14, wan=Wan.unavailable() is None, rate=50)
    report = await Campaign(options, Wan.unavailable()).run()
    assert report.violations == [], f"seed {report.seed}; logs and data: {report.folder}"
    assert sum(report.faults.values()) + report.skipped == 12
    assert all(report.acknowledged.values())


def test_plan_is_a_function_of_the_seed() -> None:
    """The same seed draws the same faults, another draws others."""
    plans = [draw(seed, SITES, ["t"], 200, 200, can_cut=True) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]


@pytest.mark.parametrize("sites", [3, 5])
@pytest.mark.parametrize("can_cut", [False, True])
def test_plan_spares_a_majority(sites: int, can_cut: bool) -> None:
    """Most of the time no more sites are away than the promises cover; there are no cuts without
    a network."""
    names = [f"site{n}" for n in range(sites)]
    faults = draw(7, names, ["t"], 1000, 1000, can_cut)
    assert can_cut or not {"cut", "isolate"} & {fault.kind for fault in faults}
    hurt = [fault for fault in faults if fault.kind != "move"]
    crowded = [
        fault
        for fault in hurt
        if len({o.site for o in hurt if o.at <= fault.at < o.at + o.seconds}) > (sites - 1) // 2
    ]
    assert len(crowded) < len(faults) / 10


PUBLISHERS = ["alpha-quorum", "beta-home"]


def test_the_plan_of_hard_faults_is_a_function_of_the_seed() -> None:
    plans = [draw_hard(seed, SITES, PUBLISHERS, 600, True, True) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]


@pytest.mark.parametrize("seed", range(20))
def test_hard_faults_take_one_site_away_at_a_time_and_spare_the_coordination_site(
    seed: int,
) -> None:
    faults = draw_hard(seed, SITES, PUBLISHERS, 600, True, True)
    away = [fault for fault in faults if fault.keeps_away(fault.at)]
    for fault in away:
        others = [other for other in away if other is not fault]
        assert not any(other.keeps_away(fault.at) for other in others)
        assert fault.at + fault.seconds < 600
    assert all(fault.site != SITES[0] for fault in faults)
    assert len([fault for fault in faults if fault.kind == "destroy"]) == 1


def test_a_long_campaign_has_every_hard_fault_and_a_fault_beyond_every_timer() -> None:
    faults = draw_hard(3, SITES, PUBLISHERS, 1200, True, True)
    kinds = {fault.kind for fault in faults}
    assert {"kill-publisher", "far", "full-disk", "burst", "destroy"} < kinds
    assert max(fault.seconds for fault in faults) > 120


def test_without_a_network_or_disks_of_their_own_no_hard_fault_needs_them() -> None:
    faults = draw_hard(3, SITES, PUBLISHERS, 1200, False, False)
    assert not {"far", "full-disk", "isolate"} & {fault.kind for fault in faults}


@pytest.mark.parametrize("sites", [3, 5])
def test_a_plan_leaves_alone_whom_a_hard_fault_keeps_away(sites: int) -> None:
    names = [f"site{n}" for n in range(sites)]
    hard = draw_hard(7, names, PUBLISHERS, 1000, True, True)
    for fault in draw(7, names, ["t"], 1000, 1000, True, hard):
        taken = {other.site for other in hard if other.keeps_away(fault.at)}
        assert fault.kind in ("move", "drain") or fault.site not in taken
    assert RECOVERY > 0


@pytest.mark.skipif(Disk.unavailable() is not None, reason=str(Disk.unavailable()))
def test_a_disk_that_was_filled_takes_nothing_until_it_has_room(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk", 8)
    disk.mount()
    try:
        file = disk.path / "file"
        file.write_bytes(bytes(100_000))  # the control: it takes something
        disk.fill()
        with pytest.raises(OSError, match="No space left") as caught:
            (disk.path / "more").write_bytes(bytes(100_000))
        assert caught.value.errno == errno.ENOSPC
        disk.make_room()
        (disk.path / "more").write_bytes(bytes(100_000))
    finally:
        disk.unmount(keep=True)
    assert file.read_bytes() == bytes(100_000)


async def test_the_judge_is_told_all_that_its_rules_need(tmp_path: Path) -> None:
    """What the processes of a campaign write down, read as the campaign reads it."""
    async with LocalFabric(["hub"]) as fabric:
        async with fabric.connect("hub", "admin") as admin:
            await admin.create_topic("t")
        targets = [str(fabric["hub"].data)]
        told, got, seen = (tmp_path / name for name in ("told", "got", "live"))
        spec: dict[str, Any] = {
            "name": "p", "topic": "t", "level": "quorum", "rate": 0, "most": 20,
            "incarnation": 2, "targets": targets, "out": str(told),
        }  # fmt: skip
        readers: dict[str, Any] = {"name": "d", "topics": ["t"], "targets": targets}
        with told.open("a") as out, got.open("a") as kept, seen.open("a") as now:
            load = publisher.Load(spec, out)
            durably, live_now = subscriber.Written(kept), subscriber.Written(now)
            tasks = [
                asyncio.create_task(load.run()),
                asyncio.create_task(subscriber.follow(readers, "t", durably)),
                asyncio.create_task(subscriber.watch(readers, "t", live_now)),
            ]
            try:
                await until(lambda: all(f.read_text().count(":") >= 20 for f in (got, seen)))
                await until(lambda: told.read_text().count("\n") >= 20)
            finally:
                load.stop.set()
                for task in tasks[1:]:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
    acks = [ack_of(line, "t", "quorum") for line in Tail(told).lines()]
    durable = [delivery_of(line, "d") for line in Tail(got).lines()]
    live = [delivery_of(line, "r") for line in Tail(seen).lines()]
    assert len(acks) == len(durable) == len(live) == 20
    judge = Judge()
    for ack in acks:
        assert isinstance(ack, Ack)
        assert ack.epoch > 0
        assert ack.began <= ack.time
        assert ack.publisher == "p-i2-g0"
        judge.acknowledged(ack)
    for one in [*durable, *live]:
        assert isinstance(one, Delivery)
        judge.delivered(one)
    assert [one.deliveries for one in durable] == [1] * 20
    assert [one.deliveries for one in live] == [0] * 20
    assert [one.stamp for one in durable] == [one.stamp for one in live]
    assert judge.violations == []


def test_a_line_that_is_still_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "told"
    tail = Tail(file)
    assert tail.lines() == []
    file.write_text("\nA 2.0 p 0 5 1.5 3\nA 3.0 p 1")
    [line] = tail.lines()
    assert ack_of(line, "t", "home") == Ack("t", "home", "p", 0, 5, 3, 1.5, 2.0)
    with file.open("a") as out:
        out.write(" 6 2.5 3\nU 4.0 p 2 OutcomeUnknown\n")
    assert [ack_of(line, "t", "home") is None for line in tail.lines()] == [False, True]
