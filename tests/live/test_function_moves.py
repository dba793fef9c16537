"""Functions follow their topics: across moves, failovers and lost sites each event counts once."""

from __future__ import annotations

import asyncio
from pathlib import Path

from skerry import Client
from skerry.functions.assignment import Assignment
from skerry.testing import LocalFabric
from tests.conftest import until
from tests.functions.hosts import COUNTS, assignment, holds, host, make_topics
from tests.functions.steering import StandIn, steered
from tests.live.fabrics import check_all, converged, three_sites

KEYS = 3


async def prepared(client: Client, folder: Path, home: str = "farm") -> Assignment:
    """The counting function and its topics, with two replicas each."""
    count = assignment(folder / "count.py", COUNTS)
    await client.create_topic("in", home=home, replicas=2)
    await client.create_topic("out", home="hub", replicas=2)
    await make_topics(client, count, replicas=2, home=home)
    return count


class Feed:
    """Publishes 0, 1, … with keys in turn, until it is told to stop."""

    def __init__(self, client: Client) -> None:
        self.count = 0
        self._client = client
        self._stop = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Feed:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Wait until all that was published is acknowledged."""
        self._stop = True
        assert self._task is not None
        await self._task

    async def _run(self) -> None:
        async with self._client.publisher("in", timeout=100) as publisher:
            while not self._stop:
                await publisher.send(str(self.count), key=f"k{self.count % KEYS}")
                self.count += 1
                await asyncio.sleep(0.002)


def expected(count: int) -> list[str]:
    return [f"{n} k{n % KEYS} {n // KEYS + 1}" for n in range(count)]


async def goes_on(client: Client, events: int = 100) -> None:
    """Wait until so many more outputs are there."""
    goal = await client.latest_index("out") + events

    async def reached() -> bool:
        return await client.latest_index("out") >= goal

    await until(reached, 60)


def home_of(fabric: LocalFabric, site: str, topic: str = "in") -> str:
    part = fabric.agent(site).fabric
    entry = part.copies.entry(topic) if part is not None else None
    assert entry is not None
    return entry.home


async def test_a_function_moves_with_its_topic(tmp_path: Path) -> None:
    async with (
        three_sites() as fabric,
        fabric.connect("hub", "admin", timeout=60) as client,
        fabric.connect("hub", "admin", timeout=60) as admin,
    ):
        count = await prepared(client, tmp_path)
        async with steered(fabric, count), Feed(client) as feed:
            for to in ("lab", "hub", "farm"):
                await goes_on(client)
                await admin.move_topic("in", to)
                await goes_on(client)
                await admin.move_topic(count.journal, to)
                await goes_on(client)
            await admin.move_topic("out", "lab")
            await goes_on(client)
            await feed.stop()
            assert await holds(client, feed.count) == expected(feed.count)


async def test_a_function_goes_on_elsewhere_when_its_site_is_lost(tmp_path: Path) -> None:
    async with three_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        count = await prepared(client, tmp_path)
        async with steered(fabric, count) as hosts, Feed(client) as feed:
            for _ in range(3):
                await goes_on(client)
                home = home_of(fabric, "hub")
                if home == "hub":  # the client is there, and so is the directory
                    break
                await lose(fabric, hosts, home)
                await goes_on(client)
                await fabric.start(home)
                await goes_on(client)
            await feed.stop()
            assert await holds(client, feed.count) == expected(feed.count)


async def lose(fabric: LocalFabric, hosts: StandIn, site: str) -> None:
    """A site is gone, with its engine, its agent and its host."""
    lost = asyncio.create_task(hosts.leave(site))
    await fabric.crash(site)
    await lost


async def test_engines_are_killed_under_a_function(tmp_path: Path) -> None:
    async with three_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        count = await prepared(client, tmp_path)
        async with steered(fabric, count), Feed(client) as feed:
            for _ in range(4):
                await goes_on(client)
                fabric[home_of(fabric, "hub")].kill_engine()
            await goes_on(client)
            fabric[home_of(fabric, "hub", "out")].kill_engine()
            await goes_on(client)
            await feed.stop()
            assert await holds(client, feed.count) == expected(feed.count)


async def test_a_pinned_function_runs_elsewhere_than_its_topic(tmp_path: Path) -> None:
    async with three_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        count = await prepared(client, tmp_path)
        async with host(fabric["lab"].data, count), Feed(client) as feed:
            await goes_on(client)
            fabric["farm"].kill_engine()
            await goes_on(client)
            await feed.stop()
            assert await holds(client, feed.count) == expected(feed.count)


async def test_what_a_lost_home_wrote_on_an_old_claim_is_not_brought_back(tmp_path: Path) -> None:
    """A journal's home may come back long after: what it took and nobody else has must not be
    written over what was written since."""
    async with three_sites() as fabric:
        async with fabric.connect("farm") as client:
            await client.create_topic(
                "j", home="farm", replicas=2, keep_last=1, on_partition="continue"
            )
            async with client.publisher("j") as publisher:
                claim = await (await publisher.send("old", topic="j/w", id="a", mark=_if(0)))
                await publisher.send("common", topic="j/r/1", id="b", mark=_if(claim))
            await converged(fabric, "j", ["hub", "farm", "lab"])
            for site in ("lab", "hub"):
                await fabric.crash(site)
            async with client.publisher("j", ack="home") as publisher:
                await publisher.send("lost", topic="j/r/1", id="c", mark=_if(claim))
        await fabric.crash("farm")
        for site in ("hub", "lab"):
            await fabric.start(site)
        async with fabric.connect("lab", timeout=60) as client:
            async with client.publisher("j", timeout=60) as publisher:
                await publisher.send("new", topic="j/w", id="d", mark=_if(claim))
            await fabric.start("farm")
            await check_all(fabric, "j", ["hub", "farm", "lab"], ["common", "new"])


def _if(claim: int) -> bytes:
    return (
        f"Nats-Expected-Last-Subject-Sequence:{claim}\r\n"
        "Nats-Expected-Last-Subject-Sequence-Subject:e.j.w\r\n"
    ).encode()


async def test_outputs_wait_for_a_topic_whose_home_is_away(tmp_path: Path) -> None:
    async with three_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        count = assignment(tmp_path / "count.py", COUNTS)
        await client.create_topic("in", home="farm", replicas=2)
        await client.create_topic("out", home="lab")
        await make_topics(client, count, replicas=2, home="farm")
        async with host(fabric["farm"].data, count) as one:
            async with client.publisher("in") as publisher:
                for number in range(300):
                    if number == 100:
                        await publisher.flush()
                        await holds(client, 100)
                        await fabric.crash("lab")
                    await publisher.send(str(number), key=f"k{number % KEYS}")
            await one.is_in("waiting", error="lab")
            await fabric.start("lab")
            assert await holds(client, 300) == expected(300)
            await one.is_in("running", handled=300)
