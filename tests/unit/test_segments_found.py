"""Which chain the streams on a disk form."""

from __future__ import annotations

from typing import Any

from skerry.fabric.streams import FIRST, FORK, WELDED, Local, cut_at, gap_of, learn, sort_out


def stream(first: int | None = None, welded: bool = False) -> dict[str, Any]:
    marks = {} if first is None else {FIRST: str(first)}
    return {"config": {"metadata": {**marks, **({WELDED: "1"} if welded else {})}}}


def test_one_stream_is_the_log() -> None:
    found = sort_out({0: stream()})
    assert (found.places, found.ends, found.left_over) == ([(0, 1)], {}, set())


def test_a_roll_ends_the_stream_before() -> None:
    found = sort_out({0: stream(), 1: stream(101)})
    assert found.places == [(0, 1), (1, 101)]
    assert found.ends == {0: 100}


def test_a_roll_before_others_takes_their_place_but_they_may_hold_what_only_they_have() -> None:
    found = sort_out({0: stream(), 1: stream(101), 3: stream(91)})
    assert found.places == [(0, 1), (3, 91)]
    assert found.ends == {0: 90, 1: 90}
    assert not found.left_over


def test_a_roll_at_nothing_leaves_one_segment() -> None:
    found = sort_out({0: stream(), 1: stream(1)})
    assert found.places == [(1, 1)]
    assert found.ends == {0: 0}


def test_a_stream_begun_beside_others_leaves_them_their_end() -> None:
    anew = stream(1)
    anew["config"]["metadata"][FORK] = "90"
    found = sort_out({0: stream(), 1: stream(101), 3: anew})
    assert found.places == [(3, 1)]
    assert found.ends == {0: 90, 1: 90}


def test_what_was_welded_makes_the_others_useless() -> None:
    found = sort_out({0: stream(), 1: stream(101), 2: stream(1, welded=True)})
    assert found.places == [(2, 1)]
    assert not found.ends
    assert found.left_over == {1}  # the log's own name stays


def test_a_weld_that_was_not_finished_is_useless() -> None:
    found = sort_out({0: stream(), 1: stream(101), 2: stream()})
    assert found.places == [(0, 1), (1, 101)]
    assert found.left_over == {2}


def test_a_roll_after_a_weld() -> None:
    found = sort_out({0: stream(), 2: stream(1, welded=True), 3: stream(151)})
    assert found.places == [(2, 1), (3, 151)]
    assert found.ends == {2: 150}


def test_a_second_roll_leaves_the_end_of_the_first() -> None:
    """What the first segment holds beyond its end is still to be brought home."""
    ends = cut_at([(0, 1)], {}, 500)
    assert ends == {0: 500}
    assert cut_at([(0, 1), (1, 501)], ends, 800) == {0: 500, 1: 800}
    assert cut_at([(0, 1), (1, 501)], {}, 800) == {0: 500, 1: 800}
    assert cut_at([(0, 1), (1, 501)], ends, 400) == {0: 400, 1: 400}
    found = sort_out({0: stream(), 1: stream(501), 3: stream(801)})
    assert found.places == [(0, 1), (1, 501), (3, 801)]
    assert found.ends == {0: 500, 1: 800}


def test_who_reads_a_segment_that_left_the_chain_is_told_where_it_ends() -> None:
    local = Local("x", "a")
    local.places, local.ends = [(0, 1), (3, 91)], {0: 90, 1: 90}
    assert {segment.stream: segment.last for segment in local.frozen} == {"t~x": 90, "t~x~~1": 90}
    local.ends = {}
    assert {segment.stream: segment.last for segment in local.frozen} == {"t~x": 90}


def test_a_segment_that_is_not_positioned_yet_ends_where_the_one_before_does() -> None:
    """An election that took it for empty would begin at nothing."""
    local = Local("t", "a")
    local.places = [(0, 1), (1, 61)]
    mirror = {"config": {"name": "t~t~~1", "mirror": {"name": "x"}}}
    learn(local, mirror | {"state": {"last_seq": 0, "messages": 0}}, "fabric")
    assert local.copy.last == 60
    learn(local, mirror | {"state": {"last_seq": 70, "messages": 10}}, "fabric")
    assert local.copy.last == 70


def test_a_stream_that_was_to_lead_lacks_the_indexes_of_events_that_are_over() -> None:
    """Found again after a crash; a copy gets them from its home."""
    welded = {"config": {"metadata": {"skerry.epoch": "0"}}, "state": {"last_seq": 58}}
    assert gap_of(welded, 60) == range(59, 61)
    assert not gap_of(welded, 58)
    copy = {"config": {"metadata": {"skerry.epoch": "3"}}, "state": {"last_seq": 58}}
    assert not gap_of(copy, 60)
