"""Makes chains of segments by hand, as a site's agent does."""

from __future__ import annotations

from typing import Any

from skerry import Client
from skerry.engine.jetstream import JetStream
from skerry.log.segments import (
    CHAIN,
    Chain,
    Segment,
    chain_of,
    delete_consumer,
    listing,
    make_consumer,
    segment_at,
)
from skerry.model.event import parse_headers
from skerry.model.names import segment_of_stream, stream_of
from tests.conftest import until


class ChainByHand:
    """The log of `topic` at the site of `admin`, an administrator's client."""

    def __init__(self, admin: Client, topic: str) -> None:
        self.jetstream = JetStream(admin._open.connection)
        self.topic = topic

    async def chain(self) -> Chain:
        """As the signpost lists it."""
        info = await self.info(stream_of(self.topic))
        return chain_of(self.topic, info)

    async def info(self, stream: str) -> dict[str, Any]:
        """What the engine says of a stream."""
        return await self.jetstream.call(f"STREAM.INFO.{stream}")

    async def roll(self, end: int | None = None) -> None:
        """Freeze the active segment, and go on in a new one behind index `end` (default: the last).
        What the frozen one holds beyond that is not part of the history."""
        await self.freeze_and_list(end)
        for segment in (await self.chain())[:-1]:
            await self._move_consumers(segment.stream, segment.last)

    async def freeze_and_list(self, end: int | None = None) -> None:
        """The same, and nobody is told."""
        chain = await self.chain()
        config = await self._freeze(chain[-1].stream)
        last = (await self.info(chain[-1].stream))["state"]["last_seq"]
        end = last if end is None else end
        number = _number(chain[-1].stream) + 1
        fresh = {**config, "name": stream_of(self.topic, number)}
        await self.jetstream.call(f"STREAM.CREATE.{fresh['name']}", fresh)
        await self.jetstream.call(f"STREAM.PURGE.{fresh['name']}", {"seq": end + 1})
        await self.write([*((_number(s.stream), s.first) for s in chain), (number, end + 1)])

    async def weld(self) -> None:
        """Have all segments in one new stream, and empty or delete the others. Events of the first
        one keep their times; what it held beyond its end is gone."""
        chain = await self.chain()
        config = await self._freeze(chain[-1].stream)
        number = _number(chain[-1].stream) + 1
        name = stream_of(self.topic, number)
        transform = {"src": "w.>", "dest": "e.>"}
        filling = {**config, "name": name, "subjects": ["w.>"], "subject_transform": transform}
        await self._begin_with(chain[0], name, config)
        await self.jetstream.call(f"STREAM.UPDATE.{name}", filling)
        for segment in chain[1:]:
            state = (await self.info(segment.stream))["state"]
            for index in range(state["first_seq"], min(state["last_seq"], segment.last) + 1):
                await self._copy(segment.stream, index)
        await self.jetstream.call(f"STREAM.UPDATE.{name}", {**config, "name": name})
        await self.write([(number, 1)])
        for segment in chain:
            await self._move_consumers(segment.stream, segment.last)
        await self.empty(chain)

    async def _begin_with(self, segment: Segment, name: str, config: dict[str, Any]) -> None:
        """Have a new stream that mirrors a segment up to its end."""
        last = (await self.info(segment.stream))["state"]["last_seq"]
        for index in range(segment.last + 1, last + 1):
            await self.jetstream.call(f"STREAM.MSG.DELETE.{segment.stream}", {"seq": index})
        left_out = ("subjects", "republish", "subject_transform")
        kept = {key: value for key, value in config.items() if key not in left_out}
        mirror = {**kept, "name": name, "mirror": {"name": segment.stream}}
        await self.jetstream.call(f"STREAM.CREATE.{name}", mirror)
        count = (await self.info(segment.stream))["state"]["messages"]

        async def has_all() -> bool:
            return bool((await self.info(name))["state"]["messages"] == count)

        await until(has_all)

    async def empty(self, chain: Chain) -> None:
        """Remove what segments hold."""
        for segment in chain:
            call = "PURGE" if segment.stream == stream_of(self.topic) else "DELETE"
            await self.jetstream.call(f"STREAM.{call}.{segment.stream}")

    async def write(self, places: list[tuple[int, int]]) -> None:
        """Have the signpost list a chain."""
        name = stream_of(self.topic)
        config = (await self.info(name))["config"]
        metadata = {**config["metadata"], CHAIN: listing(places)}
        await self.jetstream.call(f"STREAM.UPDATE.{name}", {**config, "metadata": metadata})

    async def consumers(self) -> dict[str, list[str]]:
        """The names of the durable consumers of each segment."""
        return {
            segment.stream: [
                info["name"]
                for info in await self.jetstream.consumers(segment.stream)
                if info["config"].get("durable_name")
            ]
            for segment in await self.chain()
        }

    async def _freeze(self, stream: str) -> dict[str, Any]:
        """Have a segment take nothing more; return what it was like."""
        config: dict[str, Any] = (await self.info(stream))["config"]
        frozen = {**config, "subjects": [f"_frozen.{stream}"]}
        await self.jetstream.call(f"STREAM.UPDATE.{stream}", frozen)
        return config

    async def _copy(self, stream: str, index: int) -> None:
        found = await self.jetstream.ask(f"$JS.API.DIRECT.GET.{stream}", b'{"seq":%d}' % index)
        subject = parse_headers(found.head)["Nats-Subject"]
        stored = await self.jetstream.ask("w" + subject.removeprefix("e"), found.data)
        assert b'"seq":%d' % index in stored.data.replace(b" ", b""), stored.data

    async def _move_consumers(self, stream: str, end: int) -> None:
        """Remove the consumers of a stream; make durable ones anew where they go on."""
        for info in await self.jetstream.consumers(stream):
            name, config = info["name"], info["config"]
            index = min(info["ack_floor"]["stream_seq"], end) + 1
            place = segment_at(await self.chain(), index).stream
            durable = bool(config.get("durable_name"))
            if durable and place != stream:
                await make_consumer(self.jetstream, place, name, config, index)
            await delete_consumer(self.jetstream, stream, name)
            if durable and place == stream:
                await make_consumer(self.jetstream, place, name, config, index)


def _number(stream: str) -> int:
    found = segment_of_stream(stream)
    assert found is not None
    return found[1]
