"""`python -m skerry.sim.shipped`: run one trial of what ships, or many."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time

from skerry.sim.controls import CONTROLS, without
from skerry.sim.trial import Outcome, Trial

SHOWN = 5
"""Trials of many that failed, of which it is told how."""


def main() -> int:
    """Exit code 0: nothing was violated; 1: something was."""
    parser = argparse.ArgumentParser(prog="python -m skerry.sim.shipped", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, help="the trial to run")
    parser.add_argument("--seeds", metavar="FROM:TO", help="run all trials from FROM below TO")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    parser.add_argument("--first", action="store_true", help="stop at the first that fails")
    parser.add_argument(
        "--without", metavar="RULE", choices=CONTROLS,
        help=f"leave out a rule of what ships: {', '.join(CONTROLS)}",
    )  # fmt: skip
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a trial
        arguments = [sys.executable, "-m", "skerry.sim.shipped", *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606
    if options.seed is None and not options.seeds:
        parser.error("give a SEED, or --seeds FROM:TO")
    with without(options.without) if options.without else contextlib.nullcontext():
        if options.seeds:
            first, _, end = options.seeds.partition(":")
            return campaign(int(first), int(end), options.first)
        outcome = Trial(options.seed, options.trace).run()
    if options.trace or outcome.violation:
        print(*outcome.trace, sep="\n")
    print(describe(outcome))
    return int(outcome.violation is not None)


def describe(outcome: Outcome) -> str:
    """One line on a trial."""
    result = f"VIOLATION {outcome.violation}" if outcome.violation else "ok"
    return (
        f"seed {outcome.seed}: {result} ({outcome.epochs} epochs, {outcome.acked} acknowledged, "
        f"{outcome.took:.1f} s, at rest after {outcome.settled:.1f} s)"
    )


def campaign(first: int, end: int, stops: bool) -> int:
    """Run many trials; name those that fail. With `stops`, up to the first of them."""
    began = time.perf_counter()
    failed: list[int] = []
    seconds = 0.0
    for seed in range(first, end):
        outcome = Trial(seed).run()
        seconds += outcome.took
        if outcome.violation:
            failed.append(seed)
            if len(failed) <= SHOWN:
                print(describe(outcome), flush=True)
            if stops:
                return 1
    took = time.perf_counter() - began
    count = end - first
    print(f"{count} trials, {len(failed)} failed; {took / count:.2f} s each, "
          f"{seconds / took:.0f} virtual seconds a second")  # fmt: skip
    if failed:
        print("failing seeds:", *failed)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
