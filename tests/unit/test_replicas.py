"""How many sites of a topic may be lost (docs/guarantees.md, Levels of acknowledgement).

Every case of up to seven sites.
"""

from __future__ import annotations

from itertools import combinations, product

import pytest

from skerry.model.fabric import Step
from skerry.model.promotion import State, elect, may_discard, read_quorum, write_quorum
from skerry.model.topic import MAX_REPLICAS

LINEAGE = (Step(1, 0),)


@pytest.mark.parametrize("replicas", range(1, MAX_REPLICAS + 1))
def test_half_of_the_sites_may_be_lost(replicas: int) -> None:
    """Whichever they are, and whoever of the others holds an event that a quorum has: a home is
    elected, and it holds the event."""
    members = [f"site{n}" for n in range(replicas + 1)]
    home, *others = members
    for lost in combinations(members, len(members) // 2):
        for more in combinations(others, write_quorum(len(members)) - 1):
            holding = {home, *more}
            states = [State(m, 1, 9 if m in holding else 4, 1) for m in members if m not in lost]
            decision = elect(LINEAGE, members, states)
            assert decision is not None
            assert decision.home in holding
            assert decision.base == 9


def test_a_site_without_room_tells_what_there_is_and_does_not_lead() -> None:
    full, roomy = State("a", 1, 9, 1, full=True), State("b", 1, 9, 1)
    chosen = elect(LINEAGE, ["a", "b", "c"], [full, roomy])
    assert chosen is not None
    assert chosen.home == "b"
    assert elect(LINEAGE, ["a", "b", "c"], [full, State("b", 1, 4, 1)]) is None


@pytest.mark.parametrize("replicas", range(MAX_REPLICAS + 1))
def test_with_one_more_lost_nothing_is_guessed(replicas: int) -> None:
    members = [f"site{n}" for n in range(replicas + 1)]
    for lost in combinations(members, len(members) // 2 + 1):
        states = [State(m, 1, 9, 1) for m in members if m not in lost]
        assert elect(LINEAGE, members, states) is None


@pytest.mark.parametrize("replicas", range(MAX_REPLICAS + 1))
def test_what_quorum_needs(replicas: int) -> None:
    """More than half are up with N // 2 lost of an odd number of sites, with one less lost of an
    even one."""
    sites = replicas + 1
    assert sites - write_quorum(sites) == (sites - 1) // 2


def missed(members: list[str], lasts: tuple[int, ...]) -> bool:
    """Whether some election among `members`, of which the first threw its copy away, may find less
    than that one had: 5 events."""
    told = dict(zip(members[1:], lasts, strict=True))
    return any(
        max((told[site] for site in asked if site in told), default=0) < 5
        for asked in combinations(members, read_quorum(len(members)))
        if any(site in told for site in asked)
    )


@pytest.mark.parametrize("replicas", range(1, 5))
def test_a_copy_is_thrown_away_only_if_no_election_misses_it(replicas: int) -> None:
    """Whatever the others have. As many as are asked in an election would not be enough."""
    members = [f"a{n}" for n in range(replicas + 1)]
    for lasts in product((4, 5), repeat=replicas):
        states = [State(m, 1, last, 1) for m, last in zip(members[1:], lasts, strict=True)]
        may = may_discard(State(members[0], 1, 5, 1), members, states)
        assert not (may and missed(members, lasts))
    too_few = (5,) * read_quorum(len(members)) + (4,) * replicas
    if len(members) == 4:
        assert missed(members, too_few[:replicas])


def test_of_two_that_have_all_the_one_leads_that_remembers_ids() -> None:
    members = ("a", "b", "c")
    young, old = State("b", 1, 9, 1, young=True), State("c", 1, 9, 1)
    for states, home in (([young, old], "c"), ([young, State("c", 1, 8, 1)], "b")):
        decision = elect(LINEAGE, members, states)
        assert decision is not None
        assert decision.home == home


def test_a_site_that_is_drained_leads_if_only_that_has_all() -> None:
    """To be drained is a wish, to go on a promise."""
    members = ("a", "b", "c")
    behind, best = State("b", 1, 5, 1), State("c", 1, 9, 1)
    decision = elect(LINEAGE, members, [behind, best], avoided={"c"})
    assert decision is not None
    assert decision.home == "c"
    equal = State("b", 1, 9, 1)
    decision = elect(LINEAGE, members, [best, equal], preferred=["c"], avoided={"c"})
    assert decision is not None
    assert decision.home == "b"
