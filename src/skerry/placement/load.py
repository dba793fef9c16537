"""What topics use of a site, and what a site has left.

Amounts are whole numbers (millionths of a core, bytes, thousandths of an event/s) in float64, which
adds them exactly: the sum is the same in whatever order, so that a plan does not depend on how its
work was divided.
"""

from __future__ import annotations

import msgspec
import numpy as np

from skerry.placement.settings import PolicySettings
from skerry.placement.tables import Array, Sites, Topics

UNITS = np.array([1e6, 1.0, 1.0, 1.0, 1e3])
"""Amounts of each of `RESOURCES` in one of its units."""
BOUNDLESS = 2.0**60
"""Stands for a capacity without limit."""


class Room(msgspec.Struct, frozen=True):
    """Each site's load and limits, in whole amounts."""

    load: Array
    over: Array
    """Above it the site is overloaded."""
    fill: Array
    """Up to it the site takes topics."""


def room(topics: Topics, sites: Sites, settings: PolicySettings) -> Room:
    """What the sites have. Topics on their way to a site are counted there already; those that
    leave one are counted until they have left: while a log moves, both sites carry it."""
    load = np.ceil(sites.load * UNITS)
    limit = np.minimum(sites.capacity * UNITS * np.array(settings.thresholds), BOUNDLESS)
    coming = topics.moving_to >= 0
    if coming.any():
        np.add.at(load, topics.moving_to[coming], needs(topics.take(coming, names=False), sites))
    return Room(load, np.floor(limit), np.floor(limit * settings.fill))


def needs(topics: Topics, sites: Sites) -> Array:
    """What each topic takes of a site that becomes its home, (rows, resources).

    Cores and memory are those of its home by its share of the home's events: "two topics with an
    identical message rate incur identical load" (ePulsar, section 3.4.3)."""
    rate = topics.rate_in + topics.rate_out
    total = sites.load[:, 4][topics.home]
    share = np.divide(rate, total, out=np.zeros_like(rate), where=total > 0)
    np.minimum(share, 1.0, out=share)
    found = np.empty((len(topics), len(UNITS)))
    found[:, 0] = sites.load[:, 0][topics.home] * share
    found[:, 1] = sites.load[:, 1][topics.home] * share
    found[:, 2] = rate * topics.event_bytes
    found[:, 3] = topics.stored_bytes
    found[:, 4] = rate
    found *= UNITS
    return np.ceil(found, out=found)


def replica_needs(topics: Topics) -> Array:
    """What each topic takes of a site that holds a replica: the log, and the stream into it."""
    found = np.zeros((len(topics), len(UNITS)))
    found[:, 2] = topics.rate_in * topics.event_bytes
    found[:, 3] = topics.stored_bytes
    found[:, 4] = topics.rate_in
    found *= UNITS
    return np.ceil(found, out=found)
