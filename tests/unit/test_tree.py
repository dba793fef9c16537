"""Whom a copy follows (`skerry.fabric.tree`)."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from skerry.fabric.tree import FANOUT, choose_parent
from skerry.model.fabric import CopyRecord, Step, TopicEntry
from skerry.model.topic import TopicSettings

AWAY = {"home": 0.08, "near": 0.01, "far": 0.2}


def parent(latency: float | None, reach: Collection[str] = AWAY, followers: int = 0) -> str:
    """Whom a copy follows that has these around it, of which the home feeds so many others."""
    entry = TopicEntry(
        name="t",
        home="home",
        epoch=1,
        lineage=(Step(1, 0),),
        members=("home",),
        settings=TopicSettings(latency=latency),
    )
    children = ["near", "far", *(f"reader{number}" for number in range(followers))]
    records = {name: CopyRecord(site=name, parent="home", depth=1) for name in children}
    found = choose_parent(
        "mine", entry, records, "hub", lambda site: site in reach, AWAY.__getitem__
    )
    return found.parent


def test_a_copy_follows_the_nearest_holder() -> None:
    assert parent(None) == "near"
    assert parent(None, ("home", "far")) == "home"
    assert parent(None, ("home", "far"), followers=FANOUT) == "far"


@pytest.mark.parametrize("followers", [0, 2 * FANOUT])
def test_a_copy_of_a_topic_with_a_latency_bound_follows_the_home(followers: int) -> None:
    """Through another copy events would take longer than placement thinks."""
    assert parent(0.1, followers=followers) == "home"
    assert parent(0.1, ("near", "far"), followers) == "near"
