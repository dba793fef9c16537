"""`skerry doctor`: what is wrong, and what to do about it."""

from __future__ import annotations

import typer

from skerry.cli.common import TIMEOUT, AsJson, Connect, Timeout
from skerry.cli.diagnosis import Finding, examine
from skerry.cli.output import columns, draw, emit, emit_document

EXAMPLE = """Examples:
  skerry doctor
  skerry doctor --connect /var/lib/skerry --json"""

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def doctor(connect: Connect = None, timeout: Timeout = TIMEOUT, as_json: AsJson = False) -> None:
    """Check this machine, the data folder and the site; change nothing.

    Each line is ok, a warning or a problem, with what to do about it. The exit code is 1 if there
    is a problem."""
    findings = examine(connect, timeout)
    problems = sum(finding.state == "problem" for finding in findings)
    if as_json:
        emit_document({"healthy": not problems, "findings": findings})
    else:
        _draw(findings)
        warnings = sum(finding.state == "warning" for finding in findings)
        emit(f"{_some(problems, 'problem')}, {_some(warnings, 'warning')}")
    if problems:
        raise typer.Exit(1)


def _draw(findings: list[Finding]) -> None:
    from rich.text import Text

    table = columns("", "", "")
    table.show_header = False
    for finding in findings:
        text = Text(finding.what)
        if finding.advice:
            text.append(f"\n→ {finding.advice}", "bold")
        table.add_row(Text(finding.state, _STYLES[finding.state]), finding.subject, text)
    draw(table)


def _some(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
