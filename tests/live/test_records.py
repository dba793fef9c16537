"""What stands in logs and in the directory and should not be there stops nobody."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from skerry import Client
from skerry.cli.diagnosis import check_site
from skerry.directory.store import PREFIX
from skerry.engine.nkeys import new_pair
from skerry.engine.wire import Connection
from skerry.model import records
from skerry.model.fabric import LinkRecord, SiteRecord, Step, TopicEntry
from skerry.model.functions import REGISTRY, Function
from skerry.testing import LocalFabric, LocalSite
from tests.conftest import until
from tests.live.test_security import address_of, intruder

ACK = b'{"stream":"t~bait","domain":"local","seq":4}'
"""What a client can have the engine write where it likes: the acknowledgement of its event."""


@asynccontextmanager
async def ear_of(site: LocalSite, subject: str) -> AsyncIterator[list[str]]:
    """What the engine tells an administrator on `subject`."""
    heard: list[str] = []
    connection = await Connection.open(address_of(site, "admin"))
    connection.subscribe(subject, lambda where, *_: heard.append(where.decode()))
    await connection.request("$JS.API.INFO", timeout=20)
    yield heard
    await connection.close()


async def test_the_directory_is_used_whatever_stands_in_it(aside: records.Aside) -> None:
    async with (
        LocalFabric(["hub", "farm"]) as fabric,
        fabric.connect("hub", "admin") as admin,
        fabric.connect("farm") as client,
    ):
        await admin.create_topic("t")
        await client.publish("t", "1")
        keys = ("topic.t~t", "topic.t~other", "link.farm.hub", "link.a.b", "site.evil", "up.evil")
        bad = [(key, data) for key in keys for data in (b"\xff no json", b"{}", ACK)]
        fabric_of = [fabric.agent(name).fabric for name in ("hub", "farm")]
        connection = await Connection.open(address_of(fabric["hub"], "admin"))
        for key, data in bad:
            await connection.request(PREFIX + key, data, timeout=20)
        await connection.close()

        def all_have_come() -> bool:
            return all(
                part is not None and part.store.revision("up.evil") > len(bad) for part in fabric_of
            )

        await until(all_have_come)
        assert sorted(aside.names()) == sorted(keys)
        for part in fabric_of:
            assert part is not None
            assert list(part.store.all("topic.", TopicEntry)) == ["t~t"]  # as it was before
            assert list(part.store.all("link.", LinkRecord)) == ["farm.hub"]
            assert part.store.get("up.evil", object) is None
        assert await client.publish("t", "2") == 2
        await client.create_topic("new")
        assert {site.site for site in await admin.sites()} == {"hub", "farm"}
        told = {f.subject: f for f in await check_site([str(fabric["hub"].data)], 20)}
        assert told["records"].state == "warning"
        assert "topic.t~other" in told["records"].what
        # What is written next takes its place.
        await admin.set_topic("t", max_events=100)
        await until(lambda: "topic.t~t" not in aside.names())
        # And a site starts with the rest of it.
        await fabric.stop("farm")
        await fabric.start("farm")
        async with fabric.connect("farm") as again:
            assert await again.publish("t", "3") == 3


async def test_the_engine_is_given_no_key_that_it_would_not_start_with() -> None:
    async with LocalFabric(["hub"]) as fabric:
        part = fabric.agent("hub").fabric
        assert part is not None
        hub = part.store.get("site.hub", SiteRecord)
        assert hub is not None
        site = msgspec.structs.replace(hub, name="a")
        part.store._take("site.a", 999_999, msgspec.json.encode(site))
        for number, (key, peers) in enumerate([("UNOKEY", []), (new_pair()[1], ["a"])]):
            link = LinkRecord(dialer="a", acceptor="hub", key=key)
            part.store._take("link.a.hub", 1_000_000 + number, msgspec.json.encode(link))
            assert [inbound.peer for inbound in part.links.wiring(False).inbound] == peers


async def test_news_that_are_not_the_directory_s_are_not_believed(aside: records.Aside) -> None:
    """A client can have an event of its own sent to where news are told."""
    async with LocalFabric(["hub"]) as fabric, fabric.connect("hub") as client:
        site = fabric["hub"]
        for name in ("t", "bait"):
            await client.create_topic(name)
        await client.publish("t", "1")
        part = fabric.agent("hub").fabric
        assert part is not None
        entry = part.store.get("topic.t~t", TopicEntry)
        assert entry is not None
        forged = msgspec.structs.replace(
            entry, epoch=entry.epoch + 1, lineage=(Step(entry.epoch + 1, 0),)
        )
        for _ in range(20):  # beyond all revisions that there are
            await client.publish("bait", msgspec.json.encode(forged))
        news = "_sk.hub.news.topic.t~t"
        async with ear_of(site, news) as heard, intruder(site, "sdk", "hub") as sdk:
            body = b'{"last_by_subj":"e.bait"}'
            await sdk.client.publish("$JS.API.DIRECT.GET.t~bait", body, reply=news)
            await until(lambda: bool(heard))
            assert heard == [news]  # the engine did send it there
        assert await client.publish("t", "2") == 2
        assert part.store.get("topic.t~t", TopicEntry) == entry


async def test_an_acknowledgement_in_the_wrong_place_does_no_harm(
    site: LocalSite, admin: Client, tmp_path: Path, aside: records.Aside
) -> None:
    """A publisher says where its acknowledgement goes; the engine does not check its right to
    publish there."""
    file = tmp_path / "f.py"
    file.write_text("def handler(ctx, event):\n    ctx.publish('out', event.data)\n")
    for name in ("bait", "victim", "in", "out"):
        await admin.create_topic(name)
    for number in range(3):
        await admin.publish("victim", str(number))
    await admin.deploy_function(file, topic="in")
    async with await admin.feed({"a": 1}) as feed:
        targets = [
            "$JS.API.STREAM.PURGE.t~victim",
            "$JS.API.STREAM.DELETE.t~victim",
            "_sk.local.admin.topic.delete",
            f"s.local.0.feeds.local.about.{feed.id}",
            "s.local.0.functions.registry.spec.f",
        ]
        before = await admin.latest_index(REGISTRY)
        async with intruder(site, "plain") as plain:
            answer = await plain.client.request("p.bait", b"x", timeout=20)
            assert b'"stream":"t~bait"' in answer.data  # that is what comes there
            for target in targets:
                await plain.client.publish("p.bait", b"x", reply=target)
            await plain.client.flush(20)

        async def arrived() -> bool:
            return await admin.latest_index(REGISTRY) > before

        await until(arrived)
        assert site.site.functions is not None
        await until(lambda: len(aside) == 2)
        assert (await admin.topic("victim")).events == 3
        assert [found.id for found in await admin.feeds()] == [feed.id]
    await admin.publish("in", "still there")

    async def handled() -> bool:
        return await admin.latest_index("out") == 1

    await until(handled, 60)
    # And it can be deployed anew.
    file.write_text(file.read_text() + "# changed\n")
    assert (await admin.deploy_function(file)).function.current.number == 2


async def test_records_of_feeds_that_cannot_be_read_stop_nobody(
    site: LocalSite, client: Client, admin: Client, aside: records.Aside
) -> None:
    async with await client.feed({"a": 1}) as first:
        for name, data in (("x", b"not json"), (first.id, ACK), (first.id, b"\xff"), ("x", b"{}")):
            await admin.publish(f"feeds/local/about/{name}", data)
        async with await client.feed({"a": 2}) as second:  # returns when the site knows it
            found = {feed.id: feed.metadata for feed in await client.feeds("has a")}
            assert found == {first.id: {"a": 1}, second.id: {"a": 2}}
        bad = sorted(f"feeds/local/about/{id}" for id in ("x", first.id))
        assert sorted(aside.names()) == bad
    assert aside.names() == ["feeds/local/about/x"]  # what is written of the other is good again


async def test_a_forged_function_is_not_installed_and_not_run(
    site: LocalSite, admin: Client, tmp_path: Path, aside: records.Aside
) -> None:
    """Whoever managed to write into the registry: what is there is looked at again."""
    file = tmp_path / "f.py"
    file.write_text("def handler(ctx, event):\n    ctx.publish('out', event.data)\n")
    for name in ("in", "out"):
        await admin.create_topic(name)
    good = (await admin.deploy_function(file, topic="in")).function
    part = site.site.functions
    assert part is not None
    registry, _ = await part.ready()

    async def write(name: str = "f", **change: Any) -> Function:
        """The function with another version; return what the site makes of it."""
        version = msgspec.structs.replace(good.current, number=good.current.number + 1, **change)
        forged = msgspec.structs.replace(good, versions=(version,))
        index = await admin.publish(f"{REGISTRY}/spec/{name}", msgspec.json.encode(forged))
        await registry.know(name, index)
        return registry.functions.get(name, good)

    option = ("--index-url http://127.0.0.1:9/",)
    assert await write(requires=option) == good
    assert await write("other") == good
    assert "other" not in registry.functions
    assert sorted(aside.names()) == [f"{REGISTRY}/spec/f", f"{REGISTRY}/spec/other"]
    # A good name that the code does not declare gets as far as the site, and not to pip.
    assert (await write(requires=("tiny-thing @ file:///no/such/place",))) != good

    async def refuses() -> bool:
        running = (await admin.function("f")).running
        return bool(running) and "declares other dependencies" in running[0].running.error

    await until(refuses, 60)
    assert not (site.data / "functions" / "env").exists()
    # What is whole is taken: so this was the way in.
    assert (await write(handler="handler")).current.requires == ()
    await admin.publish("in", json.dumps("x"))

    async def handled() -> bool:
        return await admin.latest_index("out") == 1

    await until(handled, 60)
