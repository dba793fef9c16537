"""What benchmarks make of what they measured."""

from __future__ import annotations

import math

import pytest

from bench.fabric import Sent
from bench.harness import exponent, grown


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_found(power: float) -> None:
    points = {size: 3 * math.pow(size, power) for size in (10, 100, 1000, 2000)}
    assert exponent(points) == pytest.approx(power, abs=0.01)


def test_what_did_not_take_any_time_has_no_exponent() -> None:
    assert exponent({10: 0.0, 100: 2.0}) is None
    assert exponent({}) is None


def test_a_figure_that_grows_tells_the_largest_and_all_points() -> None:
    figure = grown("scale.x", {10: 1.0, 100: 10.0}, "s", "about")
    assert figure.value == 10
    assert figure.points == {"10": 1.0, "100": 10.0}
    assert figure.exponent == 1
    assert figure.note == "about; 10: 1, 100: 10; grows with the power 1"


def test_a_link_that_comes_anew_loses_nothing_of_what_crossed_before() -> None:
    sent = Sent()
    for found in (100, 250, 30, 80):  # the third look is at another connection
        sent.add({("a", "b"): found})
    assert sent.total == 250 + 80


def test_a_site_that_does_not_answer_a_look_is_counted_by_the_next() -> None:
    sent = Sent()
    sent.add({("a", "b"): 100, ("b", "a"): 5})
    sent.add({("b", "a"): 6})
    sent.add({("a", "b"): 300, ("b", "a"): 6})
    assert sent.total == 306
