"""Subscribe by query: the language, and the index of feeds and queries. Pure; no I/O.

`parse(text)` makes a `Query`; a `QueryIndex` holds feeds and queries, and says which feeds join
and leave which query's result when either changes.
"""

from __future__ import annotations

from skerry.query.index import Difference, QueryIndex
from skerry.query.language import Query, parse

__all__ = ["Difference", "Query", "QueryIndex", "parse"]
