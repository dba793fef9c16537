"""Many small records in one event: what a log costs per event is paid once for all of them.

A pack is one event with one index and one acknowledgement. Its payload is an array of maps in
MsgPack, or an Arrow IPC stream; the Spark source unpacks both into rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from skerry.errors import BadSetting, EventTooLarge, PublishFailed, get_extra
from skerry.log.append import Publisher

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["msgpack", "arrow"]

CONTENT_TYPES = {
    "msgpack": "application/msgpack",
    "arrow": "application/vnd.apache.arrow.stream",
}
CONTENT_TYPE = "Content-Type"


class Packer:
    """Publishes records, many to an event. Use it in an `async with` block.

    An event is sent when it holds `records`, or when its first record is `linger` seconds old.
    Leaving the block sends what is left and waits for every acknowledgement; until `flush` or that,
    a record may be in memory only. The order of records is kept; a pack that is too large for the
    engine is sent in halves.
    """

    def __init__(
        self,
        publisher: Publisher,
        format: Format,
        *,
        schema: pa.Schema | None = None,
        records: int = 1000,
        linger: float = 0.1,
    ) -> None:
        if format not in CONTENT_TYPES:
            raise BadSetting(f"a pack's format is 'msgpack' or 'arrow', not {format!r}")
        if records < 1 or not 0 < linger <= 60:
            raise BadSetting(
                "a pack holds 1 record or more and waits for up to 60 seconds",
                "Leave records and linger out, or give records=1000, linger=0.1.",
            )
        if schema is not None and format != "arrow":
            raise BadSetting("only packs in Arrow have a schema", "Leave it out.")
        self._publisher = publisher
        self._headers = {CONTENT_TYPE: CONTENT_TYPES[format]}
        self._encode = _msgpack if format == "msgpack" else _arrow(schema)
        self._most = records
        self._linger = linger
        self._records: list[Mapping[str, Any]] = []
        self._turn = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        try:
            if error[0] is None:
                await self.flush()
        finally:
            self.close()

    async def send(self, record: Mapping[str, Any]) -> None:
        """Add a record. Waits only for room in the publisher's window."""
        self._check()
        self._records.append(record)
        if len(self._records) >= self._most:
            await self._send()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._linger, self._on_time)

    async def flush(self) -> None:
        """Send what is left, and wait until everything is acknowledged."""
        if self._sending is not None:
            await self._sending
        self._check()
        await self._send()
        await self._publisher.flush()

    def close(self) -> None:
        """Stop at once; records that were not sent are dropped."""
        if self._timer is not None:
            self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()
        self._publisher.close()

    def _check(self) -> None:
        """Say what went wrong beside the caller, once."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise PublishFailed(f"a pack was not sent: {failure}") from failure

    def _on_time(self) -> None:
        self._timer = None
        self._sending = asyncio.create_task(self._send_quietly())

    async def _send_quietly(self) -> None:
        try:
            await self._send()
        except Exception as error:  # the next call says so
            self._failure = error
        finally:
            self._sending = None

    async def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        async with self._turn:
            records, self._records = self._records, []
            if records:
                await self._send_pack(records)

    async def _send_pack(self, records: list[Mapping[str, Any]]) -> None:
        try:
            await self._publisher.send(self._encode(records), headers=self._headers)
        except EventTooLarge:
            half = len(records) // 2
            if not half:
                raise
            await self._send_pack(records[:half])
            await self._send_pack(records[half:])


_msgpack = msgspec.msgpack.Encoder().encode


def _arrow(schema: pa.Schema | None) -> Any:
    try:
        import pyarrow as pa
    except ImportError:
        raise BadSetting("packs in Arrow need pyarrow", get_extra("spark")) from None

    def encode(records: list[Mapping[str, Any]]) -> bytes:
        batch = pa.RecordBatch.from_pylist(list(records), schema)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    return encode
