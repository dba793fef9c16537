"""Records that cannot be read or do not fit are set aside, told once, and counted."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.errors import BadSetting, SkerryError
from skerry.model import records
from skerry.model.event import Event, reply_of
from skerry.model.fabric import (
    CopyRecord,
    LinkRecord,
    SiteRecord,
    Step,
    TopicEntry,
    fits,
    kind_of,
    link_key,
    site_key,
    topic_key,
)
from skerry.model.feeds import Feed, read_feed
from skerry.model.functions import Function, FunctionSettings, Version
from skerry.model.topic import TopicSettings

ACK = b'{"stream":"t~bait","domain":"local","seq":4}'
KEYS = [
    "fabric", "site.a", "up.a", "link.a.b", "topic.t~a~b", "copy.t~a.b", "sub.t~a.d", "gone.t~a",
    "pin.t~a",
]  # fmt: skip
ENTRY = TopicEntry(
    name="a/b", home="x", epoch=2, lineage=(Step(1, 0), Step(2, 7)), members=("x", "y"),
    settings=TopicSettings(),
)  # fmt: skip


@pytest.fixture(autouse=True)
def aside(monkeypatch: pytest.MonkeyPatch) -> records.Aside:
    fresh = records.Aside()
    monkeypatch.setattr(records, "ASIDE", fresh)
    return fresh


def test_a_bad_record_is_told_once_and_counted_until_a_good_one_is_there(
    aside: records.Aside, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        assert records.read(b"{", int, "gone.t~a") is None
    assert records.read(b'"x"', int, "gone.t~a") is None
    assert records.read(b"\xff\xfe", int, "gone.t~b") is None
    assert (aside.names(), aside.count) == (["gone.t~a", "gone.t~b"], 3)
    assert [message.count("gone.t~a") for message in caplog.messages] == [1, 1, 0]
    assert records.read(b"7", int, "gone.t~a", is_newest=False) == 7
    assert len(aside) == 2
    assert records.read(b"7", int, "gone.t~a") == 7
    assert aside.names() == ["gone.t~b"]


def test_so_is_one_that_does_not_fit(aside: records.Aside) -> None:
    def refuse(number: int) -> bool:
        raise BadSetting("no")

    assert records.read(b"7", int, "a", fits=lambda number: number < 7) is None
    assert records.read(b"7", int, "b", fits=refuse) is None
    assert aside.names() == ["a", "b"]


def test_there_is_an_end_to_what_is_remembered(aside: records.Aside) -> None:
    for number in range(records.MOST + 5):
        records.read(b"{", int, f"gone.{number}")
    assert (len(aside), aside.count) == (records.MOST, records.MOST + 5)


@given(st.sampled_from(KEYS), st.binary(max_size=80) | st.just(ACK) | st.just(b"{}"))
def test_no_bytes_at_any_key_are_an_error(key: str, data: bytes) -> None:
    kind = kind_of(key)
    assert kind is not None
    found = records.read(data, kind, key, fits=lambda record: fits(key, record))
    assert found is None or kind in (int, bool)


def test_an_acknowledgement_is_no_record_of_anything() -> None:
    """It is what somebody can have the engine write, see `docs/guarantees.md`."""
    for key in [*KEYS, "placement.settings"]:
        kind = kind_of(key)
        assert kind is not None
        assert records.read(ACK, kind, key) is None, key
    assert records.read(ACK, Function, "x") is None
    assert records.read(ACK, Feed, "x") is None


def test_a_record_belongs_to_its_key() -> None:
    assert fits(topic_key("a/b"), ENTRY)
    assert not fits(topic_key("a"), ENTRY)
    assert not fits(topic_key("a/b"), msgspec.structs.replace(ENTRY, home="y"))
    site = SiteRecord(
        name="a", tier="edge", version="1", protocol=1, link=None, joined=datetime.now(UTC)
    )
    assert (fits(site_key("a"), site), fits(site_key("b"), site)) == (True, False)
    for where in ("[::1]:7422", "farm.example:1", "10.0.0.1:65535"):
        there = msgspec.structs.replace(site, link=where)
        assert records.read(msgspec.json.encode(there), SiteRecord, "x") == there
    for where in ("", "host", "a b:1", "me@host:1", "host:1\n", "host:1/x"):
        there = msgspec.structs.replace(site, link=where)
        assert records.read(msgspec.json.encode(there), SiteRecord, "x") is None, where
    link = LinkRecord(dialer="b", acceptor="a")
    assert (fits(link_key("a", "b"), link), fits(link_key("a", "c"), link)) == (True, False)
    copy = CopyRecord(site="a", parent="b", depth=1)
    assert (fits("copy.t~x.a", copy), fits("copy.t~x.b", copy)) == (True, False)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "a b"}, {"name": ""}, {"home": "x\r\n"}, {"home": "x.y"}, {"members": []},
        {"members": ["x", "../y"]}, {"lineage": []},
    ],
)  # fmt: skip
def test_names_in_the_directory_are_looked_at(change: dict[str, object]) -> None:
    raw = msgspec.to_builtins(ENTRY)
    assert records.read(msgspec.json.encode(raw), TopicEntry, "x") == ENTRY
    assert records.read(msgspec.json.encode({**raw, **change}), TopicEntry, "x") is None


ID = "6f1c1b8e-5f0a-4b6e-9a3d-0d5f3f1d2c11"


def test_a_feed_s_record_stands_in_the_log_of_its_site() -> None:
    feed = Feed(id=ID, owner="me", topic=f"feeds/s/log/{ID}", site="s")

    def event(topic: str, feed: Feed) -> Event:
        subject = b"e." + topic.replace("/", ".").encode()
        return Event(subject, 1, b"", msgspec.json.encode(feed), reply_of(1, 1))

    assert read_feed(event(f"feeds/s/about/{ID}", feed)) == feed
    for topic in (f"feeds/x/about/{ID}", "feeds/s/about", "feeds/s/about/other"):
        assert read_feed(event(topic, feed)) is None
    for change in ({"topic": "a b"}, {"metadata": {"skerry/owner": "you"}}, {"id": "x"}):
        bad = msgspec.structs.replace(feed, **change)
        assert read_feed(event(f"feeds/s/about/{ID}", bad)) is None


VERSION = Version(
    number=1, code="0" * 64, kind="python", handler="handler",
    settings=FunctionSettings(topic="in"), requires=("numpy>=2",), site="hub", deployed=1,
)  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"requires": ("--index-url http://evil.example/",)}, {"requires": ("-r /etc/passwd",)},
        {"requires": ("numpy\n--pre",)}, {"requires": ("",)}, {"code": "../../x"}, {"env": "x"},
        {"site": "a b"}, {"settings": FunctionSettings(topic="functions/registry")},
        {"settings": FunctionSettings(topic="in", concurrency=1000)}, {"handler": "a b"},
    ],
)  # fmt: skip
def test_a_function_of_the_registry_is_one_that_could_be_deployed(
    change: dict[str, object],
) -> None:
    function = Function(name="f", versions=(VERSION,), since=1)
    assert function.check() == function
    with pytest.raises(SkerryError):
        Function(
            name="f", versions=(msgspec.structs.replace(VERSION, **change), VERSION), since=1
        ).check()
    for name, versions in (("a b", (VERSION,)), ("f", ())):
        with pytest.raises(SkerryError):
            Function(name=name, versions=versions, since=1).check()
