"""Skerry: a geo-distributed publish/subscribe fabric. Topics are durable logs near their clients.

async with skerry.connect() as client:
    await client.create_topic("sensors")
    index = await client.publish("sensors/roof", "21.5")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from skerry import errors
from skerry.errors import SkerryError

if TYPE_CHECKING:
    __version__: str
    from skerry import spark as spark
    from skerry import sync as sync
    from skerry import testing as testing
    from skerry.client import Client, connect
    from skerry.functions.handler import function
    from skerry.log.append import Publisher
    from skerry.log.follow import Subscription
    from skerry.log.pack import Packer
    from skerry.model.event import Event
    from skerry.model.feeds import Feed, Joined, Left, Missed, Received
    from skerry.model.topic import Topic, TopicSettings
    from skerry.spark.pipeline import pipeline

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
    "function",
    "pipeline",
]

_PLACES = {
    "Client": "client",
    "Event": "model.event",
    "Feed": "model.feeds",
    "Joined": "model.feeds",
    "Left": "model.feeds",
    "Missed": "model.feeds",
    "Packer": "log.pack",
    "Publisher": "log.append",
    "Received": "model.feeds",
    "Subscription": "log.follow",
    "Topic": "model.topic",
    "TopicSettings": "model.topic",
    "connect": "client",
    "function": "functions.handler",
    "pipeline": "spark.pipeline",
}

_MODULES = ("spark", "sync", "testing")


def __getattr__(name: str) -> Any:
    """The public names and modules, each imported when it is first asked for: a function's worker
    starts in a fraction of the time that the client takes to import."""
    if name == "__version__":
        value = import_module("skerry.config").VERSION
    elif name in _MODULES:
        value = import_module(f"skerry.{name}")
    elif name in _PLACES:
        value = getattr(import_module(f"skerry.{_PLACES[name]}"), name)
    else:
        raise AttributeError(f"module 'skerry' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES, "__version__"})
