"""Thousands of schedules of the fabric, and what becomes of it when a rule is left out.

A failing seed is replayed with `python -m skerry.sim.rules SEED --trace`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields

import msgspec
import pytest

from skerry.model import promotion
from skerry.model.promotion import Copy, Decision, Lineage, State
from skerry.sim.rules.__main__ import main
from skerry.sim.rules.schedule import simulate
from skerry.sim.rules.world import Driver

CHUNK = 500
CHUNKS = 24
BOUND = 10000
"""Schedules within which a broken rule must show. Most show within 300."""


@pytest.mark.parametrize("first", range(0, CHUNKS * CHUNK, CHUNK))
def test_no_schedule_violates_an_invariant(first: int) -> None:
    """Nothing confirmed is lost, doubled or out of order; copies agree; all comes to rest."""
    failed = {
        seed: outcome.violation
        for seed in range(first, first + CHUNK)
        if (outcome := simulate(seed)).violation
    }
    assert not failed, f"replay with: python -m skerry.sim.rules {min(failed)} --trace"


def test_schedules_reach_what_they_are_for() -> None:
    """The faults do lead to elections, moves and salvage, and events do get through."""
    outcomes = [simulate(seed) for seed in range(300)]
    assert sum(outcome.elections for outcome in outcomes) > 300
    assert sum(outcome.moves for outcome in outcomes) > 60
    assert sum(outcome.salvaged for outcome in outcomes) > 60
    assert sum(outcome.committed for outcome in outcomes) > 2000


def test_the_same_seed_gives_the_same_trace() -> None:
    """Nothing but the seed decides, not even the order of sets in another process."""
    seed = 77
    trace = simulate(seed, trace=True).trace
    assert trace
    assert simulate(seed, trace=True).trace == trace
    command = [sys.executable, "-m", "skerry.sim.rules", str(seed), "--trace"]
    environment = os.environ | {"PYTHONHASHSEED": "5", "PYTHONIOENCODING": "utf-8"}
    told = subprocess.run(command, env=environment, capture_output=True, check=True).stdout
    assert told.decode().splitlines()[:-1] == trace


# Rules of the core, broken. Each stands for a mistake that looks harmless.

read_quorum = promotion.read_quorum
elect = promotion.elect
confirmed = promotion.confirmed
EVERY_EPOCH = 1 << 30
"""A root that no fork is beyond."""


def too_few_asked(members: int) -> int:
    """Ask one member less before a home is replaced."""
    return max(1, read_quorum(members) - 1)


def report_when_sealed(self: Copy) -> State | None:
    """Confirm what arrives although a later epoch was promised."""
    if not self.label or self.label != self.root:
        return None
    return State(self.site, self.label, self.last, self.root)


def elect_the_longest(
    lineage: Lineage, members: Sequence[str], states: Iterable[State]
) -> Decision | None:
    """Compare copies by `last` alone."""
    plain = [State(one.site, min(one.label, 1), one.last, EVERY_EPOCH) for one in states]
    return elect(lineage, members, plain)


def elect_the_forked(
    lineage: Lineage, members: Sequence[str], states: Iterable[State]
) -> Decision | None:
    """Let a copy lead that holds events beyond the base of an epoch that it missed."""
    return elect(
        lineage, members, [msgspec.structs.replace(one, root=EVERY_EPOCH) for one in states]
    )


def elect_the_empty(
    lineage: Lineage, members: Sequence[str], states: Iterable[State]
) -> Decision | None:
    """Let a copy under rebuild lead if no better one has answered."""
    return elect(
        lineage, members, [msgspec.structs.replace(one, label=one.label + 1) for one in states]
    )


def discard_at_once(mine: State, members: Sequence[str], states: Iterable[State]) -> bool:
    """Do not wait until others prove as much."""
    return True


def discard_the_promised(self: Copy, epoch: int) -> bool:
    """Throw a copy away that an election counts on."""
    self.label = self.root = self.last = self.following = 0
    return True


def fork_by_the_newest(root: int, last: int, lineage: Lineage) -> int:
    """Keep a copy up to the newest base, not up to the smallest since."""
    return min(last, lineage[-1][1]) if root < lineage[-1][0] else last


def forked_by_the_newest(root: int, last: int, lineage: Lineage) -> bool:
    """Look at the newest base only, not at those between."""
    return root < lineage[-1][0] and last > lineage[-1][1]


def confirmed_by_any_epoch(
    home_last: int, epoch: int, members: int, states: Iterable[State]
) -> int:
    """Count what replicas reported for other epochs."""
    return confirmed(
        home_last, epoch, members, [State(one.site, epoch, one.last) for one in states]
    )


def cut_over_by_read_quorum(
    members: Sequence[str], states: Mapping[str, State], epoch: int, last: int
) -> bool:
    """Move with as many copies as are asked in an election."""
    copies = [state for state in states.values() if state.label == epoch and state.last >= last]
    holding = {state.site for state in copies} & {*members}
    return members[0] in holding and len(holding) >= read_quorum(len(members))


def cut_over_by_index(
    members: Sequence[str], states: Mapping[str, State], epoch: int, last: int
) -> bool:
    """Move to copies that are long enough, of whatever epoch."""
    holding = {state.site for state in states.values() if state.last >= last} & {*members}
    return members[0] in holding and len(holding) >= promotion.write_quorum(len(members))


def stay_open_by_read_quorum(epoch: int, members: Sequence[str], sealed: Mapping[str, int]) -> bool:
    """Go on without the directory with as many as are asked in an election."""
    free = [site for site in members if site in sealed and sealed[site] <= epoch]
    return len(free) >= read_quorum(len(members))


@pytest.mark.parametrize(
    ("owner", "rule", "broken"),
    [
        (promotion, "read_quorum", too_few_asked),
        (Copy, "report", report_when_sealed),
        (promotion, "elect", elect_the_longest),
        (promotion, "elect", elect_the_forked),
        (promotion, "elect", elect_the_empty),
        (promotion, "may_discard", discard_at_once),
        (Copy, "rebuild", discard_the_promised),
        (promotion, "fork_of", fork_by_the_newest),
        (promotion, "is_forked", forked_by_the_newest),
        (promotion, "confirmed", confirmed_by_any_epoch),
        (promotion, "may_cut_over", cut_over_by_read_quorum),
        (promotion, "may_cut_over", cut_over_by_index),
        (promotion, "may_stay_open", stay_open_by_read_quorum),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_broken_rule_of_the_core_shows(
    monkeypatch: pytest.MonkeyPatch, owner: object, rule: str, broken: object
) -> None:
    """Each rule is needed, and the simulator would notice if it were wrong."""
    monkeypatch.setattr(owner, rule, broken)
    assert any(simulate(seed).violation for seed in range(BOUND))


@pytest.mark.parametrize("rule", [field.name for field in fields(Driver)])
def test_a_broken_rule_of_the_driver_shows(rule: str) -> None:
    """What the core relies on is needed as well."""
    driver = Driver(**{rule: False})
    assert any(simulate(seed, driver).violation for seed in range(BOUND))


def test_a_campaign_names_the_failing_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, the seeds, and how to see more."""
    assert main(["--seeds", "0:40"]) == 0
    assert main(["--seeds", "0:40", "--without", "no_gaps"]) == 1
    told = capsys.readouterr().out
    assert "failing seeds: " in told
    assert "--trace" in told
    seed = told.split("failing seeds: ")[1].split()[0]
    assert main([seed]) == 0
    assert main([seed, "--without", "no_gaps"]) == 1
