"""What `skerry pipeline run` shows: a live line at a terminal, lines elsewhere, or JSON."""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Self

from skerry.cli.output import console, count, emit, emit_json, note
from skerry.model.quantities import show_duration, show_size

if TYPE_CHECKING:
    from rich.live import Live

    from skerry.spark.jobs import Status
    from skerry.spark.pipeline import Pipeline


def make_progress(as_json: bool) -> Progress:
    """What fits this process's stdout."""
    if as_json:
        return JsonProgress()
    return LiveProgress() if sys.stdout.isatty() else Progress()


class Progress:
    """A line a batch."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def say(self, text: str) -> None:
        """Something that a person should know."""
        note(text)

    def started(self, pipeline: Pipeline, status: Status) -> None:
        """It runs."""
        topics = ", ".join(source.topic for source in pipeline.sources.values())
        self._line(f"pipeline {pipeline.name} runs: {topics} → {pipeline.sink}")

    def batch(self, status: Status) -> None:
        """After every batch."""
        self._line(f"batch {status.batch}: {describe(status)}")

    def idle(self, status: Status) -> None:
        """Every second without a batch."""

    def ended(self, pipeline: Pipeline, status: Status) -> None:
        """The last line."""
        how = "has caught up" if status.state == "done" else "is stopped"
        self._line(f"pipeline {pipeline.name} {how}, {count(status.rows, 'row')} so far")

    def _line(self, text: str) -> None:
        with suppress(BrokenPipeError):
            emit(text)


class JsonProgress(Progress):
    """A JSON object a batch, and one at the end."""

    def started(self, pipeline: Pipeline, status: Status) -> None:
        """The first line."""
        emit_json(status)

    def batch(self, status: Status) -> None:
        """After every batch."""
        emit_json(status)

    def ended(self, pipeline: Pipeline, status: Status) -> None:
        """The last line."""
        emit_json(status)


class LiveProgress(Progress):
    """A line at the bottom of a terminal; batches pass above it."""

    def __init__(self) -> None:
        self._console = console()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        from rich.live import Live

        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()
        self._show("starting Spark …", "dim")
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Something that a person should know."""
        from rich.text import Text

        now = datetime.now().strftime("%H:%M:%S")
        self._console.print(Text.assemble((now, "dim"), "  ", (text, "yellow")), soft_wrap=True)

    def started(self, pipeline: Pipeline, status: Status) -> None:
        """It runs."""
        super().started(pipeline, status)
        self._show("waiting for events · Ctrl-C ends it", "dim")

    def batch(self, status: Status) -> None:
        """After every batch."""
        super().batch(status)
        self.idle(status)

    def idle(self, status: Status) -> None:
        """Keep the line current."""
        behind = f"{count(status.lag_events, 'event')} behind"
        if status.lag_seconds:
            behind += f" ({show_duration(status.lag_seconds)})"
        self._show(f"● {behind} · {count(status.rows, 'row')} read · Ctrl-C ends it", "green")

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def _show(self, text: str, style: str) -> None:
        from rich.text import Text

        if self._live is not None:
            line = Text(text, style, no_wrap=True, overflow="ellipsis")
            self._live.update(line, refresh=True)


def describe(status: Status) -> str:
    """A batch in words."""
    lag = count(status.lag_events, "event")
    if status.lag_seconds:
        lag += f" {show_duration(status.lag_seconds)}"
    parts = [
        f"{count(status.batch_rows, 'row')} in {status.batch_ms} ms",
        f"{status.rows_s if status.batch_rows else 0:,.0f} rows/s",
        f"lag {lag}",
        f"state {count(status.state_rows, 'row')} {show_size(status.state_bytes)}",
    ]
    return ", ".join(parts)
