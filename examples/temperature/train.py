"""Function: learns how warm it is outdoors from how warm the processor is.

Runs on a topic with `cpu/<sensor>` and `outdoor/<sensor>` below it: `smooth`, or, to see what
smoothing is good for, `weather`. Each pair of readings of one minute improves one linear model for
all sensors, by recursive least squares; what it is then goes to `model/<topic>`. Between two events
the model is in the function's state: nothing is forgotten or learnt twice, whatever crashes.
"""

import msgspec
import numpy as np

import skerry
from skerry.functions.context import Context, Event


class Reading(msgspec.Struct):
    at: int
    celsius: float


@skerry.function(decode=Reading)
def train(ctx: Context, event: Event) -> None:
    """Remember a processor's temperature; learn when the thermometer beside it speaks."""
    source, kind, sensor = event.topic.split("/")
    reading: Reading = event.data
    if kind == "cpu":
        ctx.state[sensor] = [reading.at, reading.celsius]
        return
    at, cpu = ctx.state.get(sensor, [None, 0.0])
    if at != reading.at:
        return  # its processor was silent
    model = ctx.state.get("model", {"pairs": 0, "weights": [0.0, 0.0], "spread": [1e4, 0, 0, 1e4]})
    weights, spread = np.array(model["weights"]), np.array(model["spread"]).reshape(2, 2)
    inputs = np.array([1.0, cpu])
    gain = spread @ inputs / (1 + inputs @ spread @ inputs)
    weights = weights + gain * (reading.celsius - inputs @ weights)
    spread = spread - np.outer(gain, inputs @ spread)
    model = {
        "pairs": model["pairs"] + 1,
        "weights": weights.tolist(),
        "spread": spread.ravel().tolist(),
    }
    ctx.state["model"] = model
    ctx.publish(f"model/{source}", {"pairs": model["pairs"], "weights": model["weights"]})
