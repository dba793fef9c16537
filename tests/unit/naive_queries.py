"""Random queries, metadata and payloads, and a dumb evaluator to compare the clever one with.

Queries are made as nested tuples and written as text in many spellings. The evaluator walks the
tuples and knows nothing of the product's parser, normal form or index. Its logic has three values:
None is "depends on the payload".
"""

from __future__ import annotations

import random
import re
from typing import Any

KEYS = ["a", "b", "Location/Room", "odd key", "and"]
TEXTS = ["", "410", "411", "temp", "Temp", 'q"uote', "e\\d", "é\n"]
NUMBERS = [0, 1, -1, 2, 2.5, 1.0, 1e300, 2**63]
PATTERNS = ["4", "^4.0$", "^temp", "p$", "^410$", "[0-9]+", "(?i)TEMP", "^$", "e|1", ""]
PATHS = [(), ("t",), ("x", "y"), ("odd step",)]
ORDERS = ["<", "<=", ">", ">="]
MISSING = object()

Asked = tuple[Any, ...]


def scalar(rng: random.Random) -> Any:
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(TEXTS)
    return rng.choice(NUMBERS) if kind < 0.9 else rng.random() < 0.5


def value(rng: random.Random) -> Any:
    if rng.random() < 0.15:
        return [scalar(rng) for _ in range(rng.randrange(4))]
    return scalar(rng)


def metadata(rng: random.Random) -> dict[str, Any]:
    return {key: value(rng) for key in KEYS if rng.random() < 0.6}


def change(rng: random.Random) -> dict[str, Any]:
    keys = rng.sample(KEYS, rng.choice([1, 1, 1, 2, 3]))
    return {key: None if rng.random() < 0.25 else value(rng) for key in keys}


def payload(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if depth < 3 and kind < 0.5:
        return {step: payload(rng, depth + 1) for step in ("t", "x", "y", "odd step")}
    if depth < 3 and kind < 0.6:
        return [payload(rng, depth + 1) for _ in range(rng.randrange(3))]
    return rng.choice([None, scalar(rng), scalar(rng)])


def query(rng: random.Random, depth: int = 0, payloads: bool = True) -> Asked:
    kind = rng.random()
    if depth < 4 and kind < 0.5 - 0.08 * depth:
        parts = [query(rng, depth + 1, payloads) for _ in range(rng.choice([2, 2, 3]))]
        return (rng.choice(["and", "and", "or"]), *parts)
    if depth < 4 and kind < 0.62:
        return ("not", query(rng, depth + 1, payloads))
    subject = rng.choice(PATHS) if payloads and rng.random() < 0.1 else rng.choice(KEYS)
    operator = rng.choice(["=", "=", "=", "!=", "in", "order", "like", "has"])
    if operator == "has":
        return ("has", subject)
    if operator == "like":
        return ("like", subject, rng.choice(PATTERNS))
    if operator == "in":
        return ("in", subject, *(scalar(rng) for _ in range(rng.randrange(1, 4))))
    if operator == "order":
        return (rng.choice(ORDERS), subject, rng.choice([*TEXTS, *NUMBERS]))
    return (operator, subject, scalar(rng))


def written(rng: random.Random, asked: Asked) -> str:
    """The query as text, in one of its many spellings."""
    space = rng.choice([" ", " ", "  ", "\n"])
    operator = asked[0]
    word = operator.upper() if rng.random() < 0.2 else operator
    if operator in ("and", "or"):
        parts = [f"({written(rng, part)})" for part in asked[1:]]
        return f"{space}{word}{space}".join(parts)
    if operator == "not":
        return f"{word}{space}({written(rng, asked[1])})"
    if operator == "has":
        return f"{word}{space}{_name(rng, asked[1])}"
    name = _name(rng, asked[1])
    if operator == "in":
        return f"{name} {word}{space}({','.join(_literal(rng, v) for v in asked[2:])})"
    return f"{name}{space}{word}{space}{_literal(rng, asked[2])}"


def _name(rng: random.Random, subject: Any) -> str:
    if isinstance(subject, tuple):
        return ".".join(["payload", *(s if s.isalnum() else f"`{s}`" for s in subject)])
    bare = subject not in ("odd key", "and") and rng.random() < 0.8
    return str(subject) if bare else f"`{subject}`"


def _literal(rng: random.Random, value: Any) -> str:
    if isinstance(value, bool):
        return rng.choice([str(value).lower(), str(value).upper()])
    if isinstance(value, str):
        quote = rng.choice("'\"")
        return quote + value.replace("\\", "\\\\").replace(quote, "\\" + quote) + quote
    return repr(value)


def answer(asked: Asked, about: dict[str, Any], event: Any = MISSING) -> bool | None:
    """The evaluator. Without an event, terms about payloads are None."""
    operator = asked[0]
    if operator == "and":
        answers = [answer(part, about, event) for part in asked[1:]]
        return False if False in answers else None if None in answers else True
    if operator == "or":
        answers = [answer(part, about, event) for part in asked[1:]]
        return True if True in answers else None if None in answers else False
    if operator == "not":
        inner = answer(asked[1], about, event)
        return None if inner is None else not inner
    if operator == "!=":
        both: Asked = ("and", ("has", asked[1]), ("not", ("=", *asked[1:])))
        return answer(both, about, event)
    if isinstance(asked[1], tuple):
        if event is MISSING:
            return None
        found = _walk(event, list(asked[1]))
    else:
        found = [about[asked[1]]] if asked[1] in about else []
    if operator == "has":
        return any(v is not None for v in found)
    return any(_true(operator, v, asked[2:]) for v in _flat(found))


def _walk(event: Any, path: list[str]) -> list[Any]:
    if not path:
        return [event]
    if isinstance(event, list):
        return [v for element in event for v in _walk(element, path)]
    return _walk(event[path[0]], path[1:]) if isinstance(event, dict) and path[0] in event else []


def _flat(values: list[Any]) -> list[Any]:
    flat = []
    for v in values:
        flat += _flat(v) if isinstance(v, list) else [v]
    return flat


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return {int: "number", float: "number", str: "text"}.get(type(value), "other")


def _true(operator: str, value: Any, wanted: tuple[Any, ...]) -> bool:
    same = [w for w in wanted if _kind(w) == _kind(value)]
    if operator in ("=", "in"):
        return any(value == w for w in same)
    if operator == "like":
        return isinstance(value, str) and re.search(_python(wanted[0]), value) is not None
    if not same or _kind(value) not in ("number", "text"):
        return False
    limit = same[0]
    return bool(
        {"<": value < limit, "<=": value <= limit, ">": value > limit, ">=": value >= limit}[
            operator
        ]
    )


def _python(pattern: str) -> str:
    """RE2's `$` is the very end."""
    return pattern.replace("$", r"\Z")
