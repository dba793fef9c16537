"""The SDK: asynchronous, and a synchronous face in `skerry.sync`."""

from skerry.client.client import Client, connect

__all__ = ["Client", "connect"]
