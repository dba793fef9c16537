"""Durable subscriptions to every topic, in a process of their own, until SIGTERM.

Every event received is appended to the process's file before it is acknowledged, a line each:
`<topic> <index> <id> <payload> <deliveries>`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from pathlib import Path
from typing import Any, TextIO

import msgspec

import skerry
from skerry.errors import SkerryError

log = logging.getLogger("soak")

ACK_WAIT = 5.0


async def follow(spec: dict[str, Any], topic: str, out: TextIO) -> None:
    """Read one topic; begin anew after every error."""
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
                async for event in events:
                    out.write(
                        f"{topic} {event.index} {event.id} {event.data.decode()} "
                        f"{event.deliveries}\n"
                    )
                    out.flush()
                    events.ack(event)
        except SkerryError as error:
            log.warning("%s: begins anew: %s: %s", topic, type(error).__name__, error)
        await asyncio.sleep(0.3)


async def main(spec: dict[str, Any]) -> None:
    """Run the subscriptions that `spec` describes."""
    with Path(spec["out"]).open("a") as out:
        tasks = [asyncio.create_task(follow(spec, topic, out)) for topic in spec["topics"]]
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
