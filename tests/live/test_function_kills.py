"""A short campaign of kills: exactly once, whatever is killed. The long ones are
`python -m tests.functions.kills`."""

from __future__ import annotations

import pytest

from tests.functions.kills import Campaign, Options


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_each_event_counts_once_whatever_is_killed() -> None:
    result = await Campaign(Options(seed=7, events=2000, kills=8, keys=20, away=1.0)).run()
    assert result.is_good, result
    assert sum(result.kills.values()) == 8
    assert result.events == 2000
