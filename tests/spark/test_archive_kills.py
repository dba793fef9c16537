"""An archive whose driver is killed at random moments has each event once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.archive_long import check


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_rows_are_exact_whatever_is_killed(tmp_path: Path) -> None:
    figures = await check(events=6_000, kills=2, seed=4, out=tmp_path)
    assert figures["stopped"] == 0
