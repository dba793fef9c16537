"""One schedule: a fabric, its publishers and its faults, all drawn from one seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from skerry.model.fabric import Step, TopicEntry
from skerry.model.topic import Ack, TopicSettings
from skerry.sim.rules.clock import Clock
from skerry.sim.rules.faults import ACTIVE, SIZES, Faults
from skerry.sim.rules.leader import Leader
from skerry.sim.rules.network import Network, Weather
from skerry.sim.rules.oracle import Oracle, Violation
from skerry.sim.rules.publisher import Publisher
from skerry.sim.rules.site import Site
from skerry.sim.rules.store import Store
from skerry.sim.rules.world import Driver, World

QUIET = 6000
"""Milliseconds after the last fault in which the fabric must have come to rest."""
LOOK = 60
"""Milliseconds between two looks whether it has."""


@dataclass(frozen=True)
class Outcome:
    """What a schedule came to."""

    seed: int
    violation: str | None
    trace: list[str] | None
    epochs: int
    elections: int
    moves: int
    salvaged: int
    committed: int
    acknowledged: int
    ended: int


def simulate(seed: int, driver: Driver | None = None, trace: bool = False) -> Outcome:
    """Run a schedule to its end or to the first violation. The same seed gives the same trace."""
    lines: list[str] | None = [] if trace else None
    world = build(seed, driver or Driver(), lines)
    faults = Faults(world, world.random)
    faults.plan()
    violation = None
    try:
        for process in world.processes():
            process.start()
        world.clock.run(ACTIVE + 200)
        faults.heal()
        while world.clock.now < ACTIVE + QUIET and world.oracle.unsettled():
            world.clock.run(world.clock.now + LOOK)
        world.oracle.finish()
    except Violation as error:
        violation = str(error)
    oracle = world.oracle
    return Outcome(
        seed=seed,
        violation=violation,
        trace=lines,
        epochs=world.store.entry.epoch,
        elections=oracle.elections,
        moves=oracle.moves,
        salvaged=oracle.salvaged,
        committed=len(oracle.committed),
        acknowledged=len(oracle.level),
        ended=world.clock.now,
    )


def build(seed: int, driver: Driver, trace: list[str] | None) -> World:
    """A fabric with one topic of 1 to 5 members, perhaps spare sites, and two leaders."""
    clock = Clock()
    random = Random(seed)
    weather = Weather(
        usual=random.choice((4, 12, 30)),
        slow=random.choice((0.0, 0.02, 0.1)),
        lost=random.choice((0.0, 0.0, 0.03, 0.15)),
        doubled=random.choice((0.0, 0.05)),
    )
    network = Network(clock, random, weather, trace)
    world = World(random, clock, network, driver)
    world.lineage_kept = random.choice((64, 64, 2, 1))
    world.rolls = seed % 4 != 2
    world.thins = seed % 4 == 3
    members = tuple("ABCDE"[: random.choice(SIZES)])
    names = "ABCDEFG"[: len(members) + random.choice((0, 0, 1, 2))]
    entry = TopicEntry(
        name="t",
        home=members[0],
        epoch=1,
        lineage=(Step(1, 0),),
        members=members,
        settings=TopicSettings(),
    )
    world.store = Store(world, entry)
    world.oracle = Oracle(world, entry)
    world.sites = {name: Site(name, world) for name in names}
    world.leaders = [Leader("L1", world), Leader("L2", world)]
    for number in range(random.randint(1, 3)):
        level: Ack = "home" if random.random() < 0.5 else "quorum"
        publisher = Publisher("pqr"[number], world, level, random.randint(2, 8))
        world.publishers[publisher.name] = publisher
    return world
