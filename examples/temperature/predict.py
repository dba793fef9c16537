"""Function: says how warm it is outdoors, where a sensor has no thermometer.

Runs on `smooth/cpu/+`, or on `weather/cpu/+` to see what smoothing is good for. Uses the newest
model that there is, and publishes to `forecast/<topic>/<sensor>`.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

import skerry
from skerry.functions.context import Context, Event


class Reading(msgspec.Struct):
    at: int
    celsius: float


class Model(msgspec.Struct):
    pairs: int
    weights: list[float]


@skerry.function(decode=Reading)
def predict(ctx: Context, event: Event) -> None:
    """Read the newest model and apply it."""
    source, _, sensor = event.topic.split("/")
    if has_thermometer(ctx, sensor):
        return
    index = ctx.latest_index(f"model/{source}")
    if not index:
        return  # nothing is learnt yet
    reading: Reading = event.data
    celsius = float(np.array([1.0, reading.celsius]) @ weights(ctx, source, index))
    ctx.publish(f"forecast/{source}/{sensor}", {"at": reading.at, "celsius": celsius})


_thermometers: set[str] = set()


def has_thermometer(ctx: Context, sensor: str) -> bool:
    """Whether a thermometer ever spoke there. What has one keeps it: we ask until it has."""
    if sensor not in _thermometers and ctx.latest_index(f"weather/outdoor/{sensor}"):
        _thermometers.add(sensor)
    return sensor in _thermometers


_known: dict[tuple[str, int], NDArray[np.float64]] = {}


def weights(ctx: Context, source: str, index: int) -> NDArray[np.float64]:
    """The model with that index. What a log holds never changes, so that one read is enough."""
    if (source, index) not in _known:
        model = msgspec.json.decode(ctx.get(f"model/{source}", index).data, type=Model)
        _known.clear()
        _known[source, index] = np.array(model.weights)
    return _known[source, index]
