"""Topics move while their clients go on; a move that fails leaves everything as it was."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skerry import Client, Topic
from skerry.errors import MoveFailed, SkerryError, UnknownSite, UnknownTopic
from skerry.fabric.control import Control
from skerry.fabric.copies import Copies
from skerry.model import promotion
from skerry.model.fabric import SubscriptionRecord, subscription_key
from skerry.testing import LocalFabric
from tests.conftest import until
from tests.live.commandline import skerry
from tests.live.fabrics import Load, check_all, last_index, three_sites
from tests.live.faults import refused
from tests.live.test_replicas import stream_at

SITES = ["hub", "farm", "lab"]


def names(count: int) -> list[str]:
    return [f"n-{number}" for number in range(count)]


@pytest.mark.parametrize("replicas", [0, 2])
async def test_a_topic_moves_around_under_load(replicas: int) -> None:
    async with (
        three_sites() as fabric,
        fabric.connect("lab") as client,
        fabric.connect("hub", "admin") as admin,
    ):
        await client.create_topic("t", home="farm", replicas=replicas)
        async with Load(client, "t") as load:
            for site in ("lab", "hub", "farm"):
                topic = await admin.move_topic("t", site)
                assert topic.home == site
                await load.go_on(20)
        sites = SITES if replicas else ["farm"]
        await check_all(fabric, "t", sites, names(load.count))


async def test_events_under_way_when_a_home_is_frozen_keep_their_topic() -> None:
    """They wait in the engine, and are stored when the home is frozen, or of another epoch."""
    async with LocalFabric(["hub"]) as fabric, fabric.connect("hub") as client:
        await client.create_topic("t")
        part = fabric.agent("hub").fabric
        assert part is not None
        copies = part.copies
        stop = asyncio.Event()

        async def flood() -> int:
            sent = 0
            async with client.publisher("t", timeout=60) as publisher:
                while not stop.is_set():
                    for _ in range(200):
                        await publisher.send(str(sent), topic="t/a")
                        sent += 1
                    await asyncio.sleep(0)
            return sent

        flooding = asyncio.create_task(flood())
        for epoch in range(1, 21):
            await until(lambda epoch=epoch: _is_open(copies, epoch))  # type: ignore[misc]
            await copies.freeze("t", epoch, lease=0.0)  # and opens again by itself
        stop.set()
        sent = await flooding
        found: dict[str, list[int]] = {}
        async for event in client.read("t"):
            found.setdefault(event.topic, []).append(int(event.data))
        assert found == {"t/a": list(range(sent))}


async def test_a_home_that_is_frozen_has_stored_all_that_its_engine_took() -> None:
    """It says where it ends, and nothing is stored behind that."""
    async with LocalFabric(["hub"]) as fabric, fabric.connect("hub", "admin") as admin:
        await admin.create_topic("t")
        part = fabric.agent("hub").fabric
        assert part is not None
        connection = admin._open.connection
        for _ in range(20_000):
            connection.publish("s.hub.1.t", b"x" * 500)
        await connection.request("_sk.hub.open.sites", b"null", timeout=10.0)  # all has arrived
        last = await part.copies.freeze("t", 1, lease=60.0)
        await part.copies.logs.come_to_rest("t~t")
        state = await part.copies.state("t")
        assert state is not None
        assert (last, state.last) == (20_000, 20_000)


def _is_open(copies: Copies, epoch: int) -> bool:
    entry, local = copies.entry("t"), copies.local("t")
    return entry is not None and local is not None and (entry.epoch, local.kind) == (epoch, "home")


async def test_the_replicas_may_be_named_anew() -> None:
    async with (
        LocalFabric(["hub", "a", "b", "c"]) as fabric,
        fabric.connect("a") as client,
        fabric.connect("hub", "admin") as admin,
    ):
        await client.create_topic("t", replicas=1, spread="b")
        async with Load(client, "t", ack="quorum") as load:
            topic = await admin.move_topic("t", "c", replicas=["hub", "a"])
            assert (topic.home, set(topic.replicas)) == ("c", {"hub", "a"})
            await load.go_on(20)
        await check_all(fabric, "t", ["c", "hub", "a"], names(load.count))
        await until(lambda: _has_no_log(fabric, "b"))


async def _has_no_log(fabric: LocalFabric, site: str) -> bool:
    return await last_index(fabric.agent(site), "t~t") is None


async def test_durable_subscriptions_go_on_at_the_next_index() -> None:
    async with (
        three_sites() as fabric,
        fabric.connect("farm") as client,
        fabric.connect("hub", "admin") as admin,
    ):
        await client.create_topic("t")
        for number in range(10):
            await client.publish("t", str(number))
        async with client.subscribe("t", from_index=1, durable="d") as events:
            for number in range(5):
                event = await anext(events)
                assert event.data == str(number).encode()
                events.ack(event)
            await admin.move_topic("t", "lab")
            await client.publish("t", "10")
            seen: list[int] = []
            while not seen or seen[-1] < 11:
                event = await anext(events)
                events.ack(event)
                seen.append(event.index)
            assert list(dict.fromkeys(seen)) == list(range(6, 12))


async def test_what_a_durable_subscription_read_of_a_forgotten_history_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The directory does not know any more what the log of then shares with that of now."""
    monkeypatch.setattr(promotion, "LINEAGE_KEPT", 2)
    async with three_sites() as fabric, fabric.connect("hub", "admin") as admin:
        await admin.create_topic("t", home="lab")
        for number in range(10):
            await admin.publish("t", str(number))
        async with (
            fabric.connect("farm") as client,
            client.subscribe("t", from_index=1, durable="d") as events,
        ):
            for _ in range(5):
                events.ack(await anext(events))
            await until(lambda: _is_at(fabric, 5))
        await fabric.stop("farm")
        for replicas in (["hub"], [], ["hub"]):
            await admin.move_topic("t", "lab", replicas=replicas)
        async with admin.subscribe("t", durable="d") as events:
            assert [(await anext(events)).index for _ in range(10)] == list(range(1, 11))


def _is_at(fabric: LocalFabric, floor: int) -> bool:
    """Whether it is written down that the durable subscription has read so far."""
    part = fabric.agent("hub").fabric
    assert part is not None
    record = part.store.get(subscription_key("t", "d"), SubscriptionRecord)
    return record is not None and record.floor == floor and bool(record.config)


async def test_many_topics_move_at_once_with_progress() -> None:
    async with (
        three_sites() as fabric,
        fabric.connect("farm") as client,
        fabric.connect("hub", "admin") as admin,
    ):
        moves = {}
        for number in range(20):
            await client.create_topic(f"t{number}")
            moves[f"t{number}"] = "lab"
        moves["missing"] = "lab"
        done: list[str] = []
        results = await admin.move_topics(
            moves, at_once=8, progress=lambda name, _: done.append(name)
        )
        assert sorted(done) == sorted(moves)
        assert isinstance(results.pop("missing"), UnknownTopic)
        assert all(isinstance(r, Topic) and r.home == "lab" for r in results.values())


async def test_a_move_to_nowhere_is_refused() -> None:
    async with three_sites() as fabric, fabric.connect("hub", "admin") as admin:
        await admin.create_topic("t", home="farm")
        with refused(UnknownSite, "nowhere"):
            await admin.move_topic("t", "nowhere")
        await fabric.crash("lab")
        with refused(MoveFailed, "lab"):
            await admin.move_topic("t", "lab")
        assert (await admin.topic("t")).home == "farm"
        assert await admin.publish("t", "x") == 1


@pytest.mark.parametrize(
    ("service", "site"),
    [("peer.prepare", "lab"), ("peer.freeze", "farm"), ("peer.reached", "lab")],
)
async def test_a_move_that_fails_half_way_leaves_the_home_where_it_was(
    service: str, site: str
) -> None:
    """Before the freeze, at it, and behind it: the same home goes on, and nothing is lost."""
    async with (
        three_sites() as fabric,
        fabric.connect("lab") as client,
        fabric.connect("hub", "admin") as admin,
    ):
        await client.create_topic("t", home="farm")
        control = fabric.agent(site)._control
        assert control is not None
        kind, real = control._services[service]

        async def fail(request: Any) -> None:
            if service == "peer.freeze":
                await real(request)  # type: ignore[misc]  # it is shut, and its answer lost
            raise SkerryError("the test says no")

        async with Load(client, "t") as load:
            control.serve(service, kind, fail)
            with pytest.raises(MoveFailed):
                await admin.move_topic("t", "lab")
            await load.go_on(20)
            assert (await admin.topic("t")).home == "farm"
            control.serve(service, kind, real)
            assert (await admin.move_topic("t", "lab")).home == "lab"
            await load.go_on(20)
        await check_all(fabric, "t", ["lab"], names(load.count))


async def test_a_question_that_is_lost_on_its_way_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A link that ends takes along what is under way; nobody says so."""
    answer, lost = Control._on_request, [b"_sk.farm.peer.state", b"_sk.lab.peer.state"]

    def lose(self: Control, subject: bytes, *rest: bytes) -> None:
        if subject in lost:
            lost.remove(subject)
        else:
            answer(self, subject, *rest)

    monkeypatch.setattr(Control, "_on_request", lose)
    async with three_sites() as fabric, fabric.connect("hub", "admin") as admin:
        await admin.create_topic("t", home="farm", replicas=1, spread=["lab"])
        assert (await admin.move_topic("t", "lab")).home == "lab"
        assert not lost


async def test_a_new_home_that_dies_right_after_the_promotion() -> None:
    async with (
        three_sites() as fabric,
        fabric.connect("hub") as client,
        fabric.connect("hub", "admin") as admin,
    ):
        await client.create_topic("t", home="farm", replicas=2)
        async with Load(client, "t", ack="quorum") as load:
            moving = asyncio.create_task(admin.move_topic("t", "lab"))
            part = fabric.agent("hub").fabric
            assert part is not None

            def is_moved() -> bool:
                entry = part.copies.entry("t")
                return entry is not None and entry.home == "lab"

            await until(is_moved)
            fabric["lab"].kill_engine()
            await asyncio.gather(moving, return_exceptions=True)
            await load.go_on(20)
        await check_all(fabric, "t", SITES, names(load.count))


async def test_a_full_site_takes_no_topic() -> None:
    async with (
        three_sites(each={"lab": {"max_store": 1024 * 1024}}) as fabric,
        fabric.connect("farm") as client,
        fabric.connect("hub", "admin") as admin,
    ):
        await client.create_topic("t")
        for number in range(40):
            await client.publish("t", b"%d" % number * 30_000)
        monkey = "skerry.fabric.moves.PRECOPY"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(monkey, 3.0)
            with pytest.raises(MoveFailed):
                await admin.move_topic("t", "lab")
        assert (await client.topic("t")).home == "farm"
        assert await client.publish("t", "still") == 41


async def has_replicas(client: Client, name: str, *sites: str) -> None:
    """Wait until a topic has replicas at exactly these sites."""

    async def there() -> bool:
        return set((await client.topic(name)).replicas) == set(sites)

    await until(there)


async def test_a_drained_site_leaves_topics_their_number_of_replicas() -> None:
    """Nobody else can take the replica; it is made again once the site is back, or another came."""
    async with (
        three_sites() as fabric,
        fabric.connect("lab") as client,
        fabric.connect("hub", "admin") as admin,
    ):
        await client.create_topic("t", home="lab", replicas=2, ack="quorum")
        await client.create_topic("named", home="lab", replicas=1, spread="farm")
        async with Load(client, "t", ack="quorum") as load:
            assert await admin.drain_site("farm") == ["named", "t"]
            await has_replicas(client, "t", "hub")
            topic = await client.topic("t")
            assert (topic.settings.replicas, topic.lacking) == (2, 1)
            await client.create_topic("t", home="lab", replicas=2, ack="quorum")  # as before
            await has_replicas(client, "named", "hub")

            def run(*command: str) -> str:
                return skerry(fabric["lab"].data, *command).out

            assert "hub (1 of 2)" in await asyncio.to_thread(run, "topic", "show", "t")
            assert "hub (1 of 2)" in await asyncio.to_thread(run, "topic", "list")
            doctor = await asyncio.to_thread(run, "doctor")
            assert "1 topic short of replicas, such as t" in doctor
            await admin.undrain_site("farm")
            await has_replicas(client, "t", "hub", "farm")
            assert not [site.site for site in await client.sites() if site.draining]
            await admin.drain_site("farm")
            await has_replicas(client, "t", "hub")
            await fabric.add("barn")
            await has_replicas(client, "t", "hub", "barn")
            await load.go_on(20)
        assert (await client.topic("t")).lacking == 0
        await admin.move_topic("t", "lab", replicas=["hub"])  # asked for: it wants no more
        assert (await client.topic("t")).settings.replicas == 1


async def test_a_change_of_members_leaves_the_copies_as_they_are() -> None:
    """The home goes on with the same log. A copy that took its next event before it heard of
    the new epoch has nothing that the home has not."""
    async with (
        three_sites() as fabric,
        fabric.connect("lab") as client,
        fabric.connect("hub", "admin") as admin,
    ):
        await client.create_topic("t", home="lab", replicas=2, ack="quorum")
        before = await stream_at(fabric["hub"], "t")
        async with Load(client, "t", ack="quorum") as load:
            for _ in range(8):
                await admin.move_topic("t", "lab", replicas=["hub"])
                await load.go_on(2)
                await admin.move_topic("t", "lab", replicas=["hub", "farm"])
                await load.go_on(2)
        after = await stream_at(fabric["hub"], "t")
        assert before is not None
        assert after is not None
        assert after["config"]["name"] == before["config"]["name"]
        assert after["created"] == before["created"]


async def test_draining_a_site_moves_everything_away() -> None:
    async with (
        three_sites() as fabric,
        fabric.connect("lab") as client,
        fabric.connect("hub", "admin") as admin,
    ):
        await client.create_topic("alone", home="farm")
        await client.create_topic("copied", home="farm", replicas=1, spread="lab")
        await client.create_topic("replica", home="lab", replicas=1, spread="farm")
        async with Load(client, "copied", ack="quorum") as load:
            assert await admin.drain_site("farm") == ["alone", "copied", "replica"]
            await load.go_on(20)

        async def is_told() -> bool:  # at another site than the one that decides
            topics, sites = await client.topics(), await client.sites()
            return [site.site for site in sites if site.draining] == ["farm"] and not any(
                "farm" in (topic.home, *topic.replicas) for topic in topics
            )

        await until(is_told)
        await fabric.crash("farm")
        for name in ("alone", "copied", "replica"):
            await client.publish(name, "x")
