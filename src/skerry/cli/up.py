"""`skerry up`: run a site in the foreground."""

from __future__ import annotations

import asyncio
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.common import run
from skerry.cli.face import Face, make_face
from skerry.cli.output import note
from skerry.config import (
    DEFAULT_LINK_PORT,
    DEFAULT_MQTT_PORT,
    DEFAULT_PORT,
    DEFAULT_SILENCE,
    DEFAULT_WEBSOCKET_PORT,
    SiteSettings,
    default_data,
)
from skerry.model.fabric import Tier
from skerry.model.quantities import parse_size
from skerry.model.topic import Durability

if TYPE_CHECKING:
    from skerry.site import Site

EXAMPLE = """Examples:
  skerry up
  skerry up --site harbour --data /var/lib/skerry --durability power
  skerry up --mqtt --host 0.0.0.0 --tls-cert site.pem --tls-key site.key
  skerry fabric init && skerry up --site hub --tier hub
  SKERRY_JOIN=skerry1.… skerry up --site farm"""

_LISTEN = "Listeners"
_KEEP = "Storage"
_FABRIC = "Fabric"


def up(
    site: Annotated[
        str, typer.Option(metavar="NAME", help="The site's name; it cannot change later.")
    ] = "local",
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The data folder; it holds everything of the site.",
            show_default="$SKERRY_DATA or ~/.skerry",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Listen here.", rich_help_panel=_LISTEN)
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            metavar="PORT", help="For NATS clients and the SDK; 0: a free one.",
            rich_help_panel=_LISTEN,
        ),
    ] = DEFAULT_PORT,
    mqtt: Annotated[
        bool,
        typer.Option(
            "--mqtt",
            metavar="",
            help=f"Take MQTT 3.1.1, on port {DEFAULT_MQTT_PORT}.",
            rich_help_panel=_LISTEN,
        ),
    ] = False,
    mqtt_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", help="Take MQTT on this port; 0: a free one.", rich_help_panel=_LISTEN
        ),
    ] = None,
    websocket: Annotated[
        bool,
        typer.Option(
            "--websocket",
            metavar="",
            help=f"Take NATS over WebSocket, on port {DEFAULT_WEBSOCKET_PORT}.",
            rich_help_panel=_LISTEN,
        ),
    ] = False,
    websocket_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            help="Take NATS over WebSocket on this port; 0: a free one.",
            rich_help_panel=_LISTEN,
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST", help="The name that clients elsewhere reach this site by.",
            show_default="the address of --host", rich_help_panel=_LISTEN,
        ),
    ] = None,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain", metavar="",
            help="Deliver to plain NATS clients on t.<topic> too; MQTT and WebSocket imply it.",
            rich_help_panel=_LISTEN,
        ),
    ] = False,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Certificate chain (PEM); every listener then speaks TLS only.",
            rich_help_panel=_LISTEN,
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Its private key (PEM).", rich_help_panel=_LISTEN),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", metavar="", help="Listen beyond this machine without TLS all the same.",
            rich_help_panel=_LISTEN,
        ),
    ] = False,
    durability: Annotated[
        Durability,
        typer.Option(
            help="What an acknowledged event survives. process: kill -9; the disk is flushed every "
            "two minutes. power: also a power cut; flushed before each acknowledgement, so slower.",
            rich_help_panel=_KEEP,
        ),
    ] = "process",
    max_store: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Disk that all topics together may take, such as 50GB.",
            show_default="3/4 of what is free", rich_help_panel=_KEEP,
        ),
    ] = None,
    max_event_bytes: Annotated[
        str,
        typer.Option(
            metavar="SIZE", help="The largest event that any topic takes.", rich_help_panel=_KEEP
        ),
    ] = "8MiB",
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="SKERRY_ENGINE",
            help="Use a NATS server that you run, nats://user:password@host:port. Put a URL with a "
            "password into the variable: arguments can be seen by others.",
        ),
    ] = None,
    join: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN", envvar="SKERRY_JOIN",
            help="Become part of the fabric that `skerry fabric token` made this for; once joined, "
            "a site needs no token. Put it into the variable: arguments can be seen by others.",
            rich_help_panel=_FABRIC,
        ),
    ] = None,
    join_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Read the token from a file; -: from stdin.",
            rich_help_panel=_FABRIC,
        ),
    ] = None,
    tier: Annotated[
        Tier,
        typer.Option(
            help="hub: well connected, takes links. edge: may be cut off, and may only dial out.",
            rich_help_panel=_FABRIC,
        ),
    ] = "edge",
    link: Annotated[
        bool,
        typer.Option(
            "--link", metavar="", help=f"Take links of other sites, on port {DEFAULT_LINK_PORT}.",
            rich_help_panel=_FABRIC,
        ),
    ] = False,
    link_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            help="Take links on this port; 0: a free one. A coordinating hub always takes them, "
            f"on the port it had before or {DEFAULT_LINK_PORT}.",
            rich_help_panel=_FABRIC,
        ),
    ] = None,
    silence: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Take another site for lost after so long without a sign of life: longer where "
            "links are slow or stall, shorter where publishers cannot wait. Give all sites of the "
            "fabric the same. A site that closes its links is noticed at once.",
            rich_help_panel=_FABRIC,
        ),
    ] = DEFAULT_SILENCE,
) -> None:  # fmt: skip
    """Run a site here until Ctrl-C: its engine, its topics, its services."""
    from skerry.cli.joining import check_links, check_token, find_link_port, find_token
    from skerry.fabric.join import Membership

    folder = (data or default_data()).expanduser().absolute()
    token = find_token(join, join_file)
    membership = Membership.load(folder)
    if token is not None:
        check_token(token, folder, membership)
    links_at, why = find_link_port(site, tier, link, link_port, membership)
    check_links(links_at, token, membership)
    if why:
        note(why)
    settings = SiteSettings(
        site=site,
        data=folder,
        host=host,
        port=port,
        mqtt_port=DEFAULT_MQTT_PORT if mqtt and mqtt_port is None else mqtt_port,
        websocket_port=(
            DEFAULT_WEBSOCKET_PORT if websocket and websocket_port is None else websocket_port
        ),
        advertise=advertise,
        plain=plain,
        durability=durability,
        max_store=None if max_store is None else parse_size(max_store),
        max_event_bytes=parse_size(max_event_bytes),
        tls_cert=tls_cert,
        tls_key=tls_key,
        insecure=insecure,
        tier=tier,
        link_port=links_at,
        silence=silence,
    ).check()
    with make_face() as face:
        run(_serve(settings, engine, token, face))


async def _serve(settings: SiteSettings, engine: str | None, join: str | None, face: Face) -> None:
    """Run the site until a signal asks to stop; then stop it in order."""
    from skerry.site import Site

    stop = _Stop(face)
    face.starting(settings.site)
    try:
        async with Site(settings, engine, join) as site:
            face.ready(site, _next_step(site))
            await face.watch(site)
    except asyncio.CancelledError:
        if not stop.asked:
            raise
    face.stopped(settings.site)


class _Stop:
    """Turns the first signal into the cancellation of the current task; the engine then stops in
    order, and further signals change nothing."""

    def __init__(self, face: Face) -> None:
        self.asked = False
        self._face = face
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, and shells' background jobs
                loop.add_signal_handler(number, self._ask)

    def _ask(self) -> None:
        if not self.asked and self._task is not None:
            self.asked = True
            self._face.stopping()
            self._task.cancel()


def _next_step(site: Site) -> str:
    data = site.settings.data
    leader = site.fabric.leader if site.fabric is not None else None
    is_only = leader is not None and len(leader.sites()) == 1
    step = "skerry fabric token" if is_only else "skerry topic create sensors"
    if data == default_data().expanduser().absolute():
        return step
    return f"{step} --connect {shlex.quote(str(data))}"
