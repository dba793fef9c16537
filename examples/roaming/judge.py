"""Whether latency was above its bound only where it may be: for a while after clients came.

A *window* of a topic begins when clients come to a site where it had none of their kind: a swarm to
another zone, a city into a group; and with the run, as homes are hashed then. It ends a monitoring
period later, plus as long as the move took that followed, plus `TOLERANCE`. Judged are steps of
half a second: none that lies outside of all windows of its topic may have a median above the bound,
nor be silent.
"""

from __future__ import annotations

import msgspec
import numpy as np

from examples.roaming.live import Measured
from examples.roaming.world import Line, Trace
from skerry.model.placement import PERIOD
from skerry.sim.roaming import STEP, Run

TOLERANCE = 1.0
"""Seconds that clients need to connect at another site, and that events wait in queues on a machine
that runs all sites at once."""


class Verdict(msgspec.Struct, frozen=True):
    """What was found."""

    changes: int
    """Windows that began after the start."""
    recovered: float
    """Seconds from a topic's last change until the end of a step that was late, at the most."""
    outside: list[tuple[float, int, float]]
    """Second, line and ms of what was late outside of windows."""
    silent: list[tuple[float, int]]
    """Second and line where nothing came, outside of windows."""
    late_events: float
    """Share of single events outside of windows that were late; nan where none were counted."""

    @property
    def holds(self) -> bool:
        """Whether it is as it should be."""
        return not self.outside and not self.silent


def windows(run: Run, where: Trace) -> list[tuple[int, float, float]]:
    """Topic, begin and end of each."""
    found = []
    for step, topic in np.argwhere(where.came[: len(run.seconds)]).tolist():
        begin = step * STEP
        close = begin + PERIOD + TOLERANCE
        took = [
            move.took
            for move in run.moves
            if move.topic == topic and move.at > begin and move.at - move.took < close
        ]
        found.append((topic, begin, close + max(took, default=0.0)))
    return found


def judge(run: Run, where: Trace, lines: list[Line]) -> Verdict:
    """Look at a run in which clients were at these places."""
    steps = len(run.seconds)
    topics = np.array([line.topic for line in lines])
    is_late = run.latency > run.bound
    inside = np.zeros((steps, where.publishes.shape[1]), bool)
    found = windows(run, where)
    for topic, begin, end in found:
        inside[(run.seconds < end) & (run.seconds + STEP > begin), topic] = True
    outside = ~inside[:, topics]
    began = np.where(where.came[:steps], run.seconds[:, None], 0.0)
    since = (run.seconds[:, None] + STEP - np.maximum.accumulate(began, axis=0))[:, topics]
    heard = where.heard(lines)[:steps]
    heard[1:] &= heard[:-1].copy()
    late_events = float("nan")
    if isinstance(run, Measured) and (count := int(run.count[outside].sum())):
        late_events = int(run.late[outside].sum()) / count
    return Verdict(
        changes=sum(begin > 0 for _, begin, _ in found),
        recovered=float(since[is_late].max(initial=0.0)),
        outside=[
            (float(run.seconds[step]), line, float(run.latency[step, line]))
            for step, line in np.argwhere(is_late & outside).tolist()
        ],
        silent=[
            (float(run.seconds[step]), line)
            for step, line in np.argwhere(np.isnan(run.latency) & heard & outside).tolist()
        ],
        late_events=late_events,
    )
