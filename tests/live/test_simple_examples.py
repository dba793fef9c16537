"""The examples of docs/simple-clients.md do what they say: a Python program, and a page in a real
browser."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket

from skerry import Client
from skerry.testing import LocalSite
from tests.conftest import until
from tests.live.test_feeds import take
from tests.live.test_plain import plain

EXAMPLES = Path(__file__).parents[2] / "examples" / "feeds"


@pytest.fixture
async def site() -> AsyncIterator[LocalSite]:
    """A site that takes MQTT and WebSocket clients."""
    async with LocalSite(mqtt_port=0, websocket_port=0) as site:
        yield site


# Python


class Program:
    """The example in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def type(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        await self.process.stdin.drain()

    async def prints(self, *words: str) -> None:
        """Wait for the next line; it must hold these words."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            line = (await self.process.stdout.readline()).decode()
        assert [word for word in words if word not in line] == [], line


@contextlib.asynccontextmanager
async def program(
    site: LocalSite, name: str, query: str, metadata: dict[str, Any]
) -> AsyncIterator[Program]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLES / "simple_client.py"),
        "127.0.0.1", str(site.site.ports.mqtt), plain(site).password, name, query,
        json.dumps(metadata),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Program(process)
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(60):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_the_program_is_short() -> None:
    assert len((EXAMPLES / "simple_client.py").read_text().splitlines()) < 80


async def test_the_program(site: LocalSite, client: Client) -> None:
    room = 'Room = "410"'
    async with client.query(room) as found:
        async with program(site, "one", room, {"Room": "410"}) as one:
            async with asyncio.timeout(60):
                own = (await anext(found)).feed.id
            await one.prints("joined", own, '"410"')
            await one.type("21.5")
            assert await take(found, 1) == ["21.5"]
            await one.prints("event", own, "21.5")
            async with await client.feed({"Room": "409"}) as other:
                await other.set({"Room": "410"})
                await one.prints("joined", other.id)
                await one.type('{"Room": "411"}')
                await one.prints("left", own)
            await one.prints("left", other.id)
            await one.type('{"Room": "410"}')
            await one.prints("joined", own)
            await one.type("21.7")
            await one.prints("event", own, "21.7")
        items = await take(found, 6)  # the last: at its end the program removes its feed
        assert items[-2:] == ["21.7", ("Left", own)]
    assert await client.feeds() == []


# A browser


def chromium() -> str:
    """The browser that is installed here."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if (found := shutil.which(name)) is not None:
            return found
    pytest.skip("no Chromium is installed (Debian's package chromium)")


class Page:
    """A page in a headless Chromium, driven by its DevTools protocol."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)

    async def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        number = next(self._numbers)
        params = {"expression": script, "awaitPromise": True, "returnByValue": True}
        body = {"id": number, "method": "Runtime.evaluate", "params": params}
        await self._socket.send(json.dumps(body))
        while (answer := json.loads(await self._socket.recv())).get("id") != number:
            pass
        assert "exceptionDetails" not in answer["result"], answer
        return answer["result"]["result"].get("value")

    async def fill(self, form: str, **values: str) -> None:
        """Fill in a form, and press its button."""
        for name, value in values.items():
            await self.run(f"part('{form}').elements['{name}'].value = {json.dumps(value)}")
        await self.run(f"part('{form}').querySelector('button').click()")

    async def rows(self) -> list[str]:
        """The feeds that it shows, with their last events."""
        found: list[str] = await self.run(
            "[...part('feeds').rows].map((r) => [...r.cells].map((c) => c.textContent).join(' '))"
        )
        return found


@contextlib.asynccontextmanager
async def page(file: Path, folder: Path) -> AsyncIterator[Page]:
    process = await asyncio.create_subprocess_exec(
        chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-port=0",
        f"--user-data-dir={folder}", file.as_uri(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    port = folder / "DevToolsActivePort"
    try:
        await until(lambda: port.exists() and "\n" in port.read_text(), 60)
        url = f"http://127.0.0.1:{port.read_text().splitlines()[0]}/json/list"
        targets: list[dict[str, str]] = []

        def is_open() -> bool:
            with urllib.request.urlopen(url, timeout=20) as answer:
                targets[:] = [t for t in json.load(answer) if t["url"] == file.as_uri()]
            return bool(targets)

        await until(lambda: asyncio.to_thread(is_open), 60)
        async with connect_websocket(targets[0]["webSocketDebuggerUrl"]) as socket:
            shown = Page(socket)
            await until(lambda: _is_loaded(shown))
            yield shown
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)  # the group that this test started
        await process.wait()


async def _is_loaded(shown: Page) -> bool:
    return bool(await shown.run("document.readyState === 'complete' && typeof part === 'function'"))


async def test_the_page(site: LocalSite, client: Client, tmp_path: Path) -> None:
    room = 'Room = "410"'

    async def shows(*rows: str) -> bool:
        return sorted(await shown.rows()) == sorted(rows)

    async with (
        page(EXAMPLES / "browser.html", tmp_path / "profile") as shown,
        await client.feed({"Room": "410", "n": 1}) as first,
        await client.feed({"Room": "409", "n": 2}) as second,
        client.query(f"{room} and not has n") as found,
    ):
        url = f"ws://127.0.0.1:{site.site.ports.websocket}"
        await shown.fill("site", url=url, password=plain(site).password, query=room)
        await until(lambda: shows('{"Room":"410","n":1} '))
        # What is published before the page listens is missed: publish until it shows.
        await until(lambda: _published(first.publish, shows, '{"Room":"410","n":1} 21.5'))
        await second.set({"Room": "410"})
        await until(lambda: shows('{"Room":"410","n":1} 21.5', '{"Room":"410","n":2} '))
        await first.set({"Room": "411"})
        await until(lambda: shows('{"Room":"410","n":2} '))

        await shown.fill("own", metadata='{"Room": "410"}', event="19.0 °C")
        (own,) = await take(found, 1)
        assert (own[0], await take(found, 1)) == ("Joined", ["19.0 °C"])
        await shown.fill("own", event="19.1 °C")
        assert await take(found, 1) == ["19.1 °C"]
        await until(lambda: shows('{"Room":"410","n":2} ', '{"Room":"410"} 19.1 °C'))

        await shown.fill("site", query="Room =")
        await until(lambda: _says(shown, "the query is wrong at column"))


async def _published(publish: Any, shows: Any, row: str) -> bool:
    await publish("21.5")
    return bool(await shows(row))


async def _says(shown: Page, what: str) -> bool:
    return what in await shown.run("part('said').textContent")
