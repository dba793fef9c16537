"""Sites that have promised an epoch before they heard of the one before it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from skerry.fabric.copies import Copies
from skerry.model.fabric import TopicEntry
from skerry.model.promotion import Decision, Lineage, State
from skerry.model.promotion import elect as real
from tests.scenarios.script import Scenario

FORMER_HOME = """\
sites hub farm lab barn
----

topic farm lab barn on_partition=continue
run 3s
publish p 5 at=hub
cut barn farm
cut barn lab
publish p 2
----

# farm has 10 events; lab leads with 7, and dies before barn, which has 5, follows it.
cut farm
publish f 3 at=farm ack=home
until epoch 2
kill lab f
mend
run 20s
show
----

publish p 2
----

start lab
settle
----
"""


def play(text: str) -> list[str]:
    """What the blocks of a script give."""
    scenario = Scenario(text)
    scenario.play()
    return [block.output for block in scenario.blocks]


def hears_late(monkeypatch: pytest.MonkeyPatch, site: str, epoch: int) -> None:
    """Have a site hear of an epoch once it is sealed for the next."""
    real = Copies.settle

    async def settle(self: Copies, entry: TopicEntry) -> State:
        local = self.logs.of(entry.name)
        while self.site == site and entry.epoch == epoch and local.copy.sealed <= epoch:
            await asyncio.sleep(0.01)
        return await real(self, entry)

    monkeypatch.setattr(Copies, "settle", settle)


def test_a_former_home_that_is_sealed_leads_with_what_is_history(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of those that are left only this one has all that a quorum had, and more: it leaves that."""
    hears_late(monkeypatch, "farm", 2)
    _, _, elected, published, end = play(FORMER_HOME)
    assert "epoch 3: home farm, from index 8 on" in elected
    assert "acknowledged (quorum)" in published
    assert end.startswith("at rest")
    assert "f1–f3" in end


FORGOTTEN = """\
sites hub farm lab
----

topic farm lab
run 3s
publish p 5 at=hub
cut farm
until epoch 2
----

# hub has farm promise epoch 3, chooses nobody, and forgets it.
kill lab
mend
run 5s
show
kill hub
start lab hub
settle
----
"""


def test_a_former_home_that_was_sealed_for_nothing_asks_for_an_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who sealed it was killed before it decided."""
    hears_late(monkeypatch, "farm", 2)

    def elect(
        lineage: Lineage, members: Sequence[str], states: Sequence[State], *more: Any
    ) -> Decision | None:
        undecided = lineage[-1].epoch == 2 and len(states) < len(members)
        return None if undecided else real(lineage, members, states, *more)

    monkeypatch.setattr("skerry.fabric.leader.elect", elect)
    _, _, end = play(FORGOTTEN)
    assert "farm  shut, was home of epoch 1" in end
    assert "at rest" in end
