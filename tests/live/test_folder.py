"""The data folder: what cannot be used is refused with a reason, and no crash makes it unusable."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from skerry import Client, connect, errors
from skerry.engine import folder as folder_module
from skerry.engine.binary import find_binary
from skerry.engine.checksum import checksum_of
from skerry.testing import LocalSite
from tests.conftest import until
from tests.live.faults import is_root, is_running, killed, refused, site_process, unused_port

CHUNK = 256 * 1024


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder to be."""
    return tmp_path / "site"


@pytest.fixture
async def used(data: Path) -> Path:
    """A data folder with the topic `kept` and three events in it; the site is stopped."""
    async with LocalSite(data=data) as site, site.connect() as client:
        await client.create_topic("kept")
        for number in range(3):
            await client.publish("kept", str(number))
    return data


async def start(data: Path, **settings: object) -> None:
    """Start a site and stop it."""
    async with LocalSite(data=data, **settings):
        pass


async def contents(client: Client, topic: str) -> list[bytes]:
    return [event.data async for event in client.read(topic)]


async def check_kept(data: Path, port: int = 0) -> None:
    """The site starts, and `kept` holds what it held and takes more."""
    async with LocalSite(data=data, port=port) as site, site.connect() as client:
        assert (await contents(client, "kept"))[:3] == [b"0", b"1", b"2"]
        assert await client.publish("kept", "more") >= 4


# Folders that cannot be written


@contextlib.contextmanager
def mounted(path: Path, *options: str) -> Iterator[Path]:
    """Mount something at `path`; skip the test where that is not allowed."""
    path.mkdir(exist_ok=True)
    if not is_root():
        pytest.skip("only root may mount")
    result = subprocess.run(["mount", *options, path], capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"mounting is not permitted here: {result.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Make a folder read-only, for root too."""
    if is_root():
        with mounted(path, "--bind", str(path)):
            subprocess.run(["mount", "-o", "remount,ro,bind", path], check=True)
            yield
    else:
        path.chmod(0o500)
        try:
            yield
        finally:
            path.chmod(0o700)


@contextlib.contextmanager
def small_disk(path: Path, megabytes: int = 24) -> Iterator[Path]:
    """A file system that is soon full."""
    with mounted(path, "-t", "tmpfs", "-o", f"size={megabytes}m", "skerry-test"):
        yield path


async def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    data = tmp_path / "file" / "site"
    with refused(errors.FolderUnwritable, data, "Not a directory"):
        await start(data)


async def test_a_new_folder_inside_a_read_only_one_is_refused(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    parent.mkdir()
    with read_only(parent), refused(errors.FolderUnwritable, parent / "site"):
        await start(parent / "site")


async def test_a_used_folder_that_became_read_only_is_refused_and_stays_whole(used: Path) -> None:
    with read_only(used), refused(errors.FolderUnwritable, used):
        await start(used)
    await check_kept(used)


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "used"])
async def test_a_site_does_not_start_on_a_full_disk_and_says_so(
    tmp_path: Path, is_new: bool
) -> None:
    with small_disk(tmp_path / "disk", 4) as disk:
        if not is_new:
            await start(disk / "site")
        fill(disk)
        with refused(errors.FolderUnwritable, disk / "site", "No space left"):
            await start(disk / "site")
        (disk / "ballast").unlink()
        await start(disk / "site")


async def test_a_full_disk_is_loud_loses_nothing_acknowledged_and_heals_with_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`max_store` promises more than the disk has, so that the engine meets a real ENOSPC."""
    acknowledged: list[bytes] = []
    with small_disk(tmp_path / "disk") as disk:
        settings = {"data": disk / "site", "max_store": 1_000_000_000}
        async with LocalSite(**settings) as site, site.connect(timeout=2) as client:
            await client.create_topic("full")
            with refused(errors.OutcomeUnknown, "full"):
                while True:
                    event = os.urandom(CHUNK)
                    await client.publish("full", event)
                    acknowledged.append(event)
            assert 40 < len(acknowledged) < 96
            await until(lambda: f"the disk of {disk / 'site'} is full" in caplog.text)
            assert await contents(client, "full") == acknowledged

            subprocess.run(["mount", "-o", "remount,size=96m", disk], check=True)
            async with asyncio.timeout(30):
                while True:
                    with contextlib.suppress(errors.OutcomeUnknown):
                        await client.publish("full", b"room", id="room")
                        break
            assert site.site.engine.restarts == 1
            kept = await contents(client, "full")
            assert kept[: len(acknowledged)] == acknowledged
            assert kept[-1] == b"room"
        async with LocalSite(**settings) as site, site.connect() as client:
            assert await contents(client, "full") == kept


def fill(disk: Path) -> None:
    """Leave no byte free."""
    with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


# Quota


async def publish_until_full(client: Client, topic: str) -> int:
    """Publish until the site says `StorageFull`; return how many events were taken."""
    count = 0
    with refused(errors.StorageFull, "no room"):
        for _ in range(1000):
            await client.publish(topic, os.urandom(CHUNK))
            count += 1
    return count


async def publishes(client: Client, topic: str) -> bool:
    try:
        await client.publish(topic, b"x")
    except errors.StorageFull:
        return False
    return True


async def test_over_quota_publishing_is_refused_until_retention_is_lowered() -> None:
    async with (
        LocalSite(max_store=4_000_000) as site,
        site.connect() as client,
        site.connect("admin") as admin,
    ):
        await client.create_topic("t")
        taken = await publish_until_full(client, "t")
        assert 8 <= taken <= 16
        assert len(await contents(client, "t")) == taken
        await admin.set_topic("t", max_bytes=1_000_000)
        await until(lambda: publishes(client, "t"))


async def test_over_quota_publishing_is_refused_until_a_topic_is_deleted() -> None:
    async with (
        LocalSite(max_store=4_000_000) as site,
        site.connect() as client,
        site.connect("admin") as admin,
    ):
        await client.create_topic("old")
        await client.create_topic("new")
        await publish_until_full(client, "old")
        assert not await publishes(client, "new")
        await admin.delete_topic("old")
        await until(lambda: publishes(client, "new"))


async def test_a_publisher_over_quota_reports_what_was_not_stored() -> None:
    async with LocalSite(max_store=2_000_000) as site, site.connect() as client:
        await client.create_topic("t")
        with pytest.raises(errors.PublishFailed) as caught:
            async with client.publisher("t") as publisher:
                acks = [await publisher.send(os.urandom(CHUNK)) for _ in range(40)]
        assert isinstance(caught.value.first, errors.StorageFull)
        assert caught.value.advice
        stored = sum(1 for ack in acks if ack.exception() is None)
        assert stored + caught.value.count == 40
        assert (await client.topic("t")).events == stored


async def test_a_topic_that_reserves_more_than_the_quota_is_refused() -> None:
    async with LocalSite(max_store=4_000_000) as site, site.connect() as client:
        with refused(errors.StorageFull, "no room"):
            await client.create_topic("t", max_bytes=8_000_000)


async def test_a_site_that_fills_most_of_its_disk_takes_events_after_a_restart(
    tmp_path: Path,
) -> None:
    """The default quota is a share of what is free *or taken by topics already*: were it of what
    is free, this site would be far over it."""
    with small_disk(tmp_path / "disk", 48) as disk:
        for count in (120, 1):
            async with LocalSite(data=disk / "site") as site, site.connect() as client:
                await client.create_topic("t")
                for _ in range(count):
                    await client.publish("t", os.urandom(CHUNK))


# Folders of others


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(("format", "error"), [(1, errors.FolderCorrupt), (3, errors.FolderTooNew)])
async def test_a_folder_of_another_format_is_left_alone(
    used: Path, format: int, error: type[errors.SkerryError]
) -> None:
    edit(used / "site.json", format=format)
    before = snapshot(used)
    with refused(error, used, f"format {format}"):
        await start(used)
    assert snapshot(used) == before


async def test_a_folder_of_a_newer_engine_is_left_alone(used: Path) -> None:
    edit(used / "site.json", engine="99.1.0")
    before = snapshot(used)
    with refused(errors.FolderTooNew, used, "99.1.0"):
        await start(used)
    assert snapshot(used) == before


async def test_a_folder_of_another_site_is_left_alone(used: Path) -> None:
    before = snapshot(used)
    with refused(errors.BadSetting, used, "'local'", "'other'"):
        await start(used, site="other")
    assert snapshot(used) == before


def snapshot(data: Path) -> dict[str, bytes]:
    """Every file but the lock, with its content."""
    files = (path for path in data.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path): path.read_bytes() for path in files}


# Damage

GARBAGE = [b"", b"{", b"[]", b"\x00\xff\xfe", b'{"site": "\xff"}', b'{"site": 7}']


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_a_corrupt_site_file_is_named(used: Path, garbage: bytes) -> None:
    file = used / "site.json"
    good = file.read_bytes()
    file.write_bytes(garbage)
    with refused(errors.FolderCorrupt, file):
        await start(used)
    file.write_bytes(good)
    await check_kept(used)


async def test_a_folder_with_topics_and_no_site_file_is_refused(used: Path) -> None:
    (used / "site.json").unlink()
    with refused(errors.FolderCorrupt, used, "site.json"):
        await start(used)


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_a_corrupt_connection_file_is_named(used: Path, garbage: bytes) -> None:
    file = used / "credentials" / "sdk.json"
    file.write_bytes(garbage)
    with refused(errors.FolderCorrupt, file):
        connect(used)
    with refused(errors.FolderCorrupt, file):
        await start(used)


async def test_the_advice_for_a_corrupt_connection_file_helps(used: Path) -> None:
    """It says to remove the file; then the next start makes another that works."""
    file = used / "credentials" / "sdk.json"
    file.unlink()
    await check_kept(used)


@pytest.mark.parametrize("garbage", [b"", b"{", b"\x00" * 512])
async def test_a_topic_whose_description_is_damaged_is_named(used: Path, garbage: bytes) -> None:
    [file] = used.glob("jetstream/*/streams/t~kept/meta.inf")
    good = file.read_bytes()
    file.write_bytes(garbage)
    with refused(errors.FolderCorrupt, "kept", file.parent):
        await start(used)
    file.write_bytes(good)
    await check_kept(used)


async def test_a_description_written_as_the_engine_was_killed_is_mended(used: Path) -> None:
    """The engine writes a stream's description, then its checksum; killed in between, it leaves the
    whole log out at its next start."""
    [file] = used.glob("jetstream/*/streams/t~kept/meta.inf")
    checksum = file.with_name("meta.sum")
    before = checksum.read_text()
    assert checksum_of("t~kept", file.read_bytes()) == before
    file.write_bytes(
        file.read_bytes().replace(b'"skerry.home":', b'"skerry.seen":"1","skerry.home":')
    )
    assert checksum_of("t~kept", file.read_bytes()) != before
    await check_kept(used)
    assert checksum.read_text() != before


async def test_a_description_that_does_not_fit_its_newer_checksum_is_damaged(used: Path) -> None:
    """What was not cut short by a crash is not mended, but named."""
    [file] = used.glob("jetstream/*/streams/t~kept/meta.inf")
    file.write_bytes(file.read_bytes().replace(b'"skerry.home":', b'"skerry.hame":'))
    then = file.stat().st_mtime - 5
    os.utime(file, (then, then))
    with refused(errors.FolderCorrupt, "kept", file.parent):
        await start(used)


async def test_half_written_files_do_no_harm(used: Path) -> None:
    for name in ("engine.json", "site.json", "credentials/sdk.json", "credentials/admin.json"):
        (used / f"{name}.new").write_text('{"half')
    await check_kept(used)


async def test_a_topic_whose_creation_was_cut_short_can_be_created(used: Path) -> None:
    """The engine makes the folder first and describes the stream in it then."""
    [kept] = used.glob("jetstream/*/streams/t~kept")
    (kept.parent / "t~half" / "msgs").mkdir(parents=True)
    (kept.parent / "t~half" / "meta.inf").write_bytes((kept / "meta.inf").read_bytes())
    async with LocalSite(data=used) as site, site.connect() as client:
        assert [topic.name for topic in await client.topics()] == ["kept"]
        await client.create_topic("half")
        assert await client.publish("half", "x") == 1


# Who may read it


async def test_nobody_but_the_owner_may_read_secrets() -> None:
    before = os.umask(0)
    try:
        async with LocalSite(mqtt_port=0, websocket_port=0) as site:
            data = site.data
            assert mode(data) == 0o700
            assert mode(data / "credentials") == 0o700
            files = ["engine.json", "site.json", "lock", "engine.log"]
            files += [f"credentials/{user}.json" for user in ("admin", "sdk", "plain")]
            assert {name: oct(mode(data / name)) for name in files} == dict.fromkeys(files, "0o600")
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# Two processes, and processes that die


async def test_a_folder_in_use_is_refused_naming_the_process(data: Path) -> None:
    async with site_process(data) as other:
        with refused(errors.FolderLocked, data, f"process {other.pid} "):
            await start(data)
        with pytest.raises(errors.FolderLocked) as caught:
            await start(data)
        assert caught.value.pid == other.pid
        async with connect(data) as client:  # and it was not disturbed
            assert (await client.status()).agent_pid == other.pid


async def test_a_folder_is_free_as_soon_as_its_site_is_closed(used: Path) -> None:
    for _ in range(3):
        await start(used)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
@pytest.mark.parametrize("frozen", [False, True], ids=["running", "frozen"])
async def test_a_killed_agent_leaves_no_engine(data: Path, frozen: bool) -> None:
    async with site_process(data) as site:
        assert is_running(site.engine)
        if frozen:
            os.kill(site.engine, signal.SIGSTOP)
        await site.kill()
        await until(lambda: not is_running(site.engine))


@pytest.mark.parametrize("frozen", [False, True], ids=["running", "frozen"])
async def test_a_killed_agents_folder_and_port_are_free_at_once(data: Path, frozen: bool) -> None:
    async with site_process(data, unused_port()) as site:
        async with connect(data) as client:
            await client.create_topic("kept")
            for number in range(3):
                await client.publish("kept", str(number))
        if frozen:
            os.kill(site.engine, signal.SIGSTOP)
        await site.kill()
        await check_kept(data, site.port)


@contextlib.asynccontextmanager
async def orphan(data: Path, engine: bool = True) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A process that holds the folder's lock, as an engine does that outlived its supervisor."""
    binary, _ = find_binary()
    command = [str(binary), "-c", str(data / "engine.json")] if engine else ["sleep", "60"]
    lock = os.open(data / "lock", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with (
            (data / "engine.log").open("ab") as out,
            killed(subprocess.Popen(command, stdout=out, stderr=out, pass_fds=[lock])) as process,
        ):
            supervisor = subprocess.Popen(["true"])
            supervisor.wait()
            holder = {"pid": supervisor.pid, "engine": process.pid, "site": "local"}
            (data / "lock").write_text(json.dumps(holder))
            os.close(lock)
            lock = -1
            yield process
    finally:
        if lock >= 0:
            os.close(lock)


async def test_an_orphaned_engine_is_ended_at_the_next_start(used: Path) -> None:
    """On Linux the engine dies with its supervisor; where it does not, the next start ends it."""
    port = int(json.loads((used / "engine.json").read_text())["listen"].rpartition(":")[2])
    async with orphan(used) as engine:
        await check_kept(used, port)
        assert engine.wait() == -signal.SIGKILL


async def test_an_orphaned_engine_that_is_frozen_is_ended_too(used: Path) -> None:
    async with orphan(used) as engine:
        engine.send_signal(signal.SIGSTOP)
        await check_kept(used)
        assert engine.wait() == -signal.SIGKILL


async def test_a_process_that_is_no_engine_of_the_folder_is_not_ended(
    used: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process ids are used again: the one in the lock may be somebody else's by now."""
    monkeypatch.setattr(folder_module, "ORPHAN_TIME", 0.1)
    async with orphan(used, engine=False) as process:
        with refused(errors.FolderLocked, used):
            await start(used)
        assert process.poll() is None
    await check_kept(used)
