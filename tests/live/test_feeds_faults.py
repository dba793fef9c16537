"""Each event reaches exactly the queries that its feed matched when it was published, whatever
happens meanwhile. Each payload says what its feed's metadata was then."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable

import pytest

from skerry import Client
from skerry.feeds.feed import FeedHandle
from skerry.feeds.subscription import QuerySubscription
from skerry.model.feeds import Joined, Left, Missed, Received
from skerry.testing import LocalFabric, LocalSite, Wan, WanFabric
from tests.conftest import until
from tests.live.test_feeds import take

SITES = ["hub", "farm", "lab"]
ROOMS = ["1", "2", "3"]
FEEDS = 4
EVENTS = 60

Fault = Callable[[LocalFabric], Awaitable[None]]


class Publisher:
    """Publishes numbers from one feed, and changes the feed's room now and then."""

    def __init__(self, handle: FeedHandle, chance: random.Random) -> None:
        self.handle = handle
        self._chance = chance
        self.sent: defaultdict[str, list[int]] = defaultdict(list)
        """By room: the numbers that were published there."""

    async def run(self) -> None:
        for n in range(EVENTS):
            change = None
            if self._chance.random() < 0.2:
                change = {"room": self._chance.choice(ROOMS)}
            room = (change or self.handle.metadata)["room"]
            self.sent[str(room)].append(n)
            await self.handle.publish(json.dumps({"room": room, "n": n}), change=change)
            await asyncio.sleep(self._chance.uniform(0, 0.02))


class Subscriber:
    """Follows one room at one site."""

    def __init__(self, client: Client, room: str) -> None:
        self.room = room
        self.got: defaultdict[str, list[int]] = defaultdict(list)
        self.members: set[str] = set()
        self.wrong: list[str] = []
        self._client = client
        self.found: QuerySubscription

    async def open(self) -> None:
        self.found = await self._client.query(f'room = "{self.room}"')

    async def run(self) -> None:
        async for item in self.found:
            match item:
                case Joined(feed=feed):
                    self.members.add(feed.id)
                case Left(feed=feed):
                    self.members.discard(feed.id)
                case Received(feed=feed, event=event):
                    said = json.loads(event.data)
                    if said["room"] != self.room or feed.id not in self.members:
                        self.wrong.append(f"{said} from {feed.id}")
                    self.got[feed.id].append(said["n"])
                case Missed():
                    self.wrong.append(str(item))


async def nothing(fabric: LocalFabric) -> None:
    """All is well."""


async def kill_publishers_engine(fabric: LocalFabric) -> None:
    fabric["farm"].kill_engine()


async def kill_subscribers_engine(fabric: LocalFabric) -> None:
    fabric["lab"].kill_engine()


async def lose_the_coordination_site(fabric: LocalFabric) -> None:
    await fabric.crash("hub")


async def restart_an_agent(fabric: LocalFabric) -> None:
    await fabric.stop("lab")
    await fabric.start("lab")


FAULTS = [
    nothing,
    kill_publishers_engine,
    kill_subscribers_engine,
    lose_the_coordination_site,
    restart_an_agent,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.timeout(240)
async def test_each_event_reaches_exactly_the_queries_that_match(fault: Fault) -> None:
    chance = random.Random(5)
    async with (
        LocalFabric(SITES) as fabric,
        fabric.connect("farm", timeout=60) as farm,
        fabric.connect("lab", timeout=60) as lab,
    ):
        publishers = []
        for client in (farm, lab):
            for _ in range(FEEDS):
                handle = await client.feed({"room": chance.choice(ROOMS)})
                publishers.append(Publisher(handle, chance))
        subscribers = [Subscriber(client, room) for client in (farm, lab) for room in ROOMS]
        for subscriber in subscribers:
            await subscriber.open()
        reading = [asyncio.create_task(subscriber.run()) for subscriber in subscribers]
        publishing = asyncio.gather(*(publisher.run() for publisher in publishers))
        while not any(subscriber.got for subscriber in subscribers):
            await asyncio.sleep(0.01)
        await fault(fabric)
        await publishing
        expected = {
            room: {p.handle.id: p.sent[room] for p in publishers if p.sent[room]} for room in ROOMS
        }
        try:
            async with asyncio.timeout(60):
                for subscriber in subscribers:
                    while (
                        dict(subscriber.got) != expected[subscriber.room] and not subscriber.wrong
                    ):
                        await asyncio.sleep(0.02)
        except TimeoutError:
            pass
        for subscriber in subscribers:
            assert not subscriber.wrong
            assert dict(subscriber.got) == expected[subscriber.room]
        for task in reading:
            task.cancel()


@pytest.mark.skipif(Wan.unavailable() is not None, reason=str(Wan.unavailable()))
async def test_a_site_that_is_cut_off_goes_on_with_what_it_knows_and_catches_up() -> None:
    told: list[str] = []

    async def feed_at(site: LocalSite) -> FeedHandle:
        client = site.connect(timeout=60)
        await client.open()
        return await client.feed({"room": "1", "name": site.settings.site})

    async def listen(site: LocalSite) -> None:
        async with site.connect(timeout=60) as client, client.query('room = "1"') as found:
            async for item in found:
                match item:
                    case Received(event=event):
                        told.append(event.data.decode())
                    case Joined(feed=feed) | Left(feed=feed):
                        told.append(f"{type(item).__name__} {feed.metadata['name']}")

    async with WanFabric(["hub", "farm", "lab"], delay=0.002) as fabric:
        far = await fabric.run("farm", feed_at)
        near = await fabric.run("lab", feed_at)
        listening = asyncio.create_task(fabric.run("lab", listen))
        await until(lambda: {"Joined farm", "Joined lab"} <= set(told), 60)
        await fabric.run("farm", lambda _: far.publish("farm 1"))
        await until(lambda: "farm 1" in told, 60)
        await fabric.wan.cut("lab")
        await fabric.run("farm", lambda _: far.publish("farm 2"))
        await fabric.run("farm", lambda _: far.publish("elsewhere", change={"room": "2"}))
        await fabric.run("farm", lambda _: far.publish("farm 3", change={"room": "1"}))
        await fabric.run("lab", lambda _: near.publish("lab alone", change={"floor": 4}))
        await until(lambda: "lab alone" in told, 60)
        assert "farm 2" not in told
        await fabric.wan.heal("lab")
        await until(lambda: "farm 3" in told, 60)
        await fabric.run("farm", lambda _: far.publish("farm 4"))
        await until(lambda: "farm 4" in told, 60)
        listening.cancel()
    assert [line for line in told if "farm" in line] == [
        "Joined farm", "farm 1", "farm 2", "Left farm", "Joined farm", "farm 3", "farm 4",
    ]  # fmt: skip


async def test_only_events_that_match_cross_a_link_and_each_once() -> None:
    """By what the link's engine counted, with payloads that it cannot compress."""
    size, count = 10_000, 50
    async with (
        LocalFabric(SITES) as fabric,
        fabric.connect("farm") as farm,
        contextlib.AsyncExitStack() as stack,
    ):
        near, far = await farm.feed({"room": "1"}), await farm.feed({"room": "2"})
        found = []
        for n in range(5):  # equal queries, and others, of several clients
            lab = await stack.enter_async_context(fabric.connect("lab"))
            query = f'room = "1" and not room = "{n // 2}9"'
            found.append(await stack.enter_async_context(lab.query(query)))
        await near.publish("ready")
        for each in found:
            await take(each, 2)

        async def crossed() -> int:
            (link,) = [link for link in await lab.links() if link.peer == "farm"]
            return link.in_bytes

        before = await crossed()
        for _ in range(count):
            await far.publish(os.urandom(size))
            await near.publish(os.urandom(size))
        for each in found:
            await take(each, count)
        passed = await crossed() - before
        assert count * size < passed < 1.3 * count * size
