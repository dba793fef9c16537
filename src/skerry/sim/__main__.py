"""`python -m skerry.sim`: run one trial of what ships, or many.

    python -m skerry.sim --seeds 0:1000 --jobs 2
    python -m skerry.sim 77 --trace
    python -m skerry.sim 77 --without seal
    python -m skerry.sim --rules --seeds 0:3000 --jobs 2

A trial that fails is tried again with faults left out, until none can be spared.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import TypeVar

from skerry.sim.controls import CONTROLS, without
from skerry.sim.trial import Outcome, Trial

SHOWN = 5
"""Trials of many that failed, of which it is told how."""
CHUNK = 20

T = TypeVar("T")
R = TypeVar("R")


def main() -> int:
    """Exit code 0: nothing was violated; 1: something was."""
    parser = argparse.ArgumentParser(
        prog="python -m skerry.sim", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("seed", nargs="?", type=int, help="the trial to run")
    parser.add_argument("--seeds", metavar="FROM:TO", help="run all trials from FROM below TO")
    parser.add_argument("--jobs", type=int, default=1, help="processes to run many trials in")
    parser.add_argument("--first", action="store_true", help="stop at the first that fails")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    parser.add_argument("--only", metavar="N,N…", help="do just these of the planned faults")
    parser.add_argument(
        "--without", metavar="RULE", choices=CONTROLS,
        help=f"leave out a rule of what ships: {', '.join(CONTROLS)}",
    )  # fmt: skip
    parser.add_argument(
        "--rules", action="store_true",
        help="leave out each rule in turn, and tell which trial is the first to fail",
    )  # fmt: skip
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a trial
        arguments = [sys.executable, "-m", "skerry.sim", *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606
    if options.seed is None and not options.seeds:
        parser.error("give a SEED, or --seeds FROM:TO")
    if options.seeds:
        first, _, end = options.seeds.partition(":")
        seeds = range(int(first), int(end))
        return try_rules(seeds, options) if options.rules else campaign(seeds, options)
    only = None if options.only is None else {int(n) for n in options.only.split(",") if n}
    with _rules(options.without):
        trial = Trial(options.seed, options.trace, only)
        outcome = trial.run()
        print(*outcome.trace if options.trace else (), sep="\n")
        print(describe(outcome))
        if outcome.violation and only is None and not options.trace:
            print(advise(options.seed, shrink(options.seed, trial.planned), options.without))
    return int(outcome.violation is not None)


def _rules(left_out: str | None) -> contextlib.AbstractContextManager[None]:
    return without(left_out) if left_out else contextlib.nullcontext()


def describe(outcome: Outcome) -> str:
    """One line on a trial."""
    result = f"VIOLATION {outcome.violation}" if outcome.violation else "ok"
    return (
        f"seed {outcome.seed}: {result} ({outcome.epochs} epochs, {outcome.acked} acknowledged, "
        f"{outcome.took:.1f} s, at rest after {outcome.settled:.1f} s)"
    )


def advise(seed: int, needed: Collection[int], left_out: str | None) -> str:
    """How to see why a trial fails."""
    more = f" --without {left_out}" if left_out else ""
    return (
        f"These faults are enough: python -m skerry.sim {seed} "
        f"--only={','.join(map(str, sorted(needed)))} --trace{more}"
    )


def shrink(seed: int, planned: int) -> set[int]:
    """Which of the faults of a failing trial it takes for it to fail, in one way or another."""
    needed = set(range(planned))
    is_less = True
    while is_less:
        is_less = False
        for number in sorted(needed):
            if Trial(seed, only=needed - {number}).run().violation:
                needed.discard(number)
                is_less = True
    return needed


def _try(left_out: str | None, seed: int) -> tuple[Outcome, str]:
    """One of many: without its trace, which nobody reads."""
    with _rules(left_out):
        trial = Trial(seed)
        outcome = trial.run()
        told = ""
        if outcome.violation:
            told = f"{describe(outcome)}\n{advise(seed, shrink(seed, trial.planned), left_out)}"
    outcome.trace = []
    return outcome, told


def campaign(seeds: range, options: argparse.Namespace) -> int:
    """Run many trials; name those that fail. With `--first`, up to the first of them."""
    began = time.perf_counter()
    failed: list[int] = []
    seconds, done = 0.0, 0
    waits: list[tuple[float, int]] = []
    for outcome, told in _outcomes(seeds, options):
        seconds += outcome.took
        done += 1
        waits.append((outcome.longest, outcome.seed))
        if told:
            failed.append(outcome.seed)
            if len(failed) <= SHOWN:
                print(told, flush=True)
            if options.first:
                break
        if done % CHUNK == 0 and sys.stderr.isatty():
            print(f"\r{done} of {len(seeds)}, {len(failed)} failed", end="", file=sys.stderr)
    took = time.perf_counter() - began
    print(f"{done} trials, {len(failed)} failed; {done / took:.1f} a second, "
          f"{seconds / took:.0f} virtual seconds a second")  # fmt: skip
    waits.sort(reverse=True)
    for share in (0.5, 0.1, 0.01, 0.0):
        longest, seed = waits[int(share * len(waits))]
        print(f"a publisher waited {longest:.1f} s while enough was there: {share:.0%} of trials "
              f"longer (seed {seed})")  # fmt: skip
    if failed:
        print("failing seeds:", *sorted(failed))
    return int(bool(failed))


def _outcomes(seeds: range, options: argparse.Namespace) -> Iterator[tuple[Outcome, str]]:
    yield from _each(partial(_try, options.without), seeds, options.jobs, CHUNK)


def _each(work: Callable[[T], R], all: Iterable[T], jobs: int, chunk: int) -> Iterator[R]:
    if jobs == 1:
        yield from map(work, all)
        return
    with multiprocessing.Pool(jobs) as pool:
        yield from pool.imap_unordered(work, all, chunk)


def try_rules(seeds: range, options: argparse.Namespace) -> int:
    """Leave out each rule: in which trial does that show? 1: one does not show in any."""
    missed = 0
    for rule, seed, told in _each(partial(_first_without, seeds), CONTROLS, options.jobs, 1):
        missed += seed is None
        shown = f"{seed - seeds.start + 1:6} trials: {told}" if seed is not None else "NOT NOTICED"
        print(f"{rule:10} {shown}", flush=True)
    return int(missed > 0)


def _first_without(seeds: range, rule: str) -> tuple[str, int | None, str]:
    """The first trial that fails without a rule, and does not fail with it."""
    for seed in seeds:
        with without(rule):
            violation = Trial(seed).run().violation
        if violation and not Trial(seed).run().violation:
            return rule, seed, violation
    return rule, None, ""


if __name__ == "__main__":
    sys.exit(main())
