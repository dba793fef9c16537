"""`python -m tests.live.function_agents`: the campaign of `tests.functions.kills`, with the sites'
own agents in charge of hosts, and the function deployed as a user would."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from typing import Any

import msgspec
import psutil

from skerry.errors import SkerryError
from skerry.functions.assignment import Assignment, Running
from tests.functions.hosts import assignment
from tests.functions.kills import COUNTER, Campaign, Options, Sites


class Agents:
    """Looks on while agents do it."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites

    def hosts(self) -> list[int]:
        """The process ids of the hosts."""
        return [host.pid for host in self._hosts()]

    def workers(self) -> list[int]:
        """The process ids of the workers."""
        found = []
        for host in self._hosts():
            with contextlib.suppress(psutil.Error):
                found += [child.pid for child in host.children()]
        return found

    def running(self) -> list[Running]:
        """Agents tell clients, not us."""
        return []

    async def leave(self, site: str) -> None:
        """A host goes with its agent by itself."""

    def _hosts(self) -> list[psutil.Process]:
        found = []
        for site in self._sites.processes.values():
            if site.agent is None:
                continue
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(site.agent).children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        if "skerry.functions.host" in child.cmdline():
                            found.append(child)
        return found


class AgentCampaign(Campaign):
    """A campaign with real agents."""

    async def _prepare(self) -> Assignment:
        client = self._sites.client("hub")
        await client.create_topic("in", home="farm", replicas=2, ack=self.options.ack)
        await client.create_topic("out", home="lab", replicas=2, ack="quorum")
        count = assignment(self._root / "count.py", COUNTER)
        await client.deploy_function(
            self._root / "count.py",
            topic="in",
            order="key",
            concurrency=self.options.workers,
            retries=20,
        )
        async with asyncio.timeout(60):
            while (await client.function("count")).state != "running":
                await asyncio.sleep(0.1)
        await self._sites.follow("in")
        return count

    @contextlib.asynccontextmanager
    async def _steering(self, count: Assignment) -> Any:
        yield Agents(self._sites)
        client = self._sites.client("hub")
        with contextlib.suppress(SkerryError):
            await client.pause_function("count")  # whoever judges takes the journal over
            async with asyncio.timeout(60):
                while (await client.function("count")).running:
                    await asyncio.sleep(0.1)


def main() -> None:
    """Run it from the command line; the exit code tells whether the promise was kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("seed", "events", "kills"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Options(), name))
    result = asyncio.run(AgentCampaign(Options(**vars(parser.parse_args()))).run())
    print(msgspec.json.format(msgspec.json.encode(result), indent=2).decode())
    sys.exit(0 if result.is_good else 1)


if __name__ == "__main__":
    main()
