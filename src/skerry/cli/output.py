"""What is printed, and how: lines, tables, JSON, errors.

Results go to stdout and everything about them to stderr. Colours and control codes are for
terminals only; what is piped has none, and is never folded to a width.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

import msgspec

from skerry.errors import SkerryError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

PIPED_WIDTH = 100_000
"""Columns of output that is no terminal: enough that nothing is ever folded."""


def prepare() -> None:
    """Make the streams of this process safe to print anything to; send warnings to stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="warning: %(message)s", force=True
    )


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether the command line asks for JSON; also before, or without, it being understood."""
    return "--json" in arguments[: _end_of_options(arguments)]


def _end_of_options(arguments: Sequence[str]) -> int:
    return list(arguments).index("--") if "--" in arguments else len(arguments)


def emit(line: str, *, flush: bool = True) -> None:
    """Print a line of a result: at once, or with `flush` off when there is enough of it."""
    sys.stdout.write(line + "\n")
    if flush:
        sys.stdout.flush()


def emit_json(value: object, *, flush: bool = True) -> None:
    """Print one JSON object in one line."""
    emit(msgspec.json.encode(value).decode(), flush=flush)


def emit_document(value: object) -> None:
    """Print a JSON document, indented."""
    emit(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def note(text: str) -> None:
    """Tell a person something about the result."""
    print(text, file=sys.stderr, flush=True)


def report(error: SkerryError, as_json: bool = False, kind: str | None = None) -> int:
    """Print an error to stderr; return its exit code."""
    if as_json:
        fault = {
            "kind": kind or type(error).__name__,
            "what": error.what,
            "advice": error.advice,
            "exit_code": error.exit_code,
        }
        note(msgspec.json.encode({"error": fault}).decode())
        return error.exit_code
    if sys.stderr.isatty():
        from rich.text import Text

        text = Text.assemble(("error: ", "bold red"), error.what)
        text.append(f"\n{error.advice}" if error.advice else "")
        console(sys.stderr).print(text, soft_wrap=True)
    else:
        note(f"error: {error.what}")
        if error.advice:
            note(error.advice)
    return error.exit_code


def console(stream: TextIO | None = None) -> Console:
    """A console on stdout or `stream`: with colours on a terminal only, whatever
    the environment says."""
    from rich.console import Console

    stream = stream or sys.stdout
    terminal = stream.isatty()
    return Console(
        file=stream,
        force_terminal=terminal,
        color_system="auto" if terminal else None,
        width=None if terminal else PIPED_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
    )


def draw(what: RenderableType, stream: TextIO | None = None) -> None:
    """Print something of rich's to stdout or `stream`, without blanks at the ends of lines."""
    screen = console(stream)
    with screen.capture() as capture:
        screen.print(what)
    for line in capture.get().splitlines():
        print(line.rstrip(), file=stream or sys.stdout, flush=True)


def columns(*headings: str) -> Table:
    """An empty table. A heading that begins with `>` is for numbers, aligned to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in headings:
        if heading.startswith(">"):
            table.add_column(heading.removeprefix(">"), justify="right", no_wrap=True)
        else:
            table.add_column(heading, overflow="fold")
    return table


def facts(pairs: Sequence[tuple[str, str]]) -> Table:
    """A table of names and values."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, value)
    return table


def count(number: int, noun: str) -> str:
    """`1 event`, `2,000 events`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
