"""Whom a copy follows, without any I/O.

Members follow the home. Copies for readers follow the nearest holder that has room, so that the
home of a popular topic feeds a tree and not everyone. A holder is followed only by copies deeper
than itself, so that there are no circles. Of a topic with a latency bound all follow the home:
placement takes it that events come to every reader's site straight from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from skerry.model.fabric import CopyRecord, TopicEntry

FANOUT = 4
"""Copies for readers that follow one holder before the next is asked to follow another copy."""


def choose_parent(
    site: str,
    entry: TopicEntry,
    records: Mapping[str, CopyRecord],
    hub: str,
    can_reach: Callable[[str], bool],
    distance: Callable[[str], float],
) -> CopyRecord:
    """The place of the copy for readers at `site`.

    `records` are those of all copies for readers, by site. `distance` is what it takes to reach a
    site that can be reached. Where no holder can be, because neither end takes links, it is the
    hub, which gets a copy for that. The home of a topic with a latency bound is left aside only
    where it cannot be reached.
    """
    if entry.settings.latency is not None and can_reach(entry.home):
        return CopyRecord(site=site, parent=entry.home, depth=1)
    mine = records.get(site)
    limit = mine.depth if mine else 99
    depth = dict.fromkeys(entry.members, 1)
    depth[entry.home] = 0
    depth |= {
        name: record.depth
        for name, record in records.items()
        if name != site and record.depth < limit
    }
    children = [record.parent for name, record in records.items() if name != site]

    def rank(holder: str) -> tuple[bool, float, int]:
        return children.count(holder) >= FANOUT, distance(holder), depth[holder]

    holders = [name for name in depth if can_reach(name)]
    if holders:
        parent = min(holders, key=rank)
    else:
        parent = hub if can_reach(hub) and hub != site else entry.home
    return CopyRecord(site=site, parent=parent, depth=depth.get(parent, 2) + 1)
