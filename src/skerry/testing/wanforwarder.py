"""The forwarding process of an emulated WAN: it makes the sites, and carries packets between them.

It is started by `skerry.testing.wan.Wan`, is told what to change over a socket, one JSON object a
line, and ends when that does or when its parent dies. Then the sites are gone.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import itertools
import json
import math
import os
import random
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import NoReturn

from skerry.testing.namespaces import LIBC, MTU, NETWORK, make_site, remove, remove_orphans

QUEUE_TIME = 0.2
"""Seconds of traffic that wait before a link that is saturated; what exceeds it is dropped. About
the round trip of a long line, which is the common rule for a router's buffer."""
QUEUE_PACKETS = 20
"""Packets that may wait at least, on a link so slow that `QUEUE_TIME` would hold hardly one."""

_BURST = 64
"""Packets read from one site before the others have their turn."""
_PR_SET_PDEATHSIG = 1


class Link:
    """One direction between two sites."""

    def __init__(self, target: int, quality: Mapping[str, float]) -> None:
        self.target = target
        """The descriptor of the receiving device."""
        self.delay = self.jitter = self.loss = 0.0
        self.rate = math.inf
        self.up = True
        self.queue_time = math.inf
        self.free = 0.0
        """When the last packet has left the queue."""
        self.last = 0.0
        """When the last packet is due; none is before it."""
        self.packets = self.bytes = self.dropped = 0
        self.change(quality)

    def change(self, quality: Mapping[str, float]) -> None:
        """Take on the properties that are given."""
        self.delay = quality.get("delay", self.delay)
        self.jitter = quality.get("jitter", self.jitter)
        self.loss = quality.get("loss", self.loss)
        self.rate = quality.get("rate", self.rate)
        self.queue_time = max(QUEUE_TIME, QUEUE_PACKETS * MTU * 8 / self.rate)

    def due(self, size: int, now: float) -> float | None:
        """When a packet that is sent now arrives; None if it does not."""
        if not self.up or (self.loss and random.random() < self.loss):
            return None
        if self.free - now > self.queue_time:
            return None
        self.free = max(self.free, now) + size * 8 / self.rate
        self.last = max(self.last, self.free + self.delay + random.random() * self.jitter)
        return self.last


class Forwarder:
    """All devices, all links, and the packets under way.

    Driven by `select`, whose timeout is good to a microsecond where that of `epoll` is to a
    millisecond. A reply is sent when its request has been carried out.
    """

    def __init__(self, devices: Mapping[int, int], quality: Mapping[str, float]) -> None:
        self._sites = {device: site for site, device in devices.items()}
        self._links = {
            (source, target): Link(devices[target], quality)
            for source, target in itertools.permutations(devices, 2)
        }
        self._due: list[tuple[float, int, Link, bytes]] = []
        """A heap; the number keeps the order of packets that are due together."""
        self._sequence = 0
        self._requests = b""

    def run(self, control: socket.socket) -> None:
        """Forward until `control` ends."""
        readable: list[int]
        sources = [*self._sites, control.fileno()]
        while True:
            wait = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            readable, _, _ = select.select(sources, [], [], wait)
            # Packets first: what was sent before a request is not subject to it.
            for device in readable:
                if device != control.fileno():
                    self._take(device)
            if control.fileno() in readable and not self._obey(control):
                return
            self._deliver()

    def _take(self, device: int) -> None:
        """Take what a site has sent."""
        source = self._sites[device]
        for _ in range(_BURST):
            try:
                packet = os.read(device, 65536)
            except BlockingIOError:
                return
            now = time.monotonic()
            # The rest is chatter of the kernel (IPv6 looks for routers), or addressed to nobody.
            if packet[0] >> 4 != 4 or packet[16:18] != NETWORK:
                continue
            link = self._links.get((source, packet[18]))
            if link is None:
                continue
            due = link.due(len(packet), now)
            if due is None:
                link.dropped += 1
                continue
            self._sequence += 1
            heapq.heappush(self._due, (due, self._sequence, link, packet))

    def _deliver(self) -> None:
        """Hand over what is due."""
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            _, _, link, packet = heapq.heappop(self._due)
            try:
                os.write(link.target, packet)
            except OSError:  # the test has set the device down
                link.dropped += 1
            else:
                link.packets += 1
                link.bytes += len(packet)

    def _obey(self, control: socket.socket) -> bool:
        """Carry out what is asked; False when nobody can ask any more."""
        received = control.recv(65536)
        *requests, self._requests = (self._requests + received).split(b"\n")
        for line in requests:
            request = json.loads(line)
            reply: dict[str, object] = {"id": request["id"]}
            match request["do"]:
                case "set":
                    for source, target, quality in request["details"]:
                        self._links[source, target].change(quality)
                case "cut":
                    self._cut({frozenset(cut) for cut in request["details"]})
                case "counts":
                    reply["counts"] = [
                        (*pair, link.packets, link.bytes, link.dropped)
                        for pair, link in self._links.items()
                    ]
            control.sendall(json.dumps(reply).encode() + b"\n")
        return received != b""

    def _cut(self, cuts: set[frozenset[int]]) -> None:
        """Have exactly these sites and pairs cut."""
        for (source, target), link in self._links.items():
            link.up = cuts.isdisjoint(map(frozenset, ([source], [target], [source, target])))
            if not link.up:
                link.free = link.last = 0.0  # nothing is under way that the next could overtake
        lost = [entry for entry in self._due if not entry[2].up]
        for _, _, link, _ in lost:
            link.dropped += 1
        self._due = [entry for entry in self._due if entry[2].up]
        heapq.heapify(self._due)


def main() -> NoReturn:
    """The forwarding process; its one argument is the plan that `Wan._spawn` writes."""
    plan = json.loads(sys.argv[1])
    control = socket.socket(fileno=plan["control"])

    def stop(*_: object) -> None:
        # An exception instead could come in the midst of the cleaning up.
        with contextlib.suppress(OSError):
            control.shutdown(socket.SHUT_RD)

    # The kernel tells us when our parent dies, and the end of `control` does too, but not while
    # some other process holds a copy of the other end.
    signal.signal(signal.SIGTERM, stop)
    LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != plan["owner"]:
        sys.exit(0)
    try:
        try:
            remove_orphans()
            devices = {
                number: make_site(plan["prefix"] + site, number)
                for number, site in enumerate(plan["sites"], 1)
            }
        except OSError as error:
            control.sendall(json.dumps({"id": 0, "error": str(error)}).encode() + b"\n")
            sys.exit(1)
        with contextlib.suppress(OSError):
            # A packet that is due shall not wait for the servers under test to be done.
            os.setpriority(os.PRIO_PROCESS, 0, -10)
        gc.disable()  # packets make no cycles, and a collection among thousands takes its time
        control.sendall(json.dumps({"id": 0}).encode() + b"\n")
        Forwarder(devices, plan["quality"]).run(control)
    except ConnectionError:
        pass  # the parent died while being answered
    finally:
        remove(plan["prefix"])
    sys.exit(0)
