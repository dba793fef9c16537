"""`skerry sites`, `skerry site`, `skerry links`: the sites of a fabric, and what joins them."""

from __future__ import annotations

from typing import Annotated

import typer

from skerry.cli.common import TIMEOUT, AsJson, Connect, Timeout, Yes, agreed, in_fabric, run
from skerry.cli.output import columns, count, draw, emit, emit_document, note
from skerry.errors import UnknownSite
from skerry.model.control import LinkInfo, SiteInfo
from skerry.model.quantities import show_duration, show_size

SITES_EXAMPLE = "Example: skerry sites"
LINKS_EXAMPLE = "Example: skerry links --json"
DRAIN_EXAMPLE = "Example: skerry site drain farm"
UNDRAIN_EXAMPLE = "Example: skerry site undrain farm"
REMOVE_EXAMPLE = "Example: skerry site drain farm && skerry site remove farm"

SiteName = Annotated[str, typer.Argument(metavar="NAME", help="A site of the fabric.")]


def sites(connect: Connect = None, timeout: Timeout = TIMEOUT, as_json: AsJson = False) -> None:
    """List the sites of the fabric."""

    async def ask() -> list[SiteInfo]:
        async with in_fabric(connect, timeout) as client:
            return await client.sites()

    found = run(ask())
    if as_json:
        emit_document(found)
        return
    table = columns(
        "SITE", "TIER", "STATE", ">HOMES", ">COPIES", ">RTT", "TAKES LINKS AT", "SKERRY"
    )
    for site in found:
        table.add_row(
            site.site,
            site.tier,
            _state(site),
            f"{site.homes:,}",
            f"{site.copies:,}",
            _milliseconds(site.rtt_ms),
            site.link or "-",
            site.version,
        )
    draw(table)


def links(connect: Connect = None, timeout: Timeout = TIMEOUT, as_json: AsJson = False) -> None:
    """List the links of the site: to whom, how far away, what went through."""

    async def ask() -> list[LinkInfo]:
        async with in_fabric(connect, timeout) as client:
            return await client.links()

    found = run(ask())
    if as_json:
        emit_document(found)
        return
    if not found:
        note("no links yet; a site makes them as it joins, and as it needs them")
        return
    table = columns(
        "PEER", "STATE", "DIALLED BY", ">RTT", ">LAST HEARD", ">IN", ">OUT", ">MESSAGES IN",
        ">MESSAGES OUT",
    )  # fmt: skip
    for link in found:
        table.add_row(
            link.peer,
            "up" if link.up else "DOWN",
            link.dialer,
            _milliseconds(link.rtt_ms),
            "-" if link.heard_ms is None else f"{show_duration(link.heard_ms / 1000)} ago",
            show_size(link.in_bytes),
            show_size(link.out_bytes),
            f"{link.in_msgs:,}",
            f"{link.out_msgs:,}",
        )
    draw(table)


def drain(
    name: SiteName, connect: Connect = None, timeout: Timeout = TIMEOUT, as_json: AsJson = False
) -> None:
    """Move every home and replica away from a site while clients go on.

    The site takes no topics from then on. Topics keep the number of replicas that they should have;
    if no other site can take one, it is made as soon as one can. Needs the administrator's
    credentials, which the data folder holds."""

    async def empty() -> tuple[list[str], list[str]]:
        async with in_fabric(connect, timeout, "admin") as client:
            moved = await client.drain_site(name)
            return moved, [topic.name for topic in await client.topics() if topic.lacking]

    moved, lacking = run(empty())
    if as_json:
        emit_document({"site": name, "moved": moved, "lacking_replicas": lacking})
        return
    emit(f"site {name} is drained: {count(len(moved), 'topic')} moved away")
    if lacking:
        some = f"{', '.join(lacking[:5])}{' …' if len(lacking) > 5 else ''}"
        emit(f"Short of replicas, for no other site can take them: {some}")
    emit(f"It stays in the fabric until `skerry site remove {name}`, or takes topics again after")
    emit(f"`skerry site undrain {name}`.")


def undrain(
    name: SiteName, connect: Connect = None, timeout: Timeout = TIMEOUT, as_json: AsJson = False
) -> None:
    """Let a site that was drained take topics again.

    Replicas that topics lack are made; homes stay where they are. Needs the administrator's
    credentials, which the data folder holds."""

    async def take_back() -> None:
        async with in_fabric(connect, timeout, "admin") as client:
            await client.undrain_site(name)

    run(take_back())
    if as_json:
        emit_document({"site": name})
    else:
        emit(f"site {name} takes topics again")


def remove(
    name: SiteName,
    yes: Yes = False,
    connect: Connect = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Strike a site from the fabric: its links are closed and its keys refused.

    It must hold no topics any more; see `skerry site drain`. Needs the administrator's credentials,
    which the data folder holds."""

    async def look() -> None:
        async with in_fabric(connect, timeout, "admin") as client:
            known = [site.site for site in await client.sites()]
        if name not in known:
            raise UnknownSite(f"the fabric has no site {name!r}", f"There are: {', '.join(known)}.")

    async def strike() -> None:
        async with in_fabric(connect, timeout, "admin") as client:
            await client.remove_site(name)

    run(look())
    if not yes and not agreed(f"Remove site {name} from the fabric for good?", "removing a site"):
        note("nothing was removed")
        raise typer.Exit(1)
    run(strike())
    if as_json:
        emit_document({"removed": name})
    else:
        emit(f"site {name} is removed from the fabric; stop it, if it still runs")


def _state(site: SiteInfo) -> str:
    words = ["up" if site.up else "AWAY"]
    if site.coordinates:
        words.append("coordinates")
    if site.draining:
        words.append("draining")
    return ", ".join(words)


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"
