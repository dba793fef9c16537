"""A wide-area network on one machine: real packets, with the delay and loss of distance.

Every site is a network namespace with one TUN device, `wan0`, and the address 10.77.<n>.1. What is
sent there does not reach a wire but a file descriptor, which one forwarding process holds:

    farm: socket → wan0 → │ forwarding process:               │ → wan0 → socket :hub
                          │ lost? queue full? when is it due? │

The process reads a packet, finds the link by its sender and its destination, decides when the
packet is due at the other end, and writes it there at that moment. The packets are those of the
kernel: TCP, UDP and ICMP behave as over a line. Nothing of this needs `sch_netem`, which many
kernels lack, and nothing is added to the network of the machine itself, as each device is made
inside its namespace.

The forwarding process also makes the namespaces and removes them, so that they go with it when
its parent dies. If it is killed itself, its parent removes them; if both are, the next `Wan` of
anyone on the machine does, as a namespace's name says whose it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import math
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import msgspec

from skerry.errors import BadSetting, Unavailable
from skerry.model.names import check_site
from skerry.testing.namespaces import (
    CAP_NET_ADMIN,
    CAP_SYS_ADMIN,
    address_of,
    has_capabilities,
    inside,
    ip_program,
    owner_prefix,
    remove,
)

log = logging.getLogger("skerry.testing")

RATE = 100e6
"""Bits per second that a link carries unless told otherwise. The forwarding process keeps up with
that; links that are busy beyond it deliver late (measured)."""
MOST_SITES = 254
"""A site is one byte of the addresses, and neither 0 nor 255."""
START_TIME = 30.0
STOP_TIME = 10.0
"""Seconds to make all namespaces and to remove them; some 10 ms a site are usual."""

_REPLY_BYTES = 16 * 1024 * 1024

_serials = itertools.count(1)
TcpSocket = socket.socket


class Traffic(msgspec.Struct, frozen=True):
    """What went from one site to another. Packets still under way are in none of the figures."""

    packets: int
    """Delivered to the receiving site."""
    bytes: int
    """Of those, IP headers included."""
    dropped: int
    """Not delivered: lost, black-holed, or beyond the queue of a saturated link."""


class Wan:
    """An emulated wide-area network between `sites`. Needs Linux and root; see `unavailable`.

        async with Wan(["hub", "farm", "lab"], delay=0.04) as wan:
            with wan.inside("farm"):
                server = subprocess.Popen(["nats-server", "-a", wan.address("farm")])
            connection = wan.socket("hub")
            await loop.sock_connect(connection, (wan.address("farm"), 4222))
            await wan.cut("farm")

    Every ordered pair of sites is a link with these properties, here given for all, changed by
    `set` and `move`:

    - `delay`, seconds one way. No packet takes less; on a machine that is not overloaded the
      median takes less than 1 ms more.
    - `jitter`, seconds: each packet takes up to so much longer, uniformly at random. Packets of
      one link never overtake each other, also when its delay shrinks.
    - `loss`, the probability from 0 to 1 that a packet is dropped, each on its own.
    - `rate`, bits per second of IP packets; `math.inf` does not limit it.

    A change holds for every packet sent after the call that made it has returned. TCP in the sites
    runs Reno: BBR, which some machines prefer, hides loss.

    Several may run at once, in one process or many; each is a network of its own. At the end, by
    an error too, its namespaces, devices and process are gone. Processes that were started inside
    are the caller's to stop: they go on, cut off.
    """

    def __init__(
        self,
        sites: Sequence[str],
        *,
        delay: float = 0.0,
        jitter: float = 0.0,
        loss: float = 0.0,
        rate: float = RATE,
    ) -> None:
        self.sites = tuple(check_site(site) for site in sites)
        if not 1 <= len(self.sites) <= MOST_SITES:
            raise BadSetting(f"a WAN has 1 to {MOST_SITES} sites, not {len(self.sites)}")
        self._numbers = {site: number for number, site in enumerate(self.sites, 1)}
        if len(self._numbers) < len(self.sites):
            raise BadSetting(f"two sites have the same name: {', '.join(self.sites)}")
        self._quality = _checked(delay=delay, jitter=jitter, loss=loss, rate=rate)
        self._cuts: set[frozenset[int]] = set()
        self._prefix = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._asking = asyncio.Lock()
        self._asked = 0

    @staticmethod
    def unavailable() -> str | None:
        """Why no WAN can be emulated on this machine by this process; None if it can.

        @pytest.mark.skipif(Wan.unavailable() is not None, reason=str(Wan.unavailable()))
        """
        if sys.platform != "linux":
            return f"network namespaces are Linux's, and this is {sys.platform}"
        if os.geteuid() != 0:
            return "only root may make network namespaces"
        if not has_capabilities(CAP_NET_ADMIN, CAP_SYS_ADMIN):
            return "root lacks CAP_NET_ADMIN or CAP_SYS_ADMIN here, as in an ordinary container"
        if ip_program() is None:
            return "the program `ip` (iproute2) is not installed"
        try:
            os.close(os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            return f"/dev/net/tun cannot be opened: {error.strerror}"
        return None

    async def __aenter__(self) -> Self:
        """Make the network. Raises `Unavailable` where that is not possible."""
        if (reason := self.unavailable()) is not None:
            raise Unavailable(
                f"no WAN can be emulated here: {reason}",
                "Run as root on Linux, or skip the test by `Wan.unavailable()`.",
            )
        if self._process is not None:
            raise BadSetting("this WAN is running already", "Make another Wan.")
        self._cuts.clear()
        self._asked = 0
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._spawn(theirs)
            self._streams = await asyncio.open_unix_connection(sock=ours, limit=_REPLY_BYTES)
            async with asyncio.timeout(START_TIME):
                ready = await self._answer(0)
            if "error" in ready:
                raise Unavailable(
                    f"the emulated WAN could not be made: {ready['error']}",
                    "Does `ip netns add` work on this machine?",
                )
        except BaseException as error:
            if self._streams is None:
                ours.close()
            await self._close()
            if isinstance(error, TimeoutError):
                raise Unavailable(
                    f"the emulated WAN was not made within {START_TIME:.0f} seconds",
                    "Is the machine overloaded?",
                ) from None
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        """Remove everything."""
        await self._close()

    def address(self, site: str) -> str:
        """The IPv4 address of `site` inside the network; the same in every run."""
        return address_of(self._number(site))

    def namespace(self, site: str) -> str:
        """The name of the site's network namespace, for `ip netns exec`."""
        self._number(site)
        if self._process is None:
            raise _not_running()
        return self._prefix + site

    @contextlib.contextmanager
    def inside(self, site: str) -> Iterator[None]:
        """Have this thread in the network of `site` for the block.

        Sockets made in it and processes started in it belong to the site for good, also when used
        after the block; so do threads, so let no thread pool grow here. For synchronous code only:
        with an `await` inside, every other task of the loop would be at that site too.
        """
        with inside(self.namespace(site)):
            yield

    def socket(self, site: str) -> TcpSocket:
        """A fresh, non-blocking TCP socket of `site`, for `loop.sock_connect` or to listen on.

        It stays there wherever it is used. The caller closes it.
        """
        with self.inside(site):
            fresh = socket.socket()
        fresh.setblocking(False)
        return fresh

    async def set(
        self,
        source: str,
        target: str,
        *,
        delay: float | None = None,
        jitter: float | None = None,
        loss: float | None = None,
        rate: float | None = None,
        both: bool = True,
    ) -> None:
        """Change what is given of the link from `source` to `target`, and back unless not `both`.

        All at once between two packets. Packets already under way arrive as they would have.
        """
        pair = self._pair(source, target)
        quality = _checked(delay=delay, jitter=jitter, loss=loss, rate=rate)
        pairs = [pair, pair[::-1]] if both else [pair]
        await self._ask("set", [[*pair, quality] for pair in pairs])

    async def move(self, site: str, delays: Mapping[str, float]) -> None:
        """Have `site` elsewhere: so many seconds from each of the given others, both ways.

        All at once between two packets; the distance to sites that are not given stays.
        """
        changes: list[list[Any]] = []
        for other, delay in delays.items():
            pair = self._pair(site, other)
            quality = _checked(delay=delay)
            changes += [[*pair, quality], [*pair[::-1], quality]]
        await self._ask("set", changes)

    async def cut(self, site: str, other: str | None = None) -> None:
        """Black-hole all links of `site`, or only those between it and `other`, both ways.

        When it returns, nothing is delivered any more: packets under way are dropped. Nobody is
        told; connections just fall silent. One direction is cut by `set` with a `loss` of 1.
        """
        self._cuts.add(self._cut_of(site, other))
        await self._ask("cut", [sorted(cut) for cut in self._cuts])

    async def heal(self, site: str, other: str | None = None) -> None:
        """Undo the `cut` of the same arguments; without one do nothing.

        Two sites reach each other when neither is cut, nor the pair of them.
        """
        self._cuts.discard(self._cut_of(site, other))
        await self._ask("cut", [sorted(cut) for cut in self._cuts])

    async def counts(self) -> dict[tuple[str, str], Traffic]:
        """What went from each site to each other since the start, at this one moment."""
        reply = await self._ask("counts", None)
        return {
            (self.sites[source - 1], self.sites[target - 1]): Traffic(*figures)
            for source, target, *figures in reply["counts"]
        }

    def _number(self, site: str) -> int:
        try:
            return self._numbers[site]
        except KeyError:
            raise BadSetting(
                f"the WAN has no site {site!r}", f"It has {', '.join(self.sites)}."
            ) from None

    def _pair(self, source: str, target: str) -> tuple[int, int]:
        pair = self._number(source), self._number(target)
        if source == target:
            raise BadSetting(f"{source!r} has no link to itself", "Name two sites.")
        return pair

    def _cut_of(self, site: str, other: str | None) -> frozenset[int]:
        return frozenset([self._number(site)] if other is None else self._pair(site, other))

    def _spawn(self, control: TcpSocket) -> None:
        owner = os.getpid()
        mine = owner_prefix(owner)
        assert mine is not None
        self._prefix = f"{mine}{next(_serials)}-"
        plan = {
            "control": control.fileno(),
            "owner": owner,
            "prefix": self._prefix,
            "sites": self.sites,
            "quality": self._quality,
        }
        # `-m` would warn about a module that its own package has imported before.
        program = "from skerry.testing.wanforwarder import main; main()"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", program, json.dumps(plan)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(control.fileno(),),
            process_group=0,  # a Ctrl-C in the terminal is for us; we stop it in order
        )

    async def _ask(self, what: str, details: object) -> dict[str, Any]:
        """Have the forwarding process do something, and wait until it is done."""
        async with self._asking:
            if self._streams is None:
                raise _not_running()
            self._asked += 1
            request = {"id": self._asked, "do": what, "details": details}
            self._streams[1].write(json.dumps(request).encode() + b"\n")
            return await self._answer(self._asked)

    async def _answer(self, number: int) -> dict[str, Any]:
        """The reply of that number. Older ones, whose callers were cancelled, are passed over."""
        assert self._streams is not None
        while True:
            line = b""
            with contextlib.suppress(ConnectionError):
                line = await self._streams[0].readline()
            if not line:
                raise Unavailable(
                    "the forwarding process of the WAN has ended",
                    "Nothing is delivered any more. What it said is on the standard error output.",
                )
            reply: dict[str, Any] = json.loads(line)
            if reply["id"] == number:
                return reply

    async def _close(self) -> None:
        process, streams = self._process, self._streams
        self._process = self._streams = None
        if process is None:
            return
        try:
            if streams is not None:
                streams[1].close()
            process.terminate()  # a forked copy of us might still hold the stream open
            async with asyncio.timeout(STOP_TIME):
                while process.poll() is None:
                    await asyncio.sleep(0.005)
                if streams is not None:
                    with contextlib.suppress(ConnectionError):
                        await streams[1].wait_closed()
        except TimeoutError:
            log.warning("the WAN's process did not stop within %.0f s; killed", STOP_TIME)
        finally:
            # Also when cancelled: what follows takes no time unless something went wrong.
            process.kill()
            process.wait()
            remove(self._prefix)


def _checked(**quality: float | None) -> dict[str, float]:
    """The properties of a link that are given, each in its range; else raise `BadSetting`."""
    given = {name: value for name, value in quality.items() if value is not None}
    for name, value in given.items():
        # Each condition is also false for NaN.
        match name:
            case "loss" if not 0 <= value <= 1:
                raise BadSetting(f"a loss is a probability from 0 to 1, not {value!r}")
            case "rate" if not value > 0:
                raise BadSetting(
                    f"a rate is more than 0 bits per second, not {value!r}",
                    "`cut` black-holes a link; `math.inf` does not limit it.",
                )
            case "delay" | "jitter" if not 0 <= value < math.inf:
                raise BadSetting(f"a {name} is 0 seconds or more, not {value!r}")
    return given


def _not_running() -> Unavailable:
    return Unavailable("the WAN is not running", "Use it inside of its `async with` block.")
