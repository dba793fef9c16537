"""Where topics should live: monitoring, and the policy. Nothing here does I/O or reads a clock.

How a controller calls it, once a monitoring period (5 s):

    1. each site's agent: `summarise` its clients, topic by topic, and publish a `SiteRecord`
       (`pack`), whose size depends on its topics and not on their clients;
    2. the region's leader: `monitor.fold(record, now)` for every record that arrives, in any order;
    3. `topics, sites = tables(monitor, entries, now)` with the directory's entries (`TopicEntry`:
       home, bound, replicas, when it last moved, whether it is moving);
    4. `found = plan(topics, sites, settings, now)`;
    5. for each of `explain.moves(found, topics, sites, settings)`: mark the entry as moving, move
       the topic (compare-and-set on its epoch), then write `moved_at`. What a crash leaves half
       done is either still marked as moving or planned again: making a plan changes nothing.

`explain.stays` says why others did not move. A plan over a million topics can have Spark rank the
candidates: `skerry.spark.placement.plan` makes the same moves.
"""

from skerry.placement.clients import Summary, summarise
from skerry.placement.monitor import Monitor, TopicEntry, tables
from skerry.placement.policy import Plan, Policy, plan
from skerry.placement.records import SiteRecord, TopicColumns, pack, unpack
from skerry.placement.select import Cause, Hindrance
from skerry.placement.settings import RESOURCES, PolicySettings
from skerry.placement.tables import Sites, Topics, one_way

__all__ = [
    "RESOURCES",
    "Cause",
    "Hindrance",
    "Monitor",
    "Plan",
    "Policy",
    "PolicySettings",
    "SiteRecord",
    "Sites",
    "Summary",
    "TopicColumns",
    "TopicEntry",
    "Topics",
    "one_way",
    "pack",
    "plan",
    "summarise",
    "tables",
    "unpack",
]
