"""Which subscriptions a message reaches: subjects with `*` and `>`."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Subjects(Generic[T]):
    """Values by pattern; those of one pattern in the order they came."""

    def __init__(self) -> None:
        self._root: dict[str, Any] = {}
        self._found: dict[str, list[T]] = {}
        """What was found before, until a pattern comes or goes."""

    def add(self, pattern: str, value: T) -> bool:
        """Whether it is the first of this pattern."""
        self._found.clear()
        node = self._root
        for token in pattern.split("."):
            node = node.setdefault(token, {})
        values = node.setdefault("", [])
        values.append(value)
        return len(values) == 1

    def remove(self, pattern: str, value: T) -> bool:
        """Whether it was the last of this pattern."""
        self._found.clear()
        node = self._root
        for token in pattern.split("."):
            node = node[token]
        node[""].remove(value)
        return not node[""]

    def match(self, subject: str) -> list[T]:
        """The values of all patterns that `subject` fits; not to be changed."""
        found = self._found.get(subject)
        if found is None:
            found = self._found[subject] = self._match(subject)
        return found

    def _match(self, subject: str) -> list[T]:
        nodes: list[dict[str, Any]] = [self._root]
        found: list[T] = []
        for token in subject.split("."):
            nexts = []
            for node in nodes:
                if ">" in node:
                    found += node[">"].get("", ())
                if token in node:
                    nexts.append(node[token])
                if "*" in node:
                    nexts.append(node["*"])
            if not nexts:
                return found
            nodes = nexts
        for node in nodes:
            found += node.get("", ())
        return found

    def patterns(self) -> list[str]:
        """All patterns that have a value."""
        found: list[str] = []

        def walk(node: dict[str, Any], path: list[str]) -> None:
            for token, child in node.items():
                if token == "":
                    if child:
                        found.append(".".join(path))
                else:
                    walk(child, [*path, token])

        walk(self._root, [])
        return found


def fits(pattern: str, subject: str) -> bool:
    """Whether `subject` fits `pattern`."""
    wanted, tokens = pattern.split("."), subject.split(".")
    for place, token in enumerate(wanted):
        if token == ">":  # noqa: S105
            return len(tokens) > place
        if place >= len(tokens) or token not in ("*", tokens[place]):
            return False
    return len(wanted) == len(tokens)
