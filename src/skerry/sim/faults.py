"""What goes wrong in a trial, and what people do meanwhile.

A plan is drawn from the trial's seed: which faults, and when. Half of them wait for a moment of the
protocol (`MOMENTS`), such as a seal that is asked for, and come a little later, mostly there: what
goes wrong takes two things at once, and seldom two that come at random. For the same reason a trial
has some kinds of faults only, and publishers have more to say before each. What a fault does is
drawn from its own number, so that a plan can be tried again with some left out (`only`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from random import Random
from typing import TYPE_CHECKING, Any

from skerry.client.client import Client
from skerry.config import ClientSettings
from skerry.errors import SkerryError
from skerry.fabric.losses import Lost
from skerry.sim.verdict import TOPIC

if TYPE_CHECKING:
    from skerry.sim.trial import Trial

WHILES = (0.05, 0.5, 2.0, 6.0)
LONG = (6.0, 40.0, 100.0)
"""Seconds that a fault lasts, about; in long trials, longer than any timer of what ships."""
MOMENTS = ("entry", "event", "seal", "settle", "freeze", "reached", "prepare", "holding", "state")
"""A site stores an entry of the topic, or an event; or its agent is asked for this."""
LATER = (0.0, 0.001, 0.01, 0.1)


class Faults:
    """Of one trial."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._random = trial.random
        self._net = trial.net
        self._undo: list[Callable[[], None]] = []
        self._has_lost = False
        self._whiles: tuple[float, ...] = WHILES
        self._waiting: dict[str, list[Callable[[str], None]]] = {}
        """By moment, the faults that come then."""
        self._near = ""
        """Where the moment was that a fault has waited for."""

    def plan(self, active: float, only: Collection[int] | None = None) -> int:
        """Spread some faults over the next seconds; with `only`, do just these. How many."""
        kinds: list[tuple[Callable[[], None], int]] = [
            (self.kill, 3), (self.kill_home, 4), (self.kill_engine, 3), (self.cut_power, 2),
            (self.cut_pair, 2), (self.cut_one_way, 2), (self.isolate, 2), (self.isolate_home, 2),
            (self.slow, 4), (self.stop, 2), (self.lag, 1), (self.move, 4), (self.suspect, 6),
            (self.kill_publisher, 2), (self.kill_reader, 1), (self.be_slow, 4), (self.burst, 2),
            (self.fill, 1), (self.step, 1), (self.destroy, 1), (self.restore, 1),
        ]  # fmt: skip
        if active > max(WHILES):
            self._whiles = LONG
        trial, random = self._trial, self._trial.random
        count = random.choice((2, 4, 6, 9, 14))
        kinds = random.sample(kinds, random.choice((2, 3, 5, 8, len(kinds))))
        moments = random.sample(MOMENTS, random.choice((1, 2, 4)))
        calls, weights = [one for one, _ in kinds], [weight for _, weight in kinds]
        when = 0.0
        for number, call in enumerate(random.choices(calls, weights, k=count)):
            if not when or random.random() < 0.5:
                when = random.random() * active
            else:  # soon after another
                when += random.choice((0.01, 0.1, 0.5)) * random.random()
            moment, later = random.choice((None, random.choice(moments))), random.choice(LATER)
            if only is None or number in only:
                self._after(when, self._begin, number, call, moment, later)
        trial.on_moment = self._on_moment
        return count

    def _begin(
        self, number: int, call: Callable[[], None], moment: str | None, later: float
    ) -> None:
        self._trial.hurry()
        if moment is None:
            self._after(later, self._do, number, call, "")
        else:
            self._waiting.setdefault(moment, []).append(
                lambda site: self._after(later, self._do, number, call, site)
            )

    def _on_moment(self, moment: str, site: str) -> None:
        for fault in self._waiting.pop(moment, ()):
            fault(site)

    def heal(self) -> None:
        """Undo all."""
        while self._undo:
            self._undo.pop()()

    def _do(self, number: int, call: Callable[[], None], near: str) -> None:
        self._random = Random(f"{self._trial.seed}/{number}")
        self._near = near
        call()
        self._trial.hurry()

    def _after(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        def ring() -> None:
            if not self._trial.is_healed:
                call(*args)

        self._trial.loop.call_later(delay, ring, context=self._trial.loop.world)

    def _for_a_while(self, undo: Callable[[], None]) -> None:
        def once() -> None:
            if undo in self._undo:
                self._undo.remove(undo)
                undo()
                self._trial.hurry()

        self._undo.append(undo)
        self._after(self._random.choice(self._whiles) * (0.5 + self._random.random()), once)

    def _note(self, text: str) -> None:
        self._trial.note(f"FAULT {text}")

    def _site(self) -> str:
        if self._near and self._random.random() < 0.6:
            return self._near
        return self._random.choice(list(self._trial.agents))

    def _home(self) -> str:
        return self._trial.verdict.entry.home

    # Sites

    def _kill(self, site: str, power: bool = False) -> None:
        agent = self._trial.agents[site]
        if agent.process is None:
            return
        self._note(f"kill {site}{' by a power cut' if power else ''}")
        agent.kill(power=power)
        self._for_a_while(lambda: self._start(site))

    def _start(self, site: str) -> None:
        agent = self._trial.agents[site]
        if agent.process is None and not agent.is_destroyed:
            self._trial.note(f"start {site}")
            agent.start()

    def kill(self) -> None:
        """Any site."""
        self._kill(self._site())

    def kill_home(self) -> None:
        """The home."""
        self._kill(self._home())

    def kill_engine(self) -> None:
        """An engine alone; its agent starts it anew."""
        site = self._site()
        self._note(f"kill the engine of {site}")
        self._trial.agents[site].kill_engine()

    def stop(self) -> None:
        """An agent stands still."""
        agent = self._trial.agents[self._site()]
        process = agent.process
        if process is None or process.missed is not None:
            return
        self._note(f"stop the agent of {agent.site}")
        self._trial.loop.stop_process(process)
        self._for_a_while(lambda: self._trial.loop.cont_process(process))

    def step(self) -> None:
        """A machine's clock is set."""
        site, seconds = self._site(), self._random.choice((-30.0, -1.0, 1.0, 30.0))
        self._note(f"the clock of {site} is set by {seconds} s")
        skews = self._trial.loop.skews
        skews[site] = skews.get(site, 0.0) + seconds

    # Disks. A site that has lost what it had stands for one that is lost: once in a trial, and not
    # the coordination site.

    def _loser(self) -> str | None:
        site = self._site()
        if self._has_lost or site == "a" or self._trial.agents[site].process is None:
            return None
        self._has_lost = True
        return site

    def cut_power(self) -> None:
        """The log's newest stream loses some messages. (The outbox does not: see guarantees.md.)"""
        if (site := self._loser()) is None:
            return
        self._kill(site, power=True)
        streams = self._net.engines[site].streams
        newest = max((name for name in streams if name.startswith("t~")), default="")
        count = self._random.choice((0, 1, 2, 5))
        if newest and count:
            self._trial.note(f"{newest} at {site} loses {count} of {streams[newest].last}")
            streams[newest].lose(count)
        self._trial.verdict.forgive()

    def restore(self) -> None:
        """A folder is copied; later the site is ended, and the copy put in its place. Not before
        another site was told that its logs have grown: what is set back sooner is not noticed
        (guarantees.md; scenarios are for how others come to know)."""
        if (site := self._loser()) is None:
            return
        self._has_lost = False  # not yet
        agent = self._trial.agents[site]
        folder = agent.snapshot()
        others = [one for one in self._trial.agents.values() if one is not agent]
        self._note(f"the folder of {site} is copied")

        def put_back() -> None:
            if self._has_lost:
                return
            if all(one.knows_of(site) <= folder[2].number for one in others):
                self._after(0.1, put_back)
                return
            self._has_lost = True
            self._note(f"the folder of {site} is set back")
            agent.restore(folder)
            self._trial.verdict.forgive()
            self._for_a_while(lambda: self._start(site))

        self._after(self._random.choice((0.1, 0.5, 2.0, 8.0)), put_back)

    def destroy(self) -> None:
        """A site is gone for good; some time later, another takes its place."""
        if (site := self._loser()) is None:
            return
        self._note(f"{site} is destroyed")
        self._trial.agents[site].destroy()
        self._trial.verdict.forgive()
        self._for_a_while(lambda: self.replace(site))

    def replace(self, site: str) -> None:
        """Have somebody strike a destroyed site from the fabric, and another join in its place."""
        trial = self._trial

        async def replace() -> None:
            address = trial.agents["a"].address("admin")
            while True:
                try:
                    async with Client([address], ClientSettings(timeout=10.0), "admin") as client:
                        if site in [one.site for one in await client.sites()]:
                            await client.drain_site(site)
                            await client.remove_site(site)
                        break
                except SkerryError as error:
                    trial.note(f"{site} is not removed yet: {error.what}")
                await trial.pause(5.0)
            trial.note(f"{site} is removed")
            trial.agents[site].begin_anew(trial.agents["a"].token())

        trial.spawn("operator", "a", replace())

    def fill(self) -> None:
        """A disk is full; once there is room, the agent starts the engine anew."""
        site = self._site()
        agent = self._trial.agents[site]
        if agent.engine.is_full:
            return
        self._note(f"the disk of {site} is full")
        agent.fill()

        def make_room() -> None:
            self._trial.note(f"the disk of {site} has room")
            agent.make_room()

        self._for_a_while(make_room)

    def lag(self) -> None:
        """An engine stores late; its disk is slow, or hangs."""
        agent = self._trial.agents[self._site()]
        seconds = self._random.choice((0.01, 0.1, 0.4, 3.0))
        self._note(f"{agent.site} stores {seconds} s late")
        agent.lag(seconds)
        self._for_a_while(agent.keep_up)

    def be_slow(self) -> None:
        """An engine answers its clients late."""
        engine = self._net.engines[self._site()]
        engine.slowness = self._random.choice((0.002, 0.01, 0.05))
        self._note(f"{engine.site} answers {engine.slowness} s late")
        self._for_a_while(lambda: setattr(engine, "slowness", 0.0))

    # Ways

    def _cut(self, pairs: list[tuple[str, str]]) -> None:
        self._note(f"cut {', '.join(f'{a}→{b}' for a, b in pairs)}")
        for pair in pairs:
            self._net.set_cut(*pair, True)

        def mend() -> None:
            self._trial.note(f"mend {', '.join(f'{a}→{b}' for a, b in pairs)}")
            for pair in pairs:
                self._net.set_cut(*pair, False)

        self._for_a_while(mend)

    def cut_pair(self) -> None:
        """Two sites, both ways."""
        a, b = self._random.sample(list(self._trial.agents), 2)
        self._cut([(a, b), (b, a)])

    def cut_one_way(self) -> None:
        """Two sites, one way."""
        a, b = self._random.sample(list(self._trial.agents), 2)
        self._cut([(a, b)])

    def _isolate(self, site: str) -> None:
        others = [other for other in self._trial.agents if other != site]
        self._cut([pair for other in others for pair in ((site, other), (other, site))])

    def isolate(self) -> None:
        """Any site from all."""
        self._isolate(self._site())

    def isolate_home(self) -> None:
        """The home from all."""
        self._isolate(self._home())

    def slow(self) -> None:
        """A way takes long."""
        a, b = self._random.sample(list(self._trial.agents), 2)
        way = self._random.choice((0.05, 0.2, 0.5))
        self._note(f"{a} to {b} takes {way} s")
        self._net.ways[a, b] = self._net.ways[b, a] = way

        def mend() -> None:
            self._net.ways.pop((a, b), None)
            self._net.ways.pop((b, a), None)

        self._for_a_while(mend)

    # People and programs

    def suspect(self) -> None:
        """The leader is told that nobody listens at the home, and later that somebody does."""
        home, leading = self._home(), self._trial.agents["a"]
        if home == "a" or leading.fabric is None or leading.process is None:
            return
        self._note(f"the leader is told that {home} is lost")

        def tell(how: str) -> None:
            if leading.fabric is not None and leading.process is not None:
                leader = leading.fabric.leader
                assert leader is not None
                leading.process.context().run(leader.observe, Lost(home, "a", how))

        def hear() -> None:
            self._trial.misled -= 1
            tell("heard")

        self._trial.misled += 1
        tell("refused")
        self._for_a_while(hear)

    def kill_publisher(self) -> None:
        """A publisher goes, with what it has not sent yet."""
        running = [one for one in self._trial.publishers if not one.is_done]
        if len(running) > 1:
            self._note(f"kill publisher {running[0].name}")
            running[0].kill()

    def kill_reader(self) -> None:
        """A reader dies, and another is started."""
        for reader in self._trial.readers:
            self._note(f"kill the reader at {reader.site}")
            reader.kill()
            reader.start()
        for durable in self._trial.durables:
            durable.kill()
            if self._random.random() < 0.5:
                durable.site = self._random.choice(list(self._trial.agents))
            self._note(f"kill the durable reader, and start it at {durable.site}")
            durable.start()

    def burst(self) -> None:
        """A publisher has much to say."""
        for publisher in self._trial.publishers:
            publisher.burst = self._random.choice((0, 100, 400))

    def move(self) -> None:
        """Somebody moves the topic."""
        to, asked = self._site(), self._site()
        others = [site for site in self._trial.agents if site != to]
        replicas = None
        if self._random.random() < 0.3:
            replicas = self._random.sample(others, self._random.choice((1, 2, 2)))
        self._note(f"move to {to}, replicas {replicas}, asked at {asked}")

        async def move() -> None:
            address = self._trial.agents[asked].address("admin")
            with contextlib.suppress(SkerryError):
                async with Client([address], ClientSettings(timeout=10.0), "mover") as client:
                    await client.move_topic(TOPIC, to, replicas=replicas)
                    self._trial.note(f"moved to {to}")

        self._trial.spawn("mover", asked, move())
