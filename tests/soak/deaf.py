"""`python -m tests.soak.deaf`: how long are copies deaf when the engine of their home is killed?

Many topics at a hub, each with a replica at another site. The hub's engine is killed again and
again. As soon as it takes events each topic gets one, and measured is, for each of them, how long
it takes from its acknowledgement by the home until the replica has it. Each change of an engine
makes all copies ask for their origin anew, and one whose question is lost waits.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable

from skerry import Client
from skerry.model.names import segment_of_stream
from skerry.testing import LocalFabric

AT_ONCE = 64
PATIENCE = 100.0
"""Seconds after which a copy counts as deaf for good."""


async def each(names: Iterable[str], work: Callable[[str], Awaitable[None]]) -> None:
    """Do something with all topics, some at a time."""
    left = iter(names)

    async def worker() -> None:
        for name in left:
            await work(name)

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


class Deaf:
    """One run."""

    def __init__(self, topics: int, kills: int) -> None:
        self._names = [f"room/{number}" for number in range(topics)]
        self._kills = kills
        self._acknowledged: dict[str, float] = {}
        self.took: list[float] = []
        """Of each kill, how long the copy waited that waited longest."""

    async def run(self) -> None:
        """All kills."""
        async with (
            LocalFabric(["hub", "farm"]) as fabric,
            fabric.connect("hub", "admin", timeout=PATIENCE) as client,
        ):

            async def make(name: str) -> None:
                await client.create_topic(name, home="hub", replicas=1, spread=["farm"])

            await each(self._names, make)
            for number in range(self._kills + 1):
                if number:  # the first round is without a kill: what the measuring itself takes
                    fabric["hub"].kill_engine()
                took = await self._round(fabric, client, number + 1)
                if number:
                    self.took.append(took)
                print(f"kill {number}: {took:.2f} s", file=sys.stderr)

    async def _round(self, fabric: LocalFabric, client: Client, index: int) -> float:
        part = fabric.agent("farm").fabric
        assert part is not None
        self._acknowledged.clear()

        async def publish(name: str) -> None:
            await client.publish(name, b"x", ack="home")
            self._acknowledged[name] = time.monotonic()

        publishing = asyncio.create_task(each(self._names, publish))
        there: dict[str, float] = {}
        deadline = time.monotonic() + PATIENCE
        while len(there) < len(self._names) and time.monotonic() < deadline:
            infos = await part.copies.streams()
            now = time.monotonic()
            for stream, info in infos.items():
                found = segment_of_stream(stream)
                if found is not None and info["state"]["last_seq"] >= index:
                    there.setdefault(found[0], now)
        await publishing
        ends = [there.get(name, deadline) - told for name, told in self._acknowledged.items()]
        return max(0.0, *ends)


def main() -> int:
    """Read the command line, run, tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.deaf", description=__doc__)
    parser.add_argument("--topics", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=100)
    given = parser.parse_args()
    deaf = Deaf(given.topics, given.kills)
    asyncio.run(deaf.run())
    took = sorted(deaf.took)
    result = {
        "topics": given.topics,
        "kills": len(took),
        "seconds until the last copy had an event": {
            f"p{p}": round(took[min(len(took) - 1, len(took) * p // 100)], 3) for p in (50, 90, 99)
        }
        | {"most": round(took[-1], 3)},
        "above 3 s": sum(one > 3.0 for one in took),
    }
    print(json.dumps(result, indent=2))
    return 0 if took[-1] < PATIENCE else 1


if __name__ == "__main__":
    sys.exit(main())
