"""Fixtures: real sites with real engines."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest
from hypothesis import settings

from skerry import Client
from skerry.model.records import ASIDE, Aside
from skerry.testing import LocalSite, Wan

settings.register_profile("skerry", deadline=None)  # no test asserts a duration
settings.load_profile("skerry")

_CLONE_NEWNET = 0x40000000


def pytest_xdist_auto_num_workers() -> int:
    """How many workers share the tests: one more than there are cores, for tests wait a lot, where
    each can have a network of its own.

    On one network, one worker could take the port of a site that the other has just crashed and is
    about to start again.
    """
    return min(4, (os.cpu_count() or 1) + 1) if Wan.unavailable() is None else 0


def pytest_configure() -> None:
    """Have a worker, and all that it starts, in a network of its own."""
    if "PYTEST_XDIST_WORKER" not in os.environ or Wan.unavailable() is not None:
        return
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot make a network namespace")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


@pytest.fixture(autouse=True)
def aside() -> Aside:
    """What is set aside in this process, without what other tests left."""
    ASIDE._why.clear()
    return ASIDE


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


@contextlib.asynccontextmanager
async def beside(*work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Have work without an end done beside the block; what it raises ends the block."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in work]
        yield
        for task in tasks:
            task.cancel()


async def until(condition: Callable[[], bool | Awaitable[bool]], seconds: float = 40.0) -> None:
    """Wait for a condition; fail after `seconds`."""
    async with asyncio.timeout(seconds):
        while True:
            result = condition()
            if await result if isinstance(result, Awaitable) else result:
                return
            await asyncio.sleep(0.01)
