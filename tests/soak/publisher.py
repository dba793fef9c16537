"""A publisher in a process of its own, until SIGTERM.

It appends to its file, a line each: `A <time> <id> <number> <index> <began> <epoch>` for an
acknowledged event, with when its publish began and in which epoch of the topic it was acknowledged
(0: at level outbox), and `U <time> <id> <number> <why>` for one whose outcome is not known. After
such it goes on under a new id, as the order of events is promised for one publisher; so does a
process that is started anew after a kill, as another incarnation. `E <time>` is the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import msgspec

import skerry
from skerry.errors import SkerryError
from skerry.log.append import Publisher

log = logging.getLogger("soak")

WINDOW = 128
TIMEOUT = 20.0
"""Seconds until an event that is not acknowledged counts as unknown."""
FLUSH = 25.0


class Load:
    """One publisher process."""

    def __init__(self, spec: dict[str, Any], out: TextIO) -> None:
        self._spec = spec
        self._out = out
        self._generation = 0
        self._bad = False
        self._sent = 0
        self.stop = asyncio.Event()

    async def run(self) -> None:
        """Publish until told to stop; begin anew after every error."""
        targets = [Path(target) for target in self._spec["targets"]]
        while not self.stop.is_set():
            try:
                async with skerry.connect(targets, timeout=TIMEOUT) as client:
                    while not self.stop.is_set():
                        await self._publish(client)
            except SkerryError as error:
                log.warning("begins anew: %s: %s", type(error).__name__, error)
            await self._sleep(0.2)

    async def _publish(self, client: skerry.Client) -> None:
        """Publish under one id, until something fails."""
        spec = self._spec
        identity = f"{spec['name']}-i{spec['incarnation']}-g{self._generation}"
        self._generation += 1
        self._bad = False
        pause = 1 / spec["rate"] if spec["rate"] else 0.0  # 0: as fast as it goes
        most = spec.get("most", math.inf)
        loop = asyncio.get_running_loop()
        due = loop.time()
        number = 0
        publisher = client.publisher(
            spec["topic"], ack=spec["level"], window=spec.get("window", WINDOW), timeout=TIMEOUT
        )
        try:
            while not self.stop.is_set() and not self._bad:
                if self._sent >= most:
                    await self._sleep(1.0)
                    continue
                began = time.time()
                future = await publisher.send(f"{identity}:{number}")
                future.add_done_callback(self._noting(publisher, identity, number, began))
                number += 1
                self._sent += 1
                # What was missed in an outage is not made good: the load stays even.
                due = max(due + pause, loop.time() - 10 * pause)
                await self._sleep(due - loop.time())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH):
                    await publisher.flush()
        finally:
            publisher.close()
            await asyncio.sleep(0)  # the futures' callbacks

    def _noting(self, publisher: Publisher, identity: str, number: int, began: float) -> Any:
        def note(future: asyncio.Future[int]) -> None:
            now = time.time()
            if future.cancelled() or (error := future.exception()) is not None:
                self._bad = True
                why = "cancelled" if future.cancelled() else type(error).__name__
                self._out.write(f"U {now:.3f} {identity} {number} {why}\n")
                log.info(
                    "unknown: %s:%d: %s", identity, number, why if future.cancelled() else error
                )
            else:
                self._out.write(
                    f"A {now:.3f} {identity} {number} {future.result()} {began:.3f} "
                    f"{self._epoch(publisher)}\n"
                )
            self._out.flush()

        return note

    def _epoch(self, publisher: Publisher) -> int:
        """The epoch of the home that a publisher writes to. It takes no acknowledgement of another,
        so this is the epoch of the one that it has just taken."""
        entry = publisher._sending.entry
        return 0 if entry is None or self._spec["level"] == "outbox" else entry.epoch

    async def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.stop.wait()
        else:
            await asyncio.sleep(0)


async def main(spec: dict[str, Any]) -> None:
    """Run the publisher that `spec` describes."""
    with Path(spec["out"]).open("a") as out:
        out.write("\n")  # a kill may have left half a line
        load = Load(spec, out)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, load.stop.set)
        await load.run()
        out.write(f"E {time.time():.3f}\n")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s")
    asyncio.run(main(msgspec.json.decode(sys.argv[1])))
