"""Act 4: the daylighting of a room asks for its sensors by query."""

from __future__ import annotations

import asyncio

from rich.table import Table

from examples.demo.screen import Screen
from skerry import Client
from skerry.model.feeds import Joined, Left, Received

QUERY = 'Location/Building = "Soda" and Location/Room = "410" and Point/Measure = "Light"'
READINGS = 5


async def follow_the_light(screen: Screen, lab: Client, farm: Client) -> int:
    """Act 4: a sensor moves to another room, and the query loses it; return the exit code."""
    screen.say("act 4: at lab, room 410's daylighting asks for its sensors; three are at farm")
    screen.say(f"  {QUERY}")
    story: list[str] = []
    names: dict[str, str] = {}

    async def listen() -> None:
        async for item in found:
            name = names.get(item.feed.id, str(item.feed.metadata.get("name")))
            match item:
                case Joined():
                    story.append(f"+ {name}")
                case Left():
                    story.append(f"- {name}")
                case Received(event=event):
                    story.append(f"{name} {event.data.decode()}")

    async def told(line: str) -> None:
        async with asyncio.timeout(30):
            while line not in story:
                await asyncio.sleep(0.01)

    async with lab.query(QUERY) as found:
        listening = asyncio.create_task(listen())
        feeds = {}
        for name, room, measure in (
            ("window", "410", "Light"), ("door", "410", "Light"), ("boiler", "410", "Temperature")
        ):  # fmt: skip
            feeds[name] = await farm.feed(
                {
                    "Location/Building": "Soda", "Location/Room": room,
                    "Point/Measure": measure, "name": name,
                }
            )  # fmt: skip
            names[feeds[name].id] = name
        for n in range(READINGS):
            for feed in feeds.values():
                await feed.publish(str(n))
        await told(f"door {READINGS - 1}")
        await told(f"window {READINGS - 1}")
        screen.say("  the window's sensor is carried to room 415, and back")
        await feeds["window"].publish("dark", change={"Location/Room": "415"})
        await told("- window")
        await feeds["door"].publish("alone")
        await told("door alone")
        await feeds["window"].publish("light", change={"Location/Room": "410"})
        await told("window light")
        listening.cancel()
        for feed in feeds.values():
            await feed.close()
    return show(screen, story)


def show(screen: Screen, story: list[str]) -> int:
    """Compare what the query told with what was done; return the exit code."""
    expected = {
        "window": ["+", *map(str, range(READINGS)), "-", "+", "light"],
        "door": ["+", *map(str, range(READINGS)), "alone"],
        "boiler": [],
    }
    table = Table("feed", "what the query at lab told, in order", min_width=78)
    faults = 0
    for name, lines in expected.items():
        found = []
        for line in story:
            first, _, second = line.partition(" ")
            if name in (first, second):
                found.append(first if second == name else second)
        faults += found != lines
        shown = "  ".join({"+": "joined", "-": "left"}.get(word, word) for word in found)
        table.add_row(name, f"{shown or 'nothing'} {'' if found == lines else '[bold red]WRONG'}")
    screen.console.print(table)
    return min(faults, 1)
