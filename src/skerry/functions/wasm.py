"""WebAssembly functions."""

from __future__ import annotations

from skerry.errors import FunctionBroken
from skerry.functions.frames import Setup
from skerry.functions.handler import Handler


def load(source: bytes, setup: Setup) -> Handler:
    """Compile a module and find its handler."""
    raise FunctionBroken("WebAssembly functions are not there yet")
