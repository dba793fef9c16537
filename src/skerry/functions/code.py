"""A function's code as its author wrote it: read, looked over, kept by digest.

Nothing here runs the code; whether it can be loaded is found out by a worker.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
import warnings
from pathlib import Path

import msgspec

from skerry.engine.address import write_secret
from skerry.errors import BadSetting, FunctionBroken
from skerry.model.functions import MAX_CODE, Kind, check_requires
from skerry.model.quantities import show_size

_KINDS: dict[str, Kind] = {".py": "python", ".wasm": "wasm", ".wat": "wasm"}
_BLOCK = re.compile(r"^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$", re.M)
"""Inline metadata, as PEP 723 has it."""


class Code(msgspec.Struct, frozen=True):
    """A file with code."""

    file: str
    """Its name, for messages."""
    data: bytes
    kind: Kind
    digest: str
    requires: tuple[str, ...] = ()
    """What it declares that it depends on."""


def read_file(path: Path) -> Code:
    """Read a file, and look over what it holds. Raises `BadSetting`, or `FunctionBroken` with the
    line of a syntax error."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CODE + 1)
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror}", "Check its path.") from None
    return look_over(path.name, data)


def look_over(file: str, data: bytes) -> Code:
    """Code that came from a file of that name."""
    kind = _KINDS.get(os.path.splitext(file)[1].lower())
    if kind is None:
        raise BadSetting(
            f"{file} is no code of a function", "It is a file of Python, .py, or .wasm, or .wat."
        )
    if not data.strip():
        raise BadSetting(f"{file} is empty")
    if len(data) > MAX_CODE:
        raise BadSetting(
            f"{file} is larger than {show_size(MAX_CODE)}",
            "Have data in a topic, and libraries among the dependencies.",
        )
    requires = _look_over_python(file, data) if kind == "python" else ()
    return Code(file, data, kind, hashlib.sha256(data).hexdigest(), requires)


def _look_over_python(file: str, data: bytes) -> tuple[str, ...]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(data, file, "exec", dont_inherit=True)
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise FunctionBroken(
            f"{file}, line {error.lineno}: {error.msg}" + (f": {line}" if line else ""),
            "Correct it and deploy again.",
        ) from None
    except ValueError as error:  # null bytes
        raise FunctionBroken(f"{file} is no Python: {error}") from None
    return requirements_of(file, data.decode(errors="replace"))


def requirements_of(file: str, text: str) -> tuple[str, ...]:
    """The dependencies that a script declares, in order and each once."""
    blocks = [match for match in _BLOCK.finditer(text) if match.group("type") == "script"]
    if not blocks:
        return ()
    advice = 'Write `# /// script`, `# dependencies = ["numpy"]`, `# ///`.'
    if len(blocks) > 1:
        raise BadSetting(f"{file} has {len(blocks)} blocks of script metadata", advice)
    lines = blocks[0].group("content").splitlines(keepends=True)
    content = "".join(line[2:] if line.startswith("# ") else line[1:] for line in lines)
    try:
        found = tomllib.loads(content).get("dependencies", [])
    except tomllib.TOMLDecodeError as error:
        raise BadSetting(f"the metadata of {file} cannot be read: {error}", advice) from None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise BadSetting(f"the dependencies of {file} are no list of texts", advice)
    try:
        return check_requires(tuple(dict.fromkeys(each.strip() for each in found)))
    except BadSetting as error:
        raise BadSetting(f"{file} depends on something odd: {error.what}", error.advice) from None


def kept_at(folder: Path, digest: str, kind: Kind) -> Path:
    """Where code is kept."""
    return folder / "code" / f"{digest}.{'py' if kind == 'python' else 'wasm'}"


def keep(folder: Path, digest: str, kind: Kind, data: bytes) -> Path:
    """Keep verified code as a file; return its path."""
    path = kept_at(folder, digest, kind)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_secret(path, data)
    return path


def is_kept(folder: Path, digest: str, kind: Kind) -> bool:
    """Whether that code is there, whole."""
    path = kept_at(folder, digest, kind)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == digest
    except OSError:
        return False
