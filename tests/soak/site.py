"""A site in a process of its own, until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from skerry.config import SiteSettings
from skerry.engine.binary import find_binary
from skerry.engine.folder import Folder
from skerry.errors import FolderLocked, PortTaken
from skerry.fabric.join import Membership, begin
from skerry.site import Site
from tests.soak.process import RETRY


async def main(spec: dict[str, Any]) -> None:
    """Run the site that `spec` describes."""
    settings = SiteSettings(
        site=spec["site"],
        data=Path(spec["data"]),
        host=spec["host"],
        advertise=spec["host"],
        port=spec["port"],
        link_port=spec["link_port"],
        tier=spec["tier"],
        insecure=True,
    )
    if spec["begins"] and (not settings.data.exists() or Membership.load(settings.data) is None):
        folder = Folder.open(settings.data, settings.site, find_binary()[1])
        try:
            begin(folder, "soak")
        finally:
            folder.close()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Site(settings, join=spec["token"]):
        logging.getLogger("soak").info("ready")
        Path(spec["ready"]).write_text(str(os.getpid()))
        await stop.wait()
        logging.getLogger("soak").info("stopping")


if __name__ == "__main__":
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s %(message)s"
    )
    logging.getLogger("soak").info("process %d", os.getpid())
    try:
        asyncio.run(main(msgspec.json.decode(sys.argv[1])))
    except (FolderLocked, PortTaken) as error:
        logging.getLogger("soak").warning("%s", error)
        sys.exit(RETRY)
