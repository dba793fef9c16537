"""`python -m bench [ID-PREFIX]`: measure the figures whose id begins so; `--list` names them.

A prefix is made of whole parts: `publish.1k` takes in `publish.1k.vs_raw`, and `publish` does not
take in `publisher.client_mb`. `make bench ONLY="scale --quick"` takes three minutes, and shows that
it works.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable

import msgspec
import uvloop

from bench import (
    archive,
    coords,
    copied,
    cqbs,
    failover,
    far,
    function,
    join,
    latency,
    local,
    memory,
    move,
    placement,
    placement_live,
    publish,
    query,
    scale,
    spark,
    spark_memory,
    subscribe,
    wan,
)
from bench.harness import Figure, chosen, machine, now, progress, save, show

BENCHMARKS = [
    *publish.BENCHMARKS,
    *subscribe.BENCHMARKS,
    *latency.BENCHMARKS,
    *memory.BENCHMARKS,
    *local.BENCHMARKS,
    *failover.BENCHMARKS,
    *move.BENCHMARKS,
    *copied.BENCHMARKS,
    *wan.BENCHMARKS,
    *far.BENCHMARKS,
    *join.BENCHMARKS,
    *coords.BENCHMARKS,
    *query.BENCHMARKS,
    *cqbs.BENCHMARKS,
    *placement.BENCHMARKS,
    *placement_live.BENCHMARKS,
    *function.BENCHMARKS,
    *spark.BENCHMARKS,
    *archive.BENCHMARKS,
    *spark_memory.BENCHMARKS,
    *scale.BENCHMARKS,
]
ORDER = [id for benchmark in BENCHMARKS for id in benchmark.ids]

TARGETS = {
    "publish.1k.vs_raw": (">=", 0.7),
    "publish.1k.vs_natspy": (">=", 2.5),
    "subscribe.1k.vs_raw": (">=", 0.7),
    "publish.latency.vs_natspy": ("<=", 1.3),
    "site.idle_mb": ("<", 120.0),
    "failover.gap_ms": ("<", 50.0),
    "failover.quorum_gap_ms": ("<", 50.0),
    "failover.from_hub_gap_ms": ("<", 50.0),
    "failover.vs_r3": ("<=", 0.0333),
    "move.copied_ratio": ("<", 0.1),
    "failover.copied_ratio": ("<", 0.1),
    "wan.overhead_ms": ("<", 1.5),
    "far.quorum_vs_path": ("<", 1.5),
    "far.published_ratio": (">=", 1.0),
    "coords.median_vs_serf": ("<", 1.0),
    "coords.p90_vs_serf": ("<", 1.0),
    "coords.late_median_vs_serf": ("<", 1.0),
    "coords.late_p90_vs_serf": ("<", 1.0),
    "coords.convergence_vs_serf": ("<", 1.0),
    "coords.live_p90": ("<", 5.0),
    "coords.agent_percent": ("<", 1.0),
    "coords.memory_kb": ("<", 15_000.0),
    "placement.react_s": ("<", 5.5),
    "query.diff_p50_ms": ("<", 1.0),
    "query.diff_p95_ms": ("<", 1.0),
    "query.first_p95_ms": ("<", 5.0),
    "function.8k.msgs_s": (">=", 10_000.0),
    "function.8k.vs_rabbitmq": (">=", 5.0),
    "spark.source.rows_s": (">=", 350_000.0),
    "spark.source.vs_natspy": (">=", 5.0),
    "spark.packed.rows_s": (">=", 2_000_000.0),
    "spark.memory.growth": ("<", 1.1),
}
"""What is aimed for. Reported beside the figures, and never a reason to fail."""


def is_chosen(id: str, prefix: str) -> bool:
    """Whether the parts of `id` begin with those of `prefix`."""
    return not prefix or id == prefix or id.startswith(prefix + ".")


async def run(prefix: str, keep: Callable[[list[Figure]], None]) -> list[Figure]:
    """Run what makes figures that begin with `prefix`, and return those. Each is given to `keep` as
    it is made, so that one that fails takes none with it."""
    figures: list[Figure] = []
    for benchmark in BENCHMARKS:
        wanted = [id for id in benchmark.ids if is_chosen(id, prefix)]
        if wanted and (reason := benchmark.unavailable()) is not None:
            progress("")
            print(f"skipped: {', '.join(wanted)}: {reason}", file=sys.stderr)
        elif wanted:
            made = [msgspec.structs.replace(f, date=now()) for f in await benchmark.run()]
            assert [figure.id for figure in made] == list(benchmark.ids)
            new = [figure for figure in made if is_chosen(figure.id, prefix)]
            keep(new)
            figures += new
    return figures


def main() -> int:
    """Measure, save, show."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("prefix", nargs="?", default="", help="such as publish or subscribe.1k")
    parser.add_argument("--list", action="store_true", help="name the figures and stop")
    parser.add_argument(
        "--quick", action="store_true", help="small steps for far and scale; nothing is saved"
    )
    parser.add_argument(
        "--size", type=int, default=chosen.size_mb, metavar="MB",
        help="of the log of copied_ratio; with another than the default nothing is saved",
    )  # fmt: skip
    arguments = parser.parse_args()
    is_usual = not arguments.quick and arguments.size == chosen.size_mb
    chosen.quick, chosen.size_mb = arguments.quick, arguments.size
    ids = [id for id in ORDER if is_chosen(id, arguments.prefix)]
    if not ids:
        print(f"no figure begins with {arguments.prefix!r}; see --list", file=sys.stderr)
        return 2
    if arguments.list:
        print("\n".join(ids))
        return 0
    about = machine()

    def keep(new: list[Figure]) -> None:
        if is_usual:
            save(about, new, ORDER)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(run(arguments.prefix, keep))
    progress("")
    if figures:
        show(figures, TARGETS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
