"""Levels of acknowledgement: what is true the moment a publish returns."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator

import pytest

from skerry.errors import BadSetting, OutcomeUnknown, PublishFailed
from skerry.model.fabric import TopicEntry
from skerry.model.promotion import write_quorum
from skerry.model.topic import Ack
from skerry.testing import LocalFabric
from tests.conftest import until
from tests.live.fabrics import check_all
from tests.live.faults import refused
from tests.live.test_replicas import has, last_at, log_at, numbers, publish, take

SITES = ("hub", "farm", "lab", "field", "barn")


@pytest.fixture
async def fabric() -> AsyncIterator[LocalFabric]:
    """Three sites; the first coordinates."""
    async with LocalFabric(SITES[:3]) as fabric:
        yield fabric


async def holders(fabric: LocalFabric, members: tuple[str, ...], index: int) -> list[str]:
    """The members whose own stream holds `index` at this moment."""
    lasts = await asyncio.gather(*(last_at(fabric[site], "t") for site in members))
    return [site for site, last in zip(members, lasts, strict=True) if last >= index]


# What an acknowledgement means


@pytest.mark.parametrize("at", ["farm", "lab", "hub"])
async def test_at_level_home_the_home_has_written_it(fabric: LocalFabric, at: str) -> None:
    """Published at the home, at a replica, and where no copy is."""
    async with fabric.connect(at) as client:
        await client.create_topic("t", home="farm", replicas=1, spread="lab")
        for number in range(1, 21):
            assert await client.publish("t", str(number), ack="home") == number
            assert await last_at(fabric["farm"], "t") == number
        await has(fabric["lab"], "t", 20)


async def test_an_event_acknowledged_at_level_home_survives_the_home_s_engine(
    fabric: LocalFabric,
) -> None:
    """The replica may have taken over with less. The one publisher brings the rest in order, so
    that even the indexes stay."""
    async with fabric.connect("lab") as client:
        await client.create_topic("t", home="farm", replicas=1, spread="lab")
        async with client.publisher("t", ack="home") as publisher:
            acks = [await publisher.send(text) for text in numbers(200)]
            await acks[99]
            fabric["farm"].kill_engine()
        assert [ack.result() for ack in acks] == list(range(1, 201))
        for site in ("farm", "lab"):
            await has(fabric[site], "t", 200)
        await check_all(fabric, "t", ["farm", "lab"], numbers(200))
        expected = [(number, b"%d" % (number - 1)) for number in range(1, 201)]
        for site in ("farm", "lab"):
            assert await log_at(fabric[site], "t") == expected


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("at", ["farm", "lab"])
async def test_at_level_quorum_so_many_members_hold_it_that_an_election_finds_it(
    replicas: int, at: str
) -> None:
    async with (
        LocalFabric(SITES[: max(replicas + 1, 3)]) as fabric,
        fabric.connect(at) as client,
    ):
        topic = await client.create_topic("t", home="farm", replicas=replicas)
        members = (topic.home, *topic.replicas)
        for number in range(1, 21):
            index = await client.publish("t", str(number), ack="quorum")
            assert index == number
            held = await holders(fabric, members, index)
            assert "farm" in held
            assert len(held) >= write_quorum(len(members))


async def test_at_level_quorum_without_replicas_the_home_is_enough(fabric: LocalFabric) -> None:
    async with fabric.connect("lab") as client:
        await client.create_topic("t", home="farm")
        assert await publish(client, "t", numbers(5), ack="quorum") == [1, 2, 3, 4, 5]


async def test_quorum_goes_on_while_enough_replicas_are_up(fabric: LocalFabric) -> None:
    async with fabric.connect("hub") as client:
        await client.create_topic("t", replicas=2)
        assert await client.publish("t", "0", ack="quorum") == 1
        await fabric.crash("lab")
        assert await publish(client, "t", numbers(20, 1), ack="quorum") == list(range(2, 22))
        assert await holders(fabric, ("hub", "farm"), 21) == ["hub", "farm"]


async def test_quorum_with_too_few_replicas_says_so_and_loses_nothing(
    fabric: LocalFabric,
) -> None:
    async with fabric.connect("hub") as client:
        await client.create_topic("t", replicas=1, spread="lab")
        assert await client.publish("t", "0", ack="quorum") == 1
        await fabric.crash("lab")
        with refused(OutcomeUnknown, "t", "too few replicas"):
            await client.publish("t", "1", ack="quorum", timeout=2)
        assert await log_at(fabric["hub"], "t") == [(1, b"0"), (2, b"1")]
        assert await client.publish("t", "2", ack="home") == 3  # which asks for no replica
        await fabric.start("lab")
        assert await client.publish("t", "3", ack="quorum") == 4
        await has(fabric["lab"], "t", 4)
        expected = [(n + 1, b"%d" % n) for n in range(4)]
        assert await log_at(fabric["lab"], "t") == expected
        assert await log_at(fabric["hub"], "t") == expected


async def test_a_publish_that_waits_for_its_quorum_is_done_when_a_replica_is_back(
    fabric: LocalFabric,
) -> None:
    async with fabric.connect("hub") as client:
        await client.create_topic("t", replicas=1, spread="lab")
        await client.publish("t", "0", ack="quorum")
        await fabric.crash("lab")
        waiting = asyncio.create_task(client.publish("t", "1", ack="quorum"))
        await has(fabric["hub"], "t", 2)
        assert not waiting.done()
        await fabric.start("lab")
        assert await waiting == 2
        assert await last_at(fabric["lab"], "t") == 2


async def test_a_publisher_whose_quorum_is_missing_says_which_failed_and_why(
    fabric: LocalFabric,
) -> None:
    async with fabric.connect("hub") as client:
        await client.create_topic("t", replicas=1, spread="lab")
        await client.publish("t", "0", ack="quorum")
        await fabric.crash("lab")
        publisher = client.publisher("t", ack="quorum", timeout=2)
        acks = [await publisher.send(text) for text in numbers(10, 1)]
        with pytest.raises(PublishFailed, match="too few replicas") as caught:
            await publisher.flush()
        publisher.close()
        assert caught.value.count == 10
        assert all(isinstance(ack.exception(), OutcomeUnknown) for ack in acks)
        assert [data for _, data in await log_at(fabric["hub"], "t")] == [
            b"%d" % n for n in range(11)
        ]


async def test_no_more_than_the_window_waits_for_replicas_that_are_away(
    fabric: LocalFabric,
) -> None:
    async with fabric.connect("hub") as client:
        await client.create_topic("t", replicas=1, spread="lab")
        await client.publish("t", "0", ack="quorum")
        await fabric.crash("lab")
        waiting: list[int] = []
        async with client.publisher("t", ack="quorum", window=10) as publisher:

            async def send() -> None:
                for number in range(1, 31):
                    await publisher.send(str(number))
                    await has(fabric["hub"], "t", number + 1)
                    waiting.append(publisher.in_flight)

            sending = asyncio.create_task(send())
            await until(lambda: len(waiting) >= 10)
            await fabric.start("lab")
            await sending
        assert max(waiting) == 10


async def test_at_level_home_an_unreachable_home_is_told_in_time(fabric: LocalFabric) -> None:
    async with fabric.connect("lab") as client:
        await client.create_topic("t", home="farm")
        assert await client.publish("t", "0") == 1
        await fabric.stop("farm")
        with refused(OutcomeUnknown, "t", "farm"):
            await client.publish("t", "1", timeout=2)
        await fabric.start("farm")
        index = await client.publish("t", "2")
        log = await log_at(fabric["farm"], "t")
        assert log[0] == (1, b"0")
        assert log[-1] == (index, b"2")
        assert len({data for _, data in log}) == len(log)  # "1" is there once, or not at all


async def test_at_level_outbox_it_is_durable_here_while_the_home_is_away(
    fabric: LocalFabric,
) -> None:
    async with fabric.connect("lab") as client:
        await client.create_topic("t", home="farm")
        assert await client.publish("t", "0", ack="outbox") == 0
        await has(fabric["farm"], "t", 1)
        await fabric.stop("farm")
        assert await publish(client, "t", numbers(20, 1), ack="outbox") == [0] * 20
        fabric["lab"].kill_engine()
        assert await client.publish("t", "21", ack="outbox") == 0
        await fabric.start("farm")
        await has(fabric["farm"], "t", 22)
        assert await client.publish("t", "last") == 23
        expected = [*numbers(22), "last"]
        assert [d.decode() for _, d in await log_at(fabric["farm"], "t")] == expected


async def test_an_outbox_keeps_what_too_few_hold(
    fabric: LocalFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home had it, and is lost for good before its replica is back."""
    async with fabric.connect("hub") as client:
        await client.create_topic("t", home="farm", replicas=1, spread="lab")
        await client.publish("t", "first", ack="quorum")
        await fabric.crash("lab")
        await client.publish("t", "second", ack="outbox")
        await has(fabric["farm"], "t", 2)
        part = fabric.agent("hub").fabric
        assert part is not None
        tidy, looks = part.outbox._tidy, [0]

        async def count(entry: TopicEntry) -> None:
            await tidy(entry)
            looks[0] += 1

        monkeypatch.setattr(part.outbox, "_tidy", count)
        await until(lambda: looks[0] >= 3)
        await fabric.crash("farm")
        shutil.rmtree(fabric.root / "farm")
        await fabric.start("lab")
        await has(fabric["lab"], "t", 2)
        assert await log_at(fabric["lab"], "t") == [(1, b"first"), (2, b"second")]


async def test_an_event_of_the_outbox_is_there_once_however_often_it_is_published(
    fabric: LocalFabric,
) -> None:
    """The id counts at the outbox, and at the home, whichever way the event came."""
    async with fabric.connect("lab") as client:
        await client.create_topic("t", home="farm")
        for ack in ("outbox", "outbox", "home", "outbox"):
            await client.publish("t", "same", id="one", ack=ack)
        await client.publish("t", "other", ack="outbox")
        await has(fabric["farm"], "t", 2)
        assert [d for _, d in await log_at(fabric["farm"], "t")] == [b"same", b"other"]


# In bulk


@pytest.mark.parametrize("ack", ["outbox", "home", "quorum"])
@pytest.mark.parametrize("at", ["farm", "lab", "hub"])
async def test_a_publisher_s_events_are_stored_in_order_at_every_level(
    fabric: LocalFabric, ack: Ack, at: str
) -> None:
    count = 3000
    async with fabric.connect(at) as client:
        await client.create_topic("t", home="farm", replicas=1, spread="lab")
        async with (
            client.subscribe("t", from_index=1) as events,
            client.publisher("t", ack=ack) as publisher,
        ):
            acks = [await publisher.send(text) for text in numbers(count)]
            await publisher.flush()
            if ack == "quorum":
                assert await last_at(fabric["lab"], "t") == count
            seen = await take(events, count)
        assert [bytes(e.data).decode() for e in seen] == numbers(count)
        expected = [0] * count if ack == "outbox" else list(range(1, count + 1))
        assert [future.result() for future in acks] == expected
        await has(fabric["lab"], "t", count)
        assert await log_at(fabric["lab"], "t") == await log_at(fabric["farm"], "t")


async def test_publishers_of_all_levels_share_a_topic(fabric: LocalFabric) -> None:
    """Each publisher's own order holds, and every event is there once."""
    levels: list[Ack] = ["outbox", "home", "quorum"]
    async with fabric.connect("lab") as client:
        await client.create_topic("t", home="farm", replicas=1, spread="hub")

        async def run(ack: Ack) -> None:
            async with client.publisher("t", ack=ack) as publisher:
                for text in numbers(500):
                    await publisher.send(f"{ack} {text}")

        await asyncio.gather(*map(run, levels))
        await has(fabric["farm"], "t", 1500)
        found = [data.decode().split() for _, data in await log_at(fabric["farm"], "t")]
        assert len(found) == 1500
        for ack in levels:
            assert [text for level, text in found if level == ack] == numbers(500)


# The topic's own level


@pytest.mark.parametrize("ack", ["outbox", "home", "quorum"])
async def test_a_topic_s_own_level_holds_unless_a_publish_says_otherwise(
    fabric: LocalFabric, ack: Ack
) -> None:
    async with fabric.connect("lab") as client:
        topic = await client.create_topic("t", home="farm", replicas=2, ack=ack)
        assert topic.settings.ack == ack
        index = await client.publish("t", "0")
        assert index == (0 if ack == "outbox" else 1)
        if ack == "quorum":
            assert len(await holders(fabric, ("farm", "lab", "hub"), 1)) >= 2
        async with client.publisher("t") as publisher:
            future = await publisher.send("1")
            assert await future == (0 if ack == "outbox" else 2)
        await has(fabric["farm"], "t", 2)
        assert await client.publish("t", "2", ack="home") == 3
        assert await client.publish("t", "3", ack="outbox") == 0


async def test_a_topic_s_level_can_be_changed(fabric: LocalFabric) -> None:
    """Also for a client that has published to it before."""
    async with fabric.connect("lab") as client, fabric.connect("hub", "admin") as admin:
        await client.create_topic("t", home="farm")
        assert await client.publish("t", "0") == 1
        await admin.set_topic("t", ack="outbox")

        async def is_outbox() -> bool:
            return await client.publish("t", "more") == 0

        await until(is_outbox)


async def test_a_level_that_does_not_exist_is_refused(fabric: LocalFabric) -> None:
    async with fabric.connect("lab") as client:
        with pytest.raises(BadSetting, match="'all'"):
            await client.create_topic("t", ack="all")  # type: ignore[arg-type]
        await client.create_topic("t")
        with pytest.raises(BadSetting, match="'all'"):
            await client.publish("t", "x", ack="all")  # type: ignore[arg-type]
        assert await client.latest_index("t") == 0
