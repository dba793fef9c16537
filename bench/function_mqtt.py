"""RabbitMQ with MQTT, the paper's comparison: a broker of our own, a producer and a consumer.

The broker runs on free ports of loopback with its files in a temporary folder, and ends with the
benchmark. QoS 1 to a session that lasts: messages go to a durable queue as persistent ones. Producer
and consumer speak the protocol with nothing around it, as `bench.rawproto` does with the engine's, so
that the broker is measured and not a client library. Prefetch is 1000 where the default is 10.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Self, cast

import uvloop

BLOCK = 256 * 1024
"""Bytes framed and written at a time."""
PATIENCE = 120.0
"""Seconds after which a run that does not end has failed."""
STARTING = 90.0
"""Seconds that the broker may take to listen; about ten is usual."""

CONNACK, PUBLISH, PUBACK, SUBACK = 0x20, 0x32, 0x40, 0x90


def unavailable() -> str | None:
    """Why there can be no broker here; None: there can."""
    if _script() is None:
        return "rabbitmq-server is not installed (Debian: apt-get install rabbitmq-server)"
    if shutil.which("epmd") is None:
        return "epmd, which comes with Erlang, is not on PATH"
    return None


def _script() -> Path | None:
    found = shutil.which("rabbitmq-server", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if found is None:
        return None
    # Debian's is a wrapper that changes user and folder; what it wraps is beside it.
    beside = Path(found).resolve().with_name("rabbitmq-server")
    return beside if beside.exists() else Path(found)


@contextlib.asynccontextmanager
async def running_broker() -> AsyncIterator[int]:
    """A fresh broker; yields the port for MQTT."""
    script = _script()
    assert script is not None
    folder = Path(tempfile.mkdtemp(prefix="skerry-bench-rabbitmq-"))
    mqtt, distribution, names = (_free_port() for _ in range(3))
    (folder / "rabbitmq.conf").write_text(
        "listeners.tcp = none\n"
        f"mqtt.listeners.tcp.1 = 127.0.0.1:{mqtt}\n"
        "mqtt.allow_anonymous = true\n"
        "mqtt.prefetch = 1000\n"
        "log.file = false\nlog.console = true\n"
    )
    (folder / "plugins").write_text("[rabbitmq_mqtt].\n")
    environment = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "HOME": str(folder),
        "RABBITMQ_NODENAME": f"skerry-bench-{os.getpid()}@localhost",
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "none"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_PORT": str(names),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }
    processes: list[subprocess.Popen[bytes]] = []
    try:
        # Erlang's name server: a broker would leave one behind that nobody ends.
        epmd = ["epmd", "-port", str(names), "-address", "127.0.0.1"]
        with (folder / "out").open("wb") as out:
            for command in (epmd, [str(script)]):
                processes.append(  # noqa: PERF401: what is started must be known at once
                    subprocess.Popen(
                        command, env=environment, cwd=folder, start_new_session=True,
                        stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                    )
                )  # fmt: skip
        await _listens(mqtt, processes[-1], folder / "out")
        yield mqtt
    finally:
        for process in reversed(processes):
            await asyncio.to_thread(_end, process)
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def _listens(port: int, process: subprocess.Popen[bytes], out: Path) -> None:
    deadline = time.monotonic() + STARTING
    while True:
        with contextlib.suppress(OSError):
            client = await MqttClient.open(port, "probe")
            client.close()
            return
        if process.poll() is not None or time.monotonic() > deadline:
            said = out.read_text(errors="replace")
            raise RuntimeError(f"RabbitMQ did not come up: {said[-1000:]}")
        await asyncio.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process in order, or else at all, with what it started in its session."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class MqttClient(asyncio.Protocol):
    """One connection, MQTT 3.1.1, that does one thing at a time. Make it with `open`."""

    def __init__(self, name: str, clean: bool) -> None:
        self._name = name
        self._clean = clean
        self._transport: asyncio.Transport
        loop = asyncio.get_running_loop()
        self._up: asyncio.Future[None] = loop.create_future()
        self._done: asyncio.Future[None] = loop.create_future()
        self._rest = b""
        self._paused = False
        self._resume: Callable[[], None] = lambda: None
        self._take: Mapping[int, Callable[[bytes, int, int], None]] = {}
        self._after: Callable[[], None] = lambda: None

    @classmethod
    async def open(cls, port: int, name: str, *, clean: bool = True) -> Self:
        """Connect. Without `clean`, the session and its subscriptions last."""
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: cls(name, clean), "127.0.0.1", port)
        async with asyncio.timeout(10):
            await client._up
        return client

    def close(self) -> None:
        """Hang up, in order."""
        self._done.cancel()
        self._transport.write(b"\xe0\x00")
        self._transport.close()

    # Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._take = {CONNACK: self._greeted}
        flags = 0x02 if self._clean else 0x00
        body = _text("MQTT") + bytes([4, flags, 0, 0]) + _text(self._name)
        self._transport.write(_packet(0x10, body))

    def connection_lost(self, error: Exception | None) -> None:
        for future in (self._up, self._done):
            if not future.done():
                future.set_exception(error or ConnectionError("the broker hung up"))
                future.exception()  # nobody need wait for it

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._resume()

    def data_received(self, data: bytes) -> None:
        chunk = self._rest + data
        position, end, take = 0, len(chunk), self._take
        while position + 1 < end:
            # The length: seven bits a byte, the lowest first, the last byte below 128.
            size, shift, body = 0, 0, position + 1
            while body < end:
                byte = chunk[body]
                size |= (byte & 127) << shift
                shift += 7
                body += 1
                if byte < 128:
                    break
            else:
                break
            if chunk[body - 1] > 127 or body + size > end:
                break
            take[chunk[position]](chunk, body, body + size)
            position = body + size
        self._rest = chunk[position:]
        self._after()

    def _greeted(self, chunk: bytes, body: int, end: int) -> None:
        if chunk[body + 1] == 0:
            self._up.set_result(None)
        else:
            self._up.set_exception(ConnectionError(f"refused with code {chunk[body + 1]}"))

    # Publishing

    async def publish(self, topic: str, data: bytes, last: bytes, count: int, window: int) -> None:
        """Publish `count` messages with QoS 1, at most `window` unacknowledged, the last of them
        `last`; return when all are acknowledged."""
        size = len(topic) + 4 + len(data)
        opening = bytes([PUBLISH]) + _length(size) + _text(topic)
        between = data + opening
        block = max(BLOCK // len(between), 1)
        loop, write = asyncio.get_running_loop(), self._transport.write
        sent = acked = 0
        scheduled = False

        def send() -> None:
            nonlocal sent, scheduled
            scheduled = False
            room = min(acked + window, count) - sent
            if room > 0 and not self._paused:
                numbers = range(sent, sent + min(room, block))
                ids = [(number % 65535 + 1).to_bytes(2, "big") for number in numbers]
                sent += len(ids)
                write(b"".join((opening, between.join(ids), last if sent == count else data)))
                if room > block:
                    scheduled = True
                    loop.call_soon(send)

        def confirmed(chunk: bytes, body: int, end: int) -> None:
            nonlocal acked
            acked += 1

        def after() -> None:
            if acked == count and not self._done.done():
                self._done.set_result(None)
            elif not scheduled:
                send()

        if len(last) != len(data):
            raise ValueError("the last message has another length")
        self._take, self._after, self._resume = {PUBACK: confirmed}, after, send
        send()
        async with asyncio.timeout(PATIENCE):
            await self._done
        self._done = loop.create_future()
        self._resume = self._after = lambda: None

    # Consuming

    async def consume(
        self,
        topic: str,
        handler: Callable[[str, int, bytes], object],
        ready: Callable[[], None],
        *,
        last: Callable[[bytes], bool],
    ) -> None:
        """Call `handler(topic, number, data)` for each message, and acknowledge it behind that,
        until one is the last."""
        acks: list[bytes] = []
        number = 0

        def subscribed(chunk: bytes, body: int, end: int) -> None:
            if chunk[end - 1] != 1:
                self._done.set_exception(ConnectionError("QoS 1 was not granted"))
            ready()

        def received(chunk: bytes, body: int, end: int) -> None:
            nonlocal number
            start = body + 2 + (chunk[body] << 8) + chunk[body + 1]
            number += 1
            data = chunk[start + 2 : end]
            handler(chunk[body + 2 : start].decode(), number, data)
            acks.append(chunk[start : start + 2])
            if last(data) and not self._done.done():
                self._done.set_result(None)

        def after() -> None:
            if acks:
                self._transport.write(b"".join(b"\x40\x02" + ack for ack in acks))
                acks.clear()

        # A message that comes again, or that the broker kept, has another first byte.
        again = {PUBLISH | flag: received for flag in (0, 1, 8, 9)}
        self._take, self._after = {SUBACK: subscribed, **again}, after
        self._transport.write(_packet(0x82, b"\x00\x01" + _text(topic) + b"\x01"))
        await self._done


def _text(text: str) -> bytes:
    return len(text.encode()).to_bytes(2, "big") + text.encode()


def _length(size: int) -> bytes:
    out = bytearray()
    while True:
        size, low = divmod(size, 128)
        out.append(low | (128 if size else 0))
        if not size:
            return bytes(out)


def _packet(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + _length(len(body)) + body


async def run(port: int, topic: str, data: bytes, last: bytes, count: int, window: int) -> float:
    """Publish `count` messages to a consumer in a process of its own, which calls a function for
    each; return the seconds until the last was handled and all were acknowledged."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.function_mqtt", str(port), topic, last[:21].decode(),
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            await child.stdout.readline()  # it is subscribed
            client = await MqttClient.open(port, f"{topic}-producer")
            began = time.monotonic_ns()
            await client.publish(topic, data, last, count, window)
            acknowledged = time.monotonic_ns()
            handled, calls = map(int, (await child.stdout.readline()).split())
            client.close()
            await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if calls < count:
        raise RuntimeError(f"{calls} messages were handled, not {count}")
    return (max(handled, acknowledged) - began) / 1e9


async def _consume(port: int, topic: str, mark: bytes) -> None:
    """The consumer's process."""
    stamps: list[int] = []

    def handler(topic: str, number: int, data: bytes) -> None:
        stamps.append(time.monotonic_ns())

    client = await MqttClient.open(port, f"{topic}-consumer", clean=False)
    await client.consume(
        topic, handler, lambda: print("ready", flush=True), last=lambda d: d.startswith(mark)
    )
    print(stamps[-1], len(stamps), flush=True)
    client.close()
    # A session that lasts keeps its queue: take it away with a clean one of the same name.
    (await MqttClient.open(port, f"{topic}-consumer")).close()


if __name__ == "__main__":
    uvloop.run(_consume(int(sys.argv[1]), sys.argv[2], sys.argv[3].encode()))
