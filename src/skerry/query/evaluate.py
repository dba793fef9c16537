"""The first evaluation of a query: postings joined, and few feeds looked at one by one.

The parts of an `and` are taken from the one that leaves the fewest feeds to the costliest. As soon
as so few are left that looking at each is cheaper than the next part's postings, that is done. A
range is taken from the values in order, `like` from the distinct values (from those in order where
the pattern begins with a text), `not` from the complement.
"""

from __future__ import annotations

from pyroaring import BitMap

from skerry.query.catalogue import Catalogue
from skerry.query.ordered import union
from skerry.query.terms import And, Has, Like, Node, Not, OneOf, Or, Order

_LOOK = 512
"""Feeds that are looked at one by one, 3 µs each, rather than joined with the postings of a part
that is not at hand."""


def evaluate(catalogue: Catalogue, node: Node) -> BitMap:
    """The numbers of the feeds that match. The set is the caller's own."""
    if isinstance(node, And):
        return _all_of(catalogue, node)
    if isinstance(node, Or):
        parts = [evaluate(catalogue, part) for part in node.parts]
        return BitMap.union(*parts) if parts else BitMap()
    if isinstance(node, Not):
        return catalogue.all - evaluate(catalogue, node.term)
    if isinstance(node, Has):
        key = catalogue.keys.get(_key(node))
        return union([key.present] if key else [], catalogue.postings)
    if isinstance(node, OneOf):
        atoms = [catalogue.find(_key(node), value) for value in node.values]
        return union([atom for atom in atoms if atom is not None], catalogue.postings)
    if isinstance(node, Order):
        return _ordered(catalogue, node)
    assert isinstance(node, Like)
    return _like(catalogue, node)


def estimate(catalogue: Catalogue, node: Node) -> int:
    """At most how many feeds match."""
    if isinstance(node, And):
        return min((estimate(catalogue, part) for part in node.parts), default=len(catalogue.all))
    if isinstance(node, Or):
        return sum(estimate(catalogue, part) for part in node.parts)
    if isinstance(node, Not):
        return len(catalogue.all)
    if isinstance(node, OneOf):
        atoms = [catalogue.find(_key(node), value) for value in node.values]
        return sum(catalogue.count(atom) for atom in atoms if atom is not None)
    key = catalogue.keys.get(_key(node))
    return catalogue.count(key.present) if key else 0


def _all_of(catalogue: Catalogue, node: And) -> BitMap:
    if not node.parts:
        return BitMap(catalogue.all)
    parts = sorted(node.parts, key=lambda part: (_cost(part), estimate(catalogue, part)))
    found: BitMap | None = None
    for place, part in enumerate(parts):
        if found is not None and len(found) <= _LOOK and (_cost(part) or len(parts) - place > 1):
            rest = And(tuple(parts[place:]))
            return BitMap(
                number for number in found if rest.holds(catalogue.metadata(catalogue.row(number)))
            )
        if found is None:
            found = evaluate(catalogue, part)
        elif isinstance(part, Not):
            found -= evaluate(catalogue, part.term)
        else:
            found &= evaluate(catalogue, part)
        if not found:
            break
    assert found is not None
    return found


def _cost(node: Node) -> int:
    """0: its postings are at hand; more: they are made from many values'."""
    if isinstance(node, OneOf | Has):
        return 0
    if isinstance(node, Not):
        return max(1, _cost(node.term))
    if isinstance(node, And | Or):
        return max(map(_cost, node.parts), default=0)
    return 2 if isinstance(node, Order) else 3


def _ordered(catalogue: Catalogue, node: Order) -> BitMap:
    key = catalogue.keys.get(_key(node))
    if key is None:
        return BitMap()
    values = catalogue.texts(key) if isinstance(node.value, str) else catalogue.numbers(key)
    return values.feeds(node.operator, node.value, catalogue.postings)


def _like(catalogue: Catalogue, node: Like) -> BitMap:
    key = catalogue.keys.get(_key(node))
    if key is None:
        return BitMap()
    plain = node.plain
    if plain and plain.start and plain.end:
        atom = key.values.get(plain.text)
        return union([] if atom is None else [atom], catalogue.postings)
    if plain and plain.start and plain.text:
        texts, until = catalogue.texts(key), _after(plain.text)
        return texts.feeds(">=", plain.text, catalogue.postings, until)
    test = node.test
    found = [atom for value, atom in key.values.items() if type(value) is str and test(value)]
    return union(found, catalogue.postings)


def _after(prefix: str) -> str | None:
    """The first text that is above all that begin with `prefix`, or None where there is none."""
    stripped = prefix.rstrip(chr(0x10FFFF))
    if not stripped:
        return None
    following = ord(stripped[-1]) + 1
    return stripped[:-1] + chr(0xE000 if 0xD800 <= following <= 0xDFFF else following)


def _key(node: Node) -> str:
    subject = node.subject  # type: ignore[attr-defined]
    assert isinstance(subject, str)
    return subject
