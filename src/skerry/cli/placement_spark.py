"""`skerry placement spark`: plan by Spark, for fabrics with very many topics."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.common import TIMEOUT, AsJson, in_fabric, run
from skerry.cli.output import count, emit, emit_json, note
from skerry.cli.pipeline import Conf, Master, Memory, read_conf
from skerry.config import default_data

if TYPE_CHECKING:
    from skerry.spark.placement_job import Batch

EXAMPLE = """Examples:
  skerry placement spark
  skerry placement spark --master spark://head:7077 --memory 4g"""


def spark(
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The data folder of a site, with its administrator's credentials.",
            show_default="$SKERRY_DATA or ~/.skerry",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where Spark keeps which records were read.",
            show_default="a temporary folder: it begins with what comes next",
        ),
    ] = None,
    master: Master = None,
    memory: Memory = "1g",
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Have Spark plan, with a line for each batch of records; Ctrl-C ends it.

    The mode of placement becomes `spark`: the leader makes no plans of its own, and carries out
    those of this job, which are the same."""
    from skerry.spark.pipeline_run import Stop, aside
    from skerry.spark.placement_job import PlacementJob
    from skerry.spark.session import session

    os.umask(0o077)
    config = read_conf(conf)
    folder = data or default_data()
    stop = Stop()
    stop.install()
    run(_change_mode(folder))
    note("the mode of placement is spark: the leader carries out what this job plans")
    with tempfile.TemporaryDirectory(prefix="skerry-placement-") as temporary:
        kept = checkpoint or Path(temporary) / "checkpoint"
        kept.mkdir(parents=True, exist_ok=True)
        log = folder / "placement-spark.log"
        with aside(log):
            made = session("skerry placement", master=master, memory=memory, config=config)
        stop.install()  # Spark has set its own
        try:
            job = PlacementJob(made, folder, _print_json if as_json else _print)
            job.run(kept, stop)
        finally:
            with aside(log), suppress(Exception):
                made.stop()
    note("ended; the mode is still spark: have the leader plan with `skerry placement auto on`")


async def _change_mode(folder: Path) -> None:
    async with in_fabric([str(folder)], TIMEOUT, "admin") as client:
        await client.set_placement("spark")


def _print(batch: Batch) -> None:
    """A line a batch."""
    if batch.problem is not None:
        note(f"batch {batch.number}: no plan this time: {batch.problem}")
        return
    with suppress(BrokenPipeError):
        emit(
            f"batch {batch.number}: {count(batch.records, 'record')}, "
            f"{count(batch.topics, 'topic')}, {count(batch.moves, 'move')}, {batch.seconds:.2f} s"
        )


def _print_json(batch: Batch) -> None:
    """A JSON object a batch."""
    with suppress(BrokenPipeError):
        emit_json(batch)
