"""The SDK without `await`: `with skerry.sync.connect() as client`."""

from skerry.client.sync import (
    SyncClient,
    SyncFeed,
    SyncPacker,
    SyncPublisher,
    SyncQuery,
    SyncSubscription,
    connect,
)

__all__ = [
    "SyncClient",
    "SyncFeed",
    "SyncPacker",
    "SyncPublisher",
    "SyncQuery",
    "SyncSubscription",
    "connect",
]
