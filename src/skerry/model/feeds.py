"""Feeds: one publisher's stream each, with metadata that queries are asked over.

Metadata maps keys (`Location/Room`) to values: text, a number, true or false, or a list of these.
A publisher that changes some of it sends the difference: the keys that change with their new
values, and `None` for a key that goes away.

Skerry describes a feed with keys of its own, which begin with `skerry/`; nobody else may set one.
The word `payload`, and names that begin with `payload.`, mean an event's content in a query and
are therefore no keys.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from skerry.errors import BadMetadata
from skerry.model.event import Event
from skerry.model.names import check_topic, feed_log, feed_records
from skerry.model.records import read

Scalar = str | int | float | bool
Value = Scalar | list[Scalar]
Metadata = dict[str, Value]
Change = dict[str, Value | None]

MAX_KEYS = 256
"""Keys of one feed. Descriptions of real sensors (sMAP, Brick) have 5 to 40."""

MAX_KEY_BYTES = 256
"""Bytes of a key in UTF-8."""

MAX_VALUE_BYTES = 4096
"""Bytes of one value, its texts in UTF-8 and 8 for a number; a list counts all its elements."""

MAX_BYTES = 16_384
"""Bytes of all keys and values together: what a site of a thousand feeds holds in 16 MB."""

FEED_LEASE = 30.0
"""Seconds that a feed stays when its owner says nothing."""

RESERVED = "skerry/"
"""Keys that begin so are Skerry's own."""

PAYLOAD = "payload"
"""Means an event's content in a query."""

OWNER, TOPIC, SITE = "skerry/owner", "skerry/topic", "skerry/site"
"""What Skerry itself says of every feed, so that queries can ask for it."""

_MIN_INT, _MAX_INT = -(2**63), 2**64 - 1
_NUMBER_BYTES = 8


class Feed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One publisher's stream, as it is known."""

    id: str
    """A UUID, as text in lower case."""
    owner: str
    """Who registered it: only they change or remove it."""
    topic: str
    """Where its events are published."""
    site: str
    """Where it was registered."""
    metadata: Metadata = {}
    permanent: bool = False
    """Whether it stays although nobody renews it."""
    lease: float = FEED_LEASE
    """Seconds that it stays when nothing is heard of its owner."""
    version: int = 1
    """Grows with each change."""
    since: int = 0
    """When it was registered first, in nanoseconds since 1970."""
    at: int = 0
    """The index of its newest event when it became what it is; later events are behind that. -1:
    not known."""
    removed: bool = False
    """Said once, when it goes."""

    def described(self) -> Metadata:
        """What queries see: the metadata, and Skerry's own keys. The topic only if it was chosen:
        each feed of a feed log has another one."""
        own: Metadata = {OWNER: self.owner, SITE: self.site}
        if self.topic != f"{feed_log(self.site)}/{self.id}":
            own[TOPIC] = self.topic
        return {**self.metadata, **own}


def read_feed(event: Event) -> Feed | None:
    """The record of a feed, in the log of the site that it names; None: it is set aside."""

    def fits(feed: Feed) -> bool:
        check_topic(feed.topic)
        check_metadata(feed.metadata)
        return event.topic == f"{feed_records(feed.site)}/{check_id(feed.id)}"

    return read(event.data, Feed, event.topic, fits=fits)


def takes_over(new: Feed, held: Feed) -> bool:
    """Whether what one site says of a feed counts more than what another says. An owner may go to
    another site with a feed; between two owners the one that registered first wins."""
    if new.site == held.site:
        return (new.since, new.version) >= (held.since, held.version)
    if new.removed:
        return False
    if new.owner == held.owner:
        return (new.version, new.site) > (held.version, held.site)
    return (new.since, new.owner) < (held.since, held.owner)


class Joined(msgspec.Struct, frozen=True):
    """A feed belongs to a query's result from now on."""

    feed: Feed


class Left(msgspec.Struct, frozen=True):
    """A feed does not belong to a query's result any more."""

    feed: Feed


class Received(msgspec.Struct, frozen=True):
    """An event of a feed that matches."""

    feed: Feed
    event: Event


class Missed(msgspec.Struct, frozen=True):
    """Events of a feed that matches aged out before this subscriber took them."""

    feed: Feed
    first: int
    last: int
    """Between these indexes, both included, there was at least one event."""


def check_id(id: str) -> str:
    """The feed's id in its one spelling, or `BadMetadata` if it is no UUID."""
    try:
        return str(uuid.UUID(id))
    except (ValueError, AttributeError, TypeError):
        raise BadMetadata(
            f"{id!r:.80} is no feed's id",
            "Use a UUID such as 6f1c1b8e-5f0a-4b6e-9a3d-0d5f3f1d2c11.",
        ) from None


def check_metadata(metadata: Metadata) -> Metadata:
    """`metadata` itself if a feed can have it; else raise `BadMetadata`."""
    _check(metadata, deletes=False)
    return metadata


def check_change(change: Change) -> Change:
    """`change` itself if it can be asked for; else raise `BadMetadata`.

    That the result stays within the limits is checked by `apply`.
    """
    _check(change, deletes=True)
    return change


def apply(metadata: Metadata, change: Change) -> Metadata:
    """The metadata after `change`, as a new dict. Applying a change twice is applying it once.

    Raises `BadMetadata` when the result would be over a limit.
    """
    after: Metadata = dict(metadata)
    for key, value in change.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = value
    own = [key for key in after if not key.startswith(RESERVED)]
    _check_total(len(own), sum(_key_bytes(k) + _value_bytes(k, after[k]) for k in own))
    return after


def difference(before: Metadata, after: Metadata) -> Change:
    """The smallest change that makes `after` of `before`."""
    change: Change = {key: None for key in before if key not in after}
    for key, value in after.items():
        if key not in before or not _same(before[key], value):
            change[key] = value
    return change


def _same(one: Value, other: Value) -> bool:
    """Equal, and of one kind: `True == 1` is a change."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _check(metadata: Mapping[str, Any], deletes: bool) -> None:
    if not isinstance(metadata, dict):
        raise BadMetadata(
            f"metadata is a map of keys to values, not {type(metadata).__name__}",
            'Give it as {"Location/Room": "410"}.',
        )
    total = 0
    for key, value in metadata.items():
        total += _key_bytes(key)
        if value is not None or not deletes:
            total += _value_bytes(key, value)
    _check_total(len(metadata), total)


def _check_total(keys: int, total: int) -> None:
    if keys > MAX_KEYS:
        raise BadMetadata(
            f"the metadata has {keys} keys, {MAX_KEYS} at most are taken",
            "Delete keys by setting them to null, or gather values in a list.",
        )
    if total > MAX_BYTES:
        raise BadMetadata(
            f"the metadata has {total} bytes, {MAX_BYTES} at most are taken",
            "Metadata describes a feed; what it measures goes into its events.",
        )


def _key_bytes(key: Any) -> int:
    if not isinstance(key, str):
        raise BadMetadata(f"a key is text, not {type(key).__name__}")
    if not key:
        raise BadMetadata("a key is empty", "Name it, for instance Location/Room.")
    if not key.isprintable():
        bad = next(c for c in key if not c.isprintable())
        raise BadMetadata(
            f"the key {key!r:.80} holds the character U+{ord(bad):04X}, which cannot be seen",
            "Keys hold letters, digits, spaces and signs.",
        )
    if key == PAYLOAD or key.startswith((RESERVED, PAYLOAD + ".")):
        raise BadMetadata(
            f"the key {key!r:.80} is reserved",
            f"Keys that begin with {RESERVED} are Skerry's own; {PAYLOAD} means an event's content "
            "in a query.",
        )
    size = len(key) if key.isascii() else len(key.encode())
    if size > MAX_KEY_BYTES:
        raise BadMetadata(
            f"the key {key[:20]!r}… has {size} bytes, {MAX_KEY_BYTES} at most are taken"
        )
    return size


def _value_bytes(key: str, value: Any) -> int:
    if isinstance(value, list):
        size = sum(_scalar_bytes(key, element) for element in value)
        size += len(value)
    else:
        size = _scalar_bytes(key, value)
    if size > MAX_VALUE_BYTES:
        raise BadMetadata(
            f"the value of {key!r} has {size} bytes, {MAX_VALUE_BYTES} at most are taken",
            "Metadata describes a feed; what it measures goes into its events.",
        )
    return size


def _scalar_bytes(key: str, value: Any) -> int:
    if isinstance(value, str):
        try:
            return len(value.encode())
        except UnicodeEncodeError:
            raise BadMetadata(
                f"the value of {key!r} is no valid text: it holds half of a character"
            ) from None
    if isinstance(value, bool):
        return _NUMBER_BYTES
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadMetadata(
                f"the value of {key!r} is {value}", "Numbers are finite; leave the key out instead."
            )
        return _NUMBER_BYTES
    if isinstance(value, int):
        if not _MIN_INT <= value <= _MAX_INT:
            raise BadMetadata(
                f"the value of {key!r} is a whole number of more than 64 bits",
                "Give it as text, or as a number with an exponent.",
            )
        return _NUMBER_BYTES
    kind = "null" if value is None else type(value).__name__
    raise BadMetadata(
        f"the value of {key!r} is or holds {kind}",
        "Values are text, numbers, true, false, and lists of these; a change may set null.",
    )
