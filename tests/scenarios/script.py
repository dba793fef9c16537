"""Scenario scripts: commands and what is seen, run on what ships in virtual time.

A script is a text file. Lines with `#` are for the reader. Commands end with a line `----`; what
follows, up to an empty line, is what they and the time that they took have brought about.

sites HUB SITE … SITE=TIME     found a fabric; the first coordinates; TIME: so far from all, one way
topic MEMBER …                 make the topic; the first is its home; on_partition=continue
publish NAME N at=SITE         a program publishes N events, p1 p2 … if it is called p; ack=home; it
                               is waited for until it is told what became of them, for 5 s at most
read SITE                      a program there follows the topic from its first event on
run TIME                       let time pass
until SITE WORD                let time pass until a site is what `show` calls home, shut, replica …
until epoch N                  let time pass until an epoch has begun
show                           who is the home, and what each site holds on its disk
links                          which sites are linked
kill WHO …, start SITE …       end a site or a program at once; start sites again
power-loss SITE N              a machine loses power, and its log the newest N events
snapshot SITE, restore SITE    remember a site's folder; end the site and put that folder back
cut SITE [SITE]                let nothing pass between two sites, or between one and all others
mend                           undo all cuts
move SITE                      move the topic's home; with `begin-move` nobody waits for the end
remove SITE                    strike a site from the fabric
settle                         wait until nothing moves any more, and judge the end

The topic is called `t`. Nothing that is printed depends on how messages happen to interleave:
times are rounded up to one of few, and what comes in one block is sorted by kind.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from skerry.client.client import Client
from skerry.config import ClientSettings
from skerry.errors import SkerryError
from skerry.fabric.streams import sort_out
from skerry.model.names import segment_of_stream, topic_of_tail
from skerry.model.promotion import LINEAGE_KEPT
from skerry.model.topic import Ack
from skerry.sim.jetstream import Message, Stream
from skerry.sim.trial import LOOK, QUIET, Reader, Trial, Writer
from skerry.sim.verdict import TOPIC

FOLDER = Path(__file__).parent
BOUNDS = (0.1, 0.6, 1.5, 5.0, 15.0, 60.0)
"""Seconds that times are rounded up to: few, and none of them a period of what ships."""
PATIENCE = 5.0
WAITING = ("run", "until", "settle", "show", "links")
"""Commands that do nothing; how long something took is counted from the last that did."""
END = "----"

Events = list[tuple[int, bytes]]


class Program(Writer):
    """A program that publishes when it is told to."""

    def __init__(self, scenario: Scenario, name: str, site: str, level: Ack) -> None:
        super().__init__(scenario, name, site, level)
        self._scenario = scenario
        self._count = 0
        self.waiting: Events = []
        self.told: Events = []
        """What of it the script has told."""

    async def send(self, count: int) -> None:
        """Publish some events."""
        made = [b"%b:%d" % (self.name.encode(), self._count + n + 1) for n in range(count)]
        self._count += count
        self.waiting += [(0, data) for data in made]
        if self.publisher is None:
            address = self._scenario.agents[self.site].address("sdk")
            client = Client([address], ClientSettings(), self.name)
            await client.open()
            self.publisher = client.publisher(TOPIC, ack=self.level)
        for data in made:
            (await self.publisher.send(data)).add_done_callback(partial(self._told, data))

    def kill(self) -> None:
        """End it in its midst."""
        super().kill()
        self.waiting.clear()

    def _told(self, data: bytes, done: asyncio.Future[int]) -> None:
        if not self.process.is_alive:
            return
        super()._told(data, done)
        self.waiting.remove((0, data))
        error = None if done.cancelled() else done.exception()
        how = type(error).__name__ if error else f"acknowledged ({self.level})"
        index = 0 if error or done.cancelled() else done.result()
        self._scenario.happen(2, f"{self.name}: {{}} {how}", index, data)


class Follower(Reader):
    """A program that reads, and tells what it got."""

    def __init__(self, scenario: Scenario, site: str) -> None:
        super().__init__(scenario, site)
        self._scenario = scenario

    def _take(self, index: int, data: bytes, stamp: int) -> None:
        super()._take(index, data, stamp)
        self._scenario.happen(3, f"the reader at {self.site} gets {{}}", index, data)


class Block:
    """Commands, what is said of them, and what they gave."""

    def __init__(self, text: str) -> None:
        head, self.has_commands, tail = text.partition(f"\n{END}")
        self.head = head
        self.expected = tail.strip("\n")
        self.output = ""

    @property
    def commands(self) -> list[str]:
        """What to do."""
        lines = self.head.splitlines() if self.has_commands else []
        return [line for line in lines if not line.startswith("#")]

    def written(self) -> str:
        """The block, with what it gave."""
        if not self.has_commands:
            return self.head
        return f"{self.head}\n{END}\n{self.output}".rstrip("\n")


class Scenario(Trial):
    """Runs one script."""

    looks = (0.004, 0.02)
    lineages = (LINEAGE_KEPT,)

    def __init__(self, text: str, seed: int = 1) -> None:
        super().__init__(seed)
        self.blocks = [Block(part.strip("\n")) for part in re.split(r"\n{2,}", text.strip())]
        self._programs: dict[str, Program] = {}
        self._began = 0.0
        self._lines: list[str] = []
        self._seen: dict[tuple[int, str], tuple[float, Events]] = {}
        """What has come about in this block: its kind and name; how long it took; the events."""
        self._moving: asyncio.Task[None] | None = None
        self._folders: dict[str, Any] = {}
        self._told = ""

    def play(self) -> str:
        """Run it; return the script, with what it gives now."""
        outcome = self.run()
        if outcome.violation and outcome.violation != self._told:
            self.blocks[-1].output += f"\nVIOLATION: {_plain(outcome.violation)}"
        return "\n\n".join(block.written() for block in self.blocks) + "\n"

    async def story(self) -> None:
        """Do what the script says."""
        for block in self.blocks:
            for command in block.commands:
                words = command.split()
                if words[0] not in WAITING:
                    self._began = self.loop.time()
                options = dict(word.split("=") for word in words[1:] if "=" in word)
                plain = [word for word in words[1:] if "=" not in word]
                do = getattr(self, "do_" + words[0].replace("-", "_"))
                await (do(*words[1:]) if words[0] == "sites" else do(*plain, **options))
            block.output = "\n".join([*self._report(), *self._lines])
            self._lines.clear()
            self._seen.clear()

    # What comes about

    def happen(self, kind: int, what: str, index: int = 0, data: bytes = b"") -> None:
        """Note something that is told at the end of the block."""
        events = self._seen.get((kind, what), (0.0, []))[1]
        self._seen[kind, what] = self._elapsed, [*events, *([(index, data)] if data else [])]

    @property
    def _elapsed(self) -> float:
        return self.loop.time() - self._began

    def _report(self) -> Iterator[str]:
        for (_, what), (took, events) in sorted(self._seen.items()):
            yield f"{what.format(_list(events))}, {_within(took)}"
        for one in self._programs.values():
            if one.waiting and one.waiting != one.told:
                one.told = list(one.waiting)
                yield f"{one.name} waits for {_list(one.waiting)}"
        if self.verdict.violation and not self._told:
            self._told = self.verdict.violation
            yield f"VIOLATION: {_plain(self._told)}"

    def _on_stored(self, *what: Any) -> None:
        before = len(self.verdict.entries)
        self.verdict.on_stored(*what)
        entry = self.verdict.entry if len(self.verdict.entries) > before else None
        if entry is not None and before:
            self.happen(
                1, f"epoch {entry.epoch}: home {entry.home}, from index {entry.base + 1} on"
            )

    async def _wait(self, condition: Callable[[], object], seconds: float) -> bool:
        deadline = self.loop.time() + seconds
        while not condition() and self.loop.time() < deadline:
            await asyncio.sleep(0.001)
        return bool(condition())

    # Commands

    async def do_sites(self, *words: str) -> None:
        """Found a fabric."""
        ways = {name: way for name, _, way in (word.partition("=") for word in words)}
        for site, way in ways.items():
            for other in [one for one in ways if way and one != site]:
                self.net.ways[site, other] = self.net.ways[other, site] = _seconds(way)
        await self.join(list(ways))
        for engine in self.net.engines.values():
            engine.on_stored = self._on_stored
        self._hub, *others = ways
        self._lines.append(f"{self._hub} coordinates; {' and '.join(others)} joined")

    async def do_topic(self, *members: str, on_partition: Any = "stop") -> None:
        """Make the topic."""
        work = self.make(self._hub, list(members), on_partition)
        await self.spawn("maker", self._hub, work)

    async def do_publish(self, name: str, count: str, at: str = "", ack: Ack = "quorum") -> None:
        """Have a program publish."""
        if name not in self._programs:
            self._programs[name] = Program(self, name, at, ack)
            self.publishers.append(self._programs[name])
        one = self._programs[name]
        one.process.context().run(self.loop.create_task, one.send(int(count)))
        await asyncio.sleep(0)
        await self._wait(lambda: not one.waiting, PATIENCE)

    async def do_read(self, site: str) -> None:
        """Have a program read."""
        self.readers.append(Follower(self, site))
        self.readers[-1].start()
        await asyncio.sleep(1.0)

    async def do_run(self, time: str) -> None:
        """Let time pass."""
        await asyncio.sleep(_seconds(time))

    async def do_until(self, site: str, word: str) -> None:
        """Wait for a site, or an epoch."""

        def is_so() -> bool:
            if site == "epoch":
                return self.verdict.entry.epoch >= int(word)
            return self._role(site).startswith(word)

        if not await self._wait(is_so, QUIET):
            self._lines.append(f"{site} {word}: not within {QUIET:g} s")

    async def do_show(self) -> None:
        """Say who has what."""
        entry = self.verdict.entry
        self._lines.append(f"epoch {entry.epoch}: home {entry.home}")
        roles = {site: self._role(site) for site in self.agents}
        for site, role in roles.items():
            role = role.ljust(max(map(len, roles.values())))
            self._lines.append(f"{site.ljust(max(map(len, roles)))}  {role}  {self._held(site)}")

    async def do_links(self) -> None:
        """Say who is linked."""
        engines = self.net.engines
        pairs = [f"{a}-{b}" for a in engines for b in engines if a < b and b in engines[a].leaves]
        self._lines.append(f"linked: {', '.join(pairs)}")

    async def do_kill(self, *names: str) -> None:
        """End sites or programs."""
        for name in names:
            (self._programs.get(name) or self.agents[name]).kill()

    async def do_start(self, *sites: str) -> None:
        """Start sites again."""
        for site in sites:
            self.agents[site].start()

    async def do_power_loss(self, site: str, count: str) -> None:
        """A machine goes down, and its log is shorter."""
        self.agents[site].kill(power=True)
        self._log(site)[-1].lose(int(count))
        self.verdict.forgive()

    async def do_snapshot(self, site: str) -> None:
        """Remember a folder."""
        self._folders[site] = self.agents[site].snapshot()

    async def do_restore(self, site: str) -> None:
        """Put that folder back."""
        self.agents[site].restore(self._folders[site])
        self.verdict.forgive()

    async def do_cut(self, site: str, *others: str) -> None:
        """Let nothing pass."""
        for other in others or [one for one in self.agents if one != site]:
            self.net.set_cut(site, other, True)
            self.net.set_cut(other, site, True)

    async def do_mend(self) -> None:
        """Undo all cuts."""
        for pair in sorted(self.net.cut):
            self.net.set_cut(*pair, False)

    async def do_begin_move(self, to: str) -> None:
        """Ask for a move."""

        async def move(client: Client) -> None:
            await client.move_topic(TOPIC, to)

        self._moving = self.spawn("mover", self._hub, self._administer(f"the move to {to}", move))
        await asyncio.sleep(0)

    async def do_move(self, to: str) -> None:
        """Move the topic."""
        await self.do_begin_move(to)
        assert self._moving is not None
        await self._moving

    async def do_remove(self, site: str) -> None:
        """Strike a site from the fabric."""
        work = self._administer(f"the removal of {site}", lambda client: client.remove_site(site))
        await self.spawn("remover", self._hub, work)

    async def do_settle(self) -> None:
        """Wait for the end, and judge it."""

        def is_settled() -> bool:
            for one in self._programs.values():
                one.is_done = not one.waiting
            return self.verdict.unsettled() is None

        deadline = self.loop.time() + QUIET
        while not is_settled() and self.loop.time() < deadline:
            await asyncio.sleep(LOOK)
        self.verdict.finish()
        if self.verdict.violation is None:
            home = self._messages(self.verdict.entry.home).values()
            gone = self.verdict.acked.keys() - {one.data for one in home}
            what = f"but {_list([(0, data) for data in sorted(gone)])} of" if gone else "and"
            self._lines.append(f"at rest, {_within(self._elapsed)}; all members hold the same, "
                               f"{what} all that was acknowledged")  # fmt: skip
        await self.do_show()

    async def _administer(self, what: str, work: Callable[[Client], Any]) -> None:
        address = self.agents[self._hub].address("admin")
        try:
            async with Client([address], ClientSettings(), "administrator") as client:
                await work(client)
            self.happen(0, f"{what} is done")
        except SkerryError as error:
            self.happen(0, f"{what} failed: {error.what}")

    # What is there

    def _log(self, site: str) -> list[Stream]:
        """The streams of a site's log, in order."""
        streams = self.net.engines[site].streams
        found = {segment_of_stream(name): stream for name, stream in streams.items()}
        return [found[key] for key in sorted(key for key in found if key and key[0] == TOPIC)]

    def _messages(self, site: str) -> dict[int, Message]:
        """What a site's log is."""
        streams = {int(s.name.partition("~~")[2] or 0): s for s in self._log(site)}
        what = sort_out({n: msgspec.json.decode(s.info()) for n, s in streams.items()})
        held: dict[int, Message] = {}
        for number, first in what.places:
            held = {index: one for index, one in held.items() if index < first}
            end = what.ends.get(number, streams[number].last)
            held |= {n: m for n, m in streams[number].messages.items() if first <= n <= end}
        return held

    def _held(self, site: str) -> str:
        held = self._messages(site)
        tails = [s for n, s in self.net.engines[site].streams.items() if topic_of_tail(n) == TOPIC]
        aside = [(0, one.data) for tail in tails for one in tail.messages.values()]
        text = _list([(index, one.data) for index, one in sorted(held.items())]) or "nothing"
        return f"{text}; to be brought home: {_list(aside)}" if aside else text

    def _role(self, site: str) -> str:
        agent = self.agents[site]
        if agent.process is None:
            return "down"
        if not agent.is_open or agent.fabric is None:
            return "starting"
        local = agent.fabric.copies.logs.get(TOPIC)
        if local is None or not local.kind:
            return "no log"
        if local.kind == "home":
            return f"home of epoch {local.epoch}"
        if local.kind == "frozen":
            return f"shut, was home of epoch {local.epoch}"
        if site not in self.verdict.entry.members:
            return "copy for readers"
        mark = local.copy
        sealed = f", sealed for {mark.sealed}" if mark.sealed > mark.label else ""
        return f"replica of epoch {mark.label}{sealed}"


def _seconds(text: str) -> float:
    number, unit = re.fullmatch(r"([0-9.]+)(ms|s)", text).groups()  # type: ignore[union-attr]
    return float(number) / (1000 if unit == "ms" else 1)


def _within(seconds: float) -> str:
    bound = next((bound for bound in BOUNDS if seconds <= bound), None)
    return f"within {bound:g} s" if bound else f"after more than {BOUNDS[-1]:g} s"


def _plain(text: str) -> str:
    """Names of events as a script has them, and no times."""
    return re.sub(r"\((\w+), \d+\)", r"\1", re.sub(r"b'(\w+):(\d+)'", r"\1\2", text))


def _list(events: Events) -> str:
    """Events that follow each other are one range; index 0 is none."""
    ranges: list[tuple[str, int, int, int]] = []
    for index, data in events:
        name, _, text = data.decode().partition(":")
        number = int(text)
        if ranges:
            was, first, count, at = ranges[-1]
            if (was, first + count) == (name, number) and index == (at + count if at else 0):
                ranges[-1] = was, first, count + 1, at
                continue
        ranges.append((name, number, 1, index))
    told = []
    for name, first, count, at in ranges:
        names = f"{name}{first}" + (f"–{name}{first + count - 1}" if count > 1 else "")
        places = f" at {at}" + (f"–{at + count - 1}" if count > 1 else "") if at else ""
        told.append(names + places)
    return ", ".join(told)
