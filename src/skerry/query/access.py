"""Where a query is kept, so that a feed's change meets few queries that it cannot affect.

Three observations, each sharper than "look at the queries that mention the changed key":

1. A query's answer for a feed can differ only if one of its *terms* does. `Room = "410"` does not
   care for a change from 411 to 412. So a query is kept under its **triggers**: the value that a
   `=` asks for, a key's presence for `has`, the threshold of an order, the text that the pattern of
   a `like` begins with.
2. The answer can differ only if it is yes before or after. If the query says `… and Type = "temp"`,
   a feed that is no thermometer before nor after is out of it. So beneath each trigger it is kept
   under a **cover**: atoms of which every matching feed has one. Of the parts of an `and` the
   cheapest will do; an `or` needs those of all its parts; a `not` has none, and its cover is the
   atom that all feeds have.
3. The parts of an `or` at the top are independent of each other: each is kept for itself.

This is the *access predicate* of content-based matching (Fabret et al., SIGMOD 2001), chosen for
each changed key on its own, over a key that is not the changed one.

A feed that comes or goes changes no term; its queries are found by two covers at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from skerry.query import patterns
from skerry.query.catalogue import ALWAYS_ATOM, Catalogue
from skerry.query.normal import subject_of, terms_of
from skerry.query.terms import And, Has, Like, Node, Not, OneOf, Or, Order, Term

_MAX_ENTRIES = 1024
"""Places that one query is kept at for its terms and covers together; a query with more gives up
its covers."""

_MAX_KEYS = 32
"""Keys for each of which a cover is looked for."""

_UNCOVERED = (ALWAYS_ATOM,)


class Trigger(NamedTuple):
    """A term that may change its answer, as an atom; for an order with its threshold."""

    atom: int
    threshold: str | int | float | None = None


Place = tuple[Trigger, int]
"""Where a query is kept for changes: trigger, cover."""

Pair = tuple[int, int]
"""Where a query is kept for feeds that come and go: two atoms that a matching feed has."""


def places(catalogue: Catalogue, node: Node) -> set[Place]:
    """Where to keep the query for changes."""
    found: set[Place] = set()
    for part in node.parts if isinstance(node, Or) else (node,):
        terms: dict[str, set[Trigger]] = {}
        for term in terms_of(part):
            key = subject_of(term)
            assert isinstance(key, str)
            terms.setdefault(key, set()).update(_triggers(catalogue, term))
        for key, triggers in terms.items():
            cover = _cover(catalogue, part, key) if len(terms) <= _MAX_KEYS else None
            atoms = cover[1] if cover and len(cover[1]) * len(triggers) <= _MAX_ENTRIES else None
            found.update((trigger, atom) for trigger in triggers for atom in atoms or _UNCOVERED)
    if len(found) > 2 * _MAX_ENTRIES:
        return {(trigger, ALWAYS_ATOM) for trigger, _ in found}
    return found


def pairs(catalogue: Catalogue, node: Node) -> set[Pair]:
    """Where to keep the query for feeds that come and go."""
    found: set[Pair] = set()
    for part in node.parts if isinstance(node, Or) else (node,):
        choices = [_cover(catalogue, p) for p in (part.parts if isinstance(part, And) else (part,))]
        best = sorted(cover for cover in choices if cover is not None)[:2]
        first = best[0][1] if best else _UNCOVERED
        second = best[1][1] if len(best) > 1 else _UNCOVERED
        if len(first) * len(second) > _MAX_ENTRIES:
            second = _UNCOVERED
        found.update((one, other) for one in first for other in second)
    if len(found) > 2 * _MAX_ENTRIES:
        return {(one, ALWAYS_ATOM) for one, _ in found}
    return found


def _triggers(catalogue: Catalogue, term: Node) -> Iterator[Trigger]:
    if isinstance(term, Not):
        term = term.term
    assert isinstance(term, Term)
    name = str(term.subject)
    if isinstance(term, OneOf):
        for value in term.values:
            yield Trigger(catalogue.intern(name, value))
        return
    present = catalogue.presence(name)
    key = catalogue.key(present)
    if isinstance(term, Has):
        yield Trigger(present)
    elif isinstance(term, Like):
        yield Trigger(_like_atom(catalogue, name, term) or key.text)
    else:
        assert isinstance(term, Order)
        yield Trigger(key.order, term.value)


def _cover(
    catalogue: Catalogue, node: Node, avoid: str | None = None
) -> tuple[int, tuple[int, ...]] | None:
    """(cost, atoms) such that every feed that matches has one of the atoms; None where there are no
    such atoms, leaving `avoid`'s aside. The cost is how many feeds have them, and, for when queries
    come before feeds, how many queries ask for them."""
    if isinstance(node, And):
        covers = [_cover(catalogue, part, avoid) for part in node.parts]
        return min((cover for cover in covers if cover is not None), default=None)
    if isinstance(node, Or):
        total = 0
        atoms: list[int] = []
        for part in node.parts:
            cover = _cover(catalogue, part, avoid)
            if cover is None:
                return None
            total += cover[0]
            atoms += cover[1]
        return total, tuple(sorted(set(atoms)))
    if isinstance(node, Not) or subject_of(node) == avoid:
        return None
    name = str(subject_of(node))
    if isinstance(node, OneOf):
        found = tuple(sorted(catalogue.intern(name, value) for value in node.values))
    else:
        atom = _like_atom(catalogue, name, node) if isinstance(node, Like) else None
        found = (atom or catalogue.presence(name),)
    return sum(catalogue.count(atom) + catalogue.uses(atom) for atom in found), found


def _like_atom(catalogue: Catalogue, name: str, term: Like) -> int | None:
    """The atom of a pattern that stands for one text, or that begins with some."""
    if exact := patterns.exact(term.pattern):
        return catalogue.intern(name, exact)
    if prefix := patterns.prefix(term.pattern):
        return catalogue.prefix(name, prefix)
    return None
