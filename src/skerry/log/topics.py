"""Topics as streams: create, show, list, change, delete.

A topic owns its name and every name below it: `sensors` holds the events of `sensors/roof` too,
in one log with one index, and each sub-topic can be read alone. So no topic may lie inside another.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from skerry.config import DUPLICATE_WINDOW
from skerry.engine.jetstream import (
    STREAM_EXISTS,
    STREAM_NOT_FOUND,
    SUBJECTS_OVERLAP,
    ApiError,
    JetStream,
)
from skerry.errors import (
    DurabilityUnavailable,
    EngineUnfit,
    NotInFabric,
    TopicOverlap,
    UnknownTopic,
)
from skerry.model.demands import check_overlap, check_same
from skerry.model.names import (
    any_write_subject,
    check_topic,
    is_feed_log,
    stream_of,
    topic_of_stream,
    write_subject,
)
from skerry.model.topic import Durability, Topic, TopicSettings

NANO = 1_000_000_000

PLAIN_DELIVERY = {"src": "e.>", "dest": "t.>"}
"""Have the engine publish each stored event on `t.<topic>` as well."""


def delivery(name: str, home: str, deliver_plain: bool) -> dict[str, str] | None:
    """What the engine at a topic's home publishes beside storing: a feed log's events to those who
    subscribe by query, at whichever site; other topics' to plain clients of this site."""
    if is_feed_log(name):
        return {"src": "e.>", "dest": f"f.{home}.>"}
    return PLAIN_DELIVERY if deliver_plain else None


_OF_FABRICS = ("replicas", "prefer", "spread", "ack", "on_partition", "latency")
_SETTLED = ("subjects", "republish")
_DURABILITY = "skerry.durability"
_HOME = "skerry.home"


class Topics:
    """The topics whose home is one site."""

    def __init__(
        self,
        jetstream: JetStream,
        site: str,
        durability: Durability = "process",
        deliver_plain: bool = False,
    ) -> None:
        self._jetstream = jetstream
        self._site = site
        self._durability = durability
        self._deliver_plain = deliver_plain

    async def create(self, name: str, settings: TopicSettings) -> Topic:
        """Create a topic; a second creation with the same settings finds the first."""
        check_topic(name)
        self._check_durability(settings.check())
        _check_alone(settings)
        config = self._stream_config(name, settings)
        try:
            return topic_of(await self._jetstream.call(f"STREAM.CREATE.{stream_of(name)}", config))
        except ApiError as error:
            if error.code not in (SUBJECTS_OVERLAP, STREAM_EXISTS):
                raise
            is_there = error.code == STREAM_EXISTS
        if not is_there:
            others = await self._jetstream.stream_names()
            check_overlap(name, filter(None, map(topic_of_stream, others)))
            raise TopicOverlap(
                f"a stream on the engine that is no topic takes the subjects of {name}"
            )
        existing = await self.show(name)
        check_same(name, existing.settings, settings)
        return existing

    async def show(self, name: str) -> Topic:
        """One topic as it is now."""
        check_topic(name)
        info = await self._jetstream.stream(stream_of(name))
        if info is None:
            raise await self._unknown(name)
        return topic_of(info)

    async def list(self) -> list[Topic]:
        """All topics, by name."""
        return topics_of(await self._jetstream.streams())

    async def change(self, name: str, changes: dict[str, Any]) -> Topic:
        """Change some settings of a topic. Lower limits age out the oldest events at once."""
        topic = await self.show(name)
        settings = msgspec.structs.replace(topic.settings, **changes).check()
        self._check_durability(settings)
        _check_alone(settings)
        config = self._stream_config(name, settings)
        return topic_of(await self._jetstream.call(f"STREAM.UPDATE.{stream_of(name)}", config))

    async def delete(self, name: str) -> None:
        """Delete a topic with all its events and subscriptions."""
        check_topic(name)
        try:
            await self._jetstream.call(f"STREAM.DELETE.{stream_of(name)}")
        except ApiError as error:
            if error.code == STREAM_NOT_FOUND:
                raise await self._unknown(name) from None
            raise

    async def settle(self, streams: Iterable[dict[str, Any]]) -> None:
        """Have every topic among `streams` deliver to plain clients, or none, as this site does,
        and take events on today's subjects, whichever version made it."""
        for info in streams:
            if topic_of_stream(info["config"]["name"]):
                topic = topic_of(info)
                config = self._stream_config(topic.name, topic.settings)
                if any(config.get(key) != info["config"].get(key) for key in _SETTLED):
                    await self._jetstream.call(f"STREAM.UPDATE.{config['name']}", config)

    def _stream_config(self, name: str, settings: TopicSettings) -> dict[str, Any]:
        config = stream_config(self._site, name, settings)
        # One pattern for the SDK's events and for plain ones: when the engine starts, it compares
        # each subject of a log with those of all others (docs/adr/0003-plain-publish.md).
        subject = any_write_subject(self._site, name)
        config["subjects"] = [subject, f"{subject}.>"]
        told = delivery(name, self._site, self._deliver_plain)
        return {**config, "republish": told} if told else config

    def _check_durability(self, settings: TopicSettings) -> None:
        if settings.durability == "power" and self._durability != "power":
            raise DurabilityUnavailable(
                f"the topic demands durability 'power', and site {self._site} gives 'process'",
                "Start the site with `skerry up --durability power`, or create the topic without.",
            )

    async def _unknown(self, name: str) -> UnknownTopic:
        owners = await self._jetstream.stream_names(write_subject(self._site, name))
        if owner := next(filter(None, map(topic_of_stream, owners)), None):
            return UnknownTopic(
                f"{name} is a sub-topic of {owner}, not a topic of its own",
                f"Its settings are those of {owner}.",
            )
        return unknown_topic(name)


def _check_alone(settings: TopicSettings) -> None:
    """A site that stands alone cannot keep what needs others."""
    usual = TopicSettings()
    if any(getattr(settings, name) != getattr(usual, name) for name in _OF_FABRICS):
        raise NotInFabric(
            "replicas, homes elsewhere, latency bounds and levels of acknowledgement need a fabric",
            "Begin one with `skerry fabric init`, and let sites join it.",
        )


def unknown_topic(name: str) -> UnknownTopic:
    """The error for a topic that is not there."""
    return UnknownTopic(
        f"there is no topic {name}", f"Create it with `skerry topic create {name.split('/')[0]}`."
    )


def stream_config(site: str, name: str, settings: TopicSettings, epoch: int = 0) -> dict[str, Any]:
    """The stream that keeps the log of topic `name` with its home at `site`."""
    subject = write_subject(site, name, epoch)
    return {
        "name": stream_of(name),
        "subjects": [subject, f"{subject}.>"],
        "subject_transform": STORED,
        **log_config(settings),
        "metadata": {_HOME: site, _DURABILITY: settings.durability},
    }


STORED = {"src": "s.*.*.>", "dest": "e.>"}
"""From a write subject to the stored one. The engine looks at it when it stores an event, which may
wait for that while the log is frozen or gets another epoch: so it is the same for all of them, and
stays (2.15.1; else such an event is stored, and acknowledged, under its write subject)."""


def log_config(settings: TopicSettings) -> dict[str, Any]:
    """What the home and every copy of a log have in common. Copies remember ids too: the one that
    becomes the home must know what the publishers may send again."""
    return {
        "storage": "file",
        "retention": "limits",
        "discard": "old",
        "num_replicas": 1,
        "max_consumers": -1,
        "max_msgs": settings.max_events or -1,
        "max_bytes": settings.max_bytes or -1,
        "max_age": int((settings.max_age or 0) * NANO),
        "max_msg_size": settings.max_event_bytes or -1,
        "max_msgs_per_subject": settings.keep_last or -1,
        "duplicate_window": int(DUPLICATE_WINDOW * NANO),
        "allow_direct": True,
        "allow_msg_ttl": True,
    }


def topics_of(streams: Iterable[dict[str, Any]]) -> list[Topic]:
    """The topics among the engine's streams, by name."""
    topics = [topic_of(info) for info in streams if topic_of_stream(info["config"]["name"])]
    return sorted(topics, key=lambda topic: topic.name)


def topic_of(info: dict[str, Any]) -> Topic:
    """A topic from what the engine says of its stream."""
    config, state = info["config"], info["state"]
    name = topic_of_stream(config["name"])
    metadata = config.get("metadata", {})
    if name is None or _HOME not in metadata:
        raise EngineUnfit(
            f"the stream {config['name']} was not made by Skerry", "Rename or remove it."
        )
    settings = TopicSettings(
        max_events=_limit(config["max_msgs"]),
        max_bytes=_limit(config["max_bytes"]),
        max_age=config["max_age"] / NANO if config["max_age"] else None,
        max_event_bytes=_limit(config.get("max_msg_size", -1)),
        keep_last=_limit(config.get("max_msgs_per_subject", -1)),
        durability=metadata.get(_DURABILITY, "process"),
    )
    return Topic(
        name=name,
        home=metadata[_HOME],
        settings=settings,
        created=datetime.fromisoformat(info["created"]),
        events=state["messages"],
        bytes=state["bytes"],
        first_index=max(state["first_seq"], 1),
        latest_index=state["last_seq"],
        subscriptions=state.get("consumer_count", 0),
    )


def _limit(value: int) -> int | None:
    return value if value > 0 else None
