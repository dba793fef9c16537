"""A home whose disk lost events does not give their indexes to others: a member takes over."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from skerry import Client
from skerry.testing import LocalFabric, LocalSite
from tests.conftest import until
from tests.live.fabrics import check_all, contents, last_index, three_sites

SITES = ["hub", "farm", "lab"]
EVENTS = 1000


def names(count: int) -> list[str]:
    return [f"n-{number:04d}" for number in range(count)]


def blocks(data: Path, topic: str) -> list[Path]:
    return sorted(data.glob(f"jetstream/*/streams/t~{topic}/msgs/*.blk"))


def flip(file: Path) -> None:
    """Flip one bit in the middle."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def cut(file: Path) -> None:
    """Lose the second half."""
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


async def fill(client: Client, events: list[str], ack: str = "quorum") -> None:
    async with client.publisher("t", ack=ack) as publisher:  # type: ignore[arg-type]
        for event in events:
            await publisher.send(event)


async def made(fabric: LocalFabric, client: Client) -> None:
    """A topic at home at the coordination site, whose events a quorum has, and all sites."""
    await client.create_topic("t", home="hub", replicas=2)
    await fill(client, names(EVENTS))
    for site in SITES:
        await until(lambda at=site: reached(fabric, at, EVENTS))  # type: ignore[misc]


async def reached(fabric: LocalFabric, site: str, last: int) -> bool:
    return (await last_index(fabric.agent(site), "t~t") or 0) >= last


async def goes_on(fabric: LocalFabric) -> None:
    """Fifty more events; each copy has all that was acknowledged, each index means one event."""
    more = names(EVENTS + 50)
    async with fabric.connect("farm", timeout=60) as client:
        await fill(client, more[EVENTS:])
    await check_all(fabric, "t", SITES, more)


async def test_a_flipped_bit_and_a_crash_at_the_home_cost_nothing() -> None:
    """The engine ends the log before the bit, says nothing, and would give the indexes again."""
    async with three_sites() as fabric:
        async with fabric.connect("farm", timeout=60) as client:
            await made(fabric, client)
        await fabric.crash("hub")
        [block] = blocks(fabric.root / "hub", "t")
        flip(block)
        await fabric.start("hub")
        await goes_on(fabric)
        async with fabric.connect("farm") as client:
            assert (await client.topic("t")).home != "hub"


async def test_the_bit_does_cut_the_log() -> None:
    """What the test above relies on: alone, the log ends there, and the site says so."""
    async with LocalSite() as site, site.connect() as client:
        await client.create_topic("t")
        await fill(client, names(EVENTS), "home")
        data = site.data.with_name("copy-of-" + site.data.name)
        site.site.engine.stop_watching()
        site.kill_engine()
        await until(lambda: site.site.engine.pid is None)
        shutil.copytree(site.data, data)
    try:
        [block] = blocks(data, "t")
        flip(block)
        async with LocalSite(data=data) as again, again.connect("admin") as client:
            assert 0 < len(await contents(client, "t")) < EVENTS
    finally:
        shutil.rmtree(data)


async def test_a_home_from_an_old_backup_of_its_folder_takes_nothing_back() -> None:
    """Everything in the folder is old and fits together. Only the others know better."""
    async with three_sites() as fabric:
        async with fabric.connect("hub", timeout=60) as client:
            await client.create_topic("t", home="farm", replicas=2)
            await fill(client, names(EVENTS // 2))
            await fabric.stop("farm")
            backup = fabric.root / "backup"
            shutil.copytree(fabric.root / "farm", backup)
            await fabric.start("farm")
            await fill(client, names(EVENTS)[EVENTS // 2 :])
        for site in SITES:
            await until(lambda at=site: reached(fabric, at, EVENTS))  # type: ignore[misc]
        await fabric.stop("farm")
        shutil.rmtree(fabric.root / "farm")
        backup.rename(fabric.root / "farm")
        await fabric.start("farm")
        await goes_on(fabric)


async def stop_both(fabric: LocalFabric, home: str) -> None:
    """The home last, so that the other one does not take over from it."""
    for site in sorted(("farm", "lab"), key=lambda site: site == home):
        await fabric.stop(site)


@pytest.mark.parametrize("home", ["farm", "lab"])
async def test_a_site_from_an_old_backup_whose_members_are_away_waits_for_them(
    home: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The hub has no copy, but remembers how new the folder was. So farm does not open, if it is
    the home, and it is not elected, if it is a replica."""
    async with three_sites() as fabric, fabric.connect("hub", "admin", timeout=60) as client:
        await client.create_topic("t", home="farm", replicas=1, spread="lab")
        await fill(client, names(10)[:5])
        await stop_both(fabric, "farm")
        backup = fabric.root / "backup"
        shutil.copytree(fabric.root / "farm", backup)
        await fabric.start("farm")
        await fabric.start("lab")
        await fill(client, names(10)[5:])
        if home == "lab":
            await client.move_topic("t", "lab", replicas=["farm"])
        known = json.loads((backup / "tide.json").read_bytes())["number"]
        hub = fabric.agent("hub").fabric
        assert hub is not None
        await until(lambda: hub.links._tides["farm"][1] > known)
        await stop_both(fabric, home)
        shutil.rmtree(fabric.root / "farm")
        backup.rename(fabric.root / "farm")
        await fabric.start("farm")
        farm = fabric.agent("farm").fabric
        assert farm is not None
        waiting = asyncio.create_task(client.publish("t", "n-0010", timeout=60))
        if home == "farm":
            await until(lambda: "t waits for its members" in caplog.text)
        else:
            await until(lambda: farm.copies.logs.of("t").copy.sealed > 2)
        assert "older than what other sites have heard of it" in caplog.text
        assert not waiting.done()
        await fabric.start("lab")
        assert await waiting == 11
        await check_all(fabric, "t", ["farm", "lab"], names(11))


async def test_a_hole_in_a_home_is_noticed_told_and_filled() -> None:
    """After a stop in order the engine keeps the indexes of what a cut file lost."""
    async with three_sites() as fabric:
        async with fabric.connect("farm", timeout=60) as client:
            await made(fabric, client)
        await fabric.stop("hub")
        [block] = blocks(fabric.root / "hub", "t")
        cut(block)
        await fabric.start("hub")
        assert "t" in (await fabric.agent("hub").status()).lost
        await goes_on(fabric)

        async def is_told_no_more() -> bool:
            return (await fabric.agent("hub").status()).lost == {}

        await until(is_told_no_more)


async def test_a_site_alone_says_what_its_disk_lost() -> None:
    async with LocalSite() as site, site.connect() as client:
        await client.create_topic("t")
        await fill(client, names(EVENTS), "home")
        data = site.data.with_name("copy-of-" + site.data.name)
        assert (await site.site.status()).lost == {}
        await site.site.close()
        shutil.copytree(site.data, data)
    try:
        async with LocalSite(data=data) as again:
            assert (await again.site.status()).lost == {}
        [block] = blocks(data, "t")
        cut(block)
        async with LocalSite(data=data) as again:
            assert "events inside its log are gone" in (await again.site.status()).lost["t"]
    finally:
        shutil.rmtree(data)


async def test_a_home_that_lost_its_whole_log_does_not_begin_anew() -> None:
    """The topic never moved: nothing in the directory says that its home had events."""
    async with three_sites() as fabric:
        async with fabric.connect("farm", timeout=60) as client:
            await made(fabric, client)
            assert (await client.topic("t")).epoch == 1
        await fabric.crash("hub")
        [log] = (fabric.root / "hub").glob("jetstream/*/streams/t~t")
        shutil.rmtree(log)
        await fabric.start("hub")
        await goes_on(fabric)
