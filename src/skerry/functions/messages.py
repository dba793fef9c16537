"""What clients ask an agent about functions, and what they are told."""

from __future__ import annotations

from typing import Any

import msgspec

from skerry.functions.assignment import Running
from skerry.model.functions import Function
from skerry.model.names import is_own


class DeployRequest(msgspec.Struct, kw_only=True):
    """Asks for a function, or for a new version of one."""

    name: str
    file: str
    """The name of the file, for error messages; its ending says what kind of code it is."""
    code: bytes
    settings: dict[str, Any] = {}
    """Those that were given. Others are as in the version before, or as usual in the first."""
    handler: str = ""
    env: dict[str, str] | None = None
    """Variables of the code's environment; None: those of the version before."""


class DeployAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it."""

    function: Function
    changed: bool
    """False: it was deployed before exactly like this."""
    logs: dict[str, str]
    """The topics that it runs on, and the site where it does."""


class FunctionName(msgspec.Struct):
    """Names a function."""

    name: str


class RollbackRequest(msgspec.Struct):
    """Asks for an earlier version again."""

    name: str
    to: int


class ReplayRequest(msgspec.Struct, kw_only=True):
    """Asks for events to be handled once more: dead letters, or those of a log from `first` on."""

    name: str
    dead: bool = False
    log: str | None = None
    """None: the only one that the function runs on, or all with dead letters."""
    first: int | None = None
    last: int | None = None
    """None: the latest one at this moment."""
    id: str
    """Made anew for each request: one that is sent again counts once."""


class ReplayAnswer(msgspec.Struct, frozen=True):
    """What is handled once more: the logs, and the first and last index of each."""

    logs: dict[str, tuple[int, int]]
    dead: bool


class EnvAnswer(msgspec.Struct):
    """Variables that an agent has; None: it does not have them."""

    variables: dict[str, str] | None = None


class EnvRequest(msgspec.Struct):
    """Gives variables to another site's agent, or asks it for them."""

    env: str
    variables: dict[str, str] | None = None


class RunningAt(msgspec.Struct, frozen=True):
    """How a function is at a site."""

    site: str
    running: Running


class FunctionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A function, where it runs, and how it is."""

    function: Function
    logs: dict[str, str]
    """The topics that it runs on, and the site where it does."""
    running: tuple[RunningAt, ...] = ()
    away: tuple[str, ...] = ()
    """Sites that did not say how they are."""

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.name

    @property
    def state(self) -> str:
        """In one word: `running`, `paused`, `idle` (no topic matches), or the worst state of any
        topic that it runs on."""
        if self.function.paused:
            return "paused"
        if not self.logs:
            return "idle"
        states = {
            each.running.state
            for each in self.running
            if self.logs.get(each.running.log) == each.site
        }
        known = {each.running.log for each in self.running}
        for state in ("broken", "waiting", "retrying", "fenced", "starting"):
            if state in states:
                return state
        return "running" if set(self.logs) <= known else "starting"


def published_to(info: FunctionInfo) -> tuple[str, ...]:
    """Where a function was seen to publish to, without Skerry's own topics."""
    topics = {topic for each in info.running for topic in each.running.topics}
    return tuple(sorted(topic for topic in topics if not is_own(topic)))
