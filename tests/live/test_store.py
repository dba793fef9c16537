"""The coordination store: written at one site, read at every other, also while that one is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from skerry import errors
from skerry.client import Client
from skerry.directory import store as directory
from skerry.directory.store import STREAM, Store
from skerry.engine.jetstream import JetStream
from skerry.engine.process import Engine
from skerry.engine.wire import Connection
from skerry.fabric import fabric as fabric_module
from skerry.fabric.fabric import Fabric
from skerry.fabric.links import Links
from skerry.model.fabric import Presence
from skerry.testing.fabric import LocalFabric
from tests.conftest import until
from tests.live.faults import refused

SITES = ["hub", "farm", "lab"]


@pytest.fixture
async def fabric() -> AsyncIterator[LocalFabric]:
    async with LocalFabric(SITES) as fabric:
        yield fabric


def part_of(fabric: LocalFabric, name: str) -> Fabric:
    part = fabric.agent(name).fabric
    assert part is not None
    return part


def store_of(fabric: LocalFabric, name: str) -> Store:
    return part_of(fabric, name).store


def stores_of(fabric: LocalFabric) -> dict[str, Store]:
    return {name: store_of(fabric, name) for name in fabric.sites}


def linked(fabric: LocalFabric, name: str, peer: str = "hub") -> bool:
    return peer in part_of(fabric, name).links.up


def everywhere(fabric: LocalFabric, key: str, value: object) -> bool:
    return all(store.get(key, object) == value for store in stores_of(fabric).values())


async def events_of(client: Client, topic: str) -> list[bytes]:
    return [event.data async for event in client.read(topic)]


# Changes


@pytest.mark.parametrize("writer", SITES)
async def test_a_change_reaches_every_site(fabric: LocalFabric, writer: str) -> None:
    seen: dict[str, list[tuple[str, bytes | None]]] = {name: [] for name in SITES}
    for name, store in stores_of(fabric).items():
        store.watch("x.", lambda *change, name=name: seen[name].append(change))
    store = store_of(fabric, writer)
    first = await store.put("x.a", 1)
    assert store.get("x.a", int) == 1  # its own writes at once
    second = await store.put("x.a", 2)
    assert second > first
    await until(lambda: everywhere(fabric, "x.a", 2))
    await store.delete("x.a")
    await until(lambda: everywhere(fabric, "x.a", None))
    await until(lambda: all(changes[-1:] == [("x.a", None)] for changes in seen.values()))
    # In order; a value that was replaced before a site's copy took it may be left out there.
    all_of_them = [("x.a", b"1"), ("x.a", b"2"), ("x.a", None)]
    for changes in seen.values():
        assert changes == [change for change in all_of_them if change in changes]
    assert seen[writer] == all_of_them


async def test_a_write_whose_answer_was_lost_is_done_once(fabric: LocalFabric) -> None:
    store = store_of(fabric, "farm")
    first = await store.put("x.a", 1)
    fabric["hub"].freeze_engine()
    try:
        writing = asyncio.create_task(store.put("x.a", 2))
        # One attempt takes a second: then the first has no answer, and the second is under way.
        await asyncio.wait({writing}, timeout=1.5)
        assert not writing.done()
    finally:
        fabric["hub"].thaw_engine()
    assert await writing > first
    await until(lambda: everywhere(fabric, "x.a", 2))


async def test_a_watcher_hears_of_its_prefix_only(fabric: LocalFabric) -> None:
    seen: list[str] = []
    store = store_of(fabric, "farm")
    store.watch("x.", lambda key, value: seen.append(key))
    for key in ("y.a", "xx.a", "x.a"):
        await store_of(fabric, "hub").put(key, 1)
    await until(lambda: "x.a" in seen)
    assert seen == ["x.a"]
    assert store.all("x.", int) == {"a": 1}


async def test_all_finds_what_is_below_a_prefix_at_every_depth(fabric: LocalFabric) -> None:
    store = store_of(fabric, "hub")
    for number, key in enumerate(("x.a.b", "x.a.c", "x.ab", "x.a")):
        await store.put(key, number)
    assert store.all("x.", int) == {"a.b": 0, "a.c": 1, "ab": 2, "a": 3}
    assert store.all("x.a.", int) == {"b": 0, "c": 1}
    await store.delete("x.a.b")
    await store.put("x.a.c", 5)
    assert store.all("x.a.", int) == {"c": 5}
    await store.delete("x.a.c")
    assert store.all("x.a.", int) == {}
    assert store.all("x.", int) == {"ab": 2, "a": 3}
    assert store.all("x.a.b.", int) == {}


async def test_a_key_that_was_deleted_can_be_written_again_by_any_site(
    fabric: LocalFabric,
) -> None:
    for name, store in stores_of(fabric).items():
        await store.put("x.a", name)
        await until(lambda name=name: everywhere(fabric, "x.a", name))  # type: ignore[misc]
        await store.delete("x.a")
        await until(lambda: everywhere(fabric, "x.a", None))


async def test_a_key_whose_deletion_is_forgotten_can_be_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine forgets a deletion after `MARKER_TTL`; to whoever remembers it, that must not be
    a conflict for ever: a link that was idle for longer could never be made again."""
    monkeypatch.setattr(directory, "MARKER_TTL", 1)
    async with LocalFabric(["hub", "farm"]) as fabric:
        for name, key in (("farm", "x.a"), ("hub", "x.b")):
            store = store_of(fabric, name)
            await store.put(key, 1)
            await store.delete(key)
            await until(lambda: _is_forgotten(fabric, key))  # noqa: B023
            await store.put(key, 2)
            await until(lambda: everywhere(fabric, key, 2))  # noqa: B023


async def test_a_key_that_expired_can_be_written_again_after_its_end_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The presence of a site that was away for longer than the store remembers."""
    monkeypatch.setattr(directory, "MARKER_TTL", 1)
    async with LocalFabric(["hub", "farm"]) as fabric:
        store = store_of(fabric, "farm")
        await store.put("x.a", 1, ttl=1)
        await until(lambda: everywhere(fabric, "x.a", None))
        await until(lambda: _is_forgotten(fabric, "x.a"))
        await store.put("x.a", 2)
        await until(lambda: everywhere(fabric, "x.a", 2))


async def _is_forgotten(fabric: LocalFabric, key: str) -> bool:
    """Whether the origin's stream holds nothing of `key` any more, not even its deletion."""
    connection = await Connection.open(fabric.agent("hub").address)
    try:
        info = await JetStream(connection).call(
            f"STREAM.INFO.{STREAM}", {"subjects_filter": directory.PREFIX + key}
        )
    finally:
        await connection.close()
    return not info["state"].get("subjects")


# Compare and set


async def test_of_two_writers_one_meets_a_conflict(fabric: LocalFabric) -> None:
    farm, lab = store_of(fabric, "farm"), store_of(fabric, "lab")
    await farm.put("x.a", 0)
    await until(lambda: everywhere(fabric, "x.a", 0))
    for round_ in range(1, 11):
        revision = farm.revision("x.a")
        assert lab.revision("x.a") == revision
        results = await asyncio.gather(
            farm.put("x.a", [round_, "farm"], revision=revision),
            lab.put("x.a", [round_, "lab"], revision=revision),
            return_exceptions=True,
        )
        assert sorted(type(result).__name__ for result in results) == ["Conflict", "int"]
        winner = "farm" if isinstance(results[0], int) else "lab"
        await until(
            lambda value=[round_, winner]: everywhere(fabric, "x.a", value)  # type: ignore[misc]
        )


async def test_a_new_key_is_made_once(fabric: LocalFabric) -> None:
    results = await asyncio.gather(
        *(store.put("x.new", name, revision=0) for name, store in stores_of(fabric).items()),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["Conflict", "Conflict", "int"]
    with refused(errors.Conflict, "x.new"):
        await store_of(fabric, "farm").put("x.new", 1, revision=0)


async def test_a_write_upon_an_old_revision_is_a_conflict(
    fabric: LocalFabric,
) -> None:
    hub, farm = store_of(fabric, "hub"), store_of(fabric, "farm")
    old = await farm.put("x.a", 1)
    await until(lambda: hub.revision("x.a") == old)
    await hub.put("x.a", 2)
    with refused(errors.Conflict, "x.a"):
        await farm.put("x.a", 3, revision=old)
    await until(lambda: everywhere(fabric, "x.a", 2))


# The origin is away


async def test_reading_goes_on_while_the_origin_is_away(fabric: LocalFabric) -> None:
    seen: list[bytes | None] = []
    farm = store_of(fabric, "farm")
    farm.watch("x.", lambda key, value: seen.append(value))
    await store_of(fabric, "hub").put("x.a", 1)
    async with fabric.connect("farm") as client, fabric.connect("lab") as other:
        await client.create_topic("t")
        await until(lambda: everywhere(fabric, "x.a", 1))
        await fabric.stop("hub")
        assert farm.all("x.", int) == {"a": 1}
        assert [site.site for site in await other.sites()] == ["farm", "hub", "lab"]
        assert await client.publish("t", "x") == 1
        assert (await client.topic("t")).latest_index == 1
        assert [topic.name for topic in await client.topics()] == ["t"]
        fabric["farm"].kill_engine()  # which then reads its copy anew
        assert await client.publish("t", "y") == 2
        assert await events_of(client, "t") == [b"x", b"y"]
        assert farm.all("x.", int) == {"a": 1}
        await fabric.start("hub")
        await store_of(fabric, "hub").put("x.a", 2)
        await until(lambda: everywhere(fabric, "x.a", 2))
    assert seen == [b"1", b"2"]


async def test_a_write_while_the_origin_is_away_is_refused(
    fabric: LocalFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm = store_of(fabric, "farm")
    await farm.put("x.a", 1)
    await until(lambda: everywhere(fabric, "x.a", 1))
    await fabric.stop("hub")
    monkeypatch.setattr(directory, "WRITE_TIME", 0.5)
    with refused(errors.Unavailable, "hub", "x.a"):
        await farm.put("x.a", 2)
    with refused(errors.Unavailable, "hub", "x.a"):
        await farm.delete("x.a")
    with refused(errors.Unavailable, "hub"):
        async with fabric.connect("farm") as client:
            await client.create_topic("t")
    assert farm.get("x.a", int) == 1
    assert store_of(fabric, "lab").get("x.a", int) == 1


async def test_a_write_waits_for_an_origin_that_is_just_coming_back(fabric: LocalFabric) -> None:
    farm = store_of(fabric, "farm")
    await farm.put("x.a", 0)
    fabric["hub"].kill_engine()
    await asyncio.gather(*(farm.put(f"x.{n}", n, revision=0) for n in range(20)))
    await until(lambda: everywhere(fabric, "x.19", 19))
    assert farm.all("x.", int) == {"a": 0, **{str(n): n for n in range(20)}}
    lab = store_of(fabric, "lab")
    await until(lambda: lab.all("x.", int) == farm.all("x.", int))


@pytest.mark.parametrize("how", ["stop", "crash"])
async def test_everything_goes_on_after_the_origin_was_away(fabric: LocalFabric, how: str) -> None:
    async with fabric.connect("farm") as client, fabric.connect("lab") as other:
        await client.create_topic("before")
        for _ in range(2):
            await getattr(fabric, how)("hub")
            await until(lambda: not linked(fabric, "farm") and not linked(fabric, "lab"))
            assert await client.publish("before", "x")
            await fabric.start("hub")
            await until(lambda: linked(fabric, "farm") and linked(fabric, "lab"))
        await client.create_topic("after", replicas=1)
        assert await other.publish("after", "x") == 1
        assert await other.publish("before", "z") == 3
        assert await events_of(other, "before") == [b"x", b"x", b"z"]
        await fabric.add("barn")
        await until(lambda: _knows(fabric, "site.barn"))


def _knows(fabric: LocalFabric, key: str) -> bool:
    return all(store.revision(key) for store in stores_of(fabric).values())


async def test_what_changed_while_a_site_was_away_is_there_when_it_is_back(
    fabric: LocalFabric,
) -> None:
    hub = store_of(fabric, "hub")
    await hub.put("x.kept", 1)
    await hub.put("x.gone", 1)
    await until(lambda: everywhere(fabric, "x.gone", 1))
    await fabric.stop("farm")
    await hub.put("x.kept", 2)
    await hub.put("x.new", 1)
    await hub.delete("x.gone")
    await fabric.start("farm")
    await until(lambda: store_of(fabric, "farm").all("x.", int) == {"kept": 2, "new": 1})


async def test_a_site_hears_of_what_changed_while_its_engine_was_away(fabric: LocalFabric) -> None:
    hub, farm = store_of(fabric, "hub"), store_of(fabric, "farm")
    seen: list[tuple[str, bytes | None]] = []
    await hub.put("x.a", 1)
    await hub.put("x.b", 1)
    await until(lambda: everywhere(fabric, "x.b", 1))
    farm.watch("x.", lambda *change: seen.append(change))
    fabric["farm"].kill_engine()
    await hub.put("x.a", 2)
    await hub.delete("x.b")
    await until(lambda: farm.all("x.", int) == {"a": 2})
    assert sorted(seen, key=str) == [("x.a", b"2"), ("x.b", None)]


# Presence


async def test_presence_expires_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skerry.fabric.fabric.PRESENCE", 0.4)
    async with LocalFabric(SITES) as fabric:

        def presence(name: str, at: str) -> Presence | None:
            return store_of(fabric, at).get(f"up.{name}", Presence)

        await until(lambda: all(presence(n, at) for n in SITES for at in SITES))
        first = presence("farm", "lab")
        for _ in range(2):
            await fabric.crash("farm")
            await until(lambda: not presence("farm", "hub") and not presence("farm", "lab"))
            await fabric.start("farm")
            await until(lambda: all(presence("farm", at) for at in SITES))
        again = presence("farm", "lab")
        assert first is not None
        assert again is not None
        assert again.since > first.since
        await until(lambda: presence("lab", "hub") is not None)


async def test_presence_outlasts_a_restart_of_the_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skerry.fabric.fabric.PRESENCE", 0.4)
    async with LocalFabric(["hub", "farm"]) as fabric:
        await until(lambda: store_of(fabric, "hub").revision("up.farm") > 0)
        await fabric.stop("hub")
        await fabric.start("hub")
        store = store_of(fabric, "hub")
        revision = store.revision("up.farm")
        # A change may also be that it expired, where the machine is slow: it comes again then.
        await until(
            lambda: (
                store.revision("up.farm") > revision and store.get("up.farm", Presence) is not None
            )
        )


# Many keys


async def test_thousands_of_keys_are_read_at_once(fabric: LocalFabric) -> None:
    count = 2500
    hub, farm = store_of(fabric, "hub"), store_of(fabric, "farm")
    gate = asyncio.Semaphore(200)

    async def put(number: int) -> None:
        async with gate:
            await hub.put(f"x.{number}", {"number": number, "text": "y" * 200}, revision=0)

    await asyncio.gather(*map(put, range(count)))
    wanted = hub.all("x.", object)
    assert len(wanted) == count
    await until(lambda: farm.all("x.", object) == wanted, 60)
    await fabric.stop("lab")
    await hub.delete("x.7")
    del wanted["7"]
    fabric["farm"].kill_engine()
    await fabric.start("lab")
    barn: Any = await fabric.add("barn")
    for part in (barn.site.fabric, part_of(fabric, "lab"), part_of(fabric, "farm")):
        await until(lambda part=part: part.store.all("x.", object) == wanted, 60)  # type: ignore[misc]


# A site that starts


@pytest.mark.parametrize("moment", ["at once", "as it wakes", "as it settles"])
async def test_an_engine_that_dies_while_its_site_starts(
    fabric: LocalFabric, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It comes back locked, and the start goes on."""
    async with fabric.connect("hub") as client:
        await client.create_topic("t", home="farm")
        await client.publish("t", "0")
        await fabric.crash("farm")
        engines: list[Engine] = []
        killed = False

        def start(engine: Engine) -> None:
            original_start(engine)
            engines.append(engine)
            if moment == "at once":
                kill_once()

        def kill_once() -> None:
            nonlocal killed
            if engines and not killed:
                killed = True
                engines[0].kill()

        async def wake(links: Links) -> None:
            kill_once()
            await original_wake(links)

        async def fresh(store: Store, timeout: float) -> bool:
            kill_once()
            return await original_fresh(store, timeout)

        original_start, original_wake, original_fresh = Engine.start, Links.wake, Store.fresh
        monkeypatch.setattr(Engine, "start", start)
        if moment == "as it wakes":
            monkeypatch.setattr(Links, "wake", wake)
        elif moment == "as it settles":
            monkeypatch.setattr(Store, "fresh", fresh)
        await fabric.start("farm")
        assert killed
        assert await client.publish("t", "1") == 2
        assert await events_of(client, "t") == [b"0", b"1"]


async def test_an_engine_that_takes_no_configuration_ends_the_start(
    fabric: LocalFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fabric.crash("farm")

    async def refuse(links: Links) -> None:
        raise errors.Unavailable("the engine did not take its configuration")

    monkeypatch.setattr(Links, "wake", refuse)
    monkeypatch.setattr(fabric_module, "WAKE_TIME", 0.2)
    with pytest.raises(errors.Unavailable):
        await fabric.start("farm")
    monkeypatch.undo()
    await fabric.start("farm")
