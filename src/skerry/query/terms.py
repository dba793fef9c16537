"""What a query is made of, and when each part holds.

A term asks one thing of one subject. The subject is a metadata key (text) or a path into an event's
payload (a tuple of steps). Every term is either true or false of a feed:

- a term about a missing key is false;
- a term about a value of another kind is false (`Room > 4` where Room is text; true and false are
  no numbers);
- a term about a list is true if it is true of some element, and `has` also if there is none.

Whole and other numbers compare by their value. Texts are ordered by code point.

`holds` answers over metadata alone, and takes each term about a payload as it needs to be: the
answer is whether *some* payload could make the query true. Queries are kept with `not` at their
terms only, so taking a payload's term for true, negated or not, never misses a feed.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from skerry.model.feeds import Scalar
from skerry.query import patterns

Subject: TypeAlias = str | tuple[str, ...]
_NUMBERS = (int, float)


def identity(value: Scalar) -> Any:
    """What equal values share, and different ones do not: Python takes True for 1."""
    return (value,) if value is True or value is False else value


class Node(msgspec.Struct, frozen=True, gc=False):
    """A part of a query."""

    def holds(self, metadata: Mapping[str, Any]) -> bool:
        """Whether a feed with `metadata` can match, for some payload."""
        raise NotImplementedError

    def holds_for(self, metadata: Mapping[str, Any], payload: Any) -> bool:
        """Whether an event with `payload` of a feed with `metadata` matches."""
        raise NotImplementedError


class Term(Node, frozen=True, gc=False):
    """One question about one subject."""

    subject: Subject

    def test(self, value: Any) -> bool:
        """Whether it is true of one value that is no list."""
        raise NotImplementedError

    def holds(self, metadata: Mapping[str, Any]) -> bool:
        subject = self.subject
        if type(subject) is tuple:
            return True
        value = metadata.get(subject)  # type: ignore[arg-type]
        if value is None:
            return False
        if type(value) is list:
            return any(map(self.test, value))
        return self.test(value)

    def holds_for(self, metadata: Mapping[str, Any], payload: Any) -> bool:
        if isinstance(self.subject, str):
            return self.holds(metadata)
        return any(map(self.test, _reached(payload, self.subject)))


class OneOf(Term, frozen=True, gc=False):
    """`=` and `in`: the value is one of these."""

    values: tuple[Scalar, ...]
    """Sorted, each once."""
    members: Container[Any]
    """Their identities: a tuple of few, which is small, or a set."""

    def test(self, value: Any) -> bool:
        kind = type(value)
        if kind is str or kind is int or kind is float:
            return value in self.members
        return kind is bool and (value,) in self.members


class Order(Term, frozen=True, gc=False):
    """`<`, `<=`, `>`, `>=`."""

    operator: str
    value: str | int | float

    def test(self, value: Any) -> bool:
        limit = self.value
        kind = type(value)
        if type(limit) is str:
            if kind is not str:
                return False
        elif kind is not int and kind is not float:
            return False
        operator = self.operator
        if operator == "<":
            return bool(value < limit)
        if operator == ">":
            return bool(value > limit)
        if operator == "<=":
            return bool(value <= limit)
        return bool(value >= limit)


class Like(Term, frozen=True, gc=False):
    """`like`: a text that holds the pattern."""

    pattern: str
    plain: patterns.Plain | None

    def test(self, value: Any) -> bool:
        if type(value) is not str:
            return False
        if self.plain is not None:
            return self.plain.test(value)
        return patterns.compile(self.pattern)(value)


class Has(Term, frozen=True, gc=False):
    """`has`: the key is there."""

    def test(self, value: Any) -> bool:
        return value is not None

    def holds(self, metadata: Mapping[str, Any]) -> bool:
        return type(self.subject) is tuple or metadata.get(self.subject) is not None  # type: ignore[arg-type]

    def holds_for(self, metadata: Mapping[str, Any], payload: Any) -> bool:
        if isinstance(self.subject, str):
            return self.holds(metadata)
        return any(True for _ in _reached(payload, self.subject, whole=True))


class Not(Node, frozen=True, gc=False):
    """The opposite of a term."""

    term: Term

    def holds(self, metadata: Mapping[str, Any]) -> bool:
        term = self.term
        return type(term.subject) is tuple or not term.holds(metadata)

    def holds_for(self, metadata: Mapping[str, Any], payload: Any) -> bool:
        return not self.term.holds_for(metadata, payload)


class And(Node, frozen=True, gc=False):
    """All of two or more parts; of none, in `ALWAYS`."""

    parts: tuple[Node, ...]

    def holds(self, metadata: Mapping[str, Any]) -> bool:
        # A loop is a frame less for each level than `all`, and twice as fast.
        for part in self.parts:  # noqa: SIM110
            if not part.holds(metadata):
                return False
        return True

    def holds_for(self, metadata: Mapping[str, Any], payload: Any) -> bool:
        for part in self.parts:  # noqa: SIM110
            if not part.holds_for(metadata, payload):
                return False
        return True


class Or(Node, frozen=True, gc=False):
    """One at least of two or more parts; of none, in `NEVER`."""

    parts: tuple[Node, ...]

    def holds(self, metadata: Mapping[str, Any]) -> bool:
        for part in self.parts:  # noqa: SIM110
            if part.holds(metadata):
                return True
        return False

    def holds_for(self, metadata: Mapping[str, Any], payload: Any) -> bool:
        for part in self.parts:  # noqa: SIM110
            if part.holds_for(metadata, payload):
                return True
        return False


ALWAYS = And(())
NEVER = Or(())


def _reached(payload: Any, path: tuple[str, ...], whole: bool = False) -> Iterator[Any]:
    """What `path` leads to. A list on the way, and at its end, stands for its elements; with
    `whole` the end's list for itself."""
    stack = [(payload, 0)]
    while stack:
        value, depth = stack.pop()
        if value is None:
            continue
        if depth == len(path) and (whole or not isinstance(value, list)):
            yield value
        elif isinstance(value, list):
            stack += [(element, depth) for element in reversed(value)]
        elif isinstance(value, dict) and depth < len(path):
            stack.append((value.get(path[depth]), depth + 1))
