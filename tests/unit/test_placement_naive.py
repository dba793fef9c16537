"""The policy against a naive one, on a thousand random tables."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from skerry.placement import Plan, PolicySettings, plan, replicas
from skerry.placement import assign as assigning
from skerry.placement import rank as ranking
from tests.unit.naive_placement import naive_plan, random_tables

NOW = 100.0


def outcome(made: Plan) -> tuple[list[Any], list[Any]]:
    """Moves and stays as the naive one says them."""
    replicas = [tuple(x for x in row if x >= 0) for row in made.replicas.tolist()]
    columns = (made.topic.tolist(), made.to.tolist(), replicas, made.cause.tolist())
    stays = (made.staying.tolist(), made.stay_cause.tolist(), made.stay_hindrance.tolist())
    return list(zip(*columns, strict=True)), list(zip(*stays, strict=True))


def random_settings(seed: int) -> PolicySettings:
    rng = np.random.default_rng(seed + 10**6)
    return PolicySettings(
        max_in_flight=[None, 3, 20][rng.integers(3)],
        when_infeasible=("stay", "least_bad")[rng.integers(2)],
        tries=int(rng.integers(1, 5)),
        margin=float(rng.choice([0.0, 0.05])),
        apart_ms=float(rng.choice([0.0, 20.0])),
    )


@pytest.mark.parametrize("block", range(4))
def test_the_policy_does_what_the_naive_one_does(block: int) -> None:
    moved = 0
    for seed in range(block * 250, block * 250 + 250):
        topics, sites = random_tables(seed)
        settings = random_settings(seed)
        made = outcome(plan(topics, sites, settings, NOW))
        slow = naive_plan(topics, sites, settings, NOW)
        assert made == (slow.moves, slow.stays), f"seed {seed}"
        moved += len(slow.moves)
    assert moved > 250


@pytest.mark.parametrize("seed", range(6))
def test_larger_tables_in_small_blocks_too(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces, blocks and lists so small that every path of the fast one is gone through."""
    monkeypatch.setattr(ranking, "CELLS", 100)
    monkeypatch.setattr(ranking, "KEPT", 1 + seed % 3)
    monkeypatch.setattr(replicas, "NEAR", 1 + seed)
    monkeypatch.setattr(assigning, "SHORT", 1 + 3 * (seed % 2))
    topics, sites = random_tables(seed, topics=400, sites=40)
    sites = msgspec.structs.replace(sites, load=sites.load / 2)  # room, and it is used up
    settings = PolicySettings(max_in_flight=None, fill=0.9)
    made = plan(topics, sites, settings, NOW, threads=1 + seed % 2)
    slow = naive_plan(topics, sites, settings, NOW)
    assert outcome(made) == (slow.moves, slow.stays)
