"""Whatever a name is, a line of the protocol holds it as one word, or is not written."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import skerry
from skerry.engine import lines
from skerry.errors import BadName
from skerry.model.control import ProgressRequest, TopicName, Want
from skerry.model.names import TopicText, check_topic

INJECTED = "x 0\r\n\r\nPUB $JS.API.STREAM.DELETE.t~victim 0\r\n\r\nPUB y"
TEXT = st.text() | st.sampled_from(["", " ", "a b", "a\tb", "a\r\nb", "a\x7f", "\x00", INJECTED])


def words_of(line: bytes) -> list[bytes]:
    """What the engine takes a line for."""
    assert line.endswith(b"\r\n")
    assert line.count(b"\n") == 1
    return line[:-2].split(b" ")


@given(TEXT, TEXT)
def test_a_name_stays_one_word_or_is_refused(subject: str, reply: str) -> None:
    is_good = [
        bool(text) and all(ord(letter) > 32 and ord(letter) != 127 for letter in text)
        for text in (subject, reply)
    ]
    if all(is_good):
        line, _, rest = lines.pub(subject, b"a b", reply).partition(b"\n")
        assert words_of(line + b"\n") == [b"PUB", subject.encode(), reply.encode(), b"3"]
        assert rest == b"a b\r\n"
    elif not is_good[0]:
        with pytest.raises(BadName):
            lines.pub(subject, b"a b", reply)
    if is_good[0]:
        assert words_of(lines.sub(subject, b"1")) == [b"SUB", subject.encode(), b"1"]
    else:
        with pytest.raises(BadName):
            lines.sub(subject, b"1")


@pytest.mark.parametrize("bad", ["", " ", "a b", "a\tb", "a\nb", "a\x7fb", "\ud800", INJECTED])
def test_every_line_refuses_what_is_no_word(bad: str) -> None:
    raw = bad.encode("utf-8", "surrogatepass")
    good = lines.pub("s", b"", "r.1", b"NATS/1.0\r\n\r\n")
    for make in (
        lambda: lines.pub(bad),
        lambda: lines.pub(bad, b"", "r"),
        lambda: lines.pub("s", b"", bad) if bad else lines.pub(bad),
        lambda: lines.pub(bad, head=b"NATS/1.0\r\n\r\n"),
        lambda: lines.sub(bad, b"1"),
        lambda: lines.template(bad, "r", "i"),
        lambda: lines.template("s", bad, "i"),
        lambda: lines.template("s", "r", bad),
    ):
        with pytest.raises(BadName):
            make()
    if bad != "\ud800":
        with pytest.raises(BadName):
            lines.redirected(good, raw, b"r")
        with pytest.raises(BadName):
            lines.unsub(raw)


def test_a_template_makes_what_is_made_one_by_one() -> None:
    template = lines.template("s.%d.a", "r.%b.", "id%-")
    head = b"NATS/1.0\r\nNats-Msg-Id:id%-7\r\n\r\n"
    size = len(head)
    assert template % (7, size, size + 3, 7, b"abc") == lines.pub("s.%d.a", b"abc", "r.%b.7", head)


def test_nothing_else_writes_a_line() -> None:
    """A module that wrote one by itself could forget to look at a name."""
    root = Path(skerry.__file__ or "").parent
    line = re.compile(r"""b["'](H?PUB|UNSUB|SUB|CONNECT) """)
    found = {str(file.relative_to(root)) for file in root.rglob("*.py") if line.search(_text(file))}
    assert found == {"engine/lines.py"}


def _text(file: Path) -> str:
    return file.read_text()


@pytest.mark.parametrize("kind", [Want, ProgressRequest, TopicName])
def test_a_request_with_such_a_name_is_not_even_read(kind: type) -> None:
    good = {"name": "a/b", "durable": "d", "inbox": "_INBOX_sk.local.sdk.x"}
    assert msgspec.json.decode(msgspec.json.encode(good), type=kind)
    for field in {"name", "durable", "inbox"} & set(kind.__struct_fields__):
        for bad in (INJECTED, "", "a b", "a\n", "a.*", "$KV.skerry.site.evil"):
            with pytest.raises(msgspec.ValidationError):
                msgspec.json.decode(msgspec.json.encode({**good, field: bad}), type=kind)


@given(st.text("ab_-/ .\n*é", max_size=8) | st.just("a/" * 16 + "a") | st.just("a" * 181))
def test_a_topic_s_name_has_one_rule(name: str) -> None:
    try:
        check_topic(name)
    except BadName:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(name, TopicText)
    else:
        assert msgspec.convert(name, TopicText) == name
