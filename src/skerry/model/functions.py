"""Functions: what is known of one, and what its code sees."""

from __future__ import annotations

import hashlib
import re
from typing import Literal, get_args

import msgspec

from skerry.errors import BadName, BadSetting
from skerry.model.names import check_site
from skerry.model.pattern import Pattern

Order = Literal["topic", "key", "none"]
"""Which events of a topic are handled one after the other: all, those of one key, or none."""
Kind = Literal["python", "wasm"]

MAX_CODE = 4 * 1024 * 1024
"""Bytes. Code travels as one event, beside which its envelope must have room."""
MAX_STATE_VALUE = 64 * 1024
"""Bytes of one value that a function keeps."""
MAX_HOPS = 16
"""Functions that an event may have come through, one behind the other."""
VERSIONS = 16
"""Versions that are kept for a rollback."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", re.ASCII)

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_REQUIREMENT = re.compile(r"[A-Za-z0-9][^\r\n]{0,499}", re.ASCII)

REGISTRY = "functions/registry"
LOGS = "functions/logs"
DEAD = "functions/dead"
AGAIN = "functions/again"
JOURNALS = "functions/journals"


class FunctionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a function runs."""

    topic: str
    """A topic, with all below it, or a pattern: `sensors/+`."""
    site: str | None = None
    """Where it runs; None: at the home of each topic, moving with it."""
    order: Order = "topic"
    concurrency: int = 1
    """Worker processes for each topic. More than one only help with order `key` or `none`."""
    memory: int = 256 * 1024 * 1024
    """Bytes of data that a worker may have."""
    timeout: float = 5.0
    """Seconds that one event may take."""
    cpu: float | None = None
    """Seconds of CPU time that one event may take; None: as long as it has time."""
    retries: int = 3
    """Attempts after the first before an event goes to the dead letters."""
    network: bool = False
    """Whether the code may open sockets."""

    def check(self) -> FunctionSettings:
        """Return it if it makes sense; else raise `BadName` or `BadSetting`."""
        Pattern.parse(self.topic)
        if self.topic.split("/")[0] == "functions":
            raise BadSetting(
                f"the topic {self.topic} is Skerry's own", "Functions run on topics of yours."
            )
        if self.site is not None:
            check_site(self.site)
        if self.order not in get_args(Order):
            raise BadSetting(
                f"order is topic, key or none, not {self.order!r}", "Give --order topic."
            )
        if not 1 <= self.concurrency <= 64:
            raise BadSetting(
                f"concurrency is 1 to 64, not {self.concurrency!r}", "Give --concurrency 4."
            )
        if self.order == "topic" and self.concurrency != 1:
            raise BadSetting(
                "with order 'topic' events are handled one at a time",
                "Give --order key or --order none for more than one worker.",
            )
        if not 32 * 1024 * 1024 <= self.memory <= 1 << 40:
            raise BadSetting("a worker's memory is 32 MiB or more", "Give --memory 256M.")
        for name, value in (("timeout", self.timeout), ("cpu", self.cpu)):
            if value is not None and not 0.001 <= value <= 3600:
                raise BadSetting(
                    f"{name} is 1 ms to 1 h, not {value!r} s", f"Give --{name} 5s, or 200ms."
                )
        if not 0 <= self.retries <= 100:
            raise BadSetting(f"retries are 0 to 100, not {self.retries!r}", "Give --retries 3.")
        return self


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One deployment of a function."""

    number: int
    code: str
    """SHA-256 of the code, in hexadecimal."""
    kind: Kind
    handler: str
    """The name of the handler in the code."""
    settings: FunctionSettings
    requires: tuple[str, ...] = ()
    """What the code declares that it depends on."""
    env: str | None = None
    """Names the variables of its environment, which sites keep in files of their own: SHA-256 of
    them and of some salt, for who reads this must not be able to guess a password."""
    site: str
    """Where it was deployed from."""
    deployed: int
    """When, in nanoseconds since 1970."""

    def check(self) -> Version:
        """Return it if it is one that could have been deployed; else raise `BadName` or
        `BadSetting`."""
        self.settings.check()
        check_site(self.site)
        check_requires(self.requires)
        for digest in (self.code, self.env):
            if digest is not None and not _DIGEST.fullmatch(digest):
                raise BadSetting(f"{digest!r:.80} is no digest")
        if self.handler and not self.handler.isidentifier() and self.kind == "python":
            raise BadSetting(f"{self.handler!r:.80} names no handler")
        return self


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A function as the registry has it."""

    name: str
    versions: tuple[Version, ...]
    """The last ones, the newest last: that one runs."""
    since: int
    """When it was first deployed, in nanoseconds since 1970. It sees what was stored since."""
    paused: bool = False

    @property
    def current(self) -> Version:
        """The version that runs."""
        return self.versions[-1]

    def check(self) -> Function:
        """Return it if it is one that could have been deployed; else raise `BadName` or
        `BadSetting`."""
        check_function(self.name)
        if not self.versions:
            raise BadSetting(f"the function {self.name} has no version")
        for version in self.versions:
            version.check()
        return self


class Again(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for events to be handled once more: those of a log, or dead letters of that log."""

    log: str
    first: int
    last: int
    dead: bool = False
    """Whether first and last are indexes of the dead letters."""
    since: int = 0
    """Which function of that name is asked, by when it was first deployed: one that was removed and
    deployed again is another."""


def check_function(name: str) -> str:
    """Return `name` if a function can have it; else raise `BadName`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadName(
            f"{name!r} cannot name a function",
            "Use 1 to 32 letters, digits, _ or -, and begin with a letter or a digit.",
        )
    return name


def check_requires(requires: tuple[str, ...]) -> tuple[str, ...]:
    """Return `requires` if each is a requirement as pip takes it, and none an option or a file of
    more; else raise `BadSetting`."""
    for each in requires:
        if not _REQUIREMENT.fullmatch(each):
            raise BadSetting(
                f"{each!r:.80} is no requirement",
                'Write them as pip takes them, such as "numpy>=2".',
            )
    return requires


def journal_of(function: str, log: str) -> str:
    """The topic that keeps how far a function is with a log, and its state."""
    return f"{JOURNALS}/{function}/{digest_of(log)}"


def digest_of(log: str) -> str:
    """What a log is called in the names of journals."""
    return hashlib.sha256(log.encode()).hexdigest()[:16]
