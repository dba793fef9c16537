"""What `skerry query` shows: a screen at a terminal, lines elsewhere, or JSON."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from skerry.cli.events import as_object as event_object
from skerry.cli.events import iso, readable
from skerry.cli.face import LogHandler, install
from skerry.cli.metadata import as_object as feed_object
from skerry.cli.metadata import show_metadata
from skerry.cli.output import columns, console, count, emit, emit_json, note, prepare
from skerry.model.feeds import Feed, Joined, Left, Missed, Received

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.live import Live
    from rich.table import Table

    from skerry.feeds.items import Item

TICK = 0.1
"""Seconds between two pictures at the least: more would be seen by nobody."""
KEPT = 200
"""The newest events that a screen of any height could show."""
WIDE = 100
"""Columns of a terminal that shows feeds with their whole id."""
SHORT = 8
"""Characters of a feed's id that tell it from others on one screen."""


def make_face(query: str, as_json: bool) -> Face:
    """What fits this process's stdout."""
    if as_json:
        return JsonFace(query)
    if sys.stdout.isatty() and not console().is_dumb_terminal:
        return Screen(query)
    return Face(query)


class Face:
    """A line for each thing that happens: what, which feed, and what belongs to it."""

    def __init__(self, query: str) -> None:
        self.query = query

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            note("following what matches; Ctrl-C ends it")
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def show(self, item: Item) -> None:
        """Something happened."""
        match item:
            case Joined(feed):
                emit(f"joined  {feed.id}  {feed.site}  {show_metadata(feed.metadata)}".rstrip())
            case Left(feed):
                emit(f"left    {feed.id}")
            case Received(feed, event):
                time = iso(event.time, "milliseconds")
                emit(f"event   {feed.id}  {time}  {event.index:>7}  {readable(event.data)}")
            case Missed(feed, first, last):
                emit(f"missed  {feed.id}  {_gap(first, last)}")


class JsonFace(Face):
    """An object a line, with the feed as it was known then."""

    def __enter__(self) -> Self:
        return self

    def show(self, item: Item) -> None:
        """Something happened."""
        line: dict[str, Any] = {"kind": "", "feed": feed_object(item.feed)}
        match item:
            case Joined():
                line["kind"] = "joined"
            case Left():
                line["kind"] = "left"
            case Received(event=event):
                line |= {"kind": "event", "event": event_object(event)}
            case Missed(first=first, last=last):
                line |= {"kind": "missed", "first": first, "last": last}
        emit_json(line)


class _Row:
    """A feed on the screen."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.events = 0


class Screen(Face):
    """The whole terminal: the feeds that match, and what happened last. Its last picture stays when
    it ends."""

    def __init__(self, query: str) -> None:
        super().__init__(query)
        self._console = console()
        self._rows: dict[str, _Row] = {}
        self._happened: deque[tuple[str, str, str, str, str]] = deque(maxlen=KEPT)
        """Time, feed, index, text and style of what happened last."""
        self._events = 0
        self._live: Live | None = None
        self._handler = LogHandler(lambda text: self._say("", "", text, "yellow"))
        self._drawn: object = None
        self._changes = 0
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        from rich.live import Live

        install(self._handler)
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._live.start()
        self._tick()
        return self

    def __exit__(self, *error: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._live is not None:
            self._live.stop()
        logging.getLogger().removeHandler(self._handler)
        prepare()
        self._console.print(self._picture(ending=True))

    def show(self, item: Item) -> None:
        """Something happened."""
        feed = item.feed
        match item:
            case Joined():
                self._rows[feed.id] = _Row(feed)
                self._say(feed.id, "", f"joined  {show_metadata(feed.metadata)}", "dim green")
            case Left():
                self._rows.pop(feed.id, None)
                self._say(feed.id, "", "left", "dim red")
            case Received(event=event):
                self._events += 1
                if (row := self._rows.get(feed.id)) is not None:
                    row.feed = feed
                    row.events += 1
                time = iso(event.time, "milliseconds").partition("T")[2]
                self._say(feed.id, str(event.index), readable(event.data), "", time)
            case Missed(first=first, last=last):
                self._say(feed.id, "", f"missed {_gap(first, last)}", "yellow")

    def _say(self, feed: str, index: str, text: str, style: str, time: str = "") -> None:
        self._happened.append((time, feed[:SHORT], index, text, style))
        self._changes += 1

    def _tick(self) -> None:
        """Draw what is new, or for a window of another size; again in a moment."""
        state = (self._changes, self._console.size)
        if state != self._drawn and self._live is not None:
            self._drawn = state
            self._live.update(self._picture(), refresh=True)
        self._timer = asyncio.get_running_loop().call_later(TICK, self._tick)

    def _picture(self, ending: bool = False) -> Group:
        """Everything, for a window of this size: feeds have at most half of it."""
        from rich.console import Group
        from rich.text import Text

        height = self._console.size.height - (1 if ending else 0)
        feeds = min(len(self._rows), max(1, height // 2 - 3))
        more = len(self._rows) - feeds
        # Above, between and below the two tables: a title, two headings, blanks, perhaps "more".
        room = max(1, height - feeds - 5 - (1 if more else 0))
        title = Text(no_wrap=True, overflow="ellipsis")
        title.append(count(len(self._rows), "feed"), "bold green" if self._rows else "bold")
        title.append(f" · {count(self._events, 'event')} · ")
        title.append("" if ending else "Ctrl-C ends it · ", "dim")
        title.append(readable(self.query.encode()), "cyan")
        parts: list[RenderableType] = [title, "", self._feeds(feeds)]
        if more:
            parts.append(Text(f"… and {count(more, 'more feed')}", "dim"))
        return Group(*parts, "", self._news(room))

    def _feeds(self, number: int) -> Table:
        from rich.text import Text

        table = _lines("FEED", "SITE", ">EVENTS", "METADATA")
        whole = self._console.size.width >= WIDE
        for row in list(self._rows.values())[:number]:
            feed = row.feed
            id = feed.id if whole else feed.id[:SHORT]
            shown = Text(show_metadata(feed.metadata) or "-", no_wrap=True, overflow="ellipsis")
            table.add_row(Text(id, "green"), feed.site, f"{row.events:,}", shown)
        return table

    def _news(self, number: int) -> Table:
        from rich.text import Text

        table = _lines("TIME", "FEED", ">INDEX", "WHAT HAPPENED")
        for time, feed, index, text, style in list(self._happened)[-number:]:
            table.add_row(
                Text(time, "dim"),
                Text(feed, "green"),
                Text(index, "cyan"),
                Text(text, style, no_wrap=True, overflow="ellipsis"),
            )
        return table


def _lines(*headings: str) -> Table:
    """An empty table of one line a row, of which the last column gives way."""
    table = columns(*headings)
    for column in table.columns[:-1]:
        column.no_wrap = True
    return table


def _gap(first: int, last: int) -> str:
    return f"index {first}" if first == last else f"between indexes {first} and {last}"
