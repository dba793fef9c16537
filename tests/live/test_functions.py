"""Functions as sites keep them: who may write where, what a deployment writes, what runs where."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from skerry import Client, errors
from skerry.functions.deploying import make_topics
from skerry.functions.registry import Known
from skerry.functions.site import Functions
from skerry.functions.supervisor import HOST
from skerry.model.functions import REGISTRY, Function, Version, journal_of
from skerry.testing import LocalFabric, LocalSite
from tests.conftest import until
from tests.functions.kills import Options
from tests.live.fabrics import Load, three_sites
from tests.live.function_agents import AgentCampaign
from tests.live.test_security import address_of, intruder
from tests.package import make_package

# Rights: whoever writes below functions/ decides which code runs.


@pytest.mark.parametrize("name", ["functions", "functions/registry", "functions/mine"])
async def test_nobody_makes_a_topic_below_functions(admin: Client, name: str) -> None:
    with pytest.raises(errors.AccessDenied, match="Skerry's own"):
        await admin.create_topic(name)


async def test_nobody_makes_a_topic_below_functions_in_a_fabric() -> None:
    async with LocalFabric(1) as fabric, fabric.connect("site1", "admin") as admin:
        with pytest.raises(errors.AccessDenied, match="Skerry's own"):
            await admin.create_topic("functions/mine")


@pytest.mark.parametrize("user", ["sdk", "plain"])
async def test_clients_cannot_write_below_functions(site: LocalSite, user: str) -> None:
    async with intruder(site, user) as client:
        for subject in (
            "s.local.0.functions.registry.spec.x",
            "s.local.0.functions",
            "s.local.7.functions.journals.x.y.w",
        ):
            assert await client.is_denied(subject), subject
        client.denials.clear()  # or what was denied above would do
        await client.client.publish("p.functions.registry.spec.x", b"{}")
        assert "functions.registry.spec.x" in await client._answers()
        assert not await client.is_denied("s.local.0.other.functions.x")


async def test_the_process_that_runs_functions_can(site: LocalSite) -> None:
    async with intruder(site, "functions") as host:
        assert not await host.is_denied("s.local.0.functions.journals.x.y.w")
        for subject in ("_sk.local.admin.function.deploy", "$JS.API.STREAM.DELETE.x", "e.x"):
            assert await host.is_denied(subject), subject


@pytest.mark.parametrize("user", ["sdk", "plain"])
async def test_clients_cannot_write_below_functions_of_a_fabric(user: str) -> None:
    fabric = LocalFabric(["local", "other"])
    async with fabric, intruder(fabric["local"], user) as client:
        for subject in (
            "s.other.1.functions.registry.spec.x",
            "o.local.functions.registry.spec.x",
            "o.local.functions",
        ):
            assert await client.is_denied(subject), subject


async def test_nor_over_mqtt() -> None:
    async with LocalSite(mqtt_port=0) as site, site.connect("admin") as admin:
        assert site.site.functions is not None
        await make_topics(site.site.functions.places)
        await admin.create_topic("other")
        address = address_of(site, "plain")
        client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv311)
        client.username_pw_set(address.user, address.password)
        assert site.site.ports.mqtt is not None
        client.connect(address.host, site.site.ports.mqtt)
        client.loop_start()
        try:
            client.publish("p/functions/registry/spec/x", b"{}", qos=0).wait_for_publish(20)
            client.publish("p/other", b"behind it", qos=0).wait_for_publish(20)
            async with asyncio.timeout(20):
                while not await admin.latest_index("other"):
                    await asyncio.sleep(0.01)
        finally:
            client.loop_stop()
            client.disconnect()
        assert await admin.latest_index(REGISTRY) == 0


async def test_a_feed_is_no_way_around_it(site: LocalSite, client: Client) -> None:
    """The agent publishes for simple clients, with its own rights."""
    assert site.site.functions is not None
    await make_topics(site.site.functions.places)
    with pytest.raises(errors.AccessDenied, match="Skerry's own"):
        await client.feed({"a": 1}, topic=f"{REGISTRY}/spec/x")


# Deploying

COUNT = """
import os

def handler(ctx, event):
    number = ctx.state.get("number", 0) + 1
    ctx.state["number"] = number
    ctx.publish("out", f"{number} {event.data.decode()}" + os.environ.get("MARK", ""))
"""


@pytest.fixture
def count(tmp_path: Path) -> Path:
    """A function that numbers events."""
    file = tmp_path / "count.py"
    file.write_text(COUNT)
    return file


def part(site: LocalSite) -> Functions:
    """A site's part in functions."""
    assert site.site.functions is not None
    return site.site.functions


async def results(client: Client) -> list[str]:
    return [event.data.decode() async for event in client.read("out")]


async def wait_for_results(client: Client, number: int) -> list[str]:
    """All results, once there are so many."""

    async def there() -> bool:
        return len(await results(client)) >= number

    await until(there, 60)
    return await results(client)


async def is_running_at(client: Client, site: str, log: str = "in", name: str = "count") -> bool:
    found = await client.function(name)
    return any(
        each.site == site and each.running.log == log and each.running.state == "running"
        for each in found.running
    )


async def runs_only_at(client: Client, site: str) -> None:
    """Wait until `count` is said to run at this site, and nowhere else."""

    async def said() -> bool:
        running = (await client.function("count")).running
        return [(each.site, each.running.state) for each in running] == [(site, "running")]

    await until(said, 60)


async def reaches_version(client: Client, name: str, number: int) -> Version:
    """Wait until a site knows the version, and it runs: what is published from then on is not
    handled by one before it. Returns the newest that the site knows."""

    async def runs() -> bool:
        found = await client.function(name)
        running = [each.running.version for each in found.running]
        return found.function.current.number >= number and min(running, default=0) >= number

    await until(runs, 60)
    return (await client.function(name)).function.current


async def test_what_was_asked_of_a_removed_function_is_not_asked_of_the_next(
    site: LocalSite, admin: Client, count: Path
) -> None:
    for topic in ("in", "out"):
        await admin.create_topic(topic)
    await admin.deploy_function(count, topic="in")
    await admin.publish("in", "a")
    await wait_for_results(admin, 1)
    await admin.replay_function("count", from_index=1)
    await wait_for_results(admin, 2)
    await admin.remove_function("count")
    await admin.deploy_function(count, topic="in")
    await admin.publish("in", "b")
    await wait_for_results(admin, 3)
    await admin.replay_function("count", from_index=2)  # behind all that could come of the first
    assert await wait_for_results(admin, 4) == ["1 a", "2 a", "1 b", "2 b"]


async def test_what_is_deployed_twice_is_deployed_once(
    site: LocalSite, admin: Client, count: Path
) -> None:
    first = await admin.deploy_function(count, topic="in", env={"MARK": "!"})
    again = await admin.deploy_function(count, topic="in", env={"MARK": "!"})
    assert (first.changed, again.changed) == (True, False)
    assert again.function == first.function
    both = await asyncio.gather(
        *(admin.deploy_function(count, topic="in", retries=7) for _ in range(2))
    )
    assert sorted(each.changed for each in both) == [False, True]
    assert (await admin.function("count")).function.current.number == 2


async def test_who_has_not_seen_the_newest_cannot_change_it(
    site: LocalSite, admin: Client, count: Path
) -> None:
    await admin.deploy_function(count, topic="in")
    registry, _ = await part(site).ready()
    seen = await registry.newest("count")
    assert seen.function is not None
    await admin.pause_function("count")
    for stale in (seen, Known(0, None, 0)):
        with pytest.raises(errors.Conflict, match="somebody else changed the function count"):
            await registry.put(seen.function, stale)
    assert (await admin.function("count")).function.paused


async def test_what_was_changed_between_two_looks_at_it_is_looked_at_again(
    site: LocalSite, admin: Client, count: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await admin.deploy_function(count, topic="in")
    registry, _ = await part(site).ready()
    seen = await registry.newest("count")
    await admin.pause_function("count")
    real = registry._homes.newest
    answers = [seen.revision]

    async def newest(topic: str) -> int:
        return answers.pop() if answers else await real(topic)

    monkeypatch.setattr(registry._homes, "newest", newest)
    now = await registry.newest("count")
    assert not answers
    assert now.revision > seen.revision
    assert now.function is not None
    assert now.function.paused


async def test_code_that_is_not_what_it_should_be_does_not_run(
    site: LocalSite, admin: Client, count: Path
) -> None:
    await admin.deploy_function(count, topic="in")
    registry, _ = await part(site).ready()
    function = registry.functions["count"]
    digest = function.current.code
    await admin.publish(f"{REGISTRY}/code/{digest}", b"print('forged')")
    for kept in (site.data / "functions" / "code").iterdir():
        kept.unlink()
    await admin.create_topic("in")

    async def said() -> bool:
        found = (await admin.function("count")).running
        return bool(found) and "is not what it should be" in found[0].running.error

    await until(said)
    assert part(site).supervisor.pid is None


async def test_the_host_is_started_when_it_is_needed_and_ends_with_the_site(count: Path) -> None:
    async with LocalSite() as site, site.connect("admin") as admin:
        for name in ("in", "out"):
            await admin.create_topic(name)
        assert part(site).supervisor.pid is None
        await admin.deploy_function(count, topic="in")
        await admin.publish("in", "a")
        assert await wait_for_results(admin, 1) == ["1 a"]
        pid = part(site).supervisor.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await admin.publish("in", "b")
        assert await wait_for_results(admin, 2) == ["1 a", "2 b"]
        pid = part(site).supervisor.pid
        assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_module_in_the_folder_of_the_start_is_not_run(
    tmp_path: Path, count: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "planted"
    planted.mkdir()
    for module in ("msgspec", "venv", "pip"):
        (planted / f"{module}.py").write_text("open('was-run', 'w').close(); raise SystemExit(7)")
    monkeypatch.chdir(planted)
    # The means work: this is how Python starts a module if nobody says otherwise.
    command = [sys.executable, *HOST[HOST.index("-m") :]]
    assert subprocess.run(command, stdin=subprocess.DEVNULL).returncode == 7
    (planted / "was-run").unlink()
    needs = f'dependencies = ["tiny-thing @ {make_package(tmp_path).as_uri()}"]'
    count.write_text(f"# /// script\n# {needs}\n# ///\n{COUNT}")
    async with LocalSite() as site, site.connect("admin") as admin:
        for name in ("in", "out"):
            await admin.create_topic(name)
        await admin.deploy_function(count, topic="in")
        await admin.publish("in", "a")
        assert await wait_for_results(admin, 1) == ["1 a"]
    assert not (planted / "was-run").exists()


async def test_functions_go_on_when_the_engine_is_back(
    site: LocalSite, admin: Client, count: Path
) -> None:
    for name in ("in", "out"):
        await admin.create_topic(name)
    await admin.deploy_function(count, topic="in")
    await admin.publish("in", "a")
    await wait_for_results(admin, 1)
    site.kill_engine()
    await admin.publish("in", "b")
    assert await wait_for_results(admin, 2) == ["1 a", "2 b"]


# In a fabric


@contextlib.asynccontextmanager
async def deployed(count: Path, replicas: int = 2, **settings: Any) -> AsyncIterator[LocalFabric]:
    """Three sites, and the function `count` on `in`, whose home is farm."""
    async with three_sites() as fabric, fabric.connect("lab", "admin") as admin:
        await admin.create_topic(
            "in", home="farm", replicas=replicas, ack="quorum" if replicas else "home"
        )
        await admin.create_topic("out", home="hub", replicas=2 if replicas else 0)
        await admin.deploy_function(count, topic="in", **settings)
        site = settings.get("site", "farm")
        await until(lambda: is_running_at(admin, site), 60)
        yield fabric


def check(found: list[str], load: Load) -> None:
    """Each event once, in order."""
    assert found == [f"{n + 1} n-{n}" for n in range(load.count)]


@pytest.mark.slow
async def test_a_function_follows_its_topic_when_that_moves(count: Path) -> None:
    async with deployed(count) as fabric, fabric.connect("hub", "admin") as admin:
        async with Load(admin, "in") as load:
            await load.go_on(50)
            await admin.move_topic("in", "lab")
            await load.go_on(50)
            await until(lambda: is_running_at(admin, "lab"), 60)
            await load.go_on(50)
        check(await wait_for_results(admin, load.count), load)
        await runs_only_at(admin, "lab")
        assert (await admin.function("count")).logs == {"in": "lab"}

        def journal_came() -> bool:
            log = part(fabric["lab"]).places.log(journal_of("count", "in"))
            return log is not None and log.home == "lab"

        await until(journal_came, 60)


@pytest.mark.slow
async def test_a_function_goes_on_where_its_topic_fails_over(count: Path) -> None:
    async with deployed(count) as fabric, fabric.connect("hub", "admin") as admin:
        async with Load(admin, "in", ack="quorum") as load:
            await load.go_on(50)
            await fabric.crash("farm")
            await load.go_on(50)
        check(await wait_for_results(admin, load.count), load)
        info = await admin.function("count")
        assert info.logs["in"] in ("hub", "lab")
        await fabric.start("farm")  # it takes nothing up again that is others' now
        await admin.publish("in", f"n-{load.count}")
        load.count += 1
        check(await wait_for_results(admin, load.count), load)


@pytest.mark.slow
async def test_a_pinned_function_stays(count: Path) -> None:
    fabric = deployed(count, replicas=0, site="hub")
    async with fabric as sites, sites.connect("lab", "admin") as admin:
        await admin.publish("in", "a")
        assert await wait_for_results(admin, 1) == ["1 a"]
        await admin.move_topic("in", "lab")
        await admin.publish("in", "b")
        assert await wait_for_results(admin, 2) == ["1 a", "2 b"]
        await runs_only_at(admin, "hub")
        assert (await admin.function("count")).logs == {"in": "hub"}
        with pytest.raises(errors.UnknownSite):
            await admin.deploy_function(count, topic="in", site="moon")


@pytest.mark.slow
async def test_of_two_who_deploy_at_once_from_two_sites_one_is_told(tmp_path: Path) -> None:
    async with (
        three_sites() as fabric,
        fabric.connect("farm", "admin") as farm,
        fabric.connect("lab", "admin") as lab,
    ):
        for name in ("in", "out"):
            await farm.create_topic(name)
        files = []
        for mark in ("first", "farm", "lab"):
            (tmp_path / mark).mkdir()
            files.append(tmp_path / mark / "both.py")
            files[-1].write_text(f"def handler(ctx, event): ctx.publish('out', '{mark}')\n")
        await farm.deploy_function(files[0], topic="in")
        conflicts = 0
        for _ in range(3):
            before = (await farm.function("both")).function.current.number
            done = await asyncio.gather(
                farm.deploy_function(files[1], retries=1, order="topic"),
                lab.deploy_function(files[2], retries=2),
                return_exceptions=True,
            )
            assert all(
                not isinstance(each, BaseException) or isinstance(each, errors.Conflict)
                for each in done
            ), done
            failed = [each for each in done if isinstance(each, errors.Conflict)]
            conflicts += len(failed)
            assert len(failed) < 2
            for each in failed:
                assert "skerry function show both" in each.advice
            expected = before + 2 - len(failed)
            newest = await reaches_version(farm, "both", expected)
            assert newest.number == expected
            # Nothing mixes: the code of one comes with the settings of the same one.
            code = {0: None, 1: "farm", 2: "lab"}[newest.settings.retries % 3]
            known = await farm.latest_index("out")
            await farm.publish("in", "x")
            assert (await wait_for_results(farm, known + 1))[-1] == code
            await farm.deploy_function(files[0], topic="in")
        assert conflicts


@pytest.mark.slow
async def test_a_site_that_joins_knows_the_functions(count: Path) -> None:
    async with three_sites() as fabric, fabric.connect("lab", "admin") as admin:
        await admin.create_topic("out", home="hub")
        await admin.deploy_function(count, topic="in", env={"MARK": "!"})
        await fabric.add("late")
        async with fabric.connect("late", "admin") as late:

            async def known() -> bool:
                return [each.name for each in await late.functions()] == ["count"]

            await until(known, 60)
            await late.create_topic("in")  # at home there
            await late.publish("in", "a")
            assert await wait_for_results(late, 1) == ["1 a!"]  # it fetched the variables
            await until(lambda: is_running_at(late, "late"), 60)


@pytest.mark.slow
async def test_a_site_that_is_cut_off_goes_on_with_what_it_knows(count: Path) -> None:
    async with three_sites() as fabric, fabric.connect("farm", "admin") as admin:
        for name in ("in", "out"):
            await admin.create_topic(name)
        await admin.deploy_function(count, topic="in")
        await admin.publish("in", "a")
        await wait_for_results(admin, 1)
        for other in ("lab", "hub"):
            await fabric.stop(other)
        await admin.publish("in", "b")
        assert await wait_for_results(admin, 2) == ["1 a", "2 b"]
        await until(lambda: is_running_at(admin, "farm"), 60)
        with pytest.raises(errors.Unavailable):
            await asyncio.wait_for(admin.pause_function("count"), 100)


@pytest.mark.slow
async def test_a_site_that_starts_cut_off_goes_on_as_well(count: Path) -> None:
    async with three_sites() as fabric:
        async with fabric.connect("farm", "admin") as admin:
            for name in ("in", "out"):
                await admin.create_topic(name)
            await admin.deploy_function(count, topic="in")
            await admin.publish("in", "a")
            await wait_for_results(admin, 1)
        for each in ("farm", "lab", "hub"):
            await fabric.stop(each)
        await fabric.start("farm")
        async with fabric.connect("farm", "admin") as admin:
            await admin.publish("in", "b")
            assert await wait_for_results(admin, 2) == ["1 a", "2 b"]


@pytest.mark.slow
async def test_what_belongs_to_all_gets_replicas_as_sites_join(count: Path) -> None:
    async with LocalFabric(["hub"]) as fabric, fabric.connect("hub", "admin") as admin:
        await admin.deploy_function(count, topic="in")
        assert (await admin.topic(REGISTRY)).replicas == ()
        for name in ("farm", "lab"):
            await fabric.add(name)
        await admin.deploy_function(count, topic="in", retries=1)
        registry = await admin.topic(REGISTRY)
        assert set(registry.replicas) == {"farm", "lab"}
        assert registry.settings.ack == "quorum"
        await fabric.stop("lab")  # and one of them may be away
        assert (await admin.pause_function("count")).paused


@pytest.mark.slow
async def test_functions_and_journals_are_gone_everywhere_when_removed(count: Path) -> None:
    async with deployed(count) as fabric, fabric.connect("lab", "admin") as admin:
        await admin.publish("in", "a")
        await wait_for_results(admin, 1)
        journal = journal_of("count", "in")
        assert journal in [topic.name for topic in await admin.topics()]
        await admin.remove_function("count")
        with pytest.raises(errors.UnknownFunction):
            await admin.function("count")

        async def gone() -> bool:
            return not any(topic.name == journal for topic in await admin.topics())

        await until(gone, 60)
        await admin.deploy_function(count, topic="in")
        await admin.publish("in", "b")
        assert await wait_for_results(admin, 2) == ["1 a", "1 b"]
        info = await admin.function("count")
        assert info.function.current.number == 2


def test_a_function_of_the_registry_can_be_read_back() -> None:
    """What is written down today must be read tomorrow."""
    text = (
        b'{"name":"avg","versions":[{"number":3,"code":"00","kind":"python","handler":"h",'
        b'"settings":{"topic":"in"},"site":"hub","deployed":5}],"since":4}'
    )
    found = msgspec.json.decode(text, type=Function)
    assert (found.current.number, found.current.settings.retries, found.paused) == (3, 3, False)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_agents_keep_the_promise_while_everything_is_killed() -> None:
    """`python -m tests.live.function_agents` does more of it."""
    result = await AgentCampaign(Options(seed=11, events=2000, kills=8, away=1.0)).run()
    assert result.is_good, result
