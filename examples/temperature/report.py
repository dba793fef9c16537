"""How good the predictions were: a table and a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.table import Table

from examples.temperature.weather import DAY, WITH, WITHOUT, World

Forecasts = Mapping[str, Mapping[int, float]]
"""By sensor and minute."""


class Errors(NamedTuple):
    """How far predictions are from the truth, in degrees."""

    mean: float
    """The mean of what they are off by, either way."""
    root: float
    """The root of the mean of its square, in which large errors weigh more."""


def errors(world: World, forecasts: Forecasts, sensors: tuple[str, ...] = WITHOUT) -> Errors:
    """Of all predictions for these sensors."""
    rows = {at: row for row, at in enumerate(world.at)}
    off = np.array(
        [
            celsius - world.truth[sensor][rows[at]]
            for sensor in sensors
            for at, celsius in forecasts[sensor].items()
        ]
    )
    return Errors(float(np.abs(off).mean()), float(np.sqrt((off**2).mean())))


def table(world: World, smoothed: Forecasts, raw: Forecasts) -> Table:
    """The errors by sensor."""
    title = "outdoor temperature from processor temperature: error in °C"
    shown = Table("sensor", title=title, min_width=78)
    for column in ("predictions", "mean, raw", "mean, smoothed", "RMS, raw", "RMS, smoothed"):
        shown.add_column(column, justify="right")
    for name, sensors in (*((one, (one,)) for one in WITHOUT), ("all", WITHOUT)):
        with_it, without = errors(world, smoothed, sensors), errors(world, raw, sensors)
        shown.add_row(
            name, f"{sum(len(smoothed[sensor]) for sensor in sensors):,}",
            f"{without.mean:.2f}", f"[green]{with_it.mean:.2f}[/]",
            f"{without.root:.2f}", f"[green]{with_it.root:.2f}[/]",
            end_section=name == WITHOUT[-1],
        )  # fmt: skip
    return shown


def plot(world: World, smoothed: Forecasts, raw: Forecasts, path: Path) -> None:
    """Write a picture of one sensor's day, and of what everybody learnt from, as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sensor = WITHOUT[0]
    rows = {at: row for row, at in enumerate(world.at)}
    minutes = sorted(smoothed[sensor])
    hours = [(at - minutes[0]) / 60 for at in minutes]
    truth = [world.truth[sensor][rows[at]] for at in minutes]
    figure = Figure(figsize=(10, 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    day, learnt = figure.subplots(2, 1, height_ratios=(3, 2))
    raw_error, error = errors(world, raw, (sensor,)), errors(world, smoothed, (sensor,))
    day.plot(
        hours, [raw[sensor].get(at, np.nan) for at in minutes], color="#c9c9c9", linewidth=1,
        label=f"predicted, not smoothed: off by {raw_error.mean:.2f} °C on average",
    )  # fmt: skip
    day.plot(hours, truth, color="#222222", linewidth=2, label="true")
    day.plot(
        hours, [smoothed[sensor][at] for at in minutes], color="#d1495b", linewidth=1.8,
        label=f"predicted: off by {error.mean:.2f} °C on average",
    )  # fmt: skip
    day.set_title(f"Outdoors at “{sensor}”, which has no thermometer", loc="left")
    day.set_xlabel("hour of the day")
    day.set_ylabel("°C")
    day.set_xlim(hours[0], hours[-1])
    day.legend(frameon=False)
    before = [row for at, row in rows.items() if at < minutes[0]]
    for name in WITH:
        learnt.plot(
            world.cpu[name][before], world.outdoor[name][before], ".", markersize=3, label=name
        )
    days = (minutes[0] - world.at[0]) / DAY
    learnt.set_title(f"What was learnt from: {days:g} days of three sensors with one", loc="left")
    learnt.set_xlabel("processor, °C")
    learnt.set_ylabel("thermometer, °C")
    learnt.legend(frameon=False, markerscale=3)
    for part in (day, learnt):
        part.spines[["top", "right"]].set_visible(False)
        part.grid(alpha=0.25)
    figure.savefig(path, dpi=110)
