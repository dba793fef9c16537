"""Reading by index: one event, ranges, sub-topics, and what the log cannot give."""

from __future__ import annotations

import pytest

from skerry import Client, errors


async def fill(client: Client, count: int = 10) -> None:
    """Events 1 to `count`: odd ones on t/a, even ones on t/b."""
    await client.create_topic("t")
    for n in range(1, count + 1):
        await client.publish("t/a" if n % 2 else "t/b", str(n))


async def test_ranges_include_both_ends(client: Client) -> None:
    await fill(client)
    assert [e.index async for e in client.read("t")] == list(range(1, 11))
    assert [e.index async for e in client.read("t", 3, 5)] == [3, 4, 5]
    assert [e.index async for e in client.read("t", 9)] == [9, 10]
    assert [e.index async for e in client.read("t", to_index=2)] == [1, 2]
    assert [e.index async for e in client.read("t", 4, 4)] == [4]


async def test_sub_topics_are_read_alone_with_the_log_s_indexes(client: Client) -> None:
    await fill(client)
    assert [e.index async for e in client.read("t/a")] == [1, 3, 5, 7, 9]
    assert [e.index async for e in client.read("t/b", 3, 7)] == [4, 6]
    assert [e.index async for e in client.read("t/c")] == []
    assert await client.latest_index("t/a") == 9
    assert await client.latest_index("t/b") == 10
    assert await client.latest_index("t/c") == 0
    assert (await client.get("t/a", 3)).data == b"3"
    with pytest.raises(errors.BadIndex, match="is of t/b, not of t/a"):
        await client.get("t/a", 4)


async def test_deep_sub_topics_count_as_well(client: Client) -> None:
    await client.create_topic("t")
    await client.publish("t/a", "1")
    await client.publish("t/a/x/y", "2")
    await client.publish("t/ab", "3")
    assert [e.topic async for e in client.read("t/a")] == ["t/a", "t/a/x/y"]
    assert await client.latest_index("t/a") == 2


async def test_an_empty_topic_reads_as_nothing(client: Client) -> None:
    await client.create_topic("t")
    assert [e async for e in client.read("t")] == []
    assert await client.latest_index("t") == 0
    with pytest.raises(errors.NotYet, match="latest index is 0"):
        await client.get("t", 1)


async def test_indexes_beyond_the_log_say_so(client: Client) -> None:
    await fill(client, 3)
    with pytest.raises(errors.NotYet, match="no event 4 yet") as caught:
        await client.get("t", 4)
    assert caught.value.latest == 3
    for start, end in ((5, None), (1, 9)):
        with pytest.raises(errors.NotYet):
            [e async for e in client.read("t", start, end)]
    with pytest.raises(errors.NotYet):
        await client.subscribe("t", from_index=5)


@pytest.mark.parametrize("index", [0, -1, "x", 1.5, None, True])
async def test_bad_indexes_are_refused(client: Client, index: object) -> None:
    await fill(client, 1)
    with pytest.raises(errors.BadIndex):
        await client.get("t", index)  # type: ignore[arg-type]
    if index is not None:
        with pytest.raises(errors.BadIndex):
            [e async for e in client.read("t", index)]  # type: ignore[arg-type]


async def test_a_range_does_not_run_backwards(client: Client) -> None:
    await fill(client, 5)
    with pytest.raises(errors.BadIndex, match="backwards"):
        [e async for e in client.read("t", 4, 2)]


async def test_unknown_topics_are_said(client: Client) -> None:
    for call in (client.get("nope", 1), client.latest_index("nope"), client.topic("nope")):
        with pytest.raises(errors.UnknownTopic):
            await call
    with pytest.raises(errors.UnknownTopic):
        [e async for e in client.read("nope")]
    await client.create_topic("t")
    with pytest.raises(errors.UnknownTopic, match="t/a is a sub-topic of t"):
        await client.topic("t/a")


async def test_a_long_log_is_read_whole(client: Client) -> None:
    await client.create_topic("t")
    async with client.publisher("t") as publisher:
        for n in range(20_000):
            await publisher.send(b"%d" % n)
    assert [int(e.data) async for e in client.read("t")] == list(range(20_000))


@pytest.mark.parametrize("size", [1_000, 100_000, 300_000, 1_000_000])
async def test_the_last_event_is_read_however_it_is_cut(client: Client, size: int) -> None:
    await client.create_topic("t")
    for n in range(5):
        await client.publish("t", b"%d" % n + b"x" * size)
    for _ in range(10):
        assert [e.index async for e in client.read("t")] == [1, 2, 3, 4, 5]
