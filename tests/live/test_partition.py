"""Cuts between sites: who goes on, who stops, and what is in the log when all is healed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from skerry import Client
from skerry.errors import OutcomeUnknown
from skerry.model.topic import OnPartition
from skerry.testing import LocalSite, Wan, WanFabric
from tests.conftest import until

pytestmark = pytest.mark.skipif(Wan.unavailable() is not None, reason=str(Wan.unavailable()))

DELAY = 0.005


@pytest.fixture
async def fabric() -> AsyncIterator[WanFabric]:
    """Four sites, 5 ms apart; the hub is the coordination site."""
    async with WanFabric(["hub", "a", "b", "c"], delay=DELAY) as fabric:
        yield fabric


def as_client(
    work: Callable[[Client], Awaitable[object]], timeout: float = 60, user: str = "sdk"
) -> Callable[[LocalSite], Awaitable[object]]:
    """`work` with a client of the site that it runs at."""

    async def run(site: LocalSite) -> object:
        async with site.connect(user, timeout=timeout) as client:
            return await work(client)

    return run


async def publish(fabric: WanFabric, site: str, data: str, ack: str = "home") -> int:
    """Publish from a site, however long it takes."""
    result = await fabric.run(site, as_client(lambda c: c.publish("t", data, ack=ack)))  # type: ignore[arg-type]
    assert isinstance(result, int)
    return result


async def contents(fabric: WanFabric, site: str) -> list[str]:
    async def read(client: Client) -> list[str]:
        return [bytes(event.data).decode() async for event in client.read("t")]

    result = await fabric.run(site, as_client(read))
    assert isinstance(result, list)
    return result


async def home(fabric: WanFabric) -> str:
    async def ask(client: Client) -> str:
        return (await client.topic("t")).home

    return str(await fabric.run("hub", as_client(ask)))


async def make(fabric: WanFabric, on_partition: OnPartition = "stop", spread: str = "b,c") -> None:
    replicas = len(spread.split(","))
    await fabric.run(
        "a",
        as_client(
            lambda c: c.create_topic(
                "t", replicas=replicas, spread=spread, on_partition=on_partition
            )
        ),
    )
    await publish(fabric, "a", "0", "quorum")


async def agree(
    fabric: WanFabric, expected: set[str], members: tuple[str, ...] = ("a", "b", "c")
) -> None:
    """All members hold the same, each event once."""

    async def same() -> bool:
        logs = [await contents(fabric, site) for site in members]
        return all(log == logs[0] for log in logs) and set(logs[0]) == expected

    await until(same, 60)
    log = await contents(fabric, "a")
    assert len(log) == len(set(log))


async def test_a_home_that_is_alone_stops_and_is_replaced(fabric: WanFabric) -> None:
    await make(fabric)
    await fabric.wan.cut("a")
    assert await publish(fabric, "b", "1", "quorum") == 2
    assert await home(fabric) in ("b", "c")
    await until(lambda: _is_shut(fabric))
    with pytest.raises(OutcomeUnknown):
        await fabric.run("a", as_client(lambda c: c.publish("t", "x", id="x", timeout=3)))
    assert await fabric.run("a", as_client(lambda c: c.publish("t", "o", ack="outbox"))) == 0
    await fabric.wan.heal("a")
    await publish(fabric, "a", "x", "quorum")
    await agree(fabric, {"0", "1", "x", "o"})


async def test_a_home_that_goes_on_alone_brings_its_events_back(fabric: WanFabric) -> None:
    await make(fabric, "continue")
    await fabric.wan.cut("a")
    for number in range(5):
        await publish(fabric, "a", f"a{number}")
    assert await publish(fabric, "b", "1", "quorum") == 2
    for number in range(5, 10):
        await publish(fabric, "a", f"a{number}")
    await fabric.wan.heal("a")
    await agree(fabric, {"0", "1", *[f"a{number}" for number in range(10)]})
    log = [data for data in await contents(fabric, "b") if data.startswith("a")]
    assert log == [f"a{number}" for number in range(10)]


async def test_a_home_and_enough_replicas_go_on_without_the_directory(fabric: WanFabric) -> None:
    """Home and one replica on one side, the directory and the other replica on the other: one
    replica alone must not be promoted, and two of three members cannot be outvoted."""
    await make(fabric)
    for one in ("a", "b"):
        for other in ("hub", "c"):
            await fabric.wan.cut(one, other)
    await is_alone(fabric, "a")
    with pytest.raises(OutcomeUnknown):
        await fabric.run("c", as_client(lambda c: c.publish("t", "c", id="c", timeout=4)))
    assert await home(fabric) == "a"
    for number in range(1, 20):
        assert await publish(fabric, "ab"[number % 2], str(number), "quorum") == number + 1
    for one in ("a", "b"):
        for other in ("hub", "c"):
            await fabric.wan.heal(one, other)
    await publish(fabric, "c", "c", "quorum")
    await publish(fabric, "a", "20", "quorum")
    await agree(fabric, {*map(str, range(21)), "c"})


async def test_a_home_goes_on_while_the_coordination_site_is_lost(fabric: WanFabric) -> None:
    """The members answer for it, again and again; once the directory is back it decides."""
    await make(fabric)
    await fabric.crash("hub")
    await is_alone(fabric, "a")
    end = time.monotonic() + 5
    number = 0
    while time.monotonic() < end:
        number += 1
        assert await publish(fabric, "ab"[number % 2], str(number), "quorum") == number + 1
    await fabric.start("hub")
    part = fabric.sites["hub"].site.fabric
    assert part is not None
    await until(lambda: part.links.up >= {"a", "b", "c"})
    await fabric.run("hub", as_client(lambda c: c.move_topic("t", "b"), user="admin"))
    await fabric.crash("b")
    await publish(fabric, "c", "after", "quorum")
    assert await home(fabric) in ("a", "c")
    await fabric.start("b")
    await agree(fabric, {*map(str, range(number + 1)), "after"})


async def test_a_home_that_starts_anew_without_the_directory(fabric: WanFabric) -> None:
    """It opens if its members say that nobody has replaced it; else it waits for the directory."""
    await make(fabric)
    await fabric.crash("hub")
    await fabric.stop("a")
    await fabric.start("a")
    assert await publish(fabric, "a", "1", "quorum") == 2
    await fabric.stop("a")
    await fabric.crash("b")
    await fabric.crash("c")
    await fabric.start("a")
    assert await _is_shut(fabric)
    for site in ("hub", "b", "c"):
        await fabric.start(site)
    await publish(fabric, "b", "2", "quorum")
    await agree(fabric, {"0", "1", "2"})


async def test_a_home_whose_only_replica_is_lost_with_the_directory_stops(
    fabric: WanFabric,
) -> None:
    await make(fabric, spread="hub")
    await fabric.crash("hub")
    await until(lambda: _is_shut(fabric))
    with pytest.raises(OutcomeUnknown):
        await fabric.run("a", as_client(lambda c: c.publish("t", "x", id="x", timeout=3)))
    await fabric.start("hub")
    await publish(fabric, "a", "x", "quorum")
    await agree(fabric, {"0", "x"}, ("a", "hub"))


async def is_alone(fabric: WanFabric, site: str) -> None:
    """Wait until a site has asked its members, because the directory is away."""
    part = fabric.sites[site].site.fabric
    assert part is not None
    asked = part.standing.asked
    await until(lambda: part.standing.asked > asked + 1)


async def _is_shut(fabric: WanFabric) -> bool:
    part = fabric.sites["a"].site.fabric
    local = part.copies.local("t") if part else None
    return local is not None and local.kind == "frozen"


async def test_a_home_with_the_majority_goes_on(fabric: WanFabric) -> None:
    await make(fabric)
    await fabric.wan.cut("c")
    for number in range(1, 20):
        assert await publish(fabric, "b", str(number), "quorum") == number + 1
    assert await home(fabric) == "a"
    await fabric.wan.heal("c")
    await agree(fabric, {str(number) for number in range(20)})


async def test_only_the_link_to_the_directory_is_cut(fabric: WanFabric) -> None:
    """Replicas still hear the home; it stops all the same, and is replaced."""
    await make(fabric)
    await fabric.wan.cut("a", "hub")

    async def is_replaced() -> bool:
        return await home(fabric) != "a"

    await until(is_replaced, 60)
    assert await publish(fabric, "b", "1", "quorum") == 2
    await fabric.wan.heal("a", "hub")
    await publish(fabric, "a", "2", "quorum")
    await agree(fabric, {"0", "1", "2"})


async def test_a_home_that_only_the_directory_lost_goes_on_if_nobody_can_be_elected(
    fabric: WanFabric,
) -> None:
    """One member is down, and only the link from the home to the directory is cut."""
    await make(fabric)
    await fabric.crash("c")
    await fabric.wan.cut("a", "hub")

    async def is_lost() -> bool:
        part = fabric.sites["hub"].site.fabric
        assert part is not None
        assert part.leader is not None
        return "a" in part.leader.dead

    await until(is_lost, 60)
    for number in range(1, 20):
        assert await publish(fabric, "b", str(number), "quorum") == number + 1
    assert await home(fabric) == "a"
    await fabric.wan.heal("a", "hub")
    await fabric.start("c")
    await agree(fabric, {str(number) for number in range(20)})


async def test_clocks_may_jump(fabric: WanFabric, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions are made by clocks that only run forward; the wall clock dates tokens, no more."""
    await make(fabric)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86400)
    assert await publish(fabric, "b", "1", "quorum") == 2
    monkeypatch.setattr(time, "time", lambda: real() - 86400)
    await fabric.wan.cut("a")
    assert await publish(fabric, "b", "2", "quorum") == 3
    await fabric.wan.heal("a")
    await agree(fabric, {"0", "1", "2"})


async def test_a_lossy_slow_line_keeps_its_links(fabric: WanFabric) -> None:
    await fabric.wan.set("hub", "a", delay=0.15, jitter=0.05, loss=0.02)
    await make(fabric)
    for number in range(1, 10):
        await publish(fabric, "hub", str(number), "quorum")
    await agree(fabric, {str(number) for number in range(10)})
