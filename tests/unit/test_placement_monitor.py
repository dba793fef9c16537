"""Records packed, and folded into tables."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from skerry import errors
from skerry.coords import Coordinate
from skerry.placement import (
    Monitor,
    PolicySettings,
    SiteRecord,
    TopicEntry,
    pack,
    plan,
    tables,
    unpack,
)
from skerry.placement.records import place_of, topic_columns

RNG = np.random.default_rng(5)


def record(site: str, number: int, topics: dict[str, float], **about: Any) -> SiteRecord:
    """A site with a publisher and a subscriber of each topic, the former so many ms away."""
    count = len(topics)
    columns: dict[str, Any] = {
        name: np.ones(count)
        for name in ("producers", "consumers", "rate_in", "rate_out", "event_bytes",
                     "stored_bytes", "publish_ms", "deliver_ms", "deliver_most_ms")
    }  # fmt: skip
    columns["producer_access"] = np.array(list(topics.values()))
    columns["consumer_access"] = np.zeros(count)
    made = SiteRecord(
        site=site,
        started=about.pop("started", 1),
        number=number,
        position=(1.0, 2.0),
        height=0.5,
        capacity=(4.0, 8e9, 1e8, 1e11, float("inf")),
        load=(1.0, 1e9, 1e6, 1e9, 500.0),
        topics=topic_columns(list(topics), **columns),
    )
    return msgspec.structs.replace(made, **about)


def test_round_trips_become_one_way() -> None:
    position, height = place_of(Coordinate((0.04, -0.02), 0.003, 0.1, -0.001))
    assert position == pytest.approx((20.0, -10.0))
    assert height == pytest.approx(1.0)
    assert place_of(Coordinate((0.0,), 0.001, 0.1, -0.002))[1] == 0.0


def test_the_size_of_a_record_depends_on_topics_and_not_on_clients() -> None:
    """Section 5.6, figure 6."""

    def size(topics: int, clients: int) -> int:
        names = [f"building/{number:04}/temp" for number in range(topics)]
        made = record("a", 1, dict.fromkeys(names, 1.0))
        many = np.full(topics, clients, "<u4").tobytes()
        columns = msgspec.structs.replace(made.topics, producers=many, consumers=many)
        return len(pack(msgspec.structs.replace(made, topics=columns)))

    assert size(100, 1) == size(100, 500)
    assert size(1000, 1) - size(100, 1) == pytest.approx(900 * (48 + 19), abs=40)


def test_a_record_survives_the_wire() -> None:
    made = record("a", 7, {"t1": 3.5, "t2": 4.5}, draining=True)
    back = unpack(pack(made))
    assert back == made
    assert back.topics.column("producer_access").tolist() == [3.5, 4.5]


def test_bad_records_are_refused() -> None:
    good = record("a", 1, {"t": 1.0})

    def with_column(name: str, data: bytes) -> SiteRecord:
        columns = msgspec.structs.replace(good.topics, **{name: data})
        return msgspec.structs.replace(good, topics=columns)

    nan = np.array([np.nan], "<f4").tobytes()
    bad = [
        with_column("producer_access", nan),
        with_column("producer_access", b""),
        with_column("deliver_ms", np.array([1e6], "<f4").tobytes()),
        with_column("rate_in", np.array([-1.0], "<f4").tobytes()),
        msgspec.structs.replace(good, height=float("nan")),
        msgspec.structs.replace(good, load=(float("inf"), 0.0, 0.0, 0.0, 0.0)),
        msgspec.structs.replace(good, position=()),
        msgspec.structs.replace(good, position=(1e9, 0.0)),
        msgspec.structs.replace(
            good, topics=msgspec.structs.replace(good.topics, names=["t", "t"])
        ),
    ]
    monitor = Monitor()
    assert monitor.fold(good, 0.0) == "taken"
    for one in bad:
        with pytest.raises(errors.BadSetting):
            unpack(pack(one))
        assert monitor.fold(msgspec.structs.replace(one, number=9), 1.0) == "refused"
    for data in (b"", b"\xff", pack(good)[:-3], msgspec.msgpack.encode({"site": "a"})):
        with pytest.raises(errors.BadSetting, match="no record of a site"):
            unpack(data)
    assert monitor.newest["a"] == (good, 0.0)
    assert monitor.fates["refused"] == len(bad)


def test_late_doubled_and_missing_records() -> None:
    monitor = Monitor()
    fates = [
        monitor.fold(record("a", number, {"t": float(number)}, started=started), 0.0)
        for started, number in [(1, 1), (1, 2), (1, 2), (1, 5), (1, 3), (2, 1), (1, 6), (2, 3)]
    ]
    assert fates == ["taken", "taken", "doubled", "taken", "late", "taken", "late", "taken"]
    assert dict(monitor.fates) == {"taken": 5, "doubled": 1, "late": 2, "missing": 3}
    monitor.forget("a")
    assert monitor.newest == {}


def test_the_order_of_arrival_does_not_matter() -> None:
    records = [record(site, number, {f"{site}{number}": 1.0})
               for site in "abc" for number in range(1, 6)]  # fmt: skip
    expected = None
    for _ in range(20):
        monitor = Monitor()
        for index in RNG.permutation(len(records)):
            for _ in range(int(RNG.integers(1, 3))):
                monitor.fold(records[index], 0.0)
        assert expected is None or monitor.newest == expected
        expected = monitor.newest


def test_tables_join_the_directory_with_what_homes_say() -> None:
    monitor = Monitor()
    monitor.fold(record("oslo", 1, {"x": 50.0, "gone": 1.0, "y": 9.0}), 100.0)
    monitor.fold(record("rome", 1, {"y": 7.0}), 100.0)
    entries = [
        TopicEntry(name="y", home="rome", bound_ms=20.0, replicas=("oslo",), wanted=1),
        TopicEntry(name="x", home="oslo", moving_to="rome", moved_at=90.0, pinned=True),
        TopicEntry(name="z", home="paris"),
        TopicEntry(name="new", home="oslo"),
    ]
    topics, sites = tables(monitor, entries, 110.0)
    assert sites.names.tolist() == ["oslo", "paris", "rome"]
    assert sites.up.tolist() == [True, False, True]
    assert sites.capacity[0].tolist() == [4.0, 8e9, 1e8, 1e11, 1.5e6]
    assert topics.names.tolist() == ["new", "x", "y", "z"]
    assert topics.measured.tolist() == [False, True, True, False]
    # Of y there are clients at both: the publisher at oslo has 9 ms to its site, and both sites'
    # lines of 0.5 ms to the home; the subscriber there has the lines. At their own site both are
    # nearer than that.
    assert topics.worst.tolist() == [0.0, 50.0, 9.0 + 1.0 + 1.0, 0.0]
    assert topics.producers.sites.tolist() == [0, 1, 2, 0]
    assert topics.producers.site.tolist() == [0, 0, 2]
    assert topics.producers.access.tolist() == [50.0, 9.0, 7.0]
    assert topics.producers.only.tolist() == [-1, 0, -1, -1]
    some = topics.producers.take(np.array([2, 0, 1]))
    assert (some.first.tolist(), some.site.tolist()) == ([0, 2, 2, 3], [0, 2, 0])
    assert topics.home.tolist() == [0, 0, 2, 1]
    assert topics.bound.tolist() == [np.inf, np.inf, 20.0, np.inf]
    assert topics.replicas.tolist() == [[-1], [-1], [0], [-1]]
    assert topics.moving_to.tolist() == [-1, 2, -1, -1]
    assert topics.moved_at.tolist() == [-np.inf, 90.0, -np.inf, -np.inf]
    assert len(plan(topics, sites, PolicySettings(), 110.0)) == 0
    # Old news: the site counts as down, and what it said is not acted upon.
    topics, sites = tables(monitor, entries, 116.0)
    assert sites.up.tolist() == [False, False, False]
    assert topics.measured.tolist() == [False] * 4


def test_a_site_of_other_dimensions_is_left_out() -> None:
    monitor = Monitor()
    for site in ("a", "b"):
        monitor.fold(record(site, 1, {}), 0.0)
    monitor.fold(record("odd", 1, {}, position=(1.0, 2.0, 3.0)), 0.0)
    topics, sites = tables(monitor, [TopicEntry(name="t", home="a")], 0.0)
    assert sites.up.tolist() == [True, True, False]
    assert topics.measured.tolist() == [False]
