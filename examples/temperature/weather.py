"""The sensors' world, made up: a model with a fixed seed, so that each run sees the same days.

Outdoors, at sensor s and minute t, in degrees Celsius:

    outdoor(s, t) = 16 + 7 sin(2π (t - 9 h) / 24 h) + front(t) + place(s)

`front` is the weather: an Ornstein-Uhlenbeck process, deviation 1.5, forgotten in 12 hours. `place`
is what one place is warmer than another, deviation 0.3. A board's processor is as warm as the air
makes it and its work does:

    cpu(s, t) = 24 + 1.15 outdoor(s, t) + board(s) + work(s, t) + noise

`board` differs from board to board, deviation 0.3. `work` are bursts, one an hour on the average,
of 4 degrees on the average (exponential both), that fade in 10 minutes. The noise has deviation
1.8, and the processor tells its temperature in steps of 0.5. Thermometers are off by a deviation of
0.2 and tell tenths.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]

WITH = ("barn", "creek", "gate")
"""Sensors with a thermometer outdoors."""
WITHOUT = ("orchard", "ridge", "well")
"""Sensors that know no more than how warm their processor is."""
DAY = 24 * 60
"""Minutes."""


class World(NamedTuple):
    """What is true, and what the sensors tell; a row for each minute of `at`."""

    at: list[int]
    truth: dict[str, Series]
    """Outdoors, by sensor: also where nothing measures it."""
    cpu: dict[str, Series]
    outdoor: dict[str, Series]
    """What the thermometers say."""


def make(days: float, step: int, seed: int = 20) -> World:
    """So many days, a reading every `step` minutes."""
    chance = np.random.default_rng(seed)
    minutes = np.arange(0, int(days * DAY), step)
    count = len(minutes)
    daily = 16 + 7 * np.sin(2 * np.pi * (minutes - 9 * 60) / DAY)
    front = 1.5 * _fading(chance.normal(size=count), 12 * 60 / step)
    truth, cpu, outdoor = {}, {}, {}
    for sensor in (*WITH, *WITHOUT):
        truth[sensor] = daily + front + chance.normal(0, 0.3)
        bursts = chance.random(count) < step / 60
        work = _decaying(np.where(bursts, chance.exponential(4, count), 0.0), 10 / step)
        warm = 24 + 1.15 * truth[sensor] + chance.normal(0, 0.3) + work
        cpu[sensor] = np.round(2 * (warm + chance.normal(0, 1.8, count))) / 2
        if sensor in WITH:
            outdoor[sensor] = np.round(truth[sensor] + chance.normal(0, 0.2, count), 1)
    return World(minutes.tolist(), truth, cpu, outdoor)


def _fading(pushes: Series, memory: float) -> Series:
    """An Ornstein-Uhlenbeck process of deviation 1 that forgets in `memory` steps."""
    keep = np.exp(-1 / memory)
    pushes = np.concatenate((pushes[:1], pushes[1:] * np.sqrt(1 - keep**2)))
    return _decaying(pushes, memory)


def _decaying(pushes: Series, memory: float) -> Series:
    """What is left of all pushes so far, each fading in `memory` steps."""
    keep, left, values = np.exp(-1 / memory), 0.0, []
    for push in pushes:
        left = left * keep + push
        values.append(left)
    return np.array(values)
