"""The scenarios of ePulsar's section 5.8 in virtual time."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from examples.roaming.scenarios import SCENARIOS
from examples.roaming.simulate import MOVE, RULES, Run, main, simulate
from skerry.model.placement import PERIOD
from skerry.placement import PolicySettings

SETTINGS = PolicySettings()


def run(name: str, seed: int, rule: str = "placement") -> Run:
    """Five minutes."""
    return simulate(SCENARIOS[name](seed), 300.0, RULES[rule], seed)


@pytest.mark.parametrize("seed", range(3))
def test_swarms_are_followed_from_zone_to_zone(seed: int) -> None:
    """Section 5.8.1: latency is above its bound only for a while after a swarm has changed zones,
    until the next record and the move."""
    placed, hashed = run("uav", seed), run("uav", seed, "hashing")
    assert placed.longest <= PERIOD + MOVE
    assert placed.violations < 0.05 < 0.5 < hashed.violations
    assert 16 <= len(placed.moves) <= 16 * 300 / SETTINGS.late_cool_down


@pytest.mark.parametrize("seed", range(3))
def test_groups_that_change_keep_their_bound(seed: int) -> None:
    """Section 5.8.2."""
    placed, hashed = run("mmog", seed), run("mmog", seed, "hashing")
    after = placed.latency[placed.seconds > 3 * PERIOD]
    assert (after > placed.bound).mean() < 0.01
    assert placed.violations < hashed.violations / 4
    assert all("break its bound" in move.reason for move in placed.moves)


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("seed", range(3))
def test_it_is_close_to_an_oracle_that_knows_all_pairs(name: str, seed: int) -> None:
    """Placement is above the bound for 2.0 to 2.9 % of the time over these seeds, all pairs for 1.5
    to 2.4 % (UAV), 0.12 to 0.15 % and 0.02 to 0.03 % (MMOG): half a second a move, which it takes
    and the oracle does not."""
    placed, pairs = run(name, seed), run(name, seed, "all-pairs")
    assert pairs.violations <= placed.violations <= pairs.violations + 0.01
    assert pairs.longest < PERIOD
    assert len(placed.moves) <= len(pairs.moves) + 2


def test_the_same_seed_is_the_same_run() -> None:
    one, other = run("uav", 5), run("uav", 5)
    assert one.moves == other.moves
    assert np.array_equal(one.latency, other.latency, equal_nan=True)


def test_it_runs_from_the_command_line_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mmog.svg"
    assert main(["mmog", "--seconds", "60", "--svg", str(file), "--moves"]) == 0
    said = capsys.readouterr().out
    assert "mmog by placement" in said
    assert "mmog by hashing" in said
    root = ElementTree.fromstring(file.read_text())
    assert len(root.findall("{http://www.w3.org/2000/svg}path")) == 64
