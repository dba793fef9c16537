"""A short fault campaign against real sites; `make soak` runs the long ones.

As root every site has a network of its own and cuts are among the faults; without, the same runs on
loopback and without cuts.
"""

from __future__ import annotations

import pytest

from skerry.testing.wan import Wan
from tests.soak.campaign import Campaign, Options
from tests.soak.plan import draw

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
