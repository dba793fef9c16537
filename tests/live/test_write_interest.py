"""Writes to a site that is no home are refused at once, so that publishers need not wait for
silence: no engine keeps telling others that it listens where nobody does."""

from __future__ import annotations

from skerry.engine.wire import NO_RESPONDERS
from skerry.model.names import write_subject
from skerry.testing import LocalFabric
from tests.conftest import until


async def is_refused(fabric: LocalFabric, site: str, peer: str) -> bool:
    """Whether a client at `site` is told that nobody takes an event at `peer`."""
    async with fabric.connect(site, "admin") as client:
        connection = client._open.connection
        try:
            answer = await connection.request(write_subject(peer, "nobody", 7), b"", timeout=5)
        except TimeoutError:
            return False
    return answer.status == NO_RESPONDERS


async def test_a_write_where_no_home_is_is_refused_also_after_a_restart() -> None:
    """Each engine starts locked, with its write subjects mapped away; the engine does not take
    back what it told its peers of that mapping."""
    async with LocalFabric(["hub", "farm", "lab"]) as fabric, fabric.connect("lab") as client:
        for home in ("farm", "lab"):
            await client.create_topic(f"at-{home}", home=home, replicas=2)

        def are_linked() -> bool:
            parts = [part for name in fabric.names if (part := fabric.agent(name).fabric)]
            return all(part.is_open and len(part.links.up) == 2 for part in parts)

        pairs = [("hub", "farm"), ("hub", "lab"), ("farm", "lab"), ("lab", "farm"), ("lab", "hub")]
        for killed in ("", "farm", "lab"):
            if killed:
                pid = fabric.agent(killed).engine.pid
                fabric[killed].kill_engine()
                await until(lambda: fabric.agent(killed).engine.pid not in (pid, None))  # noqa: B023
            await until(are_linked, 60)
            for pair in pairs:  # engines may still be telling each other
                await until(lambda: is_refused(fabric, *pair), 40)  # noqa: B023
