"""A member that must begin its copy anew counts at once: what it had is put aside until then."""

from __future__ import annotations

from skerry import Client
from skerry.fabric.fabric import Fabric
from skerry.fabric.relay import Question
from skerry.model.names import reserve_of
from skerry.testing import LocalFabric
from tests.conftest import until
from tests.live.fabrics import Load, check_all, last_index
from tests.live.test_failover import home_of, names

MEMBERS = ["a", "b", "c"]


def four_sites() -> LocalFabric:
    """A hub that decides, and three members."""
    return LocalFabric(["hub", *MEMBERS])


async def has_reserve(fabric: LocalFabric, site: str) -> bool:
    return await last_index(fabric.agent(site), reserve_of("t")) is not None


async def begun_anew(fabric: LocalFabric, client: Client) -> tuple[Fabric, int]:
    """Have `a` a former home whose fresh copy stays empty, and `c` lost with less than the others;
    return the part of `a`, and how many events a quorum has."""
    await client.create_topic("t", home="a", replicas=2, spread=["b", "c"])
    async with Load(client, "t", ack="quorum") as load:
        await fabric.crash("c")
        await load.go_on()
    part = fabric.agent("a").fabric
    assert part is not None

    async def nobody(question: Question) -> str | None:
        return None

    part.copies.following.relay._choose = nobody
    await client.move_topic("t", "b")
    return part, load.count


async def test_quorum_goes_on_with_a_former_home_while_another_member_is_away() -> None:
    """Nobody can prove that the former home's log is not needed: the third member, which might
    be asked in an election, lacks what the other two have."""
    async with four_sites() as fabric, fabric.connect("hub", "admin") as client:
        await client.create_topic("t", home="a", replicas=2, spread=["b", "c"])
        async with Load(client, "t", ack="quorum") as load:
            await fabric.crash("c")
            await load.go_on()
            await client.move_topic("t", "b")
            await load.go_on(50)
            await fabric.start("c")
        await check_all(fabric, "t", MEMBERS, names(load.count))

        async def is_tidy() -> bool:
            return not any([await has_reserve(fabric, site) for site in MEMBERS])

        await until(is_tidy)


async def test_a_log_that_was_put_aside_leads_again() -> None:
    """The new home is lost before the former one has a fresh copy: the only log that has all is
    the one that was put aside."""
    async with four_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        part, count = await begun_anew(fabric, client)

        def is_anew() -> bool:
            local = part.copies.local("t")
            return local is not None and local.kind == "copy" and local.copy.needs_reserve

        await until(is_anew)
        assert await last_index(fabric.agent("a"), "t~t") == 0
        await fabric.crash("b")
        await fabric.start("c")
        assert await client.publish("t", names(count + 1)[-1], ack="quorum")
        assert await home_of(fabric, "t") == "a"
        assert not await has_reserve(fabric, "a")
        await fabric.start("b")
        await check_all(fabric, "t", MEMBERS, names(count + 1))


async def test_a_log_that_was_put_aside_outlives_a_crash() -> None:
    """What counts is on disk: the engine is killed while the fresh copy is empty."""
    async with four_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        _, count = await begun_anew(fabric, client)
        await until(lambda: has_reserve(fabric, "a"))
        await fabric.crash("a")
        await fabric.crash("b")
        await fabric.start("a")
        await fabric.start("c")
        assert await client.publish("t", names(count + 1)[-1], ack="quorum")
        await fabric.start("b")
        await check_all(fabric, "t", MEMBERS, names(count + 1))
