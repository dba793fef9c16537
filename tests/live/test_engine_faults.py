"""The engine's binary, ports and process: what is wrong is said, what dies or hangs comes back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from skerry import Client, connect, errors
from skerry.config import ClientSettings, SiteSettings
from skerry.engine.binary import find_binary
from skerry.engine.process import free_port
from skerry.engine.wire import Connection, Listener
from skerry.site import Site, agent
from skerry.testing import LocalSite
from tests.conftest import beside, until
from tests.live.faults import freeze, nats_server, refused, unused_port

IMPATIENT = ClientSettings(timeout=1, ping_interval=0.2, connect_timeout=0.3, reconnect_most=0.1)
BOUND = 30.0
"""Seconds in which a call must have ended, one way or the other. Not a measure of speed."""


def impatient(site: LocalSite) -> Client:
    """A client that gives up soon."""
    return site.connect(timeout=IMPATIENT.timeout, settings=IMPATIENT)


# The binary


def fake(path: Path, script: str, mode: int = 0o755) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(mode)
    return path


async def test_no_engine_anywhere_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKERRY_NATS_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with refused(errors.EngineMissing, "nats-server"):
        async with LocalSite():
            pass


async def test_an_engine_on_the_path_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, version = find_binary()
    (tmp_path / "nats-server").symlink_to(real)
    monkeypatch.delenv("SKERRY_NATS_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))
    assert find_binary() == (tmp_path / "nats-server", version)


@pytest.mark.parametrize(
    ("script", "mode", "kind", "culprit"),
    [
        (None, 0, errors.EngineMissing, "no such file"),
        ("echo nats-server: v2.15.1", 0o644, errors.EngineMissing, "not executable"),
        ("echo hello", 0o755, errors.EngineMissing, "no nats-server"),
        ("exit 1", 0o755, errors.EngineMissing, "no nats-server"),
        ("echo nats-server: v2.9.25", 0o755, errors.EngineTooOld, "2.9.25"),
    ],
    ids=["absent", "not executable", "another program", "failing", "too old"],
)
async def test_an_unfit_binary_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str | None,
    mode: int,
    kind: type[errors.EngineError],
    culprit: str,
) -> None:
    path = tmp_path / "my-nats-server"
    if script is not None:
        fake(path, script, mode)
    monkeypatch.setenv("SKERRY_NATS_SERVER", str(path))
    with refused(kind, path, culprit):
        async with LocalSite():
            pass


async def test_a_binary_that_is_no_program_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "my-nats-server"
    path.write_bytes(b"\x7fELF and no more")
    path.chmod(0o755)
    monkeypatch.setenv("SKERRY_NATS_SERVER", str(path))
    with refused(errors.EngineMissing, path):
        async with LocalSite():
            pass


async def test_an_engine_that_dies_at_its_start_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = '[ "$1" = --version ] && exec echo nats-server: v2.15.1; echo out of cheese; exit 3'
    path = fake(tmp_path / "my-nats-server", script)
    monkeypatch.setenv("SKERRY_NATS_SERVER", str(path))
    with refused(errors.EngineFailed, "code 3", "out of cheese"):
        async with LocalSite():
            pass


async def test_an_engine_that_recovers_for_long_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While it recovers its logs it takes no connections."""
    real, _ = find_binary()
    script = f'[ "$1" = --version ] || sleep 1; exec {real} "$@"'
    monkeypatch.setenv("SKERRY_NATS_SERVER", str(fake(tmp_path / "my-nats-server", script)))
    monkeypatch.setattr(agent, "RECOVERY_TIME", 0.3)
    async with LocalSite() as site, site.connect() as client:
        assert "still recovering" in caplog.text
        assert (await client.status()).topics == 0


# Ports


@contextlib.contextmanager
def listener(host: str = "127.0.0.1") -> Iterator[int]:
    """Somebody else's server."""
    with socket.create_server((host, 0)) as server:
        yield int(server.getsockname()[1])


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("port", ["port", "mqtt_port", "websocket_port"])
async def test_a_taken_port_is_named(port: str, host: str) -> None:
    option = {"port": "--port", "mqtt_port": "--mqtt", "websocket_port": "--websocket"}[port]
    with listener(host) as taken:
        with refused(errors.PortTaken, taken):
            async with LocalSite(**{port: taken}):
                pass
        with pytest.raises(errors.PortTaken) as caught:
            async with LocalSite(**{port: taken}):
                pass
        assert option in caught.value.advice


async def test_one_port_for_two_listeners_is_refused() -> None:
    port = unused_port()
    with refused(errors.PortTaken, port):
        async with LocalSite(port=port, mqtt_port=port):
            pass


def test_a_free_port_is_another_one_each_time() -> None:
    """A site asks for several before its engine listens on the first."""
    ports = [free_port("127.0.0.1") for _ in range(900)]
    assert len(set(ports)) == len(ports)


@pytest.mark.parametrize("port", [-1, 65536])
async def test_a_port_that_cannot_be_one_is_refused(port: int) -> None:
    with refused(errors.BadSetting, port):
        async with LocalSite(port=port):
            pass


async def test_a_site_that_did_not_start_leaves_its_folder_free(tmp_path: Path) -> None:
    with listener() as taken, pytest.raises(errors.PortTaken):
        async with LocalSite(data=tmp_path, port=taken):
            pass
    async with LocalSite(data=tmp_path):
        pass


# An engine that is killed


async def kill_and_wait(site: LocalSite) -> None:
    """Kill the engine and wait until the site has started another."""
    before = site.site.engine.restarts
    site.kill_engine()
    await until(lambda: site.site.engine.restarts > before)


async def test_the_start_of_an_engine_ends_nothing_that_a_thread_holds(site: LocalSite) -> None:
    """A client such as py4j's shuts down a thread's connection when that thread ends. In a copy of
    this process that Python code runs in, all other threads end."""
    may_end = threading.Event()
    ours, theirs = os.pipe()

    class Held:
        def __del__(self) -> None:
            os.write(theirs, b"%d " % os.getpid())

    def hold() -> None:
        here = threading.local()
        here.held = Held()
        may_end.wait()

    def ended() -> str:
        os.write(theirs, b".")
        return os.read(ours, 1000).decode()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        for _ in range(3):
            await kill_and_wait(site)
        assert ended() == "."
        await asyncio.to_thread(subprocess.run, ["true"], preexec_fn=lambda: None, check=True)
        assert ended() != "."  # so it would have shown
    finally:
        may_end.set()
        thread.join()
        os.close(ours)
        os.close(theirs)


async def test_topics_are_created_across_a_kill(site: LocalSite, client: Client) -> None:
    created: list[str] = []

    async def create(number: int) -> None:
        created.append((await client.create_topic(f"t{number}", max_events=number)).name)
        if len(created) == 20:
            site.kill_engine()

    await asyncio.gather(*(create(number) for number in range(1, 201)))
    await until(lambda: site.site.engine.restarts == 1)
    assert {t.name: t.settings.max_events for t in await client.topics()} == {
        f"t{number}": number for number in range(1, 201)
    }


async def test_publishes_are_stored_once_across_a_kill(site: LocalSite, client: Client) -> None:
    await client.create_topic("t")
    stored: dict[int, str] = {}

    async def publish(number: int) -> None:
        stored[await client.publish("t", str(number))] = str(number)
        if len(stored) == 100:
            site.kill_engine()

    await asyncio.gather(*(publish(number) for number in range(2000)))
    await until(lambda: site.site.engine.restarts == 1)
    assert len(stored) == 2000
    assert {event.index: event.data.decode() async for event in client.read("t")} == stored


async def test_subscribing_works_across_a_kill(site: LocalSite, client: Client) -> None:
    await client.create_topic("t")
    await client.publish("t", "x")

    async def first(durable: str | None) -> bytes:
        async with client.subscribe("t", from_index=1, durable=durable) as events:
            return (await anext(events)).data

    tasks = [
        asyncio.create_task(first(f"d{number}" if number % 2 else None)) for number in range(40)
    ]
    site.kill_engine()
    assert await asyncio.gather(*tasks) == [b"x"] * 40
    await until(lambda: site.site.engine.restarts == 1)


@pytest.mark.parametrize("durable", [None, "mine"], ids=["live", "durable"])
async def test_a_subscriber_misses_nothing_across_kills(
    site: LocalSite, client: Client, durable: str | None
) -> None:
    await client.create_topic("t")
    seen: list[int] = []

    async def follow() -> None:
        async with client.subscribe("t", from_index=1, durable=durable, window=64) as events:
            async for event in events:
                seen.append(event.index)
                if durable:
                    events.ack(event)

    async with site.connect() as other, beside(follow()):
        for kills in range(1, 4):
            for _ in range(100):
                await other.publish("t", "x")
            await kill_and_wait(site)
            await until(partial(_has, seen, 100 * kills))
        await other.publish("t", "last")
        await until(lambda: 301 in seen)
    expected = list(range(1, 302))
    assert seen == expected if durable is None else sorted(set(seen)) == expected


def _has(seen: list[int], count: int) -> bool:
    return len(set(seen)) >= count


async def test_a_read_is_complete_and_in_order_across_a_kill(
    site: LocalSite, client: Client
) -> None:
    await client.create_topic("t")
    async with client.publisher("t") as publisher:
        for number in range(20_000):
            await publisher.send(str(number))
    seen = []
    async for event in client.read("t"):
        seen.append(event.data)
        if len(seen) in (100, 5000):
            await kill_and_wait(site)
    assert seen == [b"%d" % number for number in range(20_000)]


async def test_getting_an_event_waits_for_the_engine(site: LocalSite, client: Client) -> None:
    await client.create_topic("t")
    await client.publish("t", "x")
    site.kill_engine()
    event, latest, topic, status = await asyncio.gather(
        client.get("t", 1), client.latest_index("t"), client.topic("t"), client.status()
    )
    assert (event.data, latest, topic.events, status.topics) == (b"x", 1, 1, 1)


async def test_an_engine_that_keeps_dying_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so with the engine's own reason, goes on trying, and gets over it."""
    real, _ = find_binary()
    script = f'[ -e {tmp_path}/broken ] && echo no more cheese && exit 1; exec {real} "$@"'
    monkeypatch.setenv("SKERRY_NATS_SERVER", str(fake(tmp_path / "my-nats-server", script)))
    async with LocalSite() as site, impatient(site) as client:
        await client.create_topic("t")
        (tmp_path / "broken").touch()
        site.kill_engine()
        await until(lambda: site.site.engine.restarts >= 4)
        reports = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
        assert any("no more cheese" in r and str(site.data) in r for r in reports), caplog.text
        with refused(errors.Unavailable, site.site.address.port):
            await client.publish("t", "x")
        (tmp_path / "broken").unlink()
        async with site.connect() as patient:
            assert await patient.publish("t", "x") == 1


# An engine that is frozen


@pytest.fixture
async def frozen() -> AsyncIterator[LocalSite]:
    """A site with topic `t`, to be frozen by the test."""
    async with LocalSite() as site, site.connect() as client:
        await client.create_topic("t")
        yield site
        site.thaw_engine()


async def test_a_publish_to_a_frozen_engine_ends_with_its_outcome_unknown(
    frozen: LocalSite,
) -> None:
    async with impatient(frozen) as client, asyncio.timeout(BOUND):
        await freeze(frozen)
        with refused(errors.OutcomeUnknown, "publishing to t", frozen.site.address.port):
            await client.publish("t", "x", id="one")
        # By now the connection is known to be lost, so nothing is sent at all.
        with refused(errors.Unavailable, frozen.site.address.port):
            await client.publish("t", "y")
        frozen.thaw_engine()
        # The advice was: publish again with the same id.
        assert await client.publish("t", "x", id="one", timeout=BOUND) == 1
        assert await client.latest_index("t") == 1


async def test_a_publisher_to_a_frozen_engine_ends_with_its_outcome_unknown(
    frozen: LocalSite,
) -> None:
    async with impatient(frozen) as client, asyncio.timeout(BOUND):
        publisher = client.publisher("t")
        await freeze(frozen)
        acks = [await publisher.send(str(n)) for n in range(100)]
        with refused(errors.PublishFailed, "100 events", "t"):
            await publisher.flush()
        assert {type(ack.exception()) for ack in acks} == {errors.OutcomeUnknown}
        publisher.close()


async def test_control_calls_to_a_frozen_engine_end(frozen: LocalSite) -> None:
    async with impatient(frozen) as client, asyncio.timeout(BOUND):
        await freeze(frozen)
        calls = [client.create_topic("u"), client.topics(), client.get("t", 1), client.status()]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [errors.Unavailable] * 4
        with refused(errors.Unavailable, frozen.site.address.port):
            await client.subscribe("t")


@pytest.mark.parametrize("durable", [None, "mine"], ids=["live", "durable"])
async def test_a_subscriber_of_a_frozen_engine_is_told(
    frozen: LocalSite, durable: str | None
) -> None:
    async with (
        asyncio.timeout(BOUND),
        impatient(frozen) as client,
        client.subscribe("t", durable=durable) as events,
    ):
        await freeze(frozen)
        with refused(errors.Unavailable, frozen.site.address.port):
            await anext(events)


async def test_connecting_to_a_frozen_engine_ends(frozen: LocalSite) -> None:
    await freeze(frozen)
    async with asyncio.timeout(BOUND):
        with refused(errors.Unavailable, frozen.site.address.port, "no answer"):
            async with impatient(frozen):
                pass


class Ups(Listener):
    """Counts what happens to a connection."""

    def __init__(self) -> None:
        self.ticks = 0
        self.losses = 0

    def on_tick(self, now: float) -> None:
        self.ticks += 1

    def on_down(self) -> None:
        self.losses += 1


async def test_a_connection_with_nothing_to_say_is_not_taken_for_a_frozen_one(
    frozen: LocalSite,
) -> None:
    settings = ClientSettings(ping_interval=0.2)
    connection = await Connection.open(frozen.site.address, settings)
    try:
        ups = Ups()
        connection.listen(ups)
        await until(lambda: ups.ticks >= 6)
        assert ups.losses == 0
    finally:
        await connection.close()


async def test_a_thawed_engine_goes_on_and_nothing_is_lost_or_doubled(frozen: LocalSite) -> None:
    seen: list[bytes] = []

    async def follow(client: Client) -> None:
        async with client.subscribe("t", from_index=1) as events:
            while True:
                seen.append((await anext(events)).data)

    async with frozen.connect(timeout=20, settings=IMPATIENT) as client, beside(follow(client)):
        async with client.publisher("t") as publisher:
            await publisher.send("0")
            await until(lambda: len(seen) == 1)
            await freeze(frozen)
            for number in range(1, 1000):
                await publisher.send(str(number))
            creating = asyncio.create_task(client.create_topic("u"))
            publishing = asyncio.create_task(client.publish("t/sub", "one"))
            connection = publisher._connection
            await until(lambda: not connection.is_up)
            frozen.thaw_engine()
        await creating
        await publishing
        await until(lambda: len(seen) >= 1001)
    assert [data for data in seen if data != b"one"] == [b"%d" % n for n in range(1000)]
    assert frozen.site.engine.restarts == 0


async def test_a_frozen_engine_is_killed_and_started_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with LocalSite(hang_timeout=1.0) as site, site.connect() as client:
        await client.create_topic("t")
        await freeze(site)
        publishing = asyncio.create_task(client.publish("t", "x"))
        await until(lambda: site.site.engine.restarts == 1)
        assert await publishing == 1
        assert "killing it" in caplog.text


# An engine that somebody else runs


@contextlib.asynccontextmanager
async def external(data: Path, url: str) -> AsyncIterator[Site]:
    async with Site(SiteSettings(data=data), engine=url) as site:
        yield site


WARNING = "plain clients cannot publish here"
ACCOUNT = {"jetstream": "enabled", "users": [{"user": "me", "password": "s3cret"}]}
MAPPING = {"p.>": "s.local.p.>"}


async def test_a_site_on_an_external_engine_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "site"
    async with nats_server(tmp_path) as port, external(data, f"nats://127.0.0.1:{port}"):
        assert WARNING in caplog.text
        assert MAPPING["p.>"] in caplog.text
        async with connect(data) as client, connect(data, user="admin") as admin:
            await client.create_topic("t")
            assert await client.publish("t", "x") == 1
            assert [event.data async for event in client.read("t")] == [b"x"]
            status = await client.status()
            assert (status.engine_pid, status.topics) == (None, 1)
            await admin.delete_topic("t")
            assert await client.topics() == []


async def test_a_site_on_an_external_engine_with_a_password_and_the_mapping_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "site"
    accounts = {"A": {**ACCOUNT, "mappings": MAPPING}}
    async with (
        nats_server(tmp_path, accounts=accounts) as port,
        external(data, f"nats://me:s3cret@127.0.0.1:{port}"),
        connect(data) as client,
    ):
        assert WARNING not in caplog.text
        await client.create_topic("t")
        assert await client.publish("t", "x") == 1
        assert [topic.name for topic in await client.topics()] == ["t"]


async def test_a_wrong_password_for_an_external_engine_is_refused(tmp_path: Path) -> None:
    async with nats_server(tmp_path, accounts={"A": ACCOUNT}) as port:
        with refused(errors.AccessDenied, port, "'me'"):
            async with external(tmp_path / "site", f"nats://me:wrong@127.0.0.1:{port}"):
                pass
        with refused(errors.AccessDenied, port):
            async with external(tmp_path / "site", f"nats://127.0.0.1:{port}"):
                pass


async def test_an_external_engine_without_jetstream_is_refused(tmp_path: Path) -> None:
    async with nats_server(tmp_path, jetstream=False) as port:
        with refused(errors.EngineUnfit, port, "JetStream"):
            async with external(tmp_path / "site", f"nats://127.0.0.1:{port}"):
                pass


async def test_an_external_account_without_jetstream_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: nobody is about to enable it."""
    monkeypatch.setattr(agent, "EXTERNAL_TIME", 3600.0)
    accounts = {"A": {"users": ACCOUNT["users"]}, "B": {"jetstream": "enabled"}}
    async with nats_server(tmp_path, accounts=accounts) as port:
        with refused(errors.EngineUnfit, port):
            async with external(tmp_path / "site", f"nats://me:s3cret@127.0.0.1:{port}"):
                pass


async def test_an_external_user_without_rights_is_refused(tmp_path: Path) -> None:
    user = {"user": "me", "password": "s3cret", "permissions": {"publish": {"deny": ["$JS.API.>"]}}}
    accounts = {"A": {**ACCOUNT, "users": [user]}}
    async with nats_server(tmp_path, accounts=accounts) as port:
        with refused(errors.EngineUnfit, port, "$JS.API"):
            async with external(tmp_path / "site", f"nats://me:s3cret@127.0.0.1:{port}"):
                pass


async def test_an_external_engine_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "EXTERNAL_TIME", 0.5)
    port = unused_port()
    with refused(errors.Unavailable, port, "refused"):
        async with external(tmp_path / "site", f"nats://127.0.0.1:{port}"):
            pass


async def test_something_else_than_nats_is_not_taken_for_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        await reader.read()
        writer.close()

    monkeypatch.setattr(agent, "EXTERNAL_TIME", 1.0)
    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with refused(errors.Unavailable, port):
            async with external(tmp_path / "site", f"nats://127.0.0.1:{port}"):
                pass


async def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    for url in ("http://127.0.0.1:4222", "nats://", "nats://host:port"):
        with refused(errors.BadSetting, url):
            async with external(tmp_path / "site", url):
                pass
