"""How warm is it outdoors? Functions at the edge find out from how warm the processors are.

Six sensors at a farm publish the temperature of their processors; three of them have a thermometer
outdoors, too, and publish what it says. Functions smooth the readings, train a model on the three
and predict the outdoor temperature at the other three. The same functions run once more on readings
that nobody smoothed, to see what smoothing is good for. The days are made up (weather.py), with a
fixed seed; the sites, engines and functions are real.

    python -m examples.temperature
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import uvloop
from rich.console import Console

from examples.temperature import report, weather
from skerry import Client, Event
from skerry.testing import LocalFabric

HERE = Path(__file__).parent
PATIENCE = 300.0
"""Seconds after which we stop waiting for something to happen."""
SMOOTH, RAW = "smooth", "weather"
"""The topics with smoothed readings and with those of the sensors."""


class Deployed(NamedTuple):
    """A function, what it runs on and where; nowhere said: beside its topic."""

    name: str
    file: str
    topic: str
    site: str | None = None


FUNCTIONS = (
    Deployed("smooth", "smooth.py", RAW),
    Deployed("train", "train.py", SMOOTH, "hub"),
    Deployed("predict", "predict.py", f"{SMOOTH}/cpu/+"),
    Deployed("train-raw", "train.py", RAW, "hub"),
    Deployed("predict-raw", "predict.py", f"{RAW}/cpu/+"),
)


class Forecast(msgspec.Struct):
    """What is published below `forecast`."""

    at: int
    celsius: float


class Model(msgspec.Struct):
    """What is published below `model`."""

    pairs: int
    weights: list[float]


async def main(days: int, step: int, seed: int, picture: Path) -> int:
    """Run it; return the exit code."""
    logging.getLogger("skerry").setLevel(logging.CRITICAL)
    console = Console(highlight=False)
    say = console.print
    world = weather.make(days + 1, step, seed)
    learning = [row for row, at in enumerate(world.at) if at < days * weather.DAY]
    say("starting three sites, each with an engine of its own ...")
    async with (
        LocalFabric(["hub", "farm", "lab"]) as fabric,
        fabric.connect("farm") as farm,
        fabric.connect("lab") as lab,
        fabric.connect("lab", "admin") as admin,
    ):
        # Readings stay at the farm, with a copy elsewhere. Models come from the hub and are copied
        # to the farm, so that predictions go on while the hub is away.
        await farm.create_topic("weather", replicas=1)
        await farm.create_topic("smooth")
        await farm.create_topic("model", home="hub", replicas=1, spread=["farm"])
        await farm.create_topic("forecast", home="lab")
        for one in FUNCTIONS:
            began = time.monotonic()
            await deploy(admin, one)
            where = f"at {one.site}" if one.site else "where its topic lives"
            took = 1000 * (time.monotonic() - began)
            say(f"  {one.name:11} runs {where}, on {one.topic} ({took:.0f} ms)")

        async with lab.subscribe("model") as models, lab.subscribe("forecast") as forecasts:
            say(f"{days} days of six sensors, a reading every {step} minutes: training")
            began = time.monotonic()
            count = await publish(
                farm, world, learning, {"cpu": world.cpu, "outdoor": world.outdoor}
            )
            pairs = len(learning) * len(weather.WITH)
            learnt, last = await trained(models, pairs)
            async with asyncio.timeout(PATIENCE):
                while await farm.latest_index("model") < last:  # its copy, which predicts
                    await asyncio.sleep(0.01)
            took = time.monotonic() - began
            say(f"  {count:,} readings, {pairs:,} pairs to learn from, in {took:.1f} s")
            for source, model in learnt.items():
                first, second = model.weights
                say(f"  from {source:7}: outdoors = {first:+.2f} {second:+.3f} × processor")

            # No thermometer speaks on that day: a model that had learnt from it, while predictions
            # wait their turn, would know what it is asked.
            say("one day more, of processors only: predictions for sensors without a thermometer")
            rows = range(len(learning), len(world.at))
            await publish(farm, world, rows, {"cpu": world.cpu})
            found, extra = await predicted(forecasts, world.at[rows[0]], world.at[rows[-1]])
    smoothed, raw = ({s: found[f"{t}/{s}"] for s in weather.WITHOUT} for t in (SMOOTH, RAW))
    faults = extra + sum(len(rows) - len(found[name]) for name in found)
    if faults:
        say(f"[bold red]{faults} predictions are missing, or there more than once[/]")
    say(report.table(world, smoothed, raw))
    await asyncio.to_thread(report.plot, world, smoothed, raw, picture)
    say(f"picture: {picture}")
    ours, baseline = report.errors(world, smoothed), report.errors(world, raw)
    share = 100 * (1 - ours.mean / baseline.mean)
    if ours.mean >= baseline.mean or ours.root >= baseline.root:
        say("[bold red]smoothing made it worse[/]")
        faults += 1
    else:
        say(f"[bold green]smoothing takes {share:.0f} % off the error[/]")
    return min(faults, 1)


async def deploy(admin: Client, one: Deployed) -> None:
    """Deploy a function, or find it deployed."""
    await admin.deploy_function(HERE / one.file, topic=one.topic, name=one.name, site=one.site)


async def publish(
    client: Client,
    world: weather.World,
    rows: Iterable[int],
    kinds: Mapping[str, Mapping[str, weather.Series]],
) -> int:
    """Publish what the sensors tell in these rows, in order; return how many readings that is."""
    count = 0
    async with client.publisher("weather") as publisher:
        for row in rows:
            for kind, told in kinds.items():
                for sensor, series in told.items():
                    reading = Forecast(world.at[row], float(series[row]))
                    topic = f"weather/{kind}/{sensor}"
                    await publisher.send(msgspec.json.encode(reading), topic=topic)
                    count += 1
    return count


async def trained(events: AsyncIterable[Event], pairs: int) -> tuple[dict[str, Model], int]:
    """Wait until both models have learnt from so many pairs; return them, and the last index."""
    found: dict[str, Model] = {}
    last = 0
    async with asyncio.timeout(PATIENCE):
        async for event in events:
            source = event.topic.partition("/")[2]
            model = msgspec.json.decode(event.data, type=Model)
            if source in found and model.pairs != found[source].pairs + 1:
                raise RuntimeError(f"the model of {source} forgot, or learnt something twice")
            found[source], last = model, event.index
            if len(found) == 2 and all(model.pairs == pairs for model in found.values()):
                break
    return found, last


async def predicted(
    events: AsyncIterable[Event], first: int, last: int
) -> tuple[dict[str, dict[int, float]], int]:
    """Wait for the predictions from minute `first` to `last`, by topic and sensor; return them, and
    how many were there more than once."""
    found: defaultdict[str, dict[int, float]] = defaultdict(dict)
    extra, through = 0, 0
    async with asyncio.timeout(PATIENCE):
        async for event in events:
            forecast = msgspec.json.decode(event.data, type=Forecast)
            if forecast.at < first:
                continue
            name = event.topic.partition("/")[2]
            extra += forecast.at in found[name]
            found[name][forecast.at] = forecast.celsius
            through += forecast.at == last
            if through == 2 * len(weather.WITHOUT):
                break
    return dict(found), extra


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.temperature")
    parser.add_argument("--days", type=int, default=2, help="days to learn from")
    parser.add_argument("--step", type=int, default=5, help="minutes between two readings")
    parser.add_argument("--seed", type=int, default=20, help="of the days that are made up")
    parser.add_argument("--picture", type=Path, default=Path("temperature.png"))
    given = parser.parse_args()
    sys.exit(uvloop.run(main(given.days, given.step, given.seed, given.picture)))
