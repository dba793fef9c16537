"""`skerry up`: run a site in the foreground."""

from __future__ import annotations

import asyncio
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer
from msgspec import UNSET, UnsetType

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
    from skerry.site.options import Options

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
        str | None,
        typer.Option(
            metavar="NAME",
            help="The site's name; it cannot change later.",
            show_default="the folder's, or local",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The data folder; it holds everything of the site.",
            show_default="$SKERRY_DATA or ~/.skerry",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Listen here.", show_default="127.0.0.1",
            rich_help_panel=_LISTEN,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", help="For NATS clients and the SDK; 0: a free one.",
            show_default=str(DEFAULT_PORT), rich_help_panel=_LISTEN,
        ),
    ] = None,
    mqtt: Annotated[
        bool | None,
        typer.Option(
            "--mqtt/--no-mqtt",
            metavar="",
            help=f"Take MQTT 3.1.1, on port {DEFAULT_MQTT_PORT}.",
            rich_help_panel=_LISTEN,
        ),
    ] = None,
    mqtt_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", help="Take MQTT on this port; 0: a free one.", rich_help_panel=_LISTEN
        ),
    ] = None,
    websocket: Annotated[
        bool | None,
        typer.Option(
            "--websocket/--no-websocket",
            metavar="",
            help=f"Take NATS over WebSocket, on port {DEFAULT_WEBSOCKET_PORT}.",
            rich_help_panel=_LISTEN,
        ),
    ] = None,
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
        bool | None,
        typer.Option(
            "--plain/--no-plain", metavar="",
            help="Deliver to plain NATS clients on t.<topic> too; MQTT and WebSocket imply it.",
            rich_help_panel=_LISTEN,
        ),
    ] = None,
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
        bool | None,
        typer.Option(
            "--insecure/--no-insecure", metavar="",
            help="Listen beyond this machine without TLS all the same.", rich_help_panel=_LISTEN,
        ),
    ] = None,
    durability: Annotated[
        Durability | None,
        typer.Option(
            help="What an acknowledged event survives. process: kill -9; the disk is flushed every "
            "two minutes. power: also a power cut; flushed before each acknowledgement, so slower.",
            show_default="process", rich_help_panel=_KEEP,
        ),
    ] = None,
    max_store: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Disk that all topics together may take, such as 50GB.",
            show_default="3/4 of what is free", rich_help_panel=_KEEP,
        ),
    ] = None,
    max_event_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="The largest event that any topic takes.", show_default="8MiB",
            rich_help_panel=_KEEP,
        ),
    ] = None,
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
        Tier | None,
        typer.Option(
            help="hub: well connected, takes links. edge: may be cut off, and may only dial out.",
            show_default="edge", rich_help_panel=_FABRIC,
        ),
    ] = None,
    link: Annotated[
        bool | None,
        typer.Option(
            "--link/--no-link", metavar="",
            help=f"Take links of other sites, on port {DEFAULT_LINK_PORT}.",
            rich_help_panel=_FABRIC,
        ),
    ] = None,
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
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Take another site for lost after so long without a sign of life: longer where "
            "links are slow or stall, shorter where publishers cannot wait. Give all sites of the "
            "fabric the same. A site that closes its links is noticed at once.",
            show_default=f"{DEFAULT_SILENCE:g}", rich_help_panel=_FABRIC,
        ),
    ] = None,
) -> None:  # fmt: skip
    """Run a site here until Ctrl-C: its engine, its topics, its services.

    What is given is remembered in the data folder, so that the next start needs --data only; none
    takes back a name, a limit or a file, and --no-mqtt and its like a listener."""
    from skerry.cli.joining import check_links, check_token, find_link_port, find_token
    from skerry.fabric.join import Membership
    from skerry.site.options import FILE, Options, remembered, site_of

    folder = (data or default_data()).expanduser().absolute()
    given = Options(
        host=_or_unset(host),
        port=_or_unset(port),
        mqtt_port=_listener(mqtt, mqtt_port, DEFAULT_MQTT_PORT),
        websocket_port=_listener(websocket, websocket_port, DEFAULT_WEBSOCKET_PORT),
        advertise=_or_none(advertise),
        plain=_or_unset(plain),
        durability=_or_unset(durability),
        max_store=parse_size(size) if isinstance(size := _or_none(max_store), str) else size,
        max_event_bytes=UNSET if max_event_bytes is None else parse_size(max_event_bytes),
        tls_cert=_or_none(tls_cert),
        tls_key=_or_none(tls_key),
        insecure=_or_unset(insecure),
        tier=_or_unset(tier),
        link_port=_listener(link, link_port, DEFAULT_LINK_PORT),
        silence=_or_unset(silence),
        engine=_or_none(engine),
    )
    before = remembered(folder)
    options = given.over(before)
    settings = options.settings(site or site_of(folder) or "local", folder)
    if kept := sorted(before.given().keys() - given.given().keys()):
        note(f"as it was started before: {', '.join(kept)} (see {folder / FILE})")
    token = find_token(join, join_file)
    membership = Membership.load(folder)
    if token is not None:
        check_token(token, folder, membership)
    links_at, why = find_link_port(settings.site, settings.tier, settings.link_port, membership)
    check_links(links_at, token, membership)
    if why:
        note(why)
    settings = msgspec.structs.replace(settings, link_port=links_at)
    with make_face() as face:
        run(_serve(settings, options, token, face))


T = TypeVar("T")


def _or_unset(value: T | None) -> T | UnsetType:
    return UNSET if value is None else value


def _or_none(value: str | Path | None) -> str | UnsetType | None:
    """What was given; `none` takes back what was given before. Files are found from anywhere."""
    if value is None:
        return UNSET
    if str(value) == "none":
        return None
    return str(value.expanduser().absolute()) if isinstance(value, Path) else value


def _listener(wanted: bool | None, port: int | None, usual: int) -> int | UnsetType | None:
    """The port that two options ask for together."""
    if wanted is False:
        return None
    if port is not None:
        return port
    return usual if wanted else UNSET


async def _serve(settings: SiteSettings, options: Options, join: str | None, face: Face) -> None:
    """Run the site until a signal asks to stop; then stop it in order."""
    from skerry.site import Site
    from skerry.site.options import remember

    stop = _Stop(face)
    face.starting(settings.site)
    try:
        async with Site(settings, options.engine or None, join) as site:
            remember(settings.data, options)
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
