"""Becoming part of a fabric: who is let in, who is not, what is kept, and what stays secret."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from skerry import errors
from skerry.client import Client
from skerry.config import VERSION, ClientSettings
from skerry.engine.address import Address
from skerry.engine.answers import open_answer
from skerry.engine.binary import find_binary
from skerry.engine.folder import Folder
from skerry.engine.nkeys import new_pair
from skerry.engine.wire import Connection, Listener, Reply
from skerry.errors import AccessDenied
from skerry.fabric.join import JoinRequest, Membership, Welcome, begin, make_token, read_token
from skerry.model.fabric import PROTOCOL, SiteRecord, topic_key
from skerry.testing.fabric import LocalFabric
from skerry.testing.local import LocalSite
from tests.conftest import until
from tests.live.faults import refused

QUICK = ClientSettings(timeout=20)


@pytest.fixture
async def fabric() -> AsyncIterator[LocalFabric]:
    """A coordination site, and nobody else yet."""
    async with LocalFabric(["hub"]) as fabric:
        yield fabric


async def token_of(fabric: LocalFabric, life: float = 600) -> str:
    async with fabric.connect(fabric.names[0], "admin") as admin:
        return await admin.join_token(life)


def joining(token: str, name: str = "lab", **settings: Any) -> LocalSite:
    """A site that joins when entered."""
    return LocalSite(join=token, site=name, **{"link_port": 0, **settings})


async def ask_to_join(token: str, **changes: Any) -> Welcome:
    """Send what a site would, changed; the first of those that wrote it may be anyone."""
    address = read_token(token).address
    key = changes.pop("key", new_pair()[1])
    site = SiteRecord(
        name="lab", tier="edge", version=VERSION, protocol=PROTOCOL, link=None,
        joined=datetime.now(UTC),
    )  # fmt: skip
    request = JoinRequest(token=token, site=msgspec.structs.replace(site, **changes), key=key)
    connection = await Connection.open(address, QUICK, "by-hand")
    try:
        reply = await connection.request(
            f"_sk.{address.site}.join", msgspec.json.encode(request), timeout=20
        )
    finally:
        await connection.close()
    return msgspec.json.decode(open_answer(reply), type=Welcome)


async def members(fabric: LocalFabric) -> list[str]:
    async with fabric.connect(fabric.names[0]) as client:
        return [site.site for site in await client.sites()]


def linked(fabric: LocalFabric, one: str, other: str) -> bool:
    """Whether site `one` has a link to `other` that is up."""
    part = fabric.agent(one).fabric
    return part is not None and other in part.links.up


async def sees(client: Client, name: str) -> bool:
    """Whether the client's site sees site `name`."""
    return any(site.site == name and site.up for site in await client.sites())


async def events_of(client: Client, topic: str) -> list[bytes]:
    return [event.data async for event in client.read(topic)]


# Tokens


async def test_a_site_with_a_good_token_is_a_member(fabric: LocalFabric) -> None:
    async with joining(await token_of(fabric)) as lab, lab.connect() as client:
        await until(lambda: sees(client, "hub"))
        async with fabric.connect("hub") as other:
            await until(lambda: sees(other, "lab"))
            sites = await other.sites()
        assert [(site.site, site.tier, site.coordinates) for site in sites] == [
            ("hub", "hub", True),
            ("lab", "edge", False),
        ]
        assert sites[1].link == f"127.0.0.1:{lab.site.ports.link}"
        assert sites[1].version == VERSION


async def test_an_expired_token_is_refused(fabric: LocalFabric) -> None:
    token = await token_of(fabric, life=1)
    await until(lambda: time.time() > read_token(token).expires)
    with refused(errors.JoinRefused, "expired"):
        async with joining(token):
            pass
    assert await members(fabric) == ["hub"]


async def test_a_forged_token_is_refused(fabric: LocalFabric) -> None:
    good = await token_of(fabric)
    genuine = Membership.load(fabric.root / "hub")
    assert genuine is not None
    given = read_token(good)
    longer = msgspec.structs.replace(given, expires=given.expires + 3600)
    renamed = msgspec.structs.replace(given, id="0" * 16)
    guessed = msgspec.structs.replace(genuine, secret="guessed")
    another = msgspec.structs.replace(genuine, id="another")
    forged = [
        *[_written(forgery) for forgery in (longer, renamed)],
        make_token(guessed, given.address),
        make_token(another, given.address),
    ]
    for token in forged:
        with refused(errors.JoinRefused, "not one of this fabric's"):
            async with joining(token):
                pass
    assert await members(fabric) == ["hub"]
    async with joining(good):  # it was not harmed by its forgeries
        assert await members(fabric) == ["hub", "lab"]


def _written(given: msgspec.Struct) -> str:
    text = base64.urlsafe_b64encode(msgspec.json.encode(given)).decode()
    return "skerry1." + text.rstrip("=")


async def test_a_token_whose_seal_is_no_hexadecimal_is_refused_like_any_other(
    fabric: LocalFabric,
) -> None:
    given = msgspec.structs.replace(read_token(await token_of(fabric)), mac="schlüssel")
    with refused(errors.JoinRefused, "not one of this fabric's"):
        await ask_to_join(_written(given))


async def test_a_token_cut_short_is_refused_before_anybody_is_asked(fabric: LocalFabric) -> None:
    token = await token_of(fabric)
    for wrong in (token[:-1], token[: len(token) // 2], "", "hello"):
        with refused(errors.BadSetting, "no join token"):
            async with joining(wrong):
                pass


async def test_a_used_token_is_refused(fabric: LocalFabric) -> None:
    token = await token_of(fabric)
    async with joining(token, "lab"):
        with refused(errors.JoinRefused, "used by site lab"):
            async with joining(token, "barn"):
                pass
        assert await members(fabric) == ["hub", "lab"]


async def test_two_sites_at_once_with_one_token_and_one_of_them_is_let_in(
    fabric: LocalFabric,
) -> None:
    token = await token_of(fabric)
    answers = await asyncio.gather(
        *(ask_to_join(token, name=f"s{n}") for n in range(8)), return_exceptions=True
    )
    assert sum(isinstance(answer, Welcome) for answer in answers) == 1
    for answer in answers:
        assert isinstance(answer, Welcome | errors.JoinRefused | errors.Conflict), answer
    assert len(await members(fabric)) == 2


async def test_a_refused_site_can_try_again_in_the_same_folder(
    fabric: LocalFabric, tmp_path: Path
) -> None:
    folder = tmp_path / "lab"
    token = await token_of(fabric)
    with refused(errors.BadSetting, "no join token"):
        async with joining(token[:-3], data=folder):
            pass
    assert not (folder / "fabric.json").exists()
    async with joining(token, data=folder):
        assert await members(fabric) == ["hub", "lab"]


async def test_a_lost_answer_is_asked_for_again(fabric: LocalFabric) -> None:
    """The same site with the same key is let in with the same token: nobody else has that key."""
    token = await token_of(fabric)
    _, key = new_pair()
    first = await ask_to_join(token, key=key)
    assert await ask_to_join(token, key=key) == first
    for changes in ({"key": new_pair()[1]}, {"key": key, "name": "barn"}):
        with refused(errors.JoinRefused, "used by site lab"):
            await ask_to_join(token, **changes)
    assert await members(fabric) == ["hub", "lab"]


async def test_a_site_that_was_let_in_and_did_not_hear_of_it_joins_with_the_same_token(
    fabric: LocalFabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, folder = await token_of(fabric), tmp_path / "lab"
    request = Connection.request

    async def lose_the_answer(self: Connection, subject: str, *rest: Any, **more: Any) -> Reply:
        reply = await request(self, subject, *rest, **more)
        if subject.endswith(".join"):
            raise TimeoutError
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "request", lose_the_answer)
        with refused(errors.Unavailable, "did not answer"):
            async with joining(token, data=folder):
                pass
    assert await members(fabric) == ["hub", "lab"]
    assert (folder / "joining.json").stat().st_mode & 0o777 == 0o600
    with refused(errors.JoinRefused, "used by site lab"):  # another folder has another key
        async with joining(token, data=tmp_path / "thief"):
            pass
    with refused(errors.SiteTaken, "lab"):
        async with joining(await token_of(fabric), data=folder):
            pass
    async with joining(token, data=folder):
        await until(lambda: linked(fabric, "hub", "lab"))
    async with joining(await token_of(fabric), "barn", data=tmp_path / "barn"):
        assert await members(fabric) == ["barn", "hub", "lab"]


@pytest.mark.parametrize("name", ["hub", "lab"])
async def test_a_name_is_given_once(fabric: LocalFabric, name: str) -> None:
    async with joining(await token_of(fabric), "lab"):
        token = await token_of(fabric)
        with refused(errors.SiteTaken, repr(name)):
            async with joining(token, name):
                pass
        async with joining(token, "barn"):  # which has not used up the token
            assert await members(fabric) == ["barn", "hub", "lab"]


@pytest.mark.parametrize("protocol", [PROTOCOL - 1, PROTOCOL + 1])
async def test_another_protocol_is_refused(fabric: LocalFabric, protocol: int) -> None:
    token = await token_of(fabric)
    with refused(errors.JoinRefused, "9.9.9", f"protocol {protocol}", f"protocol {PROTOCOL}"):
        await ask_to_join(token, protocol=protocol, version="9.9.9")
    assert await members(fabric) == ["hub"]
    async with joining(token):
        pass


@pytest.mark.parametrize("name", ["", "*", ">", "a.b", "a b", "Ä", "x" * 200])
async def test_a_name_that_no_site_can_have_is_refused(fabric: LocalFabric, name: str) -> None:
    """It becomes part of subjects and of the rights of a link: `*` would be everybody."""
    with pytest.raises(errors.SkerryError):
        await ask_to_join(await token_of(fabric), name=name)
    assert await members(fabric) == ["hub"]


async def test_a_key_that_is_none_is_refused(fabric: LocalFabric) -> None:
    """It goes into the engine's configuration, which the engine would not take."""
    with pytest.raises(errors.SkerryError):
        await ask_to_join(await token_of(fabric), key="no key")
    assert await members(fabric) == ["hub"]
    async with fabric.connect("hub") as client:
        await client.create_topic("t")
        fabric["hub"].kill_engine()
        assert await client.publish("t", "x") == 1
    async with joining(await token_of(fabric)):
        assert await members(fabric) == ["hub", "lab"]


# The user `join`


class Visitor(Listener):
    """A connection as the user `join` that does what no site would, and hears the answers."""

    _numbers = itertools.count()

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._denied: list[str] = []
        connection.listen(self)

    def on_denied(self, subject: str, error: AccessDenied) -> None:
        self._denied.append(subject)

    async def may_publish(self, subject: str) -> bool:
        self._denied.clear()
        self.connection.publish(subject, b"{}")
        return await self._is_allowed()

    async def may_subscribe(self, subject: str) -> bool:
        self._denied.clear()
        self.connection.subscribe(subject, lambda *_: None)
        return await self._is_allowed()

    async def _is_allowed(self) -> bool:
        """The engine says nothing to what it allows: do one thing more that it refuses. What it
        refuses may have been mapped to another subject."""
        mark = f"never.{next(self._numbers)}"
        self.connection.publish(mark)
        await until(lambda: mark in self._denied)
        return self._denied == [mark]


@contextlib.asynccontextmanager
async def visitor(fabric: LocalFabric) -> AsyncIterator[Visitor]:
    address = read_token(await token_of(fabric)).address
    assert address.user == "join"
    connection = await Connection.open(address, QUICK, "visitor")
    try:
        yield Visitor(connection)
    finally:
        await connection.close()


async def test_the_user_join_may_ask_to_join_and_nothing_else(fabric: LocalFabric) -> None:
    async with visitor(fabric) as visit:
        assert await visit.may_publish("_sk.hub.join")
        for subject in (
            "s.hub.0.t", "s.hub.1.t", "o.hub.t", "p.t", "t.t", "e.t",
            "$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.DELETE.KV_skerry",
            "$JS.hub.API.STREAM.INFO.KV_skerry", "$JS.hub.API.$KV.skerry.fabric", "$JS.UP.API.INFO",
            "$KV.skerry.fabric", "$KV.skerry.token.x",
            "_sk.hub.open.status", "_sk.hub.open.topic.create", "_sk.hub.admin.fabric.token",
            "_sk.hub.peer.lead.token", "_sk.hub.peer.seal", "_sk.lab.peer.seal", "_sk.hub.beat.lab",
            "_sk.hub.news.fabric", "_sk.lab.join", "_INBOX_sk.hub.admin.x", "_INBOX_sk.hub.sdk.x",
            "$SYS.REQ.SERVER.PING", "$JS.M.hub.x", "$JS.ACK.x",
        ):  # fmt: skip
            assert not await visit.may_publish(subject), subject


async def test_the_user_join_hears_its_answers_and_nothing_else(fabric: LocalFabric) -> None:
    async with visitor(fabric) as visit:
        assert await visit.may_subscribe("_INBOX_sk.hub.join.mine")
        for subject in (
            ">", "t.>", "t.t", "s.>", "o.>", "e.>", "p.>", "$JS.>", "$JS.API.>", "$KV.>", "$SYS.>",
            "_sk.>", "_sk.hub.>", "_sk.hub.news.>", "_sk.hub.join", "_sk.*.peer.>",
            "_sk.hub.beat.*",
            "_INBOX.>", "_INBOX_sk.hub.>", "_INBOX_sk.hub.admin.>", "_INBOX_sk.hub.sdk.>",
            "_INBOX_sk.*.join.>",
            "$JS.M.>", "$JS.ACK.>",
        ):  # fmt: skip
            assert not await visit.may_subscribe(subject), subject


async def test_the_agent_answers_nowhere_but_to_the_asker(fabric: LocalFabric) -> None:
    """The engine does not ask whether a sender may publish where it wants its answer, and the agent
    may publish anywhere: an answer must not become an event, or an entry of the store."""
    async with fabric.connect("hub") as client:
        await client.create_topic("victim")
        async with visitor(fabric) as visit:
            for target in ("s.hub.1.victim", "$KV.skerry.site.evil", "o.hub.victim"):
                visit.connection.publish("_sk.hub.join", b"{}", reply=target)
            reply = await visit.connection.request("_sk.hub.join", b"{}", timeout=20)
            assert b"BadSetting" in reply.data  # behind the others, so they had their chance
        assert await client.latest_index("victim") == 0
        assert [site.site for site in await client.sites()] == ["hub"]


async def test_sites_that_joined_do_not_take_joiners(fabric: LocalFabric) -> None:
    async with joining(await token_of(fabric)) as lab:
        address = Address.load(lab.data / "credentials" / "join.json")
        with pytest.raises(errors.AccessDenied):
            await (await Connection.open(address, QUICK)).close()
        async with lab.connect("admin") as admin:
            elsewhere = await admin.join_token()  # which the coordination site made
        assert read_token(elsewhere).address.site == "hub"


# Secrets


def secrets_of(data: Path) -> set[str]:
    """Everything at a site that nobody else may know."""
    found = {Address.load(file).password for file in (data / "credentials").iterdir()}
    membership = Membership.load(data)
    assert membership is not None
    return (found | {membership.secret, *membership.seeds.values()}) - {""}


async def test_what_holds_secrets_is_readable_by_its_owner_only() -> None:
    async with LocalFabric(["hub", "lab"]) as fabric:
        for name in fabric.names:
            data = fabric.root / name
            files = [data / "fabric.json", data / "engine.json"]
            files += (data / "credentials").iterdir()
            assert {path.name for path in files} >= {"system.json", "join.json", "sdk.json"}
            assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
            assert (data / "credentials").stat().st_mode & 0o777 == 0o700


async def test_no_secret_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Neither in a log, nor in the store of which every site has a copy, nor to whoever lists
    processes; those of one site are not in another's folder either."""
    caplog.set_level(logging.DEBUG)
    async with LocalFabric(["hub", "lab", "barn"]) as fabric:
        token = await token_of(fabric)
        with contextlib.suppress(errors.SiteTaken):
            async with joining(token, "lab"):
                pass
        with contextlib.suppress(errors.AccessDenied):
            address = msgspec.structs.replace(read_token(token).address, password="wrong-password")
            await Connection.open(address, QUICK)
        async with fabric.connect("lab") as client, fabric.connect("barn") as other:
            await client.create_topic("t")
            assert await other.publish("t", "x") == 1  # which links the two
            fabric["hub"].kill_engine()
            await until(lambda: fabric.agent("hub").engine.restarts == 1)
            await until(lambda: linked(fabric, "hub", "lab"))
        secrets = {name: secrets_of(fabric.root / name) for name in fabric.names}
        every = set().union(*secrets.values(), {token, read_token(token).mac, "wrong-password"})
        assert len(every) >= 3 * 5 + 2
        told = caplog.text
        for name in fabric.names:
            pid = fabric.agent(name).engine.pid
            assert pid is not None
            told += "\n".join(psutil.Process(pid).cmdline())
            told += str(psutil.Process(pid).environ())
            for file in (fabric.root / name).rglob("*"):
                if file.is_file() and (file.name == "engine.log" or "KV_skerry" in file.parts):
                    told += file.read_bytes().decode("utf-8", "replace")
        assert "site.barn" in told  # so the store was among it
        assert [secret for secret in every if secret in told] == []
        for name, own in secrets.items():
            for other_name in set(fabric.names) - {name}:
                for file in (fabric.root / other_name).rglob("*"):
                    if file.is_file():
                        text = file.read_bytes().decode("utf-8", "replace")
                        assert [secret for secret in own if secret in text] == [], file


# Staying a member


async def test_a_site_needs_no_token_again() -> None:
    async with LocalFabric(["hub", "lab"]) as fabric:
        async with fabric.connect("lab") as client:
            await client.create_topic("t")
            await client.publish("t", "x")
        link = fabric.agent("lab").ports.link
        await fabric.stop("lab")
        await fabric.start("lab")
        assert fabric.agent("lab").ports.link == link
        async with fabric.connect("hub") as client:
            await until(lambda: sees(client, "lab"))
            assert await client.publish("t", "y") == 2
            assert await events_of(client, "t") == [b"x", b"y"]


async def test_a_token_at_a_site_that_joined_before_is_not_used(fabric: LocalFabric) -> None:
    await fabric.add("lab")
    await fabric.stop("lab")
    token = await token_of(fabric)
    await fabric.start("lab", token)
    async with joining(token, "barn"):
        assert await members(fabric) == ["barn", "hub", "lab"]


async def test_a_site_starts_and_serves_while_the_coordination_site_is_away() -> None:
    async with LocalFabric(["hub", "lab"]) as fabric:
        async with fabric.connect("lab") as client:
            await client.create_topic("t")
            await client.publish("t", "x")
        await fabric.stop("hub")
        await fabric.stop("lab")
        await fabric.start("lab")
        async with fabric.connect("lab") as client:
            assert await client.publish("t", "y") == 2
            assert await events_of(client, "t") == [b"x", b"y"]
            assert [site.site for site in await client.sites()] == ["hub", "lab"]
            await fabric.start("hub")
            await until(lambda: linked(fabric, "lab", "hub"))
            await client.create_topic("u")


async def test_joining_without_a_coordination_site_says_who_is_missing(
    fabric: LocalFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.fabric.join.JOIN_TIME", 1.0)
    token = await token_of(fabric)
    await fabric.stop("hub")
    with pytest.raises(errors.Unavailable) as caught:
        async with joining(token):
            pass
    assert str(read_token(token).address.port) in str(caught.value)
    await fabric.start("hub")
    async with joining(token):
        assert await members(fabric) == ["hub", "lab"]


# Sites that stood alone

READER: dict[str, Any] = {"durable": "reader", "from_index": 1, "ack_wait": 1.0}


async def fill(data: Path, site: str, topic: str, *events: str) -> None:
    """A site that stands alone, with a topic of so many events, the first of them acknowledged
    by a durable subscription."""
    async with LocalSite(site=site, data=data) as alone, alone.connect() as client:
        await client.create_topic(topic, max_events=1000)
        for text in events:
            await client.publish(topic, text)
        if not events:
            return
        async with client.subscribe(topic, **READER) as subscription:
            async for event in subscription:
                subscription.ack(event)
                break


async def resumed(client: Client, topic: str) -> bytes:
    async with client.subscribe(topic, **READER) as subscription:
        async for event in subscription:
            return event.data
    raise AssertionError


async def test_a_lone_site_becomes_a_coordination_site_and_keeps_its_topics(
    tmp_path: Path,
) -> None:
    data = tmp_path / "solo"
    await fill(data, "solo", "old/roof", "a", "b")
    folder = Folder.open(data, "solo", find_binary()[1])
    begin(folder, "coast")
    folder.close()
    settings: dict[str, Any] = {"site": "solo", "data": data, "link_port": 0, "tier": "hub"}
    async with LocalSite(**settings) as solo, solo.connect("admin") as client:
        topic = await client.topic("old/roof")
        assert (topic.home, topic.settings.max_events, topic.latest_index) == ("solo", 1000, 2)
        assert await resumed(client, "old/roof") == b"b"
        assert await client.publish("old/roof", "c") == 3
        async with joining(await client.join_token()) as lab, lab.connect() as other:
            assert await events_of(other, "old/roof") == [b"a", b"b", b"c"]
            assert await other.publish("old/roof", "d") == 4
    async with LocalSite(**{**settings, "port": 0}) as solo, solo.connect() as client:
        assert await events_of(client, "old/roof") == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("attempt", range(8))
async def test_a_lone_site_joins_and_keeps_its_topics(
    fabric: LocalFabric, tmp_path: Path, attempt: int
) -> None:
    data = tmp_path / "solo"
    await fill(data, "solo", "old/roof", "a", "b")
    token = await token_of(fabric)
    async with (
        joining(token, "solo", data=data) as solo,
        solo.connect() as client,
        fabric.connect("hub") as other,
    ):
        assert await events_of(client, "old/roof") == [b"a", b"b"]
        topic = await client.topic("old/roof")
        assert (topic.home, topic.settings.max_events) == ("solo", 1000)
        assert await events_of(other, "old/roof") == [b"a", b"b"]
        assert await resumed(client, "old/roof") == b"b"
        assert await other.publish("old/roof", "c") == 3
        assert [t.name for t in await other.topics()] == ["old/roof"]


@pytest.mark.parametrize("what", ["its link breaks", "its topic cannot be written down", "both"])
async def test_a_topic_of_a_site_that_joins_has_its_home_there_whatever_happens_just_then(
    fabric: LocalFabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    data = tmp_path / "solo"
    await fill(data, "solo", "old/roof", "a", "b")
    await fill(data, "solo", "empty")
    hub = fabric.agent("hub").fabric
    assert hub is not None
    assert hub.leader is not None
    leader, links = hub.leader, hub.links
    wait, put = leader._wait_for_sites, hub.store.put
    faults = {"link"} if what == "its link breaks" else {topic_key("empty"), topic_key("old/roof")}
    faults |= {"link"} if what == "both" else set()

    async def break_the_link(*args: Any) -> None:
        if "link" in faults:
            faults.discard("link")
            await links.drop("solo")
            await until(lambda: "solo" in leader.dead)
        await wait(*args)

    async def refuse(key: str, value: object, **options: Any) -> int:
        if key in faults:
            faults.discard(key)
            raise errors.Unavailable("the directory could not be written")
        return await put(key, value, **options)

    monkeypatch.setattr(leader, "_wait_for_sites", break_the_link)
    monkeypatch.setattr(hub.store, "put", refuse)
    async with (
        joining(await token_of(fabric), "solo", data=data) as solo,
        solo.connect() as client,
    ):
        assert await events_of(client, "old/roof") == [b"a", b"b"]
        assert not faults
        topic = await client.topic("old/roof")
        assert (topic.home, topic.settings.max_events) == ("solo", 1000)
        assert await client.publish("old/roof", "c") == 3
        topic = await client.topic("empty")
        assert (topic.home, topic.settings.max_events) == ("solo", 1000)


async def test_a_topic_that_does_not_fit_into_the_fabric_keeps_a_site_from_nothing_else(
    fabric: LocalFabric, tmp_path: Path
) -> None:
    data = tmp_path / "solo"
    await fill(data, "solo", "old/roof", "a", "b")
    await fill(data, "solo", "other", "c")
    async with fabric.connect("hub") as client:
        await client.create_topic("old")
    async with (
        joining(await token_of(fabric), "solo", data=data) as solo,
        solo.connect() as client,
        solo.connect("admin") as admin,
    ):
        assert await events_of(client, "other") == [b"c"]
        assert await client.publish("old/roof", "x") == 1
        assert (await client.status()).set_aside == ["log.old/roof"]
        await admin.move_topic("old", "solo")
        assert await client.publish("old/roof", "y") == 2
        await admin.delete_topic("old")  # nothing is in its way any more
        part = solo.site.fabric
        assert part is not None
        await until(lambda: part.copies.entry("old/roof") is not None)
        assert await events_of(client, "old/roof") == [b"a", b"b"]
        assert (await client.status()).set_aside == []


async def test_a_log_is_kept_that_a_directory_of_earlier_does_not_know(
    fabric: LocalFabric,
) -> None:
    """But not that of a topic which was deleted."""
    lab = await fabric.add("lab")
    async with lab.connect("admin") as admin:
        for topic in ("kept", "deleted"):
            await admin.create_topic(topic, home="lab")
            await admin.publish(topic, "a")
    await fabric.stop("lab")
    hub = fabric.agent("hub").fabric
    assert hub is not None
    await hub.store.delete(topic_key("kept"))  # as if it had never been written
    async with fabric.connect("hub", "admin") as admin:
        await admin.delete_topic("deleted")
    await fabric.start("lab")
    async with fabric.connect("lab") as client:
        assert await events_of(client, "kept") == [b"a"]
        assert await client.publish("kept", "b") == 2
        assert [topic.name for topic in await client.topics()] == ["kept"]


async def test_a_lone_site_that_joins_brings_its_events_to_a_topic_of_the_same_name(
    fabric: LocalFabric, tmp_path: Path
) -> None:
    """Nothing that was acknowledged is dropped silently, in neither log."""
    data = tmp_path / "solo"
    await fill(data, "solo", "t", "a", "b")
    async with fabric.connect("hub") as client:
        await client.create_topic("t", max_events=1000)
        await client.publish("t", "x")
        async with joining(await token_of(fabric), "solo", data=data):

            async def has_all() -> bool:
                return sorted(await events_of(client, "t")) == [b"a", b"b", b"x"]

            await until(has_all)
            assert (await events_of(client, "t"))[0] == b"x"


async def test_a_record_of_a_site_holds_what_it_said(fabric: LocalFabric) -> None:
    """But not what others say of it: since when it is part, and whether it is drained."""
    before = datetime.now(UTC)
    await ask_to_join(
        await token_of(fabric), tier="hub", link="[::1]:7422", ca="PEM", tls=True,
        draining=True, joined=datetime.fromtimestamp(0, UTC),
    )  # fmt: skip
    part = fabric.agent("hub").fabric
    assert part is not None
    record = part.store.get("site.lab", SiteRecord)
    assert record is not None
    assert (record.tier, record.link, record.ca, record.tls) == ("hub", "[::1]:7422", "PEM", True)
    assert not record.draining
    assert record.joined >= before
