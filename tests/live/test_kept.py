"""What a home acknowledged is not lost with it while the publisher lives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec
import psutil
import pytest

import skerry
from skerry import Client, errors
from skerry.client import client as clients
from skerry.log import kept, sending
from skerry.log.append import Publisher
from skerry.model.fabric import Step, TopicEntry
from skerry.testing import LocalFabric
from tests.conftest import until
from tests.live.fabrics import contents, three_sites
from tests.live.test_replicas import has

TIMEOUT = 0.5
"""Seconds that publishers here wait for an acknowledgement."""
WARNING = "skerry.publisher"


@pytest.fixture
async def fabric() -> AsyncIterator[LocalFabric]:
    """The topic's home is farm, its replica lab; hub coordinates."""
    async with three_sites() as fabric:
        async with fabric.connect("hub") as client:
            await client.create_topic("t", home="farm", replicas=1, spread="lab")
            await client.publish("t", "first", ack="quorum")
        yield fabric


class Moment:
    """Does something, once, right after a publisher heard of another home: what it sends there is
    under way then. Or right before it hears of it: nothing is sent there yet."""

    def __init__(self, client: Client, act: Callable[[], None], *, before: bool = False) -> None:
        self.came = False
        self._act = act
        routes = client._open.routes
        routes.follow("t", self)
        if before:
            routes._followers["t"].insert(0, routes._followers["t"].pop())

    def on_route(self, entry: TopicEntry) -> None:
        if not self.came:
            self._act()
            self.came = True

    def on_gone(self) -> None:
        pass


async def only_at_home(fabric: LocalFabric, publisher: Publisher, count: int = 300) -> list[str]:
    """Have events acknowledged that the home alone has; return what is in its log then."""
    await fabric.crash("lab")
    texts = [f"alone-{number}" for number in range(count)]
    acks = [await publisher.send(text) for text in texts]
    for ack in acks:
        await ack
    return ["first", *texts]


async def passes(seconds: float) -> None:
    """Wait so long by the clock that publishers go by."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await until(lambda: loop.time() - began > seconds)


async def home_is_lost(fabric: LocalFabric) -> None:
    """Lose the home for good, and have the replica back in its place."""
    await fabric.crash("farm")
    await fabric.start("lab")

    async def moved() -> bool:
        async with fabric.connect("hub") as client:
            return (await client.topic("t")).home == "lab"

    await until(moved)


async def find_engine(fabric: LocalFabric, name: str, found: list[psutil.Process]) -> None:
    """Find the engine of a site that is starting. To look for it at the moment when it is to be
    suspended takes so long that it would answer before."""
    folder = str(fabric.root / name)

    def is_found() -> bool:
        with contextlib.suppress(psutil.Error):
            here = psutil.Process().children()
            found.extend(p for p in here if folder in " ".join(p.cmdline()))
        return bool(found)

    await until(is_found)


async def check_log(fabric: LocalFabric, expected: list[str]) -> None:
    """Wait until the log at lab is as long as it should be, and see what it holds."""
    await has(fabric["lab"], "t", len(expected))
    async with fabric.connect("lab") as reader:
        assert [data.decode() for data in await contents(reader, "t")] == expected


async def test_a_replica_away_for_longer_than_the_timeout_costs_nothing_acknowledged(
    fabric: LocalFabric,
) -> None:
    async with fabric.connect("hub") as client:
        async with client.publisher("t", timeout=TIMEOUT) as publisher:
            expected = await only_at_home(fabric, publisher)
            await passes(TIMEOUT + 1)
            tick = Moment(client, lambda: publisher.on_tick(client._open.connection.now()))
            await home_is_lost(fabric)
            await until(lambda: tick.came)
            await check_log(fabric, expected)
            assert await (await publisher.send("last")) == 302
        await check_log(fabric, [*expected, "last"])


async def test_who_waits_is_told_in_time_while_acknowledged_events_are_still_to_be_stored(
    fabric: LocalFabric,
) -> None:
    """The next home is lost before it has stored a thing, too."""
    async with fabric.connect("hub") as client:
        publisher = client.publisher("t", timeout=TIMEOUT)
        expected = await only_at_home(fabric, publisher)
        engine: list[psutil.Process] = []
        loss = Moment(client, lambda: engine[0].suspend(), before=True)
        lost = asyncio.create_task(home_is_lost(fabric))
        await find_engine(fabric, "lab", engine)
        await until(lambda: loss.came)
        waiting = await publisher.send("unknown")
        with pytest.raises(errors.OutcomeUnknown, match="did not answer in time"):
            await waiting
        with pytest.raises(errors.PublishFailed, match="1 events"):
            await publisher.flush()
        engine[0].resume()
        await lost
        await check_log(fabric, expected)
        assert await (await publisher.send("last")) == 302
        publisher.close()


async def test_a_closed_publisher_still_brings_what_was_lost_with_its_home(
    fabric: LocalFabric,
) -> None:
    async with fabric.connect("hub") as client:
        publisher = client.publisher("t")
        expected = await only_at_home(fabric, publisher)
        end = Moment(client, publisher.close)
        await home_is_lost(fabric)
        await until(lambda: end.came)
        await check_log(fabric, expected)


async def test_a_client_that_goes_on_at_another_site_takes_along_what_its_home_acknowledged(
    fabric: LocalFabric,
) -> None:
    """Its own site is the home that is lost."""
    while True:
        client = skerry.connect([fabric[site].data for site in ("farm", "hub")])
        await client.open()
        if client.site == "farm":
            break
        await client.close()
    publisher = client.publisher("t")
    expected = await only_at_home(fabric, publisher)
    await home_is_lost(fabric)
    await check_log(fabric, expected)
    publisher.close()
    await client.close()


async def test_the_publisher_behind_publish_stays_while_it_keeps_events_for_a_next_home(
    fabric: LocalFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "WRITERS", 2)
    monkeypatch.setattr(sending, "LINGER", 0.1)
    async with fabric.connect("hub") as client:
        await client.create_topic("other")
        await client.publish("t", "again", ack="home")
        expected = await only_at_home(fabric, client._open.writers["t", "home"])
        for number in range(10):
            await client.publish(f"other/{number}", "x")
        await passes(0.3)
        await home_is_lost(fabric)
        await check_log(fabric, ["first", "again", *expected[1:]])


@pytest.mark.parametrize("remembered", [sending.REMEMBERED, TIMEOUT])
async def test_what_is_older_than_ids_are_remembered_is_looked_for_before_it_is_sent_again(
    fabric: LocalFabric, monkeypatch: pytest.MonkeyPatch, remembered: float
) -> None:
    """A publisher hears that its events are lost, and that they have to be stored again, at a home
    that has them all and has forgotten their ids. If it took them to be remembered, each would be
    stored twice."""
    monkeypatch.setattr(sending, "REMEMBERED", remembered)
    part = fabric.agent("farm").fabric
    assert part is not None
    jetstream = part.copies._jetstream
    info = await jetstream.stream("t~t")
    assert info is not None
    config = {**info["config"], "duplicate_window": 100_000_000}
    await jetstream.call("STREAM.UPDATE.t~t", config)
    async with fabric.connect("hub") as client:
        publisher = client.publisher("t", ack="home")
        expected = await only_at_home(fabric, publisher, 20)
        await passes(TIMEOUT + 1)
        entry = publisher._sending.entry
        assert entry is not None
        lineage = (*entry.lineage, Step(entry.epoch + 1, 1))
        lost = msgspec.structs.replace(entry, epoch=entry.epoch + 1, lineage=lineage)
        publisher.on_route(lost)
        publisher.on_route(entry)
        index = await (await publisher.send("last"))
        async with fabric.connect("farm") as reader:
            log = [data.decode() for data in await contents(reader, "t")]
        if remembered == TIMEOUT:
            assert log == [*expected, "last"]
            assert index == 22
        else:
            assert log == [*expected, *expected[1:], "last"]
        publisher.close()


async def test_a_publisher_says_what_it_leaves_behind(
    fabric: LocalFabric, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.name == WARNING]

    monkeypatch.setattr(sending, "LINGER", TIMEOUT)
    async with fabric.connect("hub") as client:
        publisher = client.publisher("t")
        await only_at_home(fabric, publisher, 10)
        publisher.close()
        await until(lambda: said() != [])
        assert "t: the publisher ends, and 10 acknowledged events have too few" in said()[0]

        monkeypatch.setattr(kept, "EVENTS", 5)
        publisher = client.publisher("t")
        for number in range(20):
            await (await publisher.send(str(number)))
        (_, more) = said()
        assert "t: replicas lack more acknowledged events than a publisher keeps" in more

        engine: list[psutil.Process] = []
        loss = Moment(client, lambda: engine[0].suspend(), before=True)
        lost = asyncio.create_task(home_is_lost(fabric))
        await find_engine(fabric, "lab", engine)
        await until(lambda: loss.came)
        publisher.close()
        await until(lambda: len(said()) > 2)
        assert "t: the publisher ends, and 5 acknowledged events that were lost" in said()[2]
        engine[0].resume()
        await lost
