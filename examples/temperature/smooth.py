"""Function: takes the jumps out of every series, by exponential smoothing.

Runs on `weather`; what comes from `weather/cpu/ridge` goes to `smooth/cpu/ridge`.
"""

import msgspec

import skerry
from skerry.functions.context import Context, Event

SHARE = 0.2
"""Of a new reading in the smoothed value. Less is smoother, and later: with a reading every five
minutes the value lags behind by (1 - 0.2) / 0.2 readings, 20 minutes."""


class Reading(msgspec.Struct):
    at: int
    celsius: float


@skerry.function(decode=Reading)
def smooth(ctx: Context, event: Event) -> None:
    """Keep one value a series, and publish it each time it changes."""
    reading: Reading = event.data
    before = ctx.state.get(event.topic, reading.celsius)
    value = before + SHARE * (reading.celsius - before)
    ctx.state[event.topic] = value
    ctx.publish("smooth/" + event.topic.partition("/")[2], {"at": reading.at, "celsius": value})
