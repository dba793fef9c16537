"""Spark's own servers on loopback, out of the wheel: a standalone cluster, and Spark Connect."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark

from skerry.spark.java import find_java
from tests.spark.conftest import QUICK

HOME = Path(pyspark.__file__).parent
DEADLINE = 100.0


@contextlib.contextmanager
def server(log: Path, *arguments: str, memory: str = "256m") -> Iterator[None]:
    """A class of Spark's that runs while the block does, with what it starts itself."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(log.parent),
        "SPARK_DAEMON_MEMORY": memory,
        "SPARK_DAEMON_JAVA_OPTS": QUICK,
        "PYSPARK_PYTHON": sys.executable,
    }
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(HOME / "bin" / "spark-class"), *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(log: Path, pattern: str) -> str:
    """Wait until a log says it; return the first group."""
    deadline = time.monotonic() + DEADLINE
    while not (match := re.search(pattern, log.read_text(errors="replace"))):
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.05)
    return match[1]


@contextlib.contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[str]:
    """A master with workers of one core each; yields its URL."""
    master = ("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0")
    worker = ("org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--port", "0")
    with contextlib.ExitStack() as up:
        log = folder / "master.log"
        up.enter_context(server(log, *master, "--webui-port", "0"))
        url = wait_for(log, r"Starting Spark master at (spark://[\d.]+:\d+)")
        logs = [folder / f"worker{n}.log" for n in range(workers)]
        for each in logs:
            options = ("--webui-port", "0", "--cores", "1", "--memory", "700m")
            up.enter_context(server(each, *worker, *options, url))
        for each in logs:
            wait_for(each, r"(Successfully registered with master)")
        yield url


@contextlib.contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """A Spark Connect server with two cores; yields its URL."""
    log = folder / "connect.log"
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
    }
    configs = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    submit = ["org.apache.spark.deploy.SparkSubmit", "--master", "local[2]"]
    submit += configs
    submit += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    with server(log, *submit, "spark-internal", memory="700m"):
        port = wait_for(log, r"Spark Connect server started at: [^\n]*:(\d+)")
        yield f"sc://127.0.0.1:{port}"
