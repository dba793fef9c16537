"""What a person gets to see: a table, and a picture like ePulsar's figures 8 and 9."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from examples.roaming.judge import windows
from examples.roaming.simulate import STEP, Run
from examples.roaming.world import Line, Panel, Trace

COLOURS = ("#2a6f97", "#e07a1f", "#3a8f5c", "#8e5aa8", "#b5485d", "#7a6a53", "#4c9fb0", "#a3a12f")

WIDE = 4
"""So many panels stand one below the other; more in two columns."""


def figures(run: Run) -> dict[str, float]:
    """The figures of a run."""
    latency = run.latency[np.isfinite(run.latency)]
    return {
        "seconds": len(run.seconds) * STEP,
        "violations": run.violations,
        "longest_s": run.longest,
        "median_ms": float(np.median(latency)),
        "p99_ms": float(np.percentile(latency, 99)),
        "moves": len(run.moves),
    }


def table(title: str, runs: Mapping[str, Run], notes: Mapping[str, str]) -> Table:
    """A row for each rule."""
    shown = Table("homes by", title=title, min_width=78)
    for column in ("run", "above bound", "longest", "median", "p99", "moves"):
        shown.add_column(column, justify="right")
    for name, run in runs.items():
        found = figures(run)
        shown.add_row(
            f"{name}{notes.get(name, '')}", f"{found['seconds']:g} s",
            f"{found['violations']:.2%}", f"{found['longest_s']:g} s",
            f"{found['median_ms']:.1f} ms", f"{found['p99_ms']:.1f} ms", f"{found['moves']:.0f}",
        )  # fmt: skip
    return shown


def draw(
    title: str, run: Run, where: Trace, lines: list[Line], panels: list[Panel], path: Path
) -> None:
    """Write the latency over time as PNG: the bound dashed, windows grey, moves as triangles."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = 1 if len(panels) <= WIDE else 2
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(11, 0.9 + 1.75 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    column_of = {(line.topic, line.ear): column for column, line in enumerate(lines)}
    found = windows(run, where)
    top = max(run.bound * 1.9, float(np.nanpercentile(run.latency, 99.5)) * 1.2)
    for axis, panel in zip(axes.flat, panels, strict=False):
        _panel(axis, run, panel, column_of, found, top)
        axis.set(xlim=(0, len(run.seconds) * STEP), ylim=(0, top))
        axis.set_title(panel.title, loc="left", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.2)
    if panels[0].labels:
        axes[0, 0].legend(frameon=False, fontsize=8, loc="upper right", ncols=2)
    for axis in axes[-1]:
        axis.set_xlabel("seconds")
    for axis in axes[:, 0]:
        axis.set_ylabel("ms")
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    figure.savefig(path, dpi=90)


def _panel(
    axis: Any,
    run: Run,
    panel: Panel,
    column_of: Mapping[tuple[int, str], int],
    found: list[tuple[int, float, float]],
    top: float,
) -> None:
    steps = len(run.seconds)
    inside = np.zeros(steps, bool)
    for topic, begin, end in found:
        if topic in panel.shown and panel.shown[topic][_step(begin, steps)]:
            inside |= (run.seconds < end) & (run.seconds + STEP > begin)
    axis.fill_between(
        run.seconds, 0, top, where=inside, step="post", color="#000000", alpha=0.06, linewidth=0
    )
    for number, (topic, mask) in enumerate(panel.shown.items()):
        column = column_of.get((topic, panel.ear), column_of.get((topic, "")))
        assert column is not None
        latency = np.where(mask[:steps], run.latency[:, column], np.nan)
        colour = COLOURS[number % len(COLOURS)]
        label = panel.labels[number] if panel.labels else None
        axis.plot(run.seconds, latency, color=colour, linewidth=1.1, alpha=0.85, label=label)
        moves = [m.at for m in run.moves if m.topic == topic and mask[_step(m.at, steps)]]
        if moves:
            height = top * (0.95 if number % 2 else 0.88)
            axis.plot(moves, [height] * len(moves), "v", color=colour, markersize=5)
    axis.axhline(run.bound, color="#c00000", linestyle="--", linewidth=0.9)


def _step(second: float, steps: int) -> int:
    return min(int(second / STEP), steps - 1)
