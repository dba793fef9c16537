"""`skerry topic move`: give topics another home."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from skerry.cli.common import (
    TIMEOUT,
    AsJson,
    Connect,
    Targets,
    Timeout,
    in_fabric,
    names,
    run,
)
from skerry.cli.output import columns, console, count, draw, emit, emit_document, note
from skerry.errors import SkerryError
from skerry.model.names import check_topic
from skerry.model.topic import Topic

EXAMPLE = """Examples:
  skerry topic move sensors --to farm
  skerry topic move sensors --to farm --replicas hub,lab
  skerry topic list --json | jq -r .[].name | xargs skerry topic move --to hub"""

Outcome = Topic | SkerryError
Done = Callable[[str, Outcome], None]


def move(
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC", help="The topics to move.", show_default=False),
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="SITE", help="The site that becomes their home.")
    ],
    replicas: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SITE",
            help="Where the replicas are from then on: repeated, or SITE,SITE, or none.",
            show_default="where they are",
        ),
    ] = None,
    at_once: Annotated[
        int, typer.Option(metavar="N", min=1, max=1000, help="How many to move at the same time.")
    ] = 16,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Move topics to another site while their clients go on.

    The new home gets the whole log before it takes over. A topic that cannot be moved stays where
    it is and keeps none of the others back; the exit code is then that of the first failure. Needs
    the administrator's credentials, which the data folder holds."""
    wanted = [check_topic(name) for name in dict.fromkeys(topics)]
    members = None if replicas is None else names(replicas)
    if len(wanted) == 1:
        topic = run(_move_one(connect, timeout, wanted[0], to, members))
        if as_json:
            emit_document({"moved": [topic], "failed": []})
        else:
            emit(f"{topic.name} {_lives(topic)}")
        return
    with _progress(len(wanted)) as done:
        outcomes = run(_move_all(connect, timeout, wanted, to, members, at_once, done))
    _report(outcomes, to, as_json)


async def _move_one(
    connect: Targets, timeout: float, name: str, to: str, replicas: list[str] | None
) -> Topic:
    async with in_fabric(connect, timeout, "admin") as client:
        return await client.move_topic(name, to, replicas=replicas)


async def _move_all(
    connect: Targets,
    timeout: float,
    topics: list[str],
    to: str,
    replicas: list[str] | None,
    at_once: int,
    done: Done,
) -> dict[str, Outcome]:
    async with in_fabric(connect, timeout, "admin") as client:
        await client.sites()  # says whether there is a fabric, once and not for every topic
        if replicas is None:
            return await client.move_topics(
                dict.fromkeys(topics, to), at_once=at_once, progress=done
            )
        gate = asyncio.Semaphore(at_once)

        async def one(name: str) -> Outcome:
            async with gate:
                try:
                    outcome: Outcome = await client.move_topic(name, to, replicas=replicas)
                except SkerryError as error:
                    outcome = error
            done(name, outcome)
            return outcome

        return dict(zip(topics, await asyncio.gather(*map(one, topics)), strict=True))


def _report(outcomes: dict[str, Outcome], to: str, as_json: bool) -> None:
    moved = [outcome for outcome in outcomes.values() if isinstance(outcome, Topic)]
    failed = {n: outcome for n, outcome in outcomes.items() if isinstance(outcome, SkerryError)}
    if as_json:
        faults = [
            {
                "topic": name,
                "kind": type(error).__name__,
                "what": error.what,
                "advice": error.advice,
            }
            for name, error in failed.items()
        ]
        emit_document({"moved": moved, "failed": faults})
    else:
        emit(f"{count(len(moved), 'topic')} moved to {to}")
        if failed:
            note(f"not moved: {count(len(failed), 'topic')}")
            table = columns("TOPIC", "WHY")
            for name, error in failed.items():
                table.add_row(name, error.what)
            draw(table, sys.stderr)
            advice = next(iter(failed.values())).advice
            note(advice or "Nothing is lost; try again.")
    if failed:
        raise typer.Exit(next(iter(failed.values())).exit_code)


def _lives(topic: Topic) -> str:
    text = f"has its home at {topic.home} now, epoch {topic.epoch}"
    return f"{text}, replicas at {', '.join(topic.replicas)}" if topic.replicas else text


@contextmanager
def _progress(total: int) -> Iterator[Done]:
    """A progress bar on stderr, for a person at a terminal."""
    if not sys.stderr.isatty():
        yield lambda name, outcome: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console(sys.stderr),
        transient=True,
    ) as progress:
        task = progress.add_task("moving", total=total)
        yield lambda name, outcome: progress.update(task, advance=1, description=name)
