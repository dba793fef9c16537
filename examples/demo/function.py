"""Act 5: a function runs beside its topic, and goes where the topic goes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from rich.table import Table

from examples.demo.screen import Screen
from skerry import Client
from skerry.testing import LocalFabric

CODE = Path(__file__).with_name("mean.py")
SENSORS = ("field", "barn")
READINGS = 300


async def follow_the_topic(screen: Screen, fabric: LocalFabric, lab: Client, admin: Client) -> int:
    """Act 5: the site of a function is killed between two events; return the exit code."""
    screen.say("act 5: skerry function deploy mean.py --topic readings, whose home is farm")
    await lab.create_topic("readings", home="farm", replicas=2, ack="quorum")
    await lab.create_topic("means", home="lab", replicas=1)
    await admin.deploy_function(CODE, topic="readings", order="key", concurrency=2)
    places = [await place(lab)]
    async with lab.publisher("readings") as publisher:
        for number in range(READINGS):
            for sensor in SENSORS:
                await publisher.send(str(number), key=sensor)
            if number == READINGS // 2:
                await publisher.flush()
                screen.say("  half-way, farm is killed with SIGKILL, and the function with it")
                await fabric.crash("farm")
    await counted(lab, READINGS * len(SENSORS))
    places.append(await place(lab))
    await fabric.start("farm")
    screen.say(f"  it ran at {places[0]}, and went on at {places[1]}")
    return await show(screen, lab)


async def place(client: Client) -> str:
    """The site where the function runs, once it does."""
    async with asyncio.timeout(60):
        while True:
            found = await client.function("mean")
            for each in found.running:
                if each.running.state == "running":
                    return each.site
            await asyncio.sleep(0.05)


async def counted(client: Client, number: int) -> None:
    """Wait until so many results are there."""
    async with asyncio.timeout(60):
        while await client.latest_index("means") < number:
            await asyncio.sleep(0.05)


async def show(screen: Screen, client: Client) -> int:
    """Compare the results with the readings; return the exit code."""
    results: dict[str, list[tuple[int, float]]] = {sensor: [] for sensor in SENSORS}
    async for event in client.read("means"):
        one = json.loads(event.data)
        results[one["of"]].append((one["count"], one["mean"]))
    # The mean of 0, 1, … n is n/2: each reading counted once, in order, or the numbers differ.
    expected = [(number + 1, number / 2) for number in range(READINGS)]
    table = Table("sensor", "readings", "results", "last mean", "", min_width=78)
    faults = 0
    for sensor, found in results.items():
        faults += found != expected
        table.add_row(
            sensor, str(READINGS), str(len(found)), f"{found[-1][1]:g}" if found else "-",
            "each counted once" if found == expected else "[bold red]WRONG",
        )  # fmt: skip
    screen.console.print(table)
    return min(faults, 1)
