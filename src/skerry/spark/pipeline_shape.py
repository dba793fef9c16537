"""Whether a pipeline's code can go on where its checkpoint ends.

Theory of operation. A checkpoint holds, by position, an offset for each source, and, for each
stateful operator, rows of state whose form follows from the operator: its keys, what it computes,
its watermark. Code may change around these: filters and columns between them, the schema of
payloads, how often it runs. If a source or a stateful operator comes, goes, changes places or
changes its form, then Spark reads the offsets of one topic as those of another, or state as what it
is not; at best it fails after it has begun. If the sink changes, a batch that was half written to
the one is written whole to the other. So the shape is stored beside the checkpoint and compared
before anything starts.

The state that a `StatefulProcessor` keeps inside is not part of the plan: Spark compares that by
itself when the query starts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from skerry.errors import CheckpointMismatch

FORMAT = 1

_STATEFUL = re.compile(
    r"Aggregate|Join|Deduplicate\w*|GlobalLimit|TransformWithState\w*|FlatMapGroups\w*State\w*"
)
# What differs from run to run, or means nothing to the state: ids of columns and objects, delays of
# watermarks, the names that results of aggregates get.
_NOISE = re.compile(r"#\d+L?|@[0-9a-f]+|-T\d+ms|\b[0-9a-f]{8}-[0-9a-f-]{27}\b|(?<=\)) AS \w+")
_PROCESSOR = re.compile(r"\(.*\)#?\d*, (\d+), \[.*\], (\w+), (\w+)")
FIELDS = 10_000
"""Columns of an operator that are named at the most."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What of a pipeline its checkpoint depends on."""

    format: int = FORMAT
    name: str
    sources: list[str]
    """The topics, in the order in which the plan reads them."""
    sink: str
    operators: list[str]
    """The stateful operators from the sink to the sources, in Spark's words."""
    digest: str
    code: str = ""
    """A hash of the file that it was declared in. Not part of the digest: code may change, but not
    within a batch (`pipeline_batch`)."""

    @classmethod
    def make(cls, name: str, sources: Sequence[str], sink: str, operators: Sequence[str]) -> Shape:
        """The shape of a pipeline with these sources and stateful operators."""
        said = "\n".join([*sources, sink, *operators])
        digest = hashlib.blake2b(said.encode(), digest_size=8).hexdigest()
        return cls(
            name=name, sources=list(sources), sink=sink, operators=list(operators), digest=digest
        )

    def check(self, stored: Shape) -> None:
        """Raise `CheckpointMismatch` if a checkpoint of the shape `stored` is not this one's."""
        if stored.format != self.format:
            raise _mismatch(
                self.name,
                f"was written by another version of Skerry (format {stored.format}, this one "
                f"writes {self.format})",
            )
        if stored.name != self.name:
            raise _mismatch(self.name, f"is of the pipeline {stored.name}")
        if stored.sources != self.sources:
            raise _mismatch(
                self.name,
                f"is of one that reads {_list(stored.sources)}, not {_list(self.sources)}",
            )
        if stored.sink != self.sink:
            raise _mismatch(self.name, f"is of one that writes to {stored.sink}, not {self.sink}")
        if stored.digest != self.digest:
            raise _mismatch(self.name, _difference(stored.operators, self.operators))


class Plan:
    """Looks through the analyzed plan of a streaming DataFrame (an object of the JVM)."""

    def __init__(self, frame: Any) -> None:
        self.sources: list[str] = []
        self.operators: list[str] = []
        self._definitions: dict[int, str] = {}
        root = frame._jdf.queryExecution().analyzed()
        self._define(root)
        self._walk(root)

    def _define(self, node: Any) -> None:
        """Learn what computed columns are made of; a window's length, for one, is found there."""
        if node.nodeName() == "Project":
            for column in _each(node.projectList()):
                if column.getClass().getSimpleName() == "Alias":
                    self._definitions[column.exprId().id()] = _plain(column.child().toString())
        for child in _each(node.children()):
            self._define(child)

    def _walk(self, node: Any) -> None:
        if not node.isStreaming():
            return  # a table, which is read anew in each batch
        name = node.nodeName()
        children = list(_each(node.children()))
        if not children:
            self.sources.append(str(node.extraOptions().get("topic")))
        if _STATEFUL.fullmatch(name) and not (
            name == "Join" and not all(child.isStreaming() for child in children)
        ):
            self.operators.append(self._describe(name, node, children))
        for child in children:
            self._walk(child)

    def _describe(self, name: str, node: Any, children: list[Any]) -> str:
        text = node.simpleString(FIELDS).removeprefix("~")
        if match := _PROCESSOR.search(text):
            keys = list(_each(children[0].output()))[: int(match[1])]
            return f"{name} by {self._columns(keys)}, {match[2]}, {match[3]}"
        used = list(_each(node.references().toSeq()))
        keys = used
        if name == "Aggregate":  # what is added up may be computed in another way from now on
            keys = [
                column
                for expression in _each(node.groupingExpressions())
                for column in _each(expression.references().toSeq())
            ]
        return f"{_plain(text)} of {self._columns(used, keys)}"

    def _columns(self, columns: list[Any], keys: list[Any] | None = None) -> str:
        found = []
        ids = {key.exprId().id() for key in (columns if keys is None else keys)}
        for column in columns:
            kind = column.dataType().catalogString()
            own = column.exprId().id()
            made = self._definitions.get(own) if own in ids else None
            found.append(f"{column.name()} {kind}{f' = {made}' if made else ''}")
        return f"({', '.join(sorted(found))})"


def _each(sequence: Any) -> Iterator[Any]:
    for at in range(sequence.size()):
        yield sequence.apply(at)


def _plain(text: str) -> str:
    return _NOISE.sub("", text).strip()


def _difference(then: list[str], now: list[str]) -> str:
    if len(then) != len(now):
        return f"has {_count(len(then))}, and the code has {len(now)}: {_list(_kinds(now))}"
    at = next(n for n, pair in enumerate(zip(then, now, strict=True)) if pair[0] != pair[1])
    pairs = enumerate(zip(then[at], now[at], strict=False))
    shorter = min(len(then[at]), len(now[at]))
    same = next((n for n, pair in pairs if pair[0] != pair[1]), shorter)
    return f"is of other state: it was {_cut(then[at], same)}, and is now {_cut(now[at], same)}"


def _cut(text: str, around: int) -> str:
    """What is around a place of a text, with its first word."""
    first = text.split(" ", 1)[0]
    begin = max(around - 30, len(first))
    end = around + 60
    dots = " …" if begin > len(first) else ""
    return f"`{first}{dots}{text[begin:end]}{' …' if end < len(text) else ''}`"


def _kinds(operators: list[str]) -> list[str]:
    return [operator.split(" ", 1)[0] for operator in operators]


def _count(number: int) -> str:
    return f"{number} stateful operator{'' if number == 1 else 's'}"


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _mismatch(name: str, why: str) -> CheckpointMismatch:
    return CheckpointMismatch(
        f"the checkpoint of the pipeline {name} {why}",
        "Take the change back to go on where it was, give the new pipeline another name, or begin "
        "anew with --fresh: then it reads from its start again, and writes results again.",
    )
