"""The files that the user's code may touch, told to the kernel's Landlock."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Callable, Iterable

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_SPECIAL = 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11  # devices, sockets, pipes

# What each version of Landlock knows to refuse, beside what those before it do.
_RIGHTS = {1: (1 << 13) - 1, 2: 1 << 13, 3: _TRUNCATE, 5: _IOCTL}
_NETWORK = 1 << 0 | 1 << 1  # bind and connect, since 4
_SCOPES = 1 << 0 | 1 << 1  # abstract sockets and signals to outside, since 6

Call = Callable[..., int]
"""`syscall(2)`, which raises `OSError`."""


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("files", ctypes.c_uint64),
        ("network", ctypes.c_uint64),
        ("scopes", ctypes.c_uint64),
    )


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("parent", ctypes.c_int32))


def restrict(
    call: Call, *, read: Iterable[str], write: Iterable[str], folders: Iterable[str], network: bool
) -> int:
    """Allow to read what is in `read` and below, to write the files `write`, and to do what one
    likes below `folders`; nothing else, and without `network` no TCP either. Paths that are not
    there are left out. Returns the version of Landlock; raises `OSError` where there is none."""
    version = call(_CREATE, None, 0, _VERSION)
    handled = sum(rights for since, rights in _RIGHTS.items() if since <= version)
    rules = _Ruleset(
        handled,
        _NETWORK if version >= 4 and not network else 0,
        _SCOPES if version >= 6 else 0,
    )
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = call(_CREATE, ctypes.byref(rules), size, 0)
    try:
        for paths, rights in (
            (read, _READ),
            (write, _READ_FILE | _WRITE_FILE | _TRUNCATE),
            (folders, handled & ~_SPECIAL & ~_EXECUTE & ~_IOCTL),
        ):
            for path in dict.fromkeys(paths):
                _allow(call, ruleset, path, rights & handled)
        call(_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)
    return version


def _allow(call: Call, ruleset: int, path: str, rights: int) -> None:
    try:
        found = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(found).st_mode):
            rights &= _OF_FILES
        beneath = _Beneath(rights, found)
        call(_ADD, ruleset, _PATH_BENEATH, ctypes.byref(beneath), 0)
    finally:
        os.close(found)
