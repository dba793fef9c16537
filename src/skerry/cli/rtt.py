"""`skerry rtt`: how far apart sites are, measured or estimated."""

from __future__ import annotations

from typing import Annotated

import typer

from skerry.cli.common import TIMEOUT, AsJson, Connect, Timeout, in_fabric, run
from skerry.cli.output import columns, draw, emit_document, facts, note
from skerry.errors import BadSetting
from skerry.model.control import RttInfo

EXAMPLE = "Example: skerry rtt farm lab, or: skerry rtt --matrix"

Sites = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SITE]...",
        help="Two sites: the way between them. One: from it to all others. None: from here.",
        show_default=False,
    ),
]
Matrix = Annotated[
    bool,
    typer.Option(
        "--matrix", metavar="", help="All sites against each other, or those that are named."
    ),
]


def rtt(
    sites: Sites = None,
    matrix: Matrix = False,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Show round-trip times between sites: estimated from their coordinates, and last measured.

    Sites without a link are estimated too, whether or not one of them ever asked the other."""
    named = sites or []
    if len(set(named)) < len(named):
        raise BadSetting("a site is named twice", "Name different sites.")
    matrix = matrix or len(named) > 2

    async def ask() -> tuple[str, list[RttInfo]]:
        async with in_fabric(connect, timeout) as client:
            if matrix or len(named) == 2:
                return client.site, await client.rtt(*named)
            origin = named[0] if named else client.site
            return origin, await client.rtt(origin=origin)

    origin, found = run(ask())
    if as_json:
        emit_document(found)
    elif not found:
        note(f"there is no other site than {origin} yet")
    elif matrix:
        _draw_matrix(found)
    elif len(named) == 2:
        _draw_pair(found[0])
    else:
        _draw_from(found)


def _draw_pair(pair: RttInfo) -> None:
    measured = "never, or not in the last minutes"
    if pair.measured_ms is not None:
        measured = f"{_number(pair.measured_ms)} ms, by {pair.measured_by}"
    between = f"{pair.site} and {pair.peer}"
    draw(facts([("between", between), ("estimate", _estimate(pair)), ("measured", measured)]))


def _draw_from(pairs: list[RttInfo]) -> None:
    """From one site to all others, the nearest first."""
    table = columns("FROM", "TO", ">ESTIMATE", ">ERROR", ">MEASURED", "BY")
    for pair in sorted(pairs, key=_distance):
        table.add_row(
            pair.site,
            pair.peer,
            _with_unit(pair.estimate_ms),
            "-" if pair.error_ms is None else f"± {_number(pair.error_ms)} ms",
            _with_unit(pair.measured_ms),
            pair.measured_by or "-",
        )
    draw(table)


def _draw_matrix(pairs: list[RttInfo]) -> None:
    names = sorted({name for pair in pairs for name in (pair.site, pair.peer)})
    cells = {frozenset((pair.site, pair.peer)): _cell(pair) for pair in pairs}
    table = columns("ms", *(f">{name}" for name in names))
    for one in names:
        table.add_row(one, *(cells.get(frozenset((one, other)), "·") for other in names))
    draw(table)
    if any(pair.measured_ms is None and pair.estimate_ms is not None for pair in pairs):
        note("~ estimated; the others were measured in the last minutes")


def _cell(pair: RttInfo) -> str:
    if pair.best_ms is None:
        return "?"
    return ("~" if pair.measured_ms is None else "") + _number(pair.best_ms)


def _estimate(pair: RttInfo) -> str:
    if pair.estimate_ms is None or pair.error_ms is None:
        return "none yet: one of the two has no coordinate"
    return f"{_number(pair.estimate_ms)} ms ± {_number(pair.error_ms)} ms"


def _distance(pair: RttInfo) -> tuple[float, str]:
    return (float("inf") if pair.best_ms is None else pair.best_ms, pair.peer)


def _with_unit(value: float | None) -> str:
    return "-" if value is None else f"{_number(value)} ms"


def _number(milliseconds: float) -> str:
    """Digits that mean something: 0.31, 4.2, 141."""
    if milliseconds < 1:
        return f"{milliseconds:.2f}"
    return f"{milliseconds:.1f}" if milliseconds < 100 else f"{milliseconds:.0f}"
