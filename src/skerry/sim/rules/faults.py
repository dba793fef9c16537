"""What goes wrong, and what people do meanwhile; all of it drawn from the seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from skerry.sim.rules.process import Process
from skerry.sim.rules.site import Site
from skerry.sim.rules.world import World

ACTIVE = 1000
"""Milliseconds in which faults begin and events are published."""
SIZES = (1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 5)
"""How many members a topic has, each size as often as it stands here: with an even number
reading and writing quorums differ."""


class Faults:
    """Plans a schedule's faults. Until `heal`, each lasts for a while of its own."""

    def __init__(self, world: World, random: Random) -> None:
        self.world = world
        self.random = random
        self.healed = False

    def plan(self) -> None:
        """Spread some faults over the active time."""
        kinds: list[tuple[int, Callable[[], None]]] = [
            (3, self.crash_site),
            (3, self.crash_home),
            (1, self.crash_leader),
            (3, self.crash_publisher),
            (3, self.pause_home),
            (2, self.pause_any),
            (3, self.isolate_home),
            (2, self.isolate_some),
            (2, self.cut_pair),
            (1, self.lag),
            (3, self.blind),
            (4, self.suspect),
            (1, self.jump),
            (3, self.move),
        ]
        calls = [call for _, call in kinds]
        weights = [weight for weight, _ in kinds]
        for call in self.random.choices(calls, weights, k=self.random.choice((3, 6, 12, 20))):
            self.world.clock.after(self.random.randrange(ACTIVE), self._do, call)

    def _do(self, call: Callable[[], None]) -> None:
        self.world.network.note(f"FAULT {call.__name__}")
        call()

    def heal(self) -> None:
        """Undo everything that is undone some time; the lost publishers stay lost."""
        self.healed = True
        self.world.network.note("HEAL")
        self.world.network.heal()
        self.world.store.lag.clear()
        for process in self.world.processes():
            process.resume()
            if process.name not in self.world.publishers:
                process.restart()

    def _for_a_while(self, undo: Callable[[], None], longest: int = 500) -> None:
        self.world.clock.after(20 + self.random.randrange(longest), self._undo, undo)

    def _undo(self, undo: Callable[[], None]) -> None:
        if not self.healed:
            undo()

    def _home(self) -> Site:
        return self.world.sites[self.world.store.entry.home]

    def _crash(self, process: Process) -> None:
        self.world.network.note(f"{process} crashes")
        process.crash()
        self._for_a_while(process.restart)

    def crash_site(self) -> None:
        """Any site; half of the time only for a blink."""
        self._crash(self.random.choice(list(self.world.sites.values())))

    def crash_home(self) -> None:
        """The home, as the store has it."""
        self._crash(self._home())

    def crash_leader(self) -> None:
        """A leader."""
        self._crash(self.random.choice(self.world.leaders))

    def crash_publisher(self) -> None:
        """A publisher, for ever."""
        self.random.choice(list(self.world.publishers.values())).crash()

    def _pause(self, process: Process) -> None:
        self.world.network.note(f"{process} pauses")
        process.pause()
        self._for_a_while(process.resume)

    def pause_home(self) -> None:
        """The home stands still: it is replaced, and then goes on as if nothing were."""
        self._pause(self._home())

    def pause_any(self) -> None:
        """Anything stands still."""
        self._pause(self.random.choice(self.world.processes()))

    def _isolate(self, inside: list[Process]) -> None:
        network = self.world.network
        outside = [process for process in self.world.processes() if process not in inside]
        both = self.random.random() < 0.8
        network.note(f"cut {inside} from {outside}")
        network.cut(inside, outside, both)
        self._for_a_while(lambda: network.mend(inside, outside, both))

    def isolate_home(self) -> None:
        """The home is alone with some publishers, and perhaps a replica."""
        inside: list[Process] = [self._home()]
        others = [*self.world.publishers.values(), *self.world.sites.values()]
        inside += [
            process
            for process in others
            if process not in inside
            and self.random.random() < (0.6 if process.name in self.world.publishers else 0.2)
        ]
        self._isolate(inside)

    def isolate_some(self) -> None:
        """Any part of the fabric is alone."""
        share = self.random.random()
        self._isolate([one for one in self.world.processes() if self.random.random() < share])

    def cut_pair(self) -> None:
        """Two processes do not hear of each other."""
        one, other = self.random.sample(self.world.processes(), 2)
        network = self.world.network
        both = self.random.random() < 0.8
        network.note(f"cut {one} from {other}")
        network.cut([one], [other], both)
        self._for_a_while(lambda: network.mend([one], [other], both))

    def lag(self) -> None:
        """A mirror of the store falls behind."""
        name = self.random.choice(list(self.world.sites))
        lag = self.world.store.lag
        lag[name] = 50 + self.random.randrange(400)
        self._for_a_while(lambda: lag.update({name: 0}))

    def blind(self) -> None:
        """Some see nothing new of the store, and work on with what they know."""
        network, store = self.world.network, self.world.store
        everybody = [*self.world.sites.values(), *self.world.publishers.values()]
        some = [one for one in everybody if self.random.random() < 0.5]
        network.note(f"{some} are blind")
        network.cut([store], some, both=False)
        self._for_a_while(lambda: network.mend([store], some, both=False))

    def suspect(self) -> None:
        """A leader takes the home for lost without a reason; or two do, at once."""
        for leader in self.random.sample(self.world.leaders, self.random.choice((1, 1, 2))):
            if leader.up and not leader.paused:
                leader.suspect()

    def jump(self) -> None:
        """A leader's clock jumps."""
        self.random.choice(self.world.leaders).skew += self.random.choice((-500, 200, 500))

    def move(self) -> None:
        """Somebody wants another home, or other members."""
        leader = self.random.choice(self.world.leaders)
        if not leader.up or leader.paused:
            return
        names = list(self.world.sites)
        members = list(self.world.store.entry.members)
        if self.random.random() < 0.6:
            members = self.random.sample(names, min(self.random.choice(SIZES), len(names)))
        home = self.random.choice(members)
        leader.move(home, tuple(members), self.random.random() < 0.5)
        guests = [name for name in members if name not in self.world.store.entry.members]
        if guests and self.random.random() < 0.8:
            guest = self.world.sites[self.random.choice(guests)]
            self.world.clock.after(self.random.randrange(60), self._blink, guest)

    def _blink(self, site: Site) -> None:
        if site.up and not self.healed:
            site.crash()
            site.restart()
