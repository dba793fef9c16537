"""Rules of who may be a topic's home, each alone."""

from __future__ import annotations

from itertools import product

import pytest

from skerry.model.fabric import Step
from skerry.model.promotion import (
    State,
    elect,
    is_forked,
    may_open,
    may_stay_open,
    reached,
    read_quorum,
)

LINEAGE = (Step(1, 0),)
MEMBERS = ("a", "b", "c")


def state(site: str, last: int = 5, label: int = 1, doubted: bool = False) -> State:
    return State(site, label, last, label, doubted=doubted)


def home(*states: State, members: tuple[str, ...] = MEMBERS) -> str | None:
    """Who is elected."""
    decision = elect(LINEAGE, members, states)
    return decision.home if decision else None


def test_a_copy_under_rebuild_does_not_lead() -> None:
    assert home(state("b", label=0), state("c", label=0)) is None
    assert home(state("b", last=9, label=0), state("c")) == "c"


def test_a_copy_in_doubt_counts_only_beside_the_home() -> None:
    """It held more than it says. The home has that, too; a third member may not."""
    assert home(state("b", doubted=True), state("c", last=3)) is None
    assert home(state("b", doubted=True), members=("a", "b")) is None
    assert home(state("a"), state("b", doubted=True)) == "a"
    assert home(state("a", doubted=True), state("b", last=3), state("c", last=4)) == "c"


def test_a_home_that_may_have_lost_events_does_not_open_for_a_copy_in_doubt() -> None:
    assert may_open(state("a"), 0, MEMBERS, [state("b"), state("c")], False)
    assert may_open(state("a"), 0, MEMBERS, [state("b"), state("c", doubted=True)], False) is None
    assert may_open(state("a"), 0, MEMBERS, [state("b", last=6, doubted=True)], True) is False


def test_a_home_that_lost_what_it_was_elected_with_does_not_open() -> None:
    """Nobody else may have got so far as to have its label."""
    mine, others = state("a", last=10, label=2), [state("b", last=11), state("c", last=11)]
    assert may_open(mine, 12, MEMBERS, others, True) is False
    assert may_open(mine, 10, MEMBERS, others, True)
    lineage = (Step(1, 0), Step(2, 12))
    decision = elect(lineage, MEMBERS, [mine, *others])
    assert decision is not None
    assert (decision.home, decision.base) == ("b", 11)
    assert reached(mine, lineage) == 1
    assert reached(mine, (Step(5, 12), Step(6, 13))) == 2  # not known any more
    assert reached(state("a", last=11, label=6), (Step(5, 12), Step(6, 13))) == 4


def test_a_forked_log_that_cannot_be_cut_leads_if_nobody_else_can() -> None:
    """From its fork on: whoever holds others there is forked in its turn."""
    lineage = (Step(5, 0), Step(6, 10))

    def chosen(*states: State) -> tuple[str, int] | None:
        decision = elect(lineage, MEMBERS, states)
        return (decision.home, decision.base) if decision else None

    former = State("b", 5, 14, 5, thinned=True)
    assert chosen(former, state("c", last=8, label=5)) == ("b", 10)
    assert chosen(former, state("c", last=10, label=5)) == ("c", 10)
    assert chosen(former, state("c", last=10, label=6)) == ("c", 10)
    assert chosen(former, state("c", last=8, label=4)) == ("b", 10)
    # One that can be cut is, before it leads; of one too old nobody knows where it is to be cut.
    assert chosen(State("b", 5, 14, 5), state("c", last=8, label=5)) is None
    assert chosen(State("b", 5, 14, 3, thinned=True), state("c", last=8, label=4)) is None
    full = State("b", 5, 14, 5, thinned=True, full=True)
    assert chosen(full, state("c", last=8, label=5)) is None
    after = (*lineage, Step(7, 10))
    assert is_forked(6, 11, after)
    assert is_forked(5, 11, after)
    assert not is_forked(6, 10, after)


@pytest.mark.parametrize("count", range(1, 8))
def test_a_home_that_may_stay_open_is_not_replaced(count: int) -> None:
    """Whoever is sealed and whoever answers: the home goes on only if too few for an election are
    sealed; and as long as enough answer that they are not, it does."""
    members = [f"m{number}" for number in range(count)]
    for marks in product((None, 6, 7, 8), repeat=count):
        sealed = {site: mark for site, mark in zip(members, marks, strict=True) if mark is not None}
        free = sum(mark <= 7 for mark in sealed.values())
        assert may_stay_open(7, members, sealed) == (count - free < read_quorum(count))
