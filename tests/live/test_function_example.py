"""The temperature of the air from that of processors: the example's functions, model and run."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from examples.temperature import predict, report, smooth, train, weather
from examples.temperature.report import Forecasts
from examples.temperature.weather import DAY, WITH, WITHOUT, World
from skerry.functions.context import Context, Event

ROOT = Path(__file__).parents[2]
DAYS = 2
"""Days to learn from, before the one to predict."""


class Told:
    """A context of our own: it keeps what is published, and answers from that."""

    def __init__(self, logs: defaultdict[str, list[bytes]]) -> None:
        self.state: dict[str, Any] = {}
        self.logs = logs
        self.new: list[tuple[str, bytes]] = []

    def publish(self, topic: str, data: Any) -> None:
        self.new.append((topic, msgspec.json.encode(data)))

    def latest_index(self, topic: str) -> int:
        return len(self.logs[topic])

    def get(self, topic: str, index: int) -> Event:
        return event_of(topic, index, self.logs[topic][index - 1])


def event_of(topic: str, index: int, data: Any) -> Event:
    return Event(topic, index, 0, None, {}, data)


class Chain:
    """The example's functions, one event at a time."""

    def __init__(self) -> None:
        self.logs: defaultdict[str, list[bytes]] = defaultdict(list)
        self.steps = [
            (smooth.smooth, smooth.Reading, r"weather/.*", Told(self.logs)),
            (train.train, train.Reading, r"smooth/.*", Told(self.logs)),
            (predict.predict, predict.Reading, r"smooth/cpu/[^/]+", Told(self.logs)),
            (train.train, train.Reading, r"weather/.*", Told(self.logs)),
            (predict.predict, predict.Reading, r"weather/cpu/[^/]+", Told(self.logs)),
        ]

    def publish(self, topic: str, data: bytes) -> None:
        self.logs[topic].append(data)
        for function, kind, pattern, context in self.steps:
            if re.fullmatch(pattern, topic):
                reading = msgspec.json.decode(data, type=kind)
                function(cast(Context, context), event_of(topic, len(self.logs[topic]), reading))
                new, context.new = context.new, []
                for output in new:
                    self.publish(*output)


def run(world: World, days: int = DAYS) -> Chain:
    """Have the functions see the whole world; thermometers speak on so many days only."""
    chain = Chain()
    predict._known.clear()  # as in a new worker
    predict._thermometers.clear()
    for row, at in enumerate(world.at):
        for kind, told in (("cpu", world.cpu), ("outdoor", world.outdoor)):
            for sensor, series in told.items():
                if kind == "outdoor" and at >= days * DAY:
                    continue
                reading = {"at": at, "celsius": float(series[row])}
                chain.publish(f"weather/{kind}/{sensor}", msgspec.json.encode(reading))
    return chain


def forecasts(chain: Chain, source: str, since: int) -> Forecasts:
    found: dict[str, dict[int, float]] = {}
    for sensor in WITHOUT:
        events = map(msgspec.json.decode, chain.logs[f"forecast/{source}/{sensor}"])
        found[sensor] = {event["at"]: event["celsius"] for event in events if event["at"] >= since}
    return found


def smoothed(series: weather.Series) -> weather.Series:
    """Exponential smoothing, straight from its sum."""
    share, rows = smooth.SHARE, len(series)
    return np.array(
        [
            (1 - share) ** row * series[0]
            + sum(share * (1 - share) ** (row - k) * series[k] for k in range(1, row + 1))
            for row in range(rows)
        ]
    )


@pytest.fixture(scope="module")
def world() -> World:
    return weather.make(DAYS + 1, 15)


@pytest.fixture(scope="module")
def chain(world: World) -> Chain:
    return run(world)


def test_a_seed_makes_the_same_days(world: World) -> None:
    again, other = weather.make(DAYS + 1, 15), weather.make(DAYS + 1, 15, seed=21)
    for sensor in (*WITH, *WITHOUT):
        assert (again.cpu[sensor] == world.cpu[sensor]).all()
        assert (other.cpu[sensor] != world.cpu[sensor]).any()
    assert set(world.outdoor) == set(WITH)


def test_a_series_is_smoothed_as_the_formula_says(world: World, chain: Chain) -> None:
    for sensor in (*WITH, *WITHOUT):
        found = [msgspec.json.decode(data) for data in chain.logs[f"smooth/cpu/{sensor}"]]
        assert [reading["at"] for reading in found] == world.at
        values = [reading["celsius"] for reading in found]
        np.testing.assert_allclose(values, smoothed(world.cpu[sensor]))


@pytest.mark.parametrize("source", ["smooth", "weather"])
def test_the_model_is_that_of_least_squares(world: World, chain: Chain, source: str) -> None:
    models = [msgspec.json.decode(data) for data in chain.logs[f"model/{source}"]]
    rows = sum(at < DAYS * DAY for at in world.at)
    assert [model["pairs"] for model in models] == list(range(1, rows * len(WITH) + 1))
    change = smoothed if source == "smooth" else np.array
    cpu = np.concatenate([change(world.cpu[sensor][:rows]) for sensor in WITH])
    outdoor = np.concatenate([change(world.outdoor[sensor][:rows]) for sensor in WITH])
    inputs = np.column_stack((np.ones(len(cpu)), cpu))
    expected = np.linalg.lstsq(inputs, outdoor)[0]
    np.testing.assert_allclose(models[-1]["weights"], expected, rtol=1e-3)


def test_only_sensors_without_a_thermometer_are_predicted(chain: Chain) -> None:
    predicted = {topic.split("/")[2] for topic in chain.logs if topic.startswith("forecast/")}
    assert predicted == set(WITHOUT)


def test_errors_are_those_of_the_definition() -> None:
    at, truth = [0, 5], {sensor: np.array([10.0, 20.0]) for sensor in WITHOUT}
    off = {sensor: {0: 13.0, 5: 16.0} for sensor in WITHOUT}
    errors = report.errors(World(at, truth, {}, {}), off)
    assert errors == pytest.approx((3.5, np.sqrt(12.5)))


@pytest.mark.parametrize("seed", [20, 21, 22])
@pytest.mark.parametrize("step", [5, 15])
def test_smoothing_makes_predictions_better(seed: int, step: int) -> None:
    world = weather.make(DAYS + 1, step, seed)
    chain = run(world)
    ours = report.errors(world, forecasts(chain, "smooth", DAYS * DAY))
    baseline = report.errors(world, forecasts(chain, "weather", DAYS * DAY))
    assert ours.mean < 0.9 * baseline.mean
    assert ours.root < 0.9 * baseline.root


@pytest.mark.timeout(300)
async def test_the_example_predicts_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "temperature.png"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "examples.temperature",
        "--days", "1", "--step", "15", "--picture", str(picture),
        env={**os.environ, "COLUMNS": "100"}, cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    output = (await process.communicate())[0].decode()
    assert process.returncode == 0, output
    assert "288 pairs to learn from" in output
    assert re.search(r"smoothing takes \d+ % off the error", output), output
    # The run's errors are those of the functions one event at a time.
    row = re.search(r"all +│ +288 │ +([\d.]+) │ +([\d.]+) │ +([\d.]+) │ +([\d.]+) ", output)
    assert row, output
    world = weather.make(2, 15)
    chain = run(world, days=1)
    raw = report.errors(world, forecasts(chain, "weather", DAY))
    ours = report.errors(world, forecasts(chain, "smooth", DAY))
    expected = raw.mean, ours.mean, raw.root, ours.root
    assert [float(text) for text in row.groups()] == pytest.approx(expected, abs=0.03)
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert list(tmp_path.iterdir()) == [picture]
