"""Skerry's main job in half a minute: durable topics that lose nothing when the engine is killed.

Starts a site in a temporary folder, has three sensors and an MQTT device publish, has subscribers
follow, kills the engine once with SIGKILL, and then checks the log event by event.

    make demo
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections import Counter

import uvloop
from rich.console import Console
from rich.live import Live
from rich.table import Table

from examples.demo.parties import Archive, Dashboard, Device, Sensor
from skerry import Client
from skerry.testing import LocalSite

CALM = 4.0
"""Seconds of publishing before the engine is killed, and again after it is back."""


def picture(
    site: LocalSite, parties: list[Sensor | Device | Dashboard | Archive], note: str
) -> Table:
    """Who has published and received what so far."""
    engine = site.site.engine
    state = "[green]up" if site.site.is_up else "[bold red]down, being restarted"
    table = Table(
        title=f"site [bold]demo[/]  engine {state}[/]  process {engine.pid or '-'}  "
        f"restarts {engine.restarts}",
        caption=note,
        min_width=78,
    )
    table.add_column("who")
    table.add_column("does")
    table.add_column("events", justify="right")
    table.add_column("acknowledged", justify="right")
    table.add_column("longest wait", justify="right")
    for party in parties:
        acked = "" if party.acked is None else f"{party.acked:,}"
        wait = "" if party.longest is None else f"{party.longest * 1000:.0f} ms"
        table.add_row(party.name, party.does, f"{party.events:,}", acked, wait)
    return table


async def watch(live: Live, site: LocalSite, parties: list[Sensor | Device | Dashboard | Archive],
                seconds: float, note: str) -> None:  # fmt: skip
    """Redraw for so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        live.update(picture(site, parties, note))
        await asyncio.sleep(0.1)


async def check(client: Client, sensors: list[Sensor], device: Device, archive: Archive) -> Table:
    """Compare what was acknowledged with what the log holds; raise if anything is amiss."""
    log = [event async for event in client.read("sensors")]
    stored = Counter(event.data for event in log)
    table = Table(title="What the log says", min_width=78)
    for column in ("check", "expected", "found", ""):
        table.add_column(column, justify="right" if column in ("expected", "found") else "left")
    faults = []

    def row(what: str, expected: int, found: int) -> None:
        good = expected == found
        table.add_row(what, f"{expected:,}", f"{found:,}", "[green]ok" if good else "[red]WRONG")
        if not good:
            faults.append(what)

    for sensor in sensors:
        mine = [json.loads(e.data)["n"] for e in log if e.topic == sensor.topic]
        row(f"{sensor.name}: acknowledged events stored", sensor.acked or 0, len(mine))
        row(
            f"{sensor.name}: in order, none twice",
            len(mine),
            sum(a == b for a, b in enumerate(mine)),
        )
    row(
        "MQTT device: acknowledged and stored",
        len(device.sure),
        sum(d in stored for d in device.sure),
    )
    row("archive: every event of the log delivered", len(log), len(archive.indexes))
    row("indexes strictly increasing", len(log), len({event.index for event in log}))
    if faults:
        raise AssertionError(f"the log is not what was acknowledged: {', '.join(faults)}")
    return table


async def main() -> None:
    """Run the demonstration."""
    console = Console()
    logging.getLogger("skerry").setLevel(logging.CRITICAL)  # the table says what happens
    console.print("[bold]Skerry[/]: one site, durable topics, and an engine that is killed\n")
    began = time.monotonic()
    async with LocalSite(site="demo", mqtt_port=0) as site, site.connect() as client:
        await client.create_topic("sensors", max_events=1_000_000, max_age=24 * 3600)
        console.print(f"site is up at {site.site.address}, MQTT on port {site.site.ports.mqtt}")
        console.print("topic [bold]sensors[/] created: at most 1,000,000 events, a day each\n")
        sensors = [Sensor(client, f"sensors/roof/{place}") for place in ("north", "east", "south")]
        device = Device(site, "sensors/cellar")
        dashboard, archive = Dashboard(client, "sensors"), Archive(client, "sensors")
        parties: list[Sensor | Device | Dashboard | Archive] = [
            *sensors,
            device,
            dashboard,
            archive,
        ]
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as work:
            readers = [work.create_task(dashboard.run()), work.create_task(archive.run())]
            await asyncio.gather(dashboard.ready.wait(), archive.ready.wait())
            publishers: list[Sensor | Device] = [*sensors, device]
            writers = [work.create_task(publisher.run(stop)) for publisher in publishers]
            with Live(console=console, refresh_per_second=10) as live:
                await watch(live, site, parties, CALM, "publishing")
                site.kill_engine()
                if not console.is_terminal:
                    console.print("the engine was killed with SIGKILL")
                await watch(live, site, parties, CALM, "the engine was killed with SIGKILL")
                stop.set()
                await asyncio.gather(*writers)
                latest = await client.latest_index("sensors")
                async with asyncio.timeout(30):
                    while len(archive.indexes) < latest:
                        await watch(live, site, parties, 0.2, "waiting for the archive")
                live.update(picture(site, parties, "done"))
            for reader in readers:
                reader.cancel()
        console.print(await check(client, sensors, device, archive))
        console.print(
            f"\n{latest:,} events through an engine crash, "
            f"[bold green]nothing lost, nothing doubled[/], in {time.monotonic() - began:.0f} s.\n"
            "Next: skerry up, then skerry --help"
        )


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
