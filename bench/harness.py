"""Measure variants side by side, and write down what came out.

Variants of a benchmark run in turns (A B C A B C …), after one warm-up round that is thrown away,
so that a slow minute of the machine falls on all of them. A figure is the median over the rounds.
A ratio is the *median of the per-round ratios*: neighbours in time are compared with each other.
The spread is half the range over the rounds, in percent of the median.
"""

from __future__ import annotations

import gc
import math
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import psutil
from rich.console import Console
from rich.table import Table

import skerry
from skerry.engine.binary import find_binary, show_version

ROUNDS = 7
"""Rounds that count. An odd number, so that the median is a run that took place."""

RESULTS = Path(__file__).parent / "results.json"


class Chosen(msgspec.Struct):
    """What the command line asks for beside the figures. Set before anything runs."""

    quick: bool = False
    """Fewer and smaller steps where a benchmark has such: to see that it works, not how fast."""
    size_mb: int = 1000
    """Of the log whose copying is measured."""


chosen = Chosen()


class Figure(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One number of the report. `ratio` is ours to the baseline's."""

    id: str
    value: float
    unit: str
    rounds: int = 1
    spread: float | None = None
    baseline: float | None = None
    baseline_name: str | None = None
    ratio: float | None = None
    note: str | None = None
    date: str | None = None
    points: dict[str, float] | None = None
    """What was measured at each step of something that grows; `value` is the last of them."""
    exponent: float | None = None
    """Of the power law through `points`: 0 does not grow, 1 grows alike, 2 with the square."""


class Benchmark(msgspec.Struct, frozen=True):
    """Something to run, and the figures it makes."""

    ids: Sequence[str]
    run: Callable[[], Awaitable[list[Figure]]]
    unavailable: Callable[[], str | None] = lambda: None
    """Why it cannot run here; None: it can."""


Samples = dict[str, list[float]]


async def interleave(
    label: str, variants: Mapping[str, Callable[[], Awaitable[float]]], rounds: int = ROUNDS
) -> Samples:
    """Run the variants in turns; return what each measured, one value a round."""
    samples: Samples = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name, run in variants.items():
            progress(
                f"{label}: {name}, " + (f"round {number} of {rounds}" if number else "warm-up")
            )
            gc.collect()
            value = await run()
            if number:
                samples[name].append(value)
    return samples


def measured(id: str, values: Sequence[float], unit: str, note: str | None = None) -> Figure:
    """The median of `values`."""
    middle = statistics.median(values)
    return Figure(
        id=id,
        value=tidy(middle),
        unit=unit,
        rounds=len(values),
        spread=_spread(values) if len(values) > 1 else None,
        note=note,
    )


def compared(id: str, samples: Samples, baseline: str, note: str | None = None) -> Figure:
    """Ours to a baseline: the median of the per-round ratios."""
    ratios = [a / b for a, b in zip(samples["skerry"], samples[baseline], strict=True)]
    ratio = tidy(statistics.median(ratios))
    return Figure(
        id=id,
        value=ratio,
        unit="ratio",
        rounds=len(ratios),
        spread=_spread(ratios),
        baseline=tidy(statistics.median(samples[baseline])),
        baseline_name=baseline,
        ratio=ratio,
        note=note,
    )


def grown(id: str, points: Mapping[int, float], unit: str, note: str = "") -> Figure:
    """What came out at each size; the value is that of the largest."""
    power = exponent(points)
    shown = ", ".join(f"{size:,}: {tidy(value):g}" for size, value in points.items())
    growth = "" if power is None else f"; grows with the power {power:g}"
    return Figure(
        id=id,
        value=tidy(points[max(points)]),
        unit=unit,
        note=f"{note}; {shown}{growth}" if note else f"{shown}{growth}",
        points={str(size): tidy(value) for size, value in points.items()},
        exponent=power,
    )


def exponent(points: Mapping[int, float]) -> float | None:
    """The power p of the law value = c * size^p that fits best, by least squares of the logarithms;
    None if fewer than two values are above zero."""
    logs = [(math.log(size), math.log(value)) for size, value in points.items() if value > 0]
    if len(logs) < 2:
        return None
    sizes, values = zip(*logs, strict=True)
    return round(statistics.linear_regression(sizes, values).slope, 2)


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that so many percent of `values` are below."""
    return sorted(values)[len(values) * percent // 100]


def tidy(value: float) -> float:
    """Three significant digits; whole numbers from 100 on."""
    rounded = float(f"{value:.3g}")
    return int(rounded) if abs(rounded) >= 100 else rounded


def _spread(values: Sequence[float]) -> float:
    return round(50 * (max(values) - min(values)) / statistics.median(values), 1)


def progress(text: str) -> None:
    """One line on standard error: rewritten on a terminal, else one line a step."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
    elif "warm-up" in text or "round" not in text:
        sys.stderr.write(f"{text}\n" if text else "")
    sys.stderr.flush()


def machine() -> dict[str, Any]:
    """Where and with what it was measured."""
    cpu = platform.processor()
    if (file := Path("/proc/cpuinfo")).exists():
        names = [x.partition(":")[2] for x in file.read_text().splitlines() if "model name" in x]
        cpu = names[0].strip() if names else cpu
    return {
        "cores": os.cpu_count(),
        "cpu": cpu,
        "memory_mb": psutil.virtual_memory().total // 2**20,
        "load_before": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "nats_server": show_version(find_binary()[1]),
        "skerry": skerry.__version__,
        "commit": _commit(),
        "date": now(),
    }


def _commit() -> str:
    """The commit that is measured; a `+` says that files were changed since."""
    command = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
    where = Path(skerry.__file__).parent
    return subprocess.run(command, cwd=where, capture_output=True, text=True).stdout.strip()


def now() -> str:
    """The time, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def save(machine: Mapping[str, Any], figures: Sequence[Figure], order: Sequence[str]) -> None:
    """Write `results.json`: new figures replace their namesakes, the others stay."""
    kept: dict[str, Any] = {}
    if RESULTS.exists():
        before = msgspec.json.decode(RESULTS.read_bytes())
        kept = {entry["id"]: entry for entry in before["figures"] if entry["id"] in order}
    kept |= {figure.id: msgspec.to_builtins(figure) for figure in figures}
    content = {**machine, "figures": [kept[id] for id in order if id in kept]}
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")


def show(figures: Sequence[Figure], targets: Mapping[str, tuple[str, float]]) -> None:
    """Print the table."""
    table = Table(title="ratio: ours to the baseline's, median of the per-round ratios")
    for column in ("id", "value", "unit", "baseline", "ratio", "rounds", "spread", "target"):
        table.add_column(column, justify="left" if column in ("id", "unit") else "right")
    for figure in figures:
        table.add_row(
            figure.id,
            f"{figure.value:,g}" if figure.value < 100 else f"{figure.value:,.0f}",
            figure.unit,
            f"{figure.baseline_name} {figure.baseline:,g}" if figure.baseline is not None else "",
            f"{figure.ratio:g}" if figure.ratio is not None else "",
            str(figure.rounds),
            f"±{figure.spread:g}%" if figure.spread is not None else "",
            _verdict(figure, targets),
        )
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    for figure in figures:
        if figure.note:
            console.print(f"{figure.id}: {figure.note}", highlight=False)


def _verdict(figure: Figure, targets: Mapping[str, tuple[str, float]]) -> str:
    if figure.id not in targets:
        return ""
    sign, limit = targets[figure.id]
    met = {">=": figure.value >= limit, "<=": figure.value <= limit, "<": figure.value < limit}
    return f"{sign} {limit:g} " + ("[green]met[/]" if met[sign] else "[red]missed[/]")
