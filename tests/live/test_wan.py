"""The emulated WAN: real packets between network namespaces, with delay, loss, rate and cuts."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from skerry.engine.binary import find_binary
from skerry.errors import BadName, BadSetting, Unavailable
from skerry.testing.wan import Traffic, Wan
from tests.conftest import until
from tests.live.faults import is_running, killed, refused

pytestmark = pytest.mark.skipif(
    Wan.unavailable() is not None, reason=f"no emulated WAN: {Wan.unavailable()}"
)

SITES = ["hub", "farm", "lab"]
SLACK = 0.005
"""Seconds that a ping takes at the most beyond the sum of its path, while the machine is idle."""
NAMESPACES = Path("/run/netns")


@pytest.fixture
async def wan() -> AsyncIterator[Wan]:
    """Three sites, 10 ms from each other."""
    async with Wan(SITES, delay=0.01) as wan:
        yield wan


class Pinger:
    """Echo requests from one site; the kernel of the other answers them."""

    def __init__(self, wan: Wan, source: str) -> None:
        self._wan = wan
        with wan.inside(source):
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        self._socket.setblocking(False)
        self._number = 0

    def close(self) -> None:
        self._socket.close()

    def send(self, target: str, kind: int = 8) -> int:
        """Send one request, or another kind of message; its number."""
        self._number += 1
        head = struct.pack("!BBHHH", kind, 0, 0, 1, self._number)
        checksum = ~sum(struct.unpack("!4H", head)) & 0xFFFF  # small enough to need no folding
        packet = head[:2] + struct.pack("!H", checksum) + head[4:]
        self._socket.sendto(packet, (self._wan.address(target), 0))
        return self._number

    async def answer(self, number: int) -> None:
        """Wait for the answer to that request."""
        expected = struct.pack("!HH", 1, number)
        while True:
            packet = await asyncio.get_running_loop().sock_recv(self._socket, 2048)
            if packet[20] == 0 and packet[24:28] == expected:
                return

    async def round_trip(self, target: str) -> float:
        """Seconds there and back."""
        start = time.monotonic()
        async with asyncio.timeout(20):
            await self.answer(self.send(target))
        return time.monotonic() - start


@contextlib.contextmanager
def pinger(wan: Wan, source: str) -> Iterator[Pinger]:
    """Ping from a site."""
    with contextlib.closing(Pinger(wan, source)) as pinger:
        yield pinger


async def check_path(wan: Wan, source: str, target: str, there_and_back: float) -> None:
    """No ping is faster than the path, and there are some that are hardly slower: all would be,
    were the path longer, and most may be while the machine is busy."""
    close = 0
    async with asyncio.timeout(60):
        with pinger(wan, source) as ping:
            while close < 3:
                taken = await ping.round_trip(target)
                assert taken >= there_and_back
                close += taken <= there_and_back + SLACK


async def reaches(wan: Wan, source: str, target: str) -> bool:
    """Whether a packet arrives, by the counts and so without waiting for one that does not."""

    async def counts() -> Traffic:
        return (await wan.counts())[source, target]

    before = await counts()
    with pinger(wan, source) as ping:
        ping.send(target, kind=0)  # an answer that nobody waits for, and nobody answers

        async def settled() -> bool:
            return await counts() != before

        await until(settled)
    after = await counts()
    assert (after.packets - before.packets) + (after.dropped - before.dropped) == 1
    return after.packets > before.packets


def flood(wan: Wan, source: str, target: str, packets: int, size: int) -> None:
    """Send datagrams to a port where nobody listens."""
    with wan.inside(source), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(packets):
            sender.sendto(bytes(size), (wan.address(target), 9))


async def settled(wan: Wan, source: str, target: str, packets: int) -> Traffic:
    """The traffic of a link once so many packets have been delivered or dropped."""

    async def done() -> bool:
        traffic = (await wan.counts())[source, target]
        return traffic.packets + traffic.dropped >= packets

    await until(done)
    return (await wan.counts())[source, target]


def namespaces_of(pid: int) -> set[str]:
    """The namespaces that a process has made."""
    return {path.name for path in NAMESPACES.glob(f"skerry-{pid}-*")}


def forwarders() -> list[int]:
    """The forwarding processes of this one."""
    children = psutil.Process().children()
    return [child.pid for child in children if "skerry.testing.wan" in " ".join(child.cmdline())]


# Delay


async def test_a_round_trip_takes_two_delays() -> None:
    async with Wan(["hub", "farm"], delay=0.04) as wan:
        await check_path(wan, "hub", "farm", 0.08)
        await check_path(wan, "farm", "hub", 0.08)


async def test_delay_can_differ_by_direction_and_by_pair(wan: Wan) -> None:
    await wan.set("hub", "farm", delay=0.03, both=False)
    await check_path(wan, "hub", "farm", 0.04)
    await wan.set("hub", "farm", delay=0.02)
    await check_path(wan, "farm", "hub", 0.04)
    await check_path(wan, "hub", "lab", 0.02)


async def test_a_moving_host_changes_all_its_delays_at_once(wan: Wan) -> None:
    await wan.move("farm", {"hub": 0.03, "lab": 0.005})
    await check_path(wan, "farm", "hub", 0.06)
    await check_path(wan, "lab", "farm", 0.01)
    await check_path(wan, "hub", "lab", 0.02)


async def test_jitter_adds_to_the_delay_and_keeps_the_order(wan: Wan) -> None:
    await wan.set("hub", "farm", jitter=0.02, both=False)
    with wan.inside("farm"):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with receiver, wan.inside("hub"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        receiver.bind((wan.address("farm"), 0))
        start = time.monotonic()
        for n in range(100):
            sender.sendto(b"%d" % n, receiver.getsockname())
        receiver.settimeout(20)
        assert receiver.recv(100) == b"0"
        assert time.monotonic() - start >= 0.01
        assert [receiver.recv(100) for _ in range(99)] == [b"%d" % n for n in range(1, 100)]
    with pinger(wan, "hub") as ping:
        times = [await ping.round_trip("farm") for _ in range(30)]
    assert min(times) >= 0.02
    assert max(times) - min(times) > SLACK


async def test_packets_do_not_overtake_each_other_when_the_delay_shrinks(wan: Wan) -> None:
    await wan.set("hub", "farm", delay=0.3, both=False)
    with pinger(wan, "hub") as ping:
        start = time.monotonic()
        ping.send("farm")
        await wan.set("hub", "farm", delay=0.0, both=False)
        await ping.round_trip("farm")
        assert time.monotonic() - start >= 0.3
        assert await ping.round_trip("farm") >= 0.01


# Loss, rate, counts


async def test_loss_drops_its_share(wan: Wan) -> None:
    await wan.set("hub", "farm", loss=0.3, both=False)
    flood(wan, "hub", "farm", 2000, 10)
    traffic = await settled(wan, "hub", "farm", 2000)
    assert traffic.packets + traffic.dropped == 2000
    assert 450 <= traffic.dropped <= 750  # 600 expected; seven standard deviations
    await wan.set("hub", "lab", loss=1.0, both=False)
    assert not await reaches(wan, "hub", "lab")
    assert await reaches(wan, "lab", "hub")


async def test_traffic_is_counted_by_direction(wan: Wan) -> None:
    flood(wan, "lab", "hub", 50, 100)
    assert await settled(wan, "lab", "hub", 50) == Traffic(packets=50, bytes=50 * 128, dropped=0)
    counts = await wan.counts()
    assert set(counts) == {(a, b) for a in SITES for b in SITES if a != b}
    assert counts["lab", "farm"] == counts["farm", "hub"] == Traffic(0, 0, 0)


async def test_a_rate_limits_what_a_connection_gets(wan: Wan) -> None:
    loop = asyncio.get_running_loop()
    await wan.set("hub", "farm", rate=8e6)
    data = os.urandom(300_000)
    with wan.socket("farm") as listener, wan.socket("hub") as sender:
        listener.bind((wan.address("farm"), 0))
        listener.listen()
        await loop.sock_connect(sender, listener.getsockname())
        receiver, _ = await loop.sock_accept(listener)
        with receiver:
            start = time.monotonic()
            sending = asyncio.create_task(loop.sock_sendall(sender, data))
            received = b""
            while len(received) < len(data):
                received += await loop.sock_recv(receiver, 65536)
            await sending
    assert received == data
    assert time.monotonic() - start >= len(data) * 8 / 8e6


async def test_a_saturated_link_drops_what_its_queue_does_not_hold(wan: Wan) -> None:
    await wan.set("hub", "farm", rate=1e6)
    flood(wan, "hub", "farm", 200, 972)  # 1.6 s of traffic; 0.24 s and one packet fit
    traffic = await settled(wan, "hub", "farm", 200)
    assert traffic.dropped > 100
    assert traffic.packets >= 30
    await wan.set("hub", "farm", rate=math.inf)
    flood(wan, "hub", "farm", 200, 972)
    assert (await settled(wan, "hub", "farm", 400)).dropped == traffic.dropped


# Cuts


async def test_a_cut_black_holes_a_site_and_heal_restores_it(wan: Wan) -> None:
    await wan.cut("farm")
    assert not await reaches(wan, "farm", "hub")
    assert not await reaches(wan, "lab", "farm")
    assert await reaches(wan, "lab", "hub")
    await wan.heal("farm")
    assert await reaches(wan, "farm", "hub")
    assert await reaches(wan, "lab", "farm")
    await check_path(wan, "hub", "farm", 0.02)


async def test_a_cut_of_one_pair_leaves_the_others(wan: Wan) -> None:
    await wan.cut("farm", "lab")
    assert not await reaches(wan, "farm", "lab")
    assert not await reaches(wan, "lab", "farm")
    assert await reaches(wan, "farm", "hub")
    await wan.heal("lab", "farm")
    assert await reaches(wan, "farm", "lab")


async def test_every_cut_is_healed_on_its_own(wan: Wan) -> None:
    await wan.cut("farm")
    await wan.cut("lab")
    await wan.cut("farm", "hub")
    await wan.heal("farm")
    assert not await reaches(wan, "farm", "lab")
    assert not await reaches(wan, "farm", "hub")
    await wan.heal("lab")
    assert await reaches(wan, "farm", "lab")
    assert not await reaches(wan, "farm", "hub")
    await wan.heal("farm", "hub")
    await wan.heal("farm", "hub")
    assert await reaches(wan, "farm", "hub")


async def test_a_cut_loses_what_is_under_way(wan: Wan) -> None:
    await wan.set("hub", "farm", delay=60.0)
    flood(wan, "hub", "farm", 5, 10)
    await wan.cut("hub", "farm")
    await wan.heal("hub", "farm")
    assert await settled(wan, "hub", "farm", 5) == Traffic(0, 0, dropped=5)
    await wan.set("hub", "farm", delay=0.01)
    assert await reaches(wan, "hub", "farm")


async def test_a_connection_outlives_a_short_cut(wan: Wan) -> None:
    loop = asyncio.get_running_loop()
    with wan.socket("farm") as listener, wan.socket("hub") as sender:
        listener.bind((wan.address("farm"), 0))
        listener.listen()
        await loop.sock_connect(sender, listener.getsockname())
        receiver, _ = await loop.sock_accept(listener)
        with receiver:
            await wan.cut("farm")
            dropped = (await wan.counts())["hub", "farm"].dropped
            await loop.sock_sendall(sender, b"hello")

            async def lost() -> bool:
                return (await wan.counts())["hub", "farm"].dropped > dropped

            await until(lost)
            await wan.heal("farm")
            async with asyncio.timeout(20):
                assert await loop.sock_recv(receiver, 100) == b"hello"


# Namespaces


async def test_inside_is_for_this_block_and_nothing_of_it_is_outside(wan: Wan) -> None:
    def devices() -> set[str]:
        return {name for _, name in socket.if_nameindex()}

    home = os.readlink("/proc/thread-self/ns/net")
    outside = devices()
    assert "wan0" not in outside
    with wan.inside("farm"):
        there = os.readlink("/proc/thread-self/ns/net")
        assert devices() >= {"lo", "wan0"}
        with wan.inside("lab"):
            assert os.readlink("/proc/thread-self/ns/net") not in (home, there)
        assert os.readlink("/proc/thread-self/ns/net") == there
    with pytest.raises(ZeroDivisionError), wan.inside("farm"):
        1 / 0  # noqa: B018
    assert os.readlink("/proc/thread-self/ns/net") == home
    assert devices() == outside


async def test_every_site_has_loopback_and_reno(wan: Wan) -> None:
    for site in SITES:
        with wan.inside(site), socket.socket() as listener, socket.socket() as client:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            client.connect(listener.getsockname())
            control = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            assert control.rstrip(b"\0") == b"reno"


async def test_several_wans_are_networks_of_their_own(wan: Wan) -> None:
    async with Wan(["hub", "farm"], delay=0.0) as other:
        assert other.address("farm") == wan.address("farm")
        assert other.namespace("farm") != wan.namespace("farm")
        assert await reaches(other, "hub", "farm")
        assert (await wan.counts())["hub", "farm"] == Traffic(0, 0, 0)
    assert await reaches(wan, "hub", "farm")


async def test_a_server_inside_is_reached_from_another_site(wan: Wan, tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    binary, _ = find_binary()
    log = tmp_path / "log"
    with wan.inside("farm"):
        server = subprocess.Popen([binary, "-a", wan.address("farm"), "-p", "4222", "-l", log])
    with killed(server):
        await until(lambda: log.exists() and "Server is ready" in log.read_text())
        with wan.socket("hub") as client:
            async with asyncio.timeout(20):
                await loop.sock_connect(client, (wan.address("farm"), 4222))
                assert (await loop.sock_recv(client, 65536)).startswith(b"INFO {")
                await loop.sock_sendall(client, b'CONNECT {"verbose":false}\r\nPING\r\n')
                start = time.monotonic()
                await loop.sock_sendall(client, b"PING\r\n")
                answer = b""
                while answer.count(b"PONG\r\n") < 2:
                    answer += await loop.sock_recv(client, 65536)
                assert time.monotonic() - start >= 0.02


# Ends


async def test_everything_is_gone_at_the_end() -> None:
    async with Wan(SITES) as wan:
        assert len(namespaces_of(os.getpid())) == 3
        assert len(forwarders()) == 1
    assert namespaces_of(os.getpid()) == set()
    assert forwarders() == []
    async with wan:  # and can be made anew
        assert await reaches(wan, "hub", "farm")
    assert namespaces_of(os.getpid()) == set()


async def test_everything_is_gone_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        async with Wan(SITES):
            1 / 0  # noqa: B018
    assert namespaces_of(os.getpid()) == set()
    assert forwarders() == []


async def test_everything_is_gone_after_a_cancelled_start() -> None:
    for delay in (0.0, 0.1, 0.2, 0.3):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay), Wan(SITES):
                await asyncio.sleep(60)
        assert namespaces_of(os.getpid()) == set()
        assert forwarders() == []


OWNER = """
import asyncio, sys
from skerry.testing.wan import Wan

async def main():
    async with Wan(["hub", "farm"]):
        print("ready", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def owner() -> AsyncIterator[tuple[psutil.Process, psutil.Process]]:
    """A process with a WAN of its own, and the forwarder of that."""
    with killed(subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE)) as process:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            assert await asyncio.to_thread(process.stdout.readline) == b"ready\n"
        assert len(namespaces_of(process.pid)) == 2
        owner = psutil.Process(process.pid)
        (forwarder,) = owner.children()
        yield owner, forwarder


async def test_everything_is_gone_when_the_owner_is_killed() -> None:
    async with owner() as (process, forwarder):
        process.kill()
        await until(lambda: not is_running(forwarder.pid))
        assert namespaces_of(process.pid) == set()


async def test_what_killed_processes_leave_is_removed_by_the_next_start(wan: Wan) -> None:
    async with owner() as (process, forwarder):
        forwarder.kill()
        process.kill()
    await until(lambda: not is_running(process.pid))
    assert len(namespaces_of(process.pid)) == 2
    async with Wan(["hub", "farm"]):
        assert namespaces_of(process.pid) == set()
        assert len(namespaces_of(os.getpid())) == 5
    assert await reaches(wan, "hub", "farm")


async def test_a_dead_forwarder_is_reported_and_cleaned_up_after() -> None:
    async with Wan(SITES) as wan:
        (pid,) = forwarders()
        psutil.Process(pid).kill()
        with refused(Unavailable, "has ended"):
            await wan.counts()
    assert namespaces_of(os.getpid()) == set()


async def test_a_cancelled_call_does_not_confuse_the_next(wan: Wan) -> None:
    for _ in range(20):
        call = asyncio.create_task(wan.counts())
        await asyncio.sleep(0)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        await wan.cut("farm")
        await wan.heal("farm")
    assert await reaches(wan, "hub", "farm")


def test_on_uvloop() -> None:
    async def scenario() -> bool:
        async with Wan(SITES, delay=0.01) as wan:
            await wan.cut("lab")
            return await reaches(wan, "hub", "farm") and not await reaches(wan, "hub", "lab")

    assert uvloop.run(scenario())
    assert namespaces_of(os.getpid()) == set()


# What is refused


@pytest.mark.parametrize(
    "quality",
    [
        {"delay": -0.01},
        {"delay": math.nan},
        {"delay": math.inf},
        {"jitter": -1.0},
        {"loss": 1.01},
        {"loss": -0.1},
        {"rate": 0.0},
        {"rate": -1.0},
    ],
)
async def test_a_value_out_of_range_is_refused(quality: dict[str, Any]) -> None:
    with pytest.raises(BadSetting, match=str(next(iter(quality.values())))):
        Wan(SITES, **quality)
    wan = Wan(SITES)
    with pytest.raises(BadSetting):
        await wan.set("hub", "farm", **quality)
    if "delay" in quality:
        with pytest.raises(BadSetting):
            await wan.move("farm", {"lab": 0.1, "hub": quality["delay"]})


async def test_an_unknown_site_is_refused(wan: Wan) -> None:
    with refused(BadSetting, "'moon'"):
        wan.address("moon")
    with refused(BadSetting, "'moon'"):
        wan.socket("moon")
    with refused(BadSetting, "'moon'"), wan.inside("moon"):
        pass
    with refused(BadSetting, "'moon'"):
        await wan.set("hub", "moon", delay=0.1)
    with refused(BadSetting, "'moon'"):
        await wan.cut("moon")
    with refused(BadSetting, "'moon'"):
        await wan.move("hub", {"farm": 0.1, "moon": 0.1})
    with refused(BadSetting, "'hub'"):
        await wan.cut("hub", "hub")
    await check_path(wan, "hub", "farm", 0.02)


def test_sites_need_names_of_their_own() -> None:
    with pytest.raises(BadSetting):
        Wan(["hub", "hub"])
    with pytest.raises(BadSetting):
        Wan([])
    with pytest.raises(BadSetting):
        Wan([f"s{n}" for n in range(255)])
    with pytest.raises(BadName):
        Wan(["../hub"])


async def test_a_wan_that_does_not_run_says_so() -> None:
    wan = Wan(SITES)
    assert wan.address("hub") == "10.77.1.1"
    with refused(Unavailable, "not running"):
        await wan.counts()
    with refused(Unavailable, "not running"):
        wan.socket("hub")


def test_without_root_it_says_why() -> None:
    program = """
import asyncio, os
from skerry.errors import Unavailable
from skerry.testing.wan import Wan

async def main():
    os.setuid(65534)
    try:
        async with Wan(["hub"]):
            pass
    except Unavailable as error:
        print(Wan.unavailable(), "|", error.what)

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    reason, _, what = done.stdout.strip().partition(" | ")
    assert "root" in reason
    assert reason in what
