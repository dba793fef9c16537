"""Whether latency was above its bound only where it may be: for a while after clients came.

A *window* of a topic begins when clients come to a site where it had none of their kind: a swarm to
another zone, a city into a group. It ends a monitoring period later, plus as long as the move took
that followed, plus `TOLERANCE`. A window of all topics begins with the run, as homes are hashed
then; so many moves are due at once that they wait for each other, and it ends with them.

Judged are steps of half a second: none that lies outside of all windows of its topic may have a
median above the bound, nor be silent. Of those that are it is told in how many the machine itself
was held up: timers in the process of the clients came late by more than `HELD_UP`, or did in the
step before, whose events are still in queues then. They count all the same.
"""

from __future__ import annotations

import msgspec
import numpy as np

from examples.roaming.live import Measured
from examples.roaming.simulate import STEP, Run
from examples.roaming.world import Line, Trace
from skerry.model.placement import PERIOD
from skerry.placement.tables import Array

TOLERANCE = 1.0
"""Seconds that clients need to connect at another site, and that events wait in queues on a machine
that runs all sites at once."""
HELD_UP = 10.0
"""ms. On two cores that others use little it is 5 in most steps."""


class Verdict(msgspec.Struct, frozen=True):
    """What was found."""

    changes: int
    """Windows that began after the start."""
    start: float
    """Seconds until topics had left the homes that they began at."""
    recovered: float
    """Seconds from a topic's last change until the end of a step that was late, at the most; after
    the start."""
    outside: list[tuple[float, int, float]]
    """Second, line and ms of what was late outside of windows."""
    silent: list[tuple[float, int]]
    """Second and line where nothing came, outside of windows."""
    held_up: float
    """Share of the steps in which the machine was."""
    outside_held_up: int
    """How many of `outside` are in those."""
    late_events: float
    """Share of single events outside of windows that were late, in all steps; nan where none were
    counted."""

    @property
    def holds(self) -> bool:
        """Whether it is as it should be."""
        return not self.outside and not self.silent


def started(run: Run) -> float:
    """When the moves that were due at the beginning had ended: then none began for a period."""
    end = 0.0
    for move in sorted(run.moves, key=lambda move: move.at - move.took):
        if move.at - move.took > end + PERIOD:
            break
        end = max(end, move.at)
    return end


def windows(run: Run, where: Trace) -> list[tuple[int, float, float]]:
    """Topic, begin and end of each."""
    found = []
    start = started(run)
    for step, topic in np.argwhere(where.came[: len(run.seconds)]).tolist():
        begin = step * STEP
        close = begin + PERIOD + TOLERANCE
        took = [
            move.took
            for move in run.moves
            if move.topic == topic and move.at > begin and move.at - move.took < close
        ]
        end = close + max(took, default=0.0)
        found.append((topic, begin, max(end, start + TOLERANCE) if step == 0 else end))
    return found


def judge(run: Run, where: Trace, lines: list[Line]) -> Verdict:
    """Look at a run in which clients were at these places."""
    steps = len(run.seconds)
    topics = np.array([line.topic for line in lines])
    found = windows(run, where)
    inside = np.zeros((steps, where.publishes.shape[1]), bool)
    for topic, begin, end in found:
        inside[(run.seconds < end) & (run.seconds + STEP > begin), topic] = True
    outside = ~inside[:, topics]
    held_up = np.zeros(steps, bool)
    late_events = float("nan")
    if isinstance(run, Measured):
        held_up = run.held_up > HELD_UP
        held_up[1:] |= held_up[:-1].copy()
        late_events = int(run.late[outside].sum()) / max(int(run.count[outside].sum()), 1)
    heard = where.heard(lines)[:steps]
    heard[1:] &= heard[:-1].copy()
    is_late = run.latency > run.bound
    return Verdict(
        changes=sum(begin > 0 for _, begin, _ in found),
        start=started(run),
        recovered=_recovered(run, where, is_late, topics),
        outside=[
            (float(run.seconds[step]), line, float(run.latency[step, line]))
            for step, line in np.argwhere(is_late & outside).tolist()
        ],
        silent=[
            (float(run.seconds[step]), line)
            for step, line in np.argwhere(np.isnan(run.latency) & heard & outside).tolist()
        ],
        held_up=float(held_up.mean()),
        outside_held_up=int((is_late & outside & held_up[:, None]).sum()),
        late_events=late_events,
    )


def _recovered(run: Run, where: Trace, is_late: Array, topics: Array) -> float:
    came = where.came[: len(run.seconds)].copy()
    came[0] = False
    last = np.fmax.accumulate(np.where(came, run.seconds[:, None], np.nan), axis=0)
    since = np.nan_to_num(run.seconds[:, None] + STEP - last)  # 0 before the first change
    return float(since[:, topics][is_late].max(initial=0.0))
