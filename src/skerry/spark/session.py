"""Spark sessions that are set up for Skerry."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from skerry.errors import BadSetting, EngineMissing, EngineUnfit, get_extra
from skerry.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEMORY = "1g"
"""The JVM's heap. A session without data takes 420 to 570 MB (measured)."""
BESIDE_HEAP = 400
"""MB that the JVM and one Python worker take besides the heap."""

_MEMORY = re.compile(r"(\d+)([mg])b?", re.IGNORECASE)
_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def session(
    name: str = "skerry",
    *,
    master: str | None = None,
    remote: str | None = None,
    memory: str = MEMORY,
    config: Mapping[str, Any] | None = None,
) -> SparkSession:
    """A Spark session in which `format("skerry")` is known; the one there is, if there is one.

    `master` is `local[*]` (all cores of this machine, the default), `local[2]`, or the URL of a
    cluster, `spark://host:7077`. `remote` is a Spark Connect server instead, `sc://host:15002`,
    which needs no Java here. `memory` is the heap of the driver, which in local mode does all the
    work. `config` adds settings of Spark's own and goes before ours. Raises `EngineMissing` if
    there is no Java, or no PySpark, and `EngineUnfit` if there is too little memory.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise EngineMissing(f"PySpark is not installed ({error})", get_extra("spark")) from None
    if remote is not None:
        if master is not None:
            raise BadSetting("master and remote both say where Spark runs", "Give one of them.")
        return register(_connect(name, remote, config or {}))
    if (active := SparkSession.getActiveSession()) is None:
        master = master or "local[*]"
        _check_memory(memory)
        # The JVM is started by PySpark, which looks nowhere else.
        os.environ["JAVA_HOME"] = str(find_java().home)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.appName(name).master(master)
        for key, value in {**settings(master, memory), **(config or {})}.items():
            builder = builder.config(key, str(value))
        active = builder.getOrCreate()
    return register(active)


def _connect(name: str, remote: str, config: Mapping[str, Any]) -> SparkSession:
    from pyspark.sql import SparkSession

    if importlib.util.find_spec("grpc") is None:
        raise EngineMissing(
            "Spark Connect needs gRPC, which is not installed",
            "Get it with `pip install 'pyspark[connect]'`.",
        )
    if not remote.startswith("sc://"):
        raise BadSetting(f"{remote!r} is no Spark Connect server", "Write sc://host:15002.")
    builder = SparkSession.builder.appName(name).remote(remote)
    for key, value in {"spark.sql.session.timeZone": "UTC", **config}.items():
        builder = builder.config(key, str(value))
    return builder.getOrCreate()


def register(spark: SparkSession) -> SparkSession:
    """Make `format("skerry")` known in a session that somebody else made; return it.

    To *write* from a thread of your own, call it there first: Spark looks for the formats that can
    be written in the session that is active in the calling thread, and in a new one none is.
    """
    from skerry.spark.source import SkerrySource

    spark.dataSource.register(SkerrySource)
    if (jvm := getattr(spark, "_jvm", None)) is not None:  # Spark Connect has none, nor the need
        jvm.SparkSession.setActiveSession(spark._jsparkSession)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    return spark


def settings(master: str, memory: str = MEMORY) -> dict[str, str]:
    """What a session is set to unless the caller says otherwise, and why."""
    cores = os.cpu_count() or 2
    log = Path(__file__).with_name("log4j2.properties").as_uri()
    found = {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log}",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        # A reader that takes filters fails without this.
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Times are stored in UTC; days begin there too, wherever the driver is.
        "spark.sql.session.timeZone": "UTC",
        # One Python for the driver and its workers.
        "spark.pyspark.python": sys.executable,
        # The only one that `transformWithState` takes.
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    }
    if master.startswith(("local", "spark://127.0.0.1", "spark://localhost")):
        # A machine's own name may lead anywhere, or nowhere.
        found |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if master.startswith("local"):
        found |= {
            "spark.ui.enabled": "false",
            # 200 tasks for some thousand rows take longer than the rows.
            "spark.sql.shuffle.partitions": str(cores),
            # Saves about 50 ms a batch (measured), and renames are atomic on a local disk.
            "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
        }
    return found


def _check_memory(memory: str) -> None:
    match = _MEMORY.fullmatch(memory)
    if match is None:
        raise BadSetting(f"{memory!r} is no amount of memory", "Write it as 800m or 2g.")
    need = int(match[1]) * (1024 if match[2].lower() == "g" else 1) + BESIDE_HEAP
    if need - BESIDE_HEAP < 450:
        raise EngineUnfit(
            f"a Spark session does not start with a heap of {memory}", "Give it 512m or more."
        )
    free = available_memory()
    if free < need:
        raise EngineUnfit(
            f"a Spark session with a heap of {memory} needs about {need} MB, and {free} MB are "
            "available",
            "Free some, give the session less with memory='600m', or use a cluster with master=….",
        )


def available_memory() -> int:
    """MB that a new process may use: what the machine has left, or the container's limit."""
    free = int(psutil.virtual_memory().available)
    folder = Path("/sys/fs/cgroup")
    try:
        limit = int((folder / "memory.max").read_text())
        free = min(free, limit - int((folder / "memory.current").read_text()))
    except (OSError, ValueError):
        pass  # no container, or no limit
    return free // 2**20
