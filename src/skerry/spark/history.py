"""Archive and topics as one table; `skerry.archive.history` tells how."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def history(
    spark: SparkSession,
    topic: str | None = None,
    *,
    archive: str | Path,
    live: bool = True,
    **options: str,
) -> DataFrame:
    """The events of `topic`, a name or pattern, from an archive and from the topics themselves:
    each once, whatever is published or archived meanwhile. By default all that the archive is of.

    `live=False` reads the archive only. `options` are those of the source that say where the site
    is: `connection`, `data`, `user`, `timeout`. Columns are those of the source, `date`, and the
    decoded fields. Raises `FolderError` if there is no archive, and, when it is run, `TopicError`
    if a topic was made anew since, and `AgedOut` if it lost events that the archive lacks.
    """
    from skerry.archive.history import view

    return view(spark, topic, Path(archive), live, options)
