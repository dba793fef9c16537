"""From clients to a centre and a radius for each topic: what a home reports of them.

The paper takes the mean of the coordinates as the centre. The mean lies where most clients are, and
the worst case is decided by those farthest out; so from the mean we go some steps towards the
centre of the smallest ball around all clients (Bădoiu and Clarkson: each step a smaller part of the
way to the farthest), and take the best centre on the way. The radius is never larger than with the
mean, and the bound W(t, b) that much closer to the truth.
"""

from __future__ import annotations

import msgspec
import numpy as np

from skerry.placement.tables import Array

STEPS = 24
"""Steps from the mean. More than this gains less than 1 % of the radius (measured)."""


class Summary(msgspec.Struct, frozen=True):
    """Clients of one kind, a row for each topic. Topics without any have zeros."""

    centre: Array
    """float32 (topics, dimensions)."""
    radius: Array
    """float32: the largest distance of a client from the centre, its height included."""
    count: Array
    """int32."""
    farthest: Array
    """float64: the largest distance of a client from the home. E(t) is the sum of the publishers'
    and the subscribers', where there are both."""


def summarise(
    topic: Array,
    position: Array,
    height: Array,
    topics: int,
    home: tuple[Array, float],
    steps: int = STEPS,
) -> Summary:
    """Clients as (topic, position, height) columns, in any order, against the position and height
    of the site that all these topics are at. Units as in the tables: ms one way."""
    order = np.argsort(topic, kind="stable")
    group, at = topic[order], position[order].astype(np.float64)
    tall = height[order].astype(np.float64)
    count = np.bincount(group, minlength=topics).astype(np.int32)
    centre = np.zeros((topics, position.shape[1]), np.float32)
    radius = np.zeros(topics, np.float32)
    farthest = np.zeros(topics)
    if not len(group):
        return Summary(centre, radius, count, farthest)
    first = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    present = group[first]
    lengths = count[present]
    best = _centres(at, tall, first, lengths, steps).astype(np.float32)
    # The radius belongs to the centre as it is reported, rounded, and is itself rounded up.
    reach = _reach(at, tall, best.astype(np.float64), lengths)
    radius[present] = np.nextafter(
        np.maximum.reduceat(reach, first).astype(np.float32), np.float32(np.inf)
    )
    centre[present] = best
    there = np.sqrt(((at - np.asarray(home[0], np.float64)) ** 2).sum(axis=1)) + tall + home[1]
    farthest[present] = np.maximum.reduceat(there, first)
    return Summary(centre, radius, count, farthest)


def _centres(at: Array, tall: Array, first: Array, lengths: Array, steps: int) -> Array:
    centre = np.add.reduceat(at, first, axis=0) / lengths[:, None]
    best, smallest = centre, np.full(len(first), np.inf)
    index = np.arange(len(at))
    for step in range(steps + 1):
        reach = _reach(at, tall, centre, lengths)
        radius = np.maximum.reduceat(reach, first)
        better = radius < smallest
        best = np.where(better[:, None], centre, best)
        smallest = np.minimum(radius, smallest)
        if step < steps:
            is_far = reach == np.repeat(radius, lengths)
            far = np.minimum.reduceat(np.where(is_far, index, len(at)), first)
            centre = centre + (at[far] - centre) / (step + 2)
    return best


def _reach(at: Array, tall: Array, centre: Array, lengths: Array) -> Array:
    gap = at - np.repeat(centre, lengths, axis=0)
    reach: Array = np.sqrt((gap * gap).sum(axis=1)) + tall
    return reach
