"""What ships, on simulated engines and a virtual clock; and what becomes of it when a rule is left
out, or when a fault comes at the worst moment.

A failing seed is replayed with `python -m skerry.sim.shipped SEED --trace`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from skerry.fabric.leader import RenewRequest
from skerry.sim.controls import CONTROLS
from skerry.sim.trial import Trial

CHUNK = 8
CHUNKS = 5
BOUND = 200
"""Trials within which a rule that is left out must show; the rarest does in one of twenty."""


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the order of sets is part of a trial."""
    return subprocess.run(
        [sys.executable, "-m", "skerry.sim.shipped", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )


@pytest.mark.parametrize("first", range(0, CHUNK * CHUNKS, CHUNK))
def test_no_trial_violates_a_promise(first: int) -> None:
    done = simulate("--seeds", f"{first}:{first + CHUNK}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_same_seed_gives_the_same_trace() -> None:
    one, two = (simulate("9", "--trace").stdout for _ in range(2))
    assert len(one.splitlines()) > 100
    assert one == two


@pytest.mark.parametrize("rule", ["quorum", "behind", "kept", "seal"])
def test_a_rule_that_is_left_out_is_noticed(rule: str) -> None:
    assert rule in CONTROLS
    done = simulate("--without", rule, "--first", "--seeds", f"0:{BOUND}")
    assert done.returncode == 1
    assert "VIOLATION" in done.stdout


class PowerCut(Trial):
    """A home loses, with its power, the one event that it has acknowledged and no member has."""

    async def story(self) -> None:
        """See the class."""
        await self.found("abc", ["c", "b", "a"])
        home = self.agents["c"]
        self.write("p", "b", "quorum")
        log = home.engine.streams["t~t"]
        await self.until(lambda: self.publishers[0].stored)
        assert not any(self.verdict.has(site, 1, b"p:1") for site in "ab")
        home.kill(power=True)
        log.lose(log.last)
        self.verdict.forgive()
        await self.until(lambda: self.agents["a"].fabric.links.up == {"b"})  # type: ignore[union-attr]
        home.start()
        await self.until(lambda: len(self.verdict.acked) > 3)
        await self.rest()


def test_an_index_that_a_power_cut_took_is_not_confirmed_for_the_event_that_was_lost() -> None:
    outcome = PowerCut(1).run()
    assert outcome.violation is None, "\n".join(outcome.trace)


class LateStore(Trial):
    """A home is frozen while its engine still has to store what it took."""

    last = 0
    """Where the home says that it ends."""

    async def story(self) -> None:
        """See the class."""
        await self.found("abc", ["c", "b", "a"])
        self.write("p", "b", "home")
        await self.until(lambda: len(self.verdict.acked) > 3)
        home = self.agents["c"]
        home.engine.lag = 0.4
        self.busy_until = self.loop.time() + 1.0
        await asyncio.sleep(1.0)
        await self.spawn("mover", "c", self._freeze())
        log = home.engine.streams["t~t"]
        await asyncio.sleep(1.0)
        assert log.last > 20
        assert log.last == self.last
        await self.rest()

    async def _freeze(self) -> None:
        fabric = self.agents["c"].fabric
        assert fabric is not None
        self.last = await fabric.copies.freeze("t", 1, lease=5.0)


def test_a_log_that_is_frozen_takes_nothing_that_waited_to_be_stored() -> None:
    outcome = LateStore(1).run()
    assert outcome.violation is None, "\n".join(outcome.trace)


class LateAnswer(Trial):
    """A topic gets another epoch while the engine of a member waits for whom to follow."""

    async def story(self) -> None:
        """See the class."""
        await self.found("abc", ["b", "c", "a"])
        self.write("p", "a", "quorum")
        await self.until(lambda: len(self.verdict.acked) > 3)
        copy, home = self.agents["c"], self.net.engines["b"]
        self.net.ways["b", "c"] = self.net.ways["c", "b"] = 0.3
        copy.kill_engine()
        log = home.streams["t~t"]
        before = set(log.consumers)
        await self.until(lambda: set(log.consumers) - before)  # its answer is under way
        await self.spawn("leader", "a", self._renew())
        await self.until(lambda: len(self.verdict.entries) == 2)
        await self.rest()

    async def _renew(self) -> None:
        fabric = self.agents["a"].fabric
        assert fabric is not None
        assert fabric.leader is not None
        await fabric.leader.renew(RenewRequest("t", epoch=2))


def test_a_copy_that_is_given_its_holder_as_an_epoch_begins_joins_that_epoch() -> None:
    outcome = LateAnswer(1).run()
    assert outcome.violation is None, "\n".join(outcome.trace)


class Standstill(Trial):
    """An agent stands still for a while, and so do the heartbeats that wait for it."""

    async def story(self) -> None:
        """See the class."""
        await self.found("abc", ["b", "c", "a"])
        self.write("p", "a", "quorum")
        await self.until(lambda: len(self.verdict.acked) > 3)
        agent = self.agents["c"]
        process, fabric = agent.process, agent.fabric
        assert process is not None
        assert fabric is not None
        before = fabric.links.silence("a")
        self.loop.stop_process(process)
        await asyncio.sleep(5.0)
        self.loop.cont_process(process)
        await asyncio.sleep(0.5)
        assert "a" in fabric.links.up
        assert fabric.links.silence("a") == before
        await self.rest()


def test_a_standstill_of_ones_own_does_not_seem_a_long_way() -> None:
    outcome = Standstill(1).run()
    assert outcome.violation is None, "\n".join(outcome.trace)
