"""`skerry sql`: queries over archives and topics together."""

from __future__ import annotations

import csv
import re
import sys
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer

from skerry.cli.archive import session, source_options
from skerry.cli.common import TIMEOUT, AsJson, Connect, Timeout
from skerry.cli.events import readable
from skerry.cli.output import columns, count, draw, emit_json, note
from skerry.errors import BadSetting, SkerryError

EXAMPLE = """Examples:
  skerry sql "select topic, count(*) from sensors group by topic" --archive history
  skerry sql "select max(time) from sensors where topic = 'sensors/roof'" --archive history --json
  skerry sql "select key, value from orders order by index desc limit 5" --topic orders"""

SHOWN = 1000
"""Rows that a person is shown."""


def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A SELECT, as Spark has it.")],
    archive: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER",
            help="An archive, with what its topics hold beyond it; may be repeated. It is a table "
            "named as its topics: sensors/# is sensors, a/+/b is a_b, # is events.",
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPICS", help="A topic or pattern without an archive; may be repeated."
        ),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live/--no-live", help="With what topics hold beyond the archive.")
    ] = True,
    as_csv: Annotated[bool, typer.Option("--csv", metavar="", help="Print CSV.")] = False,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory for Spark: 600m, 2g.")] = "1g",
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Query archives and topics as one table each: every event once.

    Columns are topic, sub_topic, index, time, key, headers, publisher, value, date, and decoded
    fields. `cast(value AS string)` is the payload as text."""
    if as_json and as_csv:
        raise BadSetting("JSON and CSV are asked for", "Give one of them.")
    if not archive and not topic:
        raise BadSetting(
            "there is nothing to query", "Name an archive with --archive, or a topic with --topic."
        )
    from skerry.archive.folder import Archive
    from skerry.model.pattern import Pattern

    views: dict[str, Path | str] = {}
    for folder in archive or ():
        _add(views, view_name(Archive.open(folder).about.topics), folder)
    for name in topic or ():
        _add(views, view_name(Pattern.parse(name).text), name)
    options = source_options(connect, timeout)
    from skerry.archive.faults import translated

    with session("skerry-sql", memory) as spark:
        try:
            for name, what in views.items():
                _view(spark, what, live, options).createOrReplaceTempView(name)
            frame = spark.sql(query)
            _print(frame, as_json, as_csv)
        except (SkerryError, BrokenPipeError):
            raise
        except Exception as error:
            raise _explained(translated(error, "the query"), views) from None


def view_name(topics: str) -> str:
    """The name of the table of a topic or pattern."""
    levels = [level for level in topics.split("/") if level not in ("+", "#")]
    return re.sub(r"\W", "_", "_".join(levels)) or "events"


def _add(views: dict[str, Path | str], name: str, what: Path | str) -> None:
    if name in views:
        raise BadSetting(
            f"{views[name]} and {what} would both be the table {name}", "Query one of them."
        )
    views[name] = what


def _view(spark: Any, what: Path | str, live: bool, options: dict[str, str]) -> Any:
    if isinstance(what, Path):
        from skerry.spark import history

        return history(spark, archive=what, live=live, **options)
    reader = spark.read.format("skerry").options(**options).option("topic", what)
    return reader.load().selectExpr("*", "to_date(time) AS date")


def _explained(error: SkerryError, views: dict[str, Path | str]) -> SkerryError:
    if type(error) is SkerryError:  # Spark's own: the query is wrong
        return BadSetting(error.what, f"Tables: {', '.join(sorted(views))}.")
    return error


def _print(frame: Any, as_json: bool, as_csv: bool) -> None:
    if as_json:
        for row in frame.toLocalIterator():
            emit_json({name: _plain(row[name]) for name in frame.columns}, flush=False)
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(frame.columns)
        writer.writerows(_texts(frame))
    else:
        rows = frame.limit(SHOWN + 1).collect()
        numeric = {"bigint", "int", "smallint", "tinyint", "double", "float"}
        table = columns(
            *(f">{name}" if kind in numeric or kind.startswith("decimal") else name
              for name, kind in frame.dtypes)
        )  # fmt: skip
        for row in rows[:SHOWN]:
            table.add_row(*(_text(value) for value in row))
        draw(table)
        if len(rows) > SHOWN:
            note(f"more than {count(SHOWN, 'row')}; --json and --csv print them all")


def _texts(frame: Any) -> Iterator[list[str]]:
    for row in frame.toLocalIterator():
        yield ["" if value is None else _text(value) for value in row]


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return {"base64": b64encode(value).decode()}
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if hasattr(value, "asDict"):
        return {name: _plain(item) for name, item in value.asDict().items()}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bytes | bytearray):
        return readable(bytes(value))
    plain = _plain(value)
    if isinstance(plain, dict | list):
        import msgspec

        return msgspec.json.encode(plain).decode()
    return plain if isinstance(plain, str) else str(plain)
