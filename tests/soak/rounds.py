"""`python -m tests.soak.rounds`: how long does a majority stand still?

Three or five members of one topic, level `quorum`, and a hub that is not touched: it decides, and
the loss of the site that decides is another matter. Each round kills a member, starts one, or moves
the home to one, and lets some time pass, often none. A publisher at the hub sends one event after
the other. Measured is the longest time without an acknowledgement *while a quorum was up*: from the
moment that there is one, or the last acknowledgement since, to the next acknowledgement or the
moment that there is none. At the end every acknowledged event must be in the log, once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time

from skerry.errors import OutcomeUnknown, SkerryError
from skerry.model.promotion import write_quorum
from skerry.testing import LocalFabric

PATIENCE = 100.0
"""Seconds after which a stall is ended by starting what is down."""


class Rounds:
    """One run."""

    def __init__(self, seed: int, rounds: int, members: int, payload: int, verbose: bool) -> None:
        self._random = random.Random(seed)
        self._members = list("abcdefg"[:members])
        self._quorum = write_quorum(members)
        self._rounds = rounds
        self._payload = payload
        self._verbose = verbose
        self._up = set(self._members)
        self._since: float | None = time.monotonic()
        """When the wait for an acknowledgement began; None: too few are up to wait."""
        self._worst = 0.0
        self.acknowledged: list[str] = []
        self.gaps: list[float] = []
        self.did: dict[str, int] = {"kill": 0, "start": 0, "move": 0, "refused move": 0}

    async def run(self) -> bool:
        """All rounds; whether every acknowledged event is in the log, once."""
        async with (
            LocalFabric(["hub", *self._members]) as fabric,
            fabric.connect("hub", "admin", timeout=110) as client,
            fabric.connect("hub", "admin", timeout=20) as admin,
        ):
            home, *spread = self._members
            await client.create_topic(
                "t", home=home, replicas=len(spread), spread=spread, ack="quorum"
            )
            task = asyncio.create_task(self._publish(client))
            try:
                for number in range(self._rounds):
                    await self._round(fabric, admin, number)
                    if task.done():
                        task.result()
                for site in sorted(set(self._members) - self._up):
                    await self._start(fabric, site)
                before = len(self.acknowledged)
                while len(self.acknowledged) < before + 10:
                    await asyncio.sleep(0.05)
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            stored = [bytes(e.data).split()[0].decode() async for e in client.read("t")]
        known = set(self.acknowledged)
        kept = [name for name in stored if name in known]
        print(f"{len(known)} acknowledged, {len(stored)} stored", file=sys.stderr)
        return kept == self.acknowledged and len(set(stored)) == len(stored)

    async def _publish(self, client) -> None:  # type: ignore[no-untyped-def]
        number = 0
        filling = " " + "x" * self._payload
        while True:
            with contextlib.suppress(OutcomeUnknown):
                await client.publish("t", f"{number}{filling}")
                self.acknowledged.append(str(number))
                self._note()
            number += 1
            await asyncio.sleep(0.002)

    def _note(self, begins: bool = True) -> None:
        """The wait for an acknowledgement is over; another begins, if a quorum is up."""
        now = time.monotonic()
        if self._since is not None:
            self._worst = max(self._worst, now - self._since)
        self._since = now if begins and len(self._up) >= self._quorum else None

    async def _round(self, fabric: LocalFabric, admin, number: int) -> None:  # type: ignore[no-untyped-def]
        draw = self._random
        self._worst = 0.0
        down = sorted(set(self._members) - self._up)
        kills = 3 if len(self._up) > 1 else 0
        what = draw.choice(["move"] * 2 + ["kill"] * kills + ["start"] * 2 * len(down))
        site = draw.choice(down if what == "start" else sorted(self._up))
        wait = draw.choice([0.0, 0.0, draw.uniform(0, 0.5), draw.uniform(0, 4.0)])
        began = len(self.acknowledged)
        if what == "kill":
            self._up.discard(site)
            if len(self._up) < self._quorum:
                self._note(begins=False)
            await fabric.crash(site)
        elif what == "start":
            await self._start(fabric, site)
        else:
            try:
                await admin.move_topic("t", site)
            except SkerryError as error:
                what = "refused move"
                if self._verbose:
                    print(f"  {error.what}", file=sys.stderr)
        self.did[what] += 1
        await asyncio.sleep(wait)
        waited = time.monotonic()
        while self._since is not None and self._waiting() > 5.0:
            if time.monotonic() - waited > PATIENCE:
                break
            await asyncio.sleep(0.1)
        if self._since is not None:
            self._worst = max(self._worst, self._waiting())
        self.gaps.append(self._worst)
        if self._verbose or self._worst > 5.0:
            print(
                f"round {number}: {what} {site}, {wait:.2f} s, up {sorted(self._up)}: "
                f"{len(self.acknowledged) - began} acknowledged, worst {self._worst:.2f} s",
                file=sys.stderr,
            )

    def _waiting(self) -> float:
        return 0.0 if self._since is None else time.monotonic() - self._since

    async def _start(self, fabric: LocalFabric, site: str) -> None:
        await fabric.start(site)
        self._up.add(site)
        if self._since is None and len(self._up) >= self._quorum:
            self._since = time.monotonic()


def main() -> int:
    """Read the command line, run, tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.rounds", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--members", type=int, default=3, help="members of the topic, 3 to 7")
    parser.add_argument("--payload", type=int, default=100, help="bytes of each event")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    rounds = Rounds(given.seed, given.rounds, given.members, given.payload, given.verbose)
    is_right = asyncio.run(rounds.run())
    gaps = sorted(rounds.gaps)
    result = {
        "seed": given.seed,
        "members": given.members,
        "rounds": len(gaps),
        "did": rounds.did,
        "acknowledged": len(rounds.acknowledged),
        "complete": is_right,
        "seconds without an acknowledgement while a quorum was up": {
            f"p{p}": round(gaps[min(len(gaps) - 1, len(gaps) * p // 100)], 3)
            for p in (50, 90, 95, 99)
        }
        | {"most": round(gaps[-1], 3)},
        "above 5 s": sum(gap > 5.0 for gap in gaps),
        "above 1 s": sum(gap > 1.0 for gap in gaps),
    }
    print(json.dumps(result, indent=2))
    return 0 if is_right and gaps[-1] <= 5.0 else 1


if __name__ == "__main__":
    sys.exit(main())
