"""What a job is told of a log while its site puts it together anew, or its home is elsewhere."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from skerry import Client, errors
from skerry.engine.address import find_address
from skerry.log.segments import Chain, Moved, index_since
from skerry.spark import fetch, logs
from skerry.spark.fetch import Lost
from skerry.spark.logs import Logs
from skerry.spark.options import Site
from skerry.spark.seen import stored_ids
from skerry.testing import LocalFabric, LocalSite
from tests.live.chains import ChainByHand
from tests.live.former import leave


async def split(client: Client, admin: Client) -> tuple[ChainByHand, datetime]:
    """A log of four events in two segments, and a time before all of them."""
    when = datetime.now(UTC)
    await client.create_topic("t")
    log = ChainByHand(admin, "t")
    for n in range(4):
        await client.publish("t", str(n))
        if n == 1:
            await log.roll()
    return log, when


async def index_at(site: LocalSite, when: datetime, timeout: float = 30.0) -> int:
    """Where `when` is. The site lives in the test's own loop, so nobody may wait in there."""
    job = await asyncio.to_thread(Logs, Site(data=str(site.data), timeout=timeout))
    try:
        return await asyncio.to_thread(job.index_at, "t", when)
    finally:
        await asyncio.to_thread(job.close)


@pytest.mark.parametrize("kept", [0, 1])
async def test_a_time_is_found_while_a_log_is_welded(
    kept: int, site: LocalSite, client: Client, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain was read, and before it was followed the log is elsewhere: in one case the first
    segment is empty and the second one not deleted yet."""
    log, when = await split(client, admin)
    empty = log.empty
    loop = asyncio.get_running_loop()
    seen: list[Chain] = []
    monkeypatch.setattr(log, "empty", lambda chain: empty(chain[: len(chain) - kept]))

    async def weld_first(jetstream: Any, chain: Chain, when: datetime) -> int | None:
        if not seen:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(log.weld(), loop))
        seen.append(chain)
        return await index_since(jetstream, chain, when)

    monkeypatch.setattr(logs, "index_since", weld_first)
    assert await index_at(site, when) == 1
    assert [len(chain) for chain in seen] == [2, 1]


async def test_a_log_that_does_not_come_to_rest_is_said(
    site: LocalSite, client: Client, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, when = await split(client, admin)

    async def moved(*arguments: Any) -> int | None:
        raise Moved

    monkeypatch.setattr(logs, "index_since", moved)
    with pytest.raises(errors.Unavailable, match="changes all the time"):
        await index_at(site, when, timeout=1.0)


async def test_rows_are_not_looked_for_where_the_home_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """None would be found there, and the sink would write all of them again."""
    async with LocalFabric(["hub", "farm", "lab"]) as fabric, fabric.connect("hub") as client:
        await client.create_topic("t", home="farm", replicas=1, spread=["lab"])
        for n in range(3):
            await client.publish("t", str(n), id=f"job-{n}", ack="quorum")
        hub = [find_address(fabric["hub"].data)]

        async def stored() -> set[str]:
            return await asyncio.to_thread(stored_ids, hub, "t", "job-", {"seq": 1})

        rows = {"job-0", "job-1", "job-2"}
        assert await stored() == rows
        ask, directory = fetch.Socket.ask, "$JS.API.DIRECT.GET.KV_skerry"
        before: dict[str, tuple[int, Any]] = {}

        def remember(self: fetch.Socket, subject: str, body: object = None) -> tuple[int, Any]:
            """The own site's copy of the directory hears of nothing more."""
            if subject != directory:
                return ask(self, subject, body)
            if not before:
                before[subject] = ask(self, subject, body)
            return before[subject]

        with monkeypatch.context() as patch:
            patch.setattr(fetch.Socket, "ask", remember)
            assert await stored() == rows
            async with fabric.connect("hub", "admin") as admin:
                await leave(fabric, admin, "t", "lab")
            with pytest.raises(Lost, match="farm is not the home of t"):
                await stored()
        assert await stored() == rows
