"""Many records in one event."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest

import skerry
import skerry.sync
from skerry.errors import BadSetting, EventTooLarge, PublishFailed, UnknownTopic
from skerry.log.pack import Format
from skerry.model.event import Event
from skerry.testing import LocalSite
from tests.conftest import until

RECORDS = [{"sensor": f"s{n % 7}", "degrees": n / 2} for n in range(2500)]
SCHEMA = pa.schema([("sensor", pa.string()), ("degrees", pa.float64())])


def unpacked(event: Event) -> list[dict[str, Any]]:
    kind = event.headers["Content-Type"]
    if kind == "application/msgpack":
        return cast(list[dict[str, Any]], msgspec.msgpack.decode(event.data))
    assert kind == "application/vnd.apache.arrow.stream"
    return cast(list[dict[str, Any]], pa.ipc.open_stream(event.data).read_all().to_pylist())


async def packs(client: skerry.Client, topic: str = "t") -> list[list[dict[str, Any]]]:
    return [unpacked(event) async for event in client.read(topic)]


@pytest.mark.parametrize(
    ("format", "schema"), [("msgpack", None), ("arrow", None), ("arrow", SCHEMA)]
)
async def test_records_come_back_in_order(
    site: LocalSite, format: Format, schema: pa.Schema | None
) -> None:
    async with site.connect() as client:
        await client.create_topic("t")
        async with client.packer("t", format, schema=schema, linger=60) as packer:
            for record in RECORDS:
                await packer.send(record)
        found = await packs(client)
        assert [len(pack) for pack in found] == [1000, 1000, 500]
        assert [record for pack in found for record in pack] == RECORDS


async def test_a_pack_waits_no_longer_than_it_may(site: LocalSite) -> None:
    async with site.connect() as client:
        await client.create_topic("t")
        async with client.subscribe("t") as events, client.packer("t", linger=0.01) as packer:
            for record in RECORDS[:3]:
                await packer.send(record)
                async for event in events:
                    assert unpacked(event) == [record]
                    break


async def test_a_pack_that_is_too_large_is_sent_in_halves(site: LocalSite) -> None:
    async with site.connect() as client:
        await client.create_topic("t")
        most = client._open.connection.info.max_event
        records = [{"n": n, "text": "x" * (most // 8)} for n in range(30)]
        async with client.packer("t", records=30) as packer:
            for record in records:
                await packer.send(record)
        assert [record for pack in await packs(client) for record in pack] == records
        with pytest.raises(EventTooLarge):
            async with client.packer("t") as packer:
                await packer.send({"text": "x" * most})


async def test_what_goes_wrong_beside_the_caller_is_told(site: LocalSite) -> None:
    async with site.connect() as client:
        await client.create_topic("t")
        packer = client.packer("t", "arrow", schema=SCHEMA, linger=0.01)
        await packer.send({"sensor": "a", "degrees": "no number"})
        await until(lambda: packer._failure is not None)
        with pytest.raises(PublishFailed, match="no number"):
            await packer.flush()
        await packer.send({"sensor": "a", "degrees": 1.5})
        await packer.flush()
        packer.close()
        assert await packs(client) == [[{"sensor": "a", "degrees": 1.5}]]


async def test_bad_input_is_refused(site: LocalSite) -> None:
    async with site.connect() as client:
        for options in (
            {"format": "csv"}, {"records": 0}, {"linger": 0}, {"linger": 61}, {"schema": SCHEMA}
        ):  # fmt: skip
            with pytest.raises(BadSetting):
                client.packer("t", **options)
        with pytest.raises((UnknownTopic, PublishFailed)):
            async with client.packer("none") as packer:
                await packer.send({"a": 1})


async def test_the_synchronous_packer(site: LocalSite) -> None:
    await asyncio.to_thread(use, site.data)


def use(data: Path) -> None:
    with skerry.sync.connect(data) as client:
        client.create_topic("t")
        with client.packer("t", records=2) as packer:
            for record in RECORDS[:5]:
                packer.send(record)
        assert [unpacked(event) for event in client.read("t")] == [
            RECORDS[:2], RECORDS[2:4], RECORDS[4:5]
        ]  # fmt: skip
