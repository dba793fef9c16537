"""The SDK and the site work on asyncio's own loop, as all tests do, and on uvloop."""

from __future__ import annotations

import asyncio

import uvloop

from skerry.testing import LocalSite


async def scenario() -> list[bytes]:
    """Publish, crash, publish, follow."""
    async with LocalSite() as site, site.connect() as client:
        await client.create_topic("t")
        async with client.subscribe("t") as subscription:
            async with client.publisher("t") as publisher:
                for n in range(100):
                    await publisher.send(b"%d" % n)
                site.kill_engine()
                for n in range(100, 200):
                    await publisher.send(b"%d" % n)
            async with asyncio.timeout(20):
                return [(await anext(subscription)).data for _ in range(200)]


def test_on_uvloop() -> None:
    assert uvloop.run(scenario()) == [b"%d" % n for n in range(200)]
