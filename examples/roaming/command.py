"""The command line of both scenarios: play one, live or in virtual time; say and judge it."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console

from examples.roaming import live, report
from examples.roaming.judge import TOLERANCE, Verdict, judge
from examples.roaming.simulate import RULES, STEP, Run, Scenario, hashed_homes, simulate
from examples.roaming.world import Line, Trace, World, homes_of, latency_of, trace
from skerry.model.placement import PERIOD
from skerry.testing import Wan

SHORTER = 4
"""By hashing the live world runs for so much shorter: nothing changes there."""


class Played(msgspec.Struct, frozen=True):
    """What came of a scenario."""

    runs: dict[str, Run]
    """By rule; `placement` is judged and drawn."""
    where: Trace
    lines: list[Line]
    verdict: Verdict


async def play(
    make: Callable[[], World], seconds: float, rate: float, seed: int, say: live.Say
) -> Played:
    """Live: by hashing first, then by placement, at the same sites."""
    steps = round(seconds / STEP)
    world = make()
    lines = world.lines()
    async with live.running_world(world, say, seed) as fabric:
        say(f"by hashing, {seconds / SHORTER:g} s")
        hashed = await live.play(fabric, make(), seconds / SHORTER, rate, "off")
        say(f"by placement, {seconds:g} s")
        placed = await live.play(fabric, make(), seconds, rate, "auto")
    where = trace(make(), steps)
    pairs = simulate(make(), seconds, "all-pairs", seed)
    homes = homes_of(pairs, hashed_homes(world, seed))
    pairs = msgspec.structs.replace(pairs, latency=latency_of(world, where, homes, lines))
    runs = {"placement": placed, "hashing": hashed, "all-pairs": pairs}
    return Played(runs, where, lines, judge(placed, where, lines))


def simulated(make: Callable[[], Scenario], seconds: float, seed: int) -> Played:
    """In virtual time."""
    runs = {name: simulate(make(), seconds, rule, seed) for name, rule in RULES.items()}
    where = trace(make(), round(seconds / STEP))
    lines = [Line(topic) for topic in range(len(make().topics))]
    return Played(runs, where, lines, judge(runs["placement"], where, lines))


def main(
    name: str,
    about: str,
    rate: float,
    live_world: Callable[[int], World],
    virtual_world: Callable[[int], World],
    arguments: list[str] | None = None,
) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(
        prog=f"python -m examples.{name}", description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=120.0, help="that clients move (120)")
    parser.add_argument("--seed", type=int, default=1, help="of how they move, and of first homes")
    parser.add_argument(
        "--rate", type=float, default=rate, help=f"events a second of each publisher ({rate:g})"
    )
    parser.add_argument("--out", type=Path, default=Path(f"{name}.png"), help="the picture")
    parser.add_argument("--simulate", action="store_true", help="in virtual time; needs no root")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    given = parser.parse_args(arguments)
    logging.getLogger("skerry").setLevel(logging.CRITICAL)
    console = Console(highlight=False, stderr=given.json)
    say = console.print
    make = (lambda: virtual_world(given.seed)) if given.simulate else lambda: live_world(given.seed)
    if given.simulate:
        played = simulated(make, given.seconds, given.seed)
    elif (reason := Wan.unavailable()) is not None:
        say(
            f"No network can be emulated here: {reason}. Run this as root on Linux, or with "
            "--simulate in virtual time."
        )
        return 2
    else:
        played = uvloop.run(play(make, given.seconds, given.rate, given.seed, say))
    return tell(name, make, played, given, console)


def tell(
    name: str,
    make: Callable[[], World],
    played: Played,
    given: argparse.Namespace,
    console: Console,
) -> int:
    """Table, picture and verdict."""
    say = console.print
    placed, verdict = played.runs["placement"], played.verdict
    how = "virtual time" if given.simulate else f"live, {given.rate:g} events/s each"
    title = f"{name}: latency in steps of half a second, bound {placed.bound:g} ms ({how})"
    notes = {} if given.simulate else {"all-pairs": ", computed"}
    report.draw(
        f"{title}. Dashed: the bound. Grey: after clients came. Triangles: moves.",
        placed, played.where, played.lines, make().panels(len(placed.seconds)), given.out,
    )  # fmt: skip
    if given.json:
        print(json.dumps(_as_json(played), indent=2))
    say(report.table(title, played.runs, notes))
    say(f"picture: {given.out}")
    failed = getattr(placed, "failed", [])
    for line in failed[:5]:
        say(f"  a move failed: {line}")
    say(
        f"Topics had left the homes that they began at after {verdict.start:.1f} s. Then "
        f"{verdict.changes} times clients came to a site that was new to a topic; its latency was "
        f"above the bound until {verdict.recovered:g} s later at the most."
    )
    if not given.simulate:
        say(
            f"Of single events outside of the windows {verdict.late_events:.3%} were late. In "
            f"{verdict.held_up:.1%} of the steps the machine was held up."
        )
    if verdict.holds:
        say(
            f"[bold green]No step was late later than {PERIOD:g} s, the move and {TOLERANCE:g} s "
            "after clients came.[/]"
        )
        return 0
    say(
        f"[bold red]{len(verdict.outside)} steps were late and {len(verdict.silent)} silent though "
        f"no clients had come for {PERIOD:g} s, the move and {TOLERANCE:g} s:[/]"
    )
    topics = make().topics
    for second, line, ms in verdict.outside[:10]:
        where = played.lines[line]
        say(f"  {topics[where.topic]} {where.ear} at {second:g} s: {ms:.1f} ms")
    for second, line in verdict.silent[:10]:
        where = played.lines[line]
        say(f"  {topics[where.topic]} {where.ear} at {second:g} s: nothing came")
    say(
        f"In {verdict.outside_held_up} of these late steps the machine was held up. If those are "
        "most of them, let nothing else run, or lower the --rate."
    )
    return 1


def _as_json(played: Played) -> dict[str, object]:
    verdict = played.verdict
    late = verdict.late_events
    return {
        **{name: report.figures(run) for name, run in played.runs.items()},
        "changes": verdict.changes,
        "start_s": verdict.start,
        "recovered_s": verdict.recovered,
        "held_up": verdict.held_up,
        "outside_held_up": verdict.outside_held_up,
        "outside": len(verdict.outside),
        "silent": len(verdict.silent),
        "late_events": None if late != late else late,
        "failed_moves": len(getattr(played.runs["placement"], "failed", [])),
    }
