"""Sizes, durations, times and indexes as people write them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.errors import BadIndex, BadSetting
from skerry.model.quantities import (
    check_index,
    parse_duration,
    parse_size,
    parse_time,
    show_duration,
    show_size,
)

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("512", 512),
        ("64KB", 64_000),
        ("1.5GB", 1_500_000_000),
        ("1GiB", 2**30),
        ("2 mb", 2_000_000),
    ],
)
def test_sizes(text: str, value: int) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("250ms", 0.25), ("90s", 90), ("1h30m", 5400), ("7d", 604800), ("12", 12)]
)
def test_durations(text: str, value: float) -> None:
    assert parse_duration(text) == value


@pytest.mark.parametrize("text", ["", "x", "-5", "1.2.3", "5 parsecs", "KB"])
def test_nonsense_is_refused_with_an_example(text: str) -> None:
    for parse in (parse_size, parse_duration):
        with pytest.raises(BadSetting) as caught:
            parse(text)
        assert "such as" in caught.value.advice


@given(st.integers(1, 10**9))
def test_a_shown_duration_reads_back(seconds: int) -> None:
    assert parse_duration(show_duration(seconds)) == seconds


def test_sizes_are_shown_in_three_figures() -> None:
    assert [show_size(n) for n in (5, 1500, 2_340_000, 10**12)] == [
        "5 B",
        "1.5 kB",
        "2.3 MB",
        "1.0 TB",
    ]


def test_times_are_absolute_or_ago() -> None:
    assert parse_time("2026-11-15T11:00Z", NOW) == datetime(2026, 11, 15, 11, 0, tzinfo=UTC)
    assert parse_time("10m", NOW) == datetime(2026, 11, 15, 11, 50, tzinfo=UTC)
    with pytest.raises(BadSetting):
        parse_time("yesterday", NOW)


@pytest.mark.parametrize("value", [0, -1, "x", "1.5", 1.5, True, None, "", "-3"])
def test_bad_indexes_are_refused(value: object) -> None:
    with pytest.raises(BadIndex):
        check_index(value)


@pytest.mark.parametrize("value", [1, "7", 10**12])
def test_good_indexes_are_taken(value: object) -> None:
    assert check_index(value) == int(str(value))
