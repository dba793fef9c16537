"""How many sites of a topic may be lost (docs/guarantees.md, Levels of acknowledgement).

Every case of up to seven sites.
"""

from __future__ import annotations

from itertools import combinations

import pytest

from skerry.model.promotion import State, elect, write_quorum
from skerry.model.topic import MAX_REPLICAS

LINEAGE = ((1, 0),)


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
