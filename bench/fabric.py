"""A fabric to play on: each site in a process of its own, as it is where people run it.

Three sites in one process would wait for each other and for the benchmark's clients (for the gap of
a failover, though, it made no difference beyond the noise: 24 ms and 27 ms). The clients live in
*places*: a thread with an event loop for each site, in the site's network where that is emulated.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil
import uvloop

import skerry
from bench.site import READY, Spec
from bench.stage import MB, STARTING, end
from skerry.engine.answers import ask
from skerry.model.promotion import State
from skerry.testing.wan import Wan

T = TypeVar("T")

DELAY = 0.04
"""Seconds one way between any two sites of an emulated wide-area network."""
PATIENCE = 30.0
"""Seconds after which what is waited for has failed."""
CHUNK = 64 * 1024
"""Bytes of an event that is there to take room."""


def copy_time(size: int) -> float:
    """Seconds after which copying so many bytes between sites has failed: 5 MB/s are slow here."""
    return PATIENCE + size / 5e6


class Sent:
    """What crosses between sites. A link that comes anew counts from zero, so they are looked at
    again and again, and what each look finds more is added up."""

    def __init__(self, fabric: Fabric | None = None) -> None:
        self._fabric = fabric
        self._last: dict[tuple[str, str], int] = {}
        self.total = 0

    async def look(self) -> None:
        """Add what crossed since the last look."""
        assert self._fabric is not None
        self.add(await self._fabric.traffic())

    def add(self, found: dict[tuple[str, str], int]) -> None:
        """Add what a look found: bytes that one site has sent to another over today's link."""
        for pair, sent in found.items():
            before = self._last.get(pair, 0)
            self.total += sent - before if sent >= before else sent
            self._last[pair] = sent

    @contextlib.asynccontextmanager
    async def counted(self, every: float = 0.2) -> AsyncIterator[None]:
        """Count from zero what crosses in the block."""
        await self.look()
        self.total = 0

        async def keep_looking() -> None:
            while True:
                await asyncio.sleep(every)
                await self.look()

        task = asyncio.create_task(keep_looking())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.look()


class Place:
    """A thread with an event loop, in a site's network."""

    def __init__(self, inside: contextlib.AbstractContextManager[None]) -> None:
        self._inside = inside
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        with self._inside:
            self._loop.run_forever()
        self._loop.close()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Have `work` done there."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def stop(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


class Fabric:
    """Running sites, the first of them the coordination site."""

    def __init__(
        self, names: Sequence[str], root: Path, wan: Wan | None, idle: bool = False
    ) -> None:
        self.names = names
        self._idle = idle
        self.root = root
        self.wan = wan
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._places: dict[str, Place] = {}
        self._topics = 0
        self.joined: dict[str, float] = {}
        """Seconds from a site's start until it was a part of the fabric."""

    @contextlib.contextmanager
    def _inside(self, name: str) -> Iterator[None]:
        with self.wan.inside(name) if self.wan else contextlib.nullcontext():
            yield

    async def at(self, name: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work()` in the network of a site, in a thread of that site."""
        if name not in self._places:
            self._places[name] = await asyncio.to_thread(Place, self._inside(name))
        return await self._places[name].run(work())

    def data(self, name: str) -> Path:
        """A site's data folder."""
        return self.root / name

    def connect(self, name: str, user: str = "sdk") -> skerry.Client:
        """A client of a site; to be used at that site."""
        return skerry.connect(self.data(name), user=user)

    async def asked(
        self, name: str, question: Callable[[skerry.Client], Awaitable[T]], user: str = "admin"
    ) -> T:
        """What `question(client)` returns, asked at a site."""

        async def work() -> T:
            async with self.connect(name, user) as client:
                return await question(client)

        return await self.at(name, work)

    async def kill_engine(self, name: str) -> float:
        """Kill a site's engine, which its agent starts anew; return when that was."""
        pid = (await self.asked(name, lambda client: client.status())).engine_pid
        assert pid is not None
        moment = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return moment

    async def kill(self, name: str) -> None:
        """Lose a site: its agent is killed, and its engine dies with it."""
        process = self._processes[name]
        process.kill()
        await asyncio.to_thread(process.wait)

    async def create(self, **settings: Any) -> str:
        """A fresh topic; return its name once every site knows it."""
        self._topics += 1
        topic = f"bench-{self._topics:04d}"
        await self.asked(self.names[0], lambda client: client.create_topic(topic, **settings))
        await self.settled(topic)
        return topic

    async def settled(self, topic: str, seconds: float = PATIENCE) -> None:
        """Wait until every member's copy belongs to the newest epoch and all end alike."""

        async def state(site: str) -> State | None:
            async def question(client: skerry.Client) -> bytes:
                assert client._opened is not None
                return await ask(client._opened.jetstream, site, "peer.state", {"name": topic})

            return msgspec.json.decode(await self.asked(site, question), type=State | None)

        async def is_settled() -> bool:
            found = await self.asked(self.names[0], lambda client: client.topic(topic))
            states = await asyncio.gather(*map(state, (found.home, *found.replicas)))
            labels = {s.label for s in states if s} | {0 for s in states if s is None}
            return labels == {found.epoch} and len({s.last for s in states if s}) == 1

        await until(is_settled, f"{topic} to settle", seconds)

    async def move(self, topic: str, to: str, seconds: float = PATIENCE) -> None:
        """Have a topic's home at `to`, settled."""
        await self.settled(topic, seconds)
        await self.asked(self.names[0], lambda client: client.move_topic(topic, to))
        await self.settled(topic, seconds)

    async def lost(self, topic: str, site: str, seconds: float = PATIENCE) -> None:
        """Wait until a topic's home is not at `site` any more."""

        async def is_elsewhere() -> bool:
            return (await self.asked(self.names[0], lambda c: c.topic(topic))).home != site

        await until(is_elsewhere, f"{topic} to leave {site}", seconds)

    async def fill(self, topic: str, size: int) -> None:
        """Publish `size` bytes at the home of a topic, and wait until all members have them."""
        home = (await self.asked(self.names[0], lambda client: client.topic(topic))).home
        data = os.urandom(min(CHUNK, size))

        async def publish(client: skerry.Client) -> None:
            async with client.publisher(topic, ack="home") as publisher:
                for _ in range(size // len(data)):
                    await publisher.send(data)

        await self.asked(home, publish, "sdk")
        await self.settled(topic, copy_time(size))

    async def traffic(self) -> dict[tuple[str, str], int]:
        """Bytes of messages that each site has sent to each other over the link that is up now. A
        site that does not answer is left out."""
        found: dict[tuple[str, str], int] = {}
        for name in self.names:
            with contextlib.suppress(skerry.SkerryError):
                for link in await self.asked(name, lambda client: client.links()):
                    found[name, link.peer] = link.out_bytes
        return found

    def memory_mb(self, name: str) -> tuple[float, float]:
        """Resident memory of a site's agent and of its engine."""
        agent = psutil.Process(self._processes[name].pid)
        engines = [child for child in agent.children() if child.name().startswith("nats-server")]
        return agent.memory_info().rss / MB, sum(e.memory_info().rss for e in engines) / MB

    def processor_s(self) -> float:
        """Seconds of processor time that all sites have used."""
        total = 0.0
        for process in self._processes.values():
            agent = psutil.Process(process.pid)
            for one in (agent, *agent.children(recursive=True)):
                times = one.cpu_times()
                total += times.user + times.system
        return total

    async def start(self, name: str, token: str | None, patience: float = STARTING) -> None:
        """Start a site; with a token it joins."""
        host = self.wan.address(name) if self.wan else "127.0.0.1"
        spec = Spec(name, str(self.data(name)), host, token, self._idle)
        log = self.root / f"{name}.log"
        with log.open("wb") as out, self._inside(name):
            process = self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "bench.site", msgspec.json.encode(spec).decode()],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip

        async def is_up() -> bool:
            said = log.read_text(errors="replace")
            if process.poll() is not None:
                raise RuntimeError(f"site {name} did not come up: {said[-1000:]}")
            return READY in said.splitlines()

        await until(is_up, f"site {name} to come up", patience)

    async def stop(self) -> None:
        """Stop all sites."""
        for place in self._places.values():
            await asyncio.to_thread(place.stop)
        await asyncio.gather(
            *(asyncio.to_thread(end, process) for process in self._processes.values())
        )


@contextlib.asynccontextmanager
async def running_fabric(
    names: Sequence[str], delay: float | None = None, idle: bool = False, *,
    jitter: float = 0.0, loss: float = 0.0, patience: float = PATIENCE,
) -> AsyncIterator[Fabric]:  # fmt: skip
    """Fresh sites, linked: on loopback, or with `delay` seconds one way between any two (`jitter`
    and `loss` as `Wan` has them). If `idle`, each believes to have a machine of its own, with
    nothing else to do. `patience` is for each step until they are linked."""
    root = Path(tempfile.mkdtemp(prefix="skerry-bench-"))
    try:
        async with contextlib.AsyncExitStack() as stack:
            wan = None
            if delay is not None:
                wan = await stack.enter_async_context(
                    Wan(names, delay=delay, jitter=jitter, loss=loss)
                )
            fabric = Fabric(names, root, wan, idle)
            stack.push_async_callback(fabric.stop)
            await fabric.start(names[0], None)
            for name in names[1:]:
                token = await fabric.asked(names[0], lambda client: client.join_token())
                began = time.monotonic()
                await fabric.start(name, token, patience)
                fabric.joined[name] = time.monotonic() - began

            async def all_up() -> bool:
                return all(s.up for s in await fabric.asked(names[0], lambda c: c.sites()))

            await until(all_up, "the sites to be linked", patience)
            yield fabric
    finally:
        shutil.rmtree(root, ignore_errors=True)


async def until(
    condition: Callable[[], Awaitable[bool]], what: str, seconds: float = PATIENCE
) -> None:
    """Wait for a condition; raise if it does not come true."""
    deadline = time.monotonic() + seconds
    while not await condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {seconds:.0f} s for {what}")
        await asyncio.sleep(0.05)
