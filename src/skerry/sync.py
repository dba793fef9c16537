"""The SDK without `await`: `with skerry.sync.connect() as client`."""

from skerry.client.sync import SyncClient, SyncPublisher, SyncSubscription, connect

__all__ = ["SyncClient", "SyncPublisher", "SyncSubscription", "connect"]
