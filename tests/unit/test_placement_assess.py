"""Placement by centres against all pairs and hashing (ePulsar, section 5.5), seeded."""

from __future__ import annotations

import pytest

from skerry.placement.assess import SCENARIOS, assess, main

SIZES = [(name, size) for name, (_, sizes) in SCENARIOS.items() for size in sizes[:3]]


@pytest.mark.parametrize(("scenario", "size"), SIZES)
def test_centres_cost_next_to_nothing(scenario: str, size: int) -> None:
    """Sections 5.5.2 and 5.5.3: as good as all pairs, and far better than consistent hashing. In
    the scenarios of the paper within 1 %; in the one that is hardest on centres 3 %."""
    scores = assess(scenario, size, 12, seed=3)
    best, ours, hashed = scores["all pairs"], scores["centres"], scores["hashing"]
    allowed = 1.03 if scenario == "mixed" else 1.01
    assert best.worst <= ours.worst <= allowed * best.worst
    assert ours.mean <= (1.015 if scenario == "mixed" else 1.001) * best.mean
    assert abs(ours.violations - best.violations) < 0.01
    assert hashed.worst > 1.2 * ours.worst
    assert hashed.violations >= ours.violations
    if scenario == "uav":
        assert ours.violations == 0


def test_the_table_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--placements", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 3 * sum(len(sizes) for _, sizes in SCENARIOS.values())
