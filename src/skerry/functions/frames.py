"""What a host and a worker say to each other, over a socket pair: MsgPack behind a length.

The host sends `Setup` first, then `Task`s, and answers `Ask`s. The worker says `Ready` or `Broken`
once, then sends a `Done`, `Failed` or `Skipped` for each task, in order, many to a write; it may
`Ask` while it handles one. Each frame is a four-byte length, big-endian, and then a list of
messages.

Order. Tasks are given ahead, so behind one that fails there are others on their way that must not
be handled before it is tried again: with order `topic` all, with order `key` those of its key. The
worker answers them with `Skipped`, until a `Seen` tells it that what comes behind was given in
knowledge of the failure. (A final failure holds nothing up.)
"""

from __future__ import annotations

import struct
from typing import Any, Literal

import msgspec

from skerry.model.functions import Kind, Order

HEADER = struct.Struct(">I")
"""What a frame begins with: the bytes that follow."""
SCRATCH = 64 * 1024 * 1024
"""Bytes of files that a worker may write."""
SCRATCH_FILES = 4096
"""Files and folders that it may have there."""
EXIT_MEMORY = 86
"""How a worker exits that has no memory left."""


class Setup(msgspec.Struct, frozen=True, tag="setup", array_like=True):
    """What the worker is to run."""

    function: str
    kind: Kind
    path: str
    """The file with the code."""
    handler: str
    """Its handler's name; empty: the only one that there is."""
    order: Order
    cpu: float | None
    max_event_bytes: int
    fuel: int = 0


class Task(msgspec.Struct, frozen=True, tag="t", array_like=True):
    """An event to handle. `number` counts the tasks of one worker, from 1."""

    number: int
    topic: str
    index: int
    time_ns: int
    key: str | None
    headers: dict[str, str]
    data: bytes
    attempt: int = 1


class Published(msgspec.Struct, frozen=True, array_like=True):
    """An event that the handler publishes."""

    topic: str
    data: bytes
    key: str | None = None
    headers: dict[str, str] = {}


class Done(msgspec.Struct, frozen=True, tag="d", array_like=True):
    """The handler is through with a task."""

    number: int
    published: tuple[Published, ...] = ()
    state: dict[str, bytes | None] = {}
    """New values of the state; None: the key is gone."""


class Failed(msgspec.Struct, frozen=True, tag="f", array_like=True):
    """The handler raised, or what it returned cannot be taken. Nothing of it counts."""

    number: int
    error: str
    """In one line."""
    trace: str = ""
    final: bool = False
    """Trying again would not help: the event cannot be decoded, or it went in circles."""


class Skipped(msgspec.Struct, frozen=True, tag="s", array_like=True):
    """The task was not tried, for one before it failed that it must not overtake. Give it again
    behind that one."""

    number: int


class Seen(msgspec.Struct, frozen=True, tag="S", array_like=True):
    """The host knows of every failure up to task `number`."""

    number: int


class Ask(msgspec.Struct, frozen=True, tag="a", array_like=True):
    """The handler wants to know something; the host answers with an `Answer`.

    | what | arguments | value of the answer |
    | --- | --- | --- |
    | `state` | key | the value in MsgPack, or None: there is none |
    | `latest_index` | topic | a number |
    | `get` | topic, index | `[topic, index, time_ns, key, headers, data]` |
    | `read` | topic, from, to (or None: the latest) | a list of such: the first ones from there |

    A `read` is answered with as many events as the host likes, one at least if there is one; the
    worker asks again for those behind.
    """

    what: Literal["state", "get", "latest_index", "read"]
    arguments: tuple[Any, ...]


class Answer(msgspec.Struct, frozen=True, tag="A", array_like=True):
    """The answer to the worker's last `Ask`: a value, or the name and text of an error."""

    value: Any = None
    error: str = ""
    kind: str = ""
    advice: str = ""


class Ready(msgspec.Struct, frozen=True, tag="r", array_like=True):
    """The code is loaded. `handler` is its name; `confined` what of the sandbox is in force."""

    handler: str
    confined: tuple[str, ...] = ()


class Broken(msgspec.Struct, frozen=True, tag="b", array_like=True):
    """The code cannot be loaded."""

    error: str
    trace: str = ""


Result = Done | Failed | Skipped
ToWorker = Setup | Task | Seen | Answer
FromWorker = Ready | Broken | Result | Ask
