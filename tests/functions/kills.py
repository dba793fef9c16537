"""`python -m tests.functions.kills`: exactly once, whatever is killed.

Several publishers fill a topic with keys at a fabric of three sites, whose agents and engines are
processes of their own. A function counts the events of each key and publishes each count, while
workers, hosts, engines and whole sites are killed with SIGKILL. At the end every event must have
been counted once, and the state must say so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import psutil

import skerry
from skerry import Client
from skerry.engine.address import find_address
from skerry.engine.process import free_port
from skerry.errors import Conflict, SkerryError
from skerry.functions.access import Access
from skerry.functions.assignment import Assignment
from skerry.functions.ledger import Ledger
from skerry.model.topic import Ack
from tests.conftest import until
from tests.functions.hosts import assignment, make_topics
from tests.functions.steering import StandIn, Steering
from tests.soak.process import Network, SiteProcess

SITES = ("hub", "farm", "lab")
COUNTER = """
    import skerry

    @skerry.function
    def count(ctx, event):
        number = ctx.state.get(event.key, 0) + 1
        ctx.state[event.key] = number
        ctx.publish("out", f"{event.index} {event.key} {number}", key=event.key)
"""
PATIENCE = 180.0
"""Seconds without progress after which a campaign has failed."""
CHANCES = {
    "worker": 30, "host": 25, "engine of the home": 12, "engine": 6, "home": 20, "site": 7
}  # fmt: skip
"""What is killed, and how often of a hundred. With a site its host goes, as with a real agent."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a campaign does."""

    seed: int = 1
    events: int = 200_000
    kills: int = 100
    publishers: int = 4
    keys: int = 200
    workers: int = 2
    away: float = 3.0
    """Seconds that a lost site stays away, at the most."""
    ack: Ack = "quorum"


class Result(msgspec.Struct, kw_only=True):
    """What came of it."""

    seed: int
    events: int
    """What the input topic holds."""
    kills: dict[str, int] = {}
    missing: int = 0
    """Events that were not counted."""
    doubled: int = 0
    """Results that are there twice."""
    wrong: int = 0
    """Counts of a key that are skipped or repeated."""
    state_wrong: int = 0
    """Keys whose count in the state is not that of their events."""
    lost_inputs: int = 0
    """Events that were acknowledged to publishers and are not there once."""
    dead: int = 0
    hosts: int = 0
    """Hosts that were started anew."""
    seconds: float = 0.0
    hangs: str = ""

    @property
    def is_good(self) -> bool:
        """Whether the promise was kept."""
        bad = (self.missing, self.doubled, self.wrong, self.state_wrong, self.lost_inputs)
        return not any(bad) and not self.dead and not self.hangs


class Sites:
    """The sites of a campaign, and a client at each."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.processes: dict[str, SiteProcess] = {}
        self._clients: dict[str, Client] = {}

    async def start(self) -> None:
        """Start them one after the other, and have them join."""
        logs = self._root / "logs"
        logs.mkdir()
        first = SITES[0]
        for name in SITES:
            token = None
            if name != first:
                async with skerry.connect(self._root / first, user="admin") as admin:
                    token = await admin.join_token()
            spec: dict[str, Any] = {
                "site": name,
                "data": str(self._root / name),
                "host": "127.0.0.1",
                "port": free_port("127.0.0.1"),
                "link_port": free_port("127.0.0.1"),
                "tier": "hub" if name == first else "edge",
                "token": token,
                "begins": name == first,
                "ready": str(self._root / f"{name}.ready"),
            }
            site = self.processes[name] = SiteProcess(Network(None), spec, logs, lambda _: None)
            site.start()
            await until(lambda site=site: site.is_ready, 100)  # type: ignore[misc]
            client = skerry.connect(site.data, user="admin", timeout=100)
            await client.open()
            self._clients[name] = client

    async def follow(self, topic: str) -> None:
        """Know where a topic's home is from now on."""
        for client in self._clients.values():
            await client._open.routes.find(topic)

    def folders(self) -> dict[str, Path]:
        """The data folders of those that are there."""
        return {name: site.data for name, site in self.processes.items() if site.is_ready}

    def home(self, site: str, log: str) -> str | None:
        """Where a log's home is, as far as `site` knows."""
        entry = self._clients[site]._open.routes.newest(log)
        return entry.home if entry is not None else None

    def client(self, name: str) -> Client:
        """An administrator's client at a site."""
        return self._clients[name]

    async def close(self) -> None:
        """Stop them all."""
        for client in self._clients.values():
            await client.close()
        for site in self.processes.values():
            await site.stop()


class Campaign:
    """One run; what it needs is made and removed by `run`."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.result = Result(seed=options.seed, events=0)
        self._chance = random.Random(options.seed)
        self._root = Path(tempfile.mkdtemp(prefix="skerry-function-kills-"))
        self._sites = Sites(self._root)
        self._sent: Counter[str] = Counter()
        self._killed: Counter[str] = Counter()
        self._began = time.monotonic()

    async def run(self) -> Result:
        """Run it."""
        try:
            async with contextlib.AsyncExitStack() as stack:
                stack.push_async_callback(self._sites.close)
                await self._sites.start()
                count = await self._prepare()
                async with self._steering(count) as steering:
                    await self._work(steering)
                await self._judge(count)
        except TimeoutError:
            self.result.hangs = self.result.hangs or "nothing goes on any more"
        finally:
            self.result.kills = dict(sorted(self._killed.items()))
            self.result.seconds = round(time.monotonic() - self._began, 1)
            if self.result.is_good:
                shutil.rmtree(self._root, ignore_errors=True)
            else:
                print(f"what is left: {self._root}", file=sys.stderr)
        return self.result

    async def _prepare(self) -> Assignment:
        count = assignment(
            self._root / "count.py", COUNTER, order="key", concurrency=self.options.workers,
            retries=20,
        )  # fmt: skip
        client = self._sites.client("hub")
        await client.create_topic("in", home="farm", replicas=2, ack=self.options.ack)
        await client.create_topic("out", home="lab", replicas=2, ack="quorum")
        await make_topics(client, count, replicas=2, home="farm")
        await self._sites.follow("in")
        return count

    @contextlib.asynccontextmanager
    async def _steering(self, count: Assignment) -> Any:
        """Who runs the hosts."""
        stand_in = StandIn(self._sites, count)
        task = asyncio.create_task(stand_in.run())
        try:
            yield stand_in
            if task.done():
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.result.hosts = stand_in.restarts
            await stand_in.close()

    async def _work(self, steering: Steering) -> None:
        options = self.options
        async with asyncio.TaskGroup() as group:
            publishing = [group.create_task(self._publish(n)) for n in range(options.publishers)]
            for number in range(1, options.kills + 1):
                await self._counted(number * options.events // (options.kills + 2))
                await asyncio.sleep(self._chance.random() * 0.3)
                while not await self._kill(steering):
                    await asyncio.sleep(0.1)  # what was chosen is not there just now
            await asyncio.wait(publishing)
        await self._counted(await self._latest("in"))

    async def _publish(self, number: int) -> None:
        """Publish a share of the events, from whichever site is there."""
        options, chance = self.options, random.Random(f"{self.options.seed}-{number}")
        order = [SITES[(number + place) % len(SITES)] for place in range(len(SITES))]
        share = options.events // options.publishers
        folders = [self._root / name for name in order]
        async with (
            skerry.connect(folders, timeout=100) as client,
            client.publisher("in", timeout=100, window=512) as publisher,
        ):
            for place in range(share):
                data = f"{number}-{place}"
                await publisher.send(data, key=f"k{chance.randrange(options.keys)}")
                self._sent[data] += 1

    async def _latest(self, topic: str) -> int:
        """The latest index of a topic, from whichever site tells."""
        for name in SITES:
            if self._sites.processes[name].is_ready:
                with contextlib.suppress(SkerryError, TimeoutError):
                    async with asyncio.timeout(5):
                        return await self._sites.client(name).latest_index(topic)
        return 0

    async def _counted(self, goal: int) -> None:
        """Wait until so many results are there; raises if nothing goes on."""
        best, since = -1, time.monotonic()
        while (now := await self._latest("out")) < goal:
            if now > best:
                best, since = now, time.monotonic()
            if time.monotonic() - since > PATIENCE:
                self.result.hangs = f"{best} of {goal} results for {PATIENCE:g} s"
                raise TimeoutError(self.result.hangs)
            await asyncio.sleep(0.05)

    async def _kill(self, steering: Steering) -> bool:
        """Kill something; whether it was there."""
        what = self._chance.choices(list(CHANCES), list(CHANCES.values()))[0]
        home = next(filter(None, (self._sites.home(name, "in") for name in SITES)), SITES[0])
        site = home if "home" in what else self._chance.choice(SITES)
        process = self._sites.processes[site]
        if what in ("worker", "host"):
            pids = steering.workers() if what == "worker" else steering.hosts()
            pid = self._chance.choice(pids) if pids else None
            if what == "host" and self._chance.random() < 0.7:  # most often the one that works
                pid = next((one for one in pids if _has_children(one)), pid)
            if pid is None or not _end(pid):
                return False
        elif "engine" in what:
            if process.signal("engine", signal.SIGKILL) is None:
                return False
        else:
            if not process.kill(self._chance.uniform(0.2, self.options.away)):
                return False
            await steering.leave(site)
        self._killed[what] += 1
        print(f"{time.monotonic() - self._began:7.1f} s  killed {what} ({site})", file=sys.stderr)
        return True

    # At the end

    async def _judge(self, count: Assignment) -> None:
        result = self.result
        client = self._sites.client("hub")
        keys: dict[int, str] = {}
        inputs: Counter[str] = Counter()
        async for event in client.read("in"):
            keys[event.index] = event.key or ""
            inputs[bytes(event.data).decode()] += 1
        result.events = len(keys)
        result.lost_inputs = sum(inputs[data] != 1 for data in self._sent)
        seen: Counter[int] = Counter()
        counts: dict[str, list[int]] = {}
        async for event in client.read("out"):
            index, key, number = bytes(event.data).decode().split()
            seen[int(index)] += 1
            counts.setdefault(key, []).append(int(number))
            result.wrong += keys.get(int(index)) != key
        result.missing = sum(index not in seen for index in keys)
        result.doubled = sum(times - 1 for times in seen.values())
        result.wrong += sum(
            numbers != list(range(1, len(numbers) + 1)) for numbers in counts.values()
        )
        expected = Counter(keys.values())
        state = await self._state(count)
        result.state_wrong = sum(
            state.get(key) != number for key, number in expected.items()
        ) + sum(key not in expected for key in state)
        result.dead = await client.latest_index("functions/dead")

    async def _state(self, count: Assignment) -> dict[str, int]:
        """What the function remembers."""
        access = await Access.open(find_address(self._root / "hub", "admin"))
        try:
            while True:
                ledger = Ledger(access, count.journal)
                try:
                    journal = await ledger.open()
                except Conflict:  # a host that has just started claims it as well, and may win
                    continue
                finally:
                    ledger.close()
                return {key: msgspec.msgpack.decode(value) for key, value in journal.state.items()}
        finally:
            await access.close()


def _has_children(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(pid).children())
    return False


def _end(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def main() -> None:
    """Run a campaign from the command line; the exit code tells whether the promise was kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, kind in (
        ("seed", int), ("events", int), ("kills", int), ("keys", int), ("workers", int),
        ("away", float),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, default=getattr(Options(), name))
    options = Options(**vars(parser.parse_args()))
    result = asyncio.run(Campaign(options).run())
    print(msgspec.json.format(msgspec.json.encode(result), indent=2).decode())
    sys.exit(0 if result.is_good else 1)


if __name__ == "__main__":
    main()
