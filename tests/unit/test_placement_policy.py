"""Rules of the policy, one by one."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from skerry import errors, placement
from skerry.placement import (
    Cause,
    Clients,
    Hindrance,
    Policy,
    PolicySettings,
    Sites,
    Topics,
    explain,
    plan,
)
from skerry.placement.assign import Assignment, Rerank
from skerry.placement.rank import Candidates
from skerry.placement.tables import NAMES, Array, make_clients
from tests.unit.naive_placement import random_tables

NOW = 1000.0
SETTINGS = PolicySettings(apart_ms=0.0)


def make_sites(*at: float, **columns: Any) -> Sites:
    """Sites on a line, with ten cores, ten of everything, and nothing to do."""
    count = len(at)
    made = Sites(
        names=np.array([f"s{number}" for number in range(count)], NAMES),
        position=np.array(at, "f4").reshape(count, 1),
        height=np.zeros(count, "f4"),
        capacity=np.tile([10.0, 1e10, 1e10, 1e12, 1e5], (count, 1)),
        load=np.zeros((count, 5)),
        up=np.ones(count, bool),
        draining=np.zeros(count, bool),
        power=np.ones(count, bool),
    )
    return msgspec.structs.replace(made, **columns)


def behind(*site: int, access: float = 0.0) -> Clients:
    """Clients of each topic behind one site, so many ms from it; -1: nobody."""
    at = np.array(site, int)
    topic = np.flatnonzero(at >= 0)
    return make_clients(len(at), topic, at[topic], np.full(len(topic), access))


def make_topics(count: int, **columns: Any) -> Topics:
    """Topics at the first site, with clients there, and nothing wrong with them."""
    made = Topics(
        names=np.array([f"t{number:03}" for number in range(count)], NAMES),
        home=np.zeros(count, "i4"),
        bound=np.full(count, 40.0),
        worst=np.full(count, 5.0),
        producers=behind(*[0] * count),
        consumers=behind(*[0] * count),
        rate_in=np.full(count, 100.0),
        rate_out=np.full(count, 100.0),
        event_bytes=np.full(count, 100.0),
        stored_bytes=np.zeros(count),
        replicas=np.full((count, 1), -1, "i4"),
        wanted=np.zeros(count, "i4"),
        colocated=np.zeros(count, bool),
        power=np.zeros(count, bool),
        pinned=np.zeros(count, bool),
        measured=np.ones(count, bool),
        moved_at=np.full(count, -np.inf),
        moving_to=np.full(count, -1, "i4"),
    )
    return msgspec.structs.replace(made, **columns)


def away(count: int, sites: Sites, at: float, **columns: Any) -> Topics:
    """Topics at the first site whose clients are all at `at`, behind the site next to it, and whose
    bound is broken."""
    gap = np.abs(sites.position[:, 0] - at)
    clients = behind(*[int(gap.argmin())] * count, access=float(gap.min()))
    worst = np.full(count, 2 * at)
    given = {"producers": clients, "consumers": clients, "worst": worst, **columns}
    return make_topics(count, **given)


def loaded(load: float, *at: float) -> Sites:
    """Sites of which the first uses so many of its ten cores for its topics."""
    sites = make_sites(*at)
    sites.load[0, 0] = load
    sites.load[0, 4] = 200.0
    return sites


def outcome(topics: Topics, sites: Sites, settings: PolicySettings = SETTINGS) -> dict[str, str]:
    """Of each topic with a cause: where it goes, or why it stays."""
    made = plan(topics, sites, settings, NOW)
    moves = {one.topic: one.target for one in explain.moves(made, topics, sites, settings)}
    stays = explain.stays(made, topics, sites, settings, NOW)
    return moves | {one.topic: one.hindrance for one in stays}


def test_a_topic_moves_to_its_clients_and_says_why() -> None:
    sites = make_sites(0.0, 30.0, 55.0)
    topics = away(1, sites, 60.0)
    (move,) = explain.moves(plan(topics, sites, SETTINGS, NOW), topics, sites, SETTINGS)
    assert (move.topic, move.source, move.target, move.cause) == ("t000", "s0", "s2", "latency")
    assert move.reason == (
        "120.0 ms at s0 break its bound of 40 ms; only s2 suits it: at most 10.0 ms there"
    )


@pytest.mark.parametrize(("worst", "leaves"), [(39.1, True), (38.9, False), (40.1, True)])
def test_a_topic_leaves_before_its_bound_is_broken(worst: float, leaves: bool) -> None:
    """At half of the margin of 5 %: what engines take comes on top of the estimate."""
    topics = make_topics(1, worst=np.array([worst]))
    sites = make_sites(0.0, 1.0)
    made = plan(topics, sites, SETTINGS, NOW)
    assert len(made) == leaves
    for move in explain.moves(made, topics, sites, SETTINGS):
        assert ("nearly break" in move.reason) == (worst < 40)


def test_nothing_moves_without_a_cause() -> None:
    topics = make_topics(3, bound=np.array([40.0, np.inf, 5.2]))
    assert outcome(topics, make_sites(0.0, 1.0)) == {}
    assert len(plan(make_topics(0), make_sites(0.0), SETTINGS, NOW)) == 0


def test_the_fewest_choices_go_first() -> None:
    """Algorithm 1, line 5: the topic that only one site suits gets it, though it comes later."""
    sites = make_sites(0.0, 60.0, 80.0)
    topics = away(2, sites, 60.0, bound=np.array([60.0, 30.0]), rate_in=np.full(2, 5e4))
    assert outcome(topics, sites) == {"t001": "s1", "t000": "s2"}


def test_the_busiest_of_an_overloaded_site_leave() -> None:
    """Section 3.4.3: in decreasing order of the rate, until the site is below its limit."""
    rates = np.array([10.0, 50.0, 20.0, 15.0, 5.0])
    topics = make_topics(5, rate_in=rates, rate_out=rates)
    assert outcome(topics, loaded(9.0, 0.0, 5.0)) == {"t001": "s1"}
    assert outcome(topics, loaded(8.4, 0.0, 5.0)) == {}  # below 85 %
    sites = loaded(9.0, 0.0, 5.0)
    (move,) = explain.moves(plan(topics, sites, SETTINGS, NOW), topics, sites, SETTINGS)
    assert "s0 uses 90% of its cpu, over 85%" in move.reason


def test_every_resource_has_its_threshold() -> None:
    topics = make_topics(4, stored_bytes=np.full(4, 1e11), rate_out=np.full(4, 2e4))
    for resource in range(5):
        sites = make_sites(0.0, 5.0)
        sites.load[0] = sites.capacity[0] * 0.5
        sites.load[0, resource] = sites.capacity[0, resource] * 1.01
        assert set(outcome(topics, sites).values()) == {"s1"}, resource
        sites.capacity[0, resource] = np.inf
        assert outcome(topics, sites) == {}


def test_a_topic_that_is_too_large_for_all_does_not_keep_the_others() -> None:
    """The busiest finds no place: the next busiest are tried instead."""
    rates = np.array([9e4, 5e3, 4e3])
    topics = make_topics(3, rate_in=rates)
    sites = make_sites(0.0, 5.0)
    sites.load[0, 4] = 1.02e5
    sites.load[1, 4] = 5e4
    settings = PolicySettings(tries=2)
    assert outcome(topics, sites, settings) == {"t000": "no_room", "t001": "s1", "t002": "s1"}


def test_when_all_sites_are_overloaded_nothing_moves() -> None:
    sites = make_sites(0.0, 5.0, 7.0)
    sites.load[:, 0] = 9.9
    sites.load[:, 4] = 400.0
    topics = make_topics(6, home=np.array([0, 0, 1, 1, 2, 2], "i4"))
    assert set(outcome(topics, sites).values()) == {"no_room"}


def test_a_drained_site_is_left_by_all_but_the_pinned() -> None:
    sites = make_sites(0.0, 90.0, draining=np.array([True, False]))
    topics = make_topics(
        4,
        pinned=np.arange(4) == 1,
        moved_at=np.full(4, NOW),
        measured=np.arange(4) != 2,
        bound=np.array([40.0, 40.0, 40.0, np.inf]),
    )
    assert outcome(topics, sites) == {"t000": "s1", "t001": "pinned", "t002": "s1", "t003": "s1"}
    made = plan(topics, sites, SETTINGS, NOW)
    reasons = {m.topic: m.reason for m in explain.moves(made, topics, sites, SETTINGS)}
    assert "no site suits it; s1 is the least bad: 180.0 ms" in reasons["t000"]


def test_without_a_feasible_site_a_topic_stays_or_takes_the_least_bad() -> None:
    sites = make_sites(0.0, 60.0)
    topics = away(1, sites, 100.0)
    assert outcome(topics, sites) == {"t000": "s1"}
    stay = PolicySettings(when_infeasible="stay")
    assert outcome(topics, sites, stay) == {"t000": "no_site"}
    # A gain that is lost in the coordinates' noise is none.
    near = make_sites(0.0, 0.5)
    assert outcome(away(1, near, 100.0), near) == {"t000": "no_site"}


def test_a_topic_that_has_just_moved_stays_for_a_while() -> None:
    sites = make_sites(0.0, 60.0)
    topics = away(2, sites, 60.0, moved_at=np.array([NOW - 3.0, NOW - 5.0]))
    assert outcome(topics, sites) == {"t000": "cooling", "t001": "s1"}
    made = plan(topics, sites, SETTINGS, NOW)
    (stay,) = explain.stays(made, topics, sites, SETTINGS, NOW)
    assert stay.reason.endswith("it moved, or could not, 3 s ago and stays for 1 s more")
    rate = np.full(2, 50.0)
    moved = np.array([NOW - 29.0, NOW - 31.0])
    busy = make_topics(2, moved_at=moved, rate_in=rate, rate_out=rate)
    assert outcome(busy, loaded(9.9, 0.0, 5.0)) == {"t001": "s1"}


def test_only_so_many_moves_are_under_way_the_most_urgent_first() -> None:
    sites = make_sites(0.0, 59.0)
    topics = away(5, sites, 60.0, bound=np.array([40.0, 20.0, 30.0, 10.0, 40.0]))
    topics.moving_to[4] = 1
    settings = PolicySettings(max_in_flight=3)
    assert outcome(topics, sites, settings) == {
        "t003": "s1", "t001": "s1", "t000": "waiting", "t002": "waiting", "t004": "moving",
    }  # fmt: skip


def test_what_is_under_way_takes_room_where_it_goes() -> None:
    sites = make_sites(0.0, 60.0)
    topics = away(2, sites, 60.0, rate_in=np.full(2, 5e4), moving_to=np.array([1, -1], "i4"))
    assert outcome(topics, sites) == {"t000": "moving", "t001": "no_room"}


def test_a_site_with_a_copy_is_worth_a_detour() -> None:
    sites = make_sites(0.0, 60.0, 62.0)
    topics = away(
        2, sites, 60.0, stored_bytes=np.full(2, 5e9), replicas=np.array([[2], [-1]], "i4")
    )
    assert outcome(topics, sites) == {"t000": "s2", "t001": "s1"}
    free = PolicySettings(move_cost_ms_per_gb=0.0)
    assert outcome(topics, sites, free) == {"t000": "s1", "t001": "s1"}


def test_clients_of_one_kind_do_not_break_a_bound_but_say_where() -> None:
    """No pair, no latency; if such a topic has to leave, it goes to the clients it has."""
    for known, unknown in (("producers", "consumers"), ("consumers", "producers")):
        groups = {known: behind(2, 2, 0), unknown: behind(-1, -1, -1)}
        topics = make_topics(3, **groups, worst=np.full(3, 500.0))
        sites = make_sites(0.0, 5.0, 59.0)
        assert outcome(topics, sites) == {}
        sites = msgspec.structs.replace(sites, draining=np.array([True, False, False]))
        assert outcome(topics, sites) == {"t000": "s2", "t001": "s2", "t002": "s1"}


def test_a_topic_without_clients_stays_near_its_home() -> None:
    sites = make_sites(50.0, 0.0, 45.0, draining=np.array([True, False, False]))
    none = behind(-1)
    assert outcome(make_topics(1, producers=none, consumers=none), sites) == {"t000": "s2"}


def test_the_farthest_clients_decide() -> None:
    """Publishers at three sites, most of them at the first: the middle of all is best, and the
    worst case there is exact."""
    sites = make_sites(0.0, 30.0, 55.0, 100.0)
    publish = make_clients(1, np.zeros(3, int), np.array([0, 1, 3]), np.array([0.0, 9.0, 2.0]))
    topics = make_topics(
        1, producers=publish, consumers=behind(2), worst=np.array([157.0]), bound=np.array([60.0])
    )
    (move,) = explain.moves(plan(topics, sites, SETTINGS, NOW), topics, sites, SETTINGS)
    assert move.target == "s2"
    assert "only s2 suits it: at most 55.0 ms there" in move.reason


def test_a_home_that_is_down_is_left_to_failover() -> None:
    sites = make_sites(0.0, 60.0, up=np.array([False, True]), draining=np.array([True, False]))
    assert outcome(away(1, sites, 60.0), sites) == {"t000": "home_down"}


def test_power_is_demanded_of_the_site() -> None:
    sites = make_sites(0.0, 60.0, 50.0, power=np.array([True, False, True]))
    topics = away(2, sites, 60.0, power=np.array([True, False]))
    assert outcome(topics, sites) == {"t000": "s2", "t001": "s1"}


def test_replicas_are_near_the_home_and_apart() -> None:
    sites = make_sites(0.0, 60.0, 61.0, 66.0, 67.0, 90.0)
    topics = away(2, sites, 60.0, wanted=np.full(2, 2, "i4"), colocated=np.array([False, True]))
    settings = PolicySettings(apart_ms=5.0, copy_bonus_ms=0.0)
    made = plan(topics, sites, settings, NOW)
    assert made.to.tolist() == [1, 1]
    assert made.replicas.tolist() == [[3, 5], [2, 3]]
    # The old home holds a copy, and so it stays one unless another is nearer by the bonus.
    settings = PolicySettings(apart_ms=5.0, copy_bonus_ms=59.0)
    assert plan(topics, sites, settings, NOW).replicas.tolist() == [[0, 3], [0, 2]]


def test_a_replica_leaves_a_drained_site_and_the_home_stays() -> None:
    sites = make_sites(0.0, 9.0, 20.0, draining=np.array([False, True, False]))
    topics = make_topics(1, replicas=np.array([[1]], "i4"), wanted=np.ones(1, "i4"))
    made = plan(topics, sites, SETTINGS, NOW)
    (move,) = explain.moves(made, topics, sites, SETTINGS)
    assert (move.source, move.target, move.replicas, move.cause) == ("s0", "s0", ("s2",), "replica")
    sites = msgspec.structs.replace(sites, draining=np.array([False, True, True]))
    (move,) = explain.moves(plan(topics, sites, SETTINGS, NOW), topics, sites, SETTINGS)
    assert move.reason.endswith("only 0 of 1 replicas have a place")


@pytest.mark.parametrize("column", ["worst", "bound", "rate_in"])
def test_what_is_no_number_is_refused(column: str) -> None:
    topics, sites = make_topics(3), make_sites(0.0, 1.0)
    getattr(topics, column)[1] = np.nan
    with pytest.raises(errors.BadSetting, match=f"topics.{column} of t001 is not a number"):
        plan(topics, sites, SETTINGS, NOW)


def test_tables_that_contradict_themselves_are_refused() -> None:
    topics, sites = make_topics(2), make_sites(0.0, 1.0)
    for table, column, row, value, said in (
        (topics, "home", 0, 2, "topics.home names a site"),
        (topics, "bound", 1, 0.0, "bound of t001 is not above 0"),
        (topics, "rate_in", 0, -1.0, "topics.rate_in of t000"),
        (sites, "position", 1, 1e9, "sites.position of s1"),
        (sites, "height", 0, np.nan, "sites.height of s0 is not a number"),
        (sites, "load", 0, np.inf, "sites.load of s0"),
    ):
        before = getattr(table, column).copy()
        getattr(table, column)[row] = value
        with pytest.raises(errors.BadSetting, match=said):
            plan(topics, sites, SETTINGS, NOW)
        getattr(table, column)[...] = before
    for clients, said in (
        (behind(0, 2), "topics.consumers names a site"),
        (behind(0, 1, access=np.nan), "topics.consumers has a line"),
        (behind(0, 1, access=-1.0), "topics.consumers has a line"),
        (behind(0), "topics.consumers has 1 rows"),
        (Clients(np.array([0, 1, 5]), *np.zeros((2, 2), int)), "does not say whose"),
    ):
        bad = msgspec.structs.replace(topics, consumers=clients)
        with pytest.raises(errors.BadSetting, match=said):
            plan(bad, sites, SETTINGS, NOW)
    short = msgspec.structs.replace(topics, rate_in=np.zeros(1))
    with pytest.raises(errors.BadSetting, match="rate_in has 1 rows"):
        plan(short, sites, SETTINGS, NOW)


@pytest.mark.parametrize(
    "wrong",
    [
        {"thresholds": (0.85, 0.85, 0.85, 0.85, 1.5)},
        {"fill": 0.0},
        {"margin": 1.0},
        {"cool_down": float("nan")},
        {"gain_ms": -1.0},
        {"max_in_flight": -1},
        {"tries": 0},
        {"when_infeasible": "flee"},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.BadSetting):
        PolicySettings(**wrong).check()


def test_two_controllers_make_the_same_plan() -> None:
    for seed in range(8):
        topics, sites = random_tables(seed, topics=200, sites=12)
        one = plan(topics, sites, SETTINGS, 100.0)
        topics, sites = random_tables(seed, topics=200, sites=12)
        other = plan(topics, sites, SETTINGS, 100.0, threads=3)
        for column in one.__struct_fields__:
            assert (getattr(one, column) == getattr(other, column)).all()


def test_a_part_of_the_policy_can_be_swapped() -> None:
    def second_best(
        found: Candidates, needs: Array, load: Array, fill: Array, rerank: Rerank
    ) -> Assignment:
        return Assignment(found.site[:, 1], found.ms[:, 1], load)

    sites = make_sites(0.0, 60.0, 55.0)
    topics = away(1, sites, 60.0)
    made = plan(topics, sites, SETTINGS, NOW, policy=Policy(assign=second_best))
    assert made.to.tolist() == [2]


def test_the_causes_and_hindrances_all_have_words() -> None:
    """In random tables every one of them occurs, and each says something."""
    causes: set[str] = set()
    hindrances: set[str] = set()
    for seed in range(150):
        topics, sites = random_tables(seed)
        settings = PolicySettings(max_in_flight=5)
        made = plan(topics, sites, settings, 100.0)
        for move in explain.moves(made, topics, sites, settings):
            causes.add(move.cause)
            assert move.reason
        for stay in explain.stays(made, topics, sites, settings, 100.0):
            hindrances.add(stay.hindrance)
            assert "; " in stay.reason
    assert causes == {cause.name.lower() for cause in Cause} - {"none"}
    unlikely = {"none", "unmeasured"}  # the second alone keeps from nothing but being given away
    assert hindrances == {one.name.lower() for one in Hindrance} - unlikely


def test_the_public_names_are_these() -> None:
    assert set(placement.__all__) == {
        "RESOURCES", "Cause", "Clients", "Hindrance", "Monitor", "Plan", "Policy",
        "PolicySettings", "SiteRecord", "Sites", "TopicColumns", "TopicEntry", "Topics", "pack",
        "plan", "tables", "unpack",
    }  # fmt: skip
    assert all(getattr(placement, name).__doc__ for name in placement.__all__)
