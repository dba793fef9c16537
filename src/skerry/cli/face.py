"""What `skerry up` shows while a site runs: a live status line at a terminal, log lines elsewhere.

Both get the warnings of the modules below by `logging`, in order with their own lines. Neither
stops the site when nobody reads its output any more.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, Self

from skerry.cli import peers
from skerry.cli.output import console, count
from skerry.engine.address import host_port
from skerry.errors import SkerryError
from skerry.model.control import SiteStatus
from skerry.model.quantities import show_duration, show_size

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

    from skerry.site import Site

TICK = 0.5
"""Seconds between two looks at the site."""
PATIENCE = 2.0
"""Seconds that the site may take to say how it is, before we show it without."""


class Face(Protocol):
    """Told what becomes of a site."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...
    def starting(self, site: str) -> None: ...
    def ready(self, site: Site, next_step: str) -> None: ...
    async def watch(self, site: Site) -> None: ...
    def stopping(self) -> None: ...
    def stopped(self, site: str) -> None: ...


def make_face() -> Face:
    """The face for this process's stdout."""
    return StatusLine() if sys.stdout.isatty() else LogLines()


class _Health:
    """The engine's ups and downs, as seen at each tick. What is shorter is in the log."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._well = time.monotonic()
        self._told = False
        self.restarts = _restarts(site)

    def look(self) -> list[str]:
        """What is new since the last look, in words."""
        news = []
        restarts, before = _restarts(self._site), self.restarts
        self.restarts = restarts
        if restarts != before:
            news.append(f"the engine was started anew; {count(restarts, 'restart')} so far")
        if self._site.is_up:
            self._told = False
        elif not self._told:
            self._told = True
            news.append("THE ENGINE IS DOWN; publishers and subscribers wait until it is back")
        return news

    def answered(self) -> None:
        """The engine is well at this moment."""
        self._well = time.monotonic()

    def alarm(self) -> str:
        """What is wrong, and for how long."""
        what = "SILENT" if self._site.is_up else "DOWN"
        return f"ENGINE {what} for {time.monotonic() - self._well:.0f} s"

    def remedy(self) -> str:
        """What is done about it."""
        if self._site.is_up:
            return "it is killed and started anew if it stays so; clients wait"
        return "it is being started anew; clients wait"


class LogLines:
    """Plain lines with a time, for files, pipes and journals."""

    def __enter__(self) -> Self:
        self._handler = LogHandler(self._say)
        install(self._handler)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger().removeHandler(self._handler)

    def starting(self, site: str) -> None:
        """Nothing to say before it is up."""

    def ready(self, site: Site, next_step: str) -> None:
        """The line that a person, or a program that waits for the site, looks for."""
        listeners = "".join(f", {name} on {where}" for name, where in _listeners(site))
        if fabric := peers.membership(site):
            listeners += f", in the fabric {fabric}, {peers.linked(site)}"
        self._say(
            f"site {site.settings.site} is up at {site.address}{listeners}, data in "
            f"{site.settings.data}; next: {next_step}"
        )

    async def watch(self, site: Site) -> None:
        """Say what changes, for ever."""
        health, links = _Health(site), peers.Links(site)
        while True:
            await asyncio.sleep(TICK)
            for line in (*health.look(), *links.look()):
                self._say(line)

    def stopping(self) -> None:
        """Nothing to say before it is stopped."""

    def stopped(self, site: str) -> None:
        """The last line."""
        self._say(f"site {site} is stopped")

    def _say(self, text: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        with suppress(BrokenPipeError):
            print(now, text, flush=True)


class StatusLine:
    """A line at the bottom of a terminal that says how the site is."""

    def __init__(self) -> None:
        self._console = console()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        from rich.live import Live

        self._handler = LogHandler(self._warn)
        install(self._handler)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()
        logging.getLogger().removeHandler(self._handler)

    def starting(self, site: str) -> None:
        """While the engine recovers its logs."""
        from rich.text import Text

        self._show(Text(f"starting site {site} …", "dim"))

    def ready(self, site: Site, next_step: str) -> None:
        """Where the site is and what to do next."""
        from rich.text import Text

        self._console.print(Text.assemble(("site ", ""), (site.settings.site, "bold"), " is up"))
        for name, value in [
            ("address", str(site.address)),
            *_listeners(site),
            *([("fabric", fabric)] if (fabric := peers.membership(site)) else []),
            ("data", str(site.settings.data)),
            ("next", next_step),
            ("stop", "Ctrl-C"),
        ]:
            line = Text.assemble((f"  {name:<10}", "dim"), value)
            self._console.print(line, soft_wrap=True)

    async def watch(self, site: Site) -> None:
        """Keep the line current, for ever."""
        health, links = _Health(site), peers.Links(site)
        while True:
            for line in (*health.look(), *links.look()):
                self._warn(line)
            status = None
            if site.is_up:
                with suppress(SkerryError, TimeoutError):
                    async with asyncio.timeout(PATIENCE):
                        status = await site.status()
                        health.answered()
            shown = _up_line(status) if status else _down_line(health)
            if (below := peers.fabric_line(site)) is not None:
                shown.append_text(below)
            self._show(shown)
            await asyncio.sleep(TICK)

    def stopping(self) -> None:
        """While the engine writes everything out."""
        from rich.text import Text

        self._show(Text("stopping …", "dim"))

    def stopped(self, site: str) -> None:
        """The last line."""
        self._console.print(f"site {site} is stopped")

    def _show(self, line: Text) -> None:
        if self._live is not None:
            line.no_wrap, line.overflow = True, "ellipsis"
            self._live.update(line, refresh=True)

    def _warn(self, text: str) -> None:
        from rich.text import Text

        now = datetime.now().strftime("%H:%M:%S")
        self._console.print(Text.assemble((now, "dim"), "  ", (text, "yellow")), soft_wrap=True)


class LogHandler(logging.Handler):
    """Passes what modules log to a face."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(self.format(record))


def install(handler: logging.Handler) -> None:
    """Make `handler` the only one."""
    handler.setFormatter(logging.Formatter("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


def _restarts(site: Site) -> int:
    try:
        return site.engine.restarts
    except SkerryError:  # somebody else runs the engine
        return 0


def _listeners(site: Site) -> list[tuple[str, str]]:
    tls = site.settings.tls_cert is not None
    host = site.address.host
    found = []
    if (port := site.ports.mqtt) is not None:
        found.append(("mqtt", f"{'mqtts' if tls else 'mqtt'}://{host}:{port}"))
    if (port := site.ports.websocket) is not None:
        found.append(("websocket", f"{'wss' if tls else 'ws'}://{host}:{port}"))
    if (port := site.ports.link) is not None:
        where = host_port(site.settings.advertise or site.settings.host, port)
        found.append(("links", where))
    return found


def _up_line(status: SiteStatus) -> Text:
    from rich.text import Text

    parts = [
        count(status.topics, "topic"),
        f"{show_size(status.stored_bytes)} stored",
        count(status.subscriptions, "subscription"),
        f"{show_size(status.memory_bytes)} memory",
        count(status.restarts, "restart"),
        f"up {show_duration(max(status.uptime, 1))}",
    ]
    return Text.assemble(("● up", "bold green"), "  " + " · ".join(parts))


def _down_line(health: _Health) -> Text:
    from rich.text import Text

    return Text.assemble(
        (f" {health.alarm()} ", "bold white on red"),
        f"  {health.remedy()} · {count(health.restarts, 'restart')}",
    )
