"""Skerry's main job in a minute: three sites, one fabric, and nothing lost when sites are.

Three sites on this machine, each with an engine of its own, become a fabric: a hub, a farm and a
lab. Publishers and subscribers at all of them work on while the home of a topic is killed and
replaced, while the topic moves back, and while the hub is away. Then every event is checked, at
every site; a subscriber asks for feeds by query; a function follows its topic to another site; and
a Spark pipeline adds all events up.

    make demo
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import uvloop
from rich.table import Table

from examples.demo.daylight import follow_the_light
from examples.demo.function import follow_the_topic
from examples.demo.parties import Device, Publisher, Sensor, Subscriber
from examples.demo.screen import Screen
from examples.demo.spark import total_up
from skerry import Client
from skerry.testing import LocalFabric

SITES = ["hub", "farm", "lab"]
TOPICS = ["sensors", "alarms"]
CALM = 2.0
"""Seconds to let things run before and after each act."""
PATIENCE = 60.0
"""Seconds after which we stop waiting for something to happen."""


async def main() -> int:
    """Run the demonstration; return the exit code."""
    logging.getLogger("skerry").setLevel(logging.CRITICAL)  # the tables say what happens
    print("starting three sites, each with an engine of its own ...", flush=True)
    async with LocalFabric(SITES, each={"lab": {"mqtt_port": 0}}) as fabric, AsyncExitStack() as up:
        hub, farm, lab = [await up.enter_async_context(fabric.connect(name)) for name in SITES]
        admin = await up.enter_async_context(fabric.connect("lab", "admin"))
        # Two replicas: the loss of any one site costs nothing. Should the hub be away, which keeps
        # the fabric's directory, the home goes on.
        await farm.create_topic("sensors", replicas=2, ack="quorum", on_partition="continue")
        # No replicas: what is published while the hub is away waits in the publisher's own site.
        await hub.create_topic("alarms", ack="outbox")

        field, bench = Sensor(farm, "sensors/field", "quorum"), Sensor(lab, "sensors/bench", "home")
        fence, door = Sensor(farm, "alarms/fence", "outbox"), Device(fabric["lab"], "alarms/door")
        publishers: list[Publisher] = [field, bench, fence, door]
        subscribers = [Subscriber(hub, "sensors"), Subscriber(lab, "alarms", durable="archive")]
        screen = Screen(fabric, lab, TOPICS, publishers, subscribers)
        for party in (*map(str, publishers), *map(str, subscribers)):
            screen.console.print(f"  {party}")
        screen.say("everybody is at work")

        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            reading = [group.create_task(subscriber.run()) for subscriber in subscribers]
            await asyncio.gather(*(subscriber.ready.wait() for subscriber in subscribers))
            writing = [group.create_task(publisher.run(stop)) for publisher in publishers]
            async with screen.shown():
                await asyncio.sleep(CALM)
                await lose_the_home(screen, fabric, lab, bench)
                await move_back(screen, admin, publishers)
                await lose_the_hub(screen, fabric, field, fence, door)
                screen.say("publishers stop; waiting until everything is everywhere")
                stop.set()
                await asyncio.gather(*writing)
                clients = {"hub": hub, "farm": farm, "lab": lab}
                await all_arrived(clients, publishers, subscribers)
            for task in reading:
                task.cancel()
        faults = await check(screen, clients, publishers, subscribers)
        faults += await follow_the_light(screen, lab, farm)
        faults += await follow_the_topic(screen, fabric, lab, admin)
        faults += await total_up(screen, fabric["hub"], hub, publishers)
        screen.say(
            "Next: docs/fabric.md, docs/functions.md, docs/pipelines.md, or skerry fabric init"
        )
        return min(faults, 1)


async def lose_the_home(screen: Screen, fabric: LocalFabric, lab: Client, bench: Sensor) -> None:
    """Act 1: the site that is the home of a topic is killed, another takes its place."""
    screen.say("act 1: farm, the home of sensors, is killed with SIGKILL")
    bench.longest_gap = 0.0
    await fabric.crash("farm")
    await until(lambda: is_elsewhere(lab, "farm"))
    await asyncio.sleep(CALM)
    home = (await lab.topic("sensors")).home
    screen.say(
        f"  {home} is the home now; the publisher at lab waited {bench.longest_gap * 1000:.0f} ms "
        "at the longest"
    )
    await fabric.start("farm")
    screen.say("  farm is back, as a replica, and its own publishers go on")
    await asyncio.sleep(CALM)


async def is_elsewhere(client: Client, site: str) -> bool:
    """Whether `sensors` has a home other than `site`."""
    return (await client.topic("sensors")).home != site


async def move_back(screen: Screen, admin: Client, publishers: Sequence[Publisher]) -> None:
    """Act 2: a topic moves to another site while its clients go on."""
    screen.say("act 2: sensors moves back to farm while its clients go on")
    for publisher in publishers:
        publisher.longest_gap = 0.0
    began = time.monotonic()
    topic = await admin.move_topic("sensors", "farm")
    took = time.monotonic() - began
    await asyncio.sleep(CALM)
    gap = max(publisher.longest_gap for publisher in publishers)
    screen.say(
        f"  {topic.home} is the home, epoch {topic.epoch}, after {took * 1000:.0f} ms; no publisher"
        f" waited longer than {gap * 1000:.0f} ms"
    )


async def lose_the_hub(
    screen: Screen, fabric: LocalFabric, field: Sensor, fence: Sensor, door: Device
) -> None:
    """Act 3: the hub goes away, and with it the home of `alarms` and the fabric's directory."""
    screen.say("act 3: hub is killed; it is the home of alarms and keeps the directory")
    await fabric.crash("hub")
    before = field.acked, fence.acked, door.acked
    await asyncio.sleep(2 * CALM)
    sensors, farm, lab = (
        now - then for now, then in zip((field.acked, fence.acked, door.acked), before, strict=True)
    )
    screen.say(f"  meanwhile sensors took {sensors} events of the publisher at farm, by quorum,")
    screen.say(f"  and the outboxes of farm and lab took {farm} and {lab} alarms, for later")
    await fabric.start("hub")
    screen.say("  hub is back, and reads the outboxes")
    await asyncio.sleep(CALM)


async def all_arrived(
    clients: dict[str, Client], publishers: Sequence[Publisher], subscribers: Sequence[Subscriber]
) -> None:
    """Wait until every copy, and every subscriber, has what was acknowledged."""
    sent: defaultdict[str, int] = defaultdict(int)
    for publisher in publishers:
        sent[publisher.topic.split("/")[0]] += publisher.acked

    async def is_complete() -> bool:
        for client in clients.values():
            for topic, count in sent.items():
                if await client.latest_index(topic) < count:
                    return False
        return all(len(set(party.seen)) >= sent[party.topic] for party in subscribers)

    await until(is_complete)


async def check(
    screen: Screen,
    clients: dict[str, Client],
    publishers: Sequence[Publisher],
    subscribers: Sequence[Subscriber],
) -> int:
    """Compare every site's copy with what was acknowledged; return the exit code."""
    screen.say("checking every event of every copy")
    table = Table("publisher", title="each event once, in order?", min_width=78)
    for column in ("acknowledged", *(f"copy at {site}" for site in clients)):
        table.add_column(column, justify="right")
    logs = {
        (site, topic): [event async for event in client.read(topic)]
        for site, client in clients.items()
        for topic in TOPICS
    }
    faults = 0
    for publisher in publishers:
        verdicts = []
        for site in clients:
            log = logs[site, publisher.topic.split("/")[0]]
            found = [int(event.data) for event in log if event.topic == publisher.topic]
            is_right = found == list(range(publisher.acked))
            faults += not is_right
            verdicts.append(f"{len(found):,} {'[green]ok' if is_right else '[bold red]WRONG'}")
        table.add_row(publisher.topic, f"{publisher.acked:,}", *verdicts)
    screen.console.print(table)
    for subscriber in subscribers:
        stored = [event.index for event in logs[subscriber.site, subscriber.topic]]
        # A durable subscription may be given an event again that it has acknowledged.
        is_right = list(dict.fromkeys(subscriber.seen)) == stored
        faults += not is_right
        verdict = "got every event" if is_right else "[bold red]WRONG: did not get every event[/]"
        screen.say(f"{subscriber}: {verdict}")
    total = sum(publisher.acked for publisher in publishers)
    story = f"{total:,} events through the loss of a home, a move and the loss of the hub:"
    if faults:
        screen.say(f"{story}\n[bold red]{faults} checks failed[/]")
        return 1
    screen.say(f"{story}\n[bold green]nothing lost, nothing doubled, all in order[/]")
    return 0


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until `condition` holds."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
