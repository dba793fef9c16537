"""Every error that Skerry raises, as one tree.

    SkerryError
    ├── InputError                the caller's fault; nothing was written
    │   ├── BadName               a topic or subscription name that cannot be one
    │   ├── BadIndex              an index that is negative or no whole number
    │   ├── BadSetting            a setting out of range, or two that contradict
    │   ├── BadQuery              a query that cannot be read; `column` says where
    │   ├── BadMetadata           a feed's metadata, or a change of it, that cannot be taken
    │   └── EventTooLarge         payload and headers exceed the topic's or engine's limit
    ├── TopicError
    │   ├── UnknownTopic          no such topic at this site
    │   ├── TopicExists           it exists with other settings
    │   ├── TopicOverlap          its name lies inside, or around, another topic
    │   └── DurabilityUnavailable the topic demands what its site does not give
    ├── UnknownFeed               no feed of that id
    ├── FeedTaken                 a feed of that id belongs to another owner
    ├── IndexUnavailable
    │   ├── AgedOut               below the first kept index, or expired
    │   └── NotYet                above the latest index
    ├── SubscriptionError         a durable subscription that differs, or is lost
    ├── AccessDenied              wrong credentials, or a right that this user lacks
    ├── StorageFull               the site's quota or disk is used up
    ├── Unavailable               the site did not answer in time
    │   └── OutcomeUnknown        … after a publish was sent: it may or may not be stored
    ├── PublishFailed             some events of a publisher were not acknowledged
    ├── FabricError               several sites together
    │   ├── NotInFabric           this site has not joined one
    │   ├── JoinRefused           the token is forged, expired or used, or versions differ
    │   ├── SiteTaken             another site has that name
    │   ├── UnknownSite           no site of that name
    │   ├── MoveFailed            a topic stayed where it was
    │   └── Conflict              somebody else changed the entry first
    ├── PipelineError             a pipeline of the user's
    │   ├── UnknownPipeline       no pipeline of that name, or it does not run
    │   ├── PipelineRuns          it runs already
    │   ├── CheckpointMismatch    its code cannot go on where its checkpoint ends
    │   └── PipelineFailed        it ended with an error of the user's code or of Spark
    ├── FunctionError             a function of the user's
    │   ├── UnknownFunction       no function of that name
    │   └── FunctionBroken        its code cannot be loaded; `trace` says where
    ├── EngineError               the engine's binary or process
    │   ├── EngineMissing, EngineTooOld, EngineUnfit, EngineFailed
    │   └── PortTaken
    └── FolderError               the data folder
        └── FolderLocked, FolderUnwritable, FolderTooNew, FolderCorrupt

An error says what happened and, in `advice`, what to do next. `exit_code` is what the
command line returns for it.
"""

from __future__ import annotations


class SkerryError(Exception):
    """Base of all errors raised by Skerry."""

    exit_code = 1

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(what, advice)
        self.what = what
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.what}\n{self.advice}" if self.advice else self.what


class InputError(SkerryError, ValueError):
    """The call itself is wrong; nothing was written."""

    exit_code = 2


class BadName(InputError):
    """A name that no topic or subscription can have."""


class BadIndex(InputError):
    """An index that is negative, zero or not a whole number."""


class BadSetting(InputError):
    """A setting that is out of range or contradicts another."""


class BadQuery(InputError):
    """A query that cannot be read. `column` and `line` say where, both counted from 1."""

    def __init__(self, what: str, advice: str = "", line: int = 1, column: int = 1) -> None:
        super().__init__(what, advice)
        self.line = line
        self.column = column


class BadMetadata(InputError):
    """A feed's metadata, or a change of it, that cannot be taken. Nothing was changed."""


class EventTooLarge(InputError):
    """Payload and headers are larger than the topic or the engine takes."""


class TopicError(SkerryError):
    """Something about a topic."""


class UnknownTopic(TopicError):
    """No topic of that name, nor one that it would be a sub-topic of."""

    exit_code = 3


class TopicExists(TopicError):
    """The topic exists with other settings; `differences` maps each to (theirs, yours)."""

    exit_code = 4

    def __init__(
        self,
        what: str,
        advice: str = "",
        differences: dict[str, tuple[object, object]] | None = None,
    ) -> None:
        super().__init__(what, advice)
        self.differences = differences or {}


class TopicOverlap(TopicError):
    """The name lies inside another topic, or another topic lies inside it."""

    exit_code = 4


class DurabilityUnavailable(TopicError):
    """The topic demands a durability that its site does not give."""

    exit_code = 4


class FeedTaken(SkerryError):
    """A feed of that id belongs to another owner."""

    exit_code = 4


class UnknownFeed(SkerryError):
    """No feed of that id is registered."""

    exit_code = 3


class IndexUnavailable(SkerryError):
    """The index is a good one, but the log has no event there for you."""

    exit_code = 3


class AgedOut(IndexUnavailable):
    """The event was there once. `first` is the first index still kept."""

    def __init__(self, what: str, advice: str = "", first: int = 0) -> None:
        super().__init__(what, advice)
        self.first = first


class NotYet(IndexUnavailable):
    """No event has this index yet. `latest` is the newest one."""

    def __init__(self, what: str, advice: str = "", latest: int = 0) -> None:
        super().__init__(what, advice)
        self.latest = latest


class SubscriptionError(SkerryError):
    """A durable subscription exists with other settings, or was removed under its reader."""

    exit_code = 4


class AccessDenied(SkerryError):
    """The engine refused the credentials, or this user may not do that."""

    exit_code = 6


class StorageFull(SkerryError):
    """The site has no room for the event. It was not stored."""

    exit_code = 7


class Unavailable(SkerryError):
    """The site could not be reached, or did not answer, within the time limit."""

    exit_code = 5


class OutcomeUnknown(Unavailable):
    """A publish was sent and not answered in time: it may or may not be in the log.

    Publishing again with the same `id` within the topic's duplicate window adds nothing twice.
    """


class PublishFailed(SkerryError):
    """A publisher had events that were not acknowledged; `first` is the first one's error."""

    def __init__(
        self, what: str, advice: str = "", count: int = 0, first: Exception | None = None
    ) -> None:
        super().__init__(what, advice)
        self.count = count
        self.first = first
        if isinstance(first, SkerryError):
            self.exit_code = first.exit_code


class FabricError(SkerryError):
    """Something between sites."""

    exit_code = 10


class NotInFabric(FabricError):
    """The site stands alone, and this needs a fabric."""


class JoinRefused(FabricError):
    """The coordination site did not take the token, or the version, of a site that joins."""

    exit_code = 6


class SiteTaken(FabricError):
    """Another site of the fabric has that name."""

    exit_code = 4


class UnknownSite(FabricError):
    """The fabric has no site of that name."""

    exit_code = 3


class MoveFailed(FabricError):
    """A topic could not be moved; it stays where it was."""


class Conflict(FabricError):
    """What was to be changed was changed by somebody else first. Nothing was written."""


class PipelineError(SkerryError):
    """Something about a pipeline of the user's."""


class UnknownPipeline(PipelineError):
    """No pipeline of that name, or it does not run."""

    exit_code = 3


class PipelineRuns(PipelineError):
    """The pipeline runs already; `pid` is its process id where known."""

    exit_code = 4

    def __init__(self, what: str, advice: str = "", pid: int | None = None) -> None:
        super().__init__(what, advice)
        self.pid = pid


class CheckpointMismatch(PipelineError):
    """The checkpoint was written by a pipeline of another shape. Nothing was read or written."""

    exit_code = 4


class PipelineFailed(PipelineError):
    """The pipeline ended with an error. Its checkpoint is whole: it can be run again."""


class FunctionError(SkerryError):
    """Something about a function of the user's."""


class UnknownFunction(FunctionError):
    """No function of that name is deployed."""

    exit_code = 3


class FunctionBroken(FunctionError):
    """The code of a function cannot be loaded. `trace` is where it failed, in lines."""

    exit_code = 4

    def __init__(self, what: str, advice: str = "", trace: str = "") -> None:
        super().__init__(what, advice)
        self.trace = trace


class EngineError(SkerryError):
    """The engine's binary or process."""

    exit_code = 8


class EngineMissing(EngineError):
    """No nats-server binary was found, or it cannot be executed; or Spark, or what it needs."""


class EngineTooOld(EngineError):
    """The nats-server is older than Skerry needs."""


class EngineUnfit(EngineError):
    """The engine at the given address lacks something that Skerry needs."""


class EngineFailed(EngineError):
    """The engine does not start, or keeps dying."""


def get_extra(name: str) -> str:
    """What to do where the packages of the extra `name` are not installed."""
    return f"Get what is missing with `pip install '.[{name}]'` in a clone of Skerry."


class PortTaken(EngineError):
    """Another process listens on a port that was asked for."""


class FolderError(SkerryError):
    """The data folder."""

    exit_code = 9


class FolderLocked(FolderError):
    """Another process uses the folder; `pid` is its process id where known."""

    def __init__(self, what: str, advice: str = "", pid: int | None = None) -> None:
        super().__init__(what, advice)
        self.pid = pid


class FolderUnwritable(FolderError):
    """The folder cannot be made or written."""


class FolderTooNew(FolderError):
    """A newer Skerry or engine wrote the folder."""


class FolderCorrupt(FolderError):
    """Something in the folder cannot be read, or a topic in it was not recovered."""
