"""`like`: regular expressions in time linear in the text, whatever the pattern.

RE2 matches without backtracking. A pattern is searched for anywhere in the text; `^` and `$` tie it
to the ends. Most patterns that people write are plain text, perhaps tied to an end: those are
compared as text, twenty times as fast.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import re2

MAX_PATTERN = 1024
"""Characters. RE2's program grows with them."""

_MEMORY = 1 << 20
"""Bytes that a compiled pattern may take with its states; past it RE2 forgets states and goes on.
RE2's own default is 8 MB, which a hundred hostile patterns would make 800."""

_CACHED = 1024
"""Compiled patterns held: a pattern is compiled again after so many others."""

_PLAIN = re.compile(r"(\^?)((?:[^\\.^$*+?{}\[\]|()]|\\[\\.^$*+?{}\[\]|()/\-])*)(\$?)", re.DOTALL)

Test = Callable[[str], bool]


class BadPattern(ValueError):
    """What RE2 says of a pattern that it does not take."""


@functools.lru_cache(maxsize=_CACHED)
def compile(pattern: str) -> Test:
    """A test of whether a text holds `pattern`; `BadPattern` if it is none."""
    if plain := _PLAIN.fullmatch(pattern):
        start, body, end = plain.groups()
        return _plain(bool(start), re.sub(r"\\(.)", r"\1", body), bool(end))
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MEMORY
    try:
        search = re2._Regexp(pattern.encode(), options).search
    except re2.error as error:
        said = error.args[0]
        raise BadPattern(said.decode() if isinstance(said, bytes) else str(said)) from None
    return lambda text: search(text.encode()) is not None


def literal(pattern: str) -> tuple[bool, str, bool] | None:
    """(tied to the start, text, tied to the end) of a pattern that is plain text, else None."""
    if plain := _PLAIN.fullmatch(pattern):
        start, body, end = plain.groups()
        return bool(start), re.sub(r"\\(.)", r"\1", body), bool(end)
    return None


def _plain(start: bool, body: str, end: bool) -> Test:
    if start and end:
        return lambda text: text == body
    if start:
        return lambda text: text.startswith(body)
    if end:
        return lambda text: text.endswith(body)
    return lambda text: body in text
