"""A place in the space of round-trip times, its distance to others, and how it travels.

Coordinates come from other sites and are not believed blindly: `unpack` and `is_sound` let nothing
through that could spoil a computation.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct

import msgspec

DIMENSIONS = 8
"""As many as Serf has. With 4, accuracy in the end is the same within 2 % on all topologies tried,
but the first ten samples leave a third more error: points that start in one place need room to get
past each other. The price is 16 bytes on the wire and a fifth of the computation."""
HEIGHT_LEAST = 10e-6
"""Seconds. Serf's: two sites are never in the same place, as something lies between them."""
ERROR_MOST = 1.5
"""Relative error of a place that is a mere guess; Serf's. Nothing may claim a larger one."""
REACH = 10.0
"""Seconds. Nothing on Earth is farther away: longer round trips are refused, and no coordinate may
claim to be farther from the origin in any direction."""

_FORM = struct.Struct(f"<B{DIMENSIONS}f3f")
_VERSION = 1


class Coordinate(msgspec.Struct, frozen=True):
    """Where a site is. All but `error` is in seconds."""

    vector: tuple[float, ...] = (0.0,) * DIMENSIONS
    height: float = HEIGHT_LEAST
    """What every packet to or from the site takes besides: its access line."""
    error: float = ERROR_MOST
    """By what part of the truth estimates from here are usually wrong; 0.05: by 5 %."""
    adjustment: float = 0.0
    """What is to be added to distances: below zero where routes to the site break the triangle
    inequality, so that no height would fit."""

    def behind(self, access: float) -> Coordinate:
        """The coordinate of a client that reaches the site in `access` seconds, there and back: all
        that it sends goes through the site, so that it is the site's with a greater height."""
        return msgspec.structs.replace(self, height=self.height + max(access, 0.0))


def raw_between(one: Coordinate, other: Coordinate) -> float:
    """The distance without adjustments, in seconds there and back."""
    return math.dist(one.vector, other.vector) + one.height + other.height


def between(one: Coordinate, other: Coordinate) -> float:
    """The estimated round-trip time in seconds; always above zero."""
    raw = raw_between(one, other)
    adjusted = raw + one.adjustment + other.adjustment
    return adjusted if adjusted > 0 else raw


def is_sound(coordinate: Coordinate) -> bool:
    """Whether it can be a place at all; one that is not came from a broken site, or a lying one."""
    numbers = (*coordinate.vector, coordinate.adjustment)
    return (
        len(coordinate.vector) == DIMENSIONS
        and all(-REACH <= number <= REACH for number in numbers)  # false for NaN, too
        and 0.0 <= coordinate.height <= REACH
        and 0.0 <= coordinate.error <= ERROR_MOST
    )


def pack(coordinate: Coordinate) -> str:
    """60 characters for a record: base64 of a version byte and single-precision numbers."""
    packed = _FORM.pack(
        _VERSION,
        *coordinate.vector,
        coordinate.height,
        coordinate.error,
        coordinate.adjustment,
    )
    return base64.b64encode(packed).decode()


def unpack(text: str) -> Coordinate | None:
    """What `pack` made of a sound coordinate; None for anything else."""
    try:
        version, *numbers = _FORM.unpack(base64.b64decode(text, validate=True))
    except (binascii.Error, struct.error, ValueError):
        return None
    height, error, adjustment = numbers[DIMENSIONS:]
    found = Coordinate(tuple(numbers[:DIMENSIONS]), height, error, adjustment)
    return found if version == _VERSION and is_sound(found) else None
