"""`python -m tests.soak.rounds`: how long does a majority stand still?

Three or five members of one topic, level `quorum`, and a hub that is not touched: it decides, and
the loss of the site that decides is another matter. Each round kills a member, starts one, or moves
the home to one, and lets some time pass, often none. A publisher at the hub sends one event after
the other. Measured is the longest time without an acknowledgement *while a quorum was up*: from the
moment that there is one, or the last acknowledgement since, to the next acknowledgement or the
moment that there is none. At the end every acknowledged event must be in the log, once.

With `--chase` each round moves the home and kills the new one up to 200 ms later, in steps of 5 ms:
the one before it is no replica yet, or has only just become one.
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
from skerry.fabric.fabric import Fabric
from skerry.model.fabric import TopicEntry
from skerry.model.promotion import write_quorum
from skerry.testing import LocalFabric

PATIENCE = 100.0
"""Seconds after which a stall is ended by starting what is down."""
CHASED = range(0, 205, 5)
"""Milliseconds between a move and the end of the new home."""


class Rounds:
    """One run."""

    def __init__(
        self, seed: int, rounds: int, members: int, payload: int, verbose: bool, chase: bool
    ) -> None:
        self._random = random.Random(seed)
        self._next = self._chase if chase else self._round
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
                    await self._next(fabric, admin, number)
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
        await self._end_round(f"{number}: {what} {site}, {wait:.2f} s", began)

    async def _chase(self, fabric: LocalFabric, admin, number: int) -> None:  # type: ignore[no-untyped-def]
        """Move the home, and kill the new one soon after."""
        self._worst = 0.0
        began, later = len(self.acknowledged), CHASED[number % len(CHASED)]
        target = self._random.choice(sorted(self._up - {_entry(fabric).home}))
        move = asyncio.create_task(admin.move_topic("t", target))
        while _entry(fabric).home != target and not move.done():
            await asyncio.sleep(0.001)
        await asyncio.sleep(later / 1000)
        self._up.discard(target)
        await fabric.crash(target)
        self.did["kill"] += 1
        try:
            await move
            self.did["move"] += 1
        except SkerryError:
            self.did["refused move"] += 1
        before, waited = len(self.acknowledged), time.monotonic()
        while len(self.acknowledged) < before + 2 and time.monotonic() - waited < PATIENCE:
            await asyncio.sleep(0.01)
        await self._start(fabric, target)
        async with asyncio.timeout(PATIENCE):
            while not all(_counts(fabric, site) for site in self._members):
                await asyncio.sleep(0.01)
        await self._end_round(f"{number}: move to {target}, dead {later} ms later", began)

    async def _end_round(self, what: str, began: int) -> None:
        """Wait until the round's stall is over, if there is one, and write it down."""
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
                f"round {what}, up {sorted(self._up)}: "
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


def _part(fabric: LocalFabric, site: str) -> Fabric:
    part = fabric.agent(site).fabric
    assert part is not None
    return part


def _entry(fabric: LocalFabric) -> TopicEntry:
    entry = _part(fabric, "hub").copies.entry("t")
    assert entry is not None
    return entry


def _counts(fabric: LocalFabric, site: str) -> bool:
    """Whether a member has joined the newest epoch, and the hub knows that it is there."""
    leader, local = _part(fabric, "hub").leader, _part(fabric, site).copies.logs.get("t")
    is_joined = local is not None and local.copy.label == _entry(fabric).epoch
    return is_joined and leader is not None and leader.is_there(site)


def main() -> int:
    """Read the command line, run, tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.rounds", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--members", type=int, default=3, help="members of the topic, 3 to 7")
    parser.add_argument("--payload", type=int, default=100, help="bytes of each event")
    parser.add_argument("--chase", action="store_true", help="kill each new home soon after a move")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    rounds = Rounds(
        given.seed, given.rounds, given.members, given.payload, given.verbose, given.chase
    )
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
