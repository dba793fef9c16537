"""Network coordinates: how far apart any two sites are, most of them without ever being asked.

Every site has a place in a space with eight dimensions and a height (`coordinate`), found from the
round-trip times to some others (`position`, `fit`). The distance of two places is the round-trip
time that two sites would measure. Everything here is pure: samples and the time in, state out. What
measures and spreads it is `skerry.fabric.distances`.
"""

from skerry.coords.coordinate import Coordinate, between, pack, unpack
from skerry.coords.estimates import Known, estimate
from skerry.coords.position import Position
from skerry.coords.steady import Steady

__all__ = ["Coordinate", "Known", "Position", "Steady", "between", "estimate", "pack", "unpack"]
