"""The query language: `parse(text)` gives a `Query`, or says where the text is wrong.

    Location/Building = "Soda" and (Type in ("temp", "co2") or not has Owner) and payload.c > 30

`docs/queries.md` describes it. The text is bounded before it is parsed, and nesting while its words
are counted, so that no text, however made, costs more than some milliseconds or overflows a stack.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, NoReturn

import msgspec
from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedToken

from skerry.errors import BadQuery
from skerry.model.feeds import PAYLOAD, Scalar
from skerry.query import patterns
from skerry.query.normal import (
    Negation,
    about_feeds,
    about_payload,
    like,
    normal,
    one_of,
    order,
    subject_of,
    terms_of,
)
from skerry.query.terms import And, Has, Node, Or, Subject

MAX_TEXT = 65_536
"""Characters of a query, as written and in its canonical text."""

MAX_DEPTH = 64
"""Parentheses and `not` inside each other. Nobody reads more, and every walk over a query may be a
plain recursion."""

MAX_TERMS = 1000
"""Terms of a query; each value of an `in` is one, and a `!=` is two."""

_EXCERPT = 72
"""Characters of the query that an error shows."""

_VALUES = frozenset({"STRING", "NUMBER", "TRUE", "FALSE"})
_KEYWORD = re.compile("and|or|not|has|in|like|true|false", re.IGNORECASE)
_WORDS = [
    ("KEY", "a key"),
    ("NOT", "not"),
    ("HAS", "has"),
    ("_OPEN", "("),
    ("ORDER", "a comparison (=, !=, <, <=, >, >=, like, in)"),
    ("STRING", "a text in quotes"),
    ("NUMBER", "a number"),
    ("TRUE", "true"),
    ("FALSE", "false"),
    ("_COMMA", "a comma"),
    ("AND", "and"),
    ("OR", "or"),
    ("_CLOSE", ")"),
    ("$END", "the end"),
]
_CLOSERS = {'"': "a text", "'": "a text", "`": "a key"}
_FOREIGN = {">": "!=", "&&": "and", "||": "or", "!": "not", "=": "= once", "~": "like"}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPES = {"\\": "\\", '"': '"', "'": "'", "n": "\n", "r": "\r", "t": "\t"}
_STEP = re.compile(r"`(?:[^`]|``)+`|[\w\-/]+")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_SHOWN = re.compile(r"[\w\-./]+|\S")


class Query(msgspec.Struct, frozen=True, eq=False):
    """A predicate over feeds, and perhaps over their events' payloads. Equal queries, whatever the
    order and repetition of their terms, have equal `text` and `key`, and are `==`."""

    text: str
    """The canonical text; `parse` reads it back to an equal query."""
    key: str
    """32 hexadecimal digits made of the text: short, and fit for subjects and file names."""
    node: Node
    feeds: Node
    """What is asked of a feed; see `matches`."""

    @property
    def needs_payload(self) -> bool:
        """Whether events must be looked into: some term is about their payload."""
        return self.feeds is not self.node

    def matches(self, metadata: Mapping[str, Any]) -> bool:
        """Whether a feed with `metadata` belongs to the result: some payload could match.

        Without terms about payloads this is the whole answer. With them it never misses a feed,
        and may take in one whose terms about payloads contradict each other.
        """
        return self.feeds.holds(metadata)

    def matches_event(self, metadata: Mapping[str, Any], payload: Any) -> bool:
        """Whether an event of a feed with `metadata` matches. `payload` is what JSON or MsgPack
        decodes to; None stands for a payload that is neither."""
        return self.node.holds_for(metadata, payload)

    def given(self, metadata: Mapping[str, Any]) -> Remainder:
        """What remains to be asked of each event of a feed with `metadata`."""
        return Remainder(about_payload(self.node, metadata))

    def keys(self) -> frozenset[str]:
        """The metadata keys that it mentions."""
        subjects = map(subject_of, terms_of(self.node))
        return frozenset(s for s in subjects if isinstance(s, str))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Query) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text


class Remainder(msgspec.Struct, frozen=True):
    """A query of which the answers about one feed's metadata are known."""

    node: Node

    @property
    def settled(self) -> bool | None:
        """The answer for every payload, or None where it depends on the payload."""
        if isinstance(self.node, And | Or) and not self.node.parts:
            return isinstance(self.node, And)
        return None

    def matches(self, payload: Any) -> bool:
        """Whether an event with `payload` matches."""
        return self.node.holds_for({}, payload)


def parse(text: str) -> Query:
    """Read a query. Raises `BadQuery`, which shows where and says what was expected."""
    if not isinstance(text, str):
        raise BadQuery(f"a query is text, not {type(text).__name__}")
    if len(text) > MAX_TEXT:
        raise BadQuery(f"the query has {len(text)} characters, {MAX_TEXT} at most are taken")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        _refuse(text, error.start, "this is half of a character, no valid text")
    try:
        tree: Any = _parser().parse(text)
    except _Fault as fault:
        _refuse(text, fault.position, fault.what, fault.advice)
    except UnexpectedToken as error:
        end = error.token.type == "$END"
        position = len(text.rstrip()) if end else error.token.start_pos or 0
        _refuse(text, position, *_unexpected(text, position, error))
    canonical, node = normal(tree)
    if len(canonical) > MAX_TEXT:
        raise BadQuery(
            f"the query, written out, has {len(canonical)} characters, {MAX_TEXT} at most are taken"
        )
    payload = any(isinstance(subject_of(term), tuple) for term in terms_of(node))
    key = hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()
    return Query(canonical, key, node, about_feeds(node) if payload else node)


class _Fault(Exception):
    """Something wrong at a place of the text."""

    def __init__(self, token: Token, what: str, advice: str = "") -> None:
        super().__init__(what)
        self.position = token.start_pos or 0
        self.what = what
        self.advice = advice


class _Bounds:
    """Counts terms and nesting between lexer and parser."""

    always_accept = ("OTHER",)

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        """The tokens, until there are too many of them."""
        levels: list[int] = []  # of each open parenthesis: itself and the `not`s before it
        depth = nots = terms = 0
        for token in stream:
            kind = token.type
            if kind == "NOT":
                nots += 1
            elif kind == "_OPEN":
                levels.append(nots + 1)
                depth += nots + 1
                nots = 0
            elif kind == "_CLOSE":
                depth -= levels.pop() if levels else 0
            elif kind in _VALUES or kind in ("HAS", "NE"):
                terms += 1
                nots = 0
            # `a != b` is written out as two terms, which may take parentheses of their own.
            if depth + nots + (kind == "NE") > MAX_DEPTH:
                raise _Fault(
                    token,
                    f"it is nested more than {MAX_DEPTH} deep here",
                    "Write it with fewer parentheses: not binds closest, then and, then or.",
                )
            if terms > MAX_TERMS:
                raise _Fault(
                    token,
                    f"it has more than {MAX_TERMS} terms",
                    "Each value of an `in` counts. Give the feeds a key that gathers them, or use "
                    "two queries.",
                )
            yield token


class _Builder(Transformer[Token, Node]):
    """Makes nodes of what the parser has read, innermost first."""

    def start(self, parts: list[Any]) -> Node:
        return parts[0]  # type: ignore[no-any-return]

    def either(self, parts: list[Any]) -> Node:
        return parts[0] if len(parts) == 1 else Or(tuple(parts[::2]))

    def both(self, parts: list[Any]) -> Node:
        return parts[0] if len(parts) == 1 else And(tuple(parts[::2]))

    def negation(self, parts: list[Any]) -> Node:
        inner = parts[1]
        return inner.node if isinstance(inner, Negation) else Negation(inner)

    def equal(self, parts: list[Token]) -> Node:
        return one_of(_subject(parts[0]), [_value(parts[1])])

    def differs(self, parts: list[Token]) -> Node:
        subject = _subject(parts[0])
        return And((Has(subject), Negation(one_of(subject, [_value(parts[2])]))))

    def order(self, parts: list[Token]) -> Node:
        value = _value(parts[2])
        if isinstance(value, bool):
            raise _Fault(parts[2], f"{parts[1]} does not compare true and false", "Use = or !=.")
        return order(_subject(parts[0]), str(parts[1]), value)

    def like(self, parts: list[Token]) -> Node:
        pattern = _text(parts[2])
        if len(pattern) > patterns.MAX_PATTERN:
            limit = patterns.MAX_PATTERN
            raise _Fault(
                parts[2], f"the pattern has {len(pattern)} characters, {limit} at most are taken"
            )
        try:
            patterns.compile(pattern)
        except patterns.BadPattern as error:
            raise _Fault(
                parts[2],
                f"this is no regular expression: {error}",
                "Patterns are those of RE2, without look-around and back-references.",
            ) from None
        return like(_subject(parts[0]), pattern)

    def one_of(self, parts: list[Token]) -> Node:
        return one_of(_subject(parts[0]), map(_value, parts[2:]))

    def has(self, parts: list[Token]) -> Node:
        return Has(_subject(parts[1]))


@functools.cache
def _parser() -> Lark:
    grammar = files("skerry.query").joinpath("grammar.lark").read_text("utf-8")
    return Lark(grammar, parser="lalr", transformer=_Builder(), postlex=_Bounds())


def _subject(token: Token) -> Subject:
    if token.type == "PAYLOAD":
        steps = _STEP.findall(token[len(PAYLOAD) :])
        return tuple(step[1:-1].replace("``", "`") if step[0] == "`" else step for step in steps)
    if token.type == "QUOTED":
        return sys.intern(token[1:-1].replace("``", "`"))
    if token.startswith(PAYLOAD + "."):
        raise _Fault(
            token,
            f"{token[:40]} is no path into a payload",
            "Steps are letters, digits, _, - and /, with one dot between two; others stand in "
            "backticks: payload.`odd step`.temp.",
        )
    return sys.intern(str(token))


def _value(token: Token) -> Scalar:
    if token.type == "STRING":
        return _text(token)
    if token.type != "NUMBER":
        return token.type == "TRUE"
    if not _WHOLE.fullmatch(token):
        number = float(token)
        if not math.isfinite(number):
            raise _Fault(token, "this number is larger than any that can be stored")
        return number
    if len(token) > 21 or not -(2**63) <= int(token) < 2**64:
        raise _Fault(
            token,
            "this whole number has more than 64 bits",
            "Write it with an exponent, such as 1e30.",
        )
    return int(token)


def _text(token: Token) -> str:
    r"""What a quoted text means. An unknown escape stays as it is, for patterns: `"\d"`."""
    if "\\" not in token:
        return str(token[1:-1])
    text = _ESCAPE.sub(_unescape, token[1:-1])
    try:  # two halves make a character
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise _Fault(token, "\\u names half of a character, no valid text") from None


def _unescape(found: re.Match[str]) -> str:
    code, char = found.groups()
    return chr(int(code, 16)) if code else _ESCAPES.get(char, "\\" + char)


def _unexpected(text: str, position: int, error: UnexpectedToken) -> tuple[str, str]:
    """What was found where something else was expected, and what to do."""
    if not text.strip():
        return "it is empty", 'Ask for something, for instance Location/Room = "410".'
    expected = error.accepts or error.expected
    quote = text[position : position + 1]
    if error.token.type == "OTHER" and quote in _CLOSERS:
        return f"{_CLOSERS[quote]} begins here and does not end", f"Add a {quote}."
    found = _shown(text, position)
    words = [word for terminal, word in _WORDS if terminal in expected]
    what = f"expected {_listed(words)}, found {found or 'the end'}"
    for foreign, ours in _FOREIGN.items():
        if text.startswith(foreign, position):
            return what, f"Write {ours}."
    if "KEY" in expected and _KEYWORD.fullmatch(found):
        return what, f"A key that is named like a keyword stands in backticks: `{found}`."
    if "STRING" in expected and found[:1].isalnum():
        return what, "Text stands in quotes."
    return what, "docs/queries.md describes the language."


def _shown(text: str, position: int) -> str:
    found = _SHOWN.match(text, position)
    word = found.group() if found else ""
    return word if len(word) <= 20 else word[:20] + "…"


def _listed(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _refuse(text: str, position: int, what: str, advice: str = "") -> NoReturn:
    """Raise `BadQuery` with the line around `position`, and a caret under it."""
    before = text[:position]
    line = before.count("\n") + 1
    start = before.rfind("\n") + 1
    column = position - start + 1
    end = text.find("\n", position)
    whole = text[start : end if end >= 0 else len(text)]
    cut = max(0, column - 1 - _EXCERPT // 2)
    excerpt = "".join(c if c.isprintable() else " " for c in whole[cut : cut + _EXCERPT])
    left, right = "…" if cut else "", "…" if len(whole) > cut + _EXCERPT else ""
    caret = " " * (len(left) + column - 1 - cut) + "^"
    where = f"line {line}, column {column}" if "\n" in text else f"column {column}"
    raise BadQuery(
        f"the query is wrong at {where}: {what}\n  {left}{excerpt}{right}\n  {caret}",
        advice,
        line,
        column,
    )
