"""Where a topic's home and replicas go, without any I/O.

Distances are round-trip times as sites measured them: `rtt[a][b]` seconds from `a` to `b` and back.
Not every pair is linked; what is not measured is taken through the hub, which is linked to all.

Members copy from the home, so each must be able to have a link with it. Two sites that only dial
out, `shy` below, cannot be linked. With a home that takes links a topic may have several; should
one of them have to become the home, the others wait.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from skerry.errors import BadSetting, FabricError
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


def check_apart(home: str, others: Iterable[str], shy: Collection[str]) -> None:
    """Refuse members of which one cannot be linked with the home."""
    apart = [site for site in others if site in shy and site != home]
    if home in shy and apart:
        raise FabricError(
            f"{home} and {apart[0]} only dial out and cannot be linked: neither could copy the "
            "other's log",
            "Choose a site that takes links (`skerry up --link`), or move the topic there first.",
        )


def _sociable(sites: Iterable[str], home: str, shy: Collection[str]) -> list[str]:
    """Those of `sites` that can have a link with `home`."""
    return [site for site in sites if site == home or not (home in shy and site in shy)]


def choose_members(
    home: str,
    settings: TopicSettings,
    free: Collection[str],
    hub: str,
    rtt: Rtt,
    shy: Collection[str] = (),
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
        check_apart(home, others[:count], shy)
        return (home, *others[:count])
    left = sorted(set(free) - {home})
    members = _with_more((home,), count, settings, left, hub, rtt, shy)
    if len(members) <= count:
        why = f" and can be linked with {home}" if len(left) >= count else ""
        raise BadSetting(
            f"{count} replicas need {count + 1} sites that are up{why}; there are {len(members)}",
            "Let more sites join, or ask for fewer replicas.",
        )
    return members


def members_filled(
    members: Sequence[str],
    settings: TopicSettings,
    free: Collection[str],
    hub: str,
    rtt: Rtt,
    shy: Collection[str] = (),
) -> tuple[str, ...]:
    """The members, and the replicas that the topic lacks, as many as can be had now: out of `free`,
    and of the sites that it names if it does."""
    named = named_sites(settings)
    left = [site for site in sorted(free) if not named or site in named]
    lacking = max(0, settings.replicas + 1 - len(members))
    return _with_more(members, lacking, settings, left, hub, rtt, shy)


def _with_more(
    members: Sequence[str],
    count: int,
    settings: TopicSettings,
    free: list[str],
    hub: str,
    rtt: Rtt,
    shy: Collection[str],
) -> tuple[str, ...]:
    """The members and `count` of those that are free, or as many as there are, chosen one after the
    other."""
    pick = min if settings.spread == "colocated" else max
    chosen = list(members)
    left = [site for site in _sociable(free, members[0], shy) if site not in members]
    for _ in range(min(count, len(left))):
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
    members: Sequence[str], site: str, free: Sequence[str], shy: Collection[str] = ()
) -> tuple[str, ...] | None:
    """The members once `site` holds nothing of the topic any more, the home first: the first of
    `free` that can takes its place, if there is one. None: nobody is left."""
    others = sorted((one for one in members if one != site), key=lambda one: one in shy)
    if site != members[0]:
        others.sort(key=lambda one: one != members[0])  # the home stays where it is
    pool = others + _sociable((one for one in free if one not in members), members[0], shy)
    return tuple(_sociable(pool, pool[0], shy)[: len(members)]) if pool else None
