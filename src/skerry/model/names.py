"""Topic names, and what the engine calls them.

A topic name is a path of plain tokens, `building/soda/410`. The mapping to the engine is
one-to-one, so that a name can be read back from a subject or a stream:

    topic            building/soda/410
    stored subject   e.building.soda.410        the same wherever the topic lives
    write subject    s.<site>.<epoch>.building.soda.410   SDK and agents; epoch 0 outside a fabric
    outbox           o.<site>.building.soda.410 kept at the publisher's site until the home has it
    plain publish    p.building.soda.410        MQTT: p/building/soda/410
    … mapped to      s.<site>.p.building.soda.410         at a site that stands alone
    delivery         t.building.soda.410        MQTT: t/building/soda/410
    feed delivery    f.<home>.feeds.<site>.log.<feed>     what subscribers by query listen to
    requests         q.in.<client>, q.out.<client>        of clients without the SDK, and answers
    stream           t~building~soda~410
    … later segments t~building~soda~410~~1     see `skerry.log.segments`
    tail             r~building~soda~410~~1     what a segment held beyond the history

A token holds letters, digits, `_` and `-`. That leaves out what means something to the engine
(`. * > $`), to MQTT (`+ #`), to file systems and to shells, and it leaves `~` free to join the
tokens of a stream's name.
"""

from __future__ import annotations

import functools
import re
from typing import Annotated

from msgspec import Meta

from skerry.errors import AccessDenied, BadName

MAX_LENGTH = 180
"""Characters. A stream's name becomes a folder's name, which file systems limit to 255 bytes."""

MAX_DEPTH = 16
"""Tokens. MQTT and NATS take more; nobody reads more."""

STREAM_PREFIX = "t~"
TAIL_PREFIX = "r~"

OWN = ("functions", "placement", "strays")
"""First levels of topics that only Skerry makes and writes to. So are the records of feeds, see
`feed_records`."""

INBOX = "_INBOX_sk"
"""Where answers to Skerry's own users go: `_INBOX_sk.<site>.<user>.…`, which each of them alone may
listen to. Clients without the SDK have their libraries' usual `_INBOX.…` to themselves."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)

# The same rules as types: what is decoded as one of these can be part of a subject.
_T = "[A-Za-z0-9_-]"
TopicText = Annotated[
    str, Meta(max_length=MAX_LENGTH, pattern=rf"^(?!_){_T}+(/{_T}+){{0,{MAX_DEPTH - 1}}}\Z")
]
SubscriptionText = Annotated[str, Meta(pattern=rf"^{_T}{{1,64}}\Z")]
SiteText = Annotated[str, Meta(pattern=rf"^{_T}{{1,32}}\Z")]
InboxText = Annotated[str, Meta(max_length=255, pattern=rf"^{INBOX}(\.[A-Za-z0-9_~-]+)+\Z")]


def check_topic(name: str) -> str:
    """Return `name` if it is a good topic name; else raise `BadName` with the reason."""
    if not isinstance(name, str):
        raise BadName(f"a topic name is text, not {type(name).__name__}")
    return _checked(name)


@functools.lru_cache(4096)
def _checked(name: str) -> str:
    if not name:
        raise BadName("a topic name is empty", "Name it with a path such as sensors/roof/temp.")
    if len(name) > MAX_LENGTH:
        raise BadName(
            f"the topic name has {len(name)} characters, {MAX_LENGTH} at most are taken",
            "Shorten its tokens.",
        )
    tokens = name.split("/")
    if len(tokens) > MAX_DEPTH:
        raise BadName(f"the topic name has {len(tokens)} levels, {MAX_DEPTH} at most are taken")
    for token in tokens:
        _check_token(name, token)
    if name[0] == "_":
        raise BadName(
            f"the topic name {name!r} is reserved: names that begin with _ are Skerry's own",
            "Begin it with a letter or a digit.",
        )
    return name


def check_subscription(name: str) -> str:
    """Return `name` if a durable subscription can have it; else raise `BadName`."""
    if not isinstance(name, str) or not _TOKEN.fullmatch(name) or len(name) > 64:
        raise BadName(
            f"{name!r} cannot name a durable subscription",
            "Use 1 to 64 letters, digits, _ or -.",
        )
    return name


def check_site(name: str) -> str:
    """Return `name` if a site can have it; else raise `BadName`."""
    if not isinstance(name, str) or not _TOKEN.fullmatch(name) or len(name) > 32:
        raise BadName(f"{name!r} cannot name a site", "Use 1 to 32 letters, digits, _ or -.")
    return name


def inbox_of(site: str, user: str) -> str:
    """What the inboxes of a user of `site` begin with."""
    return f"{INBOX}.{site}.{user}"


def write_subject(site: str, topic: str, epoch: int = 0) -> str:
    """The subject that the SDK publishes `topic` on when its home is `site` in `epoch`. Naming the
    epoch keeps what was meant for an earlier one out of the log."""
    return f"s.{site}.{epoch}.{topic.replace('/', '.')}"


def plain_subject(site: str, topic: str) -> str:
    """The subject that the engine maps plain publishes of `topic` to, at a site that stands alone.
    The topic takes it as it takes its write subject."""
    return f"s.{site}.p.{topic.replace('/', '.')}"


def any_write_subject(site: str, topic: str) -> str:
    """What a topic at a site that stands alone takes: both of these."""
    return f"s.{site}.*.{topic.replace('/', '.')}"


def outbox_subject(site: str, topic: str) -> str:
    """The subject that keeps an event of `topic` at `site` until the home has it."""
    return f"o.{site}.{topic.replace('/', '.')}"


def stored_subject(topic: str) -> str:
    """The subject that an event of `topic` has inside a log."""
    return "e." + topic.replace("/", ".")


def topic_of_subject(subject: str) -> str:
    """The topic of a stored, delivery or plain subject (`e.`, `t.`, `p.`)."""
    return subject[2:].replace(".", "/")


def stream_of(topic: str, segment: int = 0) -> str:
    """The name of the stream that holds the log of `topic`, or a later segment of it."""
    name = STREAM_PREFIX + topic.replace("/", "~")
    return f"{name}~~{segment}" if segment else name


def topic_of_stream(stream: str) -> str | None:
    """The topic whose log `stream` is, or None if it is not a topic's, or a later segment."""
    found = segment_of_stream(stream)
    return found[0] if found is not None and not found[1] else None


def segment_of_stream(stream: str) -> tuple[str, int] | None:
    """The topic and the number of the segment that `stream` is, or None if it is no topic's."""
    if not stream.startswith(STREAM_PREFIX):
        return None
    name, _, number = stream[len(STREAM_PREFIX) :].partition("~~")
    if number and not number.isdecimal():
        return None
    return name.replace("~", "/"), int(number or 0)


def tail_of(stream: str) -> str:
    """The name of the stream that keeps what the segment `stream` held beyond the history."""
    return TAIL_PREFIX + stream.removeprefix(STREAM_PREFIX)


def topic_of_tail(stream: str) -> str | None:
    """The topic that `stream` is a tail of, or None if it is no tail."""
    if not stream.startswith(TAIL_PREFIX):
        return None
    found = segment_of_stream(STREAM_PREFIX + stream.removeprefix(TAIL_PREFIX))
    return found[0] if found else None


def feed_log(site: str) -> str:
    """The topic that keeps the events of feeds that were registered at `site`, each feed's in a
    sub-topic of its own."""
    return f"feeds/{site}/log"


def feed_records(site: str) -> str:
    """The topic that keeps what is known of the feeds that were registered at `site`."""
    return f"feeds/{site}/about"


def feed_queries(site: str) -> str:
    """The topic that keeps where the durable queries of `site` are."""
    return f"feeds/{site}/queries"


def is_feed_log(topic: str) -> bool:
    """Whether `topic` is some site's feed log."""
    tokens = topic.split("/")
    return len(tokens) == 3 and tokens[0] == "feeds" and tokens[2] == "log"


def is_feed_records(topic: str) -> bool:
    """Whether `topic` holds some site's records of feeds."""
    tokens = topic.split("/")
    return len(tokens) == 3 and tokens[0] == "feeds" and tokens[2] == "about"


def strays_of(site: str) -> str:
    """The topic that keeps what is published at `site` to topics that do not exist."""
    return f"strays/{site}"


def stray_topic(site: str, topic: str) -> str:
    """Where an event for `topic`, which does not exist and may have any name, is kept: a good name
    that shows what was meant."""
    tokens = [re.sub(r"[^A-Za-z0-9_-]", "_", token) or "_" for token in topic.split("/")]
    name = "/".join([strays_of(site), *tokens[: MAX_DEPTH - 2]])
    return name[:MAX_LENGTH].rstrip("/")


def feed_subject(home: str, topic: str) -> str:
    """Where the engine at `home` tells those who subscribe by query of an event of `topic`."""
    return f"f.{home}.{topic.replace('/', '.')}"


def differences_subject(site: str, key: str) -> str:
    """Where the agent of `site` tells which feeds joined or left a query's result."""
    return f"_sk.{site}.query.{key}"


def is_own(topic: str) -> bool:
    """Whether `topic` is one that only Skerry writes to, or takes one in."""
    tokens = topic.split("/")
    if tokens[0] == "feeds":
        return len(tokens) < 3 or tokens[2] == "about"
    return tokens[0] in OWN


def check_not_own(topic: str) -> str:
    """Return `topic` if clients may have it; else raise `AccessDenied`."""
    if is_own(topic):
        raise AccessDenied(
            f"the topic {topic} is Skerry's own, or would hold one that is",
            f"Choose another name: all below {', '.join(OWN)} and feeds/<site>/about is reserved.",
        )
    return topic


def source_bytes(site: str, topic: str, subject: str) -> int:
    """How many bytes, at the most, the home of `topic` adds to an event that it reads from the
    outbox of `site`, where that has this subject."""
    names = len(outbox_subject(site, topic)) + len(stored_subject(topic))
    return 100 + 2 * names + len(subject)


def is_within(topic: str, parent: str) -> bool:
    """Whether `topic` is `parent` or one of its sub-topics."""
    return topic == parent or topic.startswith(parent + "/")


def _check_token(name: str, token: str) -> None:
    if _TOKEN.fullmatch(token):
        return
    if token == "":
        raise BadName(
            f"the topic name {name!r} has an empty level",
            "Write it without a leading, trailing or double slash.",
        )
    bad = next(c for c in token if not _TOKEN.fullmatch(c))
    if bad in "*>+#":
        raise BadName(
            f"the topic name {name!r} holds the wildcard {bad!r}",
            "Name one topic; reading a topic also reads its sub-topics.",
        )
    if bad.isprintable():
        raise BadName(
            f"the topic name {name!r} holds {bad!r}",
            "Tokens hold letters, digits, _ and -, with / between them.",
        )
    raise BadName(
        f"the topic name {name!r} holds the control character U+{ord(bad):04X}",
        "Tokens hold letters, digits, _ and -, with / between them.",
    )
