"""`python -m skerry.sim.rules`: replay one schedule, or run many."""

from __future__ import annotations

import argparse
import sys
import time

from skerry.sim.rules.schedule import Outcome, simulate
from skerry.sim.rules.world import Driver


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0: no invariant was violated; 1: one was; 2: the arguments make no sense."""
    rules = list(Driver.__dataclass_fields__)
    parser = argparse.ArgumentParser(prog="python -m skerry.sim.rules", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, help="the schedule to run")
    parser.add_argument("--seeds", metavar="FROM:TO", help="run all schedules from FROM below TO")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    parser.add_argument(
        "--without", metavar="RULE", action="append", default=[], choices=rules,
        help=f"leave out a rule of the driver: {', '.join(rules)}",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    driver = Driver(**dict.fromkeys(options.without, False))
    if options.seeds:
        first, _, end = options.seeds.partition(":")
        return campaign(int(first), int(end), driver)
    if options.seed is None:
        parser.error("give a SEED, or --seeds FROM:TO")
    outcome = simulate(options.seed, driver, trace=options.trace)
    for line in outcome.trace or ():
        print(line)
    print(describe(outcome))
    return int(outcome.violation is not None)


def describe(outcome: Outcome) -> str:
    """One line on a schedule."""
    result = f"VIOLATION {outcome.violation}" if outcome.violation else "ok"
    return (
        f"seed {outcome.seed}: {result} ({outcome.epochs} epochs, {outcome.elections} other homes, "
        f"{outcome.moves} moves, {outcome.salvaged} salvaged, {outcome.acknowledged} acknowledged, "
        f"{outcome.ended} ms)"
    )


def campaign(first: int, end: int, driver: Driver) -> int:
    """Run many schedules; name those that fail."""
    began = time.perf_counter()
    failed: list[int] = []
    for seed in range(first, end):
        outcome = simulate(seed, driver)
        if outcome.violation:
            failed.append(seed)
            print("\r" + describe(outcome), flush=True)
        if seed % 50 == 49 or seed == end - 1:
            done = seed + 1 - first
            each = (time.perf_counter() - began) / done * 1000
            print(f"\r{done} of {end - first}, {len(failed)} failed, {each:.1f} ms each", end="",
                  file=sys.stderr, flush=True)  # fmt: skip
    print(file=sys.stderr)
    if failed:
        print("failing seeds:", *failed)
        print(f"What happened in the first: python -m skerry.sim.rules {failed[0]} --trace")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
