"""Clients behind a site are as near to it as their own line, whatever the site's height.

With few sites coordinates may put all of a distance into the heights: three sites at one place,
each with a tall line. By the coordinates alone, a client would then be as far from its own site as
from the next one.
"""

from __future__ import annotations

import numpy as np

from skerry.model.placement import Move
from skerry.placement import Monitor, PolicySettings, SiteRecord, TopicEntry, explain, plan, tables
from skerry.placement.about import worst_cases
from skerry.placement.records import topic_columns
from skerry.placement.tables import Topics

TALL = 10.0
"""ms one way: any two sites are 20 ms apart."""


def record(site: str, producers: int, consumers: int, access: float = 0.5) -> SiteRecord:
    columns = {
        name: np.ones(1)
        for name in ("rate_in", "rate_out", "event_bytes", "stored_bytes", "publish_ms",
                     "deliver_ms", "deliver_most_ms")
    }  # fmt: skip
    columns |= {"producers": np.array([producers]), "consumers": np.array([consumers])}
    columns |= {"producer_access": np.array([access]), "consumer_access": np.array([access])}
    return SiteRecord(
        site=site, started=1, number=1, position=(0.0, 0.0), height=TALL,
        capacity=(4.0, 8e9, 1e8, 1e11, float("inf")), load=(1.0, 1e9, 1e6, 1e9, 5.0),
        topics=topic_columns(["t"], **columns),
    )  # fmt: skip


def planned(*records: SiteRecord, bound: float = 40.0) -> tuple[Topics, list[Move], list[float]]:
    monitor = Monitor()
    for one in records:
        monitor.fold(one, 0.0)
    topics, sites = tables(monitor, [TopicEntry(name="t", home="a", bound_ms=bound)], 0.0)
    settings = PolicySettings()
    made = plan(topics, sites, settings, 0.0)
    moves = list(explain.moves(made, topics, sites, settings))
    return topics, moves, worst_cases(topics, 0, sites).round(3).tolist()


def test_a_topic_goes_to_the_site_that_all_its_clients_are_behind() -> None:
    topics, moves, worst = planned(record("a", 0, 0), record("b", 3, 5), record("c", 0, 0))
    assert topics.worst.tolist() == [41.0]
    assert [(move.target, move.cause) for move in moves] == [("b", "latency")]
    assert "at most 1.0 ms there" in moves[0].reason
    assert worst == [41.0, 1.0, 41.0]


def test_publishers_behind_one_site_and_subscribers_behind_another() -> None:
    topics, moves, worst = planned(
        record("a", 0, 0), record("b", 1, 0), record("c", 0, 1), bound=30.0
    )
    assert topics.worst.tolist() == [41.0]
    assert [move.target for move in moves] == ["b"]  # or c: only one way is left
    assert worst == [41.0, 21.0, 21.0]


def test_clients_of_several_sites_are_as_far_as_the_farthest() -> None:
    topics, moves, worst = planned(record("a", 1, 1), record("b", 1, 1))
    assert topics.worst.tolist() == [41.0]  # from b to a and back
    assert moves == []  # no site is better
    assert worst == [41.0, 41.0]


def test_at_home_nobody_is_late() -> None:
    topics, moves, worst = planned(record("a", 2, 2), record("b", 0, 0))
    assert topics.worst.tolist() == [1.0]
    assert moves == []
    assert worst == [1.0, 41.0]
