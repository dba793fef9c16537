"""The stream of a topic at one site: what the engine is told of it, and what it tells of itself."""

from __future__ import annotations

import asyncio
from typing import Any

from skerry.fabric.relay import UPSTREAM, source_api
from skerry.log.topics import PLAIN_DELIVERY, delivery, log_config, stream_config
from skerry.model.fabric import TopicEntry
from skerry.model.names import (
    outbox_subject,
    reserve_of,
    stored_subject,
    stream_of,
    topic_of_reserve,
)
from skerry.model.promotion import Copy, State
from skerry.model.topic import TopicSettings

OUTBOX = "outbox"
OPENING = "skerry.opening"
"""The mark of a home that is shut only until its members were asked."""
MARKS = ("label", "sealed", "root")
"""What `skerry.model.promotion` has every copy remember, kept in the stream's metadata."""


class Local:
    """One topic's stream at this site."""

    def __init__(self, name: str, site: str) -> None:
        self.name = name
        self.stream = stream_of(name)
        self.kind = ""
        """`home`, `frozen`, `copy`, or empty: no stream."""
        self.epoch = 0
        """The epoch that a home here takes events for."""
        self.is_ours = False
        """Whether the stream was made for a topic of this fabric."""
        self.copy = Copy(site)
        self.lock = asyncio.Lock()
        self.parent = ""
        self.path: tuple[str, ...] = ()
        """Through which sites it follows the home: its parent last."""
        self.sources: dict[str, float] = {}
        """Sites whose outbox this home reads, and until when."""
        self.delivers = True
        """Whether plain subscribers get what this copy takes; not while it fetches the history."""
        self.touched = 0.0
        """When a reader last asked for this copy."""
        self.stuck = 0.0
        """Since when it waits, sealed, for an epoch that does not come."""
        self.patience = 0.0
        self.count = 0
        """How many events the log held when it was looked at last."""
        self.checked = 0
        """The start of the engine since which a home here is known to be behind no member."""
        self.is_reopened = False
        """Whether a home is shut only until its members were asked."""
        self.work: asyncio.Task[None] | None = None
        self.release: asyncio.Task[None] | None = None
        self.lease: asyncio.TimerHandle | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether readers asked for it."""
        return self.touched > 0

    @property
    def is_busy(self) -> bool:
        """Whether it is being replaced."""
        return self.work is not None and not self.work.done()


def learn(local: Local, info: dict[str, Any], fabric: str) -> None:
    """Take in what the engine says of the stream. Marks never go back."""
    config = info["config"]
    marks = config.get("metadata") or {}
    if config.get("mirror"):
        local.kind = "copy"
    elif str(config["subjects"][0]).startswith("_frozen."):
        local.kind = "frozen"
    else:
        local.kind = "home"
    copy = local.copy
    copy.last = info["state"]["last_seq"]
    local.count = info["state"]["messages"]
    local.is_reopened = local.kind == "frozen" and OPENING in marks
    for mark in MARKS:
        setattr(copy, mark, max(int(marks.get(f"skerry.{mark}", 0)), getattr(copy, mark)))
    local.epoch = int(marks.get("skerry.epoch", 0))
    local.is_ours = marks.get("skerry.fabric") == fabric


def _metadata(local: Local, entry: TopicEntry, fabric: str) -> dict[str, str]:
    return {
        "skerry.home": entry.home,
        "skerry.durability": entry.settings.durability,
        "skerry.fabric": fabric,
        "skerry.epoch": str(entry.epoch),
        **{f"skerry.{mark}": str(getattr(local.copy, mark)) for mark in MARKS},
    }


def home_config(
    local: Local, entry: TopicEntry, fabric: str, deliver_plain: bool
) -> dict[str, Any]:
    """The log at the topic's home, reading the outboxes that were asked for."""
    site = local.copy.site
    config = stream_config(site, entry.name, entry.settings, entry.epoch)
    config["metadata"] = _metadata(local, entry, fabric)
    if (told := delivery(entry.name, site, deliver_plain)) is not None:
        config["republish"] = told
    if local.sources:
        stored = stored_subject(entry.name)
        config["sources"] = [
            source_config(source, outbox_subject(source, entry.name), stored, site)
            for source in sorted(local.sources)
        ]
    return config


def copy_config(
    local: Local, entry: TopicEntry, fabric: str, deliver_plain: bool
) -> dict[str, Any]:
    """A copy; whom it follows the engine asks us, see `Relay`."""
    site = local.copy.site
    config = {
        "name": local.stream,
        **log_config(entry.settings),
        "mirror_direct": True,
        "mirror": {
            "name": local.stream,
            "external": {"api": UPSTREAM, "deliver": f"$JS.M.{site}"},
        },
        "metadata": _metadata(local, entry, fabric),
    }
    if deliver_plain:
        config["republish"] = PLAIN_DELIVERY
    return config


def reserve_config(local: Local, settings: TopicSettings, fabric: str) -> dict[str, Any]:
    """The stream that the log is put aside in: a mirror of it at the same engine, until it is
    whole, see `reserve_in`."""
    return {
        "name": reserve_of(local.name),
        **log_config(settings),
        "mirror": {"name": local.stream},
        "metadata": {"skerry.fabric": fabric},
    }


def restored_config(local: Local, settings: TopicSettings, fabric: str) -> dict[str, Any]:
    """A log that is brought back from its reserve, to be promoted at once. It claims nothing."""
    return {
        "name": local.stream,
        **log_config(settings),
        "mirror_direct": True,
        "mirror": {"name": reserve_of(local.name)},
        "metadata": {"skerry.fabric": fabric},
    }


def whole(local: Local) -> dict[str, str]:
    """The marks of a reserve that holds all of the log as it is now."""
    copy = local.copy
    return {
        "skerry.label": str(copy.label),
        "skerry.root": str(copy.root),
        "skerry.last": str(copy.last),
        "skerry.former": str(int(local.kind == "frozen")),
    }


def is_brought_back(info: dict[str, Any]) -> bool:
    """Whether a log was being brought back from its reserve, and not promoted."""
    mirror = info["config"].get("mirror") or {}
    return topic_of_reserve(mirror.get("name", "")) is not None


def reserve_in(site: str, info: dict[str, Any]) -> State | None:
    """What a reserve counts for; None: it was not made whole."""
    marks = info["config"].get("metadata") or {}
    if "skerry.last" not in marks:
        return None
    label, last, root = (int(marks[f"skerry.{mark}"]) for mark in ("label", "last", "root"))
    return State(site, label, last, root, young=True, reserve=True)


def source_config(site: str, subject: str, stored: str, reader: str) -> dict[str, Any]:
    """Have a stream at `reader` read the outbox of `site`: `subject` there is `stored` here. The
    own outbox is named like the others, so that the engine knows how far it was read wherever the
    home goes."""
    return {
        "name": OUTBOX,
        "subject_transforms": [
            {"src": subject, "dest": stored},
            {"src": f"{subject}.>", "dest": f"{stored}.>"},
        ],
        "external": {"api": source_api(site), "deliver": f"$JS.M.{reader}"},
    }


def differs(wanted: dict[str, Any], config: dict[str, Any]) -> bool:
    """Whether a stream's configuration lacks something of `wanted`; metadata is compared by what
    we write there."""
    for key, value in wanted.items():
        have = config.get(key)
        if key == "metadata":
            if any((have or {}).get(k) != v for k, v in value.items()):
                return True
        elif key in ("mirror", "sources"):
            names = [s.get("external", {}).get("api") for s in _list(value)]
            if names != [s.get("external", {}).get("api") for s in _list(have)]:
                return True
        elif have != value:
            return True
    return bool(config.get("sources")) and "sources" not in wanted


def _list(value: Any) -> list[dict[str, Any]]:
    return value if isinstance(value, list) else [value] if value else []
