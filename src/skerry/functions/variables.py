"""Variables of functions' environments. They hold secrets: each site keeps them in files that only
its owner may read, and agents give them to each other; they are in no topic."""

from __future__ import annotations

import hashlib
import re
import secrets
from pathlib import Path

import msgspec

from skerry.engine.address import write_secret
from skerry.errors import BadSetting

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
MAX_BYTES = 64 * 1024
"""Bytes of all variables of a function."""

_RESERVED = ("LD_", "PYTHON", "SKERRY_")
"""Beginnings of names that would change the worker rather than the code."""


def read_env_file(path: Path) -> dict[str, str]:
    """`KEY=VALUE` lines; empty ones and those that begin with # are left out, quotes around a value
    are taken off. Errors name the line and never show what it holds."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise BadSetting(f"{path} cannot be read: {reason}", "Check its path.") from None
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.removeprefix("export ").partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not _NAME.fullmatch(name):
            raise BadSetting(f"line {number} of {path} is no KEY=VALUE")
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        found[name] = value
    return check_variables(found)


def check_variables(variables: dict[str, str]) -> dict[str, str]:
    """Return them if they can be an environment; else raise `BadSetting`."""
    for name, value in variables.items():
        if not _NAME.fullmatch(name):
            raise BadSetting(f"{name!r} cannot name a variable", "Use letters, digits and _.")
        if name.startswith(_RESERVED) or name == "PATH":
            raise BadSetting(f"the variable {name} is not for functions", "Choose another name.")
        if "\0" in value:
            raise BadSetting(f"the value of {name} holds a null character")
    if sum(len(k) + len(v) for k, v in variables.items()) > MAX_BYTES:
        raise BadSetting(f"the variables have more than {MAX_BYTES} bytes")
    return variables


class Variables:
    """The variables that a site keeps."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "secrets"

    def path(self, name: str) -> Path:
        """Where variables are kept, if they are."""
        if not _DIGEST.fullmatch(name):
            raise BadSetting("that names no variables")
        return self._folder / f"{name}.json"

    def get(self, name: str) -> dict[str, str] | None:
        """Variables that are here."""
        try:
            return msgspec.json.decode(self.path(name).read_bytes(), type=dict[str, str])
        except (OSError, msgspec.DecodeError):
            return None

    def put(self, name: str, variables: dict[str, str]) -> None:
        """Keep variables."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_secret(self.path(name), msgspec.json.encode(check_variables(variables)))

    def add(self, variables: dict[str, str]) -> str:
        """Keep new variables; return how they are called. The salt keeps whoever sees that from
        trying what a password could be."""
        data = msgspec.json.encode(variables, order="sorted")
        name = hashlib.sha256(secrets.token_bytes(16) + data).hexdigest()
        self.put(name, variables)
        return name
