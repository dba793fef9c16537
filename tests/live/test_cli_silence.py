"""`skerry up --silence`: how long another site may say nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from skerry.cli import up as command
from skerry.config import SiteSettings
from tests.live.commandline import skerry


@pytest.mark.parametrize("seconds", ["0.1", "60", "nan"])
def test_a_silence_out_of_range_is_refused_before_anything_starts(
    tmp_path: Path, seconds: str
) -> None:
    data = tmp_path / "site"
    result = skerry(data, "up", "--port", "0", "--silence", seconds)
    assert result.code == 2
    assert "0.4 to 20 seconds" in result.err
    assert "--silence" in result.err
    assert not data.exists()


def test_the_silence_reaches_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[SiteSettings] = []

    async def serve(settings: SiteSettings, *_: Any) -> None:
        given.append(settings)

    monkeypatch.setattr(command, "_serve", serve)
    monkeypatch.setattr(command, "run", asyncio.run)
    command.up(data=tmp_path, silence=3.0)
    assert (given[0].silence, given[0].beat) == (3.0, 0.2)
