"""What one sees of the demonstration: two live tables on a terminal, plain lines elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from examples.demo.parties import Publisher, Subscriber
from skerry import Client, Topic
from skerry.errors import SkerryError
from skerry.testing import LocalFabric


class Screen:
    """Shows the fabric as it is, and says what happens now."""

    def __init__(
        self,
        fabric: LocalFabric,
        client: Client,
        topics: Sequence[str],
        publishers: Sequence[Publisher],
        subscribers: Sequence[Subscriber],
    ) -> None:
        self.console = Console(highlight=False)
        self._fabric = fabric
        self._client = client
        """Of a site that stays."""
        self._names = topics
        self._topics: list[Topic] = []
        self._publishers = publishers
        self._subscribers = subscribers
        self._now = ""

    def say(self, text: str) -> None:
        """Say what happens now."""
        self._now = text
        self.console.print(text, soft_wrap=True)

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Keep the tables on a terminal up to date during this block."""
        if not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, auto_refresh=False) as live:
            keeping = asyncio.create_task(self._keep(live))
            try:
                yield
            finally:
                keeping.cancel()

    async def _keep(self, live: Live) -> None:
        while True:
            with contextlib.suppress(SkerryError):
                self._topics = [await self._client.topic(name) for name in self._names]
            tables = self._site_table(), self._topic_table()
            live.update(Group(*tables, f"[bold]{self._now}[/]"), refresh=True)
            await asyncio.sleep(0.2)

    def _site_table(self) -> Table:
        table = Table("site", "", title="sites", min_width=78)
        for column in ("homes", "copies", "published", "acknowledged", "received"):
            table.add_column(column, justify="right")
        for name in self._fabric.names:
            homes = copies = "-"
            is_up = name in self._fabric.sites and self._fabric.agent(name).is_up
            if is_up and (part := self._fabric.agent(name).fabric) is not None:
                homes, copies = map(str, part.copies.count())
            mine = [party for party in self._publishers if party.site == name]
            received = sum(len(party.seen) for party in self._subscribers if party.site == name)
            table.add_row(
                name,
                "[green]up" if is_up else "[bold red]away",
                homes,
                copies,
                f"{sum(party.sent for party in mine):,}",
                f"{sum(party.acked for party in mine):,}",
                f"{received:,}",
            )
        return table

    def _topic_table(self) -> Table:
        table = Table("topic", "home", "replicas", title="topics", min_width=78)
        for column in ("epoch", "latest index"):
            table.add_column(column, justify="right")
        for topic in self._topics:
            replicas = ", ".join(topic.replicas) or "none"
            index = f"{topic.latest_index:,}"
            table.add_row(topic.name, topic.home, replicas, str(topic.epoch), index)
        return table
