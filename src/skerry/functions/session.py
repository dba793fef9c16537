"""One stretch of a function's work on a log: from one claim of its journal to the next.

log ──intake──▶ line ──crew──▶ workers
                 │ ◀──results──┘
                 └──commit──▶ journal ──release──▶ topics
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Protocol

import msgspec

from skerry.engine.link import Down
from skerry.errors import BadSetting, Conflict, SkerryError, UnknownTopic
from skerry.functions import again, reads
from skerry.functions.access import Access
from skerry.functions.assignment import Assignment, State
from skerry.functions.commit import Committer
from skerry.functions.crew import Crew
from skerry.functions.destinations import Destinations, too_large
from skerry.functions.frames import Answer, Ask, Done, Published, Setup
from skerry.functions.intake import Intake
from skerry.functions.journal import Position
from skerry.functions.lane import Launch
from skerry.functions.ledger import Ledger
from skerry.functions.lines import Level
from skerry.functions.release import Release
from skerry.functions.work import Item, Line, Namer, item_of
from skerry.model.functions import MAX_HOPS
from skerry.model.pattern import Pattern

log = logging.getLogger("skerry.functions")

PAUSE = 0.2
PAUSE_MOST = 5.0
"""Seconds before a topic that cannot be looked for now is looked for again."""
FINISH = 3.0
"""Seconds that it may take to deliver what is committed when a session is ended in order."""
NAMES = 4096
"""Subjects whose topics are remembered."""


class Keeper(Protocol):
    """Whom a session tells what happens."""

    def tell(self, state: State, error: str = "") -> None:
        """The state is another one."""

    def count(self, what: str, number: int = 1) -> None:
        """Something happened."""

    def write(self, level: Level, text: str) -> None:
        """Write to the function's log."""

    def lost(self, what: str) -> None:
        """Something was dropped."""

    def opened(self, session: Session) -> None:
        """The session is about to work."""


class Session:
    """From one claim of the journal to the next."""

    ledger: Ledger
    destinations: Destinations
    intake: Intake
    crew: Crew

    def __init__(
        self, runner: Keeper, access: Access, requests: again.Requests, assignment: Assignment
    ) -> None:
        self._runner = runner
        self._access = access
        self._requests = requests
        self._assignment = assignment
        self._settings = assignment.version.settings
        self._namer = Namer(assignment.function, assignment.version.number, assignment.log)
        self._room = access.connection.info.max_payload - 64 * 1024
        self._live: dict[str, bytes] = {}
        """The state with what is not committed yet."""
        self._line: Line
        self._release: Release
        self._committer: Committer
        self._reading: asyncio.Task[None] | None = None
        self._retrying: set[int] = set()
        self._trouble = ""
        self._unloadable = False
        self._broken = ""
        self._missing: dict[str, str] = {}
        self._waits: dict[str, str] = {}
        self._closing: list[Callable[[], None]] = []

    async def run(self) -> None:
        """Claim the journal, deliver what an earlier host left, and go on behind it."""
        runner, access, assignment = self._runner, self._access, self._assignment
        runner.tell("starting")
        await access.settle()
        self.ledger = Ledger(access, assignment.journal)
        self._closing.append(self.ledger.close)
        journal = await self.ledger.open()
        self._live = dict(journal.state)
        self.destinations = Destinations(access)
        self._closing.append(self.destinations.close)
        self._release = Release(
            access,
            self.ledger,
            self.destinations,
            lambda why: self._wait_for("outputs", why),
            runner.lost,
        )
        self._line = Line(journal.progress)
        self._committer = Committer(self.ledger, self._line, self._release, self.destinations)
        subjects = Pattern.parse(self._settings.topic).subjects(assignment.log)
        if subjects is None:
            raise BadSetting(f"nothing of {assignment.log} can match {self._settings.topic}")
        self._subjects = subjects
        self.intake = Intake(
            access,
            assignment.log,
            self._subjects,
            journal.progress.log,
            assignment.since,
            lambda why: self._wait_for("log", why),
            runner.lost,
        )
        self.crew = Crew(self._launch(), self._settings, self)
        self.crew.start()
        runner.opened(self)
        tasks = [asyncio.create_task(work) for work in (self._release.run(), self._watch())]
        try:
            await self._with(tasks, self._release.recover(journal.unsettled.values()))
            tasks.append(asyncio.create_task(self._committer.run()))
            self._reading = asyncio.create_task(self._read())
            tasks += [self._reading, asyncio.create_task(self._read_again())]
            self._say()
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and not task.cancelled():
                    task.result()
            await asyncio.sleep(3600)  # `finish` is at work
        except BaseExceptionGroup as group:
            raise _first(group) from group
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _with(self, tasks: list[asyncio.Task[None]], work: Awaitable[None]) -> None:
        """Await `work` while the tasks go on; what ends one of them ends it."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, *tasks), return_when=asyncio.FIRST_COMPLETED)
            for one in (*tasks, task):
                if one.done():
                    one.result()
        finally:
            task.cancel()

    def _launch(self) -> Launch:
        assignment, version = self._assignment, self._assignment.version
        env = {}
        if assignment.env is not None:
            env = msgspec.json.decode(Path(assignment.env).read_bytes(), type=dict[str, str])
        setup = Setup(
            assignment.function,
            version.kind,
            assignment.code,
            version.handler,
            self._settings.order,
            self._settings.cpu,
            self._access.connection.info.max_payload - 4 * 1024,
        )
        return Launch(
            setup=setup,
            python=assignment.python,
            env=env,
            memory=self._settings.memory,
            timeout=self._settings.timeout,
            network=self._settings.network,
        )

    @property
    def ahead(self) -> int:
        """Events that are there and not committed, about."""
        return self.intake.ahead + len(self._line)

    async def finish(self) -> None:
        """Handle nothing more; deliver what is committed, if that takes no long time."""
        if self._reading is None:
            return
        self._reading.cancel()
        await self.crew.close()
        try:
            async with asyncio.timeout(FINISH):
                await self._committer.finish()
        except (TimeoutError, SkerryError):
            log.info("%s is left with outputs to deliver", self._assignment.function)

    async def close(self) -> None:
        """Stop at once."""
        if hasattr(self, "crew"):
            await self.crew.close()
        for close in reversed(self._closing):
            close()

    # What comes in

    async def _read(self) -> None:
        line = self._line
        names: dict[bytes, str] = {}
        async with aclosing(self.intake.batches()) as batches:  # type: ignore[type-var]
            async for events in batches:
                epoch = self.intake.position.epoch
                items = []
                for event in events:
                    subject = event._subject
                    topic = names.get(subject)
                    if topic is None:
                        if len(names) > NAMES:
                            names.clear()
                        topic = names[subject] = event.topic
                    item = item_of(event, topic)
                    line.put(item, line.at(Position(event.index, epoch)))
                    if item.hops >= MAX_HOPS:
                        self._circles(item)
                    else:
                        items.append(item)
                self.crew.put(items)
                if line.is_full:
                    await line.room()

    async def _read_again(self) -> None:
        """Have events handled once more that somebody asked for."""
        line, function = self._line, self._assignment.function
        while True:
            number, request = await self._requests.next(function, line.progress.again)
            if (request.log, request.since) == (self._assignment.log, self._assignment.since):
                done = line.progress.partly
                try:
                    batches = again.items(
                        self._access, function, self._subjects, number, request, done
                    )
                    async for batch in batches:
                        for item, index in batch:
                            line.put(item, again.after(line.progress, number, index))
                        self.crew.put([item for item, _ in batch])
                        if line.is_full:
                            await line.room()
                except again.GONE as error:
                    self._runner.lost(f"request {number} is dropped: {error.what}")
            line.skip(again.closed(line.progress, number))

    def _circles(self, item: Item) -> None:
        error = self._namer.circles(item)
        self.failed(item, error, "", 0.0)
        self.give_up(item, error)

    # What the crew says

    def unknown(self, published: Sequence[Published]) -> list[str]:
        """The topics of which it is not known whether they are there."""
        known = self.destinations.known
        return [
            one.topic
            for one in published
            if known(one.topic) is None and one.topic not in self._missing
        ]

    async def find(self, topics: list[str]) -> None:
        """Find out whether topics are there; wait if that cannot be told now."""
        for topic in set(topics):
            pause = PAUSE
            while True:
                try:
                    await self.destinations.find(topic)
                    break
                except UnknownTopic as error:
                    self._missing[topic] = error.what
                    break
                except (SkerryError, Down, TimeoutError) as error:
                    self._wait_for("destination", getattr(error, "what", "no answer"))
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, PAUSE_MOST)
            self._wait_for("destination", "")

    def accept(self, item: Item, done: Done) -> str | None:
        """Take what came of an item; or say why it cannot be taken."""
        published, state = done.published, done.state
        if published or state:
            for one in published:
                destination = self.destinations.known(one.topic)
                if destination is None:
                    what = self._missing.pop(one.topic, f"there is no topic {one.topic}")
                    return f"published to {one.topic}: {what}"
                if (refusal := too_large(one, destination)) is not None:
                    return refusal
            if item.take(self._namer.outputs(item, published), state) > self._room:
                size = item.effects
                item.take((), {})
                return f"published and kept {size} bytes for one event, {self._room} are taken"
            for key, value in state.items():
                if value is None:
                    self._live.pop(key, None)
                else:
                    self._live[key] = value
            self._runner.count("published", len(published))
        self._runner.count("handled")
        if self._retrying or self._broken:
            self._retrying.discard(id(item))
            self._broken = ""
            self._say()
        self._line.finished(item)
        return None

    def give_up(self, item: Item, error: str) -> None:
        """The item failed for good: to the dead letters with it."""
        runner = self._runner
        runner.count("dead")
        runner.write("error", f"event {item.index} of {item.topic} is a dead letter: {error}")
        item.take((self._namer.dead_letter(item, error, self._room),), {})
        self._retrying.discard(id(item))
        self._say()
        self._line.finished(item)

    def failed(self, item: Item | None, error: str, trace: str, wait: float) -> None:
        """An attempt failed."""
        runner = self._runner
        if item is None:
            runner.write("error", f"a worker failed: the function {error}")
            self._broken = f"the function {error}"
        else:
            runner.count("failed")
            what = f"event {item.index} of {item.topic}, attempt {item.attempts}: {error}"
            runner.write("error", f"{what}\n{trace}" if trace else what)
            if wait:
                self._retrying.add(id(item))
                self._trouble = what
        self._say()

    def broken(self, error: SkerryError | None) -> None:
        """The code cannot be loaded; None: it can."""
        text = "" if error is None else str(error)
        if text and text != self._broken:
            trace = getattr(error, "trace", "")
            self._runner.write("error", f"{text}\n{trace}" if trace else text)
        self._unloadable = error is not None
        self._broken = text
        self._say()

    async def answer(self, ask: Ask) -> Answer:
        """What a handler asked for."""
        if ask.what == "state":
            return Answer(self._live.get(ask.arguments[0]))
        return await reads.answer(self._access, ask)

    def text(self, text: str) -> None:
        """The code printed a line."""
        self._runner.write("text", text)

    # What is told

    def _wait_for(self, what: str, why: str) -> None:
        if why:
            self._waits[what] = why
        elif self._waits.pop(what, None) is None:
            return
        self._say()

    def _say(self) -> None:
        """Tell the state, as it follows from everything."""
        if self._unloadable:
            self._runner.tell("broken", self._broken)
        elif self._waits:
            self._runner.tell("waiting", next(iter(self._waits.values())))
        elif self._retrying:
            self._runner.tell("retrying", self._trouble)
        elif self._broken:
            self._runner.tell("retrying", self._broken)
        elif self._reading is not None:
            self._runner.tell("running")

    async def _watch(self) -> None:
        """Notice what nobody tells: writes that are not acknowledged."""
        seen, since = -1, 0.0
        while True:
            await asyncio.sleep(1.0)
            number = self._release.published + self.ledger.journal.number
            waits = self.destinations.waits or (self.ledger.why() if self.ledger.waits else "")
            now = asyncio.get_running_loop().time()
            if number != seen or not waits:
                seen, since = number, now
            self._wait_for("acknowledgement", waits if now - since > 2 else "")


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that tells the most: another host comes before what follows from it."""
    found: list[BaseException] = []

    def gather(error: BaseException) -> None:
        if isinstance(error, BaseExceptionGroup):
            for one in error.exceptions:
                gather(one)
        else:
            found.append(error)

    gather(group)
    found.sort(key=lambda error: (not isinstance(error, Conflict), isinstance(error, Down)))
    return found[0]
