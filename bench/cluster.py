"""What one would use instead of a fabric against the loss of a server: a cluster of three
nats-servers, and a stream that JetStream itself keeps on all of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import nats
from nats.aio.client import Client as NatsClient
from nats.errors import Error as NatsError
from nats.js.api import StreamConfig, StreamInfo

from bench.fabric import until
from skerry.engine.binary import find_binary
from skerry.engine.process import free_port

STREAM = SUBJECT = "bench"
HOST = "127.0.0.1"
ANSWER = 0.1
"""Seconds that a publish waits for its acknowledgement before it is sent again."""
PAUSE = 0.005
"""Seconds before that if the answer was an error."""


class Cluster:
    """Three servers and a stream of three replicas."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._binary = str(find_binary()[0])
        self._ports = {name: free_port(HOST) for name in ("s1", "s2", "s3")}
        routes = {name: free_port(HOST) for name in self._ports}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for name, port in self._ports.items():
            conf = {
                "server_name": name,
                "listen": f"{HOST}:{port}",
                "jetstream": {"store_dir": str(root / name)},
                "cluster": {
                    "name": "bench",
                    "listen": f"{HOST}:{routes[name]}",
                    "routes": [f"nats://{HOST}:{route}" for route in routes.values()],
                },
            }
            (root / f"{name}.json").write_text(json.dumps(conf))

    async def open(self) -> None:
        """Start the servers and make the stream."""
        for name in self._ports:
            self.start(name)
        config = StreamConfig(name=STREAM, subjects=[SUBJECT], num_replicas=3)

        async def is_made() -> bool:
            with contextlib.suppress(NatsError, OSError):
                async with self.connect("s1") as client:
                    await client.jetstream().add_stream(config)
                    return True
            return False

        await until(is_made, "the cluster to make a stream")
        await self.settled()

    def start(self, name: str) -> None:
        """Start a server."""
        with (self._root / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [self._binary, "-c", str(self._root / f"{name}.json")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def kill(self, name: str) -> float:
        """Kill a server; return when that was."""
        process = self._processes[name]
        moment = time.monotonic()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        return moment

    def close(self) -> None:
        """Kill them all."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    @contextlib.asynccontextmanager
    async def connect(self, name: str) -> AsyncIterator[NatsClient]:
        """A client of one server, which looks for no other."""

        async def quiet(error: Exception) -> None:
            """What goes wrong is seen where it does."""

        client = await nats.connect(
            f"nats://{HOST}:{self._ports[name]}",
            connect_timeout=1,
            allow_reconnect=False,
            error_cb=quiet,
        )
        try:
            yield client
        finally:
            await client.close()

    async def info(self) -> StreamInfo:
        """The stream as whoever answers sees it."""
        async with self.connect("s1") as client:
            return await client.jetstream().stream_info(STREAM)

    async def settled(self) -> str:
        """Wait until the stream has a leader and all replicas are current; return the leader."""
        leader = ""

        async def is_settled() -> bool:
            nonlocal leader
            with contextlib.suppress(NatsError, OSError):
                cluster = (await self.info()).cluster
                leader = cluster.leader or "" if cluster else ""
                replicas = cluster.replicas or [] if cluster else []
                return bool(leader) and len(replicas) == 2 and all(
                    peer.current and not peer.offline for peer in replicas
                )  # fmt: skip
            return False

        await until(is_settled, "the cluster to settle")
        return leader

    def other(self, name: str) -> str:
        """Another server than `name`."""
        return next(other for other in self._ports if other != name)


async def publish(client: NatsClient, data: bytes, id: str) -> None:
    """Publish until it is acknowledged, every time with the same id."""
    stream = client.jetstream()
    while True:
        try:
            await stream.publish(SUBJECT, data, timeout=ANSWER, headers={"Nats-Msg-Id": id})
            return
        except TimeoutError:
            pass
        except NatsError:
            await asyncio.sleep(PAUSE)


@contextlib.asynccontextmanager
async def running_cluster() -> AsyncIterator[Cluster]:
    """A fresh cluster, in a temporary folder that is removed at the end."""
    root = Path(tempfile.mkdtemp(prefix="skerry-bench-"))
    cluster = Cluster(root)
    try:
        await cluster.open()
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(root, ignore_errors=True)
