"""A site whose home was replaced, or whose copy forked, goes on in a new segment and counts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from skerry import Client
from skerry.errors import FabricError
from skerry.fabric.durables import Durables
from skerry.fabric.fabric import Fabric
from skerry.fabric.following import Following
from skerry.fabric.logs import Logs
from skerry.fabric.mending import Mending
from skerry.fabric.streams import Local
from skerry.log.segments import Chain, is_home
from skerry.model.fabric import TopicEntry
from skerry.model.names import segment_of_stream, topic_of_tail
from skerry.testing import LocalFabric
from tests.conftest import until
from tests.live.fabrics import Load, check_all, contents
from tests.live.test_failover import home_of, names

MEMBERS = ["a", "b", "c"]
MEGABYTE = 1_000_000


def four_sites() -> LocalFabric:
    """A hub that decides, and three members."""
    return LocalFabric(["hub", *MEMBERS])


def part_of(fabric: LocalFabric, site: str) -> Fabric:
    part = fabric.agent(site).fabric
    assert part is not None
    return part


def local_at(fabric: LocalFabric, site: str) -> Local:
    local = part_of(fabric, site).copies.local("t")
    assert local is not None
    return local


async def streams_at(fabric: LocalFabric, site: str) -> dict[str, Any]:
    """The streams of topic `t` at a site, tails too."""
    infos = await part_of(fabric, site).copies.streams()
    return {
        name: info
        for name, info in infos.items()
        if (segment_of_stream(name) or ("",))[0] == "t" or topic_of_tail(name) == "t"
    }


async def until_whole(fabric: LocalFabric, sites: list[str] = MEMBERS) -> None:
    """Wait until the log is in one stream at each of `sites`, beside its signpost, and that has
    joined the newest epoch: right after a change of home a site has not heard of it."""

    async def is_whole(site: str) -> bool:
        local, there = local_at(fabric, site), await streams_at(fabric, site)
        entry = part_of(fabric, "hub").copies.entry("t")
        has_joined = entry is not None and local.copy.root == entry.epoch
        is_one = not local.is_split and there.keys() == {local.signpost, local.stream}
        return has_joined and is_one

    async def are_whole() -> bool:
        return all([await is_whole(site) for site in sites])

    await until(are_whole, 60)


@pytest.fixture
def never_welds(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Logs stay split; undo it to have them welded."""
    monkeypatch.setattr(Mending, "begin", lambda self, local: None)
    return monkeypatch


async def split(fabric: LocalFabric, client: Client) -> int:
    """Have `a` a former home whose log is split, and `c` lost with less than the others; return how
    many events a quorum has."""
    await client.create_topic("t", home="a", replicas=2, spread=["b", "c"])
    async with Load(client, "t", ack="quorum") as load:
        await fabric.crash("c")
        await load.go_on()
        await client.move_topic("t", "b")
        await load.go_on()
    assert local_at(fabric, "a").is_split
    return load.count


async def test_quorum_goes_on_with_a_former_home_while_another_member_is_away() -> None:
    """The former home counts at once: the third member, which might be asked in an election, lacks
    what the other two have."""
    async with four_sites() as fabric, fabric.connect("hub", "admin") as client:
        await client.create_topic("t", home="a", replicas=2, spread=["b", "c"])
        async with Load(client, "t", ack="quorum") as load:
            await fabric.crash("c")
            await load.go_on()
            await client.move_topic("t", "b")
            await load.go_on(50)
            await fabric.start("c")
        await check_all(fabric, "t", MEMBERS, names(load.count))
        await until_whole(fabric)
        await check_all(fabric, "t", MEMBERS, names(load.count))


async def test_a_site_whose_log_is_split_leads_if_only_that_has_all(
    never_welds: pytest.MonkeyPatch,
) -> None:
    """It puts its segments together first. What it acknowledged before stays in its place."""
    async with four_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        count = await split(fabric, client)
        await fabric.crash("b")
        never_welds.undo()
        await fabric.start("c")
        assert await client.publish("t", names(count + 1)[-1], ack="quorum") == count + 1
        assert await home_of(fabric, "t") == "a"
        await fabric.start("b")
        await check_all(fabric, "t", MEMBERS, names(count + 1))
        await until_whole(fabric)


async def test_nobody_takes_a_stream_that_is_welded_yet_for_the_log_of_a_home(
    never_welds: pytest.MonkeyPatch,
) -> None:
    """The directory names it before it has all. A function that read there took what was not there
    yet for lost, and counted it twice."""
    async with four_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        count = await split(fabric, client)
        await fabric.crash("b")
        never_welds.undo()
        may_close, close = asyncio.Event(), Mending._close

        async def wait(self: Mending, *arguments: Any) -> None:
            await may_close.wait()
            await close(self, *arguments)

        never_welds.setattr(Mending, "_close", wait)
        await fabric.start("c")
        part = part_of(fabric, "a")
        jetstream = part.copies._jetstream

        async def entry_and_stream() -> tuple[TopicEntry, dict[str, Any] | None]:
            entry = part.copies.entry("t")
            assert entry is not None
            return entry, await jetstream.stream(entry.stream)

        async def is_there() -> bool:
            entry, info = await entry_and_stream()
            return entry.home == "a" and info is not None and info["state"]["last_seq"] == count

        await until(is_there, 60)

        async def asked() -> tuple[bool, int]:
            entry, info = await entry_and_stream()
            subject, body = f"$JS.API.DIRECT.GET.{entry.stream}", b'{"seq":1}'
            reply = await jetstream.ask(subject, body, recovering=False)
            return info is not None and is_home(info, entry.epoch), reply.status

        assert await asked() == (False, 503)
        may_close.set()
        assert await client.publish("t", "next", ack="quorum") == count + 1
        assert await asked() == (True, 0)


async def test_a_log_that_is_split_outlives_a_crash(never_welds: pytest.MonkeyPatch) -> None:
    """Which segments there are is on disk."""
    async with four_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        count = await split(fabric, client)
        await fabric.crash("a")
        await fabric.crash("b")
        await fabric.start("a")
        await until(lambda: local_at(fabric, "a").is_split)
        never_welds.undo()
        await fabric.start("c")
        assert await client.publish("t", names(count + 1)[-1], ack="quorum") == count + 1
        await fabric.start("b")
        await check_all(fabric, "t", MEMBERS, names(count + 1))


async def test_what_is_published_on_a_condition_is_compared_with_the_whole_log() -> None:
    """A home compares with what its stream holds: one that came to be home by way of a roll holds
    all of the log again."""
    async with four_sites() as fabric, fabric.connect("hub", "admin") as client:
        await client.create_topic("t", home="a", replicas=2, spread=["b", "c"])
        old = await client.publish("t/old", "x", ack="quorum")
        await client.move_topic("t", "b")
        await client.publish("t/new", "y", ack="quorum")
        await client.move_topic("t", "a")
        assert local_at(fabric, "a").segment > 0
        jetstream = part_of(fabric, "a").copies._jetstream
        found = await jetstream.call(
            f"STREAM.MSG.GET.{local_at(fabric, 'a').stream}", {"last_by_subj": "e.t.old"}
        )
        assert found["message"]["seq"] == old


async def test_an_index_whose_event_is_over_is_not_given_again(
    never_welds: pytest.MonkeyPatch,
) -> None:
    """The newest event of a split log has ended its lifespan when its site is to lead."""
    async with four_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        count = await split(fabric, client)
        last = await client.publish("t", "soon over", ack="quorum", lifespan=1)
        logs = part_of(fabric, "a").copies.logs

        async def is_over() -> bool:
            return await logs.newest(local_at(fabric, "a").stream) == last - 1

        await until(is_over)
        await fabric.crash("b")
        never_welds.undo()
        await fabric.start("c")
        assert await client.publish("t", "next", ack="quorum") == last + 1 == count + 2
        await fabric.start("b")
        await until_whole(fabric)
        await check_all(fabric, "t", MEMBERS, [*names(count), "next"])


async def traffic(fabric: LocalFabric, site: str) -> int:
    """Bytes that an engine received from others, and sent to them."""
    return sum(
        link.in_bytes + link.out_bytes for link in await part_of(fabric, site).operator.links()
    )


async def until_each_has(fabric: LocalFabric, last: int) -> None:
    """Wait until each member's engine has stored the events up to index `last`."""

    async def have_all() -> bool:
        ends = []
        for site in MEMBERS:
            info = (await streams_at(fabric, site)).get(local_at(fabric, site).stream)
            ends.append(info["state"]["last_seq"] if info else 0)
        return min(ends) >= last

    await until(have_all)


@pytest.mark.parametrize("how", ["move", "failover"])
async def test_a_change_of_home_costs_the_tail_not_the_log(how: str) -> None:
    """The former home keeps what it has; between sites goes what is new."""
    async with four_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        await client.create_topic("t", home="a", replicas=2, spread=["b", "c"])
        for _ in range(20):
            await client.publish("t", bytes(MEGABYTE // 2), ack="quorum")
        # One of two replicas is enough for the quorum; what the other still fetches is no cost of
        # the change.
        await until_each_has(fabric, 20)
        if how == "move":
            before = await traffic(fabric, "a")
            await client.move_topic("t", "b")
        else:
            await fabric.crash("a")
            await client.publish("t", "x", ack="quorum")
            await fabric.start("a")
            before = 0
        last = await client.publish("t", "y", ack="quorum")
        await until_whole(fabric)
        await until_each_has(fabric, last)
        assert await traffic(fabric, "a") - before < MEGABYTE
        async with fabric.connect("a") as reader:
            assert len(await contents(reader, "t")) == last


@pytest.mark.parametrize("refusals", [0, 1])
async def test_a_former_home_that_has_more_leaves_it_and_brings_it_home(
    monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    """What only it has is no part of the log there, and is added to the log at its new home; also
    if its engine refuses the new segment at first."""
    real, left = Logs.create, [True] * refusals

    async def create(self: Logs, local: Local, config: dict[str, Any]) -> None:
        if self.site == "a" and local.is_split and left:
            left.pop()
            raise FabricError("the test says no")
        await real(self, local, config)

    monkeypatch.setattr(Logs, "create", create)
    async with four_sites() as fabric, fabric.connect("a", timeout=60) as client:
        await client.create_topic(
            "t", home="a", replicas=2, spread=["b", "c"], on_partition="continue"
        )
        await client.publish("t", "everywhere", ack="quorum")
        for site in ("hub", "b", "c"):
            await fabric.crash(site)
        for number in range(5):
            await client.publish("t", f"alone-{number}", ack="home")
        await client.close()
        await fabric.crash("a")
        for site in ("hub", "b", "c"):
            await fabric.start(site)
        async with fabric.connect("b", timeout=60) as other:
            assert await other.publish("t", "after") == 2
            await fabric.start("a")
            alone = [f"alone-{number}" for number in range(5)]
            await check_all(fabric, "t", MEMBERS, ["everywhere", "after", *alone])
            await until_whole(fabric)
            await check_all(fabric, "t", MEMBERS, ["everywhere", "after", *alone])


@pytest.mark.parametrize("fails", [False, True])
async def test_last_values_that_a_fork_removed_are_copied_anew_beside_it(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The former home counts meanwhile, also after a crash, and if it fails half-way. What only it
    had is brought home."""
    join, write_chain = Following._join, Logs._list
    failures = [FabricError("there is no room")] if fails else []

    async def fail(self: Logs, local: Local) -> None:
        if local.copy.aside is not None and failures:
            raise failures.pop()
        await write_chain(self, local)

    async def wait(self: Following, local: Local, entry: TopicEntry, last: int) -> bool:
        return local.copy.site != "a" and await join(self, local, entry, last)

    async with four_sites() as fabric, fabric.connect("hub", "admin") as client:
        await client.create_topic("t", home="a", replicas=2, spread=["b", "c"], keep_last=1)
        await client.publish("t/s", "common", ack="quorum")
        await client.publish("t/r", "other", ack="quorum")
        await fabric.crash("b")
        await fabric.crash("c")
        async with fabric.connect("a") as alone:
            assert await alone.publish("t/s", "old", ack="home") == 3
        monkeypatch.setattr(Following, "_join", wait)
        monkeypatch.setattr(Logs, "_list", fail)
        await fabric.crash("a")
        await fabric.start("b")
        await fabric.start("c")

        async def is_replaced() -> bool:
            return await home_of(fabric, "t") != "a"

        await until(is_replaced)
        for _ in range(2):
            await fabric.start("a")
            await until(lambda: local_at(fabric, "a").copy.aside is not None)
            await until(lambda: not failures and not local_at(fabric, "a").lock.locked())
            state = await part_of(fabric, "a").copies.state("t")
            assert state is not None
            assert (state.label, state.last, state.root) == (1, 3, 1)
            assert len(await streams_at(fabric, "a")) == 2
            await fabric.crash("a")
        monkeypatch.undo()
        await fabric.start("a")
        await until_whole(fabric)
        await until(lambda: local_at(fabric, "a").copy.label > 1)

        async def is_brought_home() -> bool:
            async with fabric.connect("a") as reader:
                return await contents(reader, "t") == [b"other", b"old"]

        await until(is_brought_home)


async def read_durably(client: Client, last: bytes) -> None:
    """Acknowledge events up to the one that says `last`."""
    async with asyncio.timeout(30), client.subscribe("t", durable="d", from_index=2) as events:
        async for event in events:
            events.ack(event)
            if event.data == last:
                return


@pytest.mark.parametrize("fails", [False, True])
async def test_a_former_home_that_copies_anew_leads_with_what_it_was_if_nobody_else_can(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """It took an event alone that removed an earlier one, and the next home is lost before anybody
    has as much as that. Also if it fails half-way, and if it dies afterwards."""
    join, drop = Following._join, Logs.drop
    failures = [FabricError("the test says no")] if fails else []

    async def fail(self: Logs, local: Local, streams: Iterable[str]) -> None:
        if failures:
            raise failures.pop()
        await drop(self, local, streams)

    async def wait(self: Following, local: Local, entry: TopicEntry, last: int) -> bool:
        return local.copy.site == "b" and await join(self, local, entry, last)

    async with four_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        await client.create_topic("t", home="a", replicas=2, spread=["b", "c"], keep_last=1)
        await client.publish("t/s", "common", ack="quorum")
        await client.publish("t/r", "other", ack="quorum")
        await fabric.crash("c")
        await client.publish("t/q", "not at c", ack="quorum")
        await fabric.crash("b")
        async with fabric.connect("a") as alone:
            assert await alone.publish("t/s", "alone", ack="home") == 4
            await read_durably(alone, b"alone")
        monkeypatch.setattr(Following, "_join", wait)
        await fabric.crash("a")
        await fabric.start("b")
        await fabric.start("c")

        async def is_home(site: str) -> bool:
            return await home_of(fabric, "t") == site

        await until(lambda: is_home("b"))
        await fabric.start("a")
        await until(lambda: local_at(fabric, "a").copy.aside is not None)
        await until(lambda: not local_at(fabric, "a").lock.locked())
        monkeypatch.setattr(Logs, "drop", fail)
        await fabric.crash("b")
        await until(lambda: is_home("a"))
        monkeypatch.setattr(Following, "_join", join)
        expected = ["other", "not at c", "alone", "after"]
        assert await client.publish("t/p", "after", ack="quorum") == 5
        assert not failures
        assert (await streams_at(fabric, "a")).keys() == {"t~t"}
        await check_all(fabric, "t", ["a", "c"], expected)
        await fabric.crash("a")
        await fabric.start("a")
        await fabric.start("b")
        await until_whole(fabric)
        await check_all(fabric, "t", MEMBERS, expected)
        async with fabric.connect("a") as reader:
            await read_durably(reader, b"after")


@pytest.mark.parametrize("seed", range(3))
async def test_kills_in_the_midst_of_rolls_and_welds_lose_nothing(seed: int) -> None:
    """The former home dies at any moment after a move: what its disk has is the log."""
    random = Random(seed)
    async with four_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        await client.create_topic("t", home="a", replicas=2, spread=["b", "c"])
        async with Load(client, "t", ack="quorum") as load:
            for _ in range(4):
                former = await home_of(fabric, "t")
                target = random.choice([site for site in MEMBERS if site != former])
                await client.move_topic("t", target)
                await asyncio.sleep(
                    random.choice([0.0, 0.05, 0.2, 1.0, 2.5, 4.3]) * random.random()
                )
                await fabric.crash(former)
                await load.go_on()
                await fabric.start(former)
        await check_all(fabric, "t", MEMBERS, names(load.count))
        await until_whole(fabric)
        await check_all(fabric, "t", MEMBERS, names(load.count))


async def test_a_site_that_stops_in_the_midst_of_a_weld_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log is one stream again, and what follows on that is never done."""
    is_welding = asyncio.Event()

    async def wait(self: Durables, name: str, old: Chain, new_stream: str) -> None:
        is_welding.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Durables, "weld", wait)
    async with four_sites() as fabric, fabric.connect("hub", "admin") as client:
        await client.create_topic("t", home="a", replicas=2, spread=["b", "c"])
        await client.publish("t", names(1)[0], ack="quorum")
        await client.move_topic("t", "b")
        await is_welding.wait()
        await fabric.crash("a")
        monkeypatch.undo()
        await fabric.start("a")
        await until_whole(fabric)
        await check_all(fabric, "t", MEMBERS, names(1))
