"""Who may connect, from where, over what, and what each user may not do."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import socket
import ssl
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import nats
import nats.errors
import paho.mqtt.client as mqtt
import psutil
import pytest
import trustme
from nats.aio.client import Client as NATS
from nats.aio.msg import Msg
from paho.mqtt.enums import CallbackAPIVersion

from skerry import Client, SkerryError, connect, errors
from skerry.engine.address import Address
from skerry.engine.jetstream import JetStream
from skerry.engine.lines import Frame
from skerry.engine.wire import Connection
from skerry.testing import LocalFabric, LocalSite
from tests.conftest import until
from tests.live.faults import nats_server, refused

# Where it listens


def listening(site: LocalSite) -> set[tuple[str, int]]:
    """Every socket that the engine listens on."""
    sockets = psutil.Process(site.site.engine.pid).net_connections()
    return {(s.laddr.ip, s.laddr.port) for s in sockets if s.status == psutil.CONN_LISTEN}


async def test_a_site_listens_on_loopback_and_its_own_ports_only() -> None:
    async with LocalSite(mqtt_port=0, websocket_port=0) as site:
        ports = site.site.ports
        assert listening(site) == {
            ("127.0.0.1", port) for port in (ports.client, ports.mqtt, ports.websocket)
        }
    async with LocalSite() as site:
        assert listening(site) == {("127.0.0.1", site.site.ports.client)}


async def test_an_ipv6_loopback_works() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    async with (
        LocalSite(host="::1", mqtt_port=0, websocket_port=0) as site,
        site.connect() as client,
    ):
        assert {ip for ip, _ in listening(site)} == {"::1"}
        assert (await client.status()).address == f"nats://[::1]:{site.site.ports.client}"


async def test_beyond_loopback_needs_tls_or_force() -> None:
    with refused(errors.BadSetting, "0.0.0.0", "TLS"):
        async with LocalSite(host="0.0.0.0"):
            pass
    async with LocalSite(host="0.0.0.0", insecure=True) as site, site.connect() as client:
        assert {ip for ip, _ in listening(site)} & {"0.0.0.0", "::"}
        assert (await client.status()).site == "local"


# TLS


@dataclasses.dataclass
class Certificates:
    """A certificate for `localhost` from an authority that this machine does not know."""

    authority: trustme.CA
    cert: Path
    key: Path

    @property
    def settings(self) -> dict[str, Path]:
        return {"tls_cert": self.cert, "tls_key": self.key}


def issue(folder: Path, *names: str) -> Certificates:
    authority = trustme.CA()
    issued = authority.issue_cert(*names)
    made = Certificates(authority, folder / "cert.pem", folder / "key.pem")
    made.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(made.key)
    return made


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return issue(tmp_path, "localhost", "127.0.0.1")


@pytest.fixture
async def secure(certificates: Certificates) -> AsyncIterator[LocalSite]:
    """A site that speaks TLS on every port."""
    async with LocalSite(mqtt_port=0, websocket_port=0, **certificates.settings) as site:
        yield site


def address_of(site: LocalSite, user: str = "sdk", **changes: Any) -> Address:
    address = Address.load(site.data / "credentials" / f"{user}.json")
    return msgspec.structs.replace(address, **changes)


async def test_the_sdk_connects_over_tls(secure: LocalSite) -> None:
    async with secure.connect() as client:
        assert client.address.tls
        await client.create_topic("t")
        assert await client.publish("t", "x") == 1
        secure.kill_engine()
        assert await client.publish("t", "y") == 2
        assert (await client.status()).address.startswith("tls://localhost:")


async def test_a_site_known_by_a_public_name_uses_that_name_s_certificate(tmp_path: Path) -> None:
    """The agent reaches its engine on loopback and verifies the public name."""
    public = issue(tmp_path, "farm.example")
    async with LocalSite(advertise="farm.example", **public.settings) as site:
        given = address_of(site)
        assert (given.host, given.verify) == ("farm.example", "")
        here = msgspec.structs.replace(given, host="127.0.0.1", verify="farm.example")
        async with connect(here) as client:
            assert (await client.status()).site == "local"
        with pytest.raises(errors.EngineUnfit, match="not trusted"):
            await connect(msgspec.structs.replace(given, host="127.0.0.1"), timeout=5).open()


async def test_trust_in_the_authority_is_enough(
    secure: LocalSite, certificates: Certificates
) -> None:
    ca = certificates.authority.cert_pem.bytes().decode()
    async with connect(address_of(secure, ca=ca)) as client:
        assert (await client.status()).site == "local"


async def test_an_unknown_authority_is_refused_at_once(secure: LocalSite) -> None:
    other = trustme.CA().cert_pem.bytes().decode()
    for ca in ("", other):
        address = address_of(secure, ca=ca)
        with refused(errors.EngineUnfit, "certificate", "not trusted", secure.site.ports.client):
            async with asyncio.timeout(20), connect(address, timeout=100):
                pass


async def test_a_nats_url_does_not_get_around_the_certificate(secure: LocalSite) -> None:
    """The engine demands TLS, and a client that did not ask for it checks whom it talks to too."""
    address = address_of(secure, ca="", tls=False)
    with refused(errors.EngineUnfit, "certificate", "not trusted"):
        async with connect(address):
            pass


async def test_the_host_name_is_verified(tmp_path: Path) -> None:
    """With a certificate for another name the site does not even trust itself."""
    elsewhere = issue(tmp_path, "elsewhere.example")
    with refused(errors.EngineUnfit, "certificate", "localhost"):
        async with LocalSite(**elsewhere.settings):
            pass


async def test_a_plain_text_client_is_refused(secure: LocalSite) -> None:
    address = address_of(secure, "plain")
    reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
    async with asyncio.timeout(20):
        assert b'"tls_required":true' in await reader.readline()
        hello = {"user": address.user, "pass": address.password, "verbose": True}
        writer.write(b"CONNECT " + json.dumps(hello).encode() + b"\r\nPING\r\n")
        with contextlib.suppress(ConnectionError):
            answer = await reader.read()
            assert b"+OK" not in answer
            assert b"PONG" not in answer
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


@pytest.mark.parametrize("port", ["mqtt", "websocket"])
async def test_the_other_ports_speak_tls_only(secure: LocalSite, port: str) -> None:
    number = getattr(secure.site.ports, port)
    context = address_of(secure).tls_context()
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", number, ssl=context, server_hostname="localhost"
    )
    writer.close()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()
    reader, writer = await asyncio.open_connection("127.0.0.1", number)
    async with asyncio.timeout(20):
        writer.write(b"GET / HTTP/1.1\r\n\r\n" + b"\0" * 64)
        with contextlib.suppress(ConnectionError):
            answer = await reader.read()
            assert answer[:1] in (b"", b"\x15") or answer.startswith(b"HTTP/1.0 400"), answer
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_mqtt_works_over_tls(secure: LocalSite, certificates: Certificates) -> None:
    address = address_of(secure, "plain")
    context = ssl.create_default_context(cadata=certificates.authority.cert_pem.bytes().decode())
    device = mqtt.Client(CallbackAPIVersion.VERSION2)
    device.tls_set_context(context)
    device.username_pw_set(address.user, address.password)
    async with secure.connect() as client:
        await client.create_topic("t")
        assert secure.site.ports.mqtt
        await asyncio.to_thread(device.connect, "localhost", secure.site.ports.mqtt)
        device.loop_start()
        try:
            device.publish("p/t", "x", qos=1)
            await until(lambda: _has_one(client))
        finally:
            device.disconnect()
            await asyncio.to_thread(device.loop_stop)


async def _has_one(client: Client) -> bool:
    return await client.latest_index("t") == 1


@pytest.mark.parametrize("missing", ["tls_cert", "tls_key"])
async def test_half_of_a_tls_setting_is_refused(certificates: Certificates, missing: str) -> None:
    settings = {k: v for k, v in certificates.settings.items() if k != missing}
    with refused(errors.BadSetting, "certificate", "key"):
        async with LocalSite(**settings):
            pass


@pytest.mark.parametrize("which", ["tls_cert", "tls_key"])
async def test_a_tls_file_that_cannot_be_read_is_named(
    certificates: Certificates, which: str
) -> None:
    file = certificates.settings[which]
    file.unlink()
    with refused(errors.BadSetting, file):
        async with LocalSite(**certificates.settings):
            pass
    file.mkdir()  # even root cannot read that as a file
    with refused(errors.BadSetting, file):
        async with LocalSite(**certificates.settings):
            pass


@pytest.mark.parametrize("which", ["tls_cert", "tls_key"])
@pytest.mark.parametrize("garbage", [b"no PEM", b"\xff\xfe\x00"], ids=["text", "binary"])
async def test_a_tls_file_that_holds_something_else_is_named(
    certificates: Certificates, which: str, garbage: bytes
) -> None:
    file = certificates.settings[which]
    file.write_bytes(garbage)
    with refused(errors.BadSetting, file):
        async with LocalSite(**certificates.settings):
            pass


async def test_a_key_of_another_certificate_is_refused(
    certificates: Certificates, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = issue(tmp_path / "other", "localhost")
    with refused(errors.BadSetting, certificates.cert, other.key):
        async with LocalSite(tls_cert=certificates.cert, tls_key=other.key):
            pass


async def test_a_client_that_asks_for_tls_does_not_go_without(site: LocalSite) -> None:
    with refused(errors.EngineUnfit, "TLS", site.site.ports.client):
        async with connect(address_of(site, tls=True)):
            pass


# Credentials


NOBODY = {"user": "", "password": ""}


@pytest.mark.parametrize(
    "change",
    [{"password": "wrong"}, {"user": "nobody"}, NOBODY, {**NOBODY, "token": "wrong"}],
    ids=["password", "user", "nobody", "token"],
)
async def test_wrong_credentials_are_refused_at_once(
    site: LocalSite, change: dict[str, str]
) -> None:
    """And not retried until the time is up: that would end this test first."""
    address = msgspec.structs.replace(address_of(site), **change)
    with refused(errors.AccessDenied, site.site.ports.client, repr(address.user)):
        async with asyncio.timeout(20), connect(address, timeout=100):
            pass


# What the users may not do


@dataclasses.dataclass
class Intruder:
    """A client that does what the SDK would not, and hears what the engine says to that."""

    client: NATS
    denials: list[str]

    async def is_denied(self, subject: str, data: bytes = b"") -> bool:
        """Whether publishing to `subject` is refused."""
        await self.client.publish(subject, data)
        return f'publish to "{subject}"'.lower() in await self._answers()

    async def is_deaf(self, subject: str) -> bool:
        """Whether subscribing to `subject` is refused."""
        await self.client.subscribe(subject)
        return f'subscription to "{subject}"'.lower() in await self._answers()

    async def _answers(self) -> str:
        """What was refused so far. The engine says nothing to what it allows, so that we do one
        thing more that it refuses, and wait for that."""
        mark = f"never.{next(_numbers)}"
        await self.client.publish(mark)
        await until(lambda: any(mark in text for text in self.denials))
        return "\n".join(self.denials).lower()


_numbers = itertools.count()


@contextlib.asynccontextmanager
async def intruder(site: LocalSite, user: str, name: str = "local") -> AsyncIterator[Intruder]:
    address = address_of(site, user)
    denials: list[str] = []

    async def on_error(error: Exception) -> None:
        denials.append(str(error))

    client = await nats.connect(
        str(address),
        user=user,
        password=address.password,
        inbox_prefix=b"_INBOX" if user == "plain" else f"_INBOX_sk.{name}.{user}".encode(),
        error_cb=on_error,
    )
    try:
        yield Intruder(client, denials)
    finally:
        await client.close()


@pytest.fixture
async def victim(client: Client) -> AsyncIterator[str]:
    """A topic that must be whole at the end of the test."""
    await client.create_topic("victim")
    for number in range(3):
        await client.publish("victim", str(number))
    yield "t~victim"
    assert [event.data async for event in client.read("victim")] == [b"0", b"1", b"2"]


HARM = ["DELETE", "UPDATE", "PURGE", "MSG.DELETE", "SNAPSHOT", "RESTORE"]
DELIVERY = ["s.>", "s.local.victim", "e.>", "p.>", "_sk.>", "$JS.>", "$JS.API.>", "$MQTT.>", ">"]


async def test_the_sdk_user_cannot_harm_a_stream(site: LocalSite, victim: str) -> None:
    async with intruder(site, "sdk") as sdk:
        for call in HARM:
            assert await sdk.is_denied(f"$JS.API.STREAM.{call}.{victim}", b"{}"), call
        assert await sdk.is_denied("$JS.API.STREAM.CREATE.mine", b'{"name":"mine"}')
        assert await sdk.is_denied("$JS.API.SERVER.REMOVE")
        assert await sdk.is_denied("$JS.API.ACCOUNT.PURGE.SKERRY")


async def test_the_sdk_user_cannot_use_the_administrators_services(
    client: Client, victim: str
) -> None:
    with refused(errors.AccessDenied, "'sdk'", "_sk.local.admin.topic.delete"):
        await client.delete_topic("victim")
    with refused(errors.AccessDenied, "'sdk'", "_sk.local.admin.topic.set"):
        await client.set_topic("victim", max_events=1)


async def test_the_sdk_user_cannot_get_there_through_what_the_engine_sends_for_it(
    site: LocalSite, client: Client, admin: Client, victim: str
) -> None:
    """The engine sends events wherever a reader says: those of a push consumer, of a pull, of a
    direct get. An event that looks like a request must not reach the administrators' services so.
    """
    await client.create_topic("bait")
    await client.publish("bait", json.dumps({"name": "victim"}))
    heard: list[str] = []
    ear = await Connection.open(address_of(site, "admin"))
    ear.subscribe("_sk.local.admin.>", lambda subject, *_: heard.append(subject.decode()))
    await ear.request("$JS.API.INFO", timeout=20)
    async with intruder(site, "sdk") as sdk:
        inbox = await sdk.client.subscribe("_INBOX_sk.local.sdk.mine")
        for target in ("_sk.local.admin.topic.delete", inbox.subject):
            push = {"name": f"push-{len(target)}", "deliver_subject": target}
            pull = {"name": f"pull-{len(target)}", "ack_policy": "none"}
            for config in (push, pull):
                body = json.dumps({"stream_name": "t~bait", "config": config}).encode()
                call = f"$JS.API.CONSUMER.CREATE.t~bait.{config['name']}"
                answer = await sdk.client.request(call, body, timeout=20)
                assert "error" not in json.loads(answer.data)
            more = f"$JS.API.CONSUMER.MSG.NEXT.t~bait.{pull['name']}"
            await sdk.client.publish(more, b'{"batch":1}', reply=target)
            got = b'{"last_by_subj":"e.bait"}'
            await sdk.client.publish("$JS.API.DIRECT.GET.t~bait", got, reply=target)
        for _ in range(3):
            assert b"victim" in (await inbox.next_msg(20)).data  # so each had its chance there too
    await until(lambda: len(heard) >= 2)  # the engine did send them: the pull's and the get's
    await ear.close()
    assert (await admin.status()).topics == 2  # asked of the same services, so behind it


async def test_the_sdk_user_reads_topics_and_nothing_else(site: LocalSite, victim: str) -> None:
    async with intruder(site, "sdk") as sdk:
        for stream in ("outbox", "KV_skerry", "$MQTT_msgs", "$MQTT_sess"):
            for call in ("CREATE", "DELETE", "INFO", "MSG.NEXT"):
                assert await sdk.is_denied(f"$JS.API.CONSUMER.{call}.{stream}.c", b"{}"), call
        for stream in ("outbox", "$MQTT_msgs", "$MQTT_sess"):
            assert await sdk.is_denied(f"$JS.API.DIRECT.GET.{stream}", b'{"seq":1}')
        for subject in (f"DIRECT.GET.{victim}", f"CONSUMER.INFO.{victim}.c"):
            assert not await sdk.is_denied(f"$JS.API.{subject}", b'{"seq":1}')


@pytest.mark.parametrize("user", ["sdk", "plain", "functions"])
async def test_nobody_but_the_site_writes_the_records_of_feeds(
    site: LocalSite, client: Client, user: str
) -> None:
    async with intruder(site, user) as other:
        for topic in ("feeds.local.about", "feeds.local.about.x", "feeds.far.about.x"):
            if user == "plain":  # which the engine maps
                await other.client.publish(f"p.{topic}", b"no record")
                assert f's.local.p.{topic}"' in await other._answers()
                other.denials.clear()
            assert await other.is_denied(f"s.local.0.{topic}", b"no record"), topic
        assert await other.is_denied("s.local.0.feeds.local.queries.q") == (user != "sdk")
        assert not await other.is_denied("s.local.0.feeds.local.log.x")
    if user == "sdk":
        for name in ("feeds", "feeds/local", "feeds/local/about", "feeds/local/about/x"):
            with refused(errors.AccessDenied, name, "Skerry's own"):
                await client.create_topic(name)
        async with await client.feed({"a": 1}):  # the site itself may
            assert len(await client.feeds()) == 1


async def test_the_sdk_user_cannot_listen_to_others(site: LocalSite) -> None:
    async with intruder(site, "sdk") as sdk:
        inboxes = [
            "_INBOX.>",
            "_INBOX_sk.local.>",
            "_INBOX_sk.local.admin.>",
            "_INBOX_sk.local.plain.>",
        ]
        for subject in [*inboxes, *DELIVERY]:
            assert await sdk.is_deaf(subject), subject
        assert not await sdk.is_deaf("_INBOX_sk.local.sdk.mine")
        assert not await sdk.is_deaf("t.victim")


async def test_the_sdk_user_cannot_forge_what_is_delivered(site: LocalSite, victim: str) -> None:
    async with intruder(site, "sdk") as sdk:
        for subject in ("e.victim", "t.victim", "_INBOX_sk.local.admin.x", "s.other.victim"):
            assert await sdk.is_denied(subject), subject


async def test_a_plain_user_can_do_nothing_but_publish_and_receive(
    site: LocalSite, victim: str
) -> None:
    async with intruder(site, "plain") as plain:
        for call in ("INFO", "STREAM.NAMES", f"STREAM.INFO.{victim}", f"DIRECT.GET.{victim}"):
            assert await plain.is_denied(f"$JS.API.{call}"), call
        for call in HARM:
            assert await plain.is_denied(f"$JS.API.STREAM.{call}.{victim}", b"{}"), call
        consumer = f"$JS.API.CONSUMER.CREATE.{victim}.c"
        for subject in (consumer, f"$JS.ACK.{victim}.c.1.1.1.1.0", "$MQTT.msgs.t.victim"):
            assert await plain.is_denied(subject), subject
        for subject in ("e.victim", "t.victim", "_sk.local.open.status", "_INBOX_sk.local.sdk.x"):
            assert await plain.is_denied(subject), subject
        for subject in ("f.local.victim", "q.out.other", "q.in.some.one"):
            assert await plain.is_denied(subject), subject
        for subject in [*DELIVERY, "q.in.*", "q.>", "_sk.local.query.>"]:
            assert await plain.is_deaf(subject), subject
        assert await plain.is_deaf("_INBOX_sk.local.sdk.>")
        assert not await plain.is_deaf("t.>")


async def test_a_plain_user_hears_no_answers_but_those_to_plain_users() -> None:
    """It may listen to `_INBOX.>`, where its own answers come. Those to others stay out, also of
    the users of other sites, which the engine here gives."""
    heard: list[str] = []

    async def on_message(message: Msg) -> None:
        heard.append(message.subject)

    async with (
        LocalFabric(["hub", "farm"]) as fabric,
        fabric.connect("farm") as client,
        fabric.connect("hub", "admin") as far,
        intruder(fabric["farm"], "plain", "farm") as plain,
        intruder(fabric["farm"], "plain", "farm") as other,
    ):
        for subject in ("_INBOX_sk.>", "_INBOX_sk.hub.>", "_INBOX_sk.*.admin.>", "*.hub.admin.>"):
            assert await plain.is_deaf(subject), subject
        await plain.client.subscribe("_INBOX.>", cb=on_message)
        await plain.client.flush(20)
        await client.create_topic("t")
        for each in (client, far):
            await each.publish("t", "x")
            async with each.publisher("t") as publisher:
                await publisher.send("y")
            assert len([event async for event in each.read("t")]) >= 2
        answer = await other.client.request("p.t", b"z", timeout=20)
        await until(lambda: bool(heard))
        await plain.client.flush(20)
    assert heard == [answer.subject]


# Names that are more than a name


async def test_a_name_cannot_bring_a_command_along(
    site: LocalSite, client: Client, victim: str
) -> None:
    """What clients call things goes into lines that the agent writes with all its rights."""
    await client.create_topic("bait")
    connection = await Connection.open(address_of(site, "admin"))
    try:

        def trick(stream: str, index: int = 1) -> str:
            command = f'PUB $JS.API.STREAM.MSG.DELETE.{stream} 9\r\n{{"seq":{index}}}\r\n'
            return f"x 0\r\n\r\n{command}PUB y"

        async def works() -> None:
            """The engine does what such a line says, soon: it does not do such things in order."""
            index = await client.publish("bait", "x")
            connection.write(Frame(f"PUB {trick('t~bait', index)} 0\r\n\r\n".encode()))

            async def is_gone() -> bool:
                return (await client.topic("bait")).events == 0

            await until(is_gone)

        await works()
        name = trick(victim)
        for write in (
            lambda: connection.publish(name),
            lambda: connection.publish("x", reply=name),
            lambda: connection.publish("x", reply=name, head=b"NATS/1.0\r\n\r\n"),
            lambda: connection.subscribe(name, lambda *_: None),
        ):
            with pytest.raises(errors.BadName):
                write()
        with pytest.raises(errors.BadName):
            await connection.request(name, timeout=1)
        with pytest.raises(errors.BadName):
            await JetStream(connection).consumer(victim, name)
        await works()  # so would what was written before
    finally:
        await connection.close()


async def test_nor_can_what_is_asked_of_a_site_in_a_fabric() -> None:
    async with LocalFabric(["hub"]) as fabric, fabric.connect("hub") as client:
        for name in ("bait", "victim"):
            await client.create_topic(name)
        for service, fields in (
            ("topic.want", {"name": "bait", "durable": "%"}),
            ("progress", {"name": "bait", "inbox": "%"}),
            ("topic.want", {"name": "%"}),
            ("topic.find", {"name": "%"}),
            ("reach", {"sites": ["%"]}),
            ("unsubscribe", ["bait", "%"]),
        ):
            text = json.dumps(fields)
            trick = "x 0\r\n\r\nPUB $JS.API.STREAM.DELETE.t~victim 0\r\n\r\nPUB y"
            asked = text.replace('"%"', json.dumps(trick)).encode()
            async with intruder(fabric["hub"], "sdk", "hub") as sdk:
                answer = await sdk.client.request(f"_sk.hub.open.{service}", asked, timeout=20)
            assert b"the request cannot be read" in answer.data, (service, answer.data)
        # The way there is the right one: the same without the trick is answered.
        async with intruder(fabric["hub"], "sdk", "hub") as sdk:
            body = b'{"name":"bait","inbox":"_INBOX_sk.hub.sdk.x"}'
            answer = await sdk.client.request("_sk.hub.open.progress", body, timeout=20)
            assert b"error" not in answer.data
        assert (await client.topic("victim")).events == 0


# Secrets


async def test_passwords_show_up_nowhere(
    site: LocalSite, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    addresses = [address_of(site, user) for user in ("admin", "sdk", "plain")]
    await client.create_topic("t")
    with contextlib.suppress(SkerryError):
        await client.delete_topic("t")
    site.kill_engine()
    await client.publish("t", "x")

    caught: list[BaseException] = []
    for address in addresses:
        wrong = msgspec.structs.replace(address, user="nobody")
        with pytest.raises(errors.AccessDenied) as info:
            async with connect(wrong):
                pass
        caught.append(info.value)
    shown = "\n".join(
        [
            caplog.text,
            (site.data / "engine.log").read_text(),
            *(str(address) + repr(address) + f"{address!s:>40}" for address in addresses),
            *(repr(thing) for thing in (site, site.site, site.site.engine, client)),
            *(str(error) + repr(error) for error in caught),
            *("".join(traceback.format_exception(error)) for error in caught),
        ]
    )
    for pid in (os.getpid(), site.site.engine.pid):
        process = psutil.Process(pid)
        shown += "\n".join(process.cmdline())
        shown += "\n".join(f"{k}={v}" for k, v in process.environ().items())
    assert [address.user for address in addresses if address.password in shown] == []
    assert str(site.data / "engine.json") in shown  # the check did look


async def test_a_password_in_a_url_is_not_repeated_in_errors(tmp_path: Path) -> None:
    for url in ("nats://me:s3cret@", "http://me:s3cret@host", "nats://me:s3cret@host:port"):
        with pytest.raises(SkerryError) as caught:
            connect(url)
        assert "s3cret" not in str(caught.value) + repr(caught.value)
    accounts = {"A": {"users": [{"user": "me", "password": "other"}]}}
    async with nats_server(tmp_path, accounts=accounts, jetstream=False) as port:
        with pytest.raises(errors.AccessDenied) as denied:
            await Connection.open(Address.parse(f"nats://me:s3cret@127.0.0.1:{port}"))
        assert "s3cret" not in str(denied.value) + repr(denied.value)
