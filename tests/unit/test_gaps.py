"""Indexes that a live reader misses, without an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from skerry.errors import AgedOut
from skerry.log.follow import Start
from skerry.log.live import LiveSubscription
from skerry.model.event import Event, reply_of


def event(index: int) -> Event:
    return Event(b"e.t", index, b"", b"data", reply_of(index, index))


class Reader(LiveSubscription):
    """One whose log has let go of what is before an index, as it says at each look. At the first it
    goes back, and then misses something earlier."""

    def __init__(self, first: list[int]) -> None:
        connection = SimpleNamespace(inbox="_INBOX", subscribe=lambda *_: b"1", unsubscribe=id)
        engine = SimpleNamespace(connection=connection, prefix="$JS.API.")
        super().__init__(cast(Any, engine), "t", "t", Start(index=1))
        self._first = first
        self.looks = 0

    async def _log(self) -> Any:
        self.looks += 1
        if self.looks == 1:
            self._go_back(4)
            self._suspect([event(9)])
        return SimpleNamespace(first=self._first[self.looks - 1], config={})


@pytest.mark.parametrize("first", [5, 7])
async def test_a_gap_that_is_found_while_another_is_looked_at_is_looked_at_as_well(
    first: int,
) -> None:
    reader = Reader([1, first])
    reader._position = 20
    reader._suspect([event(22)])
    assert reader._checking is not None
    await reader._checking
    assert reader.looks == 2
    assert isinstance(reader._error, AgedOut) == (first == 7)
