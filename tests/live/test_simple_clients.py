"""Feeds and queries without the SDK: MQTT and NATS, JSON and MsgPack, one site and several."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal

import msgspec
import pytest
from nats.aio.client import Client as NATS
from nats.aio.msg import Msg

from skerry import Client
from skerry.engine.wire import Connection
from skerry.feeds.simple import WAITING
from skerry.feeds.simple_held import QUERIES
from skerry.model.feeds import MAX_KEYS, Received
from skerry.model.simple import MAX_REQUEST
from skerry.site import Site
from skerry.testing import LocalFabric, LocalSite
from tests.conftest import until
from tests.live.test_feeds import take
from tests.live.test_plain import Device, flushed, nats_client

ROOM = {"Location/Building": "Soda", "Location/Room": "410"}
IN_ROOM = 'Location/Building = "Soda" and Location/Room = "410"'
ID = "6f1c1b8e-5f0a-4b6e-9a3d-0d5f3f1d2c11"

How = Literal["mqtt", "nats"]


@pytest.fixture
async def site() -> AsyncIterator[LocalSite]:
    """A site that takes MQTT clients."""
    async with LocalSite(mqtt_port=0) as site:
        yield site


@pytest.fixture(autouse=True)
def _no_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever clients do, nothing fails in the agent, which runs in this process."""
    yield
    failed = [r for r in caplog.records if r.name.startswith("skerry") and r.exc_info]
    assert not failed, [record.getMessage() for record in failed]


class Simple:
    """A client that speaks the protocol of docs/simple-clients.md."""

    def __init__(self, link: Device | NATS, name: str, packed: bool) -> None:
        self.name = name
        self.received: list[tuple[str, bytes]] = []
        """What came, with MQTT's topic."""
        self._link = link
        self._packed = packed
        self._refs = itertools.count(1)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Answers and differences."""
        where = f"q/out/{self.name}"
        return [decoded(data) for topic, data in self._all() if topic == where]

    @property
    def differences(self) -> list[dict[str, Any]]:
        return [told for told in self.messages if "query" in told]

    @property
    def events(self) -> list[bytes]:
        return [data for topic, data in self._all() if not topic.startswith("q/")]

    async def ask(self, op: str, **fields: Any) -> Any:
        """What `ok` of the answer holds."""
        answer = await self.answer(op, **fields)
        assert "error" not in answer, answer
        return answer["ok"]

    async def refused(self, op: str, **fields: Any) -> dict[str, str]:
        answer = await self.answer(op, **fields)
        assert "ok" not in answer, answer
        error: dict[str, str] = answer["error"]
        return error

    async def answer(self, op: str, **fields: Any) -> dict[str, Any]:
        ref = await self.send(op, **fields)
        return await self.next(lambda told: told.get("ref") == ref)

    async def send(self, op: str, **fields: Any) -> int:
        ref = next(self._refs)
        await self.publish(f"q/in/{self.name}", self.encoded({"op": op, "ref": ref, **fields}))
        return ref

    async def next(self, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The first message that meets a condition, once it is there."""
        await until(lambda: any(map(condition, self.messages)))
        return next(filter(condition, self.messages))

    async def listen(self, topic: str) -> None:
        """Subscribe; return when the engine has taken it."""
        if isinstance(self._link, Device):
            assert await self._link.subscribe(topic, 0) == 0
        else:
            await self._link.subscribe(topic.replace("/", "."), cb=self._on_message)
            await flushed(self._link)

    async def publish(self, topic: str, data: bytes) -> None:
        if isinstance(self._link, Device):
            await self._link.publish(topic, data, 1)
        else:
            await self._link.publish(topic.replace("/", "."), data)

    def encoded(self, body: object) -> bytes:
        return msgspec.msgpack.encode(body) if self._packed else msgspec.json.encode(body)

    def _all(self) -> list[tuple[str, bytes]]:
        return self._link.received if isinstance(self._link, Device) else self.received

    async def _on_message(self, message: Msg) -> None:
        self.received.append((message.subject.replace(".", "/"), message.data))


def decoded(data: bytes) -> dict[str, Any]:
    """An answer, which tells its form by its first byte."""
    found: dict[str, Any]
    found = msgspec.json.decode(data) if data[:1] == b"{" else msgspec.msgpack.decode(data)
    return found


@contextlib.asynccontextmanager
async def simple(
    site: LocalSite, name: str = "me", how: How = "nats", *, packed: bool = False
) -> AsyncIterator[Simple]:
    async with Device(site, name) if how == "mqtt" else nats_client(site) as link:
        client = Simple(link, name, packed)
        await client.listen(f"q/out/{name}")
        yield client


# Feeds and queries


@pytest.mark.parametrize("packed", [False, True], ids=["json", "msgpack"])
@pytest.mark.parametrize("how", ["mqtt", "nats"])
async def test_feeds_join_publish_change_and_leave(site: LocalSite, how: How, packed: bool) -> None:
    async with (
        simple(site, "sensor", how, packed=packed) as sensor,
        simple(site, "reader", how, packed=packed) as reader,
    ):
        own = await sensor.ask("register", metadata=ROOM)
        feed = own["feed"]
        assert own == {"feed": feed, "metadata": ROOM, "publish": f"p/feeds/local/log/{feed}"}
        where = f"f/local/feeds/local/log/{feed}"
        found = await reader.ask("query", text=IN_ROOM)
        key = found["query"]
        described = {"id": feed, "metadata": ROOM, "listen": where}
        assert found == {"query": key, "feeds": [described]}

        await reader.listen(where)
        await sensor.publish(own["publish"], b"1")
        assert await sensor.ask("publish", feed=feed, data="2") == {"index": 2}
        await until(lambda: reader.events == [b"1", b"2"])

        changed = await sensor.ask("set", feed=feed, change={"Location/Room": "415"})
        assert changed["metadata"] == {**ROOM, "Location/Room": "415"}
        await until(lambda: reader.differences == [{"query": key, "left": [feed]}])
        back = {"Location/Room": "410", "Unit": "K"}
        assert await sensor.ask("publish", feed=feed, data="3", change=back) == {"index": 3}
        joined = {**described, "metadata": {**ROOM, "Unit": "K"}}
        await until(lambda: reader.differences[1:] == [{"query": key, "joined": [joined]}])
        await until(lambda: reader.events == [b"1", b"2", b"3"])

        assert await sensor.ask("renew") == {"feeds": [feed], "queries": []}
        assert await reader.ask("renew") == {"feeds": [], "queries": [key]}
        assert await sensor.ask("remove", feed=feed) == {}
        await until(lambda: reader.differences[2:] == [{"query": key, "left": [feed]}])
        assert await reader.ask("end", query=key) == {}
        await sensor.ask("register", metadata=ROOM)
        assert await reader.ask("renew") == {"feeds": [], "queries": []}
        assert len(reader.differences) == 3


@pytest.mark.parametrize("packed", [False, True], ids=["json", "msgpack"])
async def test_what_data_becomes_as_a_payload(
    site: LocalSite, client: Client, packed: bool
) -> None:
    """Text and bytes as they are, anything else in the form of the request."""
    async with simple(site, packed=packed) as me:
        feed = (await me.ask("register"))["feed"]
        values: list[Any] = ["21.5 °C", "", {"celsius": 21.5, "ok": True}, [1, None], 7, None]
        expected = ["21.5 °C".encode(), b"", *map(me.encoded, values[2:])]
        if packed:
            values.append(b"\x00\xff")
            expected.append(b"\x00\xff")
        for value in values:
            await me.ask("publish", feed=feed, data=value)
        log = [event.data async for event in client.read("feeds/local/log")]
    assert log == expected


async def test_a_publish_that_is_sent_again_with_its_id_is_stored_once(
    site: LocalSite, client: Client
) -> None:
    async with simple(site) as me, simple(site, "other") as other:
        feed = (await me.ask("register"))["feed"]
        theirs = (await other.ask("register"))["feed"]
        event = {"data": "x", "id": "1", "change": {"n": 1}}
        assert [await me.ask("publish", feed=feed, **event) for _ in range(3)] == [{"index": 1}] * 3
        assert await other.ask("publish", feed=theirs, **event) == {"index": 2}
    assert await client.latest_index("feeds/local/log") == 2


async def test_the_sdk_and_simple_clients_find_each_other(site: LocalSite, client: Client) -> None:
    async with (
        simple(site, how="mqtt") as me,
        client.query(IN_ROOM) as found,
        await client.feed({"Location/Building": "Soda"}) as theirs,
    ):
        key = (await me.ask("query", text=IN_ROOM))["query"]
        own = (await me.ask("register", metadata=ROOM))["feed"]
        await me.ask("publish", feed=own, data="1")
        await me.ask("publish", feed=own, data="2", change={"Location/Room": "409"})
        await me.ask("publish", feed=own, data="3", change={"Location/Room": "410"})
        items = await take(found, 5)  # "2" was published when the feed did not match
        assert items == [("Joined", own), "1", ("Left", own), ("Joined", own), "3"]
        await theirs.set({"Location/Room": "410"})
        told = await me.next(lambda told: theirs.id in str(told.get("joined")))
        assert told["query"] == key
        await me.listen(told["joined"][0]["listen"])
        await theirs.publish("from the SDK")
        await until(lambda: me.events == [b"from the SDK"])
        (feed,) = await client.feeds(f'skerry/owner = "plain:{me.name}"')
        assert feed.id == own


async def test_a_feed_on_a_topic_of_the_user_s_own_is_delivered_plainly(
    site: LocalSite, client: Client
) -> None:
    await client.create_topic("sensors")
    async with simple(site) as me:
        own = await me.ask("register", topic="sensors/roof", metadata=ROOM)
        assert own["publish"] == "p/sensors/roof"
        (feed,) = (await me.ask("query", text=IN_ROOM))["feeds"]
        assert feed["listen"] == "t/sensors/roof"
        await me.listen(feed["listen"])
        await me.ask("publish", feed=own["feed"], data="1")
        await me.publish(own["publish"], b"2")
        await until(lambda: me.events == [b"1", b"2"])
        assert (await me.refused("register", topic="unknown"))["kind"] == "UnknownTopic"


async def test_without_plain_delivery_such_a_feed_is_listened_to_nowhere() -> None:
    async with LocalSite() as site, site.connect() as client, simple(site) as me:
        await client.create_topic("sensors")
        await me.ask("register", topic="sensors", metadata=ROOM)
        await me.ask("register", metadata=ROOM)
        feeds = (await me.ask("query", text=IN_ROOM))["feeds"]
        assert sorted(feed["listen"] is None for feed in feeds) == [False, True]


async def test_a_large_result_comes_in_pages(site: LocalSite) -> None:
    async with simple(site) as me:
        ids = {
            (await me.ask("register", metadata={**ROOM, "a": "x" * 4000, "b": "y" * 4000}))["feed"]
            for _ in range(20)
        }
        found: list[str] = []
        pages = 0
        more = True
        while more:
            page = await me.ask("query", text=IN_ROOM, after=found[-1] if found else "")
            found += [feed["id"] for feed in page["feeds"]]
            pages += 1
            more = page.get("more", False)
        assert sorted(found) == sorted(ids)
        assert pages > 2


async def test_asking_a_query_again_tells_its_result_again_and_differences_once(
    site: LocalSite,
) -> None:
    async with simple(site) as me:
        first = await me.ask("query", text=IN_ROOM)
        again = await me.ask("query", text=IN_ROOM.replace("and", "AND"))
        assert first == again
        await me.ask("register", metadata=ROOM)
        await until(lambda: bool(me.differences))
        await me.ask("renew")  # what else was to be told is there before its answer
        assert len(me.differences) == 1


# Who may do what


async def test_only_its_owner_changes_publishes_to_or_removes_a_feed(site: LocalSite) -> None:
    async with simple(site) as me, simple(site, "other") as other:
        feed = (await me.ask("register", metadata=ROOM))["feed"]
        for op, fields in (
            ("set", {"change": {"a": 1}}),
            ("publish", {"data": "x"}),
            ("remove", {}),
            ("register", {}),
        ):
            error = await other.refused(op, feed=feed, **fields)
            assert error["kind"] == "FeedTaken"
        assert (await me.ask("set", feed=feed, change={}))["metadata"] == ROOM


async def test_queries_about_payloads_are_refused(site: LocalSite) -> None:
    async with simple(site) as me:
        error = await me.refused("query", text=f"{IN_ROOM} and payload.c > 30")
        assert error["kind"] == "BadQuery"
        assert "payload" in error["advice"]
        assert (await me.ask("renew"))["queries"] == []


async def test_one_client_holds_so_many_queries(site: LocalSite) -> None:
    async with simple(site) as me:
        for n in range(QUERIES):
            await me.ask("query", text=f"number = {n}")
        assert "queries already" in (await me.refused("query", text="number = -1"))["what"]
        await me.ask("query", text="number = 0")
        await me.ask("end", query=(await me.ask("renew"))["queries"][0])
        await me.ask("query", text="number = -1")


# Silence, and losses


async def test_what_a_silent_client_holds_goes(site: LocalSite) -> None:
    """Its time is let pass by hand."""
    async with simple(site) as me, simple(site, "other") as other:
        key = (await me.ask("query", text=IN_ROOM))["query"]
        stays = await other.ask("register", metadata=ROOM, permanent=True)
        goes = await other.ask("register", metadata=ROOM)
        agent = site.site
        assert agent._simple is not None
        assert agent._feeds is not None
        agent._feeds._leases["plain:other"] = 0.0
        await until(lambda: {"query": key, "left": [goes["feed"]]} in me.differences)
        agent._simple.held._sessions["me"].renewed = float("-inf")
        ended = await me.next(lambda told: "ended" in told)
        assert (ended["query"], ended["ended"]["kind"]) == (key, "Unavailable")
        assert await me.ask("renew") == {"feeds": [], "queries": []}
        assert await other.ask("renew") == {"feeds": [stays["feed"]], "queries": []}


async def test_any_request_is_a_sign_of_life(site: LocalSite) -> None:
    async with simple(site) as me:
        await me.ask("query", text=IN_ROOM)
        feed = (await me.ask("register", metadata=ROOM))["feed"]
        agent = site.site
        assert agent._simple is not None
        assert agent._feeds is not None
        now = asyncio.get_running_loop().time()
        agent._feeds._leases["plain:me"] = now + 10
        agent._simple.held._sessions["me"].renewed = now - 30
        await me.ask("publish", feed=feed, data="x")
        assert agent._simple.held._sessions["me"].renewed >= now
        assert agent._feeds._leases["plain:me"] > now + 20


async def test_a_client_that_comes_back_after_an_engine_kill_asks_anew(site: LocalSite) -> None:
    async with simple(site) as me:
        feed = (await me.ask("register", metadata=ROOM))["feed"]
        await me.ask("query", text=IN_ROOM)
        site.kill_engine()
        refs: list[int] = []

        async def is_answered() -> bool:
            with contextlib.suppress(Exception):  # nats-py is away
                refs.append(await me.send("renew"))
            return any(told.get("ref") in refs for told in me.messages)

        await until(is_answered)
        await until(lambda: any("ok" in told for told in me.messages if told.get("ref") in refs))
        assert await me.ask("renew") == {"feeds": [feed], "queries": []}
        (found,) = (await me.ask("query", text=IN_ROOM))["feeds"]
        await me.listen(found["listen"])
        await me.ask("publish", feed=feed, data="after")
        await until(lambda: me.events == [b"after"])


# Bad requests


def nested(depth: int) -> bytes:
    return b'{"op": "set", "feed": "x", "change": {"a": ' + b"[" * depth + b"]" * depth + b"}}"


def many(keys: int) -> bytes:
    return msgspec.json.encode({"op": "register", "metadata": {str(n): n for n in range(keys)}})


BAD = {
    "nothing": b"",
    "no map": b"[]",
    "text": b"hello",
    "zeros": b"\0\0\0",
    "cut": b'{"op": "renew"',
    "more behind": b'{"op": "renew"} {"op": "renew"}',
    "no op": b"{}",
    "op is a number": b'{"op": 1}',
    "unknown op": b'{"op": "fly"}',
    "unknown field": b'{"op": "renew", "lease": 5}',
    "missing field": b'{"op": "set", "change": {}}',
    "wrong type": b'{"op": "register", "metadata": []}',
    "invalid UTF-8": b'{"op": "query", "text": "\xff\xfe"}',
    "invalid UTF-8 in data": b'{"op": "publish", "feed": "x", "data": "\xff"}',
    "half a character": b'{"op": "query", "text": "\\ud800"}',
    "half a character in metadata": b'{"op": "register", "metadata": {"a": "\\udc00"}}',
    "no number": b'{"op": "register", "metadata": {"a": NaN}}',
    "a huge number": b'{"op": "register", "metadata": {"a": 1%b}}' % (b"0" * 400),
    "a map in metadata": b'{"op": "register", "metadata": {"a": {"b": 1}}}',
    "a reserved key": b'{"op": "register", "metadata": {"skerry/owner": "me"}}',
    "no UUID": b'{"op": "register", "feed": "../../x"}',
    "a bad topic": b'{"op": "register", "topic": "a//b>"}',
    "a long ref": b'{"op": "renew", "ref": "%b"}' % (b"x" * 65),
    "a deep one": nested(500),
    "a very deep one": nested(100_000),
    "too many keys": many(MAX_KEYS + 1),
    "very many keys": many(15_000),
    "half a million keys": many(500_000),
    "a long query": msgspec.json.encode({"op": "query", "text": "a = 1 or " * 10_000}),
    "a huge query": msgspec.json.encode({"op": "query", "text": "x" * MAX_REQUEST}),
    "no query": b'{"op": "query", "text": "Room ="}',
    "an empty query": b'{"op": "query", "text": ""}',
    "a key that is none": b'{"op": "query", "text": "a = 1", "after": "%b"}' % (b"z" * 65),
    "a cut map": b"\x81",
    "a map of nothing": b"\x80",
    "a map that says it is huge": b"\xdf\xff\xff\xff\xff",
    "a key that is no text": b"\x82\xa2op\xa5renew\x01\x01",
    "invalid UTF-8 in a map": b"\x82\xa2op\xa5query\xa4text\xa2\xff\xfe",
    "an extension": b"\x82\xa2op\xa8register\xa8metadata\x81\xa1a\xd4\x05\x00",
    "a deep map": b"\x83\xa2op\xa3set\xa4feed\xa1x\xa6change\x81\xa1a"
    + b"\x91" * 100_000
    + b"\xc0",
}


@pytest.mark.parametrize("how", ["mqtt", "nats"])
async def test_bad_requests_are_answered_with_what_is_wrong(site: LocalSite, how: How) -> None:
    async with simple(site, how=how) as me:
        for number, (name, data) in enumerate(BAD.items()):
            await me.publish(f"q/in/{me.name}", data)
            await until(lambda number=number: len(me.messages) > number)  # type: ignore[misc]
            answer = me.messages[number]
            assert list(answer) == ["error"], (name, answer)
            assert sorted(answer["error"]) == ["advice", "kind", "what"], name
            assert answer["error"]["kind"].startswith("Bad"), (name, answer)
            assert len(str(answer)) < 1000, name
            print(f"{name}: {answer['error']}")
        assert await me.ask("renew") == {"feeds": [], "queries": []}


async def test_what_is_asked_as_soon_as_a_site_is_up_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the agent is slow to connect the service: nobody keeps a request for it."""
    connect = Site._connect_again

    async def slowly(self: Site, name: str = "feeds") -> Connection:
        await asyncio.sleep(0.5)
        return await connect(self, name)

    monkeypatch.setattr(Site, "_connect_again", slowly)
    async with LocalSite() as site, simple(site) as me:
        assert await me.ask("renew") == {"feeds": [], "queries": []}


async def test_a_bad_request_is_answered_in_its_form_and_with_its_ref(site: LocalSite) -> None:
    for packed in (False, True):
        async with simple(site, packed=packed) as me:
            body = {"op": "fly", "ref": "mine"}
            await me.publish(f"q/in/{me.name}", me.encoded(body))
            told = await me.next(lambda told: told.get("ref") == "mine")
            assert "register, set, publish" in told["error"]["advice"]
            is_json = [data[:1] == b"{" for topic, data in me.received]
            assert is_json == [not packed]


async def test_names_that_no_client_can_have(site: LocalSite) -> None:
    async with nats_client(site) as link:
        for name in ("a$b", "x" * 65):
            odd = Simple(link, name, False)
            await odd.listen(f"q/out/{name}")
            assert (await odd.refused("renew"))["kind"] == "BadName"
        me = Simple(link, "me", False)
        await me.listen("q/out/me")
        for subject in ("q.in.é", "q.in.*", "q.in.>"):
            await link.publish(subject, b'{"op": "renew"}')
        assert await me.ask("renew") == {"feeds": [], "queries": []}


async def test_a_flood_is_refused_in_part_and_delays_nobody_else(site: LocalSite) -> None:
    """Every request is answered, in order as far as it was taken, and others are served."""
    async with simple(site) as me, simple(site, "other") as other:
        feed = (await me.ask("register", metadata=ROOM))["feed"]
        refs: list[int] = []
        for _ in range(20):
            refs += [await me.send("publish", feed=feed, data="x") for _ in range(100)]
            await other.ask("renew")
        await until(lambda: len(me.messages) >= 1 + len(refs))
        answers = {told["ref"]: told for told in me.messages[1:]}
        assert sorted(answers) == sorted(refs)
        taken = [ref for ref in refs if "ok" in answers[ref]]
        indexes = [answers[ref]["ok"]["index"] for ref in taken]
        assert indexes == list(range(1, len(taken) + 1))
        refused = [answers[ref]["error"] for ref in refs if "error" in answers[ref]]
        assert len(refused) + len(taken) == len(refs)
        assert len(taken) > WAITING
        assert refused
        assert {error["kind"] for error in refused} == {"Unavailable"}
        assert "not taken" in refused[0]["what"]
        await me.ask("renew")


# Several sites


@pytest.fixture
async def fabric() -> AsyncIterator[LocalFabric]:
    async with LocalFabric(["hub", "farm"], mqtt_port=0) as fabric:
        yield fabric


async def hears(reader: Simple, publish: Callable[[bytes], Any]) -> None:
    """Publish until an event is heard: what is published before a subscription has reached the
    feed's home is missed."""
    numbers = itertools.count()

    async def is_heard() -> bool:
        data = f"{id(publish)} {next(numbers)}".encode()
        await publish(data)
        return any(event.startswith(data.split()[0]) for event in reader.events)

    await until(is_heard)


@pytest.mark.parametrize("how", ["mqtt", "nats"])
async def test_simple_clients_of_two_sites(fabric: LocalFabric, how: How) -> None:
    """They may even bear the same name: requests and answers stay at their site."""
    async with simple(fabric["hub"], how=how) as reader, simple(fabric["farm"], how=how) as sensor:
        key = (await reader.ask("query", text=IN_ROOM))["query"]
        own = await sensor.ask("register", metadata=ROOM)
        feed = own["feed"]
        told = await reader.next(lambda told: "joined" in told)
        where = f"f/farm/feeds/farm/log/{feed}"
        assert told == {
            "query": key,
            "joined": [{"id": feed, "metadata": ROOM, "listen": where}],
        }
        await reader.listen(where)

        async def ask(data: bytes) -> None:
            await sensor.ask("publish", feed=feed, data=data.decode())

        async def directly(data: bytes) -> None:
            await sensor.publish(own["publish"], data)

        await hears(reader, ask)
        await hears(reader, directly)  # through the outbox
        await ask(b"last")
        await until(lambda: b"last" in reader.events)
        # The own answer, and what is told of the query.
        assert len(reader.messages) == 2
        assert all("ref" in told for told in sensor.messages)


async def test_a_client_is_told_where_a_feed_is_when_its_log_has_moved(fabric: LocalFabric) -> None:
    async with (
        simple(fabric["hub"], "reader") as reader,
        simple(fabric["farm"], "sensor", packed=True) as sensor,
        fabric.connect("hub", "admin") as admin,
    ):
        feed = (await sensor.ask("register", metadata=ROOM))["feed"]
        await reader.ask("query", text=IN_ROOM)
        await reader.next(lambda told: feed in str(told))
        await admin.move_topic("feeds/farm/log", "hub")
        told = await reader.next(lambda told: "moved" in told)
        where = f"f/hub/feeds/farm/log/{feed}"
        assert told["moved"] == [{"id": feed, "listen": where}]
        await reader.listen(where)

        async def ask(data: bytes) -> None:
            await sensor.ask("publish", feed=feed, data=data)

        await hears(reader, ask)


async def test_a_feed_goes_with_its_client_to_another_site(fabric: LocalFabric) -> None:
    """Those who listen to it are told, also those that use the SDK."""
    async with (
        simple(fabric["hub"], "reader") as reader,
        simple(fabric["hub"], "rover") as here,
        simple(fabric["farm"], "rover") as there,
        fabric.connect("hub") as client,
        client.query(IN_ROOM) as found,
    ):
        await reader.ask("query", text=IN_ROOM)
        await here.ask("register", feed=ID, metadata=ROOM)
        await here.ask("publish", feed=ID, data="here")
        assert await take(found, 2) == [("Joined", ID), "here"]

        async def is_known() -> bool:
            return ID in str(await there.ask("query", text=IN_ROOM))

        await until(is_known)
        own = await there.ask("register", feed=ID, metadata=ROOM)
        assert own["publish"] == f"p/feeds/farm/log/{ID}"
        told = await reader.next(lambda told: "left" in told)
        assert told["left"] == [ID]
        told = await reader.next(lambda told: "/farm/" in str(told.get("joined")))
        assert [feed["listen"] for feed in told["joined"]] == [f"f/farm/feeds/farm/log/{ID}"]
        await there.ask("publish", feed=ID, data="there")
        async with asyncio.timeout(60):
            while not isinstance(item := await anext(found), Received):
                pass
        assert item.event.data == b"there"
