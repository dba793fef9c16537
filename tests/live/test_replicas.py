"""Replicas and copies for readers: where they are made, whom they follow, what crosses a link."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeVar

import pytest

from skerry import Client, Event
from skerry.engine.jetstream import JetStream
from skerry.errors import BadSetting, UnknownSite, UnknownTopic
from skerry.fabric import relay
from skerry.fabric.durables import Durables
from skerry.fabric.tree import FANOUT
from skerry.log.follow import Subscription
from skerry.log.segments import look
from skerry.model.fabric import CopyRecord, Presence, up_key
from skerry.model.names import stream_of
from skerry.testing import LocalFabric, LocalSite, Wan, WanFabric
from tests.conftest import until
from tests.live.faults import refused

Result = TypeVar("Result")

needs_wan = pytest.mark.skipif(
    Wan.unavailable() is not None, reason=f"no emulated WAN: {Wan.unavailable()}"
)

SITES = ("hub", "farm", "lab")
IDLE = 3.0
"""Seconds after which links and copies go that nobody uses, where a test waits for that."""


# What these tests, and those of levels, outboxes and clients, share


async def stream_at(site: LocalSite, topic: str) -> dict[str, Any] | None:
    """The topic's active stream at a site, as its engine tells it; None: it has none."""
    async with site.connect("admin") as admin:
        found = await look(JetStream(admin._open.connection), topic)
        return None if found is None else found.infos[-1]


async def last_at(site: LocalSite, topic: str) -> int:
    """The last index that a site itself holds; -1: it has no copy."""
    info = await stream_at(site, topic)
    return -1 if info is None else int(info["state"]["last_seq"])


async def has(site: LocalSite, topic: str, last: int) -> None:
    """Wait until a site itself holds the log up to index `last`."""

    async def reached() -> bool:
        return await last_at(site, topic) >= last

    await until(reached, 40)


async def log_at(site: LocalSite, topic: str) -> list[tuple[int, bytes]]:
    """Indexes and payloads in the copy of a site, which must have one."""
    assert await stream_at(site, topic) is not None
    async with site.connect() as client:
        return [(event.index, bytes(event.data)) async for event in client.read(topic)]


async def publish(client: Client, topic: str, texts: Iterable[str], **options: Any) -> list[int]:
    """Publish one after another; the indexes."""
    return [await client.publish(topic, text, **options) for text in texts]


async def take(events: Subscription, count: int, seconds: float = 40) -> list[Event]:
    """The next `count` events, each acknowledged where that can be done."""
    found = []
    async with asyncio.timeout(seconds):
        for _ in range(count):
            event = await anext(events)
            found.append(event)
            if hasattr(events, "name"):
                events.ack(event)
    return found


def numbers(count: int, first: int = 0) -> list[str]:
    return [str(number) for number in range(first, first + count)]


def payloads(events: Iterable[Event]) -> list[str]:
    return [bytes(event.data).decode() for event in events]


def by_client(
    work: Callable[[Client], Awaitable[Result]], user: str = "sdk"
) -> Callable[[LocalSite], Awaitable[Result]]:
    """What a client does, for `WanFabric.run`."""

    async def run(site: LocalSite) -> Result:
        async with site.connect(user) as client:
            return await work(client)

    return run


def store_of(fabric: LocalFabric, name: str) -> Any:
    part = fabric.agent(name).fabric
    assert part is not None
    return part.store


def copies_of(fabric: LocalFabric, topic: str, at: str = "hub") -> dict[str, CopyRecord]:
    """The records of copies for readers, by site."""
    found: dict[str, CopyRecord] = store_of(fabric, at).all(f"copy.{stream_of(topic)}.", CopyRecord)
    return found


@pytest.fixture
async def fabric() -> AsyncIterator[LocalFabric]:
    """Three sites; the first coordinates."""
    async with LocalFabric(SITES) as fabric:
        yield fabric


# Where homes and replicas are put


async def test_the_home_is_at_the_client_s_site_or_where_it_is_asked_for(
    fabric: LocalFabric,
) -> None:
    async with fabric.connect("farm") as client:
        assert (await client.create_topic("here")).home == "farm"
        assert (await client.create_topic("there", home="lab")).home == "lab"
        await fabric.stop("lab")
        part = fabric.agent("hub").fabric
        assert part is not None
        await until(lambda: "lab" not in part.links.up)
        assert (await client.create_topic("next", home=["lab", "hub"])).home == "hub"
        assert await last_at(fabric["hub"], "next") == 0


async def test_a_site_that_is_a_moment_from_being_heard_is_waited_for(fabric: LocalFabric) -> None:
    """Though it is known: one that has just joined, or is just back."""
    part = fabric.agent("hub").fabric
    assert part is not None
    async with fabric.connect("farm", "admin") as admin:
        part.links.up.discard("lab")  # until its next heartbeat
        assert (await admin.create_topic("t", home="lab")).home == "lab"
        part.links.up.discard("lab")
        assert (await admin.move_topic("t", "farm")).home == "farm"
        part.links.up.discard("lab")
        assert set((await admin.set_topic("t", replicas=2)).replicas) == {"hub", "lab"}
        part.links.up.discard("lab")
        assert (await admin.move_topic("t", "lab")).home == "lab"


@pytest.mark.parametrize(
    ("spread", "expected"),
    [("lab", ["lab"]), ("hub,lab", ["hub", "lab"]), (["lab", "hub"], ["lab", "hub"])],
)
async def test_replicas_are_at_the_sites_that_are_named(
    fabric: LocalFabric, spread: str | list[str], expected: list[str]
) -> None:
    async with fabric.connect("farm") as client:
        topic = await client.create_topic("t", replicas=len(expected), spread=spread)
        assert (topic.home, list(topic.replicas)) == ("farm", expected)
        await publish(client, "t", numbers(20))
        for site in expected:
            await has(fabric[site], "t", 20)
            assert await log_at(fabric[site], "t") == [(n + 1, b"%d" % n) for n in range(20)]
        assert await last_at(fabric["farm"], "t") == 20
        for site in set(SITES) - {"farm", *expected}:
            assert await last_at(fabric[site], "t") == -1


@needs_wan
@pytest.mark.slow
async def test_replicas_are_near_the_home_or_far_from_it_as_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("skerry.fabric.fabric.PRESENCE", 1.0)  # how often a site tells distances
    async with WanFabric(["hub", "near", "far", "middle"], delay=0.01) as fabric:
        # So far apart that what a busy machine adds makes no difference.
        await fabric.wan.move("near", {"hub": 0.001})
        await fabric.wan.move("middle", {"hub": 0.06, "near": 0.06})
        await fabric.wan.move("far", {"hub": 0.15, "near": 0.15, "middle": 0.15})
        hub = fabric.sites["hub"].site.fabric
        assert hub is not None
        store = hub.store

        def distance(site: str, peer: str = "hub") -> float:
            presence = store.get(up_key(site), Presence)
            return presence.rtt.get(peer, 0.0) if presence else 0.0

        await until(lambda: 0 < distance("near") < 0.06 < distance("middle") < 0.21, 40)
        await until(lambda: distance("far") > 0.21, 40)
        for peer in ("near", "middle"):
            await until(lambda peer=peer: distance("far", peer) > 0.21, 40)  # type: ignore[misc]
            await until(lambda peer=peer: distance(peer, "far") > 0.21, 40)  # type: ignore[misc]

        async def make(client: Client) -> None:
            near = await client.create_topic("near", replicas=1, spread="colocated")
            assert near.replicas == ("near",)
            far = await client.create_topic("far", replicas=1)
            assert far.replicas == ("far",)
            both = await client.create_topic("both", replicas=2, spread="colocated")
            assert set(both.replicas) == {"near", "middle"}

        await fabric.run("hub", by_client(make))


@pytest.mark.parametrize(
    ("settings", "kind", "culprits"),
    [
        ({"replicas": 3}, BadSetting, ["3 replicas"]),
        ({"replicas": 7}, BadSetting, ["7"]),
        ({"replicas": -1}, BadSetting, ["-1"]),
        ({"replicas": 2, "spread": "lab"}, BadSetting, ["2 replicas"]),
        ({"replicas": 1, "spread": "farm"}, BadSetting, ["1 replicas"]),
        ({"replicas": 1, "spread": "moon"}, UnknownSite, ["moon"]),
        ({"home": "moon"}, UnknownSite, ["moon"]),
        ({"home": ["lab", "moon"]}, UnknownSite, ["moon"]),
    ],
)
async def test_what_cannot_be_placed_is_refused_before_anything_is_made(
    fabric: LocalFabric, settings: dict[str, Any], kind: type[Any], culprits: list[str]
) -> None:
    async with fabric.connect("farm") as client:
        with pytest.raises(kind) as caught:
            await client.create_topic("t", **settings)
        assert [c for c in culprits if c not in caught.value.what] == []
        assert await client.topics() == []
        for site in SITES:
            assert await last_at(fabric[site], "t") == -1
        assert (await client.create_topic("t")).home == "farm"  # the name is free


async def test_a_change_that_cannot_be_placed_changes_nothing(fabric: LocalFabric) -> None:
    async with fabric.connect("farm", "admin") as admin:
        before = await admin.create_topic("t", replicas=1, spread="lab")
        with refused(BadSetting, "4 replicas"):
            await admin.set_topic("t", replicas=4, spread="distributed")
        with refused(UnknownSite, "moon"):
            await admin.set_topic("t", replicas=1, spread="moon")
        after = await admin.topic("t")
        assert after.settings == before.settings
        assert (after.replicas, after.epoch) == (before.replicas, before.epoch)


async def test_the_number_of_replicas_can_be_changed(fabric: LocalFabric) -> None:
    async with fabric.connect("farm", "admin") as admin:
        await admin.create_topic("t")
        await publish(admin, "t", numbers(10))
        assert set((await admin.set_topic("t", replicas=2)).replicas) == {"hub", "lab"}
        await publish(admin, "t", numbers(10, 10), ack="quorum")
        for site in SITES:
            await has(fabric[site], "t", 20)
            assert await log_at(fabric[site], "t") == [(n + 1, b"%d" % n) for n in range(20)]
        assert (await admin.set_topic("t", replicas=0)).replicas == ()
        assert await admin.publish("t", "20") == 21


# Copies for readers


async def test_a_subscriber_where_no_copy_is_gets_all_events_from_before_and_after(
    fabric: LocalFabric,
) -> None:
    async with fabric.connect("farm") as writer, fabric.connect("lab") as reader:
        await writer.create_topic("t")
        await publish(writer, "t", numbers(50))
        assert await last_at(fabric["lab"], "t") == -1
        async with reader.subscribe("t", from_index=1) as events:
            await publish(writer, "t", numbers(50, 50))
            seen = await take(events, 100)
        assert [(e.index, bytes(e.data)) for e in seen] == [(n + 1, b"%d" % n) for n in range(100)]
        assert await last_at(fabric["lab"], "t") == 100
        assert await reader.latest_index("t") == 100
        assert bytes((await reader.get("t", 7)).data) == b"6"


@pytest.mark.parametrize("replicas", [0, 1])
async def test_a_live_subscriber_elsewhere_gets_what_is_published_after_it_opened(
    fabric: LocalFabric, replicas: int
) -> None:
    """When `subscribe` has returned, its start is fixed at what the home had; not at what another
    holder had, whose copy is behind."""
    async with fabric.connect("farm") as writer, fabric.connect("lab") as reader:
        await writer.create_topic("t", replicas=replicas, spread="hub")
        await publish(writer, "t", numbers(500))
        async with reader.subscribe("t") as events:
            await publish(writer, "t", numbers(10, 500))
            assert payloads(await take(events, 10)) == numbers(10, 500)


async def test_a_copy_that_nobody_reads_goes_and_comes_again() -> None:
    async with (
        LocalFabric(SITES, link_idle=IDLE) as fabric,
        fabric.connect("farm") as writer,
        fabric.connect("lab") as reader,
    ):
        await writer.create_topic("t")
        await publish(writer, "t", numbers(10))

        async def is_gone() -> bool:
            return await last_at(fabric["lab"], "t") == -1 and not copies_of(fabric, "t")

        async def is_unlinked() -> bool:
            return [link.peer for link in await reader.links()] == ["hub"]

        for round_ in range(2):
            got = [bytes(event.data).decode() async for event in reader.read("t")]
            assert got == numbers(10 + round_)
            assert await last_at(fabric["lab"], "t") == 10 + round_
            await until(is_gone, 60)
            await until(is_unlinked, 60)
            await writer.publish("t", str(10 + round_))
        async with reader.subscribe("t", from_index=1) as events:
            assert payloads(await take(events, 12)) == numbers(12)


async def test_a_copy_stays_while_somebody_subscribes() -> None:
    """Others of the same age go."""
    async with (
        LocalFabric(SITES, link_idle=IDLE) as fabric,
        fabric.connect("farm") as writer,
        fabric.connect("lab") as reader,
    ):
        for name in ("kept", "other"):
            await writer.create_topic(name)
            await writer.publish(name, "0")
        async with reader.subscribe("kept", from_index=1) as events:
            await take(events, 1)
            for _ in range(2):
                _ = [event async for event in reader.read("other")]
                assert await last_at(fabric["lab"], "other") == 1

                async def is_gone() -> bool:
                    return await last_at(fabric["lab"], "other") == -1

                await until(is_gone, 60)
            assert await last_at(fabric["lab"], "kept") == 1
            await writer.publish("kept", "1")
            assert payloads(await take(events, 1)) == ["1"]


READERS = [f"r{number}" for number in range(1, 8)]


def check_tree(records: dict[str, CopyRecord], home: str) -> None:
    """Every copy follows the home or a copy, nobody in a circle, and nobody feeds too many."""
    children = Counter(record.parent for record in records.values())
    assert max(children.values()) <= FANOUT, records
    for record in records.values():
        seen = [record.site]
        while seen[-1] != home:
            seen.append(records[seen[-1]].parent)
            assert len(seen) <= len(records) + 1, f"a circle: {seen}"


async def open_all(
    fabric: LocalFabric, stack: contextlib.AsyncExitStack, topic: str, *, at_once: bool
) -> dict[str, Subscription]:
    """A subscription at every reader's site."""
    clients = {name: await stack.enter_async_context(fabric.connect(name)) for name in READERS}

    async def open_one(name: str) -> Subscription:
        return await stack.enter_async_context(clients[name].subscribe(topic, from_index=1))

    if at_once:
        found = await asyncio.gather(*map(open_one, READERS))
        return dict(zip(READERS, found, strict=True))
    opened = {}
    for name in READERS:
        opened[name] = await open_one(name)
        for other in [*READERS, "hub"]:  # its record is known to whoever comes next
            await until(lambda n=name, o=other: n in copies_of(fabric, topic, o))  # type: ignore[misc]
    return opened


@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "at once"])
async def test_the_home_feeds_few_copies_and_the_others_follow_those(at_once: bool) -> None:
    async with LocalFabric(["hub", *READERS]) as fabric, contextlib.AsyncExitStack() as stack:
        writer = await stack.enter_async_context(fabric.connect("hub"))
        await writer.create_topic("t")
        await publish(writer, "t", numbers(10))
        opened = await open_all(fabric, stack, "t", at_once=at_once)
        await publish(writer, "t", numbers(10, 10))
        for events in opened.values():
            assert payloads(await take(events, 20)) == numbers(20)
        await until(lambda: copies_of(fabric, "t").keys() == set(READERS))

        def is_spread() -> bool:
            children = Counter(record.parent for record in copies_of(fabric, "t").values())
            return max(children.values()) <= FANOUT

        await until(is_spread)  # those that appeared at once make way for each other
        check_tree(copies_of(fabric, "t"), "hub")


async def test_copies_of_a_topic_with_a_latency_bound_follow_its_home() -> None:
    """However many: placement takes it that no event makes a detour. Also when the bound is set
    while they follow each other, and when the home moves."""
    async with LocalFabric(["hub", *READERS]) as fabric, contextlib.AsyncExitStack() as stack:
        writer = await stack.enter_async_context(fabric.connect("hub"))
        admin = await stack.enter_async_context(fabric.connect("hub", "admin"))
        await writer.create_topic("t")
        await publish(writer, "t", numbers(10))
        opened = await open_all(fabric, stack, "t", at_once=False)

        def follow(home: str) -> bool:
            found = copies_of(fabric, "t")
            rest = {*READERS, "hub"} - {home}
            return all(r.parent == home for r in found.values()) and rest <= found.keys() | {"hub"}

        assert not follow("hub")
        await admin.set_topic("t", latency=0.1)
        await until(lambda: follow("hub"))
        await publish(writer, "t", numbers(10, 10))
        await admin.move_topic("t", READERS[0])
        await until(lambda: follow(READERS[0]))
        await publish(writer, "t", numbers(10, 20))
        for events in opened.values():
            seen = await take(events, 30)
            assert [event.index for event in seen] == list(range(1, 31))
            assert payloads(seen) == numbers(30)


async def test_a_lost_parent_is_replaced_without_a_gap_or_a_repeat() -> None:
    async with LocalFabric(["hub", *READERS]) as fabric, contextlib.AsyncExitStack() as stack:
        writer = await stack.enter_async_context(fabric.connect("hub"))
        await writer.create_topic("t")
        await publish(writer, "t", numbers(10))
        opened = await open_all(fabric, stack, "t", at_once=False)
        records = copies_of(fabric, "t")
        parents = Counter(record.parent for record in records.values())
        middle = next(site for site in parents if site != "hub")
        children = [site for site, record in records.items() if record.parent == middle]
        for name in children:
            assert payloads(await take(opened[name], 10)) == numbers(10)
        await publish(writer, "t", numbers(10, 10))
        await fabric.crash(middle)
        await publish(writer, "t", numbers(500, 20))
        for name in children:
            seen = await take(opened[name], 510)
            assert [e.index for e in seen] == list(range(11, 521))
            assert payloads(seen) == numbers(510, 10)
            parent = copies_of(fabric, "t", name)[name].parent
            assert parent != middle


# What crosses links


async def crossed(fabric: LocalFabric) -> Counter[str]:
    """Bytes and messages that came in over links, at all sites together."""
    total: Counter[str] = Counter()
    for name in fabric.names:
        async with fabric.connect(name) as client:
            for link in await client.links():
                total["bytes"] += link.in_bytes
                total["messages"] += link.in_msgs
    return total


async def test_a_copy_follows_as_soon_as_a_holder_that_was_away_for_long_is_back(
    fabric: LocalFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine whose question nobody answers would be deaf for ten seconds, then for twenty: it is
    told of a consumer that does not exist, and listens."""
    answered: list[str] = []
    nobody = relay._nobody

    def noted(stream: str, asked: bytes) -> bytes:
        answered.append(stream)
        return nobody(stream, asked)

    monkeypatch.setattr(relay, "_nobody", noted)
    monkeypatch.setattr(relay, "HELD", 0.5)
    async with fabric.connect("hub") as client:
        await client.create_topic("t", home="farm")
        await client.publish("t", "0")
        async with client.subscribe("t", from_index=1) as subscription:
            assert (await anext(subscription)).index == 1
            await fabric.crash("farm")
            await until(lambda: stream_of("t") in answered)
            await fabric.start("farm")
            async with fabric.connect("farm") as there:
                assert await there.publish("t", "1") == 2
            async with asyncio.timeout(20):
                assert (await anext(subscription)).index == 2


async def test_local_traffic_crosses_no_link() -> None:
    """Publishers and subscribers at one site: links carry what they do when idle."""
    calm = LocalFabric([*SITES, "field"], silence=8.0, beat=2.0)  # heartbeats are few
    async with calm as fabric, fabric.connect("farm") as client:
        await client.create_topic("t")
        size, count = 10_000, 2000
        async with client.subscribe("t") as live, client.subscribe("t", durable="d") as durable:
            before = await crossed(fabric)
            for ack in ("home", "outbox"):
                async with client.publisher("t", ack=ack) as publisher:
                    for _ in range(count // 2):
                        await publisher.send(os.urandom(size))  # links compress
            assert [e.index for e in await take(live, count)] == list(range(1, count + 1))
            assert [e.index for e in await take(durable, count)] == list(range(1, count + 1))
            after = await crossed(fabric)
        # Heartbeats, the directory, and asking for these figures are some kilobytes.
        assert after["bytes"] - before["bytes"] < count * size // 100
        assert after["messages"] - before["messages"] < count // 2


@needs_wan
async def test_local_traffic_sends_no_packets_between_sites() -> None:
    """The same, by what the network itself carried."""
    size, count = 10_000, 500
    async with WanFabric([*SITES, "field"], delay=0.005) as fabric:

        async def work(client: Client) -> None:
            await client.create_topic("t")
            async with client.subscribe("t") as events:
                async with client.publisher("t") as publisher:
                    for _ in range(count):
                        await publisher.send(os.urandom(size))  # links compress
                await take(events, count)

        before = sum(traffic.bytes for traffic in (await fabric.wan.counts()).values())
        await fabric.run("farm", by_client(work))
        after = sum(traffic.bytes for traffic in (await fabric.wan.counts()).values())
        assert after - before < count * size / 20


@needs_wan
async def test_between_four_sites_an_event_is_sent_once_to_each_that_subscribes() -> None:
    """Ten subscribers at each of two sites, none at the hub: what the network itself carried."""
    size, count = 10_000, 300
    async with WanFabric([*SITES, "field"], delay=0.005) as fabric:
        await fabric.run("farm", by_client(lambda client: client.create_topic("t")))
        ready = threading.Barrier(3)

        async def read(client: Client) -> None:
            async with contextlib.AsyncExitStack() as stack:
                readers = [
                    await stack.enter_async_context(client.subscribe("t")) for _ in range(10)
                ]
                await asyncio.to_thread(ready.wait, 30)
                for events in readers:
                    assert [e.index for e in await take(events, count)] == list(range(1, count + 1))

        async def write(client: Client) -> None:
            await asyncio.to_thread(ready.wait, 30)
            async with client.publisher("t") as publisher:
                for _ in range(count):
                    await publisher.send(os.urandom(size))  # links compress

        before = await fabric.wan.counts()
        await asyncio.gather(
            fabric.run("farm", by_client(write)),
            *(fabric.run(site, by_client(read)) for site in ("lab", "field")),
        )
        after = await fabric.wan.counts()
        carried = {pair: after[pair].bytes - before[pair].bytes for pair in after}
        payload = count * size
        # Copies follow the home or each other: whichever, each of the two sites is sent it once. A
        # link that a busy machine takes for lost wastes what was under way.
        for site in ("lab", "field"):
            incoming = sum(carried[pair] for pair in carried if pair[1] == site)
            assert payload <= incoming < 2 * payload
        assert sum(carried[pair] for pair in carried if "hub" in pair) < payload / 20


async def test_an_event_crosses_a_link_once_however_many_subscribe(fabric: LocalFabric) -> None:
    async with contextlib.AsyncExitStack() as stack:
        writer = await stack.enter_async_context(fabric.connect("farm"))
        await writer.create_topic("t")
        readers = []
        for number in range(10):
            client = await stack.enter_async_context(fabric.connect("lab"))
            durable = f"d{number}" if number % 2 else None
            readers.append(await stack.enter_async_context(client.subscribe("t", durable=durable)))
        size, count = 10_000, 300

        async def incoming() -> int:
            async with fabric.connect("lab") as client:
                return sum(link.in_bytes for link in await client.links())

        before = await incoming()
        async with writer.publisher("t") as publisher:
            for _ in range(count):
                await publisher.send(os.urandom(size))  # links compress
        for events in readers:
            assert [e.index for e in await take(events, count)] == list(range(1, count + 1))
        payload = count * size
        assert payload <= await incoming() - before < 1.2 * payload


# Copies that fell behind


@pytest.mark.parametrize("replicas", [0, 1], ids=["for readers", "replica"])
async def test_a_copy_that_fell_behind_the_home_s_retention_is_rebuilt(
    fabric: LocalFabric, caplog: pytest.LogCaptureFixture, replicas: int
) -> None:
    async with fabric.connect("farm") as writer:
        await writer.create_topic("t", max_events=50, replicas=replicas, spread="lab")
        await publish(writer, "t", numbers(20))
        async with fabric.connect("lab") as reader:
            await reader.latest_index("t")
        await has(fabric["lab"], "t", 20)
        await fabric.stop("lab")
        await publish(writer, "t", numbers(200, 20))
        with caplog.at_level(logging.WARNING):
            await fabric.start("lab")
            await has(fabric["lab"], "t", 220)
        assert any(
            "going on there" in r.message and " t " in r.message and "171" in r.message
            for r in caplog.records
        ), [r.message for r in caplog.records]
        assert await log_at(fabric["lab"], "t") == await log_at(fabric["farm"], "t")
        assert (await log_at(fabric["lab"], "t"))[0] == (171, b"170")
        assert await writer.publish("t", "220") == 221
        await has(fabric["lab"], "t", 221)


# Durable subscriptions


@pytest.mark.parametrize("replicas", [0, 1])
async def test_a_durable_subscription_goes_on_while_its_topic_moves(
    fabric: LocalFabric, replicas: int
) -> None:
    """It is read at the old home before, during and after the move."""
    async with fabric.connect("farm") as client, fabric.connect("hub", "admin") as admin:
        await client.create_topic("t", replicas=replicas, spread="lab")
        async with client.subscribe("t", durable="d") as events:
            await publish(client, "t", numbers(20))
            assert payloads(await take(events, 20)) == numbers(20)
            assert (await admin.move_topic("t", "lab")).home == "lab"
            await publish(client, "t", numbers(20, 20))
            seen = await take(events, 20)
            assert [e.index for e in seen] == list(range(21, 41))
            assert payloads(seen) == numbers(20, 20)


@pytest.mark.parametrize("there", ["farm", "hub", "lab"])
async def test_a_durable_subscription_goes_on_after_its_topic_moved(
    fabric: LocalFabric, there: str
) -> None:
    """Closed before the move, opened after it: at the same site, at another, at the new home."""
    async with fabric.connect("farm") as client, fabric.connect("hub", "admin") as admin:
        await client.create_topic("t")
        await publish(client, "t", numbers(20))
        async with client.subscribe("t", durable="d", from_index=1) as events:
            assert payloads(await take(events, 7)) == numbers(7)
        await admin.move_topic("t", "lab")

        async def is_moved() -> bool:
            info = await stream_at(fabric["farm"], "t")
            return info is None or bool(info["config"].get("mirror"))

        await until(is_moved)
        await publish(client, "t", numbers(5, 20))
        async with fabric.connect(there) as reader:
            async with reader.subscribe("t", durable="d") as events:
                seen = await take(events, 18)
            assert [e.index for e in seen] == list(range(8, 26))


async def test_a_durable_subscription_that_is_just_made_anew_is_not_taken_for_a_new_one(
    fabric: LocalFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader's site has seen it, and then it is removed for a moment."""
    make, fetch = Durables._make_anew, Durables.fetch
    removed, may_make, seen = asyncio.Event(), asyncio.Event(), 0

    async def make_late(self: Durables, *arguments: Any) -> None:
        removed.set()
        await may_make.wait()
        await make(self, *arguments)

    async def fetch_late(self: Durables, *arguments: Any) -> None:
        nonlocal seen
        seen += 1
        if seen > 1:
            await fetch(self, *arguments)

    async with fabric.connect("farm") as client, fabric.connect("hub", "admin") as admin:
        await client.create_topic("t")
        await publish(client, "t", numbers(20))
        async with client.subscribe("t", durable="d", from_index=1) as events:
            assert payloads(await take(events, 7)) == numbers(7)
        monkeypatch.setattr(Durables, "_make_anew", make_late)
        await admin.move_topic("t", "lab")
        await removed.wait()
        monkeypatch.setattr(Durables, "fetch", fetch_late)
        async with client.subscribe("t", durable="d") as events:
            may_make.set()
            await publish(client, "t", numbers(5, 20))
            assert [e.index for e in await take(events, 18)] == list(range(8, 26))
    assert seen > 1


async def test_a_durable_subscription_moves_to_the_site_where_it_is_opened(
    fabric: LocalFabric,
) -> None:
    async with fabric.connect("farm") as farm, fabric.connect("lab") as lab:
        await farm.create_topic("t")
        await publish(farm, "t", numbers(30))
        place = 0
        for client in (farm, lab, farm, lab):
            start = None if place else 1
            async with client.subscribe("t", durable="d", from_index=start) as events:
                assert [e.index for e in await take(events, 5)] == list(range(place + 1, place + 6))
            place += 5
        async with fabric.connect("farm", "admin") as admin:
            jetstream = JetStream(admin._open.connection)

            async def is_gone() -> bool:
                return await jetstream.consumer(stream_of("t"), "d") is None

            await until(is_gone)


async def test_a_durable_subscription_goes_on_after_its_site_s_copy_was_rebuilt(
    fabric: LocalFabric,
) -> None:
    """What aged out while the site was away is lost to it; the rest comes, from the first kept."""
    async with fabric.connect("farm") as writer:
        await writer.create_topic("t", max_events=50, replicas=1, spread="lab")
        await publish(writer, "t", numbers(20))
        async with (
            fabric.connect("lab") as reader,
            reader.subscribe("t", durable="d", from_index=1) as events,
        ):
            assert payloads(await take(events, 10)) == numbers(10)
        await fabric.stop("lab")
        await publish(writer, "t", numbers(200, 20))
        await fabric.start("lab")
        await has(fabric["lab"], "t", 220)
        async with (
            fabric.connect("lab") as reader,
            reader.subscribe("t", durable="d") as events,
        ):
            assert [e.index for e in await take(events, 50)] == list(range(171, 221))


async def test_a_durable_subscription_is_read_elsewhere_while_its_site_is_away(
    fabric: LocalFabric,
) -> None:
    """Nothing that was not acknowledged is missed; what was may come again."""
    async with fabric.connect("hub") as writer:
        await writer.create_topic("t")
        await publish(writer, "t", numbers(30))
        async with (
            fabric.connect("farm") as reader,
            reader.subscribe("t", durable="d", from_index=1) as events,
        ):
            assert payloads(await take(events, 10)) == numbers(10)
        await fabric.crash("farm")
        async with (
            fabric.connect("lab") as reader,
            reader.subscribe("t", durable="d") as events,
        ):
            first = (await take(events, 1))[0].index
            assert first <= 11
            rest = await take(events, 30 - first)
            assert [e.index for e in rest] == list(range(first + 1, 31))


# Settings and deletion


async def test_changed_settings_reach_replicas_and_copies(fabric: LocalFabric) -> None:
    async with fabric.connect("farm", "admin") as admin, fabric.connect("lab") as reader:
        await admin.create_topic("t", replicas=1, spread="hub")
        await publish(admin, "t", numbers(100))
        async with reader.subscribe("t"):
            for site in ("hub", "lab"):
                await has(fabric[site], "t", 100)
            await admin.set_topic("t", max_events=10, max_event_bytes=1000)
            for site in SITES:

                async def is_set(name: str = site) -> bool:
                    info = await stream_at(fabric[name], "t")
                    assert info is not None
                    config = info["config"]
                    return (config["max_msgs"], config["max_msg_size"]) == (10, 1000)

                await until(is_set)
                assert [i for i, _ in await log_at(fabric[site], "t")] == list(range(91, 101)), site
            assert (await reader.topic("t")).settings.max_events == 10


async def test_settings_that_changed_while_a_replica_was_away_reach_it(
    fabric: LocalFabric,
) -> None:
    async with fabric.connect("farm", "admin") as admin:
        await admin.create_topic("t", replicas=1, spread="lab")
        await publish(admin, "t", numbers(30), ack="quorum")
        await fabric.stop("lab")
        await admin.set_topic("t", max_events=10)
        await fabric.start("lab")

        async def is_set() -> bool:
            info = await stream_at(fabric["lab"], "t")
            assert info is not None
            return int(info["config"]["max_msgs"]) == 10

        await until(is_set)


async def test_a_deleted_topic_is_gone_everywhere(fabric: LocalFabric) -> None:
    """Also at a site that was away, with its replica, its copy and its subscriptions."""
    async with fabric.connect("farm", "admin") as admin:
        await admin.create_topic("t", replicas=1, spread="lab")
        await publish(admin, "t", numbers(10))
        async with fabric.connect("hub") as reader:
            _ = [event async for event in reader.read("t")]
        await has(fabric["lab"], "t", 10)
        assert await last_at(fabric["hub"], "t") == 10
        await fabric.stop("lab")
        await admin.delete_topic("t")

        async def is_gone(name: str) -> bool:
            return await last_at(fabric[name], "t") == -1

        for site in ("farm", "hub"):
            await until(lambda s=site: is_gone(s))  # type: ignore[misc]
        await fabric.start("lab")
        await until(lambda: is_gone("lab"))
        assert await admin.topics() == []
        await until(lambda: copies_of(fabric, "t") == {})
        async with fabric.connect("lab") as client:
            with refused(UnknownTopic, "t"):
                await client.publish("t", "x")
            with refused(UnknownTopic, "t"):
                await client.latest_index("t")


async def test_a_topic_made_anew_while_a_replica_was_away_is_the_new_one_there(
    fabric: LocalFabric,
) -> None:
    async with fabric.connect("farm", "admin") as admin:
        for make in range(2):
            await admin.create_topic("t", replicas=1, spread="lab")
            count = 20 - 10 * make
            await publish(admin, "t", [f"{make}-{n}" for n in range(count)])
            if make == 0:
                await has(fabric["lab"], "t", 20)
                await fabric.stop("lab")
                await admin.delete_topic("t")
        await fabric.start("lab")

        await until(lambda: _is_new(fabric))
        assert await log_at(fabric["lab"], "t") == await log_at(fabric["farm"], "t")
        assert await admin.publish("t", "last", ack="quorum") == 11
        assert (await log_at(fabric["lab"], "t"))[-1] == (11, b"last")


async def _is_new(fabric: LocalFabric) -> bool:
    """Whether lab has the second topic's log: the first one's is longer, and goes before."""
    return await last_at(fabric["lab"], "t") == 10
