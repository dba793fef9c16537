"""A durable and a live subscription to every topic, in a process of their own, until SIGTERM.

Every event received is appended to a file, one for the durable ones and one for the live ones,
before it is acknowledged, a line each:
`<topic> <index> <id> <payload> <deliveries> <time> <session> <stamp>`. There are 0 deliveries of a
live event. A session is one subscription; the stamp is when the home stored the event.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import msgspec

import skerry
from skerry.errors import SkerryError
from skerry.model.event import Event

log = logging.getLogger("soak")

ACK_WAIT = 5.0


class Written:
    """What one kind of subscription was given."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._out.write("\n")  # a kill may have left half a line
        self._sessions = 0
        self.last: dict[str, int] = {}
        """By topic, the index of the last."""

    def begin(self) -> str:
        """The name of another subscription."""
        self._sessions += 1
        return f"{os.getpid()}.{self._sessions}"

    def note(self, topic: str, event: Event, session: str, deliveries: int) -> None:
        """Write an event down."""
        self._out.write(
            f"{topic} {event.index} {event.id} {event.data.decode()} {deliveries} "
            f"{time.time():.3f} {session} {event.timestamp_ns}\n"
        )
        self._out.flush()
        self.last[topic] = event.index


async def follow(spec: dict[str, Any], topic: str, out: Written) -> None:
    """Read one topic by a durable subscription; begin anew after every error."""
    targets = [Path(target) for target in spec["targets"]]
    while True:
        try:
            async with (
                skerry.connect(targets) as client,
                client.subscribe(
                    topic, from_index=1, durable=spec["name"], ack_wait=ACK_WAIT
                ) as events,
            ):
                log.info("%s: reading at %s", topic, client.site)
                session = out.begin()
                async for event in events:
                    out.note(topic, event, session, event.deliveries)
                    events.ack(event)
        except SkerryError as error:
            log.warning("%s: begins anew: %s: %s", topic, type(error).__name__, error)
        await asyncio.sleep(0.3)


async def watch(spec: dict[str, Any], topic: str, out: Written) -> None:
    """Read one topic live, at this site alone; go on behind the last event after every error."""
    while True:
        try:
            async with (
                skerry.connect(Path(spec["targets"][0])) as client,
                client.subscribe(topic, from_index=out.last.get(topic, 0) + 1) as events,
            ):
                log.info("%s: live at %s", topic, client.site)
                session = out.begin()
                async for event in events:
                    out.note(topic, event, session, 0)
        except SkerryError as error:
            log.warning("%s: live begins anew: %s: %s", topic, type(error).__name__, error)
        await asyncio.sleep(0.3)


async def main(spec: dict[str, Any]) -> None:
    """Run the subscriptions that `spec` describes."""
    with Path(spec["out"]).open("a") as kept, Path(spec["live"]).open("a") as live:
        durable, current = Written(kept), Written(live)
        tasks = [asyncio.create_task(follow(spec, topic, durable)) for topic in spec["topics"]]
        tasks += [asyncio.create_task(watch(spec, topic, current)) for topic in spec["topics"]]
        stop = asyncio.create_task(_stopped())
        await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()):
                log.error("a subscription died", exc_info=error)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _stopped() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(msgspec.json.decode(sys.argv[1])))
