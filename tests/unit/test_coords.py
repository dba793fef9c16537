"""Coordinates: distances, what travels, what is refused, and what cannot be spoilt."""

from __future__ import annotations

import ast
import base64
import math
import struct
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import skerry.coords
from skerry.coords import Coordinate, Known, Position, Steady, between, estimate, pack, unpack
from skerry.coords.coordinate import DIMENSIONS, ERROR_MOST, REACH, is_sound
from skerry.coords.latency import LatencyFilter

NAN, INFINITE = math.nan, math.inf


def at(*vector: float, height: float = 1e-5, error: float = 0.1, adjust: float = 0.0) -> Coordinate:
    """A place, zero in the dimensions that are not given."""
    return Coordinate(
        vector + (0.0,) * (DIMENSIONS - len(vector)), height, error, adjustment=adjust
    )


def settled(*places: Coordinate, rounds: int = 40) -> tuple[Position, list[Coordinate]]:
    """A site that has measured, again and again, others that stand still; it is at the origin, with
    10 ms of access line."""
    position = Position(Random(1))
    truth = at(height=0.01)
    for now in range(rounds):
        for number, place in enumerate(places):
            position.observe(f"s{number}", place, between(truth, place), float(now))
    return position, list(places)


FOUR = (at(0.03), at(0.0, 0.05), at(-0.02, -0.04), at(0.0, -0.03, 0.06))
EIGHT = (*FOUR, at(0.05, 0.05), at(-0.06), at(0.01, 0.0, -0.05), at(0.0, 0.0, 0.0, 0.04))


def wrongest(position: Position, places: list[Coordinate]) -> float:
    """The largest relative error against where `settled` is."""
    truth = at(height=0.01)
    return max(
        abs(between(position.coordinate, place) / between(truth, place) - 1) for place in places
    )


def test_the_core_is_pure() -> None:
    """No clock, no randomness of its own, no I/O: the same samples make the same place."""
    forbidden = {"asyncio", "time", "datetime", "random", "socket", "os", "threading"}
    for file in Path(skerry.coords.__file__).parent.glob("*.py"):
        tree = ast.parse(file.read_text())
        guarded = [n for top in tree.body if isinstance(top, ast.If) for n in ast.walk(top)]
        for node in ast.walk(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node not in guarded:
                names = [node.module or ""]
            assert not forbidden & {name.split(".")[0] for name in names}, file.name
    assert settled(*EIGHT)[0].coordinate == settled(*EIGHT)[0].coordinate


# Distances


def test_a_distance_is_the_way_plus_both_heights_and_adjustments() -> None:
    one, other = at(0.03, height=0.002), at(0.0, 0.04, height=0.003, adjust=0.001)
    assert between(one, other) == pytest.approx(0.056)
    assert between(other, one) == between(one, other)


def test_an_adjustment_never_makes_a_distance_negative() -> None:
    assert between(at(adjust=-1.0), at(0.01)) == pytest.approx(0.01, rel=0.01)


def test_a_client_is_its_site_with_a_longer_line() -> None:
    site, other = at(0.02, height=0.001), at(0.05)
    assert between(site.behind(0.012), other) == pytest.approx(between(site, other) + 0.012)
    assert site.behind(-1.0) == site


# What travels

_floats = st.floats(-REACH, REACH, width=32)


@given(
    st.builds(
        Coordinate,
        st.tuples(*[_floats] * DIMENSIONS),
        st.floats(0, REACH, width=32),
        st.floats(0, ERROR_MOST, width=32),
        _floats,
    )
)
def test_what_is_packed_comes_back(coordinate: Coordinate) -> None:
    assert unpack(pack(coordinate)) == coordinate
    assert len(pack(coordinate)) == 60


@given(
    st.one_of(st.text(), st.binary(max_size=60).map(lambda data: base64.b64encode(data).decode()))
)
def test_anything_else_is_no_coordinate_or_a_sound_one(text: str) -> None:
    found = unpack(text)
    assert found is None or is_sound(found)


@pytest.mark.parametrize(
    "lie",
    [
        at(NAN), at(INFINITE), at(-INFINITE), at(11.0), at(height=-0.001), at(height=NAN),
        at(height=1e9), at(error=-0.1), at(error=NAN), at(error=99.0), at(adjust=NAN),
        at(adjust=-1e6), Coordinate((0.0,) * 3), Coordinate(()),
    ],
)  # fmt: skip
def test_what_is_no_place_is_refused_and_counted(lie: Coordinate) -> None:
    position, _ = settled(*FOUR)
    before = position.coordinate
    assert not position.observe("liar", lie, 0.01, 50.0)
    position.heard("s1", lie)
    assert position.counts.bad_coordinate == 2
    assert position.coordinate == before
    if len(lie.vector) == DIMENSIONS:
        assert unpack(pack(lie)) is None


def test_another_version_is_not_understood() -> None:
    packed = base64.b64decode(pack(at(0.1)))
    assert unpack(base64.b64encode(b"\x02" + packed[1:]).decode()) is None
    assert unpack(base64.b64encode(struct.pack("<f", 1.0)).decode()) is None


# Samples


@pytest.mark.parametrize("rtt", [0.0, -0.02, -INFINITE, INFINITE, NAN, 10.01, 1e-9])
def test_a_time_that_is_none_is_refused_and_counted(rtt: float) -> None:
    position, _ = settled(*FOUR)
    before = position.coordinate
    assert not position.observe("s0", FOUR[0], rtt, 50.0)
    assert position.counts.bad_rtt == 1
    assert position.coordinate == before


def test_a_site_finds_its_place_among_others() -> None:
    position, places = settled(*EIGHT)
    assert wrongest(position, places) < 0.02
    assert position.coordinate.error < 0.05
    assert position.counts.samples == 320


def test_the_filter_takes_a_low_one_of_the_last() -> None:
    low = LatencyFilter(5, 1)
    assert [low.add(x) for x in (9, 2, 5, 3, 4, 8, 7)] == [9, 2, 2, 3, 3, 3, 4]


def test_spikes_change_nothing_much() -> None:
    position, places = settled(*EIGHT)
    random = Random(3)
    for now in range(100, 300):
        number = random.randrange(8)
        spike = 50.0 if random.random() < 0.1 else 1.0
        rtt = between(at(height=0.01), places[number]) * spike
        position.observe(f"s{number}", places[number], min(rtt, 9.0), float(now))
        assert wrongest(position, places) < 0.05


def test_one_spike_of_a_new_peer_moves_a_site_by_little() -> None:
    position, places = settled(*EIGHT)
    before = position.coordinate
    position.observe("new", at(0.03, 0.03), 9.0, 100.0)
    assert math.dist(before.vector, position.coordinate.vector) < 0.002
    assert wrongest(position, places) < 0.1


@pytest.mark.parametrize("place", [at(9.9, error=0.0), at(-0.5, -0.5, error=0.0, height=5.0)])
def test_a_liar_that_is_sure_of_itself_spoils_only_the_way_to_itself(place: Coordinate) -> None:
    position, places = settled(*EIGHT)
    random = Random(5)
    for now in range(100, 160):
        position.observe("liar", place, 0.02, float(now))
        peer = random.randrange(8)
        truth = between(at(height=0.01), places[peer])
        position.observe(f"s{peer}", places[peer], truth, float(now))
        assert wrongest(position, places) < 0.1
    assert position.counts.moves == 0


def test_what_is_not_a_number_begins_anew_and_is_counted() -> None:
    position, places = settled(*EIGHT)
    position._place = position._place._replace(vector=(NAN,) * DIMENSIONS)
    position.observe("s0", places[0], 0.04, 100.0)
    assert position.counts.resets == 1
    assert is_sound(position.coordinate)
    for now in range(101, 140):
        for number, place in enumerate(places):
            position.observe(f"s{number}", place, between(at(height=0.01), place), float(now))
    assert wrongest(position, places) < 0.05


def test_a_site_that_wakes_elsewhere_notices_and_finds_its_new_place() -> None:
    position, places = settled(*EIGHT)
    truth = at(0.3, 0.1, height=0.02)
    for now in range(100, 112):
        for number, place in enumerate(places):
            position.observe(f"s{number}", place, between(truth, place), float(now))
    assert position.counts.moves >= 1
    wrong = [abs(between(position.coordinate, p) / between(truth, p) - 1) for p in places]
    assert max(wrong) < 0.1


def test_a_peer_that_returned_elsewhere_is_measured_anew() -> None:
    position, places = settled(*EIGHT)
    elsewhere = at(0.2, 0.2)
    position.forget("s3")
    position.observe("s3", elsewhere, between(at(height=0.01), elsewhere), 100.0)
    assert position.peers["s3"].rtt == pytest.approx(between(at(height=0.01), elsewhere))
    assert wrongest(position, [*places[:3], *places[4:], elsewhere]) < 0.05


def test_a_peer_that_moved_without_telling_is_believed_after_four_samples() -> None:
    position, _ = settled(*EIGHT)
    for now in range(100, 104):
        position.observe("s3", at(0.2, 0.2), 0.3, float(now))
    assert position.peers["s3"].rtt == 0.3
    assert position.counts.moves == 0


def test_only_so_many_peers_are_remembered_and_for_so_long() -> None:
    position = Position(Random(1))
    for number in range(100):
        position.observe(f"s{number}", at(0.01 * (number % 7)), 0.02, float(number))
    assert list(position.peers) == [f"s{number}" for number in range(68, 100)]
    for now in range(10_000, 10_040):
        position.observe("s1", at(0.01), 0.02, float(now))
    assert list(position.peers) == ["s1"]


def test_a_site_begins_where_it_was_and_doubts_it() -> None:
    before = at(0.03, height=0.02, error=0.01)
    position = Position(Random(1), before)
    assert position.coordinate == msgspec.structs.replace(before, error=ERROR_MOST)
    assert is_sound(Position(Random(1), at(NAN)).coordinate)


# What applications see


def test_a_coordinate_for_applications_changes_only_when_it_matters() -> None:
    steady = Steady()
    assert steady.coordinate is None
    assert steady.follow(at(0.05), 0.1)
    for move in (0.0501, 0.0505, 0.0509):
        assert not steady.follow(at(move), 0.1)
    assert steady.coordinate == at(0.05)
    assert steady.follow(at(0.0511), 0.1)
    assert not steady.follow(at(0.0511, height=0.0008), 0.1)
    assert steady.follow(at(0.0511, height=0.0015), 0.1)
    assert steady.follow(at(0.0511, height=0.0015, error=0.04), 0.1)
    assert steady.changes == 4


def test_where_distances_are_short_small_moves_matter() -> None:
    steady = Steady()
    steady.follow(at(0.005), 0.004)
    assert not steady.follow(at(0.0054), 0.004)
    assert steady.follow(at(0.0056), 0.004)


# What is known of two sites


def test_an_estimate_tells_its_error_and_what_was_measured() -> None:
    known = {
        "farm": Known(at(0.03, error=0.1), {"lab": 0.041}),
        "lab": Known(at(0.0, 0.04, error=0.3), {"farm": 0.043, "hub": 0.02}),
        "hub": Known(),
    }
    both = estimate("lab", "farm", known)
    assert both.rtt == pytest.approx(0.05, rel=0.01)
    assert both.error == pytest.approx(0.01, rel=0.01)
    assert (both.measured, both.measured_by, both.best) == (0.041, "farm", 0.041)
    assert estimate("farm", "lab", known) == both
    half = estimate("hub", "lab", known)
    assert (half.rtt, half.measured, half.measured_by) == (None, 0.02, "lab")
    assert estimate("farm", "hub", known).best is None
    assert estimate("farm", "farm", known).best == 0.0
    assert estimate("farm", "nowhere", known).best is None
