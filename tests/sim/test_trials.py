"""What ships, on simulated engines and a virtual clock; and what becomes of it when a rule is left
out, or when a fault comes at the worst moment.

A failing seed is replayed with `python -m skerry.sim SEED --trace`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from skerry.client.client import Client
from skerry.config import ClientSettings
from skerry.directory.store import PREFIX
from skerry.errors import Conflict, SkerryError
from skerry.fabric.leader import Leader, RenewRequest
from skerry.fabric.losses import Lost
from skerry.log.route import Routes
from skerry.model.control import MoveRequest
from skerry.model.fabric import link_key
from skerry.sim.agent import RESTART
from skerry.sim.faults import Faults
from skerry.sim.loop import Process
from skerry.sim.trial import Trial
from skerry.sim.verdict import KEY

CHUNK = 20
CHUNKS = 6


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the order of sets is part of a trial."""
    return subprocess.run(
        [sys.executable, "-m", "skerry.sim", *arguments],
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


@pytest.mark.parametrize("rule", ["quorum", "kept", "behind", "seal", "asked"])
def test_a_rule_that_is_left_out_is_noticed(rule: str) -> None:
    done = simulate("--seeds", "0:300", "--first", "--without", rule)
    assert "VIOLATION" in done.stdout, done.stdout + done.stderr


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
        self.hurry(1.0)
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


class Behind(Trial):
    """A member is sealed while its engine still has to store what it got: in the end it has more
    than the next home, which is further from the one before. It must not tell of that, nor keep
    it."""

    async def story(self) -> None:
        """See the class."""
        await self.found("abcd", ["b", "c", "d"])
        self.write("p", "b", "quorum")
        await self.until(lambda: len(self.verdict.acked) > 3)
        self.net.ways["b", "c"] = 0.1
        self.agents["d"].lag(0.4)
        self.hurry(1.0)
        await asyncio.sleep(0.8)
        await self.spawn("witness", "a", self._mislead())
        await self.until(lambda: self.verdict.entry.home == "c")
        log = self.net.engines["d"].streams["t~t"]
        await self.until(lambda: log.last > self.verdict.entry.base)
        self.agents["d"].keep_up()
        await self.rest()

    async def _mislead(self) -> None:
        fabric = self.agents["a"].fabric
        assert fabric is not None
        assert fabric.leader is not None
        fabric.leader.observe(Lost("b", "a", "refused"))


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


class Replaced(Trial):
    """A publisher's site is destroyed, and another takes its place under the same name."""

    async def story(self) -> None:
        """See the class."""
        self.net.usual = 0.25  # the directory comes later than clients do
        await self.found("abc", ["c", "a"])
        self.write("p", "b", "quorum")
        await self.until(lambda: len(self.verdict.acked) > 3)
        site = self.agents["b"]
        site.destroy()
        await self.until(lambda: "b" not in self.agents["a"].fabric.links.up)  # type: ignore[union-attr]
        Faults(self).replace("b")
        await self.until(lambda: site.is_open)
        count = len(self.verdict.acked)
        await self.until(lambda: len(self.verdict.acked) > count + 3)
        await self.rest()


def test_a_site_that_is_new_does_not_take_its_clients_topics_for_deleted() -> None:
    outcome = Replaced(1).run()
    told = "\n".join(outcome.trace)
    assert outcome.violation is None, told
    assert "failed" not in told


class Twice(Trial):
    """A home's engine dies again while its agent settles its logs after the first time."""

    async def story(self) -> None:
        """See the class."""
        await self.found("abc", ["b", "c", "a"])
        self.write("p", "a", "quorum")
        await self.until(lambda: len(self.verdict.acked) > 3)
        home = self.agents["b"]
        self.net.set_cut("a", "b", True)  # it will wait to ask whether its directory is the newest
        home.kill_engine()
        await self.until(lambda: home.engine.is_up and not home.engine.is_asleep)
        await asyncio.sleep(0.1)
        home.kill_engine()
        await self.until(lambda: home.restarts == 2)
        assert not home.is_open
        self.net.set_cut("a", "b", False)
        await self.until(lambda: home.is_open, 5.0)
        await self.rest()


class Filled(Trial):
    """The disk of a home is full."""

    async def story(self) -> None:
        """See the class."""
        await self.found("abc", ["b", "c", "a"])
        self.write("p", "a", "quorum")
        await self.until(lambda: len(self.verdict.acked) > 3)
        self.agents["b"].fill()
        await self.until(lambda: self.verdict.entry.home == "c")
        count = len(self.verdict.acked)
        await self.until(lambda: len(self.verdict.acked) > count + 3)
        self.agents["b"].make_room()
        await self.rest()


class FarTail(Trial):
    """A former home, far away, has many events that only it has."""

    async def story(self) -> None:
        """See the class."""
        self.net.usual = 0.25
        await self.join("abc")
        await self.spawn("maker", "a", self.make("a", ["c", "b", "a"], "continue"))
        self.write("p", "c", "home")
        await self.until(lambda: len(self.verdict.acked) > 3)
        pairs = [("c", "a"), ("a", "c"), ("c", "b"), ("b", "c")]
        for pair in pairs:
            self.net.set_cut(*pair, True)
        self.publishers[0].burst = 200
        await self.until(lambda: self.verdict.entry.home != "c")
        self.publishers[0].kill()
        assert self.net.engines["c"].streams["t~t"].last > 200
        for pair in pairs:
            self.net.set_cut(*pair, False)
        streams = self.net.engines["c"].streams
        await self.until(lambda: "r~t" in streams)
        await self.until(lambda: "r~t" not in streams, 20.0)  # one by one it would take 100 s
        await self.rest()


class Flap(Trial):
    """A link ends and is there again while the agent of a replica stands still."""

    async def story(self) -> None:
        """See the class."""
        await self.found("abc", ["a", "b"])
        self.write("p", "c", "quorum")
        await self.until(lambda: len(self.verdict.acked) > 3)
        home, replica = self.agents["a"], self.agents["b"]
        process = replica.process
        assert process is not None
        self.loop.stop_process(process)
        home.kill()
        await asyncio.sleep(0.05)
        home.start()
        await self.until(lambda: "a" in replica.engine.leaves and home.is_open)
        self.loop.cont_process(process)
        count = len(self.verdict.acked)
        await self.until(lambda: len(self.verdict.acked) > count + 3, 8.0)
        await self.rest()


class Early(Trial):
    """An engine is told whom to follow over a link that ends before the peer is heard over it."""

    async def story(self) -> None:
        """See the class."""
        await self.found("abc", ["c", "a", "b"])
        self.write("p", "c", "quorum")
        await self.until(lambda: len(self.verdict.acked) > 3)
        hub, site = self.agents["a"], self.agents["c"]
        process, fabric = hub.process, site.fabric
        assert process is not None
        assert fabric is not None
        directory = site.engine.streams["KV_skerry"]
        before = directory.mirror
        self.loop.stop_process(process)  # its engine answers all the same
        site.kill_engine()
        await self.until(lambda: directory.mirror not in (None, before))
        await self.until(lambda: directory.mirror is not None and directory.mirror.follows)
        assert "a" not in fabric.links.up
        hub.engine.kill()
        await asyncio.sleep(RESTART)
        hub.engine.start()
        self.loop.cont_process(process)
        await self.until(lambda: "a" in fabric.links.up)
        here, there = directory, hub.engine.streams["KV_skerry"]
        await self.until(lambda: here.last >= there.last, 5.0)
        count = len(self.verdict.acked)
        await self.until(lambda: len(self.verdict.acked) > count + 3, 5.0)
        await self.rest()


class Struck(Trial):
    """A site that has just died is struck. Whoever asks for that asks again without an answer, and
    would be served at once then, for the site counts as away. Another one takes its place."""

    async def story(self) -> None:
        """See the class."""
        await self.found("abc", ["a", "b"])
        cut = (("a", "c"), ("c", "a"))
        for pair in cut:
            self.net.set_cut(*pair, True)  # else it is known at once that nobody is there
        self.agents["c"].destroy()
        await self.spawn("operator", "a", self._strike())
        for pair in cut:
            self.net.set_cut(*pair, False)
        self.agents["c"].begin_anew(self.agents["a"].token())
        await asyncio.sleep(5.0)
        await self.until(lambda: "c" in self._links_of("a") and "a" in self._links_of("c"))
        await self.rest()

    async def _strike(self) -> None:
        address = self.agents["a"].address("admin")
        async with Client([address], ClientSettings(timeout=10.0), "admin") as client:
            await client.remove_site("c")

    def _links_of(self, site: str) -> set[str]:
        fabric = self.agents[site].fabric
        return fabric.links.up if fabric is not None else set()


class Alone(Trial):
    """A replica is cut off when its engine starts, for longer than a question is held."""

    async def story(self) -> None:
        """See the class."""
        await self.found("abc", ["a", "b"])
        self.write("p", "c", "quorum")
        await self.until(lambda: len(self.verdict.acked) > 3)
        engine = self.agents["b"].engine
        for peer in "ac":
            self.net.set_cut(peer, "b", True)
            self.net.set_cut("b", peer, True)
        self.agents["b"].kill_engine()
        copy = engine.streams["t~t"]
        await self.until(lambda: copy.mirror is not None and copy.mirror.follows == "nobody")
        await self.until(lambda: copy.mirror is not None and copy.mirror.is_asking, 2.0)
        for peer in "ac":
            self.net.set_cut(peer, "b", False)
            self.net.set_cut("b", peer, False)
        await self.rest()


class Meanwhile(Trial):
    """A topic gets another epoch while a site that is to become a member copies it."""

    async def story(self) -> None:
        """See the class."""
        await self.found("abc", ["b"])
        self.write("p", "a", "quorum")
        await self.until(lambda: len(self.verdict.acked) > 3)
        self.net.set_cut("b", "c", True)
        self.net.set_cut("c", "b", True)
        leader = self._leader()
        request = MoveRequest("t", "b", ["b", "c"])
        work = Process("leader", "a").context().run(self.loop.create_task, leader.move(request))
        await asyncio.sleep(3.0)
        assert not work.done()
        await self.spawn("leader", "a", self._renew())
        self.net.set_cut("b", "c", False)
        self.net.set_cut("c", "b", False)
        await self.until(work.done, 15.0)
        assert work.result().members == ("b", "c")
        await self.rest()

    async def _renew(self) -> None:
        await self._leader().renew(RenewRequest("t", epoch=2))

    def _leader(self) -> Leader:
        fabric = self.agents["a"].fabric
        assert fabric is not None
        assert fabric.leader is not None
        return fabric.leader


class MovedAndLost(Trial):
    """A topic moves, and its new home dies up to 200 ms later: the one before it is no replica yet,
    or has only just become one."""

    async def story(self) -> None:
        """See the class."""
        await self.found("abcd", ["b", "c", "d"])
        self.write("p", "a", "quorum")
        await self.until(lambda: len(self.verdict.acked) > 3)
        for later in range(0, 205, 5):
            self.hurry(1.0)
            target = next(site for site in "bcd" if site != self.verdict.entry.home)
            move = self.spawn("mover", "a", self._move(target))
            await self.until(partial(self._is_home, target))
            await asyncio.sleep(later / 1000)
            self.note(f"{target} dies {later} ms after the move")
            self.agents[target].kill()
            await self.until(partial(self._has, len(self.verdict.acked) + 2), 3.0)
            await self.agents[target].start()
            await move
            await self.until(lambda: all(map(self._counts, "bcd")))
        await self.rest()

    def _is_home(self, site: str) -> bool:
        return self.verdict.entry.home == site

    def _has(self, count: int) -> bool:
        return len(self.verdict.acked) >= count

    def _counts(self, site: str) -> bool:
        fabric, entry = self.agents[site].fabric, self.verdict.entry
        local = fabric.copies.logs.get("t") if fabric is not None else None
        is_joined = local is not None and local.copy.label == entry.epoch
        return is_joined and self._leader().is_there(site)

    def _leader(self) -> Leader:
        fabric = self.agents["a"].fabric
        assert fabric is not None
        assert fabric.leader is not None
        return fabric.leader

    async def _move(self, target: str) -> None:
        address = self.agents["a"].address("admin")
        async with Client([address], ClientSettings(timeout=10.0), "mover") as client:
            with contextlib.suppress(SkerryError):
                await client.move_topic("t", target)


class Outboxes(Trial):
    """The folder of a home is set back; its engine could read an outbox before anybody has told it
    that it is no home any more."""

    async def story(self) -> None:
        """See the class."""
        await self.found("abcd", ["c", "b"])
        self.write("p", "d", "outbox")
        log = self.net.engines["c"].streams["t~t"]
        await self.until(lambda: log.last > 5)
        folder = self.agents["c"].snapshot()
        self.hurry(0.5)
        await asyncio.sleep(0.5)
        self.agents["c"].restore(folder)
        self.verdict.forgive()
        await self.until(lambda: self.verdict.entry.home == "b")
        self.net.set_cut("a", "c", True)
        self.net.set_cut("c", "a", True)
        self.agents["c"].start()
        await asyncio.sleep(3.0)
        self.net.set_cut("a", "c", False)
        self.net.set_cut("c", "a", False)
        await self.rest()


def tell(trial: Trial, home: str, how: str) -> None:
    """Have the leader believe that a link to a home is `refused`, or that it is `heard` again."""
    process, fabric = trial.agents["a"].process, trial.agents["a"].fabric
    assert process is not None
    assert fabric is not None
    assert fabric.leader is not None
    process.context().run(fabric.leader.observe, Lost(home, "a", how))


def cut(trial: Trial, site: str, others: str, is_cut: bool) -> None:
    """Let nothing pass between a site and others, or again."""
    for other in others:
        trial.net.set_cut(site, other, is_cut)
        trial.net.set_cut(other, site, is_cut)


class Overtaken(Trial):
    """A home is replaced twice, each time by a member that has less, and nobody else brings what
    lies between. What it had beyond the first change and what it had beyond the second were
    acknowledged by it alone."""

    later = 0.0
    """Seconds between the two changes: in some of them the site puts its log together."""

    async def story(self) -> None:
        """See the class."""
        await self.found("abcdef", ["b", "c", "d", "e", "f"])
        self.write("p", "a", "home")
        await self.until(lambda: len(self.verdict.acked) > 3)
        self.busy.set()
        for others in ("def", "c"):
            cut(self, "b", others, True)
            await asyncio.sleep(0.1)
        tell(self, "b", "refused")
        await self.until(lambda: self.verdict.entry.home == "c")
        cut(self, "c", "def", True)
        cut(self, "b", "cdef", False)
        await self.until(lambda: any(n.startswith("r~") for n in self.net.engines["b"].streams))
        self.publishers[0].kill()
        await asyncio.sleep(self.later)
        tell(self, "c", "refused")
        cut(self, "c", "abdef", True)
        await self.until(lambda: self.verdict.entry.home in "def")
        self.busy.clear()
        await asyncio.sleep(3.0)
        cut(self, "c", "abdef", False)
        for home in "bc":
            tell(self, home, "heard")
        await self.rest()


class OvertakenLater(Overtaken):
    """The same, some time later."""

    later = 3.0


class Chosen(Trial):
    """A site is chosen, and its folder set back to what it had in that moment. Nobody remembers
    how new it was, for all begin anew."""

    async def story(self) -> None:
        """See the class."""
        await self.found("abc", ["c", "b", "a"])
        self.write("p", "b", "quorum")
        await self.until(lambda: len(self.verdict.acked) > 3)
        self.agents["c"].kill()
        await self.until(lambda: self.verdict.entry.home == "b")
        folder, count = self.agents["b"].snapshot(), len(self.verdict.acked)
        await self.until(lambda: len(self.verdict.acked) > count + 3)
        self.agents["a"].kill()
        self.agents["b"].restore(folder)
        self.verdict.forgive()
        self.publishers[0].burst = 100  # else its replica notices that it has more
        await asyncio.sleep(1.0)
        for site in "cab":
            self.agents[site].start()
        await self.rest()


class Elsewhere(Trial):
    """A copy is told to follow another holder while the first one answers. Their logs are streams
    of other names."""

    async def story(self) -> None:
        """See the class."""
        await self.found("abc", ["c", "b"])
        self.write("p", "b", "home")
        self.read("a")
        await self.until(lambda: len(self.verdict.acked) > 3)
        self.agents["c"].kill()
        await self.until(lambda: self.verdict.entry.home == "b")
        self.agents["c"].start()
        await self.until(lambda: "t~t~~1" in self.net.engines["c"].streams)
        fabric = self.agents["a"].fabric
        assert fabric is not None
        following, local = fabric.copies.following, fabric.copies.logs.of("t")
        await self.until(lambda: "c" in fabric.links.up and local.copy.is_joined)
        ask, told = following._peers.ask, asyncio.Event()

        async def answer(site: str, name: str, *args: Any, **more: Any) -> bytes:
            answer = await ask(site, name, *args, **more)
            if name == "peer.holding" and site == "b" and not told.is_set():
                told.set()
                local.parent = "c"
            return answer

        local.parent = "b"
        following._peers.ask = answer  # type: ignore[method-assign]
        following.relay.again(local.stream)
        await self.until(lambda: told.is_set() and following.relay.reads(local.stream))
        reading = following.relay.reads(local.stream)
        assert reading is not None
        there = self.agents[reading.site].fabric
        assert there is not None
        assert reading.stream == there.copies.logs.of("t").stream
        await self.rest()


class Overtakes(Trial):
    """A client reads where a topic is, and is told of the next home before it has the answer."""

    async def story(self) -> None:
        """See the class."""
        await self.found("abc", ["c", "b", "a"])
        real, is_told = Routes._read, asyncio.Event()

        async def read(routes: Routes, key: str) -> Any:
            found = await real(routes, key)
            if key == KEY.removeprefix(PREFIX) and found is not None and not is_told.is_set():
                is_told.set()
                self.agents["c"].kill()
                await self.until(lambda: self.verdict.entry.epoch == 2)
                await asyncio.sleep(0.5)
            return found

        Routes._read = read  # type: ignore[assignment, method-assign]
        try:
            self.write("p", "b", "quorum")
            await self.until(lambda: len(self.verdict.acked) > 3, 10.0)
        finally:
            Routes._read = real  # type: ignore[method-assign]
        self.agents["c"].start()
        await self.rest()


class Hole(Trial):
    """A copy of a copy: that one was cut off for longer than the home keeps events. The reader is
    told what it missed (`Reader.run` begins anew there), and not led across it."""

    async def story(self) -> None:
        """See the class."""
        for far in ("dc", "cd", "da", "ad"):
            self.net.ways[far[0], far[1]] = 0.05
        await self.found("abcd", ["c", "b"], limit=20)
        self.write("p", "c", "home")
        self.read("d")
        await self.until(lambda: self.readers[0].last > 3)
        fabric = self.agents["d"].fabric
        assert fabric is not None
        assert fabric.copies.logs.of("t").parent == "b"
        for cut in ("bc", "cb"):
            self.net.set_cut(cut[0], cut[1], True)
        await self.until(lambda: "c" not in self.agents["b"].engine.leaves)
        self.publishers[0].burst, count = 50, self.verdict.taken
        await self.until(lambda: self.verdict.taken > count + 50)
        for cut in ("bc", "cb"):
            self.net.set_cut(cut[0], cut[1], False)
        await self.rest()


class Thinned(Trial):
    """A topic keeps the last event of each sub-topic, and its home is replaced after it has taken
    some alone, which took the place of earlier ones. It begins to copy the log anew. Then the next
    home is lost for good, and nobody else has come as far."""

    aside = True
    """Whether it has begun to copy the log anew when that happens."""

    async def story(self) -> None:
        """See the class."""
        await self.found("abcd", ["c", "b", "d"], keep=1)
        self.write("p", "c", "home")
        await self.until(lambda: len(self.verdict.acked) > 40)
        self.agents["d"].lag(1.0)
        self.busy.set()
        await asyncio.sleep(0.2)
        cut(self, "c", "bd", True)
        count = self.verdict.taken
        await self.until(lambda: self.verdict.taken > count + 10)
        tell(self, "c", "refused")
        await self.until(lambda: self.verdict.entry.home == "b")
        self.busy.clear()
        former = self.agents["c"]
        if self.aside:
            cut(self, "c", "bd", False)
            await self.until(lambda: "t~t~~1" in former.engine.streams)
        self.agents["b"].destroy()
        self.verdict.forgive()
        tell(self, "c", "heard")
        await asyncio.sleep(0.5)
        cut(self, "c", "bd", False)
        await self.until(lambda: self.verdict.entry.home == "c", 10.0)
        assert "t~t~~1" not in former.engine.streams
        self.agents["d"].keep_up()
        count = len(self.verdict.acked)
        await self.until(lambda: len(self.verdict.acked) > count + 3)
        Faults(self).replace("b")
        await self.until(lambda: self.agents["b"].is_open)
        await self.rest()


class ThinnedAlone(Thinned):
    """The same before it has heard of the next home."""

    aside = False


class Key(Trial):
    """A link's record is gone for a moment from what the dialing site knows of the directory, and
    with it the key; when it is back, that site cannot write another one."""

    async def story(self) -> None:
        """See the class."""
        await self.found("abc", ["c", "b"])
        self.write("p", "b", "quorum")
        await self.until(lambda: len(self.verdict.acked) > 3)
        fabric = self.agents["b"].fabric
        assert fabric is not None
        record = link_key("b", "c")
        fabric.links._on_record(record, None)
        put, refused = fabric.store.put, asyncio.Event()

        async def refuse(key: str, value: object, **more: Any) -> int:
            if key == record and not refused.is_set():
                refused.set()
                raise Conflict("", "")
            return await put(key, value, **more)

        fabric.store.put = refuse  # type: ignore[method-assign]
        await self.until(refused.is_set)
        await asyncio.sleep(1.0)
        self.agents["b"].kill_engine()
        await self.until(lambda: not self.agents["b"].is_open)
        count = len(self.verdict.acked)
        await self.until(lambda: len(self.verdict.acked) > count + 3, 20.0)
        await self.rest()


@pytest.mark.parametrize(
    ("story", "shows"),
    [
        (Outboxes, "a home reads no outbox before it knows that it is one"),
        (Elsewhere, "a copy reads at its holder what that one has"),
        (Overtaken, "a home that is replaced twice at once brings what it had in order"),
        (Chosen, "a site that was chosen before it began anew asks its members"),
        (OvertakenLater, "what may have to be cut again is not welded"),
        (Overtakes, "what a client is told while it reads counts"),
        (Hole, "a reader is told of events that no copy could get in time"),
        (Thinned, "a former home that copies the log anew leads with what it was"),
        (ThinnedAlone, "a former home that cannot be cut at its fork leads with all that it has"),
        (Key, "a link of which the directory has another key is mended"),
        (PowerCut, "an index that a power cut took is not confirmed for the event that was lost"),
        (LateStore, "a log that is frozen takes nothing that waited to be stored"),
        (Behind, "what a sealed copy stores late counts for nothing"),
        (LateAnswer, "a copy that is given its holder as an epoch begins joins that epoch"),
        (Standstill, "a standstill of ones own does not seem a long way"),
        (Twice, "a home whose engine dies twice opens soon"),
        (Filled, "a home without room is replaced"),
        (FarTail, "what a former home far away has is brought home many at a time"),
        (Flap, "a link that was another one meanwhile is noticed"),
        (Early, "an answer that came over a link which ended is asked for again"),
        (Struck, "a site that takes the place of a dead one stays"),
        (Alone, "an engine that was told of nobody asks again"),
        (MovedAndLost, "a majority goes on when the home that a topic moved to is lost at once"),
        (Meanwhile, "a move whose topic was changed meanwhile begins anew"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_story(story: type[Trial], shows: str) -> None:
    outcome = story(1).run()
    assert outcome.violation is None, "\n".join([shows, *outcome.trace])
