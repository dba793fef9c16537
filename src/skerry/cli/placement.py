"""`skerry placement`: what it would do, do it, let it do so, and how it is."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

import typer

from skerry.cli.common import (
    TIMEOUT,
    AsJson,
    Connect,
    Targets,
    Timeout,
    TopicName,
    in_fabric,
    run,
)
from skerry.cli.output import columns, count, draw, emit, emit_document, facts, note
from skerry.errors import BadSetting
from skerry.model.placement import MoveReport, PlacementSettings, PlacementStatus, PlanAnswer
from skerry.model.quantities import parse_duration, show_duration, show_size

PLAN_EXAMPLE = "Example: skerry placement plan"
APPLY_EXAMPLE = "Example: skerry placement apply"
AUTO_EXAMPLE = "Example: skerry placement auto on"
SET_EXAMPLE = """Examples:
  skerry placement set --period 2s
  skerry placement set --infeasible stay --cool-down 1m"""
PIN_EXAMPLE = """Examples:
  skerry placement pin orders
  skerry placement pin orders --off"""
STATUS_EXAMPLE = "Example: skerry placement status"

MOVE_FAILED = 1


def plan(connect: Connect = None, timeout: Timeout = TIMEOUT, as_json: AsJson = False) -> None:
    """Show which topics should move, where to and why; and which should and cannot.

    Nothing is moved. The first time, all sites begin to report, which takes a second."""

    async def ask() -> PlanAnswer:
        async with in_fabric(connect, timeout) as client:
            return await client.placement_plan()

    answer = run(ask())
    if as_json:
        emit_document(answer)
        return
    if answer.moves:
        table = columns("TOPIC", "FROM", "TO", "REPLICAS", "WHY")
        for move in answer.moves:
            replicas = ", ".join(move.replicas) or "-"
            table.add_row(move.topic, move.source, move.target, replicas, move.reason)
        draw(table)
    else:
        emit(f"nothing to move: {count(answer.topics, 'topic')} looked at")
    if answer.stays:
        table = columns("STAYS", "AT", "WHY")
        for stay in answer.stays:
            table.add_row(stay.topic, stay.home, stay.reason)
        draw(table)
    if answer.silent:
        note(
            f"nothing fresh is known of {', '.join(answer.silent)}: nothing moves there, nor away "
            "from there; see `skerry placement status`"
        )
    if answer.moves:
        note(
            "placement is automatic, and does so by itself"
            if answer.mode == "auto"
            else "do it with `skerry placement apply`"
        )


def apply(connect: Connect = None, timeout: Timeout = TIMEOUT, as_json: AsJson = False) -> None:
    """Make a plan and carry it out, while clients go on.

    A topic that cannot be moved stays where it is and keeps none of the others back; the exit code
    is then 1. Needs the administrator's credentials, which the data folder holds."""

    async def ask() -> list[MoveReport]:
        async with in_fabric(connect, timeout, "admin") as client:
            return await client.placement_apply()

    reports = run(ask())
    failed = [report for report in reports if report.outcome == "failed"]
    if as_json:
        emit_document(reports)
    elif not reports:
        emit("nothing to move")
    else:
        _draw_results(reports)
    if failed:
        if not as_json:
            note("Nothing is lost. A topic that could not be moved is tried again after a while.")
        raise typer.Exit(MOVE_FAILED)


def auto(
    state: Annotated[
        Literal["on", "off", "spark"],
        typer.Argument(
            help="on: the leader carries out its plans. off: plans are only shown. spark: it "
            "carries out the plans of a job of Spark's.",
            show_default=False,
        ),
    ],
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Have topics moved near their clients without being asked, or no more.

    Needs the administrator's credentials, which the data folder holds."""
    mode = "auto" if state == "on" else state
    settings = _change(connect, timeout, {"mode": mode})
    if as_json:
        emit_document(settings)
        return
    emit(
        {
            "auto": "placement is automatic: topics whose bound is broken, and topics of "
            f"overloaded sites, move; sites report every {show_duration(settings.period)}",
            "off": "placement is off: plans are shown, and carried out with `skerry placement "
            "apply`",
            "spark": "placement carries out what comes in the topic placement/plans",
        }[settings.mode]
    )


def change(
    period: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How often sites report.", show_default="5s"),
    ] = None,
    infeasible: Annotated[
        Literal["stay", "least-bad"] | None,
        typer.Option(
            help="What a topic does that no site suits: it stays, or goes where it is less bad.",
            show_default="least-bad",
        ),
    ] = None,
    cool_down: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="How long a topic rests after a move.", show_default="30s"
        ),
    ] = None,
    late_cool_down: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="… though its bound is broken, if that is less.",
            show_default="4s",
        ),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            min=0.0,
            max=0.9,
            help="By which share of its bound a topic must be better off at a new home.",
            show_default="0.05",
        ),
    ] = None,
    at_once: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=1000, help="How many move at a time.", show_default="16"
        ),
    ] = None,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Change how placement decides.

    Needs the administrator's credentials, which the data folder holds."""
    given: dict[str, Any] = {
        "period": None if period is None else parse_duration(period),
        "when_infeasible": None if infeasible is None else infeasible.replace("-", "_"),
        "cool_down": None if cool_down is None else parse_duration(cool_down),
        "late_cool_down": None if late_cool_down is None else parse_duration(late_cool_down),
        "margin": margin,
        "at_once": at_once,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise BadSetting("there is nothing to change", "Give a setting, such as --period 2s.")
    settings = _change(connect, timeout, changes)
    if as_json:
        emit_document(settings)
    else:
        draw(facts(_settings(settings)))


def pin(
    topic: TopicName,
    off: Annotated[bool, typer.Option("--off", metavar="", help="Let it move again.")] = False,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Have placement leave a topic where it is.

    `skerry topic move` and the loss of a site move it all the same. Needs the administrator's
    credentials, which the data folder holds."""

    async def ask() -> None:
        async with in_fabric(connect, timeout, "admin") as client:
            await client.pin_topic(topic, not off)

    run(ask())
    if as_json:
        emit_document({"topic": topic, "pinned": not off})
    else:
        emit(f"{topic} may be moved again" if off else f"{topic} stays where it is")


def status(connect: Connect = None, timeout: Timeout = TIMEOUT, as_json: AsJson = False) -> None:
    """Show how placement runs, what sites report of themselves, and the last moves."""

    async def ask() -> PlacementStatus:
        async with in_fabric(connect, timeout) as client:
            return await client.placement_status()

    found = run(ask())
    if as_json:
        emit_document(found)
        return
    if not found.running:
        emit("placement is not used yet")
        note("Begin with `skerry placement plan`, or `skerry topic set TOPIC --latency 40ms`.")
        return
    fates = ", ".join(
        f"{number:,} {fate}" for fate, number in sorted(found.fates.items()) if number
    )
    draw(
        facts(
            [
                *_settings(found.settings),
                ("topics with a bound", f"{found.bounded:,}"),
                ("pinned", ", ".join(found.pinned) or "none"),
                ("moving now", f"{len(found.moving):,}, {found.queued:,} waiting"),
                ("records", fates or "none"),
            ]
        )
    )
    table = columns(
        "SITE", "REPORTS", ">TOPICS", ">CPU", ">MEMORY", ">BANDWIDTH", ">DISK", ">EVENTS/S",
        ">RECORD",
    )  # fmt: skip
    for site in found.sites:
        if site.age < 0:
            table.add_row(site.site, "not yet")
            continue
        reports = f"{site.age:.0f} s ago" + ("" if site.fresh else ", too old to count")
        table.add_row(
            site.site, reports, f"{site.topics:,}", f"{site.cpu:.0%}", f"{site.memory:.0%}",
            f"{site.bandwidth:.0%}", f"{site.disk:.0%}", f"{site.rate:,.0f}",
            show_size(site.record_bytes),
        )  # fmt: skip
    draw(table)
    if found.results:
        _draw_results(found.results[:10])


def _change(connect: Targets, timeout: float, changes: dict[str, Any]) -> PlacementSettings:
    async def ask() -> PlacementSettings:
        async with in_fabric(connect, timeout, "admin") as client:
            return await client.set_placement(**changes)

    return run(ask())


def _settings(settings: PlacementSettings) -> list[tuple[str, str]]:
    policy = ", ".join(f"{name} {value}" for name, value in sorted(settings.policy.items()))
    return [
        ("mode", settings.mode),
        ("sites report every", show_duration(settings.period)),
        ("moves at a time", f"{settings.at_once:,}"),
        ("policy", policy or "as usual"),
    ]


def _draw_results(reports: list[MoveReport]) -> None:
    table = columns("TOPIC", "FROM", "TO", "OUTCOME", ">TOOK", "WHY")
    for report in reports:
        took = f"{report.seconds:.2f} s" if report.outcome != "dropped" else "-"
        why = report.why or report.reason
        table.add_row(report.topic, report.source, report.target, report.outcome, took, why)
    draw(table, sys.stdout)
