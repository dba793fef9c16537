"""Functions at one site take effect once, whatever the code does and whatever is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from skerry import Client
from skerry.engine.address import find_address
from skerry.engine.jetstream import JetStream
from skerry.functions.access import Access
from skerry.functions.again import Requests
from skerry.functions.assignment import Assignment
from skerry.functions.journal import Kept, Output, Position, Progress, Record, output_id
from skerry.functions.ledger import Ledger
from skerry.functions.lines import Lines
from skerry.functions.runner import Runner
from skerry.model.functions import AGAIN, DEAD, LOGS, MAX_HOPS, Again
from skerry.testing import LocalSite
from tests.conftest import until
from tests.functions.hosts import COUNTS, assignment, holds, host, make_topics, outputs
from tests.live.faults import freeze, is_running

Parts = tuple[LocalSite, Client, Path]


@pytest.fixture
async def parts(site: LocalSite, admin: Client, tmp_path: Path) -> Parts:
    """A site with the topics `in` and `out`, its administrator, and a folder."""
    await admin.create_topic("in")
    await admin.create_topic("out")
    return site, admin, tmp_path / "code.py"


async def ready(parts: Parts, source: str = COUNTS, **settings: Any) -> Assignment:
    """A function, with the topics that it needs."""
    _, admin, code = parts
    made = assignment(code, source, **settings)
    await make_topics(admin, made)
    return made


def counted(events: int, keys: int) -> list[str]:
    """What the counting function publishes for events 0, 1, … with keys in turn."""
    return [f"{n} k{n % keys} {n // keys + 1}" for n in range(events)]


async def publish(client: Client, events: int, keys: int = 2, first: int = 0) -> None:
    """Events 0, 1, … with keys in turn."""
    async with client.publisher("in") as publisher:
        for number in range(first, first + events):
            await publisher.send(str(number), key=f"k{number % keys}")


async def dead_letters(client: Client, count: int) -> list[tuple[bytes, dict[str, str]]]:
    """Wait for so many dead letters; data and headers of each."""
    await holds(client, count, f"{DEAD}/count")
    return [(bytes(event.data), event.headers) async for event in client.read(f"{DEAD}/count")]


async def test_each_event_is_handled_once_and_in_order(parts: Parts) -> None:
    site, admin, _ = parts
    count = await ready(parts)
    async with host(site.data, count) as one:
        await publish(admin, 1000)
        assert await holds(admin, 1000) == counted(1000, 2)
        running = await one.is_in("running", handled=1000)
        assert (running.workers, running.keys, running.topics) == (1, 2, ("out",))
        assert await one.stop() == 0


@pytest.mark.parametrize("order", ["key", "none"])
async def test_several_workers_share_the_events(parts: Parts, order: str) -> None:
    site, admin, _ = parts
    source = COUNTS if order == "key" else COUNTS.replace("ctx.state", "{}")
    if order == "none":
        source = """
            def handler(ctx, event):
                ctx.publish("out", event.data)
        """
    count = await ready(parts, source, order=order, concurrency=3)
    async with host(site.data, count) as one:
        await publish(admin, 900, keys=9)
        found = await holds(admin, 900)
        if order == "key":
            assert sorted(found) == sorted(counted(900, 9))
            for key in range(9):
                of_key = [text for text in found if f" k{key} " in text]
                assert of_key == [text for text in counted(900, 9) if f" k{key} " in text]
        else:
            assert sorted(map(int, found)) == list(range(900))
        await one.is_in("running", handled=900)
        await until(lambda: one.running["count", "in"].workers == 3)  # some start sooner


async def test_nothing_is_lost_or_doubled_when_workers_hosts_and_engines_are_killed(
    parts: Parts,
) -> None:
    site, admin, _ = parts
    count = await ready(parts)

    sent, enough = 0, False

    async def feed() -> None:
        nonlocal sent
        while not enough:  # else all could be handled before the last is killed
            await publish(admin, 10, keys=5, first=sent)
            sent += 10
            await asyncio.sleep(0.01)

    feeding = asyncio.create_task(feed())
    for kill in ("worker", "host", "engine", "host", "worker"):
        before = await admin.latest_index("out")
        async with host(site.data, count) as one:
            await holds(admin, before + 100)
            if kill == "worker":
                await until(lambda: bool(one.workers))
                os.kill(one.workers[0], signal.SIGKILL)
            elif kill == "engine":
                site.kill_engine()
            else:
                await one.kill()
                continue
            await holds(admin, before + 250)
    enough = True
    await feeding
    async with host(site.data, count) as one:
        await publish(admin, 10, keys=5, first=sent)
        assert await holds(admin, sent + 10) == counted(sent + 10, 5)
        assert (await one.is_in("running", handled=10)).keys == 5


async def write_journal(site: LocalSite, topic: str, records: list[Record]) -> None:
    """What a host left behind."""
    access = await Access.open(find_address(site.data, "admin"))
    try:
        ledger = Ledger(access, topic)
        await ledger.open()
        for record in records:
            await ledger.write(record)
            for key, value in record.state.items():
                await (await ledger.keep(Kept(key, value, record.number)))
        ledger.close()
    finally:
        await access.close()


async def test_who_takes_over_long_after_publishes_what_is_missing_and_nothing_else(
    parts: Parts,
) -> None:
    """Ids guard for two minutes. Behind that, what is delivered is found by looking."""
    site, admin, _ = parts
    count = await ready(parts)
    async with site.connect("admin") as other:
        jetstream = JetStream(other._open.connection)
        info = await jetstream.stream("t~out")
        assert info is not None
        await jetstream.call(
            "STREAM.UPDATE.t~out", {**info["config"], "duplicate_window": 100_000_000}
        )
    await publish(admin, 40)
    await admin.publish("out", "somebody else's")
    ids = [output_id("count", 1, "in", index, 0, 0, 0) for index in range(1, 31)]
    texts = counted(40, 2)
    made = [Output("out", text.encode(), id) for text, id in zip(texts, ids, strict=False)]
    records = [
        Record(
            number, 0, Progress(Position(10 * number)),
            {"k0": msgspec.msgpack.encode(5 * number), "k1": msgspec.msgpack.encode(5 * number)},
            tuple(made[10 * number - 10 : 10 * number]), {"out": Position(1)},
        )
        for number in (1, 2, 3)
    ]  # fmt: skip
    await write_journal(site, count.journal, records)
    for output in made[:14]:
        await admin.publish("out", output.data, id=output.id)
    probes = [await admin.publish("in", "probe", id="p")]

    async def forgotten() -> bool:  # the ids of `out`, as old, are too
        return await admin.publish("out", b"probe", id="probe") > 16

    await until(forgotten)
    extra = await admin.latest_index("out") - 15
    async with host(site.data, count):
        found = await holds(admin, 15 + extra + 26 + len(probes))
    assert [text for text in found if text not in ("somebody else's", "probe")] == [
        *texts, "probe in 1"
    ]  # fmt: skip


async def test_of_two_hosts_one_works_and_nothing_is_doubled(parts: Parts) -> None:
    site, admin, _ = parts
    count = await ready(parts)
    async with host(site.data, count) as one, host(site.data, count) as two:
        for number in range(0, 2000, 20):
            await publish(admin, 20, first=number)
            await asyncio.sleep(0.02)
        assert await holds(admin, 2000) == counted(2000, 2)
        await until(lambda: any(state == "fenced" for state, _ in [*one.states, *two.states]))


async def test_what_fails_is_tried_again_and_then_a_dead_letter(parts: Parts) -> None:
    site, admin, _ = parts
    source = """
        import os
        def handler(ctx, event):
            if event.data == b"never":
                raise ValueError("no\\nway")
            if event.data == b"later" and event.attempt < 3:
                raise ValueError("not yet")
            if event.data == b"exit":
                os._exit(3)
            number = ctx.state["n"] = ctx.state.get("n", 0) + 1
            ctx.publish("out", f"{event.data.decode()} {number} {event.attempt}")
    """
    count = await ready(parts, source, retries=2)
    async with host(site.data, count) as one:
        for data in ("a", "never", "b", "later", "c", "exit", "d"):
            await admin.publish("in", data, headers={"Colour": "red"}, key="k")
        assert await holds(admin, 5) == ["a 1 1", "b 2 1", "later 3 3", "c 4 1", "d 5 1"]
        dead = await dead_letters(admin, 2)
        assert [data for data, _ in dead] == [b"never", b"exit"]
        headers = dead[0][1]
        assert headers["Function-Error"] == "ValueError: no"
        assert headers["Function-Index"] == "2"
        assert headers["Function-Log"] == "in"
        assert headers["Function-Attempts"] == "3"
        assert headers["Colour"] == "red"
        assert "exited with code 3" in dead[1][1]["Function-Error"]
        running = await one.is_in("running", handled=5)
        assert (running.failed, running.dead) == (8, 2)
        assert any(state == "retrying" and "no" in why for state, why in one.states)
    assert await outputs(admin) == ["a 1 1", "b 2 1", "later 3 3", "c 4 1", "d 5 1"]


async def test_without_order_a_failing_event_holds_nothing_up(parts: Parts) -> None:
    site, admin, _ = parts
    source = """
        def handler(ctx, event):
            if event.data == b"0" and event.attempt < 3:
                raise ValueError("not yet")
            ctx.publish("out", f"{event.data.decode()} {event.attempt}")
    """
    count = await ready(parts, source, order="none", concurrency=2)
    async with host(site.data, count) as one:
        await publish(admin, 50)
        assert sorted(await holds(admin, 50)) == sorted(["0 3", *[f"{n} 1" for n in range(1, 50)]])
        await one.is_in("running", handled=50)


async def test_an_event_that_takes_too_long_costs_only_itself(parts: Parts) -> None:
    site, admin, _ = parts
    source = """
        def handler(ctx, event):
            while event.data == b"3":
                pass
            ctx.publish("out", event.data)
    """
    count = await ready(parts, source, timeout=1.5, retries=1)
    async with host(site.data, count):
        await publish(admin, 10)
        assert await holds(admin, 9) == [str(n) for n in range(10) if n != 3]
        ((data, headers),) = await dead_letters(admin, 1)
        assert data == b"3"
        assert "longer than 1.5 s" in headers["Function-Error"]


async def test_dead_letters_and_past_events_are_handled_again(parts: Parts) -> None:
    site, admin, code = parts
    source = """
        def handler(ctx, event):
            if event.data == b"2":
                raise ValueError("not with this version")
            ctx.publish("out", event.data)
    """
    count = await ready(parts, source, retries=0)
    async with host(site.data, count) as one:
        await publish(admin, 5)
        await holds(admin, 4)
        ((_, headers),) = await dead_letters(admin, 1)
        assert headers["Function-Version"] == "1"
        better = assignment(
            code.with_name("better.py"), source.replace('== b"2"', "is None"), version=2
        )
        one.assign(better)
        await one.is_in("running", version=2)  # else the one before may take the requests
        for request in (
            Again(log="in", first=1, last=99, dead=True),
            Again(log="elsewhere", first=1, last=99),
            Again(log="in", first=2, last=4),
        ):
            await admin.publish(f"{AGAIN}/count", msgspec.json.encode(request))
        assert await holds(admin, 8) == ["0", "1", "3", "4", "2", "1", "2", "3"]
        await publish(admin, 1, first=5)
        await holds(admin, 9)
        assert await one.stop() == 0
    async with host(site.data, better) as two:  # and not once more
        await publish(admin, 1, first=6)
        assert (await holds(admin, 10))[8:] == ["5", "6"]
        await two.is_in("running", handled=1)
    assert len(await outputs(admin)) == 10


async def test_a_function_that_triggers_itself_ends_in_the_dead_letters(parts: Parts) -> None:
    site, admin, _ = parts
    source = """
        def handler(ctx, event):
            ctx.publish("in", event.data + b"+")
    """
    count = await ready(parts, source)
    async with host(site.data, count):
        await admin.publish("in", "")
        ((data, headers),) = await dead_letters(admin, 1)
        assert data == b"+" * MAX_HOPS
        assert "does count publish to a topic that triggers it?" in headers["Function-Error"]
        assert await admin.latest_index("in") == MAX_HOPS + 1


async def test_publishing_to_a_topic_that_is_not_there_fails_until_it_is(parts: Parts) -> None:
    site, admin, _ = parts
    source = """
        def handler(ctx, event):
            ctx.state["n"] = ctx.state.get("n", 0) + 1
            ctx.publish(event.data.decode(), str(ctx.state["n"]))
    """
    count = await ready(parts, source, retries=1)
    async with host(site.data, count) as one:
        for topic in ("out", "nowhere", "out", "functions/registry", "out"):
            await admin.publish("in", topic)
        assert await holds(admin, 3) == ["1", "2", "3"]
        dead = await dead_letters(admin, 2)
        assert "there is no topic nowhere" in dead[0][1]["Function-Error"]
        assert "Skerry's own" in dead[1][1]["Function-Error"]
        await admin.create_topic("nowhere")
        await admin.publish("in", "nowhere")
        assert await holds(admin, 1, "nowhere") == ["4"]
        await one.is_in("running")


async def test_outputs_to_a_topic_that_was_deleted_are_dropped_and_said_to_be(
    parts: Parts,
) -> None:
    site, admin, _ = parts
    count = await ready(parts)
    await publish(admin, 10)
    lost = tuple(Output("gone", b"x", f"id-{n}") for n in range(3))
    await write_journal(
        site, count.journal, [Record(1, 0, Progress(Position(8)), {}, lost, {"gone": Position(5)})]
    )
    async with host(site.data, count) as one:
        assert await holds(admin, 2) == ["8 k0 1", "9 k1 1"]
        await one.is_in("running")

        async def said() -> bool:
            return any("gone is dropped" in text for text in await outputs(admin, LOGS))

        await until(said)


async def test_a_function_waits_while_its_topic_is_gone(parts: Parts) -> None:
    site, admin, _ = parts
    count = await ready(parts)
    async with host(site.data, count) as one:
        await publish(admin, 10)
        await holds(admin, 10)
        await admin.delete_topic("in")
        await one.is_in("waiting", error="there is no topic in")
        await admin.create_topic("in")
        await one.is_in("running")
        await publish(admin, 5, first=10)
        await holds(admin, 15)


async def test_a_new_version_goes_on_where_the_old_one_was(parts: Parts) -> None:
    site, admin, code = parts
    versions = [
        assignment(
            code.with_name(f"v{number}.py"),
            COUNTS.replace("{number}", f"{{number}} v{number}"),
            version=number,
        )
        for number in (1, 2, 3)
    ]
    await make_topics(admin, versions[0])
    async with host(site.data, versions[0]) as one:
        sent = 1000
        await publish(admin, sent)
        for number, version in enumerate(versions, 1):
            one.assign(version)

            async def seen(number: int = number) -> bool:
                nonlocal sent  # the version before may take what comes as it is replaced
                await publish(admin, 1, first=sent)
                sent += 1
                return any(text.endswith(f"v{number}") for text in await outputs(admin))

            await until(seen, 60)
        found = await holds(admin, sent)
        assert len(found) == sent
        assert sorted(int(text.split()[2]) for text in found) == sorted(
            [*range(1, (sent + 1) // 2 + 1), *range(1, sent // 2 + 1)]
        )


async def test_code_that_cannot_be_loaded_is_told_and_does_no_harm(parts: Parts) -> None:
    site, admin, code = parts
    bad = await ready(parts, "import nothing_of_this_name", function="bad")
    good = assignment(code.with_name("good.py"), COUNTS)
    await make_topics(admin, good)
    async with host(site.data, bad, good) as one:
        await publish(admin, 10)
        await holds(admin, 10)
        assert "nothing_of_this_name" in (await one.is_in("broken", "bad")).error
        fixed = assignment(code, COUNTS.replace('"out"', '"in"'), function="bad", version=2)
        one.assign(fixed)
        await one.is_in("running", "bad")


async def test_handlers_read_topics_and_the_code_s_text_is_kept(parts: Parts) -> None:
    site, admin, _ = parts
    source = """
        def handler(ctx, event):
            print("hello", event.index)
            last = ctx.latest_index("in")
            first = ctx.get("in", 1)
            texts = [each.data.decode() for each in ctx.read("in", 1, event.index)]
            ctx.publish("out", f"{first.data.decode()} {texts}")
    """
    count = await ready(parts, source)
    async with host(site.data, count):
        await publish(admin, 3)
        assert await holds(admin, 3) == ["0 ['0']", "0 ['0', '1']", "0 ['0', '1', '2']"]

        async def lines() -> list[dict[str, Any]]:
            return [msgspec.json.decode(event.data) async for event in admin.read(f"{LOGS}/count")]

        async def all_there() -> bool:
            return len(await lines()) == 3

        await until(all_there)
        entry = (await lines())[2]
        assert (entry["text"], entry["level"], entry["log"]) == ("hello 3", "text", "in")
        assert entry["site"] == "local"


async def test_state_survives_and_removed_keys_stay_removed(parts: Parts) -> None:
    site, admin, _ = parts
    source = """
        def handler(ctx, event):
            what, _, key = event.data.decode().partition(" ")
            if what == "set":
                ctx.state[key] = event.index
            elif what == "drop":
                ctx.state.pop(key)
            else:
                ctx.publish("out", f"{key} {ctx.state.get(key)}")
    """
    count = await ready(parts, source)
    for round in range(3):
        async with host(site.data, count) as one:
            for text in ("set a", "set b", "drop b", "tell a", "tell b"):
                await admin.publish("in", text)
            await holds(admin, 2 * round + 2)
            assert (await one.is_in("running", handled=5)).keys == 1
            if round == 0:
                await one.stop()
    assert await outputs(admin) == [
        text for round in range(3) for text in (f"a {5 * round + 1}", "b None")
    ]


async def test_what_was_stored_before_it_was_deployed_is_left_alone(parts: Parts) -> None:
    site, admin, _ = parts
    await publish(admin, 10)
    await asyncio.sleep(0.01)
    count = await ready(parts, since=time.time_ns())
    await publish(admin, 5, first=10)
    async with host(site.data, count):
        assert [text.split()[0] for text in await holds(admin, 5)] == [
            str(n) for n in range(10, 15)
        ]


async def test_only_what_matches_its_pattern_is_handled(parts: Parts) -> None:
    site, admin, _ = parts
    count = await ready(parts, COUNTS, topic="in/+/temp")
    for number in range(30):
        await admin.publish(("in", "in/a/temp", "in/a/temp/x", "in/b/temp", "in/a/hum")[number % 5],
                            str(number))  # fmt: skip
    async with host(site.data, count):
        found = await holds(admin, 12)
        assert [int(text.split()[0]) for text in found] == [n for n in range(30) if n % 5 in (1, 3)]


async def test_outputs_too_large_for_their_topic_are_a_failure(parts: Parts) -> None:
    site, admin, _ = parts
    await admin.create_topic("small", max_event_bytes=1000)
    source = """
        def handler(ctx, event):
            ctx.publish(*event.data.decode().split()[:1], b"x" * int(event.data.split()[1]))
    """
    count = await ready(parts, source, retries=0)
    async with host(site.data, count) as one:
        for text in ("small 100", "small 2000", "out 5000000", "small 101"):
            await admin.publish("in", text)
        assert [len(text) for text in await holds(admin, 2, "small")] == [100, 101]
        assert len((await holds(admin, 1))[0]) == 5_000_000
        ((data, headers),) = await dead_letters(admin, 1)
        assert data == b"small 2000"
        assert "1000 bytes" in headers["Function-Error"]
        await one.is_in("running", handled=3)


async def test_a_host_ends_with_its_agent_and_its_workers_with_it(parts: Parts) -> None:
    site, admin, _ = parts
    count = await ready(parts)
    async with host(site.data, count) as one:
        await publish(admin, 1)
        await holds(admin, 1)
        worker = one.workers[0]
        assert await one.stop() == 0
        await until(lambda: not is_running(worker))
    async with host(site.data, count) as one:
        await publish(admin, 1)
        await holds(admin, 2)
        worker = one.workers[0]
        await one.kill()
        await until(lambda: not is_running(worker))
    async with host(site.data, count) as one:
        await publish(admin, 1)
        await holds(admin, 3)
        psutil.Process(one.pid).terminate()
        await until(lambda: not is_running(one.pid))


async def test_a_write_whose_outcome_is_unknown_is_looked_up(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that says nothing for longer than writes are waited for: did it store them?"""
    monkeypatch.setattr("skerry.functions.access.GIVE_UP", 1.0)
    site, admin, _ = parts
    # Slow enough to have events in hand when the engine stops: their results must be written.
    slow = COUNTS.replace("import skerry", "import time, skerry").replace(
        "ctx.publish", "time.sleep(0.005); ctx.publish"
    )
    count = await ready(parts, slow)
    access = await Access.open(find_address(site.data, "admin"))
    lines, requests = Lines(access), Requests(access)
    states: list[tuple[str, str]] = []
    runner = Runner(
        access, lines, requests, count,
        lambda: states.append((runner.status.state, runner.status.error)),
    )  # fmt: skip
    try:
        await publish(admin, 600)
        await holds(admin, 100)
        await freeze(site)
        await until(lambda: any("no acknowledgement" in why for _, why in states))
        site.thaw_engine()
        assert await holds(admin, 600) == counted(600, 2)
    finally:
        site.thaw_engine()
        await runner.close()
        await access.close()
