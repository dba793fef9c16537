"""Records that cannot be read, or do not fit, are set aside.

What sites know of each other, of topics, feeds and functions stands in logs and in the directory,
and others wrote it there: a newer Skerry, a site that errs, or somebody who found a way in. So
whoever takes a record out of there does it with `read`, and goes on without one that is no good as
if it had not been written. It is logged once, and counted until a good one takes its place;
`skerry doctor` tells.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from skerry.errors import InputError

log = logging.getLogger("skerry.records")

MOST = 1000
"""Records that are remembered by name; of more, only how many there were is known."""

T = TypeVar("T")


class Aside:
    """What was set aside in this process, by where it stands."""

    def __init__(self) -> None:
        self._why: dict[str, tuple[int, str]] = {}
        self.count = 0
        """How many there were since the start."""

    def __len__(self) -> int:
        return len(self._why)

    def names(self) -> list[str]:
        """Where they stand."""
        return list(self._why)

    def add(self, where: str, data: bytes, why: str) -> None:
        """Remember a record, and say so the first time."""
        known = self._why.get(where)
        if known is not None and known[0] == hash(data):
            return
        self.count += 1
        if known is not None or len(self._why) < MOST:
            self._why[where] = (hash(data), why)
            log.error("the record %s is set aside: %s", where, why)

    def forget(self, where: str) -> None:
        """Something good stands there now, or nothing."""
        self._why.pop(where, None)


ASIDE = Aside()


def read(
    data: bytes,
    kind: type[T],
    where: str,
    *,
    fits: Callable[[T], object] | None = None,
    decode: Callable[..., Any] = msgspec.json.decode,
    is_newest: bool = True,
) -> T | None:
    """The record at `where`; None: it is set aside. `fits` may look closer: it returns False, or
    raises an `InputError`, for one that is no good. Where it may be an earlier record than the one
    that was set aside, that one is still counted."""
    try:
        record: T = decode(data, type=kind)
        if fits is not None and fits(record) is False:
            raise ValueError("it does not belong there")
    except (msgspec.MsgspecError, UnicodeDecodeError, InputError, ValueError) as error:
        ASIDE.add(where, data, error.what if isinstance(error, InputError) else str(error))
        return None
    if is_newest:
        ASIDE.forget(where)
    return record
