"""What a publisher keeps for a next home, and how much of it that one lacks."""

from __future__ import annotations

import asyncio
import sys

import pytest

from skerry.engine.lines import Frame
from skerry.log import kept
from skerry.log.frames import InFlight
from skerry.log.kept import Kept
from skerry.model.fabric import Step, TopicEntry
from skerry.model.promotion import fork_of, is_forked, is_unbroken
from skerry.model.topic import TopicSettings


def event(size: int = 10) -> InFlight:
    return asyncio.get_running_loop().create_future(), Frame(b"x" * size), 0.0, "t"


def entry(*steps: Step | tuple[int, int]) -> TopicEntry:
    lineage = tuple(Step(*step) for step in steps)
    return TopicEntry(
        name="t", home="a", epoch=lineage[-1].epoch, lineage=lineage, members=("a", "b"),
        settings=TopicSettings(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("epoch", "fork", "known"),
    [(5, sys.maxsize, sys.maxsize), (4, 90, 90), (3, 90, 90), (2, 40, 40), (1, 0, 40)],
)
def test_what_an_earlier_epoch_shares_with_the_history(epoch: int, fork: int, known: int) -> None:
    """Epoch 1 is older than the first one known by more than one: nothing can be told but where it
    must have forked at the latest."""
    topic = entry((3, 40), (4, 100), (5, 90))
    assert topic.fork(epoch) == fork
    assert topic.known_fork(epoch) == known


def test_nothing_forks_where_a_home_goes_on() -> None:
    """A copy that followed it may be beyond the base of the epoch that it goes on in. What another
    home took over is shared up to there, whatever went on before."""
    lineage = [Step(3, 40), Step(4, 60, goes_on=True), Step(5, 80, goes_on=True)]
    assert [is_forked(root, 81, lineage) for root in (2, 3, 4, 5)] == [True, False, False, False]
    assert [is_unbroken(root, lineage) for root in (1, 2, 3, 4, 5)] == [False, False, *[True] * 3]
    lineage.append(Step(6, 70))
    assert [fork_of(root, 81, lineage) for root in (2, 3, 4, 5, 6)] == [40, 70, 70, 70, 81]
    assert not any(is_unbroken(root, lineage) for root in (2, 3, 4, 5))
    topic = entry(*lineage)
    assert [topic.known_fork(epoch) for epoch in (2, 3, 5, 6)] == [40, 70, 70, sys.maxsize]


async def test_what_replicas_have_is_let_go_in_order() -> None:
    held = Kept()
    for number in range(5):
        held.add(number, 10 + number, event())
    assert [index for index, _ in held.release(12)] == [10, 11, 12]
    assert len(held) == 2
    assert held.bytes == 20


async def test_what_the_next_home_lacks_is_taken_out() -> None:
    held = Kept()
    for number in range(5):
        held.add(number, 10 + number, event())
    assert list(held.take_beyond(12)) == [3, 4]
    assert [index for index, _ in held.release(12)] == [10, 11, 12]
    assert held.bytes == 0


async def test_the_oldest_go_when_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "EVENTS", 3)
    monkeypatch.setattr(kept, "BYTES", 25)
    held = Kept()
    for number in range(4):
        held.add(number, number + 1, event())
    assert held.trim()
    assert [index for _, (index, _) in held.items()] == [3, 4]
    assert not held.trim()


async def test_what_is_lost_stays_in_order_until_it_is_stored_again() -> None:
    """The next home has stored some of it again when it is lost as well."""
    held = Kept()
    for number in range(5):
        held.add(number, 10 + number, event())
    held.lose_beyond(11)
    assert list(held.lost) == [2, 3, 4]
    assert len(held) == 5
    held.add(2, 12, held.lost.pop(2))
    held.lose_beyond(10)
    assert list(held.lost) == [1, 2, 3, 4]
    assert [index for index, _ in held.release(100)] == [10]
    assert len(held) == 4, "no replica has it: no home does"


async def test_what_is_lost_is_as_old_as_when_it_was_last_looked_for() -> None:
    held = Kept()
    held.add(1, 1, event())
    held.lose_beyond(0)
    held.stamp(7.5)
    assert [event[2] for event in held.lost.values()] == [7.5]
