"""Where a topic's home and replicas go, without any I/O.

Distances are round-trip times as sites measured them: `rtt[a][b]` seconds from `a` to `b` and back.
Not every pair is linked; what is not measured is taken through the hub, which is linked to all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from skerry.errors import BadSetting
from skerry.model.topic import TopicSettings

Rtt = Mapping[str, Mapping[str, float]]


def distance(one: str, other: str, hub: str, rtt: Rtt) -> float:
    """Seconds between two sites and back; 0 where nothing is known."""
    for a, b in ((one, other), (other, one)):
        if b in rtt.get(a, {}):
            return rtt[a][b]
    from_hub = rtt.get(hub, {})
    return sum(from_hub.get(site, 0.0) for site in (one, other) if site != hub)


def named_sites(settings: TopicSettings) -> list[str] | None:
    """The sites that a topic names for its replicas; None: it leaves the choice to us."""
    if settings.spread in ("distributed", "colocated"):
        return None
    return [site.strip() for site in settings.spread.split(",") if site.strip()]


def choose_members(
    home: str, settings: TopicSettings, free: Collection[str], hub: str, rtt: Rtt
) -> tuple[str, ...]:
    """The home and its replicas. With a list of sites those, the first ones; else out of `free`
    the nearest to the members so far, or the farthest from them, one after the other."""
    count = settings.replicas
    if (named := named_sites(settings)) is not None:
        others = [site for site in dict.fromkeys(named) if site != home]
        if len(others) < count:
            raise BadSetting(
                f"{count} replicas were asked for, and {len(others)} sites named for them",
                "Name more sites with --spread, or ask for fewer replicas.",
            )
        return (home, *others[:count])
    left = sorted(set(free) - {home})
    if len(left) < count:
        raise BadSetting(
            f"{count} replicas need {count + 1} sites that are up; there are {len(left) + 1}",
            "Let more sites join, or ask for fewer replicas.",
        )
    return _with_more((home,), count, settings, left, hub, rtt)


def members_filled(
    members: Sequence[str], settings: TopicSettings, free: Collection[str], hub: str, rtt: Rtt
) -> tuple[str, ...]:
    """The members, and the replicas that the topic lacks, as many as can be had now: out of `free`,
    and of the sites that it names if it does."""
    named = named_sites(settings)
    left = [site for site in sorted(free) if site not in members and (not named or site in named)]
    lacking = max(0, settings.replicas + 1 - len(members))
    return _with_more(members, min(lacking, len(left)), settings, left, hub, rtt)


def _with_more(
    members: Sequence[str], count: int, settings: TopicSettings, left: list[str], hub: str, rtt: Rtt
) -> tuple[str, ...]:
    """The members and `count` of those `left`, chosen one after the other."""
    pick = min if settings.spread == "colocated" else max
    chosen, left = list(members), list(left)
    for _ in range(count):
        far = {site: min(distance(site, one, hub, rtt) for one in chosen) for site in left}
        best = pick(left, key=lambda site: far[site])
        chosen.append(best)
        left.remove(best)
    return tuple(chosen)


def members_after(
    members: Sequence[str], to: str, asked: Sequence[str] | None = None
) -> tuple[str, ...]:
    """The members once the home is at `to`, the home first: those `asked` for, or else the same as
    far as possible. A home that moves to a site without a copy takes the place of the old one; one
    that moves to a replica changes places with it."""
    if asked is not None:
        return (to, *[site for site in asked if site != to])
    home, *others = members
    if to == home:
        return tuple(members)
    left = [site for site in others if site != to]
    return (to, *left, home) if to in others else (to, *left)


def members_without(
    members: Sequence[str], site: str, free: Sequence[str]
) -> tuple[str, ...] | None:
    """The members once `site` holds nothing of the topic any more, the home first: the first of
    `free` takes its place, if there is one. None: nobody is left."""
    others = [member for member in members if member != site]
    others += [name for name in free if name not in members][: len(members) - len(others)]
    return tuple(others) or None
