"""What a publisher keeps for a next home, and how much of it that one lacks."""

from __future__ import annotations

import asyncio
import sys

import pytest

from skerry.engine.lines import Frame
from skerry.log import kept
from skerry.log.frames import InFlight
from skerry.log.kept import Kept
from skerry.model.fabric import TopicEntry
from skerry.model.topic import TopicSettings


def event(size: int = 10) -> InFlight:
    return asyncio.get_running_loop().create_future(), Frame(b"x" * size), 0.0, "t"


def entry(*lineage: tuple[int, int]) -> TopicEntry:
    return TopicEntry(
        name="t", home="a", epoch=lineage[-1][0], lineage=lineage, members=("a", "b"),
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


async def test_what_replicas_have_is_let_go_in_order() -> None:
    held = Kept()
    for number in range(5):
        held.add(number, 10 + number, event())
    assert [index for index, _ in held.release(12)] == [10, 11, 12]
    assert len(held) == 2
    assert held.bytes == 20
    assert held.last == 14


async def test_what_the_next_home_lacks_is_taken_out() -> None:
    held = Kept()
    for number in range(5):
        held.add(number, 10 + number, event())
    assert list(held.take_beyond(12)) == [3, 4]
    assert held.last == 12, "and so much the next home has"
    assert [index for index, _ in held.release(12)] == [10, 11, 12]
    assert held.bytes == 0


async def test_the_oldest_go_when_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "EVENTS", 3)
    monkeypatch.setattr(kept, "BYTES", 25)
    held = Kept()
    for number in range(4):
        held.add(number, number + 1, event())
    held.trim()
    assert [index for index, _ in held] == [3, 4]
