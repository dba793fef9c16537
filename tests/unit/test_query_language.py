"""The query language: what is taken, what it means, and how mistakes are told."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest

from skerry.errors import BadQuery
from skerry.query import parse, patterns
from skerry.query.language import MAX_DEPTH, MAX_TERMS, MAX_TEXT
from tests.unit import naive_queries as naive

ROOM = {"Location/Room": "410", "n": 4, "x": 2.5, "on": True, "tags": ["a", "b", 7], "none": []}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('Location/Room = "410"', True),
        ("Location/Room = '410'", True),
        ("Location/Room = 410", False),
        ('Location/Room != "411"', True),
        ('Location/Room != "410"', False),
        ('Missing != "410"', False),
        ('not Missing = "410"', True),
        ('not Location/Room = "411"', True),
        ('`Location/Room` LIKE "^4.0$"', True),
        ('Location/Room like "1"', True),
        ('Location/Room like "^1"', False),
        ('Location/Room like "\\d+"', True),
        ('Location/Room like "\\\\d+"', True),
        ('n like "4"', False),
        ("n = 4.0", True),
        ("n = 4 and x < 3 AND x >= 2.5", True),
        ("n > 4 or n < 4", False),
        ("n >= 4", True),
        ("n <= -4e0", False),
        ("Location/Room > 4", False),
        ("not Location/Room > 4", True),
        ('Location/Room > "41"', True),
        ("on = true", True),
        ("on = TRUE", True),
        ("on = 1", False),
        ("n != true", True),
        ("on >= 1", False),
        ('n in (1, "4", 4)', True),
        ('n in (1, "4")', False),
        ("has n", True),
        ("has Missing", False),
        ("not has Missing", True),
        ('tags = "a"', True),
        ('tags != "a"', False),
        ('tags != "c"', True),
        ("tags > 6", True),
        ('tags like "^b$"', True),
        ("has none", True),
        ('none = "a"', False),
        ('none != "a"', True),
        ("n = 1 or n = 4 and x = 0", False),
        ("(n = 1 or n = 4) and not (x = 0)", True),
        ("not n = 1 and n = 4", True),
        ("not not n = 4", True),
        ("n=4and x=2.5", None),
        ("n=4 and(x=2.5)", True),
        ("\tn\n=\r\n4 ", True),
    ],
)
def test_meaning(text: str, expected: bool | None) -> None:
    if expected is None:
        with pytest.raises(BadQuery):
            parse(text)
    else:
        assert parse(text).matches(ROOM) is expected


@pytest.mark.parametrize(
    ("text", "payload", "expected"),
    [
        ("payload.temp > 30", {"temp": 31}, True),
        ("payload.temp > 30", {"temp": "31"}, False),
        ("payload.temp > 30", {}, False),
        ("payload.temp > 30", None, False),
        ("not payload.temp > 30", None, True),
        ("payload.a.b = 1", {"a": {"b": 1}}, True),
        ("payload.a.b = 1", {"a": [{"b": 0}, {"b": 1}]}, True),
        ("payload.a.b != 1", {"a": [{"b": 0}, {"b": 1}]}, False),
        ("payload.a = 1", {"a": [[2], [1]]}, True),
        ("has payload.a", {"a": None}, False),
        ("has payload.a", {"a": []}, True),
        ("payload.`a.b` = 1", {"a.b": 1}, True),
        ("payload > 5", 7, True),
        ("payload > 5", [1, 7], True),
        ("payload.a = 1", {"a": float("nan")}, False),
        ("payload.a = 1", {"a": {"b": 1}}, False),
        ("n = 4 and payload.a = 1", {"a": 1}, True),
        ("n = 5 or payload.a = 1", {"a": 2}, False),
        ("Payload.a = 1", {"a": 1}, False),
    ],
)
def test_payloads(text: str, payload: Any, expected: bool) -> None:
    query = parse(text)
    assert query.matches_event(ROOM, payload) is expected
    assert query.given(ROOM).matches(payload) is expected
    assert query.matches(ROOM) or not expected
    assert query.needs_payload is ("payload" in text)


def test_a_feed_belongs_while_some_payload_could_match() -> None:
    query = parse("n = 4 and not payload.temp > 30 or n = 5 and payload.temp > 30")
    assert query.needs_payload
    assert [query.matches({"n": n}) for n in (4, 5, 6)] == [True, True, False]
    assert query.given({"n": 6}).settled is False
    assert query.given({"n": 4}).settled is None
    assert parse("n = 4 or payload.a = 1").given({"n": 4}).settled is True
    assert not parse("n = 4").needs_payload


EQUAL = [
    ['a = 1 and b = "x"', "b='x' AND a=1.0", '(a = 1) and ((b = "x")) and a = 1'],
    ["a = 1 or b = 2 or c = 3", "c = 3 or (b = 2 or a = 1)", "(a = 1 or c = 3) or b = 2"],
    ["a = 1", "not not a = 1", "not (not (a = 1))", "a in (1)", "a in (1, 1.0)", "`a` = +1"],
    ["not (a = 1 or b = 2)", "not a = 1 and not b = 2", "not b = 2 and not (a = 1)"],
    ["not (a = 1 and has b)", "not has b or not a = 1"],
    ["a = 1 or a = 2", "a in (2, 1)", "a = 2 or a in (1, 2)"],
    ["not a = 1 and not a = 2", "not a in (1, 2)", "not (a = 1 or a = 2)"],
    ["a != 1", "has a and not a = 1", "not (not has a or a = 1)"],
    ['a = "é\\n"', "a = 'é\n'", 'a = "\\u00e9\\u000A"'],
    ["payload.a.b > 1", "payload.`a`.`b` > 1"],
    ["a = -0.0", "a = 0"],
    ["a = 1e3", "a = 1000"],
]


@pytest.mark.parametrize("group", EQUAL)
def test_equal_queries_have_one_text_and_key(group: list[str]) -> None:
    queries = [parse(text) for text in group]
    assert len({query.text for query in queries}) == 1, [query.text for query in queries]
    assert len({query.key for query in queries}) == len(set(queries)) == 1
    assert parse(queries[0].text) == queries[0]


def test_different_queries_have_different_keys() -> None:
    texts = [group[0] for group in EQUAL]
    texts += ["a = true", 'a = "1"', 'a = "true"', "a > 1", "a >= 1", "not a = 1", "has a"]
    texts += ["`payload` = 1", "payload = 1", "payload.a = 1", "`payload.a` = 1", "A = 1"]
    texts += ["`and` = 1", "`a b` = 1", "`a``b` = 1", 'a like "1"', "a = 1 and b = 2 or c = 3"]
    texts += ["a = 1 and (b = 2 or c = 3)", 'a = "\\\\"', 'a = "\\""', "payload.`a.b.c` = 1"]
    queries = [parse(text) for text in texts]
    assert len({query.key for query in queries}) == len(texts)
    assert all(parse(query.text) == query for query in queries)


@pytest.mark.parametrize(
    ("text", "column", "what", "advice"),
    [
        ("", 1, "empty", "Ask for"),
        (" \n ", 1, "empty", "Ask for"),
        ("a", 2, "expected a comparison", ""),
        ("a =", 4, "expected a text in quotes, a number, true or false, found the end", ""),
        ("a = b", 5, "found b", "quotes"),
        ("a == 1", 4, "found =", "Write = once"),
        ("a <> 1", 4, "found >", "Write !="),
        ("a = 1 && b = 2", 7, "expected and, or or the end, found &", "Write and"),
        ("a = 1 || b = 2", 7, "found |", "Write or"),
        ("!a = 1", 1, "expected a key, not, has or (", "Write not"),
        ("a ~ 1", 3, "expected a comparison", "Write like"),
        ("a = 1 and", 10, "expected a key", ""),
        ("and a = 1", 1, "found and", "backticks"),
        ("has in", 5, "expected a key, found in", "`in`"),
        ("a = 1 b = 2", 7, "expected and, or or the end, found b", ""),
        ("(a = 1", 7, "expected )", ""),
        ("(a = 1 or b = 2", 16, ")", ""),
        ("a = 1)", 6, "found )", ""),
        ("()", 2, "expected a key", ""),
        ('a = "x', 5, "a text begins here and does not end", 'Add a "'),
        ("a = 'x\"", 5, "a text begins here and does not end", "Add a '"),
        ("`a = 1", 1, "a key begins here and does not end", "Add a `"),
        ("`` = 1", 1, "a key begins here", ""),
        ("a in ()", 7, "expected a text in quotes", ""),
        ("a in (1,)", 9, "expected a text in quotes", ""),
        ("a in (1 2)", 9, "expected a comma or )", ""),
        ("a in 1", 6, "expected (", ""),
        ("a like 5", 8, "expected a text in quotes", ""),
        ('a like "("', 8, "no regular expression: missing )", "RE2"),
        ('a like "(?=x)"', 8, "no regular expression", "RE2"),
        ('a like "(a)\\\\1"', 8, "no regular expression", "RE2"),
        (f'a like "{"x" * 1025}"', 8, "1025 characters", ""),
        ('a like "((a{100}){100}){100}"', 8, "no regular expression", ""),
        ("a < true", 5, "does not compare", "="),
        ("a = 1e999", 5, "larger than any", ""),
        ("a = 18446744073709551616", 5, "64 bits", "exponent"),
        ("a = " + "9" * 5000, 5, "64 bits", "exponent"),
        ('a = "\\ud800"', 5, "half of a character", ""),
        ("a\ud800 = 1", 2, "half of a character", ""),
        ("payload..x = 1", 1, "no path", "backticks"),
        ("payload. = 1", 1, "no path", "backticks"),
        ("a = 1x", 5, "found 1x", ""),
        ("a = \x00", 5, "found", ""),
    ],
)
def test_mistakes_point_at_their_column(text: str, column: int, what: str, advice: str) -> None:
    with pytest.raises(BadQuery) as caught:
        parse(text)
    error = caught.value
    assert error.column == column
    assert what in error.what
    assert advice in error.advice
    if "wrong at" in error.what:
        first, excerpt, caret = error.what.split("\n")
        assert f"column {column}:" in first
        assert caret.strip() == "^"
        assert caret.index("^") <= len(excerpt)


def test_a_mistake_in_a_long_text_shows_its_surroundings() -> None:
    with pytest.raises(BadQuery) as caught:
        parse("a = 1 and\n" + "b = 2 and " * 50 + "c = ? and " + "b = 2 and " * 50 + "\n  d = 1")
    _, excerpt, caret = caught.value.what.split("\n")
    assert (caught.value.line, caught.value.column) == (2, 505)
    assert excerpt[caret.index("^")] == "?"
    assert len(excerpt) < 80


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a = 1 " * 200_000, "characters"),
        ("(" * 10_000 + "a = 1" + ")" * 10_000, "nested"),
        ("(" * 10_000, "nested"),
        ("not " * 10_000 + "a = 1", "nested"),
        ("not (" * 1000 + "a = 1" + ")" * 1000, "nested"),
        (" or ".join(["a = 1"] * 5000), "terms"),
        (f"a in ({', '.join(map(str, range(5000)))})", "terms"),
        (" and ".join(f"a{n} != 1" for n in range(501)), "terms"),
        ("a = " + '"' + "x" * 70_000, "characters"),
        ('a = "' + "\x01" * 60_000 + '"', "written out"),
        (")" * 60_000, r"found \)"),
        ("`" * 60_001, "does not end"),
        ("a" * 60_000, "comparison"),
        ("a in (" * 10_000, "expected a text"),
    ],
)
def test_hostile_texts_are_refused_at_once(text: str, what: str) -> None:
    with pytest.raises(BadQuery, match=what):
        parse(text)


@pytest.mark.parametrize("bad", [None, b"a = 1", 5, ["a = 1"]])
def test_a_query_is_text(bad: Any) -> None:
    with pytest.raises(BadQuery, match="a query is text"):
        parse(bad)


def test_the_largest_queries_work_and_read_back() -> None:
    deepest = "a = 1"
    for number in range(MAX_DEPTH // 2 - 1):
        word = ("and", "or")[number % 2]
        deepest = f"b{number} > 1 {word} not (c{number} != 2 or {deepest})"
    widest = " or ".join(f"k{n} = {n}" for n in range(MAX_TERMS))
    longest = f'a = "{"x" * (MAX_TEXT - 6)}"'
    unequal = " and ".join(f"k{n} != {n}" for n in range(MAX_TERMS // 2))
    parentheses = "(" * MAX_DEPTH + "a = 1" + ")" * MAX_DEPTH
    for text in (deepest, widest, longest, unequal, parentheses):
        query = parse(text)
        assert parse(query.text) == query
        query.matches({"a": 1})
        query.given({"a": 1})


def test_what_is_read_reads_back_at_every_depth() -> None:
    rng = random.Random(5)
    shapes = ["{} and a > 1", "b > 1 or {}", "not {}", "b > 1 or c = 1 and {}", "{}", "not not {}"]
    shapes += ["{} and not a != 1", "a != 1 or {}"]
    read = 0
    for _ in range(600):
        chosen = rng.sample(shapes, rng.randrange(1, 4))
        text = rng.choice(["x = 1", "x != 1", "not x != 1", "not x = 1", "x = 1 or not y = 1"])
        for _ in range(rng.randrange(MAX_DEPTH - 24, MAX_DEPTH + 1)):
            text = rng.choice(chosen).format(f"({text})")
        try:
            query = parse(text)
        except BadQuery:
            continue
        read += 1
        assert parse(query.text) == query
    assert read > 100


def test_deep_queries_need_little_stack() -> None:
    deepest = "a = 1"
    for _ in range(MAX_DEPTH // 2):
        deepest = f"b = 1 and (c = 1 or ({deepest}))"
    limit = sys.getrecursionlimit()
    frames, frame = 0, sys._getframe()
    while frame.f_back:
        frames, frame = frames + 1, frame.f_back
    try:
        sys.setrecursionlimit(frames + 400)
        query = parse(deepest)
        assert not query.matches({"b": 1})
        assert query.given({"b": 1}).settled is False
    finally:
        sys.setrecursionlimit(limit)


def test_patterns_do_not_run_away() -> None:
    text = "a" * 4000 + "b"
    for pattern in ("(a+)+$", "(a|aa)+$", "(.*)*x", "^(a?){200}a{200}$"):
        parse(f'k like "{pattern}"').matches({"k": text})


@pytest.mark.parametrize("text", ["", "a.b", "^x", "xy", "axb", "é", "a\nb", "a-b/c", "b$"])
def test_plain_patterns_match_as_re2_does(text: str) -> None:
    """Plain patterns are compared as text: RE2 must agree."""
    tries = ["", "^", "$", "^$", "a", "^a", "b$", "^a\\.b$", "\\^x", "x.", "a\\-b\\/c", "\\$$", "é"]
    for pattern in tries:
        plain, compiled = patterns.plain(pattern), patterns.compile(pattern)
        if plain:
            assert plain.test(text) is compiled(text), (pattern, text)
        prefix = patterns.prefix(pattern)
        assert not prefix or not compiled(text) or text.startswith(prefix)


@pytest.mark.parametrize("seed", range(4))
def test_random_queries_mean_what_the_dumb_evaluator_says(seed: int) -> None:
    """Texts in many spellings, against a walk over what they were made from."""
    rng = random.Random(seed)
    for number in range(1500):
        asked = naive.query(rng)
        text = naive.written(rng, asked)
        query = parse(text)
        again = parse(query.text)
        assert again == query
        assert again.text == query.text
        for _ in range(5):
            about, event = naive.metadata(rng), naive.payload(rng)
            where = f"seed {seed}, query {number}: {text} on {about} and {event}"
            assert query.matches(about) is (naive.answer(asked, about) is not False), where
            expected = naive.answer(asked, about, event)
            assert query.matches_event(about, event) is expected, where
            assert query.given(about).matches(event) is expected, where
            settled = query.given(about).settled
            assert settled is None or settled is expected, where


def test_shuffled_queries_keep_their_key() -> None:
    rng = random.Random(11)

    def shuffled(asked: naive.Asked) -> naive.Asked:
        if asked[0] in ("and", "or"):
            parts = [shuffled(part) for part in asked[1:]]
            rng.shuffle(parts)
            return (asked[0], *parts, *rng.choices(parts, k=rng.randrange(2)))
        if asked[0] == "not":
            return ("not", shuffled(asked[1]))
        return ("not", ("not", asked)) if rng.random() < 0.2 else asked

    for _ in range(1500):
        asked = naive.query(rng)
        key = parse(naive.written(rng, asked)).key
        assert parse(naive.written(rng, shuffled(asked))).key == key
