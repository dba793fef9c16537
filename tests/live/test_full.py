"""A site that cannot write: the topic goes on without it, it does not lead, and it catches up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skerry import Client
from skerry.cli.diagnosis import check_log
from skerry.model.topic import Ack
from skerry.testing import LocalFabric, LocalSite
from tests.conftest import until
from tests.live.commandline import running
from tests.live.test_folder import CHUNK, fill, mounted, publish_until_full, small_disk
from tests.live.test_replicas import SITES, has, last_at, log_at


async def publish_chunks(client: Client, count: int, ack: Ack | None = None) -> int:
    """Publish events that take room, one after the other; the index of the last."""
    return [await client.publish("t", os.urandom(CHUNK), ack=ack) for _ in range(count)][-1]


def complaints(data: Path) -> str:
    """What `skerry doctor` says of the log of a site's engine."""
    return " ".join(finding.what for finding in check_log(data / "engine.log"))


async def last_is(site: LocalSite, last: int) -> bool:
    return await last_at(site, "t") == last


async def same_everywhere(fabric: LocalFabric, last: int) -> None:
    """Every site gets the whole log, and the same."""
    for site in SITES:
        await has(fabric[site], "t", last)
    hub, farm, lab = [await log_at(fabric[site], "t") for site in SITES]
    assert hub == farm == lab
    assert [index for index, _ in hub] == list(range(1, last + 1))


async def test_a_topic_goes_on_while_a_replica_is_over_its_quota() -> None:
    """Home at farm, replicas at hub and lab, where another topic has taken all room."""
    quota: dict[str, Any] = {"max_store": 4_000_000}
    async with (
        LocalFabric(SITES, each={"lab": quota}) as fabric,
        fabric.connect("hub") as client,
    ):
        await client.create_topic("t", home="farm", replicas=2, spread="hub,lab")
        await client.publish("t", "small", ack="quorum")
        await has(fabric["lab"], "t", 1)
        await client.create_topic("greedy", home="lab")
        await publish_until_full(client, "greedy")

        assert await publish_chunks(client, 4, "home") == 5
        assert await publish_chunks(client, 4, "quorum") == 9
        assert await last_at(fabric["lab"], "t") < 9
        await until(lambda: "insufficient resources" in complaints(fabric.root / "lab"))

        await fabric.crash("farm")
        assert await publish_chunks(client, 1) == 10
        assert (await client.topic("t")).home == "hub"
        waiting = asyncio.create_task(client.publish("t", "last", ack="quorum", timeout=60))
        await until(lambda: last_is(fabric["hub"], 11))
        assert not waiting.done()  # two of three have to hold it: farm is away, and lab is full
        await fabric.stop("lab")
        quota.clear()
        await fabric.start("lab")
        assert await waiting == 11
        await fabric.start("farm")
        await same_everywhere(fabric, 11)


async def test_a_topic_goes_on_while_the_disk_of_a_replica_is_full(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its engine then stores nothing at all, and does not say how far it is. So nobody can replace
    the home until there is room: farm may have had events that lab alone has too."""
    quota = {"max_store": 1_000_000_000}  # more than the disk has, so that it meets a real ENOSPC
    fabric = LocalFabric(SITES, each={"lab": quota})
    with small_disk(fabric.root / "lab") as disk:
        async with fabric, fabric.connect("hub") as client:
            await client.create_topic("t", home="farm", replicas=2, spread="hub,lab")
            await client.publish("t", "small", ack="quorum")
            await has(fabric["lab"], "t", 1)
            fill(disk)

            assert await publish_chunks(client, 4, "home") == 5
            assert await publish_chunks(client, 4, "quorum") == 9
            await until(lambda: f"the disk of {disk} is full" in caplog.text)

            await fabric.crash("farm")
            waiting = asyncio.create_task(client.publish("t", "last", timeout=60))
            hub = fabric.agent("hub").fabric
            assert hub is not None
            assert hub.leader is not None
            dead = hub.leader.dead
            await until(lambda: "farm" in dead)
            assert (await client.topic("t")).home == "farm"
            subprocess.run(["mount", "-o", "remount,size=96m", disk], check=True)
            assert await waiting == 10
            assert (await client.topic("t")).home == "hub"
            await fabric.start("farm")
            await same_everywhere(fabric, 10)


async def test_a_home_whose_disk_is_full_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """Its engine gives no answer, and its agent asks for another home."""
    quota = {"max_store": 1_000_000_000}
    fabric = LocalFabric(SITES, each={"lab": quota})
    with small_disk(fabric.root / "lab") as disk:
        async with fabric, fabric.connect("hub") as client:
            await client.create_topic("t", home="lab", replicas=2, spread="hub,farm")
            await client.publish("t", "small", ack="quorum")
            for site in ("hub", "farm"):
                await has(fabric[site], "t", 1)
            fill(disk)

            assert await client.publish("t", os.urandom(CHUNK), ack="quorum", timeout=60) == 2
            assert (await client.topic("t")).home in ("hub", "farm")
            subprocess.run(["mount", "-o", "remount,size=96m", disk], check=True)
            await until(lambda: "has room again" in caplog.text)
            lab = fabric.agent("lab").fabric
            assert lab is not None
            await until(lambda: lab.copies.starts == 2 and lab.is_open)
            await same_everywhere(fabric, 2)


@contextlib.contextmanager
def disk_of_its_own(path: Path) -> Iterator[Path]:
    """A file system that can be made to hang."""
    if not (shutil.which("mkfs.ext4") and shutil.which("fsfreeze")):
        pytest.skip("needs e2fsprogs and util-linux")
    image = path.with_suffix(".image")
    with image.open("wb") as file:
        file.truncate(128 * 1024 * 1024)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    with mounted(path, "-o", "loop", str(image)):
        yield path


@contextlib.contextmanager
def hanging(disk: Path) -> Iterator[None]:
    """Whoever writes there waits. It ends by itself if this process waits, too."""
    subprocess.run(["fsfreeze", "-f", disk], check=True)
    end = subprocess.Popen(["sh", "-c", 'sleep 100; exec fsfreeze -u "$0"', disk])
    try:
        yield
        assert end.poll() is None
    finally:
        end.kill()
        end.wait()
        subprocess.run(["fsfreeze", "-u", disk], check=True)


async def test_a_home_whose_disk_hangs_is_replaced(tmp_path: Path) -> None:
    """Its engine gives no answer and nothing is said, and yet its agent notices."""
    with disk_of_its_own(tmp_path / "disk") as disk:
        async with LocalFabric(["hub", "farm"]) as fabric, fabric.connect("hub", "admin") as client:
            token, data = await client.join_token(), disk / "lab"
            up = ("up", "--site", "lab", "--port", "0", "--link-port", "0", "--join", token)
            with running(data, tmp_path / "lab", *up) as lab:

                async def says(text: str) -> None:
                    await asyncio.to_thread(lab.wait_line, text)

                await says("site lab is up")
                await client.create_topic("t", home="lab", replicas=2, spread="hub,farm")
                assert await client.publish("t", "x", ack="quorum") == 1
                with hanging(disk):
                    assert await client.publish("t", "y", ack="quorum", timeout=60) == 2
                    assert (await client.topic("t")).home in ("hub", "farm")
                    await says("hangs")
                await says("answers again")
                await fabric.stop("farm")  # so it takes lab for a quorum
                assert await client.publish("t", "z", ack="quorum", timeout=60) == 3
                await client.move_topic("t", "lab", replicas=["hub"])  # it can lead again
                assert await client.publish("t", "z", ack="quorum", timeout=60) == 4
