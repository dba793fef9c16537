"""Settings that follow from others, and settings that make no sense."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.config import SiteSettings
from skerry.errors import BadSetting


@pytest.mark.parametrize(("silence", "beat"), [(0.4, 0.1), (0.8, 0.2), (3.0, 0.2), (20.0, 0.2)])
def test_heartbeats_follow_from_the_silence(silence: float, beat: float) -> None:
    settings = SiteSettings(data=Path(), silence=silence)
    assert settings.check().beat == beat


def test_a_heartbeat_that_is_given_stays() -> None:
    assert SiteSettings(data=Path(), silence=1.0, beat=0.5).check().beat == 0.5


@pytest.mark.parametrize("silence", [0.0, -1.0, 0.3, 21.0, float("inf"), float("nan")])
def test_a_silence_out_of_range_is_refused_with_advice(silence: float) -> None:
    with pytest.raises(BadSetting, match=r"0\.4 to 20 seconds") as caught:
        SiteSettings(data=Path(), silence=silence).check()
    assert "--silence" in caught.value.advice


@pytest.mark.parametrize("beat", [-0.1, 0.5, 2.0, float("nan")])
def test_heartbeats_must_fit_into_the_silence(beat: float) -> None:
    with pytest.raises(BadSetting, match="heartbeat"):
        SiteSettings(data=Path(), silence=0.8, beat=beat).check()
