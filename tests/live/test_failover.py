"""A lost home is replaced: nothing acknowledged is lost, and publishers and readers go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from skerry import Client
from skerry.engine.jetstream import JetStream
from skerry.errors import FabricError, OutcomeUnknown, UnknownTopic
from skerry.fabric.copies import Copies
from skerry.fabric.leader import Leader, RenewRequest
from skerry.fabric.streams import Local
from skerry.log import live
from skerry.log.follow import Start
from skerry.log.recall import first_since
from skerry.model.fabric import TopicEntry
from skerry.model.topic import Ack
from skerry.testing import LocalFabric
from tests.conftest import until
from tests.live.fabrics import Load, check_all, last_index, three_sites

SITES = ["hub", "farm", "lab"]


def names(count: int, name: str = "n") -> list[str]:
    return [f"{name}-{number}" for number in range(count)]


async def home_of(fabric: LocalFabric, topic: str) -> str:
    async with fabric.connect("hub") as client:
        return (await client.topic(topic)).home


@pytest.mark.parametrize("ack", ["home", "quorum"])
async def test_a_killed_home_is_replaced_and_comes_back_as_a_replica(ack: Ack) -> None:
    async with three_sites() as fabric, fabric.connect("lab") as client:
        await client.create_topic("t", home="farm", replicas=2)
        async with Load(client, "t", ack=ack) as load:
            fabric["farm"].kill_engine()
            await load.go_on(50)
            assert await home_of(fabric, "t") != "farm"
        await check_all(fabric, "t", SITES, names(load.count))
        topic = await client.topic("t")
        assert set(topic.replicas) == set(SITES) - {topic.home}
        assert topic.epoch == 2


async def test_a_home_that_is_lost_for_good_is_replaced() -> None:
    async with three_sites() as fabric, fabric.connect("lab") as client:
        await client.create_topic("t", home="farm", replicas=2)
        async with Load(client, "t", ack="quorum") as load:
            await fabric.crash("farm")
            await load.go_on(50)
        await check_all(fabric, "t", ["hub", "lab"], names(load.count))
        await fabric.start("farm")
        await check_all(fabric, "t", SITES, names(load.count))


async def test_one_homes_loss_after_another() -> None:
    async with three_sites() as fabric, fabric.connect("hub") as client:
        await client.create_topic("t", home="farm", replicas=2)
        async with Load(client, "t", ack="quorum") as load:
            for _ in range(3):
                home = await home_of(fabric, "t")
                if home == "hub":  # the client is there, and so is the directory
                    break
                await fabric.crash(home)
                await load.go_on(20)
                await fabric.start(home)
                await load.go_on(20)
        await check_all(fabric, "t", SITES, names(load.count))


async def test_subscribers_see_every_event_once_across_a_failover() -> None:
    async with (
        three_sites() as fabric,
        fabric.connect("lab") as client,
        fabric.connect("hub") as reader,
    ):
        await client.create_topic("t", home="farm", replicas=2)
        seen: list[str] = []
        durable: list[str] = []

        async def follow() -> None:
            async with reader.subscribe("t", from_index=1) as events:
                async for event in events:
                    text = bytes(event.data).decode()
                    seen.append(text)

        async def work() -> None:
            async with client.subscribe("t", from_index=1, durable="d") as events:
                async for event in events:
                    durable.append(bytes(event.data).decode())
                    events.ack(event)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(follow()), group.create_task(work())]
            async with Load(client, "t") as load:
                fabric["farm"].kill_engine()
                await load.go_on(100)
            await until(lambda: len(seen) >= load.count and len(durable) >= load.count)
            for task in tasks:
                task.cancel()
        assert seen == names(load.count)
        assert list(dict.fromkeys(durable)) == names(load.count)


async def test_what_is_sent_again_with_its_id_is_stored_once_by_a_home_that_forgot_ids() -> None:
    """The application sends it again, perhaps from another process: nobody else can tell."""
    async with LocalFabric(SITES) as fabric, fabric.connect("hub") as client:
        await client.create_topic("t", home="farm", replicas=1, spread="lab")
        given = names(50, "id")
        async with client.publisher("t", ack="quorum") as publisher:
            for name in given:
                await publisher.send(name, id=name)
        fabric["lab"].kill_engine()
        part, hub = fabric.agent("lab").fabric, fabric.agent("hub").fabric
        assert part is not None
        assert hub is not None
        await until(lambda: not part.is_open)
        await until(lambda: part.is_open)
        await fabric.crash("farm")
        await until(lambda: (entry := hub.copies.entry("t")) is not None and entry.home == "lab")
        entry = hub.copies.entry("t")
        assert entry is not None
        assert entry.forgetful
        async with fabric.connect("hub") as again:
            assert await again.publish("t", "id-7", id="id-7") == 8
            async with again.publisher("t") as publisher:
                acks = [await publisher.send(name, id=name) for name in [*given, "new"]]
            assert [ack.result() for ack in acks] == [*range(1, 52)]
        events = [event async for event in client.read("t")]
        assert [event.data.decode() for event in events] == [*given, "new"]
        place, last = (client._open.connection, "lab", entry.stream), events[-1].time.timestamp()
        assert await first_since(*place, last - 1000) == 1, "no more is asked for than is recent"
        assert await first_since(*place, last) == 51
        assert await first_since(*place, last + 1) > 51


async def test_what_only_the_old_home_has_is_salvaged() -> None:
    """A publisher that dies with its home leaves events behind that no replica has."""
    async with three_sites() as fabric, fabric.connect("farm") as client:
        await client.create_topic("t", home="farm", replicas=2, on_partition="continue")
        await client.publish("t", "everywhere", ack="quorum")
        for site in ("lab", "hub"):
            await fabric.crash(site)
        for number in range(5):
            await client.publish("t", f"alone-{number}", ack="home")
        await client.close()
        await fabric.crash("farm")
        for site in ("hub", "lab"):
            await fabric.start(site)
        async with fabric.connect("lab") as other:
            assert await other.publish("t", "after", timeout=60) == 2
            await fabric.start("farm")
            await until(lambda: _last_is(fabric, 7))
            await check_all(
                fabric, "t", SITES,
                ["everywhere", "after", *[f"alone-{number}" for number in range(5)]],
            )  # fmt: skip


@pytest.mark.parametrize("remembered", [live.RECENT, 50])
async def test_a_reader_goes_back_to_where_the_logs_agree(
    monkeypatch: pytest.MonkeyPatch, remembered: int
) -> None:
    """It read 200 events that were lost with their home, each as it came. It gets what took their
    place, from the first on; also if that is further back than it remembers."""
    monkeypatch.setattr(live, "RECENT", remembered)
    async with three_sites() as fabric, fabric.connect("farm") as client:
        await client.create_topic("t", home="farm", replicas=2, on_partition="continue")
        await client.publish("t", "everywhere", ack="quorum")
        for site in ("lab", "hub"):
            await fabric.crash(site)
        reader = fabric.connect("farm", timeout=60)
        async with reader, reader.subscribe("t", from_index=1) as events:
            assert (await anext(events)).data == b"everywhere"
            for number in range(200):
                await client.publish("t", f"alone-{number}", ack="home")
                await anext(events)
            await client.close()
            await fabric.crash("farm")
            for site in ("hub", "lab"):
                await fabric.start(site)
            async with fabric.connect("lab") as other:
                for number in range(3):
                    await other.publish("t", f"after-{number}", timeout=60)
            await fabric.start("farm")
            seen = [(await anext(events)) for _ in range(3)]
        assert [(e.index, e.data) for e in seen] == [
            (number + 2, b"after-%d" % number) for number in range(3)
        ]


async def settled() -> None:
    """The agent has all that a subscription asks for."""


async def reader_of_five(
    client: Client, settle: Callable[[], Awaitable[None]]
) -> live.LiveSubscription:
    """A live subscription, as in a fabric, to a new topic `t`; it has read five events."""
    await client.create_topic("t")
    subscription = live.LiveSubscription(
        JetStream(client._open.connection), "t", "t", Start(index=1), window=10, settle=settle
    )
    await subscription.open()
    for text in "abcde":
        await client.publish("t", text)
        assert (await anext(subscription)).data == text.encode()
    return subscription


async def test_a_reader_waits_for_a_log_that_is_behind_it(
    client: Client, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not take events for lost that are not there yet, and read them once more."""
    monkeypatch.setattr(live, "CATCH_UP_MOST", 0.02)
    looks = 0

    async def look() -> None:
        nonlocal looks
        looks += 1

    jetstream = JetStream(admin._open.connection)
    async with await reader_of_five(client, look) as subscription, asyncio.timeout(40):
        config = (await jetstream.call("STREAM.INFO.t~t"))["config"]
        plain = {"storage": "file", "allow_direct": True}
        # Else the copy would answer for the log that it is of.
        await jetstream.call("STREAM.UPDATE.t~t", {**config, "allow_direct": False})
        kept = {"name": "kept", "mirror": {"name": "t~t"}, "storage": "file"}
        await jetstream.call("STREAM.CREATE.kept", kept)

        async def is_kept() -> bool:
            return bool((await jetstream.call("STREAM.INFO.kept"))["state"]["last_seq"] == 5)

        await until(is_kept)
        await jetstream.call("STREAM.DELETE.t~t")
        await until(lambda: looks > 5)  # it is not there at all
        await jetstream.call("STREAM.CREATE.t~t", {"name": "t~t", "subjects": ["_x"], **plain})
        seen = looks
        await until(lambda: looks > seen + 5)
        await jetstream.call("STREAM.DELETE.t~t")
        home = {**config, "name": "kept", "allow_direct": False}
        await jetstream.call("STREAM.UPDATE.kept", home)
        copy = {"name": "t~t", "mirror": {"name": "kept"}, **plain}
        await jetstream.call("STREAM.CREATE.t~t", copy)
        await client.publish("t", "new")
        event = await anext(subscription)
        assert (event.index, event.data) == (6, b"new")


@pytest.mark.parametrize("gone", [(1, 2, 3, 4, 5), (3, 5)])
async def test_a_reader_does_not_go_back_because_events_are_over(
    client: Client, admin: Client, gone: tuple[int, ...]
) -> None:
    """An index without an event is not the place of another one."""
    jetstream = JetStream(admin._open.connection)
    async with await reader_of_five(client, settled) as subscription, asyncio.timeout(20):
        for index in gone:
            await jetstream.call("STREAM.MSG.DELETE.t~t", {"seq": index, "no_erase": True})
        before = subscription._consumer
        subscription._repair()
        await until(lambda: subscription._consumer != before)
        await client.publish("t", "new")
        event = await anext(subscription)
        assert (event.index, event.data) == (6, b"new")


async def test_a_reader_waits_until_its_site_has_settled_with_the_directory() -> None:
    """Before, the log there may be that of a home which was replaced while the site was away."""
    async with LocalFabric(["hub", "a"]) as fabric, fabric.connect("a") as client:
        await client.create_topic("t", home="a")
        part = fabric.agent("a").fabric
        assert part is not None
        part._opened.clear()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5), client.subscribe("t"):
                pass
        part._opened.set()
        async with client.subscribe("t") as events:
            await client.publish("t", "new")
            assert (await anext(events)).data == b"new"


async def test_a_reader_that_opens_while_a_log_is_made_anew_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create, gone = live.LiveSubscription._create, [UnknownTopic("there is no topic t")]

    async def once(self: live.LiveSubscription, *arguments: Any) -> dict[str, Any]:
        if gone:
            raise gone.pop()
        return await create(self, *arguments)

    async with LocalFabric(["hub", "farm"]) as fabric, fabric.connect("farm") as client:
        await client.create_topic("t", home="farm")
        await client.publish("t", "x")
        monkeypatch.setattr(live.LiveSubscription, "_create", once)
        assert [event.data async for event in client.read("t")] == [b"x"]
    assert not gone


async def test_one_log_that_cannot_be_settled_keeps_no_reader_of_another_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the coordination site is away, too."""
    settle = Copies._settle

    async def fail(self: Copies, local: Local, entry: TopicEntry) -> None:
        if entry.name == "bad":
            raise FabricError("there is no room")
        await settle(self, local, entry)

    async with LocalFabric(["hub", "farm"]) as fabric:
        async with fabric.connect("hub") as client:
            await client.create_topic("bad", home="hub", replicas=1)
            await client.create_topic("good", home="farm")
            await client.publish("bad", "x", ack="quorum")
            await client.publish("good", "x")
        await fabric.crash("farm")
        await fabric.crash("hub")
        monkeypatch.setattr(Copies, "_settle", fail)
        await fabric.start("farm")
        async with fabric.connect("farm") as client, client.subscribe("good", from_index=1) as all_:
            assert (await anext(all_)).data == b"x"


async def test_too_few_replicas_are_not_promoted() -> None:
    """With three members, one alone may lack what the other two acknowledged."""
    async with LocalFabric(["hub", "a", "b", "c"]) as fabric, fabric.connect("hub") as client:
        await client.create_topic("t", home="a", replicas=2, spread="b,c")
        await client.publish("t", "x", ack="quorum")
        await fabric.crash("b")
        await fabric.crash("a")
        with pytest.raises(OutcomeUnknown):
            await client.publish("t", "y", id="y", timeout=3)
        assert await home_of(fabric, "t") == "a"
        await fabric.start("b")
        await client.publish("t", "y", id="y", timeout=60)
        await check_all(fabric, "t", ["b", "c"], ["x", "y"])


async def test_two_leaders_that_race_make_one_home() -> None:
    async with three_sites() as fabric, fabric.connect("lab") as client:
        await client.create_topic("t", home="farm", replicas=2)
        await client.publish("t", "x", ack="quorum")
        part = fabric.agent("hub").fabric
        assert part is not None
        second = Leader("hub", part.store, part.links, part.ask)
        await fabric.crash("farm")
        entry = part.copies.entry("t")
        assert entry is not None
        assert part.leader is not None
        for leader in (part.leader, second):
            leader.dead.add("farm")
        await asyncio.gather(part.leader.elect([entry], {"farm"}), second.elect([entry], {"farm"}))
        await until(lambda: part.copies.entry("t") != entry)
        await client.publish("t", "y", timeout=60)
        await check_all(fabric, "t", ["hub", "lab"], ["x", "y"])


async def test_an_epoch_that_came_is_not_made_again() -> None:
    """A copy that waits for it, and has yet to hear that it came, asks for it once more."""
    async with three_sites() as fabric, fabric.connect("lab") as client:
        await client.create_topic("t", home="farm", replicas=2)
        part = fabric.agent("hub").fabric
        assert part is not None
        assert part.leader is not None
        for _ in range(2):
            await part.leader.renew(RenewRequest("t", epoch=2))
            entry = part.copies.entry("t")
            assert entry is not None
            assert entry.epoch == 2


async def test_the_coordination_site_may_be_away() -> None:
    """Homes elsewhere take events, readers read; what needs the directory waits for it."""
    async with three_sites() as fabric, fabric.connect("lab") as client:
        await client.create_topic("t", home="farm")
        await client.create_topic("kept", home="farm", replicas=1, spread="lab",
                                  on_partition="continue")  # fmt: skip
        await client.publish("t", "0")
        await client.publish("kept", "0")
        await fabric.crash("hub")
        for number in range(1, 20):
            await client.publish("t", str(number))
            await client.publish("kept", str(number), ack="quorum")
        assert await client.latest_index("kept") == 20
        await fabric.start("hub")
        async with fabric.connect("hub") as other:
            await other.create_topic("new", home="lab")
            assert await client.publish("new", "x", timeout=60) == 1
            assert await other.publish("t", "20", timeout=60) == 21


async def test_a_home_reads_outboxes_on_when_the_coordination_site_is_back() -> None:
    """What a site knows of its logs outlives the link: nobody has to ask it again."""
    async with three_sites() as fabric, fabric.connect("lab") as client:
        await client.create_topic("t", home="farm")
        await client.publish("t", "0", ack="outbox")
        await until(lambda: _last_is(fabric, 1, "farm"))
        part = fabric.agent("farm").fabric
        assert part is not None
        local = part.copies.local("t")
        assert local is not None
        before = dict(local.sources)
        assert "lab" in before
        await fabric.crash("hub")
        await until(lambda: "hub" not in part.links.up)
        recovering = part._recovering
        await fabric.start("hub")
        await until(lambda: part._recovering not in (None, recovering))
        await until(lambda: part._recovering is None or part._recovering.done())
        assert part.copies.local("t") is local
        assert local.sources.keys() >= before.keys()
        await client.publish("t", "1", ack="outbox")
        await until(lambda: _last_is(fabric, 2, "farm"))


async def test_home_and_coordination_site_lost_together() -> None:
    """Nobody can decide then; once the coordination site is back, the home is replaced."""
    async with three_sites() as fabric, fabric.connect("lab") as client:
        await client.create_topic("t", home="farm", replicas=2)
        await client.publish("t", "x", ack="quorum")
        await fabric.crash("hub")  # first: it replaces a home within milliseconds
        await fabric.crash("farm")
        publishing = asyncio.create_task(client.publish("t", "y", timeout=100))
        await client.publish("t", "o", ack="outbox")
        assert not publishing.done()
        await fabric.start("hub")
        await publishing
        assert await home_of(fabric, "t") in ("hub", "lab")
        await until(lambda: _last_is(fabric, 3))
        async with fabric.connect("lab") as reader:
            found = {bytes(event.data) async for event in reader.read("t")}
        assert found == {b"x", b"y", b"o"}


async def _last_is(fabric: LocalFabric, index: int, site: str = "lab") -> bool:
    return await last_index(fabric.agent(site), "t~t") == index


async def test_a_frozen_home_is_replaced_and_fenced() -> None:
    """It holds its connections and says nothing; when it goes on, it is not the home any more."""
    async with three_sites() as fabric, fabric.connect("lab") as client:
        await client.create_topic("t", home="farm", replicas=2)
        async with Load(client, "t", ack="quorum") as load:
            fabric["farm"].freeze_engine()
            await load.go_on(20)
            assert await home_of(fabric, "t") != "farm"
            fabric["farm"].thaw_engine()
            await load.go_on(20)
        await check_all(fabric, "t", SITES, names(load.count))
