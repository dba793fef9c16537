"""A site of a fabric in a process of its own, until SIGTERM: `python -m bench.site <settings>`."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import msgspec
import uvloop

from skerry.config import SiteSettings
from skerry.engine.binary import find_binary
from skerry.engine.folder import Folder
from skerry.fabric.join import begin
from skerry.site import Site

READY = "ready"


class Spec(msgspec.Struct):
    """What to run."""

    site: str
    data: str
    host: str
    token: str | None
    """To join with; None: this site begins the fabric."""
    idle: bool = False
    """Whether it takes its machine, which it shares with all others, for one that is idle."""


async def main(spec: Spec) -> None:
    """Run the site."""
    settings = SiteSettings(
        site=spec.site,
        data=Path(spec.data),
        host=spec.host,
        port=0,
        link_port=0,
        tier="edge" if spec.token else "hub",
        insecure=True,
    )
    if spec.token is None:
        folder = Folder.open(settings.data, settings.site, find_binary()[1])
        try:
            begin(folder, "bench")
        finally:
            folder.close()
    if spec.idle:
        from skerry.placement.gauge import Gauge, Reading

        reading = Reading((4.0, 8e9, 1e9, 1e12, float("inf")), (0.1, 1e8, 0.0, 1e9, 0.0))
        Gauge.read = lambda *_: reading  # type: ignore[method-assign]
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Site(settings, join=spec.token) as site:
        assert site.fabric is not None
        # As if it had run for two minutes. Before, publishers ask a new home which of their events
        # it has, as its engine may have forgotten ids; ours was never down, and knows them all.
        site.fabric.copies.young_until = 0.0
        print(READY, flush=True)
        await stop.wait()


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=Spec)))
