"""Fixtures: real sites with real engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from skerry import Client
from skerry.testing import LocalSite


@pytest.fixture
async def site() -> AsyncIterator[LocalSite]:
    """A fresh site."""
    async with LocalSite() as site:
        yield site


@pytest.fixture
async def client(site: LocalSite) -> AsyncIterator[Client]:
    """An SDK client of `site`."""
    async with site.connect() as client:
        yield client


@pytest.fixture
async def admin(site: LocalSite) -> AsyncIterator[Client]:
    """An administrator's client of `site`."""
    async with site.connect("admin") as client:
        yield client


async def until(condition: Callable[[], bool | Awaitable[bool]], seconds: float = 20.0) -> None:
    """Wait for a condition; fail after `seconds`."""
    async with asyncio.timeout(seconds):
        while True:
            result = condition()
            if await result if isinstance(result, Awaitable) else result:
                return
            await asyncio.sleep(0.01)
