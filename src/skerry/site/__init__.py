"""The agent: the process beside each site's engine that does the site's control work."""

from skerry.site.agent import Site

__all__ = ["Site"]
