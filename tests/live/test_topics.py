"""Topics: create, show, list, change, delete; retention; sub-topics."""

from __future__ import annotations

import asyncio

import pytest

from skerry import Client, errors
from skerry.testing import LocalSite


async def test_a_topic_is_created_shown_and_listed(client: Client) -> None:
    made = await client.create_topic("a/b", max_events=10, max_age=3600)
    assert made == await client.topic("a/b")
    assert (made.name, made.home, made.latest_index, made.first_index) == ("a/b", "local", 0, 1)
    assert made.settings.max_events == 10
    assert made.settings.max_age == 3600
    await client.create_topic("a/a")
    assert [t.name for t in await client.topics()] == ["a/a", "a/b"]


async def test_creating_again_with_the_same_settings_finds_it(client: Client) -> None:
    first = await client.create_topic("t", max_bytes=10_000)
    await client.publish("t", "x")
    assert (await client.create_topic("t", max_bytes=10_000)).created == first.created


async def test_creating_again_with_other_settings_names_the_difference(client: Client) -> None:
    await client.create_topic("t", max_events=5)
    with pytest.raises(errors.TopicExists, match="max_events is 5, not 6"):
        await client.create_topic("t", max_events=6)


async def test_two_different_creations_at_once_leave_one_winner(client: Client) -> None:
    results = await asyncio.gather(
        *(client.create_topic("race", max_events=n) for n in (5, 6)), return_exceptions=True
    )
    assert sum(isinstance(r, errors.TopicExists) for r in results) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"max_events": 0},
        {"max_events": -1},
        {"max_bytes": "5"},
        {"max_age": 5},
        {"max_age": float("nan")},
        {"durability": "luck"},
        {"max_bytes": 10, "max_event_bytes": 20},
    ],
)
async def test_bad_settings_are_refused_and_nothing_is_made(
    client: Client, settings: dict[str, object]
) -> None:
    with pytest.raises(errors.BadSetting):
        await client.create_topic("t", **settings)  # type: ignore[arg-type]
    assert await client.topics() == []


async def test_a_bad_name_is_refused_and_nothing_is_made(client: Client) -> None:
    for name in ("", "a/*", "a b", "_sk", "x" * 200, "a\x07"):
        with pytest.raises(errors.BadName):
            await client.create_topic(name)
    assert await client.topics() == []


async def test_a_topic_owns_all_names_below_it(client: Client) -> None:
    await client.create_topic("a/b")
    with pytest.raises(errors.TopicOverlap, match="a/b/c is already a sub-topic of a/b"):
        await client.create_topic("a/b/c")
    with pytest.raises(errors.TopicOverlap, match="a would take in the existing topic a/b"):
        await client.create_topic("a")
    await client.create_topic("a/bc")


async def test_settings_change_and_the_oldest_events_age_out(client: Client, admin: Client) -> None:
    await client.create_topic("t")
    for n in range(20):
        await client.publish("t", str(n))
    topic = await admin.set_topic("t", max_events=5)
    assert (topic.events, topic.first_index, topic.latest_index) == (5, 16, 20)
    assert topic.settings.max_events == 5
    topic = await admin.set_topic("t", max_events=None)
    assert topic.settings.max_events is None


async def test_unknown_settings_are_refused(client: Client, admin: Client) -> None:
    await client.create_topic("t")
    with pytest.raises(errors.BadSetting):
        await admin.set_topic("t", colour="red")
    with pytest.raises(errors.BadSetting):
        await admin.set_topic("t", max_events="many")


async def test_a_deleted_topic_is_gone(client: Client, admin: Client) -> None:
    await client.create_topic("t")
    await client.publish("t", "x")
    await admin.delete_topic("t")
    for call in (client.topic("t"), client.publish("t", "x"), client.get("t", 1)):
        with pytest.raises(errors.UnknownTopic):
            await call
    with pytest.raises(errors.UnknownTopic):
        await admin.delete_topic("t")


async def test_a_topic_made_anew_is_read_anew(client: Client, admin: Client) -> None:
    await client.create_topic("a/b")
    await client.publish("a/b/c", "old")
    assert (await client.get("a/b/c", 1)).data == b"old"
    await admin.delete_topic("a/b")
    await client.create_topic("a")
    await client.publish("a/b/c", "new")
    assert (await client.get("a/b/c", 1)).data == b"new"


async def test_the_log_has_a_fixed_size_and_indexes_go_on(client: Client) -> None:
    await client.create_topic("t", max_events=3)
    assert [await client.publish("t", str(n)) for n in range(10)] == list(range(1, 11))
    assert [e.data async for e in client.read("t")] == [b"7", b"8", b"9"]
    with pytest.raises(errors.AgedOut, match="first kept index is 8") as caught:
        await client.get("t", 3)
    assert caught.value.first == 8
    with pytest.raises(errors.AgedOut):
        [e async for e in client.read("t", 2)]
    with pytest.raises(errors.AgedOut):
        await client.subscribe("t", from_index=2)


async def test_bytes_are_limited_too(client: Client) -> None:
    await client.create_topic("t", max_bytes=10_000)
    for _ in range(30):
        await client.publish("t", b"x" * 1000)
    topic = await client.topic("t")
    assert topic.bytes <= 10_000
    assert topic.latest_index == 30


async def test_a_topic_may_demand_power_durability(client: Client) -> None:
    with pytest.raises(errors.DurabilityUnavailable, match="gives 'process'") as caught:
        await client.create_topic("t", durability="power")
    assert "--durability power" in caught.value.advice
    async with LocalSite(durability="power") as strict, strict.connect() as other:
        topic = await other.create_topic("t", durability="power")
        assert topic.settings.durability == "power"
        assert await other.publish("t", "x") == 1
        assert (await other.status()).durability == "power"


async def test_a_site_that_gives_less_than_its_topics_demand_does_not_start() -> None:
    async with LocalSite(durability="power") as strict:
        async with strict.connect() as client:
            await client.create_topic("t", durability="power")
        await strict.site.close()
        with pytest.raises(errors.DurabilityUnavailable, match="t demand"):
            async with LocalSite(data=strict.data):
                pass
