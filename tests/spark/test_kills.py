"""Exactly once through source, state and sink, while driver, worker and engine are killed."""

from __future__ import annotations

import pytest

from tests.spark.kills import Campaign, Options


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_totals_are_exact_whatever_is_killed() -> None:
    """A short campaign; `python -m tests.spark.kills` runs the long one."""
    options = Options(events=6000, kills=3, rows=500, sites=("hub",))
    result = await Campaign(options).run()
    assert result.exact, result
    assert result.doubled == 0, result
    assert result.faults == {"driver": 1, "worker": 1, "engine": 1}
