"""The stream of a topic at one site: what the engine is told of it, and what it tells of itself."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from skerry.fabric.relay import UPSTREAM, source_api
from skerry.log.segments import CHAIN, Chain, Segment, chain, listing
from skerry.log.topics import PLAIN_DELIVERY, delivery, log_config, stream_config
from skerry.model.fabric import TopicEntry
from skerry.model.names import outbox_subject, stored_subject, stream_of
from skerry.model.promotion import Copy, State

OUTBOX = "outbox"
FIRST = "skerry.first"
"""Where a stream says which index of the log it begins with, once it counts as a segment."""
WELDED = "skerry.welded"
"""The mark of a stream that took in all that was here before it."""
ASIDE = "skerry.aside"
"""Where a stream that was begun anew says what its site has beside it (`promotion.Copy.aside`)."""
FORK = "skerry.fork"
"""Where the log ended, as far as it is history, beside which such a stream was begun."""
OPENING = "skerry.opening"
"""The mark of a home that is shut only until its members were asked."""
MARKS = ("label", "sealed", "root")
"""What `skerry.model.promotion` has every copy remember, kept in the stream's metadata."""


class Weld(msgspec.Struct):
    """What is left to be done once a stream has taken the place of others."""

    old: Chain
    """Those: who reads there is to be told, then they go."""
    gap: range = range(0)
    """Indexes at the end of the new one whose events are over. They are to be taken before it
    leads: no other event may get them."""


class Local:
    """One topic's log at this site."""

    def __init__(self, name: str, site: str) -> None:
        self.name = name
        self.places: list[tuple[int, int]] = [(0, 1)]
        """The log's segments: their numbers and first indexes; see `skerry.log.segments`."""
        self.is_welded = False
        """Whether the active segment took in all that was here before."""
        self.ends: dict[int, int] = {}
        """Streams, by their numbers, that may hold events beyond the index at which they end: those
        are no part of the history. `Tails` sees to them."""
        self.weld: Weld | None = None
        """What is left of a weld that was done. `Mending` sees to it."""
        self.given_up: list[int] = []
        """Streams that are to go before anything else is done: the log goes on in earlier ones."""
        self.thins = False
        """Whether events here may have removed earlier ones of their sub-topics."""
        self.kind = ""
        """What the active segment is: `home`, `frozen`, `copy`, or empty: no stream."""
        self.epoch = 0
        """The epoch that a home here takes events for."""
        self.is_ours = False
        """Whether the stream was made for a topic of this fabric."""
        self.stood_alone = False
        """Whether it was made by a site that was in no fabric."""
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
        self.told = 0
        """The start of the engine since which a leader may have been told how far the log is: what
        it had then it has."""
        self.stopped = 0
        """The start of the engine since which a copy here, that was chosen, is to become a home."""
        self.is_reopened = False
        """Whether a home is shut only until its members were asked."""
        self.work: asyncio.Task[None] | None = None
        self.mending: asyncio.Task[None] | None = None
        self.lease: asyncio.TimerHandle | None = None

    @property
    def stream(self) -> str:
        """The active segment."""
        return stream_of(self.name, self.places[-1][0])

    @property
    def signpost(self) -> str:
        """The stream with the log's own name."""
        return stream_of(self.name)

    @property
    def chain(self) -> Chain:
        """The log's segments."""
        return chain(self.name, self.places)

    @property
    def frozen(self) -> Chain:
        """What readers may still read and is to grow no more."""
        ends = {**cut_at(self.places[:-1], {}, self.places[-1][1] - 1), **self.ends}
        return tuple(Segment(stream_of(self.name, n), 1, end) for n, end in ends.items())

    @property
    def is_split(self) -> bool:
        """Whether the log is in several streams."""
        return len(self.places) > 1

    @property
    def is_whole(self) -> bool:
        """Whether it may lead as it is: one stream, in which no index is still to be taken."""
        return not self.is_split and not (self.weld and self.weld.gap)

    @property
    def segment(self) -> int:
        """The number of the stream that this site leads with, or would. If the log is split, its
        segments are welded into that one first."""
        return self.places[-1][0] + self.is_split

    @property
    def is_wanted(self) -> bool:
        """Whether readers asked for it."""
        return self.touched > 0

    @property
    def is_busy(self) -> bool:
        """Whether it is being replaced."""
        return self.work is not None and not self.work.done()

    @property
    def is_mending(self) -> bool:
        """Whether its segments are being put in order."""
        return self.mending is not None and not self.mending.done()


def learn(local: Local, info: dict[str, Any], fabric: str) -> None:
    """Take in what the engine says of the active segment. Marks never go back."""
    config = info["config"]
    marks = config.get("metadata") or {}
    if config.get("mirror"):
        local.kind = "copy"
    elif str(config["subjects"][0]).startswith("_frozen."):
        local.kind = "frozen"
    else:
        local.kind = "home"
    local.thins = config.get("max_msgs_per_subject", -1) > 0
    copy = local.copy
    copy.last = end_of(local, info)
    local.count = info["state"]["messages"]
    local.is_reopened = local.kind == "frozen" and OPENING in marks
    for mark in MARKS:
        setattr(copy, mark, max(int(marks.get(f"skerry.{mark}", 0)), getattr(copy, mark)))
    copy.aside = None
    if ASIDE in marks and not copy.label:
        copy.aside = msgspec.json.decode(marks[ASIDE], type=State)
        local.delivers = False
    local.epoch = int(marks.get("skerry.epoch", 0))
    local.is_ours = marks.get("skerry.fabric") == fabric
    local.stood_alone = "skerry.home" in marks and "skerry.fabric" not in marks
    local.is_welded = WELDED in marks


def end_of(local: Local, info: dict[str, Any]) -> int:
    """The last index of a log, by what the engine says of its active segment: that is empty, and
    ends nowhere, until it is positioned (`Logs.roll`)."""
    return max(int(info["state"]["last_seq"]), local.places[-1][1] - 1)


def gap_of(welded: dict[str, Any], last: int) -> range:
    """Which indexes a stream still lacks that took in others, which ended at `last`: it was to lead
    (`Logs.weld`), and the newest events were over."""
    config = welded["config"]
    is_to_lead = (config.get("metadata") or {}).get("skerry.epoch") == "0"
    return range(welded["state"]["last_seq"] + 1, last + 1) if is_to_lead else range(0)


def cut_at(places: Sequence[tuple[int, int]], ends: Mapping[int, int], end: int) -> dict[int, int]:
    """Where streams end, once all are cut at `end`. One that ended earlier stays so."""
    nexts = [*(first - 1 for _, first in places[1:]), end]
    cut = {number: min(last, end) for (number, _), last in zip(places, nexts, strict=False)}
    return {number: min(cut.get(number, end), ends.get(number, end)) for number in {*cut, *ends}}


class Found(msgspec.Struct):
    """What a log's streams are, by their numbers."""

    places: list[tuple[int, int]] = []
    """The chain."""
    ends: dict[int, int] = {}
    """Where others took over from streams that may hold more."""
    welded: dict[int, int] = {}
    """Streams that another took in, and where they ended. There may still be readers."""
    left_over: set[int] = set()
    """What a crash left: streams that are of no use, those included."""


def sort_out(streams: dict[int, dict[str, Any]]) -> Found:
    """Which chain a log's streams form. A later one takes the place of all that earlier ones hold
    from its first index on. If it was welded, it has all of that. A stream that does not say where
    it begins was not finished; the log's own stream need not say so."""
    found = Found()
    for number in sorted(streams):
        marks = streams[number]["config"].get("metadata") or {}
        if number and FIRST not in marks:
            found.left_over.add(number)
            continue
        first = int(marks.get(FIRST, 1))
        if WELDED in marks:
            found.welded |= cut_at(found.places, found.ends, sys.maxsize)
            found.left_over |= found.welded.keys()
            found.places, found.ends = [], {}
        found.ends = cut_at(found.places, found.ends, int(marks.get(FORK, first - 1)))
        found.places = [place for place in found.places if place[1] < first]
        found.places.append((number, first))
    found.left_over.discard(0)
    return found


def _metadata(local: Local, entry: TopicEntry, fabric: str) -> dict[str, str]:
    number, first = local.places[-1]
    return {
        **({FIRST: str(first)} if number else {}),
        **({WELDED: "1"} if local.is_welded else {}),
        **({ASIDE: msgspec.json.encode(aside).decode()} if (aside := local.copy.aside) else {}),
        **({FORK: str(max(local.ends.values()))} if number and first == 1 and local.ends else {}),
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
    config["name"] = local.stream
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
    number, first = local.places[-1]
    mirror = _upstream(local, local.stream)
    if number and not local.is_welded:
        mirror["opt_start_seq"] = first
    config = {
        "name": local.stream,
        **log_config(entry.settings),
        "mirror_direct": True,
        "mirror": mirror,
        "metadata": _metadata(local, entry, fabric),
    }
    if deliver_plain:
        config["republish"] = PLAIN_DELIVERY
    return config


def frozen_config(config: dict[str, Any], stream: str) -> dict[str, Any]:
    """A stream that takes nothing any more, whatever it was. The room that it reserved is free for
    what takes its place."""
    left_out = ("sources", "mirror", "republish", "mirror_direct")
    kept = {key: value for key, value in config.items() if key not in left_out}
    return {**kept, "subjects": [f"_frozen.{stream}"], "max_bytes": -1}


def weld_config(local: Local, entry: TopicEntry, stream: str) -> dict[str, Any]:
    """A stream that takes in what the segments hold. It is none before it has all."""
    return {
        "name": stream,
        **log_config(entry.settings),
        "max_bytes": -1,  # room is reserved once, by the active segment
        "allow_direct": False,  # nobody is to take it for the log
        "mirror": _upstream(local, stream),
    }


def _upstream(local: Local, stream: str) -> dict[str, Any]:
    """Whom a mirror follows: the engine asks us."""
    return {"name": stream, "external": {"api": UPSTREAM, "deliver": f"$JS.M.{local.copy.site}"}}


def signpost_config(config: dict[str, Any], local: Local) -> dict[str, Any]:
    """The stream with the log's own name, once it is not the active segment."""
    metadata = {**(config.get("metadata") or {}), CHAIN: listing(local.places)}
    return {**config, "max_bytes": -1, "metadata": metadata}


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
