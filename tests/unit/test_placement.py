"""Where homes and replicas go: pure choices over distances and names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.errors import BadSetting, FabricError
from skerry.fabric.placement import (
    choose_members,
    distance,
    members_after,
    members_filled,
    members_without,
    named_sites,
)
from skerry.model.topic import TopicSettings
from tests.live.faults import refused

RTT = {
    "hub": {"near": 0.01, "far": 0.2, "farther": 0.3},
    "near": {"far": 0.15},
    "far": {"farther": 0.02},
}
ALL = ["hub", "near", "far", "farther"]


@pytest.mark.parametrize(
    ("one", "other", "seconds"),
    [
        ("near", "far", 0.15),  # as measured
        ("far", "near", 0.15),  # whichever of them did
        ("hub", "far", 0.2),
        ("far", "hub", 0.2),
        ("near", "farther", 0.31),  # through the hub
        ("hub", "unknown", 0.0),
        ("near", "unknown", 0.01),
    ],
)
def test_distance_is_measured_or_through_the_hub(one: str, other: str, seconds: float) -> None:
    assert distance(one, other, "hub", RTT) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("spread", "replicas", "members"),
    [
        ("colocated", 1, ("near", "hub")),
        ("colocated", 2, ("near", "hub", "far")),
        ("distributed", 1, ("near", "farther")),
        ("distributed", 2, ("near", "farther", "far")),
        ("far, hub", 1, ("near", "far")),
        ("near,far,hub", 2, ("near", "far", "hub")),
        ("distributed", 0, ("near",)),
    ],
)
def test_replicas_go_near_far_or_where_they_are_told(
    spread: str, replicas: int, members: tuple[str, ...]
) -> None:
    settings = TopicSettings(replicas=replicas, spread=spread)
    assert choose_members("near", settings, ALL, "hub", RTT) == members


def test_too_few_sites_are_said() -> None:
    with refused(BadSetting, "4 replicas need 5 sites that are up; there are 4"):
        choose_members("near", TopicSettings(replicas=4), ALL, "hub", RTT)
    with refused(BadSetting, "2 replicas were asked for, and 1 sites named"):
        choose_members("near", TopicSettings(replicas=2, spread="far,far"), ALL, "hub", RTT)


def test_sites_are_named_or_left_to_us() -> None:
    assert named_sites(TopicSettings(spread="colocated")) is None
    assert named_sites(TopicSettings(spread=" a, b,")) == ["a", "b"]


SHY = {"near", "far"}
"""Sites that only dial out: no two of them can be linked."""


def test_replicas_are_chosen_that_can_be_linked() -> None:
    settings = TopicSettings(replicas=1)
    assert choose_members("near", settings, ALL, "hub", RTT, SHY) == ("near", "farther")
    settings = TopicSettings(replicas=2)
    assert choose_members("near", settings, ALL, "hub", RTT, SHY) == ("near", "farther", "hub")
    assert choose_members("near", settings, ALL, "hub", RTT, ()) == ("near", "farther", "far")
    lacking = TopicSettings(replicas=3)
    assert members_filled(("near",), lacking, ALL, "hub", RTT, SHY) == ("near", "farther", "hub")
    both = ("hub", "near", "far")  # these copy from the hub
    assert choose_members("hub", settings, [*both], "hub", RTT, SHY) == ("hub", "far", "near")


@pytest.mark.parametrize(
    ("members", "site", "free", "after"),
    [
        (("near", "hub"), "hub", ["far", "farther"], ("near", "farther")),
        (("hub", "near"), "hub", ["far", "farther"], ("near", "farther")),
        (("hub", "near"), "near", ["far"], ("hub", "far")),
        (("near", "hub"), "near", ["far", "farther"], ("hub", "farther")),  # far cannot copy
        (("near", "hub"), "near", ["far"], ("hub",)),
        (("near",), "near", ["far"], None),
        (("near",), "near", ["far", "hub"], ("hub",)),
        (("hub", "near", "far"), "hub", ["farther"], ("near", "farther")),
        (("hub", "near", "farther"), "hub", ["far"], ("farther", "near", "far")),
    ],
)
def test_a_drained_site_is_replaced_by_one_that_can_be_linked(
    members: tuple[str, ...], site: str, free: list[str], after: tuple[str, ...] | None
) -> None:
    assert members_without(members, site, free, SHY) == after


def test_replicas_that_cannot_be_linked_are_refused() -> None:
    with refused(BadSetting, "4 sites that are up and can be linked with near; there are 3"):
        choose_members("near", TopicSettings(replicas=3), ALL, "hub", RTT, SHY)
    with refused(FabricError, "near and far only dial out"):
        named = TopicSettings(replicas=2, spread="hub,far")
        choose_members("near", named, ALL, "hub", RTT, SHY)


@given(
    rtt=st.dictionaries(
        st.sampled_from("abcdef"), st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1))
    ),
    home=st.sampled_from("abcdef"),
    replicas=st.integers(0, 5),
    spread=st.sampled_from(["distributed", "colocated"]),
)
def test_members_are_distinct_and_begin_with_the_home(
    rtt: dict[str, dict[str, float]], home: str, replicas: int, spread: str
) -> None:
    settings = TopicSettings(replicas=replicas, spread=spread)
    members = choose_members(home, settings, list("abcdef"), "a", rtt)
    assert members[0] == home
    assert len(set(members)) == len(members) == replicas + 1


@pytest.mark.parametrize(
    ("to", "asked", "after"),
    [
        ("a", None, ("a", "b", "c")),
        ("b", None, ("b", "c", "a")),  # changes places
        ("d", None, ("d", "b", "c")),  # takes the place
        ("d", ["d", "a"], ("d", "a")),
        ("a", [], ("a",)),
    ],
)
def test_a_move_keeps_the_number_of_members_unless_told(
    to: str, asked: list[str] | None, after: tuple[str, ...]
) -> None:
    assert members_after(("a", "b", "c"), to, asked) == after


@pytest.mark.parametrize(
    ("site", "free", "after"),
    [
        ("a", ["c", "d"], ("b", "c")),
        ("b", ["a", "b", "d"], ("a", "d")),
        ("b", [], ("a",)),
        ("c", ["d"], ("a", "b")),
    ],
)
def test_a_drained_site_is_replaced_if_another_is_free(
    site: str, free: list[str], after: tuple[str, ...]
) -> None:
    assert members_without(("a", "b"), site, [name for name in free if name != site]) == after


@pytest.mark.parametrize(
    ("replicas", "spread", "free", "after"),
    [
        (1, "distributed", ["c", "d"], ("a", "b")),
        (2, "distributed", ["a", "b"], ("a", "b")),
        (2, "distributed", ["a", "b", "c", "d"], ("a", "b", "d")),
        (2, "colocated", ["d", "c"], ("a", "b", "c")),
        (4, "colocated", ["c", "d"], ("a", "b", "c", "d")),
        (2, "b,c", ["c", "d"], ("a", "b", "c")),
        (2, "b,c", ["d"], ("a", "b")),
        (0, "distributed", ["c"], ("a", "b")),
    ],
)
def test_replicas_that_are_lacking_are_added_where_sites_are_free(
    replicas: int, spread: str, free: list[str], after: tuple[str, ...]
) -> None:
    rtt = {"a": {"b": 0.01, "c": 0.02, "d": 0.09}, "b": {"c": 0.02, "d": 0.09}}
    settings = TopicSettings(replicas=replicas, spread=spread)
    assert members_filled(("a", "b"), settings, free, "a", rtt) == after


def test_a_drained_site_that_has_the_only_copy_needs_another() -> None:
    assert members_without(("a",), "a", []) is None
    assert members_without(("a",), "a", ["b"]) == ("b",)
