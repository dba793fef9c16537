"""Feeds and their metadata: as they are written on a command line, and as they are printed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from skerry.cli.events import readable
from skerry.errors import BadSetting
from skerry.model.feeds import Feed, Metadata, Value
from skerry.model.names import feed_log

OWNER = "cli"
"""Who a feed belongs to that is registered from a command line."""


def parse_pairs(pairs: Iterable[str]) -> Metadata:
    """The metadata that `KEY=VALUE` arguments mean. A key ends at the first `=`."""
    found: Metadata = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise BadSetting(f"{pair!r:.80} sets no key", "Write KEY=VALUE, such as Room=410.")
        if key in found:
            raise BadSetting(f"the key {key!r:.80} is given twice", "Give it a list: KEY='[1, 2]'.")
        found[key] = parse_value(value)
    return found


def parse_value(text: str) -> Value:
    """A number, true, false, a list or a quoted text as JSON has it; everything else is text as it
    stands. So `410` is a number, and `"410"` and `room 410` are text."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text
    return value if isinstance(value, str | int | float | list) else text


def show_metadata(metadata: Metadata) -> str:
    """Metadata in one line that cannot harm a terminal. Text stands in quotes, as in a query."""
    return "  ".join(
        readable(f"{key}=".encode() + msgspec.json.encode(metadata[key]))
        for key in sorted(metadata)
    )


def show_topic(feed: Feed) -> str:
    """The feed's topic; one that follows from site and id in short."""
    return "feeds/…" if feed.topic == f"{feed_log(feed.site)}/{feed.id}" else feed.topic


def as_object(feed: Feed) -> dict[str, Any]:
    """The feed as a JSON object."""
    since = datetime.fromtimestamp(feed.since // 1_000_000_000, UTC)
    return {
        "id": feed.id,
        "site": feed.site,
        "topic": feed.topic,
        "owner": feed.owner,
        "permanent": feed.permanent,
        "version": feed.version,
        "since": since.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "metadata": feed.metadata,
    }
