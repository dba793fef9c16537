"""A batch that was begun and is not done, and code that has changed since.

Theory of operation. A batch that broke off is run again, and its rows are known by their ids, which
hash what they say (`sink`). Code that says something else gives other ids, so what the code before
wrote of the batch stays, and the new rows come besides. No other ids would help: rows that are
known by their place in the batch would keep the old code's row in one place and the new code's in
another, and a filter that changed would lose some. So the hash of the code is kept with the shape.
If it is another one, and the sink has rows of the open batch, then a person must choose: to finish
the batch with the code that began it, or to have it written again. Where nothing is written yet, or
nothing is open, code may change.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from skerry.errors import CheckpointMismatch, Unavailable
from skerry.spark.fetch import Lost
from skerry.spark.options import SinkOptions
from skerry.spark.pipeline import Pipeline
from skerry.spark.pipeline_metrics import newest
from skerry.spark.pipeline_shape import Shape
from skerry.spark.seen import Attempt, batch_began, prefix, stored_ids
from skerry.sync import SyncClient


def hash_of(file: Path) -> str:
    """A hash of the code in `file`; nothing if there is none."""
    try:
        return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()
    except FileNotFoundError:
        return ""


def check_code(
    client: SyncClient, pipeline: Pipeline, sink: SinkOptions, stored: Shape, code: str
) -> None:
    """Raise `CheckpointMismatch` if a batch was begun by other code, which has written of it."""
    checkpoint = Path(sink.checkpoint)
    batch = newest(checkpoint / "offsets")
    if not stored.code or stored.code == code or batch <= newest(checkpoint / "commits"):
        return
    if count := _written(client, pipeline, sink, batch):
        raise CheckpointMismatch(
            f"batch {batch} of the pipeline {pipeline.name} is not done, and its code has changed: "
            f"{count:,} rows that the code before made of it are in {pipeline.sink}",
            "Run the code as it was until that batch is done, and change it then. Or go on with "
            "--redo: rows that both make the same are written once, those that they make "
            "differently stay in both forms.",
        )


def _written(client: SyncClient, pipeline: Pipeline, sink: SinkOptions, batch: int) -> int:
    """How many rows of a batch the sink has, with the topics below it."""
    query = json.loads((Path(sink.checkpoint) / "metadata").read_text())["id"]
    began = batch_began(sink.checkpoint, batch)
    name, count = f"{pipeline.sink}/", 0
    for topic in client.topics():
        own = f"{topic.name}/"
        if not (own.startswith(name) or name.startswith(own)):
            continue
        start = {"seq": 1}
        if began is not None:
            start = Attempt(again=True, began=began).start(topic.name, None)
        try:
            ids = stored_ids(sink.addresses(), topic.name, prefix(query, batch), start)
        except (Lost, OSError) as error:
            raise Unavailable(
                f"the home of {topic.name} could not be asked what it has of batch {batch} "
                f"({error})",
                "Look with `skerry doctor`, and run the pipeline again.",
            ) from None
        count += len(ids)
    return count
