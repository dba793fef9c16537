"""What the agent and its host say to each other: lines of JSON over the host's input and output."""

from __future__ import annotations

from typing import Literal

import msgspec

from skerry.model.functions import Version


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the host is to run on a log."""

    function: str
    version: Version
    log: str
    """The topic whose log it is."""
    journal: str
    """A topic that is there."""
    since: int
    """Without a journal, begin with what was stored since then, nanoseconds since 1970."""
    code: str
    """The file with the code, verified."""
    python: str
    """The interpreter of the environment with what the code depends on."""
    env: str | None = None
    """The file with the variables of its environment: an object in JSON."""


class Assignments(msgspec.Struct, frozen=True, tag="assignments"):
    """Everything that the host is to run from now on, and nothing else."""

    assignments: tuple[Assignment, ...]


State = Literal["starting", "running", "retrying", "waiting", "fenced", "broken"]
"""`retrying`: an event failed and is tried again soon. `waiting`: something else is away, `error`
says what. `fenced`: another host took over; it is tried again. `broken`: the code cannot be
loaded."""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """How an assignment is."""

    function: str
    log: str
    version: int
    state: State
    error: str = ""
    index: int = 0
    """The last index of the log that is done and committed."""
    latest: int = 0
    """About where the log ends: by so many events that are to be handled it is ahead of `index`."""
    handled: int = 0
    """Events handled since the host began; so with the following."""
    failed: int = 0
    dead: int = 0
    published: int = 0
    topics: tuple[str, ...] = ()
    """Where it published to."""
    keys: int = 0
    """Keys of its state."""
    workers: int = 0
    confined: tuple[str, ...] = ()


class Report(msgspec.Struct, frozen=True, tag="report"):
    """How everything is; sent once a second, and at once when a state changes."""

    running: tuple[Running, ...]
