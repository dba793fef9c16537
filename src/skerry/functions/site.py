"""A site's part in functions: follows the registry, decides what runs here, has the host run it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from skerry.engine.address import Address
from skerry.engine.link import Down
from skerry.engine.wire import Connection
from skerry.errors import SkerryError, Unavailable
from skerry.fabric.control import Control
from skerry.fabric.tasks import Tasks
from skerry.functions.access import Access
from skerry.functions.assignment import Assignment, Report, Running
from skerry.functions.deploying import Deployer
from skerry.functions.places import Log, Places, bring_journal
from skerry.functions.plan import Plan
from skerry.functions.preparing import Preparing
from skerry.functions.registry import Registry
from skerry.functions.services import Services
from skerry.functions.supervisor import Supervisor
from skerry.model.functions import JOURNALS, REGISTRY, Function, digest_of, journal_of
from skerry.model.names import is_own

log = logging.getLogger("skerry.functions")

AGAIN = 0.5
LONGEST_PAUSE = 30.0
"""Seconds before what a function needs is looked for again; twice as long each time."""
KNOW_TIME = 5.0
"""Seconds to wait until this site knows the functions."""
TIDY = 10.0
"""Seconds between looks at journals: those that are elsewhere, and those that nobody needs."""

Key = tuple[str, str]
"""A function's name and a log's."""


class Functions:
    """The functions of one site.

    `connect` makes one more connection to the own engine; `address` is what the host connects with;
    `folder` is where it keeps code, environments and variables.
    """

    def __init__(
        self,
        places: Places,
        control: Control,
        connect: Callable[[], Awaitable[Connection]],
        address: Address,
        folder: Path,
    ) -> None:
        self.site = places.site
        self.places = places
        self.plan = Plan(places.site)
        self.preparing = Preparing(folder, places)
        self.supervisor = Supervisor(address, self._on_report)
        self._control = control
        self._connect = connect
        self.registry: Registry | None = None
        self.access: Access | None = None
        self.deployer: Deployer | None = None
        self._reports: dict[Key, Running] = {}
        self._ready: dict[Key, Assignment] = {}
        self._faults: dict[Key, Running] = {}
        """What could not be prepared, and why."""
        self._work: dict[Key, tuple[Function, asyncio.Task[None]]] = {}
        """What is being prepared."""
        self._near: dict[str, asyncio.Task[None]] = {}
        self._is_assigning = False
        self._exists = asyncio.Event()
        self._started = asyncio.Event()
        self._tasks = Tasks("the keeping of functions")
        self._services = Services(self)

    def serve(self) -> None:
        """Answer what is asked about functions."""
        self._services.register(self._control)

    def start(self) -> None:
        """Begin."""
        self._tasks.spawn(self._run())

    async def close(self) -> None:
        """Stop; what runs here goes on where it was when the site is back."""
        await self._tasks.close()
        await self.supervisor.close()
        if self.registry is not None:
            self.registry.close()
        if self.access is not None:
            await self.access.close()

    async def ready(self) -> tuple[Registry, Deployer]:
        """The registry, once what it holds is known."""
        try:
            async with asyncio.timeout(KNOW_TIME):
                await self._started.wait()
                assert self.registry is not None
                if self.places.log(REGISTRY) is not None:
                    await self.registry.caught_up.wait()
        except TimeoutError:
            log.warning("going on without knowing all functions")
        if self.registry is None or self.deployer is None:
            raise Unavailable("the site is starting and does not know its functions yet")
        return self.registry, self.deployer

    def running(self) -> list[Running]:
        """How what is to run here is."""
        found = []
        for function, here in self.plan.here():
            key = (function.name, here.name)
            fault = self._faults.get(key)
            report = self._reports.get(key)
            if report is None and fault is None:
                report = Running(
                    function=function.name, log=here.name, state="starting",
                    version=function.current.number,
                )  # fmt: skip
            elif report is not None and fault is not None:
                report = msgspec.structs.replace(report, error=fault.error)
            found.append(report or fault)
        return [each for each in found if each is not None]

    # Keeping up

    async def _run(self) -> None:
        while self.access is None:
            try:
                self.access = Access(await self._connect())
            except (SkerryError, Down) as error:
                log.warning("functions are not served yet: %s", error)
                await asyncio.sleep(AGAIN)
        registry = self.registry = Registry(self.access, self._on_function)
        limit = self.access.connection.info.max_event
        self.deployer = Deployer(registry, self.places, self.preparing, limit)
        for one in self.places.logs():
            self.plan.set_log(one.name, one)
        self.places.watch(self._on_log)
        if self.places.log(REGISTRY) is not None:
            self._exists.set()
        self._started.set()
        self._tasks.spawn(self._tidy(registry))
        while True:
            await self._exists.wait()
            self._exists.clear()
            await registry.follow()

    def _on_function(self, name: str) -> None:
        assert self.registry is not None
        self.plan.set_function(name, self.registry.get(name))
        self._assign_soon()

    def _on_log(self, name: str, found: Log | None) -> None:
        if name == REGISTRY and found is not None:
            self._exists.set()
        if is_own(name):
            if found is None:
                self._lost_journal(name)
            return
        if self.plan.set_log(name, found):
            self._assign_soon()
        if found is None and self.registry is not None:
            for function in self.registry.functions:
                journal = self.places.log(journal_of(function, name))
                if journal is not None and journal.home == self.site:
                    self._tasks.spawn(self._delete(journal.name))

    def _lost_journal(self, name: str) -> None:
        """Somebody deleted a journal. If it is one of ours, the function begins anew."""
        for key, assignment in list(self._ready.items()):
            if assignment.journal == name:
                del self._ready[key]
                self._assign_soon()

    def _on_report(self, report: Report | None) -> None:
        self._reports = {(r.function, r.log): r for r in report.running} if report else {}

    # What runs here

    def _assign_soon(self) -> None:
        """Once for all that changed at this moment."""
        if not self._is_assigning:
            self._is_assigning = True
            asyncio.get_running_loop().call_soon(self._assign)

    def _assign(self) -> None:
        """Have the host run what is to run here, as far as that is ready."""
        self._is_assigning = False
        wanted = {(function.name, one.name): (function, one) for function, one in self.plan.here()}
        for key in [*self._ready, *self._faults, *self._work]:
            if key not in wanted:
                self._ready.pop(key, None)
                self._faults.pop(key, None)
                if key in self._work:
                    self._work.pop(key)[1].cancel()
        for key, (function, one) in wanted.items():
            ready = self._ready.get(key)
            if ready is not None and ready.since != function.since:
                del self._ready[key]  # it was removed, and deployed anew
                ready = None
            if ready is not None and ready.version == function.current:
                continue
            known, task = self._work.get(key, (None, None))
            if known is None or known.current != function.current:
                if task is not None:
                    task.cancel()
                task = self._tasks.spawn(self._prepare(key, function, one))
                self._work[key] = (function, task)
        self.supervisor.assign([self._ready[key] for key in sorted(self._ready)])
        self._look_around()

    async def _prepare(self, key: Key, function: Function, one: Log) -> None:
        """Have what a function needs, however often it takes; the version before goes on."""
        assert self.registry is not None
        pause = AGAIN
        while True:
            try:
                ready = await self.preparing.assignment(self.registry, function, one)
                break
            except (SkerryError, Down, OSError) as error:
                what = error.what if isinstance(error, SkerryError) else str(error)
                log.warning("%s cannot run on %s yet: %s", *key, what)
                self._faults[key] = Running(
                    function=function.name, log=one.name, version=function.current.number,
                    state="waiting", error=what,
                )  # fmt: skip
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
        self._faults.pop(key, None)
        self._work.pop(key, None)
        self._ready[key] = ready
        self._assign_soon()
        await bring_journal(self.places, function.name, one)

    def _look_around(self) -> None:
        """Have code and environment ready of what may have to run here all of a sudden."""
        near = {f.current.code + str(f.current.env): f for f in self.plan.near()}
        for name in [name for name in self._near if name not in near]:
            self._near.pop(name).cancel()
        for name, function in near.items():
            if name not in self._near:
                self._near[name] = self._tasks.spawn(self._fetch(function))

    async def _fetch(self, function: Function) -> None:
        assert self.registry is not None
        pause = AGAIN
        while True:
            try:
                await self.preparing.version(self.registry, function.current)
                return
            except (SkerryError, Down, OSError) as error:  # once it is needed it is said aloud
                log.info("%s is not ready to run here: %s", function.name, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    # Journals

    async def _tidy(self, registry: Registry) -> None:
        while True:
            await asyncio.sleep(TIDY)
            for function, one in self.plan.here():
                await bring_journal(self.places, function.name, one)
            with contextlib.suppress(SkerryError, Down):
                await self._sweep(registry)

    async def _sweep(self, registry: Registry) -> None:
        """Delete journals at home here of functions that were removed, and of logs that are gone;
        most were deleted when that happened."""
        if not registry.caught_up.is_set() or registry.is_empty:
            return
        names = self.places.names()
        needed = {digest_of(name) for name in names if not is_own(name)}
        functions = registry.functions
        for journal in [name for name in names if name.startswith(f"{JOURNALS}/")]:
            found = self.places.log(journal)
            if found is None or found.home != self.site:
                continue
            name = journal.split("/")[2]
            if name in functions:
                if journal.rsplit("/", 1)[-1] in needed:
                    continue
            else:
                # We may not have heard yet that it was deployed anew.
                newest = await registry.newest(name)
                if newest.function is not None or not newest.revision:
                    continue
            await self._delete(journal)

    async def delete_journals(self, function: str) -> None:
        """Delete all that a function that is gone has kept."""
        prefix = f"{JOURNALS}/{function}/"
        names = [name for name in self.places.names() if name.startswith(prefix)]
        await asyncio.gather(*map(self._delete, names))

    async def _delete(self, journal: str) -> None:
        try:
            await self.places.delete(journal)
        except (SkerryError, Down) as error:
            log.warning("%s is not deleted yet: %s", journal, error)
