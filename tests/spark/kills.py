"""`python -m tests.spark.kills`: exactly once through source, state and sink, whatever is killed.

A pipeline in a process of its own (`tests.spark.totals`) adds up the numbers of topic `a` by key
and writes the totals to topic `b`, while drivers, Python workers and engines are killed with
SIGKILL, the source topic moves and fails over, and once, if asked for, the pipeline stays away for
longer than a log remembers ids. At the end the totals must be exact, and none may be there twice.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec
import psutil

from skerry import Client
from skerry.testing import LocalFabric
from tests.conftest import until
from tests.spark.totals import KEYS

PATIENCE = 240.0
"""Seconds without progress after which a campaign has failed."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a campaign does."""

    events: int = 1_000_000
    kills: int = 12
    """Of driver, worker and engine in turn."""
    seed: int = 1
    sites: tuple[str, ...] = ("hub", "farm", "lab")
    """With one site alone nothing moves and nothing fails over."""
    outage: float = 0.0
    """Seconds that the pipeline stays away once, killed amid a batch; 0: it does not."""
    rows: int = 20_000
    """Events that a batch takes."""


class Result(msgspec.Struct, kw_only=True):
    """What came of it."""

    seed: int
    events: int
    counted: int = 0
    exact: bool = False
    """Whether count and sum of each key are those of the events."""
    doubled: int = 0
    """Totals that were written more than once."""
    batches: int = 0
    """Totals of the first key: at least so many batches were written."""
    faults: dict[str, int] = {}
    drivers: int = 0
    """Drivers that were started."""
    outage: float = 0.0
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether the promise was kept."""
        return self.exact and not self.doubled


class Campaign:
    """One run; what it needs is made and removed by `run`."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.result = Result(seed=options.seed, events=options.events, outage=options.outage)
        self._chance = random.Random(options.seed)
        self._folder = Path(tempfile.mkdtemp(prefix="skerry-kills-"))
        self._driver: subprocess.Popen[bytes] | None = None
        self._away = False
        self._sent = 0
        self._totals: dict[int, tuple[int, int]] = {}
        self._written: Counter[tuple[int, int]] = Counter()
        self._rows = 0
        self._began = time.monotonic()

    async def run(self) -> Result:
        """Run it; raises if nothing goes on any more."""
        try:
            async with (
                LocalFabric(list(self.options.sites)) as fabric,
                fabric.connect("hub", timeout=100) as client,
                fabric.connect("hub", "admin", timeout=100) as admin,
            ):
                self._fabric, self._client, self._admin = fabric, client, admin
                await self._work()
        finally:
            self._end_driver()
            shutil.rmtree(self._folder, ignore_errors=True)
        self.result.seconds = round(time.monotonic() - self._began, 1)
        return self.result

    async def _work(self) -> None:
        sites = self.options.sites
        far = sites[1] if len(sites) > 1 else sites[0]
        replicas = min(2, len(sites) - 1)
        await self._client.create_topic("a", home=far, replicas=replicas, ack="quorum")
        await self._client.create_topic("b", home="hub", replicas=replicas, ack="quorum")
        async with asyncio.TaskGroup() as group:
            beside = [
                group.create_task(self._follow(self._client)),
                group.create_task(self._keep_driver()),
                group.create_task(self._tell()),
            ]
            publishing = group.create_task(self._publish())
            await self._harm()
            await publishing
            await self._reaches(self.options.events)
            for task in beside:
                task.cancel()
        self._judge()

    # What is measured

    async def _publish(self) -> None:
        async with self._client.publisher("a", timeout=100) as publisher:
            for n in range(self.options.events):
                await publisher.send(b"%d" % n)
                self._sent = n + 1
                while n - self._counted() > 8 * self.options.rows:
                    await asyncio.sleep(0.05)

    async def _follow(self, client: Client) -> None:
        async with client.subscribe("b", from_index=1) as events:
            async for event in events:
                row = json.loads(event.data)
                self._rows += 1
                self._totals[row["rest"]] = (row["count"], row["sum"])
                self._written[row["rest"], row["count"]] += 1

    def _counted(self) -> int:
        return sum(count for count, _ in self._totals.values())

    def _judge(self) -> None:
        events, result = self.options.events, self.result
        expected = {}
        for rest in range(KEYS):
            numbers = range(rest, events, KEYS)
            expected[rest] = (len(numbers), sum(numbers))
        result.counted = self._counted()
        result.exact = self._totals == expected
        result.doubled = sum(count - 1 for count in self._written.values())
        result.batches = sum(1 for rest, _ in self._written if rest == 0)

    async def _tell(self) -> None:
        while True:
            text = f"{time.monotonic() - self._began:4.0f} s, {self._sent} sent, "
            text += f"{self._counted()} counted, {self.result.faults}"
            if sys.stderr.isatty():
                print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            else:
                print(text, file=sys.stderr, flush=True)
            await asyncio.sleep(0.5 if sys.stderr.isatty() else 10)

    # What is done to it

    async def _harm(self) -> None:
        kinds = ["driver", "worker", "engine"]
        faults = [kinds[n % len(kinds)] for n in range(self.options.kills)]
        if len(self.options.sites) > 1:
            faults.insert(len(faults) // 3, "move")
            faults.insert(2 * len(faults) // 3, "failover")
        if self.options.outage:
            faults.insert(len(faults) // 2, "outage")
        harm = {
            "driver": self._lose_driver,
            "worker": self._kill_worker,
            "engine": self._kill_engine,
            "move": self._move,
            "failover": self._fail_over,
            "outage": self._stay_away,
        }
        for number, fault in enumerate(faults, 1):
            await self._reaches(number * self.options.events // (len(faults) + 1))
            await self._grows()
            await asyncio.sleep(self._chance.choice([0.0, self._chance.uniform(0.0, 0.5)]))
            await harm[fault]()
            self.result.faults[fault] = self.result.faults.get(fault, 0) + 1

    async def _lose_driver(self) -> None:
        self._end_driver()

    async def _kill_worker(self) -> None:
        while self._driver is None or not (workers := _workers(self._driver.pid)):
            await asyncio.sleep(0.05)
        with contextlib.suppress(psutil.NoSuchProcess):
            self._chance.choice(workers).kill()

    async def _kill_engine(self) -> None:
        self._fabric[self._chance.choice(list(self._fabric.sites))].kill_engine()

    async def _move(self) -> None:
        home = (await self._client.topic("a")).home
        others = [site for site in self.options.sites if site not in (home, "hub")]
        await self._admin.move_topic("a", self._chance.choice(others))

    async def _fail_over(self) -> None:
        home = (await self._client.topic("a")).home
        if home == "hub":  # where the pipeline is; an engine that was killed had been the home
            home = (await self._admin.move_topic("a", self.options.sites[1])).home
        await self._fabric.crash(home)

        async def elsewhere() -> bool:
            return (await self._client.topic("a")).home != home

        await until(elsewhere, 60)
        await self._fabric.start(home)

    async def _stay_away(self) -> None:
        self._away = True
        self._end_driver()
        await asyncio.sleep(self.options.outage)
        self._away = False

    async def _reaches(self, count: int) -> None:
        """Wait until so many events are counted."""
        best, since = -1, time.monotonic()
        while (now := self._counted()) < count:
            if now > best:
                best, since = now, time.monotonic()
            elif time.monotonic() - since > PATIENCE + self.options.outage:
                raise TimeoutError(f"nothing is counted any more at {now}\n{self._log()}")
            await asyncio.sleep(0.02)

    async def _grows(self) -> None:
        """Wait until a total is written: its batch is not committed yet, most likely."""
        before = self._rows
        if self._counted() < self.options.events:
            await until(lambda: self._rows > before, PATIENCE)

    # The pipeline

    async def _keep_driver(self) -> None:
        while True:
            if self._driver is not None and self._driver.poll() is not None:
                self._driver = None
            if self._driver is None and not self._away:
                self._start_driver()
            await asyncio.sleep(0.05)

    def _start_driver(self) -> None:
        command = [
            sys.executable, "-m", "tests.spark.totals", str(self._fabric["hub"].data),
            str(self._folder / "checkpoint"), str(self.options.rows),
        ]  # fmt: skip
        with (self._folder / "log").open("ab") as log:
            self._driver = subprocess.Popen(command, start_new_session=True, stdout=log, stderr=log)
        self.result.drivers += 1

    def _end_driver(self) -> None:
        """Kill the driver with its JVM and workers, as the loss of its machine would."""
        if self._driver is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._driver.pid, signal.SIGKILL)
            self._driver.wait()

    def _log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-3000:]


def _workers(driver: int) -> list[psutil.Process]:
    """The Python processes of a driver that run tasks, the source and the sink."""
    found = []
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(driver).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "python" in process.name() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
    return found


def main() -> int:
    """Read the command line, run, tell; the exit code is 1 if the promise was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark.kills", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=12, help="of driver, worker, engine in turn")
    parser.add_argument("--seed", type=int, default=1, help="what the moments are drawn from")
    parser.add_argument("--outage", type=float, default=0.0, help="seconds away, once")
    parser.add_argument("--minutes", type=float, default=12.0, help="at the most")
    given = parser.parse_args()
    options = Options(events=given.events, kills=given.kills, seed=given.seed, outage=given.outage)

    async def bounded() -> Result:
        async with asyncio.timeout(given.minutes * 60):
            return await Campaign(options).run()

    result = asyncio.run(bounded())
    print(msgspec.json.format(msgspec.json.encode(result)).decode())
    return 0 if result.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
