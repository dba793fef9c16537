"""Tools to test with, ours and yours: a real site in a temporary folder."""

from skerry.testing.local import LocalSite

__all__ = ["LocalSite"]
