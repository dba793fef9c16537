"""RabbitMQ with MQTT, the paper's comparison: a broker of our own, a producer and a consumer.

The broker runs on free ports of loopback with its files in a temporary folder, and ends with the
benchmark. QoS 1 to a session that lasts: messages go to a durable queue as persistent ones.
Prefetch is 1000 where the default is 10. Producer and consumer are bare (`bench.function_mqtt`) or
Paho's; the consumer is a process of its own that calls a Python function for each message.
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
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal

import paho.mqtt.client as paho
import uvloop
from paho.mqtt.enums import CallbackAPIVersion

from bench.function_mqtt import PATIENCE, MqttClient

Kind = Literal["bare", "paho"]
"""The clients: as fast as Python can be, or what people use."""
STARTING = 90.0
"""Seconds that the broker may take to listen; about ten is usual."""
MARK = 21
"""Bytes that the last message is known by."""


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
                process = subprocess.Popen(
                    command, env=environment, cwd=folder, start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                )  # fmt: skip
                processes.append(process)
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


async def run(
    kind: Kind, port: int, topic: str, data: bytes, last: bytes, count: int, window: int
) -> float:
    """Publish `count` messages, the last of them `last`; return the seconds until it was handled
    and all were acknowledged."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.function_rabbitmq", kind, str(port), topic,
        last[:MARK].decode(), stdout=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            await child.stdout.readline()  # it is subscribed
            if kind == "bare":
                client = await MqttClient.open(port, f"{topic}-producer")
                began = time.monotonic_ns()
                await client.publish(topic, data, last, count, window)
                acknowledged = time.monotonic_ns()
                client.close()
            else:
                began, acknowledged = await asyncio.to_thread(
                    _paho_publish, port, topic, data, last, count, window
                )
            handled, calls = map(int, (await child.stdout.readline()).split())
            await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if calls < count:
        raise RuntimeError(f"{calls} messages were handled, not {count}")
    return (max(handled, acknowledged) - began) / 1e9


def _paho_publish(
    port: int, topic: str, data: bytes, last: bytes, count: int, window: int
) -> tuple[int, int]:
    """Publish; return when that began and when all was acknowledged."""
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=f"{topic}-producer")
    client.max_inflight_messages_set(window)
    client.connect("127.0.0.1", port)
    client.loop_start()
    began = time.monotonic_ns()
    sent = [client.publish(topic, data, 1) for _ in range(count - 1)]
    sent.append(client.publish(topic, last, 1))
    for one in sent:
        one.wait_for_publish(PATIENCE)
    acknowledged = time.monotonic_ns()
    client.disconnect()
    client.loop_stop()
    return began, acknowledged


# The consumer's process


def _consume_with_paho(port: int, topic: str, mark: bytes) -> None:
    stamps: list[int] = []
    handler, done = _handler(stamps), threading.Event()

    def received(client: paho.Client, data: Any, message: paho.MQTTMessage) -> None:
        handler(message.topic, len(stamps) + 1, bytes(message.payload))
        if message.payload.startswith(mark):
            done.set()

    client = paho.Client(
        CallbackAPIVersion.VERSION2, client_id=f"{topic}-consumer", clean_session=False
    )
    client.on_message = received
    client.on_subscribe = lambda *_: print("ready", flush=True)
    client.connect("127.0.0.1", port)
    client.loop_start()
    client.subscribe(topic, 1)
    done.wait(PATIENCE)
    print(stamps[-1], len(stamps), flush=True)
    client.disconnect()
    client.loop_stop()


async def _consume_bare(port: int, topic: str, mark: bytes) -> None:
    stamps: list[int] = []
    client = await MqttClient.open(port, f"{topic}-consumer", clean=False)
    await client.consume(
        topic, _handler(stamps), lambda: print("ready", flush=True),
        last=lambda data: data.startswith(mark),
    )  # fmt: skip
    print(stamps[-1], len(stamps), flush=True)
    client.close()


def _handler(stamps: list[int]) -> Callable[[str, int, bytes], None]:
    """The function of the paper: it notes the time and returns."""

    def handler(topic: str, number: int, data: bytes) -> None:
        stamps.append(time.monotonic_ns())

    return handler


async def _consume(kind: str, port: int, topic: str, mark: bytes) -> None:
    if kind == "bare":
        await _consume_bare(port, topic, mark)
    else:
        await asyncio.to_thread(_consume_with_paho, port, topic, mark)
    # A session that lasts keeps its queue: a clean one of the same name takes it away.
    (await MqttClient.open(port, f"{topic}-consumer")).close()


if __name__ == "__main__":
    uvloop.run(_consume(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4].encode()))
