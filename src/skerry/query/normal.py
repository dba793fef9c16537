"""One form for queries that are equal: `not` at terms only, flat, without repeats, sorted.

What counts as equal is the shape: order, repeats, double negation, De Morgan's laws, nested `and`
in `and`, `a = 1 or a = 2` for `a in (1, 2)`, 1 for 1.0. Whether two different shapes always agree
is not looked into.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

from skerry.model.feeds import PAYLOAD, Scalar
from skerry.query import patterns
from skerry.query.terms import (
    ALWAYS,
    NEVER,
    And,
    Has,
    Like,
    Node,
    Not,
    OneOf,
    Or,
    Order,
    Subject,
    Term,
    identity,
)

_FEW = 8
"""Values that are compared one by one rather than looked up."""

_BARE = re.compile(r"[\w/][\w\-./]*")
_STEP = re.compile(r"[\w\-/]+")
_ESCAPED = re.compile(r'["\\\x00-\x1f\x7f-\x9f]')
_WORD = re.compile(r"and|or|not|has|in|like|true|false", re.IGNORECASE)


def one_of(subject: Subject, values: Iterable[Scalar]) -> OneOf:
    """`subject in (values)`, each once and in order."""
    each = {identity(value): value for value in values}
    ordered = tuple(sorted(map(_tidy, each.values()), key=_rank))
    members: Container[Any] = tuple(map(identity, ordered))
    if members == ordered:
        members = ordered
    if len(ordered) > _FEW:
        members = frozenset(map(identity, ordered))
    return OneOf(subject, ordered, members)


def like(subject: Subject, pattern: str) -> Like:
    """`subject like pattern`."""
    return Like(subject, pattern, patterns.plain(pattern))


def order(subject: Subject, operator: str, value: str | int | float) -> Order:
    """`subject operator value`."""
    return Order(subject, operator, _tidy(value))


class Negation(Node, frozen=True, gc=False):
    """`not` of anything, as somebody wrote it."""

    node: Node


def normal(node: Node, positive: bool = True) -> tuple[str, Node]:
    """The one form of `node`, or of its opposite, with its text."""
    if isinstance(node, Negation):
        return normal(node.node, not positive)
    if isinstance(node, Not):
        return normal(node.term, not positive)
    if isinstance(node, And | Or):
        parts = []
        for part in node.parts:  # a comprehension would be a frame more for each level
            parts.append(normal(part, positive))  # noqa: PERF401
        return _gathered(And if isinstance(node, And) is positive else Or, parts)
    assert isinstance(node, Term)
    form = node if positive else Not(node)
    return written(form), form


def _gathered(kind: type[And] | type[Or], parts: list[tuple[str, Node]]) -> tuple[str, Node]:
    """The parts under one `and` or `or`: flat, each once, sorted by their texts; what is asked
    of equality with one subject in one term."""
    end, nothing = (NEVER, ALWAYS) if kind is And else (ALWAYS, NEVER)
    texts: dict[str, Node] = {}
    equals: dict[Subject, list[Scalar]] = {}
    for text, part in parts:
        if part == end:
            return "", end
        if part == nothing:
            continue
        inner = part.parts if isinstance(part, kind) else None
        for node in (part,) if inner is None else inner:
            term = node.term if kind is And and isinstance(node, Not) else node
            if isinstance(term, OneOf) and (kind is Or or term is not node):
                equals.setdefault(term.subject, []).extend(term.values)
            else:
                texts[text if inner is None else written(node)] = node
    for subject, values in equals.items():
        term = one_of(subject, values)
        form: Node = Not(term) if kind is And else term
        texts[written(form)] = form
    if not texts:
        return "", nothing
    ordered = sorted(texts)
    if len(ordered) == 1:
        return ordered[0], texts[ordered[0]]
    made = kind(tuple(map(texts.__getitem__, ordered)))
    if kind is Or:
        return " or ".join(ordered), made
    return " and ".join(f"({t})" if isinstance(texts[t], Or) else t for t in ordered), made


def about_feeds(node: Node) -> Node:
    """What `node` asks of a feed, for some payload: terms about payloads are taken for true."""
    return _replaced(node, lambda term: ALWAYS if isinstance(subject_of(term), tuple) else term)


def about_payload(node: Node, metadata: Mapping[str, Any]) -> Node:
    """What is left of `node` to ask of each payload of a feed with `metadata`: perhaps `ALWAYS`,
    perhaps `NEVER`."""

    def known(term: Node) -> Node:
        if isinstance(subject_of(term), tuple):
            return term
        return ALWAYS if term.holds(metadata) else NEVER

    return _replaced(node, known)


def _replaced(node: Node, replace: Callable[[Node], Node]) -> Node:
    if not isinstance(node, And | Or):
        return replace(node)
    parts = []
    for part in node.parts:
        new = _replaced(part, replace)
        parts.append((written(new), new))
    return _gathered(type(node), parts)[1]


def subject_of(term: Node) -> Subject:
    """What a term, negated or not, is about."""
    return term.term.subject if isinstance(term, Not) else term.subject  # type: ignore[attr-defined]


def terms_of(node: Node) -> Iterator[Node]:
    """The terms of a query, each with its `not` if it has one."""
    stack = [node]
    while stack:
        node = stack.pop()
        if isinstance(node, And | Or):
            stack.extend(reversed(node.parts))
        else:
            yield node


def written(node: Node) -> str:
    """The text of a node. Equal nodes have equal texts, and `parse` reads them back."""
    if isinstance(node, Not):
        return f"not {written(node.term)}"
    if isinstance(node, Or):
        return " or ".join(map(written, node.parts))
    if isinstance(node, And):
        return " and ".join(
            f"({written(part)})" if isinstance(part, Or) else written(part) for part in node.parts
        )
    assert isinstance(node, Term)
    name = _name(node.subject)
    if isinstance(node, OneOf):
        if len(node.values) == 1:
            return f"{name} = {_literal(node.values[0])}"
        return f"{name} in ({', '.join(map(_literal, node.values))})"
    if isinstance(node, Order):
        return f"{name} {node.operator} {_literal(node.value)}"
    if isinstance(node, Like):
        return f"{name} like {_literal(node.pattern)}"
    assert isinstance(node, Has)
    return f"has {name}"


def _name(subject: Subject) -> str:
    if isinstance(subject, tuple):
        return ".".join([PAYLOAD, *(s if _STEP.fullmatch(s) else _quoted(s) for s in subject)])
    reserved = subject == PAYLOAD or subject.startswith(PAYLOAD + ".")
    if _BARE.fullmatch(subject) and not _WORD.fullmatch(subject) and not reserved:
        return subject
    return _quoted(subject)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(value: Scalar) -> str:
    if isinstance(value, str):
        return '"' + _ESCAPED.sub(_escape, value) + '"'
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _escape(found: re.Match[str]) -> str:
    char = found.group()
    return "\\" + char if char in '"\\' else f"\\u{ord(char):04x}"


def _tidy(value: Any) -> Any:
    """Equal numbers as one."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    return value


def _rank(value: Scalar) -> tuple[int, Any]:
    return (2 if isinstance(value, str) else 0 if isinstance(value, bool) else 1), value
