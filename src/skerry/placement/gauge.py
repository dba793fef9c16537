"""How busy a site's machine is: what it has, and what of it is used."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import psutil

SMOOTH = 0.4
"""How much the newest measurement weighs against those before, for cores and bandwidth: some
three periods are looked at together, so that one burst moves nothing (Pulsar averages too)."""


class Reading(msgspec.Struct, frozen=True):
    """Of cores, memory, bandwidth, disk and events/s: what there is, and what is used."""

    capacity: tuple[float, float, float, float, float]
    load: tuple[float, float, float, float, float]


class Gauge:
    """Measures one machine. Sites that share one each see all of it."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._cores = float(psutil.cpu_count() or 1)
        self._busy: float | None = None
        self._bandwidth: float | None = None
        self._bytes: tuple[int, float] | None = None
        psutil.cpu_percent()  # the first call only remembers

    def read(self, traffic: int | None, rate: float, now: float) -> Reading:
        """At `now`, with the bytes that the engine has moved since it started, and the events/s."""
        busy = psutil.cpu_percent() / 100.0 * self._cores
        self._busy = busy if self._busy is None else self._busy + SMOOTH * (busy - self._busy)
        memory = psutil.virtual_memory()
        disk = shutil.disk_usage(self._data)
        return Reading(
            (self._cores, float(memory.total), _line_speed(), float(disk.total), float("inf")),
            (self._busy, float(memory.total - memory.available), self._flow(traffic, now),
             float(disk.total - disk.free), rate),
        )  # fmt: skip

    def _flow(self, traffic: int | None, now: float) -> float:
        """Bytes/s of messages."""
        before, self._bytes = self._bytes, None if traffic is None else (traffic, now)
        if traffic is None or before is None or now <= before[1] or traffic < before[0]:
            return self._bandwidth or 0.0  # the engine was started anew, or is away
        flow = (traffic - before[0]) / (now - before[1])
        known = self._bandwidth
        self._bandwidth = flow if known is None else known + SMOOTH * (flow - known)
        return self._bandwidth


def _line_speed() -> float:
    """Bytes/s of the fastest line; inf where none tells its speed."""
    speeds = [
        nic.speed * 125_000.0
        for name, nic in psutil.net_if_stats().items()
        if nic.isup and nic.speed > 0 and name != "lo"
    ]
    return max(speeds, default=float("inf"))
