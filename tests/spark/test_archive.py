"""Archives filled by Spark: rows exact, whatever is cut short, and read together with topics."""

from __future__ import annotations

import asyncio
import shutil
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

import skerry.spark
from skerry import Client, errors
from skerry.archive.delta import DeltaArchive
from skerry.archive.folder import Archive, TableFormat, check_target
from skerry.archive.run import Archiver, Batch
from skerry.archive.table import open_table
from skerry.testing import LocalFabric, LocalSite
from tests.conftest import until
from tests.spark.conftest import PATIENCE
from tests.spark.test_stream import fill, run


class Keeper:
    """Archives topics of a site into a folder, in this process."""

    def __init__(self, spark: Any, site: LocalSite, folder: Path, table: TableFormat) -> None:
        self.spark, self.site, self.folder, self.table = spark, site, folder, table
        self.topics, self.payload = "s/#", "binary"

    def make(self, ddl: str | None = None) -> Archiver:
        """An archiver that is ready to start."""
        skerry.spark.register(self.spark)
        held = check_target(self.folder, self.topics, self.table, self.payload)
        archive = held or Archive.create(self.folder, self.topics, self.table, self.payload)
        archiver = Archiver(self.spark, archive, {"data": str(self.site.data)})
        archiver.prepare(ddl)
        return archiver

    def once(self, ddl: str | None = None, archiver: Archiver | None = None) -> list[Batch]:
        """Archive what there is."""
        archiver = archiver or self.make(ddl)
        archiver.start(once=True, trigger=1.0)
        try:
            return list(archiver.batches(lambda: False))
        finally:
            archiver.stop()

    def history(self, topic: str | None = None, **options: Any) -> Any:
        """The table of archive and topics."""
        skerry.spark.register(self.spark)
        options.setdefault("data", str(self.site.data))
        return skerry.spark.history(self.spark, topic, archive=self.folder, **options)

    def rows(self, *columns: str, **options: Any) -> list[tuple[Any, ...]]:
        """What the history has, sorted."""
        return sorted(tuple(row) for row in self.history(**options).select(*columns).collect())

    def undo_commit(self) -> None:
        """Make Spark forget that its last batch is done, as a kill right before would."""
        last = max(int(f.name) for f in (self.folder / "_skerry/checkpoint/commits").glob("[0-9]*"))
        (self.folder / "_skerry/checkpoint/commits" / str(last)).unlink()
        (self.folder / f"_skerry/checkpoint/commits/.{last}.crc").unlink(missing_ok=True)


@pytest.fixture(params=["delta", "parquet"])
def table(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def keeper(spark: Any, site: LocalSite, tmp_path: Path, table: TableFormat) -> Keeper:
    return Keeper(spark, site, tmp_path / "archive", table)


@pytest.fixture
def delta(spark: Any, site: LocalSite, tmp_path: Path) -> Keeper:
    """One in Delta, for what does not depend on the format."""
    return Keeper(spark, site, tmp_path / "archive", "delta")


async def stored(client: Client, *topics: str) -> list[tuple[Any, ...]]:
    """What the topics hold, as rows."""
    found: list[tuple[Any, ...]] = []
    for topic in topics:
        async for e in client.read(topic):
            below = e.topic.removeprefix(topic).lstrip("/") or None
            found.append((topic, e.index, e.time, e.key, e.headers or {}, e.data, below))
    return sorted(found, key=lambda row: row[:2])


def as_stored(rows: list[Any]) -> list[tuple[Any, ...]]:
    """Rows of Spark in the same form."""
    return [(t, i, w.astimezone(UTC), k, h, bytes(v), s) for t, i, w, k, h, v, s in rows]


ALL = ("topic", "index", "time", "key", "headers", "value", "sub_topic")


def collected(frame: Any) -> list[tuple[Any, ...]]:
    rows = [tuple(row) for row in frame.select(*ALL).collect()]
    return sorted(as_stored(rows), key=lambda row: row[:2])


async def test_archive_and_history_equal_the_topics_row_by_row(
    client: Client, keeper: Keeper
) -> None:
    await client.create_topic("s/a")
    await client.create_topic("s/b")
    for n in range(300):
        await client.publish("s/a", b"\xff%d" % n, key=f"k{n % 7}", headers={"n": str(n)})
    await fill(client, "s/b/deep/er", 0, 200)
    (batch,) = await run(keeper.once)
    assert (batch.batch, batch.rows, batch.behind) == (0, 500, 0)
    expected = await stored(client, "s/a", "s/b")
    assert await run(lambda: collected(keeper.history(live=False))) == expected
    # What is published later is above the boundary, until it is archived as well.
    await fill(client, "s/b", 0, 50)
    await client.create_topic("s/c")
    await fill(client, "s/c", 0, 5)
    expected = await stored(client, "s/a", "s/b", "s/c")
    assert await run(lambda: collected(keeper.history())) == expected
    assert len(await run(lambda: collected(keeper.history(live=False)))) == 500
    (batch,) = await run(keeper.once)
    assert batch.rows == 55
    assert await run(lambda: collected(keeper.history(live=False))) == expected
    assert await run(lambda: collected(keeper.history())) == expected
    assert len(await run(lambda: collected(keeper.history("s/b/deep")))) == 200
    wrong = await run(lambda: keeper.history().where("date <> to_date(time)").count())
    assert wrong == 0


async def test_an_archive_goes_on_when_its_topic_moves_and_fails_over(
    spark: Any, tmp_path: Path
) -> None:
    async with (
        LocalFabric(["hub", "farm", "lab"]) as fabric,
        fabric.connect("hub") as client,
        fabric.connect("hub", "admin") as admin,
    ):
        await client.create_topic("s/a", home="farm", replicas=2, ack="quorum")
        keeper = Keeper(spark, fabric["hub"], tmp_path / "archive", "delta")
        await fill(client, "s/a", 0, 100)
        await run(keeper.once)
        await admin.move_topic("s/a", "lab")
        await fill(client, "s/a", 100, 200)
        await run(keeper.once)
        await fill(client, "s/a", 200, 300)  # is in nobody's archive when the home is lost
        await fabric.crash("lab")
        await fill(client, "s/a", 300, 400)
        assert (await client.topic("s/a")).home != "lab"
        expected = await stored(client, "s/a")
        assert [int(row[5]) for row in expected] == list(range(400))
        assert await run(lambda: collected(keeper.history())) == expected
        await run(keeper.once)
        assert await run(lambda: collected(keeper.history(live=False))) == expected


async def test_an_archive_is_compacted_while_it_runs(client: Client, delta: Keeper) -> None:
    await client.create_topic("s/a")
    await fill(client, "s/a", 0, 100)
    archiver = await run(delta.make)
    await run(archiver.start, once=False, trigger=0.1)
    counts: list[int] = []

    def follow() -> None:
        for batch in archiver.batches(lambda: sum(counts) >= 600):
            counts[:] = [*counts, batch.rows]

    async def beyond(count: int) -> None:
        await until(lambda: sum(counts) >= count, PATIENCE)

    following = asyncio.create_task(run(follow))
    try:
        for n in range(1, 6):
            await beyond(100 * n)
            table = open_table(Archive.open(delta.folder))
            assert isinstance(table, DeltaArchive)
            await run(table.compact, 2**20, 7 * 86400.0)
            await fill(client, "s/a", 100 * n, 100 * n + 100)
        await following
    finally:
        await run(archiver.stop)
    assert await run(lambda: collected(delta.history(live=False))) == await stored(client, "s/a")


async def test_history_is_whole_while_publishing_and_archiving_go_on(
    client: Client, keeper: Keeper
) -> None:
    await client.create_topic("s/a")
    ended = False

    async def publish() -> int:
        sent = 0
        async with client.publisher("s/a") as publisher:
            while not ended:
                await publisher.send(b"%d" % sent)
                sent += 1
                if sent % 50 == 0:
                    await asyncio.sleep(0.05)
        return sent

    publishing = asyncio.create_task(publish())
    archiver = await run(keeper.make)
    try:
        await run(lambda: archiver.start(once=False, trigger=0.2))
        seen = 0
        for _ in range(6):
            (row,) = await run(
                lambda: (
                    keeper.history()
                    .selectExpr("count(1)", "count(distinct index)", "min(index)", "max(index)")
                    .collect()
                )
            )
            assert row[0] == row[1] == row[3]
            assert row[3] >= seen
            seen = row[3]
    finally:
        ended = True
        sent = await publishing
        await run(archiver.stop)
    assert seen > 0
    await run(keeper.once)
    assert await run(keeper.rows, "index", live=False) == [(n,) for n in range(1, sent + 1)]


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_batch_that_is_cut_short_is_there_once(
    client: Client, keeper: Keeper, moment: str
) -> None:
    """`before`: files are written and the table's commit is not; `after`: that is, Spark's not."""
    await client.create_topic("s/a")
    await fill(client, "s/a", 0, 100)
    await run(keeper.once)
    await fill(client, "s/a", 100, 200)
    if moment == "before":
        archiver = await run(keeper.make)
        archiver._table.commit = _fail
        with pytest.raises(errors.SkerryError, match="the archive failed: boom"):
            await run(lambda: keeper.once(archiver=archiver))
    else:
        await run(keeper.once)
        await run(keeper.undo_commit)
    await fill(client, "s/a", 200, 250)
    await run(keeper.once)
    assert await run(keeper.rows, "index", live=False) == [(n,) for n in range(1, 251)]
    # Also for readers that know nothing of the list of files.
    plain = await run(lambda: keeper.spark.read.parquet(str(keeper.folder)).count())
    assert plain == 250


def _fail(batch: int, files: Any) -> bool:
    raise RuntimeError("boom")


async def test_columns_may_be_added_and_not_changed(client: Client, keeper: Keeper) -> None:
    await client.create_topic("s/a")
    keeper.payload = "json"
    await client.publish("s/a", '{"degrees": 1.5, "unit": "C"}')
    await client.publish("s/a", "no json")
    await run(keeper.once, "degrees DOUBLE")
    await client.publish("s/a", '{"degrees": 2.5, "unit": "F"}')
    await run(keeper.once, "degrees DOUBLE, unit STRING")
    await client.publish("s/a", '{"degrees": 3.5, "unit": "K"}')
    rows = await run(keeper.rows, "index", "degrees", "unit", "value")
    assert [row[:3] for row in rows] == [
        (1, 1.5, None),
        (2, None, None),
        (3, 2.5, "F"),
        (4, 3.5, "K"),
    ]
    assert bytes(rows[1][3]) == b"no json"
    for ddl, why in [
        ("degrees STRING", "has degrees as double, not string"),
        ("key STRING", "cannot be called 'key'"),
        ("degrees DOUBEL", "cannot be read"),
    ]:
        with pytest.raises(errors.BadSetting, match=why):
            await run(keeper.make, ddl)
    (batch,) = await run(keeper.once)  # the fields are known
    assert batch.rows == 1


async def test_a_topic_that_was_deleted_is_in_the_archive_still(
    client: Client, admin: Client, delta: Keeper
) -> None:
    await client.create_topic("s/a", max_events=15)
    await fill(client, "s/a", 0, 10)
    await run(delta.once)
    await admin.delete_topic("s/a")
    assert len(await run(delta.rows, "index")) == 10
    # One made anew is another: its events are no continuation.
    await client.create_topic("s/a")
    await fill(client, "s/a", 0, 20)
    with pytest.raises(Exception, match="is not the one that was archived up to index 10"):
        await run(delta.rows, "index")
    assert len(await run(lambda: delta.rows("index", live=False))) == 10


async def test_a_gap_between_archive_and_topic_is_an_error(client: Client, delta: Keeper) -> None:
    await client.create_topic("s/a", max_events=15)
    await fill(client, "s/a", 0, 10)
    await run(delta.once)
    await fill(client, "s/a", 10, 40)
    with pytest.raises(Exception, match="events 11 to 25 of s/a aged out"):
        await run(delta.rows, "index")
    with pytest.raises(errors.AgedOut, match="events 11 to 25 of s/a aged out"):
        await run(delta.once)


async def test_the_archive_of_a_part_does_not_speak_for_the_rest(
    client: Client, delta: Keeper
) -> None:
    await client.create_topic("s")
    await fill(client, "s/a", 0, 10)
    await fill(client, "s/b", 0, 10)
    await fill(client, "s/a", 0, 10)
    delta.topics = "s/a"
    await run(delta.once)
    await fill(client, "s/a", 0, 5)
    await fill(client, "s/b", 0, 5)
    expected = [(n,) for n in [*range(1, 11), *range(21, 31), *range(31, 36)]]
    assert await run(delta.rows, "index") == expected
    with pytest.raises(errors.BadSetting, match="an archive of s/a, a part of the topic s"):
        await run(delta.history, "s")


async def test_an_archive_without_its_checkpoint_is_not_begun_anew(
    client: Client, delta: Keeper
) -> None:
    await client.create_topic("s/a")
    await fill(client, "s/a", 0, 10)
    await run(delta.once)
    shutil.rmtree(delta.folder / "_skerry" / "checkpoint")
    with pytest.raises(errors.FolderCorrupt, match=r"the checkpoint in .* is gone"):
        await run(delta.once)


async def test_filters_reach_files_and_logs(client: Client, delta: Keeper) -> None:
    await client.create_topic("s/a")
    await client.create_topic("s/b")
    await fill(client, "s/a", 0, 30)
    await run(delta.once)
    await fill(client, "s/a", 30, 60)
    await fill(client, "s/b", 0, 10)

    def found(condition: str) -> list[int]:
        frame = delta.history().where(condition).select("index")
        return sorted(row[0] for row in frame.collect())

    assert await run(found, "topic = 's/a' AND index BETWEEN 25 AND 35") == list(range(25, 36))
    assert await run(found, "topic = 's/b'") == list(range(1, 11))
    assert await run(found, "time > '2100-01-01'") == []
    assert await run(found, "index > 55 AND date < '2100-01-01'") == list(range(56, 61))
