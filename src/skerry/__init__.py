"""Skerry: a geo-distributed publish/subscribe fabric. Topics are durable logs near their clients.

async with skerry.connect() as client:
    await client.create_topic("sensors")
    index = await client.publish("sensors/roof", "21.5")
"""

from typing import TYPE_CHECKING, Any

from skerry import errors
from skerry.client import Client, connect
from skerry.config import VERSION
from skerry.errors import SkerryError
from skerry.log.append import Publisher
from skerry.log.follow import Subscription
from skerry.log.pack import Packer
from skerry.model.event import Event
from skerry.model.feeds import Feed, Joined, Left, Missed, Received
from skerry.model.topic import Topic, TopicSettings

if TYPE_CHECKING:
    from skerry.spark.pipeline import pipeline

__version__ = VERSION

__all__ = [
    "Client",
    "Event",
    "Feed",
    "Joined",
    "Left",
    "Missed",
    "Packer",
    "Publisher",
    "Received",
    "SkerryError",
    "Subscription",
    "Topic",
    "TopicSettings",
    "connect",
    "errors",
    "pipeline",
]


def __getattr__(name: str) -> Any:
    """`skerry.pipeline`, for which not everybody should wait."""
    if name == "pipeline":
        from skerry.spark.pipeline import pipeline

        return pipeline
    raise AttributeError(f"module 'skerry' has no attribute {name!r}")
