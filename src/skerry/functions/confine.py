"""What the user's code may not do, enforced by the kernel."""

from __future__ import annotations

import resource


def confine(
    *, parent: int, memory: int, network: bool, readable: tuple[str, ...]
) -> tuple[str, ...]:
    """Confine this process for good; return what of it is in force."""
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    return ("memory",)
