"""Placement over a table too large for one process: Spark ranks the candidates.

Ranking is nearly all of the work, and no topic's depends on another's: `mapInArrow` has each
partition ranked by the very function that the control plane calls. Only topics that may have to
move come back; choosing among their candidates is a sequence, and is done here. Cells have the same
value however the table is divided, so the moves are those of `skerry.placement.plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from skerry.placement import Plan, PolicySettings, Sites, Topics
from skerry.placement import plan as plan_here
from skerry.placement.arrow import from_arrow, packed, schema, to_arrow, unpacked
from skerry.placement.load import Room, room
from skerry.placement.rank import Candidates, rank
from skerry.placement.select import may_move
from skerry.placement.tables import Array

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = 100_000
"""Topics that are ranked together; their table takes some 20 MB."""
_RANKED = [
    pa.field("site", pa.binary(), False),
    pa.field("ms", pa.binary(), False),
    pa.field("choices", pa.int32(), False),
    pa.field("home_ms", pa.float32(), False),
]


class SparkPlan(msgspec.Struct, frozen=True):
    """A plan, and the rows that it is about: `topics` are those that might have had to move, and
    `rows` says where they are in the whole table."""

    plan: Plan
    topics: Topics
    rows: Array


def plan(topics: DataFrame, sites: Sites, settings: PolicySettings, now: float) -> SparkPlan:
    """As `skerry.placement.plan`, with the topics as a table of `skerry.placement.arrow.to_arrow`.

    The table is read twice, the first time only for topics that are under way: those count at the
    sites they go to. Raises what `skerry.placement.plan` raises; a hole in the table of topics is
    noticed only in a row that may have to move.
    """
    settings.check()
    coming, _ = _topics(topics.where("moving_to >= 0").toArrow())
    have = room(coming, sites, settings)
    frame = topics.mapInArrow(_ranking(sites, settings, have), _ddl())
    table = frame.toArrow().sort_by("row")
    found, rows = _topics(table)
    ranked = _candidates(table)

    made = plan_here(found, sites, settings, now, known=ranked.take)
    return SparkPlan(made, found, rows)


def _ranking(
    sites: Sites, settings: PolicySettings, have: Room
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    over: Array = np.any(have.load > have.over, axis=1)

    def ranked(batches: Iterator[Any]) -> Iterator[Any]:
        for table in _together(batches):
            topics, rows = from_arrow(table)
            cause = may_move(topics, sites, over, settings)
            some = np.flatnonzero(cause | (topics.moving_to >= 0))
            if not len(some):
                continue
            few = topics.take(some)
            best = rank(few, sites, settings, cause[some]).candidates()
            columns = to_arrow(few, rows[some]).combine_chunks().to_batches()[0].columns
            columns += [packed(best.site), packed(best.ms), pa.array(best.choices),
                        pa.array(best.home_ms)]  # fmt: skip
            yield pa.RecordBatch.from_arrays(columns, schema=_schema())

    return ranked


def _together(batches: Iterator[Any]) -> Iterator[Any]:
    """Batches as tables of some size: what ranking needs of the sites is computed for each."""
    waiting: list[Any] = []
    for batch in batches:
        waiting.append(batch)
        if sum(len(each) for each in waiting) >= ROWS:
            yield pa.Table.from_batches(waiting).combine_chunks()
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting).combine_chunks()


def _schema() -> Any:
    return pa.schema([*schema(), *_RANKED])


def _ddl() -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(_schema())


def _topics(table: Any) -> tuple[Topics, Array]:
    return from_arrow(table.combine_chunks())


def _candidates(table: Any) -> Candidates:
    whole = table.combine_chunks()
    return Candidates(
        unpacked(whole.column("site"), "i4"),
        unpacked(whole.column("ms"), "f4"),
        whole.column("choices").to_numpy(),
        whole.column("home_ms").to_numpy(),
    )
