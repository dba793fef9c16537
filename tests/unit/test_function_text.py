"""What code prints becomes lines, and not more than a log can hold."""

from __future__ import annotations

import random

from skerry.functions.text import MAX_LINE, RATE, Text


def test_lines_are_made_however_they_arrive() -> None:
    whole = "eins\nzwei grün\n\nlast".encode()
    for seed in range(50):
        chance = random.Random(seed)
        lines: list[str] = []
        text = Text(lines.append)
        rest = whole
        while rest:
            count = chance.randint(1, 6)
            text.feed(rest[:count], 0.0)
            rest = rest[count:]
        text.end()
        assert lines == ["eins", "zwei grün", "", "last"], seed


def test_a_long_line_is_cut() -> None:
    lines: list[str] = []
    text = Text(lines.append)
    text.feed(b"x" * (MAX_LINE + 10) + b"\nnext\n", 0.0)
    assert lines == ["x" * MAX_LINE + " … (10 bytes more)", "next"]


def test_a_line_without_an_end_does_not_grow_for_ever() -> None:
    lines: list[str] = []
    text = Text(lines.append)
    for _ in range(1000):
        text.feed(b"x" * 1000, 0.0)
        assert len(text._rest) <= 2 * MAX_LINE
    text.end()
    assert lines[-1].startswith("x" * MAX_LINE)
    assert any(f"({1_000_000 - 2 * MAX_LINE} bytes of output were left out" in x for x in lines)


def test_too_much_is_counted_and_said_later() -> None:
    lines: list[str] = []
    text = Text(lines.append)
    line = b"y" * 999 + b"\n"
    for _ in range(200):
        text.feed(line, 0.0)
    kept = len(lines)
    assert kept == RATE // 1000
    text.tick(0.0)
    assert len(lines) == kept
    text.tick(1.0)
    said = f"({(200 - kept) * 1000} bytes of output were left out: it printed too much)"
    assert lines[kept:] == [said]
    text.feed(b"again\n", 1.0)
    text.tick(9.0)
    assert lines[-1] == "again"


def test_what_is_no_text_is_shown_all_the_same() -> None:
    lines: list[str] = []
    text = Text(lines.append)
    text.feed(b"\xff\xfe\r\n", 0.0)
    assert lines == ["\ufffd\ufffd"]
