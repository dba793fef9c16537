"""How long the way to another site and back may take."""

from __future__ import annotations

import random

from skerry.model.way import MOST, UNKNOWN, Way


def test_a_way_that_was_never_measured_may_take_a_while() -> None:
    assert Way().wait() == UNKNOWN


def test_the_first_trip_is_taken_with_doubt() -> None:
    way = Way()
    way.observe(0.2)
    assert way.wait() > 2 * 0.2


def test_a_steady_way_may_take_little_longer_than_it_takes() -> None:
    way = Way()
    for _ in range(50):
        way.observe(0.8)
    assert 0.8 <= way.wait() < 0.81


def test_an_unsteady_way_may_take_as_long_as_its_longest_trips() -> None:
    choice = random.Random(1)
    way = Way()
    late = 0
    for trial in range(1000):
        trip = choice.uniform(0.2, 0.8) + choice.uniform(0.2, 0.8)
        late += trial > 0 and trip > way.wait()
        way.observe(trip)
    assert late < 10


def test_a_way_that_grew_is_given_the_time_after_one_trip() -> None:
    way = Way()
    for _ in range(50):
        way.observe(0.002)
    way.observe(1.0)
    assert way.wait() > 1.0


def test_a_way_that_shrank_is_soon_given_less() -> None:
    way = Way()
    for _ in range(50):
        way.observe(1.0)
    for _ in range(50):
        way.observe(0.002)
    assert way.wait() < 0.02


def test_nobody_is_waited_for_longer_than_the_most() -> None:
    way = Way()
    way.observe(60.0)
    assert way.wait() == MOST
