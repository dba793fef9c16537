"""How far the replicas of a topic are, as they tell a publisher.

Each replica's agent is asked once in a while, and from then on tells the last index that its copy
holds whenever that grew (`skerry.fabric.progress`). One number confirms thousands of events.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from skerry.engine.link import Down
from skerry.engine.wire import Connection
from skerry.errors import FabricError, SkerryError
from skerry.log.route import Routes
from skerry.model.control import ProgressReport, ProgressRequest
from skerry.model.fabric import TopicEntry
from skerry.model.promotion import State, confirmed
from skerry.model.records import read

ASK_AGAIN = 2.0
"""Seconds between asking replicas to tell how far they are."""
ASK_LEAST = 0.05
"""Seconds between two such attempts at the least."""


class Reports:
    """Asks for the links that one publisher needs, and replicas for reports.

    `on_report` is called when one came in, `refuse` with the reason if the home cannot be reached
    from here, ever.
    """

    def __init__(
        self,
        connection: Connection,
        routes: Routes,
        name: str,
        on_report: Callable[[], None],
        refuse: Callable[[SkerryError], None],
    ) -> None:
        self._connection = connection
        self._routes = routes
        self._name = name
        self._tell = on_report
        self._refuse = refuse
        self._loop = asyncio.get_running_loop()
        self._states: dict[str, State] = {}
        self._sid: bytes | None = None
        self._asked = 0.0
        self._asking: asyncio.Task[None] | None = None

    def is_due(self, now: float) -> bool:
        """Whether replicas that forget us have to be asked again."""
        return now - self._asked > ASK_AGAIN

    def reach(self, entry: TopicEntry, every: float) -> None:
        """Ask for links to home and replicas, and replicas to tell how far they are, every so many
        seconds at the most."""
        now = self._loop.time()
        if now - self._asked < ASK_LEAST or (self._asking is not None and not self._asking.done()):
            return
        self._asked = now
        self._asking = self._loop.create_task(self._ask(entry, every))

    def confirmed(self, entry: TopicEntry, last: int) -> int:
        """The last index up to `last`, which the home has, that enough members hold."""
        members = set(entry.members[1:])
        return confirmed(
            last,
            entry.epoch,
            len(entry.members),
            [report for site, report in self._states.items() if site in members],
        )

    def __bool__(self) -> bool:
        return bool(self._states)

    def clear(self) -> None:
        """Forget what was told: it is of another epoch."""
        self._states.clear()

    def begin_anew(self) -> None:
        """The connection is another one: nobody tells us anything there yet."""
        self.close()
        self.clear()
        self._asked = 0.0

    def change(self) -> None:
        """Other members are to be asked, at the next occasion."""
        self._asked = 0.0
        self.pause()  # it may wait for a replica that is gone

    def pause(self) -> None:
        """Stop asking."""
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def close(self) -> None:
        """Hear no more."""
        if self._sid is not None:
            self._connection.unsubscribe(self._sid)
            self._sid = None

    async def _ask(self, entry: TopicEntry, every: float) -> None:
        site = self._connection.address.site
        others = [member for member in entry.members if member != site]
        if others and entry.home in await self._routes.reach(others):
            self._refuse(
                FabricError(
                    f"{site} and {entry.home}, the home of {entry.name}, only dial out and cannot "
                    "be linked",
                    "Publish with ack='outbox', which goes through the hub; or move the topic.",
                )
            )
            return
        if len(entry.members) < 2:
            return
        inbox = f"{self._connection.inbox}.q.{self._name}"
        if self._sid is None:
            self._sid = self._connection.subscribe(inbox, self._on_report)
        body = msgspec.json.encode(ProgressRequest(entry.name, inbox, every))

        async def register(replica: str) -> None:
            with contextlib.suppress(Down, TimeoutError, SkerryError):
                await self._connection.request(f"_sk.{replica}.open.progress", body, timeout=1.0)

        await asyncio.gather(*(register(replica) for replica in entry.members[1:]))

    def _on_report(self, subject: bytes, reply: bytes, head: bytes, data: bytes) -> None:
        report = read(data, ProgressReport, "what a replica told")
        if report is None:
            return
        self._states[report.site] = State(report.site, report.epoch, report.last)
        self._tell()
