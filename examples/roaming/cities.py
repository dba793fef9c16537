"""Cities of the USA, and how far they are from each other."""

from __future__ import annotations

import numpy as np

from skerry.placement.tables import Array

CITIES = {
    "New York": (40.7, -74.0), "Los Angeles": (34.1, -118.2), "Chicago": (41.9, -87.6),
    "Houston": (29.8, -95.4), "Miami": (25.8, -80.2), "Seattle": (47.6, -122.3),
    "Denver": (39.7, -105.0), "Atlanta": (33.7, -84.4), "Dallas": (32.8, -96.8),
    "Phoenix": (33.4, -112.1), "San Francisco": (37.8, -122.4), "Boston": (42.4, -71.1),
    "Minneapolis": (45.0, -93.3), "St. Louis": (38.6, -90.2), "Salt Lake City": (40.8, -111.9),
    "Charlotte": (35.2, -80.8),
}  # fmt: skip
"""Latitude and longitude."""
MS_PER_100_KM = 0.85
"""One way: light in glass takes 0.5, and cables are not straight."""


def city_plane() -> Array:
    """Cities in ms one way, (cities, 2)."""
    degrees = np.array(list(CITIES.values()))
    return np.stack(
        [degrees[:, 1] * np.cos(np.radians(38.0)), degrees[:, 0]], axis=1
    ) * (111.2 / 100 * MS_PER_100_KM)  # fmt: skip
