"""Feeds and subscriptions by query, at one site and between sites."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import skerry
from skerry import Client, errors
from skerry.feeds.home import Place
from skerry.feeds.subscription import QuerySubscription
from skerry.model.feeds import Joined, Left, Missed, Received
from skerry.testing import LocalFabric, LocalSite
from tests.conftest import until

ROOM = 'Location/Building = "Soda" and Location/Room = "410"'


async def take(found: QuerySubscription, count: int) -> list[Any]:
    """The next items, in short: what happened, and to which feed or with which payload."""
    items: list[Any] = []
    async with asyncio.timeout(60):
        while len(items) < count:
            item = await anext(found)
            if isinstance(item, Received):
                items.append(item.event.data.decode("utf-8", "replace"))
            else:
                items.append((type(item).__name__, item.feed.id))
    return items


async def test_events_of_matching_feeds_arrive_as_feeds_come_change_and_go(client: Client) -> None:
    async with client.query(ROOM) as found:
        async with await client.feed({"Location/Building": "Soda", "Location/Room": "410"}) as feed:
            await feed.publish("1")
            assert await take(found, 2) == [("Joined", feed.id), "1"]
            async with await client.feed({"Location/Building": "Soda"}) as other:
                await other.publish("not this")
                await other.publish("2", change={"Location/Room": "410"})
                assert await take(found, 2) == [("Joined", other.id), "2"]
                await feed.set({"Location/Room": "415"})
                await feed.publish("elsewhere")
                await other.publish("3")
                assert await take(found, 2) == [("Left", feed.id), "3"]
                await feed.publish("4", change={"Location/Room": "410"})
                assert await take(found, 2) == [("Joined", feed.id), "4"]
            assert await take(found, 1) == [("Left", other.id)]
        assert await take(found, 1) == [("Left", feed.id)]
    assert await client.feeds() == []


async def test_what_a_feed_publishes_while_its_log_is_read_is_handed_out_though_it_leaves(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home's answer is under way, and has none of it; then the feed matches no more."""
    async with client.query('room = "1"') as found:
        check, asked, goes_on = found._homes._check, asyncio.Event(), asyncio.Event()

        async def wait_and_check(place: Place) -> None:
            asked.set()
            await goes_on.wait()
            await check(place)

        monkeypatch.setattr(found._homes, "_check", wait_and_check)
        async with await client.feed({"room": "1"}) as feed:
            await asked.wait()
            await feed.publish("1")
            await feed.publish("2")
            await feed.set({"room": "2"})
            (member,) = found._read
            await until(lambda: member.until is not None and len(member.held) == 2)
            goes_on.set()
            assert await take(found, 4) == [("Joined", feed.id), "1", "2", ("Left", feed.id)]


async def test_queries_span_sites_and_events_cross_a_link_only_if_they_match() -> None:
    async with (
        LocalFabric(["hub", "farm", "lab"]) as fabric,
        fabric.connect("farm") as farm,
        fabric.connect("lab") as lab,
        lab.query('kind = "temp" and not room = "410"') as found,
        await farm.feed({"kind": "temp", "room": "409"}) as near,
        await farm.feed({"kind": "temp", "room": "410"}) as far,
    ):
        for n in range(20):
            await near.publish(f"near {n}")
            await far.publish(f"far {n}")
        assert await take(found, 21) == [("Joined", near.id), *[f"near {n}" for n in range(20)]]
        await far.publish("far 20", change={"room": "411"})
        await near.publish("gone", change={"room": "410"})
        items = await take(found, 3)
        assert sorted(map(str, items)) == sorted(
            map(str, [("Joined", far.id), "far 20", ("Left", near.id)])
        )
        assert items.index(("Joined", far.id)) < items.index("far 20")


async def test_a_feed_goes_on_when_its_log_moves_and_fails_over() -> None:
    async with (
        LocalFabric(["hub", "farm", "lab"]) as fabric,
        fabric.connect("farm") as farm,
        fabric.connect("hub") as hub,
        fabric.connect("hub", "admin") as admin,
    ):
        feed = await farm.feed({"room": "410"}, permanent=True)
        await admin.set_topic("feeds/farm/log", replicas=2, ack="quorum")
        numbers: list[str] = []
        async with hub.query('room = "410"') as found:

            async def read() -> None:
                async for item in found:
                    match item:
                        case Received(event=event):
                            numbers.append(event.data.decode())

            reading = asyncio.create_task(read())
            for n in range(50):
                await feed.publish(str(n))
            await admin.move_topic("feeds/farm/log", "lab")
            for n in range(50, 100):
                await feed.publish(str(n))
            await fabric.crash("lab")
            for n in range(100, 150):
                await feed.publish(str(n))
            await until(lambda: len(numbers) >= 150 or reading.done(), 60)
            reading.cancel()
        assert numbers == [str(n) for n in range(150)]


async def read_some(client: Client, count: int, **options: Any) -> list[Any]:
    """What the durable query `q` has next; acknowledged, item by item."""
    items: list[Any] = []
    async with client.query('room = "410"', durable="q", **options) as found, asyncio.timeout(60):
        while len(items) < count:
            item = await anext(found)
            found.ack(item)
            match item:
                case Received(event=event):
                    items.append(event.data.decode())
                case Joined(feed=feed) | Left(feed=feed):
                    items.append((type(item).__name__, feed.metadata.get("name")))
    return items


async def test_a_durable_query_gives_what_feeds_published_while_they_matched(
    client: Client,
) -> None:
    stays = await client.feed({"room": "410", "name": "stays"})
    leaves = await client.feed({"room": "410", "name": "leaves"})
    comes = await client.feed({"room": "409", "name": "comes"})
    items = await read_some(client, 2)
    assert sorted(items) == [("Joined", "leaves"), ("Joined", "stays")]
    await stays.publish("s1")
    await leaves.publish("l1")
    await comes.publish("not yet")
    await leaves.publish("not any more", change={"room": "411"})
    await comes.publish("c1", change={"room": "410"})
    await stays.publish("gone for a while", change={"room": "412"})
    await stays.publish("s2", change={"room": "410"})
    items = await read_some(client, 10)
    assert [item for item in items if isinstance(item, str) and item[0] == "s"] == ["s1", "s2"]
    assert set(items) == {
        ("Joined", "stays"), "s1", ("Left", "stays"), "s2",
        ("Joined", "leaves"), "l1", ("Left", "leaves"),
        ("Joined", "comes"), "c1",
    }  # fmt: skip
    await comes.publish("c2")
    assert set(await read_some(client, 3)) == {("Joined", "stays"), ("Joined", "comes"), "c2"}


async def test_what_was_not_acknowledged_comes_again(client: Client, site: LocalSite) -> None:
    feed = await client.feed({"room": "410", "name": "a"}, permanent=True)
    async with site.connect() as reader:
        found = await reader.query('room = "410"', durable="q")
        for n in range(3):
            await feed.publish(str(n))
        assert await take(found, 4) == [("Joined", feed.id), "0", "1", "2"]
        # Nothing is acknowledged, and the client vanishes.
    assert await read_some(client, 4) == [("Joined", "a"), "0", "1", "2"]


async def test_payloads_are_asked_for_too(client: Client) -> None:
    query = 'kind = "room" and (payload.temp > 30 or alarm = true)'
    async with client.query(query) as found:
        feed = await client.feed({"kind": "room"})
        for data in ('{"temp": 29}', '{"temp": 31}', "no json", '{"temp": "hot"}'):
            await feed.publish(data)
        await feed.publish(msgspec.msgpack.encode({"temp": 40}))
        await feed.publish("whatever", change={"alarm": True})
        await feed.publish('{"temp": 1}', change={"alarm": None})
        await feed.publish('{"temp": 99}')
        items = await take(found, 5)
    assert items[:2] == [("Joined", feed.id), '{"temp": 31}']
    assert items[3:] == ["whatever", '{"temp": 99}']


async def test_history_comes_first_if_asked_for(client: Client) -> None:
    feed = await client.feed({"room": "410"})
    await feed.publish("old")
    began = datetime.now(UTC)
    for n in range(600):
        await feed.send(str(n))
    await feed.publish("600")
    async with client.query('room = "410"', from_time=began) as found:
        await feed.publish("601")
        assert await take(found, 603) == [("Joined", feed.id), *map(str, range(602))]


async def test_a_feed_may_publish_to_a_topic_of_its_own(client: Client) -> None:
    await client.create_topic("sensors")
    async with client.query('room = "410"') as found:
        feed = await client.feed({"room": "410"}, topic="sensors/a")
        await client.publish("sensors/b", "of nobody's feed")
        await feed.publish("1")
        await feed.publish("2", change={"room": "411"})
        await feed.publish("3", change={"room": "410"})
        joined, left = ("Joined", feed.id), ("Left", feed.id)
        assert await take(found, 5) == [joined, "1", left, joined, "3"]
    assert feed.topic == "sensors/a"
    with pytest.raises(errors.UnknownTopic):
        await client.feed({"room": "410"}, topic="nowhere/at/all")


async def test_feeds_expire_with_their_clients_unless_they_are_permanent(
    client: Client, site: LocalSite
) -> None:
    async with site.connect() as other:
        gone = await other.feed({"a": 1}, lease=4)
        stays = await other.feed({"a": 2}, permanent=True, lease=4)
        async with client.query("has a") as found:
            await take(found, 2)
            await other.close()
            assert await take(found, 1) == [("Left", gone.id)]
    assert [feed.id for feed in await client.feeds()] == [stays.id]
    assert [feed.id for feed in await client.feeds("a = 1")] == []


async def test_feeds_outlive_their_site(tmp_path: Path) -> None:
    """They are there when the site is, and expire only when their owners had time to come back."""
    async with LocalSite(data=tmp_path) as site, site.connect() as client:
        feed = await client.feed({"a": 1}, owner="me")
        await feed.publish("1")
    async with LocalSite(data=tmp_path) as site, site.connect() as client:
        assert [feed.metadata for feed in await client.feeds()] == [{"a": 1}]
        again = await client.feed({"a": 1}, id=feed.id, owner="me")
        async with client.query("a = 1") as found:
            await again.publish("2")
            assert await take(found, 2) == [("Joined", feed.id), "2"]


async def test_a_feed_goes_with_its_client_to_another_site() -> None:
    async with LocalFabric(["hub", "farm", "lab"]) as fabric, fabric.connect("hub") as hub:
        targets = [fabric["farm"].data, fabric["lab"].data]
        async with skerry.connect(targets, timeout=60) as client, hub.query("a = 1") as found:
            feed = await client.feed({"a": 1})
            await feed.publish("1")
            assert await take(found, 2) == [("Joined", feed.id), "1"]
            own = client.site
            await fabric.crash(own)
            await until(lambda: feed.feed.site != own, 60)
            await feed.publish("2")
            assert await take(found, 3) == [("Left", feed.id), ("Joined", feed.id), "2"]
            assert len(await hub.feeds("a = 1")) == 1


async def test_a_change_registers_the_feed_where_its_client_went(site: LocalSite) -> None:
    """Or where it expired; whoever comes first, the change or the renewing."""
    async with site.connect() as client, site.connect() as other:
        feed = await client.feed({"a": 1}, owner="me")
        await other.remove_feed(feed.id, owner="me")
        async with other.query("a = 2") as found:
            await feed.publish("1", change={"a": 2})
            assert await take(found, 2) == [("Joined", feed.id), "1"]


async def test_an_id_belongs_to_one_owner(client: Client, site: LocalSite) -> None:
    feed = await client.feed({"a": 1})
    async with site.connect() as other:
        with pytest.raises(errors.FeedTaken, match="belongs to"):
            await other.feed({"a": 2}, id=feed.id)
    same = await client.feed({"a": 3}, id=feed.id)
    assert [feed.metadata for feed in await client.feeds()] == [{"a": 3}]
    assert same.feed.version == 2


async def test_an_id_that_two_owners_register_at_once_belongs_to_the_first() -> None:
    id = str(uuid.uuid4())
    async with (
        LocalFabric(["hub", "farm"]) as fabric,
        fabric.connect("hub") as hub,
        fabric.connect("farm") as farm,
    ):
        both = await asyncio.gather(
            hub.feed({"at": "hub"}, id=id, owner="one"),
            farm.feed({"at": "farm"}, id=id, owner="two"),
            return_exceptions=True,
        )
        held = [feed for feed in both if not isinstance(feed, BaseException)]
        assert held
        assert all(isinstance(error, errors.FeedTaken) for error in both if error not in held)
        first = min((feed.feed for feed in held), key=lambda feed: feed.since)

        async def agreed() -> bool:
            return await hub.feeds() == await farm.feeds() == [first]

        await until(agreed)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"skerry/site": "x"}, "is reserved"),
        ({"payload": "x"}, "is reserved"),
        ({f"k{n}": n for n in range(1_000_000)}, "has 1000000 keys"),
        ({"a": "x" * 1_000_000}, "has 1000000 bytes"),
        ({"a": "\ud800"}, "no valid text"),
        ({"a": float("nan")}, "is nan"),
        ({"a": {"b": 1}}, "is or holds dict"),
    ],
)
async def test_metadata_that_cannot_be_taken_is_refused(
    client: Client, metadata: Any, message: str
) -> None:
    with pytest.raises(errors.BadMetadata, match=message):
        await client.feed(metadata)
    async with await client.feed({"a": 1}) as feed:
        with pytest.raises(errors.BadMetadata, match=message):
            await feed.set(metadata)
        assert feed.metadata == {"a": 1}
    assert await client.feeds() == []


async def test_a_query_that_cannot_be_read_says_where(client: Client) -> None:
    with pytest.raises(errors.BadQuery) as caught:
        client.query('room = "410" and and x')
    assert caught.value.column == 18
    with pytest.raises(errors.BadQuery):
        await client.feeds("room =")


async def test_a_slow_reader_gets_everything_and_keeps_little(client: Client) -> None:
    async with client.query("a = 1", window=10) as slow, client.query("a = 1") as quick:
        feed = await client.feed({"a": 1})
        for n in range(1000):
            await feed.send(str(n))
        await feed.publish("1000")
        expected = [("Joined", feed.id), *map(str, range(1001))]
        assert await take(quick, 1002) == expected
        assert len(slow._items) <= 11
        assert await take(slow, 1002) == expected


async def test_what_aged_out_before_a_slow_reader_took_it_is_told(
    client: Client, admin: Client
) -> None:
    async with client.query("a = 1", window=10) as slow:
        feed = await client.feed({"a": 1})
        await admin.set_topic("feeds/local/log", max_events=50)
        for n in range(200):
            await feed.publish(str(n))
        items: list[Any] = []
        async with asyncio.timeout(60):
            while not (
                items and getattr(items[-1], "event", None) and items[-1].event.index == 200
            ):
                items.append(await anext(slow))
    (missed,) = [item for item in items if isinstance(item, Missed)]
    got = [item.event.index for item in items if isinstance(item, Received)]
    assert sorted([*got, *range(missed.first, missed.last + 1)]) == list(range(1, 201))


async def test_a_durable_query_that_is_refused_keeps_its_place(client: Client) -> None:
    feed = await client.feed({"room": "410", "name": "a"})
    assert await read_some(client, 1) == [("Joined", "a")]
    await feed.publish("1")
    with pytest.raises(errors.BadSetting, match="asks something else"):
        await client.query('room = "411"', durable="q")
    assert await read_some(client, 2) == [("Joined", "a"), "1"]


async def test_what_a_feed_published_before_it_left_comes_again_until_it_is_acknowledged(
    client: Client,
) -> None:
    feed = await client.feed({"room": "410", "name": "a"})
    async with client.query('room = "410"', durable="q") as found:
        await take(found, 1)
        await feed.publish("1")
        await feed.publish("elsewhere", change={"room": "411"})
        assert await take(found, 2) == ["1", ("Left", feed.id)]
    assert await read_some(client, 3) == [("Joined", "a"), "1", ("Left", "a")]
    await feed.publish("2", change={"room": "410"})
    assert await read_some(client, 2) == [("Joined", "a"), "2"]


async def test_a_publisher_that_outruns_its_site_waits(client: Client, site: LocalSite) -> None:
    feed = await client.feed({"a": 1})
    async with client.query("a = 1") as found:
        sent = 0
        site.freeze_engine()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2):
                    while True:
                        await feed.send(str(sent))
                        sent += 1
        finally:
            site.thaw_engine()
        assert sent <= 4096  # what may be under way
        assert await take(found, sent + 1) == [("Joined", feed.id), *map(str, range(sent))]
