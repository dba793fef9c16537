"""`skerry fabric`: begin a fabric, and let sites join it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from skerry.cli.common import TIMEOUT, AsJson, Connect, Timeout, in_fabric, run
from skerry.cli.output import emit, emit_document, note
from skerry.config import DEFAULT_LINK_PORT, default_data
from skerry.errors import BadSetting
from skerry.model.names import check_site
from skerry.model.quantities import parse_duration, show_duration

INIT_EXAMPLE = """Examples:
  skerry fabric init
  skerry fabric init --site hub --data /var/lib/skerry --name coast"""
TOKEN_EXAMPLE = """Examples:
  skerry fabric token
  skerry fabric token --life 1h > token; skerry up --site farm --join-file token"""  # noqa: S105

DEFAULT_SITE = "hub"
LONGEST_NAME = 64
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def init(
    site: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The site that coordinates the fabric.",
            show_default=f"the data folder's, or {DEFAULT_SITE}",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Its data folder; it is made if need be.",
            show_default="$SKERRY_DATA or ~/.skerry",
        ),
    ] = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="What people call the fabric.")
    ] = "skerry",
    as_json: AsJson = False,
) -> None:
    """Begin a fabric: several sites whose topics can live anywhere among them.

    The site of the data folder becomes its coordination site; it keeps the directory and must be
    reachable by the others. It must not be running. Topics that it has already become topics of the
    fabric."""
    from skerry.engine.binary import find_binary
    from skerry.engine.folder import Folder
    from skerry.fabric.join import begin
    from skerry.site.options import site_of

    path = (data or default_data()).expanduser().absolute()
    site = check_site(site or site_of(path) or DEFAULT_SITE)
    _check_name(name)
    folder = Folder.open(path, site, find_binary()[1])
    try:
        membership = begin(folder, name)
    finally:
        folder.close()
    where = "" if path == default_data().expanduser().absolute() else shlex.quote(str(path))
    start = f"skerry up --site {site}{f' --data {where}' if where else ''}"
    start += f" --tier hub --link-port {DEFAULT_LINK_PORT}"
    token = f"skerry fabric token{f' --connect {where}' if where else ''}"
    if as_json:
        emit_document(
            {
                "fabric": membership.name,
                "id": membership.id,
                "site": site,
                "data": str(path),
                "next": [start, token],
            }
        )
        return
    emit(f"site {site} in {path} coordinates the new fabric {name}")
    emit(f"Start it with `{start}`, and with --host and --advertise for sites on other machines.")
    emit(f"Then let each other site join with a token of its own: `{token}`.")


def token(
    life: Annotated[
        str, typer.Option(metavar="DURATION", help="How long the token is good for.")
    ] = "24h",
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Print a token with which one site can join the fabric: nothing else goes to stdout.

    Whoever has the token can join, once; hand it over in secret. Needs the administrator's
    credentials, which the data folder holds."""
    from skerry.fabric.join import read_token

    seconds = parse_duration(life)

    async def ask() -> str:
        async with in_fabric(connect, timeout, "admin") as client:
            return await client.join_token(seconds)

    made = run(ask())
    if as_json:
        emit_document({"token": made, "life": seconds})
    else:
        emit(made)
    host = read_token(made).address.host
    if host in LOOPBACK:
        note(
            f"this token leads to {host}: only sites on that machine can join with it. For others "
            "start the coordination site with --host and --advertise."
        )
    if sys.stderr.isatty():
        note(
            f"It is for one site, within {show_duration(seconds)}: "
            "`SKERRY_JOIN=… skerry up --site NAME`."
        )


def _check_name(name: str) -> None:
    if not name.strip() or not name.isprintable() or len(name) > LONGEST_NAME:
        raise BadSetting(
            f"{name!r} cannot name a fabric", f"Use 1 to {LONGEST_NAME} printable characters."
        )
