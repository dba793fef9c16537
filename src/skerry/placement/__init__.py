"""Where topics should live: monitoring, policy, controller.

The core does no I/O and reads no clock. Once a monitoring period (5 s):

    1. each site's agent (`reporter`) has its clients tell what they use, and publishes a
       `SiteRecord` (`pack`), whose size depends on its topics and not on their clients;
    2. the region's leader (`controller`) calls `monitor.fold(record, now)` for every record that
       arrives, in any order;
    3. `topics, sites = tables(monitor, entries, now)` with the directory's entries (`TopicEntry`:
       home, bound, replicas, when it last moved, whether it is moving);
    4. `found = plan(topics, sites, settings, now)`;
    5. the moves of `explain.moves(found, topics, sites, settings)` are carried out (`executor`),
       each a compare-and-set on the topic's epoch. Making a plan changes nothing: what a crash
       leaves undone is planned again.

`explain.stays` says why others did not move. A plan over a million topics can have Spark rank the
candidates: `skerry.spark.placement.plan` makes the same moves.

An agent imports this package, and numpy with it, when somebody uses placement
(`skerry.site.placement`).
"""

from skerry.placement.monitor import Monitor, TopicEntry, tables
from skerry.placement.policy import Plan, Policy, plan
from skerry.placement.records import SiteRecord, TopicColumns, pack, unpack
from skerry.placement.select import Cause, Hindrance
from skerry.placement.settings import RESOURCES, PolicySettings
from skerry.placement.tables import Clients, Sites, Topics

__all__ = [
    "RESOURCES",
    "Cause",
    "Clients",
    "Hindrance",
    "Monitor",
    "Plan",
    "Policy",
    "PolicySettings",
    "SiteRecord",
    "Sites",
    "TopicColumns",
    "TopicEntry",
    "Topics",
    "pack",
    "plan",
    "tables",
    "unpack",
]
