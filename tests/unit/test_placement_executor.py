"""Decisions: which stand, which are carried out, and what becomes of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skerry import errors
from skerry.model.fabric import Step, TopicEntry
from skerry.model.placement import Move, MoveReport, PlacementSettings
from skerry.model.topic import TopicSettings
from skerry.placement.decide import Standing, as_entries, decision, policy_settings
from skerry.placement.executor import Decision, Executor
from tests.conftest import until


def entry(name: str = "t", home: str = "a", *replicas: str, **settings: Any) -> TopicEntry:
    return TopicEntry(
        name=name, home=home, epoch=3, lineage=(Step(3, 0),), members=(home, *replicas),
        settings=TopicSettings(replicas=len(replicas), **settings),
    )  # fmt: skip


def move(name: str = "t", target: str = "b", *replicas: str, cause: str = "latency") -> Move:
    return Move(topic=name, source="a", target=target, replicas=replicas, cause=cause, reason="far")


def decided(name: str, target: str = "b", epoch: int = 1) -> Decision:
    return Decision(topic=name, source="a", target=target, epoch=epoch)


class Moves:
    """Moves that end when they are told to."""

    def __init__(self) -> None:
        self.begun: list[Decision] = []
        self.gates: dict[str, asyncio.Future[TopicEntry]] = {}
        self.reports: list[MoveReport] = []
        self.executor = Executor(self.move, self.reports.append)

    async def move(self, decision: Decision) -> TopicEntry:
        self.begun.append(decision)
        self.gates[decision.topic] = asyncio.get_running_loop().create_future()
        return await self.gates[decision.topic]

    def outcomes(self) -> dict[str, str]:
        return {report.topic: report.outcome for report in self.reports}


async def test_so_many_at_a_time_and_the_most_urgent_first() -> None:
    moves = Moves()
    moves.executor.at_once = 2
    futures = moves.executor.decide([decided(name) for name in "cab"])
    await until(lambda: len(moves.gates) == 2)
    assert set(moves.executor.moving) == {"c", "a"}
    assert moves.executor.waiting == {"b"}
    moves.gates["c"].set_result(entry("c", "b"))
    await until(lambda: "b" in moves.gates)
    moves.gates["a"].set_exception(errors.MoveFailed("site b is not there"))
    moves.gates["b"].set_result(entry("b", "b"))
    reports = await asyncio.gather(*futures)
    assert [r.outcome for r in reports] == ["moved", "failed", "moved"]
    assert reports[0].epoch == 3
    assert reports[1].why == "site b is not there"
    assert moves.executor.moving == {}


async def test_the_newest_decision_wins() -> None:
    moves = Moves()
    moves.executor.at_once = 1
    first = moves.executor.decide([decided("x"), decided("y"), decided("z"), decided("w")])
    await until(lambda: "x" in moves.gates)
    # x is under way; y is decided anew, z otherwise, w not at all.
    second = moves.executor.decide([decided("x", "c"), decided("y"), decided("z", "c")])
    assert first[1] is second[1]
    assert (await second[0]).why == "a move of it is under way"
    assert (await first[2]).outcome == (await first[3]).outcome == "dropped"
    moves.gates["x"].set_result(entry("x", "b"))
    await until(lambda: "y" in moves.gates)
    moves.gates["y"].set_result(entry("y", "b"))
    await until(lambda: "z" in moves.gates)
    moves.gates["z"].set_result(entry("z", "c"))
    assert (await second[2]).target == "c"
    assert [d.topic for d in moves.begun] == ["x", "y", "z"]


async def test_a_leader_that_stops_ends_everything() -> None:
    moves = Moves()
    moves.executor.at_once = 1
    futures = moves.executor.decide([decided("x"), decided("y")])
    await until(lambda: "x" in moves.gates)
    await moves.executor.close()
    assert [(await future).outcome for future in futures] == ["dropped", "dropped"]


def test_a_decision_stands_before_it_is_carried_out() -> None:
    standing = Standing()
    assert standing.stood([move()], 0.0, 1.0) == []
    assert standing.stood([move(target="c")], 1.0, 1.0) == []  # another site seems best now
    assert standing.stood([move()], 2.0, 1.0) == []
    assert standing.stood([], 2.5, 1.0) == []
    assert standing.stood([move()], 3.0, 1.0) == []
    assert standing.stood([move()], 4.0, 1.0) == [move()]
    assert standing.stood([move("v")], 4.5, 1.0, {"v"}) == [move("v")]
    drain = move("u", cause="drain")
    assert standing.stood([drain], 5.0, 1.0) == [drain]


def test_a_move_names_members_only_if_none_is_lost_by_it() -> None:
    def members(entry: TopicEntry, move: Move) -> Any:
        made = decision(move, entry, "auto")
        assert made is not None
        return made.members

    assert members(entry(), move()) == ("b",)
    assert members(entry("t", "a", "c"), move("t", "b", "d")) == ("b", "d")
    assert members(entry("t", "a", "c", "d"), move("t", "b", "c")) is None  # one has no place
    assert members(entry("t", "a", "c", spread="c"), move("t", "b", "d")) is None  # it is named
    assert decision(move(), entry("t", "elsewhere"), "auto") is None
    assert decision(move("t", "a", "c"), entry("t", "a", "c"), "auto") is None


def test_what_the_policy_knows_of_a_topic() -> None:
    entries = [entry("t", "a", "b", latency=0.04), entry("feeds/a/log"), entry("placement/moves")]
    (made,) = as_entries(entries, {"t"}, {"t": 5.0}, {"t": "c"})
    assert (made.bound_ms, made.replicas, made.wanted) == (40.0, ("b",), 1)
    assert (made.pinned, made.moved_at, made.moving_to) == (True, 5.0, "c")


def test_settings_of_the_policy_are_checked() -> None:
    assert policy_settings(PlacementSettings(policy={"margin": 0.1})).margin == 0.1
    for bad in ({"margin": 2}, {"nonsense": 1}, {"when_infeasible": "fly"}):
        with pytest.raises(errors.BadSetting):
            policy_settings(PlacementSettings(policy=bad))
    for wrong in ({"period": 0.01}, {"at_once": 0}, {"mode": "on"}):
        with pytest.raises(errors.BadSetting):
            PlacementSettings(**wrong).check()
