"""Errors of Spark, as errors of ours: what a Python task or reader raised is in their text."""

from __future__ import annotations

import re
from pathlib import Path

from skerry import errors
from skerry.errors import SkerryError

_OURS = re.compile(r"skerry\.(?:errors|spark\.\w+)\.(\w+): (.+?)(?:\n(?!\s)([A-Z].*))?(?:\n|$)")
_FULL = re.compile(r"\[Errno (?:28|122)\]|No space left on device")
_CONDITION = re.compile(r"^\[[A-Z_.]+\] ")


def translated(error: BaseException, what: str, folder: Path | None = None) -> SkerryError:
    """The error of ours that `error` carries, or one that says that `what` failed, and why."""
    if isinstance(error, SkerryError):
        return error
    text = str(error)
    if found := list(_OURS.finditer(text)):
        name, said, advice = found[-1].groups()
        kind = getattr(errors, name, SkerryError)
        if isinstance(kind, type) and issubclass(kind, SkerryError):
            return kind(said.strip(), (advice or "").strip())
    if _FULL.search(text):
        where = f" of {folder}" if folder else ""
        return errors.FolderUnwritable(
            f"{what} stopped: the disk{where} is full",
            "Free some room and start it again; it goes on where it was.",
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return SkerryError(f"{what} failed: {_CONDITION.sub('', lines[0]) if lines else type(error)}")
