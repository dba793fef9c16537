"""What an archive is made of, without Spark: tables, files, folders, slices."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from skerry import errors
from skerry.archive import files as parts
from skerry.archive import manifest
from skerry.archive.delta import DeltaArchive
from skerry.archive.files import Parts
from skerry.archive.folder import Archive, check_target, holder
from skerry.archive.replay import Slice, chosen, count_events, event_id, events, groups, target_name
from skerry.archive.table import DataFile, Table, open_table
from skerry.cli.sql import view_name
from skerry.spark.columns import TYPES

SCHEMA = pa.schema(list(TYPES.items()))
TABLE = SCHEMA.append(pa.field("date", pa.date32()))
MIDNIGHT = datetime(2026, 11, 16, tzinfo=UTC)


def rows(topic: str, first: int, last: int, sub: str | None = None) -> pa.RecordBatch:
    """Events with one a second; index 100 is at midnight."""
    indexes = list(range(first, last + 1))
    count = len(indexes)
    return pa.RecordBatch.from_pydict(
        {
            "topic": [topic] * count,
            "sub_topic": [sub] * count,
            "index": indexes,
            "time": [MIDNIGHT + timedelta(seconds=n - 100) for n in indexes],
            "key": [f"k{n % 3}" for n in indexes],
            "headers": [[("unit", "C")] if n % 2 else [] for n in indexes],
            "publisher": ["p"] * count,
            "value": [b"%d" % n for n in indexes],
        },
        schema=SCHEMA,
    )


def written(root: Path, batch: int, *batches: pa.RecordBatch, task: int = 0) -> list[DataFile]:
    """What a task writes of these rows."""
    made = Parts(root, f"part-{batch:08d}-{task:04d}", "1")
    for one in batches:
        made.add(one)
    return made.close()


@pytest.fixture(params=["delta", "parquet"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Table]:
    """Opens the table of one archive, anew each time."""
    archive = Archive.create(tmp_path / "a", "t", request.param, "binary")
    archive.save()

    def opened() -> Table:
        table = open_table(archive)
        table.prepare(TABLE)
        return table

    return opened


def content(root: Path, files: Any) -> list[tuple[str, int]]:
    """Topic and index of every row."""
    return sorted(
        (file.topic, index)
        for file in files
        for index in pq.ParquetFile(root / file.path).read(columns=["index"])["index"].to_pylist()
    )


def test_a_table_takes_a_batch_once_and_keeps_its_snapshots(
    make: Callable[[], Table], tmp_path: Path
) -> None:
    root, table = tmp_path / "a", make()
    assert (table.last_batch(), table.snapshot().files) == (-1, ())
    assert table.commit(0, written(root, 0, rows("a/b", 1, 10), rows("c", 1, 5)))
    before = table.snapshot()
    assert not table.commit(0, written(root, 0, rows("a/b", 1, 10), rows("c", 1, 5)))
    assert not make().commit(0, written(root, 0, rows("a/b", 1, 10)))
    assert make().commit(3, written(root, 3, rows("a/b", 11, 20)))
    assert not table.commit(2, ())
    after = table.snapshot()
    assert table.last_batch() == make().last_batch() == 3
    assert (before.boundaries(), after.boundaries()) == ({"a/b": 10, "c": 5}, {"a/b": 20, "c": 5})
    assert after == make().snapshot()
    assert content(root, after.files) == [
        *(("a/b", n) for n in range(1, 21)),
        *(("c", n) for n in range(1, 6)),
    ]
    assert content(root, before.files) == [*(("a/b", n) for n in range(1, 11)),
                                           *(("c", n) for n in range(1, 6))]  # fmt: skip


def test_many_commits_leave_few_files_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "FULL", 4)
    table = manifest.ManifestTable(tmp_path)
    table.prepare(TABLE)
    file = written(tmp_path, 0, rows("t", 1, 3))[0]
    for batch in range(23):
        table.commit(batch, [msgspec.structs.replace(file, path=str(batch))])
        assert [f.path for f in table.snapshot().files] == [str(n) for n in range(batch + 1)]
    assert len(list((tmp_path / "_skerry" / "commits").iterdir())) <= 9


def test_a_file_has_one_topic_and_one_day(tmp_path: Path) -> None:
    both = pa.Table.from_batches([rows("a", 98, 102), rows("b", 99, 100)]).combine_chunks()
    files = written(tmp_path, 7, both.to_batches()[0])
    assert sorted((f.topic, f.date, f.first, f.last, f.rows) for f in files) == [
        ("a", "2026-11-15", 98, 99, 2),
        ("a", "2026-11-16", 100, 102, 3),
        ("b", "2026-11-15", 99, 99, 1),
        ("b", "2026-11-16", 100, 100, 1),
    ]
    for file in files:
        assert file.path.startswith(f"topic={file.topic}/date={file.date}/part-00000007-0000-")
        assert (tmp_path / file.path).stat().st_size == file.bytes
        assert file.since <= file.until
        assert file.since.date() == date.fromisoformat(file.date)


def test_a_batch_that_is_written_again_replaces_what_it_wrote(tmp_path: Path) -> None:
    first = written(tmp_path, 1, rows("a", 1, 50))
    assert written(tmp_path, 1, rows("a", 1, 50)) == first
    cut_short = Parts(tmp_path, "part-00000002-0000", "1")
    cut_short.add(rows("a", 51, 60))
    cut_short._open["a", "2026-11-15"]._flush()
    assert len(list(tmp_path.rglob("*part*"))) == 2
    cut_short.discard()
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*part-*")] == [first[0].path]


def test_few_files_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "OPEN", 2)
    monkeypatch.setattr(parts, "GROUP_ROWS", 3)
    order = [rows(topic, n * 4 + 1, n * 4 + 4) for n in range(3) for topic in "abcd"]
    files = written(tmp_path, 0, *order)
    assert content(tmp_path, files) == [(t, n) for t in "abcd" for n in range(1, 13)]
    assert len({file.path for file in files}) == len(files) == 12


def test_delta_tables_are_compacted_and_other_readers_can_read_them(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    table = DeltaArchive(tmp_path, "x")
    table.prepare(TABLE)
    for batch in range(6):
        table.commit(batch, written(tmp_path, batch, rows("a/b", batch * 20 + 1, batch * 20 + 20)))
    before = table.snapshot()
    done = table.compact(2**27, 3600)
    after = table.snapshot()
    assert (done.files_before, done.files_after, done.removed) == (7, 2, 0)
    assert content(tmp_path, after.files) == content(tmp_path, before.files)
    assert after.boundaries() == before.boundaries()
    assert table.commit(6, written(tmp_path, 6, rows("a/b", 121, 125)))
    read = DeltaTable(str(tmp_path)).to_pyarrow_table()
    assert sorted(read["index"].to_pylist()) == list(range(1, 126))
    assert set(read["topic"].to_pylist()) == {"a/b"}


def test_columns_are_added_to_a_delta_table(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    table = DeltaArchive(tmp_path, "x")
    table.prepare(TABLE)
    table.commit(0, written(tmp_path, 0, rows("a", 1, 2)))
    table.prepare(TABLE.append(pa.field("degrees", pa.float64())))
    more = rows("a", 3, 3).append_column("degrees", pa.array([1.5]))
    table.commit(1, written(tmp_path, 1, more))
    read = DeltaTable(str(tmp_path)).to_pyarrow_table().sort_by("index")
    assert read["degrees"].to_pylist() == [None, None, 1.5]


# Folders


def test_what_speaks_against_a_folder_is_said_before_anything_is_written(tmp_path: Path) -> None:
    def refused(path: Path, why: str, topics: str = "t", table: str | None = None) -> None:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(errors.SkerryError, match=why):
            check_target(path, topics, table, None)
        assert sorted(tmp_path.rglob("*")) == before

    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    Archive.create(tmp_path / "mine", "sensors/#", "delta", "binary").save()
    refused(tmp_path / "file", "is a file")
    refused(tmp_path / "full", "something else than an archive")
    refused(tmp_path / "new", "no format 'orc'", table="orc")
    refused(tmp_path / "a[b]", "takes for a pattern")
    refused(tmp_path / "mine", "archive with topics sensors/#, not t")
    refused(tmp_path / "mine", "with format delta, not parquet", "sensors/#", "parquet")
    refused(tmp_path / "new", "# before its end", "#/a")
    with (
        pytest.raises(errors.FolderUnwritable, match="/proc/x cannot be written"),
        Archive.create(Path("/proc/x"), "t", "delta", "binary").locked(),
    ):
        pass
    assert check_target(tmp_path / "new", "t", None, None) is None
    found = check_target(tmp_path / "mine", "sensors/#", "delta", None)
    assert found is not None
    assert found.about.topics == "sensors/#"


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"{", errors.FolderCorrupt), (b"[]", errors.FolderCorrupt), (b'{"format": 9}',
     errors.FolderTooNew)],
)  # fmt: skip
def test_a_description_that_cannot_be_read(tmp_path: Path, content: bytes, kind: type) -> None:
    (tmp_path / "_skerry").mkdir()
    (tmp_path / "_skerry" / "archive.json").write_bytes(content)
    with pytest.raises(kind):
        Archive.open(tmp_path)


def test_a_folder_is_used_by_one_at_a_time_and_a_stale_lock_by_nobody(tmp_path: Path) -> None:
    archive = Archive.create(tmp_path, "t", "delta", "binary")
    assert holder(tmp_path) is None
    with archive.locked():
        assert holder(tmp_path) == os.getpid()
        assert stat.S_IMODE((tmp_path / "_skerry" / "lock").stat().st_mode) == 0o600
        with (
            pytest.raises(errors.FolderLocked, match=f"process {os.getpid()} archives"),
            archive.locked(),
        ):
            pass
    assert (tmp_path / "_skerry" / "lock").exists()
    assert holder(tmp_path) is None


# Replays


def test_a_slice_is_what_filtering_all_rows_gives(tmp_path: Path) -> None:
    """Random files, random slices, against the plainest way to do it."""
    chance = random.Random(3)
    held: list[DataFile] = []
    for topic, sub in [("s/a", None), ("s/b", "x"), ("s/b", "x/y"), ("r", None)]:
        first = 1000 * len(held) + 1
        for batch in range(4):
            size = chance.randint(1, 30)
            held += written(tmp_path, batch, rows(topic, first, first + size, sub), task=len(held))
            first += size + 1
    everything = [
        (topic, row)
        for file in held
        for row in pq.ParquetFile(tmp_path / file.path).read().to_pylist()
        for topic in [file.topic]
    ]
    for _ in range(60):
        topic = chance.choice(["s", "s/a", "s/b", "s/b/x", "s/b/x/y", "r", "z"])
        ends = [chance.choice([None, chance.randint(1, 4200)]) for _ in range(4)]
        since, until = ((e and MIDNIGHT + timedelta(seconds=e - 100)) or None for e in ends[2:])
        wanted = Slice(topic=topic, first=ends[0], last=ends[1], since=since, until=until)
        expected = []
        for log, row in everything:
            name = f"{log}/{row['sub_topic']}" if row["sub_topic"] else log
            fits = name == topic or name.startswith(topic + "/")
            fits &= ends[0] is None or row["index"] >= ends[0]
            fits &= ends[1] is None or row["index"] <= ends[1]
            fits &= since is None or row["time"] >= since
            fits &= until is None or row["time"] <= until
            if fits:
                expected.append((row["time"], log, row["index"]))
        files = chosen(held, wanted)
        found = [(e.time, e.topic, e.index) for e in events(tmp_path, files, wanted)]
        assert sorted(found) == sorted(expected)
        assert [time for time, _, _ in found] == sorted(time for time, _, _ in found)
        assert count_events(tmp_path, files, wanted) == len(expected)


def test_files_that_overlap_are_read_together_and_a_packed_event_once(tmp_path: Path) -> None:
    mixed = pa.concat_batches([rows("t", 41, 60), rows("t", 1, 20), rows("t", 20, 20)])
    held = [*written(tmp_path, 0, mixed), *written(tmp_path, 1, rows("t", 21, 40))]
    held += written(tmp_path, 2, rows("t", 61, 70))
    assert [len(group) for group in groups(held)] == [2, 1]
    wanted = Slice(topic="t")
    found = list(events(tmp_path, {"t": held}, wanted))
    assert [event.index for event in found] == list(range(1, 71))
    assert count_events(tmp_path, {"t": held}, wanted) == 70
    assert (found[0].key, found[0].headers, found[0].data) == ("k1", {"unit": "C"}, b"1")
    assert found[1].headers is None
    assert len({event_id("p", event) for event in found}) == 70


def test_what_is_below_a_topic_stays_below_its_target(tmp_path: Path) -> None:
    held = written(tmp_path, 0, rows("s", 1, 1, "a/b"), rows("s", 2, 2, "a"))
    wanted = Slice(topic="s/a")
    names = [target_name(e, wanted, "to") for e in events(tmp_path, {"s": held}, wanted)]
    assert names == ["to/b", "to"]


@pytest.mark.parametrize(
    ("topics", "name"),
    [("sensors/#", "sensors"), ("a/+/b", "a_b"), ("#", "events"), ("x-y/z", "x_y_z")],
)
def test_a_table_is_named_as_its_topics(topics: str, name: str) -> None:
    assert view_name(topics) == name
