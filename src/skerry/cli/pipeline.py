"""`skerry pipeline`: run, deploy, list, logs, stop."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skerry import errors
from skerry.cli.common import AsJson, Connect, Targets, find_targets
from skerry.cli.output import columns, draw, emit, emit_document, note
from skerry.config import default_data
from skerry.errors import BadSetting, PipelineFailed, SkerryError, Unavailable, UnknownPipeline
from skerry.model.quantities import show_duration

if TYPE_CHECKING:
    from skerry.spark.jobs import Folder, Job, Listed
    from skerry.spark.pipeline import Pipeline

RUN_EXAMPLE = """Examples:
  skerry pipeline run alerts.py
  skerry pipeline run shop.py:paid --once"""
DEPLOY_EXAMPLE = "Example: skerry pipeline deploy alerts.py --memory 2g"
LIST_EXAMPLE = "Example: skerry pipeline list --json"
LOGS_EXAMPLE = "Example: skerry pipeline logs alerts -f"
STOP_EXAMPLE = "Example: skerry pipeline stop alerts"

START_TIME = 120.0
"""Seconds that `deploy` waits for the first sign of life; a session takes 5 to 30."""
STOP_TIME = 60.0
"""Seconds that `stop` waits; a supervisor kills what does not end after 30."""

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE.py[:NAME]", help="The file with the pipeline, and which, if it has several."
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The pipeline's name.")]
StateFolder = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="FOLDER",
        help="Where checkpoints, copies of the code and logs are kept.",
        show_default="pipelines/ in the site's data folder",
    ),
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh",
        metavar="",
        help="Forget the checkpoint: read and write from the start again.",
    ),
]
Redo = Annotated[
    bool,
    typer.Option(
        "--redo",
        metavar="",
        help="Write the batch again that the code before it changed has left half written.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Where Spark runs: local[2], spark://host:7077.",
        show_default="all cores of this machine",
        rich_help_panel="Spark",
    ),
]
Memory = Annotated[
    str, typer.Option(metavar="SIZE", help="The driver's heap.", rich_help_panel="Spark")
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help="A setting of Spark's own; repeat it.", rich_help_panel="Spark"
    ),
]


def run(
    file: File,
    once: Annotated[
        bool, typer.Option("--once", metavar="", help="End when everything there is was read.")
    ] = False,
    fresh: Fresh = False,
    redo: Redo = False,
    state: StateFolder = None,
    master: Master = None,
    memory: Memory = "1g",
    conf: Conf = None,
    connect: Connect = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline here, with a line for each batch; Ctrl-C ends it in order.

    It goes on where it was when it last ran, deployed or not."""
    from skerry.cli.progress import make_progress
    from skerry.spark.pipeline_run import Stop
    from skerry.spark.pipeline_run import run as run_pipeline

    os.umask(0o077)
    prepared = _prepared(file, fresh, redo, state, master, memory, conf, connect, once)
    with prepared as (folder, job, made), make_progress(as_json) as face:
        run_pipeline(made, folder, job, face, Stop())


def deploy(
    file: File,
    fresh: Fresh = False,
    redo: Redo = False,
    state: StateFolder = None,
    master: Master = None,
    memory: Memory = "1g",
    conf: Conf = None,
    connect: Connect = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline in the background, on and on: it is started anew after a crash.

    A copy of the file runs: later edits count when you deploy it again. Returns when the pipeline
    runs, or with the reason why it does not."""
    from skerry.spark.java import find_java
    from skerry.spark.jobs_supervisor import spawn
    from skerry.spark.pipeline_run import check_topics
    from skerry.sync import connect as connect_now

    os.umask(0o077)
    with _prepared(file, fresh, redo, state, master, memory, conf, connect) as (folder, job, made):
        with connect_now(list(job.targets), timeout=10.0, name="skerry-cli") as client:
            check_topics(client, made)
        find_java()
        _forget_error(folder)
        spawn(folder)
    listed = _wait_for_start(folder, as_json)
    if as_json:
        emit_document(listed)
        return
    emit(f"pipeline {made.name} runs as process {listed.pid}; its state is in {folder.path}")
    emit(f"See `skerry pipeline list`, `skerry pipeline logs {made.name} -f`.")


def list_pipelines(
    state: StateFolder = None, connect: Connect = None, as_json: AsJson = False
) -> None:
    """List the pipelines of this machine, and how far they are."""
    from skerry.spark.jobs import folders

    root = _root(state, find_targets(connect))
    found = [listed for folder in folders(root) if (listed := folder.look()) is not None]
    if as_json:
        emit_document(found)
        return
    if not found:
        note("no pipelines yet; run one with `skerry pipeline run FILE.py`")
        return
    table = columns(
        "PIPELINE", "STATE", ">PID", ">ROWS", ">ROWS/S", ">LAG", ">STATE ROWS", ">BATCH",
        "LAST BATCH", ">RESTARTS",
    )  # fmt: skip
    for each in found:
        table.add_row(*_row(each))
    draw(table)
    for each in found:
        if each.error:
            note(f"{each.name}: {each.error}")


def logs(
    name: Name,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", metavar="", help="Go on as it grows, until Ctrl-C.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", min=0, help="Begin with the last N lines.")
    ] = 100,
    state: StateFolder = None,
    connect: Connect = None,
) -> None:
    """Print what a deployed pipeline says."""
    from skerry.spark.jobs import find

    folder = find(_root(state, find_targets(connect)), name)
    if not folder.log.exists():
        raise UnknownPipeline(
            f"the pipeline {name} was never deployed, and has no log",
            "One that runs in the foreground says everything there.",
        )
    with folder.log.open("r", errors="replace") as file:
        for line in file.readlines()[-lines:] if lines else []:
            sys.stdout.write(line)
        sys.stdout.flush()
        file.seek(0, os.SEEK_END)
        try:
            while follow:
                _print_more(folder.log, file.fileno())
                time.sleep(0.2)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def stop(
    name: Name, state: StateFolder = None, connect: Connect = None, as_json: AsJson = False
) -> None:
    """Stop a pipeline in order; it goes on where it was when it is deployed or run again."""
    from skerry.spark.jobs import find

    folder = find(_root(state, find_targets(connect)), name)
    pid = folder.holder()
    if not pid:
        listed = folder.look()
        raise UnknownPipeline(
            f"the pipeline {name} does not run: it is {listed.state if listed else 'unknown'}",
            "See `skerry pipeline list`.",
        )
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIME
    while folder.holder():
        if time.monotonic() > deadline:
            raise Unavailable(
                f"the pipeline {name} did not end within {STOP_TIME:.0f} s",
                f"See `skerry pipeline logs {name}`; its process is {pid}.",
            )
        time.sleep(0.05)
    listed = folder.look()
    assert listed is not None
    if as_json:
        emit_document(listed)
    else:
        emit(f"pipeline {name} is stopped after {listed.status.rows:,} rows")


@contextmanager
def _prepared(
    target: str,
    fresh: bool,
    redo: bool,
    state: Path | None,
    master: str | None,
    memory: str,
    conf: list[str] | None,
    connect: Targets,
    once: bool | None = None,
) -> Iterator[tuple[Folder, Job, Pipeline]]:
    """A pipeline whose code is in its folder, which is locked for this block. `once` is None for
    one that is deployed."""
    from skerry.spark import pipeline_code
    from skerry.spark.jobs import Folder, Job, clean

    file, name = pipeline_code.split_target(target)
    config = read_conf(conf)
    targets = [_absolute(each) for each in find_targets(connect)] or [str(default_data())]
    root = _root(state, targets)
    clean(root)
    copy = pipeline_code.stage(file, root)
    try:
        made = pipeline_code.pick(pipeline_code.load(copy), name, file)
        folder = Folder(root, made.name)
        folder.take()
    except BaseException:
        shutil.rmtree(copy.parent, ignore_errors=True)
        raise
    try:
        if fresh:
            folder.begin_anew()
        job = Job(
            name=made.name,
            file=file.name,
            origin=str(file),
            targets=targets,
            master=master,
            memory=memory,
            config=config,
            once=bool(once),
            redo=redo,
            deployed=once is None,
        )
        folder.install(copy, job)
        yield folder, job, made
    finally:
        folder.release()


def _root(state: Path | None, targets: list[str]) -> Path:
    """The folder that holds the state of all pipelines."""
    if state is not None:
        return state.expanduser().absolute()
    if len(targets) > 1 or any("://" in target for target in targets):
        path = None
    else:
        path = Path(targets[0]).expanduser() if targets else default_data()
        if path.is_file():  # <data>/credentials/sdk.json
            path = path.parent.parent if path.parent.name == "credentials" else None
    if path is None:
        raise BadSetting(
            "the site's data folder is not known here, where checkpoints would be kept",
            "Name a folder for them with --state.",
        )
    if not path.is_dir():
        raise Unavailable(
            f"no site was ever started in {path}",
            "Start one with `skerry up`, or name one with --connect.",
        )
    return path.absolute() / "pipelines"


def _absolute(target: str) -> str:
    return target if "://" in target else str(Path(target).expanduser().absolute())


def read_conf(given: list[str] | None) -> dict[str, str]:
    """Settings of Spark's own, as `--conf` gives them."""
    return dict(_setting(text) for text in given or ())


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise BadSetting(f"{text!r} is no setting of Spark", "Write --conf spark.some.key=value.")
    return key, value


def _forget_error(folder: Folder) -> None:
    """What an earlier run ended with must not be taken for the end of this one."""
    from skerry.spark.jobs import Status

    (folder.path / "supervisor.json").unlink(missing_ok=True)
    if (status := folder.read("status", Status)) is not None:
        status.end(None)
        folder.write("status", status)


def _wait_for_start(folder: Folder, as_json: bool) -> Listed:
    deadline = time.monotonic() + START_TIME
    if sys.stderr.isatty() and not as_json:
        note("starting Spark …")
    while time.monotonic() < deadline:
        listed = folder.look()
        if listed is not None and listed.state in ("running", "done"):
            return listed
        if listed is not None and listed.state in ("failed", "waiting", "lost", "stopped"):
            raise _reason(folder.name, listed)
        time.sleep(0.1)
    raise Unavailable(
        f"the pipeline {folder.name} has not begun within {START_TIME:.0f} s",
        f"It goes on trying; see `skerry pipeline logs {folder.name}`.",
    )


def _reason(name: str, listed: Listed) -> SkerryError:
    """Why a pipeline does not run, as the error that its own process ended with."""
    kind = getattr(errors, listed.status.kind, PipelineFailed)
    what = listed.error or f"the pipeline {name} is {listed.state}"
    advice = listed.advice or f"See `skerry pipeline logs {name}`."
    if listed.state == "waiting":
        advice += f" It is tried again and again until you `skerry pipeline stop {name}`."
    made: SkerryError = kind(what, advice)
    return made


def _row(each: Listed) -> list[str]:
    status = each.status
    lag = f"{status.lag_events:,}"
    if status.lag_seconds:
        lag += f" ({show_duration(status.lag_seconds)})"
    ago = "-"
    if status.batch_time is not None:
        seconds = max((datetime.now(UTC) - status.batch_time).total_seconds(), 0.001)
        ago = f"{show_duration(seconds)} ago, {status.batch_ms} ms"
    return [
        each.name,
        each.state,
        str(each.pid or "-"),
        f"{status.rows:,}",
        f"{status.rows_s:,.0f}",
        lag,
        f"{status.state_rows:,}",
        str(status.batch) if status.batch >= 0 else "-",
        ago,
        str(each.restarts),
    ]


def _print_more(log: Path, file: int) -> None:
    """Print what was added; begin again with a log that was turned over."""
    if os.lseek(file, 0, os.SEEK_CUR) > log.stat().st_size:
        os.lseek(file, 0, os.SEEK_SET)
    while chunk := os.read(file, 65536):
        sys.stdout.write(chunk.decode("utf-8", "replace"))
    sys.stdout.flush()
