"""The SDK without `await`: `with skerry.sync.connect() as client`."""

from skerry.client.sync import (
    SyncClient,
    SyncPacker,
    SyncPublisher,
    SyncSubscription,
    connect,
)

__all__ = ["SyncClient", "SyncPacker", "SyncPublisher", "SyncSubscription", "connect"]
