"""Metadata as it is written on a command line, and as it is printed."""

from __future__ import annotations

import pytest

from skerry.cli.metadata import parse_pairs, parse_value, show_metadata
from skerry.errors import BadSetting
from skerry.model.feeds import Value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("410", 410),
        ("-2.5", -2.5),
        ("1e3", 1000.0),
        ("true", True),
        ("false", False),
        ('["a", 1]', ["a", 1]),
        ("[]", []),
        ('"410"', "410"),
        ('"true"', "true"),
        (r'"a\nb"', "a\nb"),
        ("Soda", "Soda"),
        ("", ""),
        ("room 410", "room 410"),
        ("007", "007"),
        ("NaN", "NaN"),
        ("Infinity", "Infinity"),
        ("True", "True"),
        ("null", "null"),
        ('{"a": 1}', '{"a": 1}'),
        ("[1, 2", "[1, 2"),
        ('"open', '"open'),
        ("\udcff", "\udcff"),
    ],
)
def test_a_value_is_what_json_says_or_text(text: str, value: Value) -> None:
    found = parse_value(text)
    assert found == value
    assert type(found) is type(value)


def test_a_key_ends_at_the_first_equals_sign() -> None:
    assert parse_pairs(["a/b=1", "c=d=e"]) == {"a/b": 1, "c": "d=e"}


@pytest.mark.parametrize("pairs", [["nothing"], ["a=1", "a=2"]])
def test_what_sets_nothing_or_twice_is_refused(pairs: list[str]) -> None:
    with pytest.raises(BadSetting):
        parse_pairs(pairs)


def test_metadata_is_shown_in_order_and_cannot_harm_a_terminal() -> None:
    shown = show_metadata({"b": "\x1b[2J\x9b", "a": [1, True, "x"]})
    assert shown.startswith('a=[1,true,"x"]  b="')
    assert shown.isprintable()
