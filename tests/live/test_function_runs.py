"""Functions take effect once: whatever is killed, moved, or comes back."""

from __future__ import annotations

from pathlib import Path

from skerry import Client
from skerry.testing import LocalSite
from tests.functions.hosts import COUNTS, assignment, holds, host, make_topics


async def test_each_event_is_handled_once_and_in_order(
    site: LocalSite, admin: Client, tmp_path: Path
) -> None:
    count = assignment(tmp_path / "count.py", COUNTS)
    await admin.create_topic("in")
    await admin.create_topic("out")
    await make_topics(admin, count)
    async with host(site.data, count) as one:
        async with admin.publisher("in") as publisher:
            for number in range(1000):
                await publisher.send(str(number), key="ab"[number % 2])
        found = await holds(admin, 1000)
        assert found == [f"{n} {'ab'[n % 2]} {n // 2 + 1}" for n in range(1000)]
        running = await one.is_in("running", handled=1000)
        assert running.handled == 1000
        assert running.workers == 1
        assert running.keys == 2
        assert running.topics == ("out",)
        assert await one.stop() == 0
