"""Helpers for tests of pipelines: run them in the session that all tests share."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from skerry import Client
from skerry.spark import pipeline_code
from skerry.spark.jobs import Folder, Job, Status
from skerry.spark.pipeline import Pipeline
from skerry.spark.pipeline_run import Stop, run

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EXAMPLES = Path(__file__).parents[2] / "examples" / "pipelines"


class Notes:
    """A face that remembers what it was told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.batches: list[tuple[int, int]] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def started(self, pipeline: Pipeline, status: Status) -> None:
        self.said.append("started")

    def batch(self, status: Status) -> None:
        self.batches.append((status.batch, status.batch_rows))

    def idle(self, status: Status) -> None:
        pass

    def ended(self, pipeline: Pipeline, status: Status) -> None:
        self.said.append(status.state)


class Pipelines:
    """Runs pipelines between topics of a site; state goes to `root`."""

    def __init__(self, spark: Any, data: Path, root: Path) -> None:
        self.spark = spark
        self.data = str(data)
        self.root = root
        self.stop = Stop()
        self.notes = Notes()

    def load(self, file: Path, name: str | None = None) -> Pipeline:
        """The pipeline of a file."""
        return pipeline_code.pick(
            pipeline_code.load(pipeline_code.stage(file, self.root)), name, file
        )

    async def run(
        self, given: Pipeline | Path, *, once: bool = True, fresh: bool = False, redo: bool = False
    ) -> Status:
        """Run a pipeline, or that of a file, as far as its topics go now; with `once` off until
        `stop` is asked."""
        copy = pipeline_code.stage(given, self.root) if isinstance(given, Path) else None
        if isinstance(given, Path):
            assert copy is not None
            pipeline = pipeline_code.pick(pipeline_code.load(copy), None, given)
        else:
            pipeline = given
        folder = Folder(self.root, pipeline.name)
        job = Job(
            name=pipeline.name,
            file=copy.name if copy else "x.py",
            origin="test.py",
            targets=[self.data],
            once=once,
            redo=redo,
        )
        folder.take()
        try:
            if fresh:
                folder.begin_anew()
            if copy is not None:
                folder.install(copy, job)
            folder.write("job", job)
            self.notes = Notes()
            return await asyncio.to_thread(
                run, pipeline, folder, job, self.notes, self.stop, self.spark
            )
        finally:
            folder.release()


async def publish(client: Client, topic: str, *records: dict[str, Any]) -> None:
    """Records as JSON; times are seconds after noon."""
    for record in records:
        at = NOON + timedelta(seconds=record["at"])
        await client.publish(topic, json.dumps({**record, "at": at.isoformat()}))


async def results(client: Client, topic: str) -> list[dict[str, Any]]:
    """What a pipeline wrote."""
    return [json.loads(event.data) async for event in client.read(topic)]
