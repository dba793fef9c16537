"""The scenario scripts (`tests/scenarios/*.txt`): what ships gives what they say.

What a script gives now is shown by `python -m tests.scenarios NAME`, and written into the files by
`python -m tests.scenarios --rewrite`; then `git diff` says what has changed.
"""

from __future__ import annotations

import pytest

from skerry.sim.controls import without
from tests.scenarios.script import FOLDER, Scenario

SCRIPTS = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.txt"))}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_scenario_gives_what_its_script_says(name: str) -> None:
    assert Scenario(SCRIPTS[name]).play() == SCRIPTS[name], "see tests/sim/test_scenarios.py"


def test_no_promise_is_broken() -> None:
    assert not [name for name, text in SCRIPTS.items() if "\nVIOLATION" in text]


def test_every_script_begins_with_what_it_shows() -> None:
    for text in SCRIPTS.values():
        first, second, *_ = text.splitlines()
        assert first.startswith("# ")
        assert second == "#"


@pytest.mark.parametrize(
    ("rule", "name", "shown"),
    [
        # Two homes, and the one that was replaced is still confirmed.
        ("seal", "sealed-member", "f: f2–f3 at 7–8 acknowledged (quorum)"),
        ("seal", "sealed-member", "\nfarm  home of epoch 1 "),
        # The indexes of two events that a quorum had are given to others.
        ("opening", "forgetful-home-behind", "p: p6–p7 at 4–5 acknowledged (quorum)"),
        # The same, of a home whose folder is an older copy.
        ("folder", "snapshot-restored-alone", "p: p11 at 6 acknowledged (quorum)"),
        # What only the lost home had is gone.
        ("kept", "salvage", "VIOLATION: q1"),
        # The home alone is taken for a quorum of two.
        ("quorum", "far-site", "VIOLATION: r1 is acknowledged at 13 in epoch 2 and only ['moon']"),
    ],
)
def test_without_a_rule_a_scenario_shows_what_it_is_for(rule: str, name: str, shown: str) -> None:
    assert shown not in SCRIPTS[name]
    with without(rule):
        assert shown in Scenario(SCRIPTS[name]).play()
