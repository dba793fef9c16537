"""The feeds, held so that a million fit: each key and each value once, each feed as numbers.

An *atom* is a number for something that a feed has or has not:

    a value atom      this key has this value; for a list there is one atom for the whole list,
                      and it has one *element* atom for each distinct value in it
    a presence atom   this key is there
    a prefix atom     this key has a text that begins so; made for queries, and without posting
    atom 0            always so

A feed is a row: the atoms of its values, one for each key, packed as four bytes each. Value and
presence atoms have a posting, the set of feeds that have them: nothing, one feed's number, or a
bitmap. Atoms live as long as a feed has them or a query asks for them; numbers are used again.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyroaring import BitMap

from skerry.model.feeds import Metadata, Value
from skerry.query.ordered import Ordered, Posting
from skerry.query.terms import identity

ALWAYS_ATOM = 0

Row = bytes


class _Prefix:
    """The value of a prefix atom."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class Key:
    """What is known of one key."""

    __slots__ = (
        "lengths", "name", "numbers", "order", "prefixes", "present", "text", "texts", "values"
    )  # fmt: skip

    def __init__(self, name: str, present: int, order: int, text: int) -> None:
        self.name = name
        self.values: dict[Any, int] = {}
        """A value's identity → its atom."""
        self.present = present
        self.order = order
        """Stands for terms that compare the key's value by order."""
        self.text = text
        """Stands for terms that look for a pattern in the key's value."""
        self.numbers: Ordered | None = None
        self.texts: Ordered | None = None
        """Made when first a range is asked for."""
        self.prefixes: dict[str, int] = {}
        """A text that queries ask a value to begin with → its atom."""
        self.lengths: tuple[int, ...] = ()
        """Of the prefixes, each once."""


class Catalogue:
    """Feeds by number, and postings by atom."""

    def __init__(self) -> None:
        self.keys: dict[str, Key] = {}
        self.postings: list[Posting] = [None]
        self.all = BitMap()
        """The numbers of all feeds."""
        self.elements: dict[int, tuple[int, ...]] = {}
        """A list's atom → its elements' atoms."""
        self._key_of: list[Key | None] = [None]
        self._value_of: list[Any] = [None]
        self._uses: dict[int, int] = {}
        self._free: list[int] = []
        self._numbers: dict[str, int] = {}
        self._ids: list[str | None] = []
        self._rows: list[Row] = []
        self._spare: list[int] = []

    # Feeds

    def number(self, feed: str) -> int | None:
        """A feed's number, or None for one that is not held."""
        return self._numbers.get(feed)

    def ids(self, numbers: Iterable[int]) -> Iterator[str]:
        """The ids of feeds."""
        return map(self._ids.__getitem__, numbers)  # type: ignore[arg-type]

    def row(self, number: int) -> Row:
        """A feed's row."""
        return self._rows[number]

    def atoms(self, row: Row) -> dict[str, int]:
        """The atoms of a row by their keys."""
        keys = self._key_of
        return {keys[atom].name: atom for atom in array("I", row)}  # type: ignore[union-attr]

    def parts(self, atom: int | None) -> tuple[int, ...]:
        """The atoms of a value's scalars: its own, or those of a list's elements."""
        if atom is None:
            return ()
        elements = self.elements.get(atom)
        return (atom,) if elements is None else elements

    def metadata(self, row: Row) -> Metadata:
        """The metadata of a row. Its lists are the catalogue's own."""
        keys, values = self._key_of, self._value_of
        return {keys[atom].name: values[atom] for atom in array("I", row)}  # type: ignore[union-attr]

    def key(self, atom: int) -> Key:
        """The key that an atom is about."""
        key = self._key_of[atom]
        assert key is not None
        return key

    def value(self, atom: int) -> Any:
        """The value of a value atom."""
        return self._value_of[atom]

    def put(self, feed: str, row: Row) -> None:
        """Hold a feed that was not held."""
        number = self._spare.pop() if self._spare else len(self._ids)
        if number == len(self._ids):
            self._ids.append(feed)
            self._rows.append(row)
        self._ids[number] = feed
        self._rows[number] = row
        self._numbers[feed] = number
        self.all.add(number)
        for atom in self.held(row):
            self._join(atom, number)

    def move(self, number: int, row: Row) -> None:
        """Give a feed another row."""
        before, after = set(self.held(self._rows[number])), set(self.held(row))
        self._rows[number] = row
        for atom in after - before:
            self._join(atom, number)
        for atom in before - after:
            self._leave(atom, number)

    def drop(self, feed: str) -> None:
        """Forget a feed."""
        number = self._numbers.pop(feed)
        row, self._rows[number] = self._rows[number], b""
        self._ids[number] = None
        self.all.discard(number)
        self._spare.append(number)
        for atom in list(self.held(row)):
            self._leave(atom, number)

    def pack(self, metadata: Mapping[str, Value]) -> Row:
        """The row of some metadata."""
        return self.join(self.intern(key, value) for key, value in metadata.items())

    def join(self, atoms: Iterable[int]) -> Row:
        """The row of these atoms."""
        return array("I", atoms).tobytes()

    def held(self, row: Row) -> Iterator[int]:
        """Every atom that a feed with the row has, but 0: values, lists, elements, presence."""
        elements, key_of = self.elements, self._key_of
        for atom in array("I", row):
            yield atom
            yield key_of[atom].present  # type: ignore[union-attr]
            if atom in elements:
                yield from elements[atom]

    # Atoms

    def intern(self, name: str, value: Value) -> int:
        """The atom for a key's value, made if there is none."""
        key = self.keys.get(name) or self._new_key(name)
        if isinstance(value, list):
            whole = (None, *map(identity, value))
            atom = key.values.get(whole)
            if atom is None:
                atom = self._new(key, list(value))
                key.values[whole] = atom
                self.elements[atom] = tuple({self._scalar(key, v): None for v in value})
            return atom
        return self._scalar(key, value)

    def presence(self, name: str) -> int:
        """The atom for a key being there, made if there is none."""
        return (self.keys.get(name) or self._new_key(name)).present

    def find(self, name: str, value: Any) -> int | None:
        """The atom for a key's scalar value, if there is one."""
        key = self.keys.get(name)
        return key.values.get(identity(value)) if key else None

    def prefix(self, name: str, text: str) -> int:
        """The atom for a key's text that begins with `text`, made if there is none."""
        key = self.keys.get(name) or self._new_key(name)
        atom = key.prefixes.get(text)
        if atom is None:
            atom = key.prefixes[text] = self._new(key, _Prefix(text))
            key.lengths = tuple(sorted({len(each) for each in key.prefixes}))
        return atom

    def prefixes(self, atom: int) -> list[int]:
        """The prefix atoms that go with a value atom."""
        key, value = self.key(atom), self._value_of[atom]
        if not key.lengths or type(value) is not str:
            return []
        found = (key.prefixes.get(value[:length]) for length in key.lengths)
        return list({atom for atom in found if atom is not None})

    def covers(self, row: Row) -> Iterator[int]:
        """Every atom that a feed with the row has, with 0 and prefixes."""
        yield ALWAYS_ATOM
        key_of = self._key_of
        for atom in self.held(row):
            yield atom
            if key_of[atom].lengths:  # type: ignore[union-attr]
                yield from self.prefixes(atom)

    def count(self, atom: int) -> int:
        """How many feeds have it; of a prefix a guess."""
        if atom == ALWAYS_ATOM:
            return len(self.all)
        if type(value := self._value_of[atom]) is _Prefix:
            return self.count(self.key(atom).present) >> min(20, 3 * len(value.text))
        posting = self.postings[atom]
        if posting is None:
            return 0
        return 1 if type(posting) is int else len(posting)  # type: ignore[arg-type]

    def uses(self, atom: int) -> int:
        """How many places of queries use it."""
        return self._uses.get(atom, 0)

    def use(self, atom: int) -> None:
        """Keep an atom for a query, whether a feed has it or not."""
        if atom:
            self._uses[atom] = self._uses.get(atom, 0) + 1

    def unuse(self, atom: int) -> None:
        """Let go of it."""
        if atom:
            uses = self._uses.pop(atom) - 1
            if uses:
                self._uses[atom] = uses
            elif self.postings[atom] is None:
                self._release(atom)

    def numbers(self, key: Key) -> Ordered:
        """The key's numbers in order."""
        if key.numbers is None:
            numbers = (value for value in key.values if type(value) in (int, float))
            key.numbers = Ordered(numbers, key.values)
        return key.numbers

    def texts(self, key: Key) -> Ordered:
        """The key's texts in order."""
        if key.texts is None:
            texts = (value for value in key.values if type(value) is str)
            key.texts = Ordered(texts, key.values)
        return key.texts

    def _new_key(self, name: str) -> Key:
        name = sys.intern(str(name))
        key = Key(name, *(self._allot() for _ in range(3)))
        for atom in (key.present, key.order, key.text):
            self._key_of[atom] = key
        self.keys[name] = key
        return key

    def _allot(self) -> int:
        if self._free:
            return self._free.pop()
        self.postings.append(None)
        self._key_of.append(None)
        self._value_of.append(None)
        return len(self.postings) - 1

    def _new(self, key: Key, value: Any) -> int:
        atom = self._allot()
        self._key_of[atom] = key
        self._value_of[atom] = value
        return atom

    def _scalar(self, key: Key, value: Any) -> int:
        same = identity(value)
        atom = key.values.get(same)
        if atom is None:
            atom = self._new(key, value)
            key.values[same] = atom
            if ordered := _order_of(key, value):
                ordered.insert(value)
        return atom

    def _join(self, atom: int, number: int) -> None:
        posting = self.postings[atom]
        if posting is None:
            self.postings[atom] = number
        elif type(posting) is int:
            self.postings[atom] = BitMap((posting, number))
        else:
            posting.add(number)  # type: ignore[union-attr]
        key = self._key_of[atom]
        if (key.numbers or key.texts) and (  # type: ignore[union-attr]
            ordered := _order_of(key, self._value_of[atom])
        ):
            ordered.joined(self._value_of[atom], number)

    def _leave(self, atom: int, number: int) -> None:
        key = self._key_of[atom]
        if (key.numbers or key.texts) and (  # type: ignore[union-attr]
            ordered := _order_of(key, self._value_of[atom])
        ):
            ordered.left(self._value_of[atom])
        posting = self.postings[atom]
        if type(posting) is int:
            self.postings[atom] = None
            if atom not in self._uses:
                self._release(atom)
        else:
            assert isinstance(posting, BitMap)
            posting.discard(number)
            if len(posting) == 1:
                self.postings[atom] = posting[0]

    def _release(self, atom: int) -> None:
        """Free an atom that no feed has and no query uses, and its key with the last one."""
        key = self.key(atom)
        special = (key.present, key.order, key.text)
        if atom not in special:
            value = self._value_of[atom]
            if type(value) is _Prefix:
                del key.prefixes[value.text]
                key.lengths = tuple(sorted({len(each) for each in key.prefixes}))
            elif atom in self.elements:
                del self.elements[atom]
                del key.values[(None, *map(identity, value))]
            else:
                del key.values[identity(value)]
                if ordered := _order_of(key, value):
                    ordered.remove(value)
            self._discard(atom)
        if key.values or key.prefixes or self.postings[key.present] is not None:
            return
        if not any(atom in self._uses for atom in special):
            del self.keys[key.name]
            for each in special:
                self._discard(each)

    def _discard(self, atom: int) -> None:
        self._key_of[atom] = self._value_of[atom] = None
        self._free.append(atom)


def _order_of(key: Key | None, value: Any) -> Ordered | None:
    """Where a value of the key is held in order, if anywhere."""
    if type(value) is str:
        return key.texts  # type: ignore[union-attr]
    if type(value) is int or type(value) is float:
        return key.numbers  # type: ignore[union-attr]
    return None
