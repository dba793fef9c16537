"""A publisher whose topic changes while it is at work."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from skerry.log.append import Publisher
from skerry.model.fabric import Step
from skerry.model.topic import Ack
from skerry.testing import LocalFabric
from tests.live.fabrics import three_sites
from tests.live.test_replicas import has, log_at, numbers


@pytest.fixture
async def fabric() -> AsyncIterator[LocalFabric]:
    async with three_sites() as fabric:
        yield fabric


def change_again(publisher: Publisher) -> None:
    """Tell of a home that forgot ids, and at once of one that did not."""
    entry = publisher._sending.entry
    assert entry is not None
    renew = msgspec.structs.replace
    lineage = (*entry.lineage, Step(entry.epoch + 1, 2**62))
    publisher.on_route(renew(entry, epoch=entry.epoch + 1, lineage=lineage, forgetful=True))
    assert publisher._sending.phase == "recalling"
    publisher.on_route(entry)
    assert publisher._sending.phase != "recalling"


@pytest.mark.parametrize("ack", ["home", "quorum"])
async def test_a_home_that_is_replaced_while_the_publisher_looks_back(
    fabric: LocalFabric, ack: Ack
) -> None:
    async with fabric.connect("hub") as client:
        await client.create_topic("t", home="farm", replicas=1, spread="lab")
        async with client.publisher("t", ack=ack) as publisher:
            acks = [await publisher.send(text) for text in numbers(20)]
            await acks[5]
            acks += [await publisher.send(text) for text in numbers(20, 20)]
            change_again(publisher)
            acks += [await publisher.send(text) for text in numbers(20, 40)]
        assert [data.decode() for _, data in await log_at(fabric["farm"], "t")] == numbers(60)


async def test_the_level_of_a_topic_changes_while_events_are_sent(fabric: LocalFabric) -> None:
    async with fabric.connect("hub") as client, fabric.connect("farm", "admin") as owner:
        await client.create_topic("t", home="farm", replicas=1, spread="lab", ack="quorum")
        async with client.publisher("t") as publisher:
            levels: tuple[Ack, ...] = ("home", "outbox", "quorum", "outbox", "home")
            for turn, level in enumerate(levels):
                for text in numbers(20, turn * 20):
                    await publisher.send(text)
                await owner.set_topic("t", ack=level)
            for text in numbers(20, 100):
                await publisher.send(text)
        await has(fabric["farm"], "t", 120)
        log = [data.decode() for _, data in await log_at(fabric["farm"], "t")]
        assert sorted(log, key=int) == numbers(120)


async def test_a_topic_that_is_made_again_takes_the_same_publisher(fabric: LocalFabric) -> None:
    async with fabric.connect("hub", "admin") as client:
        await client.create_topic("t", home="farm", replicas=1, spread="lab")
        publisher = client.publisher("t")
        assert await (await publisher.send("0")) == 1
        await client.delete_topic("t")
        await client.create_topic("t", home="lab", replicas=1, spread="farm")
        while publisher._sending.phase != "nowhere":  # the news is on its way
            await client.topics()
        assert await (await publisher.send("1")) == 1
        await publisher.flush()
        publisher.close()
