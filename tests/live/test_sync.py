"""The synchronous face, as a script or a notebook would use it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import skerry.sync
from skerry import Joined, Left, Received, errors
from skerry.model.topic import Topic
from skerry.testing import LocalSite
from skerry.testing.fabric import LocalFabric


async def test_everything_works_without_await(site: LocalSite) -> None:
    """The calls block, so they run in a thread beside the site's own loop."""
    await asyncio.to_thread(use, site.data)


def use(data: Path) -> None:
    with skerry.sync.connect(data) as client:
        assert client.create_topic("t").name == "t"
        assert client.publish("t/a", "1", key="k") == 1
        assert client.latest_index("t") == 1
        assert client.get("t", 1).key == "k"
        with client.publisher("t") as publisher:
            acks = [publisher.send(str(n)) for n in range(2, 50)]
            publisher.flush()
        assert [ack.result() for ack in acks] == list(range(2, 50))
        assert [e.index for e in client.read("t", 1, 3)] == [1, 2, 3]
        assert len(list(client.read("t"))) == 49
        with client.subscribe("t", from_index=48) as subscription:
            assert [next(subscription).index for _ in range(2)] == [48, 49]
        with client.subscribe("t", durable="d", from_index=1, ack_wait=0.3) as subscription:
            event = next(subscription)
            subscription.reject(event)
            subscription.ack(event)
        client.unsubscribe("t", "d")
        assert [t.name for t in client.topics()] == ["t"]
        assert client.topic("t").events == 49
        assert client.status().site == client.site == "local"
        with pytest.raises(errors.UnknownTopic):
            client.publish("nope", "x")
        with skerry.sync.connect(data, user="admin") as admin:
            assert admin.set_topic("t", max_events=5).events == 5
            admin.delete_topic("t")
    with pytest.raises(errors.Unavailable):
        client.publish("t", "x")


async def test_feeds_and_queries_work_without_await(site: LocalSite) -> None:
    await asyncio.to_thread(use_feeds, site.data)


def use_feeds(data: Path) -> None:
    with (
        skerry.sync.connect(data) as client,
        client.query('room = "410"', window=100) as found,
    ):
        with client.feed({"room": "410"}) as feed:
            assert (feed.metadata, feed.topic) == ({"room": "410"}, f"feeds/local/log/{feed.id}")
            assert [f.id for f in client.feeds('room = "410"')] == [feed.id]
            assert feed.publish("1") == 1
            assert feed.send("2", key="k").result() == 2
            match [next(found) for _ in range(3)]:
                case [Joined(joined), Received(event=first), Received(event=second)]:
                    assert joined == feed.feed
                    assert (first.data, second.data, second.key) == (b"1", b"2", "k")
                case items:
                    pytest.fail(f"{items}")
            assert [f.id for f in found.feeds] == [feed.id]
            assert feed.set({"room": None, "floor": 4}).metadata == {"floor": 4}
            left = next(found)
            assert (type(left), left.feed.id) == (Left, feed.id)
            assert feed.publish("3", change={"room": "410"}) == 3
            assert [type(next(found)) for _ in range(2)] == [Joined, Received]
        assert isinstance(next(found), Left)
        assert client.feeds() == []
    with skerry.sync.connect(data) as client:
        kept = client.feed({"room": "1"}, permanent=True, owner="me")
        kept.close()
        changed = client.set_feed(kept.id, {"room": "2"}, owner="me")
        assert client.feeds() == [changed]
        with pytest.raises(errors.FeedTaken):
            client.remove_feed(kept.id, owner="you")
        client.remove_feed(kept.id, owner="me")
        assert client.feeds() == []
        with pytest.raises(errors.UnknownFeed):
            client.set_feed(kept.id, {"room": "3"}, owner="me")
        with pytest.raises(errors.BadQuery):
            client.query("room =")
        with client.feed({"room": "1"}, permanent=True) as gone:
            gone.remove()
        assert client.feeds() == []
        found = client.query("has room")
        found.close()
        assert list(found) == []


async def test_a_fabric_is_used_without_await() -> None:
    async with LocalFabric(["hub", "farm"]) as fabric:
        await asyncio.to_thread(use_fabric, fabric.root)


def use_fabric(root: Path) -> None:
    with skerry.sync.connect([root / "farm", root / "hub"]) as client:
        assert client.site in ("farm", "hub")
    with skerry.sync.connect(root / "farm", user="admin") as client:
        assert [site.site for site in client.sites()] == ["farm", "hub"]
        assert [link.peer for link in client.links()] == ["hub"]
        assert client.join_token(60).startswith("skerry1.")
        topic = client.create_topic("t", home="hub", replicas=1, spread=["farm"], ack="quorum")
        assert (topic.home, topic.replicas) == ("hub", ("farm",))
        assert client.publish("t", "1") == 1
        assert client.publish("t", "2", ack="home") == 2
        with client.publisher("t", ack="quorum") as publisher:
            assert publisher.send("3").result() == 3
        assert client.move_topic("t", "farm", replicas=["hub"]).replicas == ("hub",)
        client.create_topic("u")
        told: list[str] = []
        moved = client.move_topics(
            {"u": "hub", "nope": "hub"}, at_once=1, progress=lambda name, outcome: told.append(name)
        )
        assert told == ["u", "nope"]
        assert isinstance(moved["u"], Topic)
        assert isinstance(moved["nope"], errors.UnknownTopic)
        assert client.drain_site("farm") == ["t"]
        with skerry.sync.connect(root / "hub", user="admin") as admin:
            admin.remove_site("farm")
            assert [site.site for site in admin.sites()] == ["hub"]


def test_a_site_that_was_never_started_is_said(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable, match="no site was ever started"):
        skerry.sync.connect(tmp_path)
