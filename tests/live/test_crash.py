"""Nothing acknowledged is lost, doubled or out of order when the engine is killed repeatedly."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from functools import partial

from skerry import Client
from skerry.testing import LocalSite
from tests.conftest import beside, until

ROUNDS = 22
PUBLISHERS = 4
SUBSCRIBERS = 2


async def publish_until(
    stop: asyncio.Event, client: Client, name: str, acks: dict[str, int]
) -> int:
    """Publish `name-0`, `name-1`, … without pause; note the index of each; return how many."""
    count = 0
    async with client.publisher("crash", window=256) as publisher:
        while not stop.is_set():
            ack = await publisher.send(f"{name}-{count}")
            ack.add_done_callback(partial(note, acks, f"{name}-{count}"))
            count += 1
            if count % 16 == 0:
                await asyncio.sleep(0.001)
    return count


def note(acks: dict[str, int], text: str, done: asyncio.Future[int]) -> None:
    """Remember the index that `text` was acknowledged with."""
    acks[text] = done.result()


async def follow(client: Client, durable: str, seen: dict[int, str]) -> None:
    """Take and acknowledge everything."""
    async with client.subscribe("crash", durable=durable, ack_wait=2.0) as subscription:
        async for event in subscription:
            seen[event.index] = event.data.decode()
            subscription.ack(event)


async def test_every_acknowledged_event_is_stored_once_in_order_and_delivered() -> None:
    """22 rounds of SIGKILL at random moments, four publishers, two durable subscribers."""
    seed = int(os.environ.get("SKERRY_SEED", random.randrange(2**32)))
    print(f"SKERRY_SEED={seed}")
    chance = random.Random(seed)
    acks: dict[str, int] = {}
    seen: list[dict[int, str]] = [{} for _ in range(SUBSCRIBERS)]
    stop = asyncio.Event()
    async with LocalSite() as site, site.connect() as client, site.connect() as reader:
        await client.create_topic("crash")
        async with beside(*(follow(reader, f"sub{n}", seen[n]) for n in range(SUBSCRIBERS))):
            await until(lambda: _subscribed(client))
            publishers = [
                asyncio.create_task(publish_until(stop, client, f"p{n}", acks))
                for n in range(PUBLISHERS)
            ]
            for number in range(ROUNDS):
                await until(more_than(acks, len(acks) + 200))
                await asyncio.sleep(chance.uniform(0, 0.2))
                site.kill_engine()
                await until(partial(restarted, site, number + 1))
            await until(more_than(acks, len(acks)))
            stop.set()
            sent = sum(await asyncio.gather(*publishers))
            log = [(event.index, event.data.decode()) async for event in client.read("crash")]
            await until(lambda: all(len(s) >= len(log) for s in seen), 60)

    assert len(acks) == sent, "every publish was acknowledged in the end"
    copies = Counter(text for _, text in log)
    assert [text for text, n in copies.items() if n > 1] == []
    assert {text: index for index, text in log} == acks
    assert [index for index, _ in log] == sorted({index for index, _ in log})
    for publisher in range(PUBLISHERS):
        mine = [int(t.split("-")[1]) for _, t in log if t.startswith(f"p{publisher}-")]
        assert mine == list(range(len(mine))), f"publisher {publisher} is out of order"
    for subscriber in seen:
        assert subscriber == dict(log)
    print(f"{sent} events, {ROUNDS} kills")


def more_than(acks: dict[str, int], count: int) -> Callable[[], bool]:
    return lambda: len(acks) > count


def restarted(site: LocalSite, times: int) -> bool:
    return site.site.engine.restarts == times


async def _subscribed(client: Client) -> bool:
    return (await client.topic("crash")).subscriptions == SUBSCRIBERS


async def test_a_last_value_is_not_replaced_by_an_older_one_that_is_sent_again(
    site: LocalSite, client: Client
) -> None:
    """The acknowledgements of some events get lost, and the engine that is started anew remembers
    the ids of what is still there alone."""
    await client.create_topic("t", keep_last=1)
    async with client.publisher("t") as publisher:
        assert await (await publisher.send("first", topic="t/s")) == 1
        told, publisher._sending.on_answers = publisher._sending.on_answers, ignore  # type: ignore[method-assign]
        acks = [await publisher.send(f"value-{n}", topic="t/s") for n in range(4)]
        other = await publisher.send("other", topic="t/r")
        await until(lambda: is_latest(client, 6))
        publisher._sending.on_answers = told  # type: ignore[method-assign]
        site.kill_engine()
        assert [await ack for ack in [*acks, other]] == [5, 5, 5, 5, 6]
        assert await (await publisher.send("next", topic="t/r")) == 7
    assert [event.data async for event in client.read("t")] == [b"value-3", b"next"]


def ignore(answers: dict[int, int], now: float) -> None:
    """Stands for what a publisher is told, which does not reach it."""


async def is_latest(client: Client, index: int) -> bool:
    return await client.latest_index("t") == index
