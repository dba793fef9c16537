"""Chains of segments: which stream holds an index, and what a chain holds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from skerry.engine.tide import Tide
from skerry.functions.access import home_stream
from skerry.log.segments import (
    CHAIN,
    Extent,
    Segment,
    chain,
    chain_of,
    listing,
    segment_at,
)
from skerry.model.fabric import Step, TopicEntry
from skerry.model.topic import TopicSettings


def info(first: int, last: int, *, messages: int | None = None, **more: Any) -> dict[str, Any]:
    """What the engine says of a stream."""
    count = last - first + 1 if messages is None else messages
    state = {"first_seq": first, "last_seq": last, "messages": count, "bytes": 10 * count}
    return {"config": {}, "state": state, **more}


def test_a_log_that_lists_no_chain_is_one_stream() -> None:
    assert chain_of("a/b", {"config": {}}) == (Segment("t~a~b", 1),)
    assert chain_of("a/b", {"config": {"metadata": None}})[0].is_active


def test_a_chain_is_read_as_it_was_listed() -> None:
    places = [(0, 1), (1, 501), (3, 801)]
    metadata = {CHAIN: listing(places)}
    found = chain_of("a", {"config": {"metadata": metadata}})
    assert found == chain("a", places)
    assert found == (
        Segment("t~a", 1, 500),
        Segment("t~a~~1", 501, 800),
        Segment("t~a~~3", 801, sys.maxsize),
    )


@pytest.mark.parametrize(
    ("index", "stream"),
    [(1, "t~a"), (500, "t~a"), (501, "t~a~~1"), (800, "t~a~~1"), (801, "t~a~~3"), (9999, "t~a~~3")],
)
def test_an_index_is_read_from_the_segment_that_ends_behind_it(index: int, stream: str) -> None:
    # Nothing was ever stored in the third one.
    places = [(0, 1), (1, 501), (2, 801), (3, 801)]
    assert segment_at(chain("a", places), index).stream == stream


def test_a_chain_begins_with_the_first_event_that_is_kept_and_part_of_the_history() -> None:
    parts = chain("a", [(0, 1), (1, 501), (2, 801)])
    middle, active = info(501, 800), info(801, 900)
    whole = Extent(parts, (info(1, 502), middle, active))
    assert (whole.first, whole.last, whole.events, whole.bytes) == (1, 900, 900, 9020)
    assert Extent(parts, (info(300, 500), middle, active)).first == 300
    assert Extent(parts, (info(501, 500), middle, active)).first == 501, "all aged out"
    assert Extent(parts, (info(501, 502), middle, active)).first == 501, "only a tail is left"
    assert Extent(parts, (info(0, 0, messages=0), info(801, 800), active)).first == 801


def test_an_empty_log_begins_behind_its_last_index() -> None:
    assert Extent(chain("a", [(0, 1)]), (info(0, 0, messages=0),)).first == 1
    parts = chain("a", [(0, 1), (1, 501)])
    empty = Extent(parts, (info(501, 500), info(501, 500)))
    assert (empty.first, empty.last, empty.events) == (501, 500, 0)


def test_what_lies_beyond_the_end_of_a_segment_is_not_counted() -> None:
    parts, active = chain("a", [(0, 1), (1, 501)]), info(501, 510)
    assert Extent(parts, (info(1, 502), active)).events == 510
    removed = info(1, 502, messages=500)
    removed["state"]["num_deleted"] = 2
    assert Extent(parts, (removed, active)).events == 510
    assert Extent(parts, (info(503, 502), active)).events == 10


def test_a_disk_that_lost_events_of_a_later_segment_lost_them_of_its_topic(tmp_path: Path) -> None:
    Tide(tmp_path).note([_logged("t~a~b", 500), _logged("t~a~b~~1", 800), _logged("t~c~~2", 5)])
    tide = Tide(tmp_path)
    now = [_logged("t~a~b", 400), _logged("t~a~b~~1", 700), _logged("t~c~~2", 5)]
    tide.look(now)
    assert set(tide.lost) == {"a/b"}
    assert tide.ends == {"a/b": 800}
    tide.note(now)
    again = Tide(tmp_path)
    again.look(now)
    assert again.ends == {"a/b": 800}, "what was lost is known until the log is made anew"


def _logged(stream: str, last: int) -> dict[str, Any]:
    return {"config": {"name": stream}, "created": "then", "state": {"last_seq": last}}


def test_a_topic_is_read_at_home_from_the_stream_that_its_entry_names() -> None:
    assert home_stream("a/b", None) == "t~a~b"
    entry = TopicEntry(
        name="a/b",
        home="hub",
        epoch=4,
        lineage=(Step(4, 0),),
        members=("hub",),
        settings=TopicSettings(),
        segment=3,
    )
    assert home_stream("a/b", entry) == "t~a~b~~3"
