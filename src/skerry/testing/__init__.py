"""Tools to test with, ours and yours: real sites in temporary folders, alone, as a fabric on
loopback, or as a fabric on an emulated wide-area network."""

from skerry.testing.fabric import LocalFabric
from skerry.testing.local import LocalSite
from skerry.testing.wan import Traffic, Wan
from skerry.testing.wanfabric import WanFabric

__all__ = ["LocalFabric", "LocalSite", "Traffic", "Wan", "WanFabric"]
