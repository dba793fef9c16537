"""`python -m tests.soak --seed N`: run a campaign; exit code 1 if a promise was broken."""

from __future__ import annotations

import argparse
import asyncio
import sys

import msgspec
from rich.console import Console
from rich.table import Table

from skerry.testing.wan import Wan
from tests.soak.campaign import Campaign, Options, Report

MOST_SHOWN = 20


def main() -> int:
    """Read the command line, run, tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="what the faults are drawn from")
    parser.add_argument("--sites", type=int, default=3, help="3 or more")
    parser.add_argument("--faults", type=int, help="how many (default: one a second)")
    parser.add_argument("--seconds", type=float, help="spread over so long (default: 120)")
    parser.add_argument("--minutes", type=float, help="the same in minutes")
    parser.add_argument("--rate", type=float, default=100.0, help="events/s of each publisher")
    parser.add_argument(
        "--no-hard", action="store_true",
        help="without long faults and those of publishers, disks, distances, sites lost for good",
    )  # fmt: skip
    parser.add_argument("--no-wan", action="store_true", help="on loopback, without cuts")
    parser.add_argument("--keep", action="store_true", help="keep the folder in any case")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    given = parser.parse_args()
    if given.sites < 3:
        parser.error("a campaign needs 3 sites or more")
    seconds = given.seconds or (given.minutes * 60 if given.minutes else None)
    if seconds is None:
        seconds = float(given.faults) * 1.2 if given.faults else 120.0
    options = Options(
        seed=given.seed,
        sites=given.sites,
        faults=int(seconds) if given.faults is None else given.faults,
        seconds=seconds,
        wan=not given.no_wan,
        rate=given.rate,
        keep=given.keep,
        hard=not given.no_hard,
    )
    campaign = Campaign(options, Wan.unavailable())
    print(f"seed {given.seed}, logs in {campaign.root}", file=sys.stderr)
    report = asyncio.run(campaign.run())
    if given.json:
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        show(report)
    return 1 if report.violations else 0


def show(report: Report) -> None:
    """A table for people."""
    console = Console(highlight=False, markup=False)
    table = Table("what", "how much", box=None, pad_edge=False)
    table.add_row("campaign", f"seed {report.seed}, {report.sites} sites, {report.seconds:.0f} s")
    rows = {
        "faults": report.faults,
        "moves": report.moves,
        "acknowledged": report.acknowledged,
        "unknown": report.unknown,
        "stored": report.stored,
        "received": report.received,
        "repeated": report.repeated,
        "judged": report.judged,
    }
    for name, counts in rows.items():
        table.add_row(name, ", ".join(f"{k} {v}" for k, v in counts.items()) or "-")
    worst = max(report.longest_gap.items(), key=lambda item: item[1], default=("-", 0.0))
    table.add_row("longest gap", f"{worst[1]:.1f} s ({worst[0]})")
    console.print(table)
    for note in report.notes:
        console.print(f"note: {note}")
    if report.violations:
        console.print(f"\n{len(report.violations)} VIOLATIONS with seed {report.seed}:")
        for violation in report.violations[:MOST_SHOWN]:
            console.print(f"  {violation}", soft_wrap=True)
        console.print(f"Logs and data: {report.folder}")
    else:
        console.print("No promise was broken.")


if __name__ == "__main__":
    sys.exit(main())
