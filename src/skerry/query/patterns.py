"""`like`: regular expressions in time linear in the text, whatever the pattern.

RE2 matches without backtracking. A pattern is searched for anywhere in the text; `^` and `$` tie it
to the ends. Most patterns that people write are plain text, perhaps tied to an end: those are
compared as text, twenty times as fast.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import NamedTuple

import re2

MAX_PATTERN = 1024
"""Characters. RE2's program grows with them."""

_MEMORY = 1 << 20
"""Bytes that a compiled pattern may take with its states; past it RE2 forgets states and goes on.
RE2's own default is 8 MB, which a hundred hostile patterns would make 800."""

_CACHED = 1024
"""Compiled patterns held: a pattern is compiled again after so many others."""

_SIGNS = r"\\.^$*+?{}\[\]|()"
_PLAIN = re.compile(rf"(\^?)((?:[^{_SIGNS}]|\\[{_SIGNS}/\-])*)(\$?)", re.DOTALL)
_PREFIX = re.compile(rf"\^((?:(?:[^{_SIGNS}]|\\[{_SIGNS}/\-])(?![*?{{]))+)", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)

Test = Callable[[str], bool]


class BadPattern(ValueError):
    """What RE2 says of a pattern that it does not take."""


class Plain(NamedTuple):
    """A pattern that is plain text."""

    start: bool
    """Tied to the start."""
    text: str
    end: bool
    """Tied to the end."""

    def test(self, value: str) -> bool:
        """Whether `value` holds it."""
        if self.start:
            return value == self.text if self.end else value.startswith(self.text)
        return value.endswith(self.text) if self.end else self.text in value


def plain(pattern: str) -> Plain | None:
    """The pattern as plain text, if it is that."""
    if found := _PLAIN.fullmatch(pattern):
        start, text, end = found.groups()
        return Plain(bool(start), _ESCAPED.sub(r"\1", text), bool(end))
    return None


def exact(pattern: str) -> str | None:
    """The only text that the pattern matches, if it is plain."""
    text = plain(pattern)
    return text.text if text and text.start and text.end else None


def prefix(pattern: str) -> str | None:
    """What every text that the pattern matches begins with, where that is easily seen."""
    if "|" not in pattern and (found := _PREFIX.match(pattern)):
        return _ESCAPED.sub(r"\1", found.group(1))
    return None


@functools.lru_cache(maxsize=_CACHED)
def compile(pattern: str) -> Test:
    """A test of whether a text holds `pattern`; `BadPattern` if it is none."""
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MEMORY
    try:
        search = re2.compile(pattern.encode(), options).search
    except re2.error as error:
        said = error.args[0]
        raise BadPattern(said.decode() if isinstance(said, bytes) else str(said)) from None
    return lambda text: search(text.encode()) is not None
