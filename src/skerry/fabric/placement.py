"""Where a topic's home and replicas go, without any I/O.

Distances are round-trip times as sites measured them: `rtt[a][b]` seconds from `a` to `b` and back.
Not every pair is linked; what is not measured is taken through the hub, which is linked to all.

Members copy from whichever of them is the home, so each two must be able to have a link. Of the
sites that only dial out, `shy` below, a topic has one at the most.
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


def check_apart(members: Iterable[str], shy: Collection[str]) -> None:
    """Refuse members of which two cannot be linked."""
    if len(apart := [site for site in members if site in shy]) > 1:
        raise FabricError(
            f"{' and '.join(apart[:2])} only dial out and cannot be linked: neither could copy the "
            "other's log",
            "Choose a site that takes links (`skerry up --link`), or move the topic there first.",
        )


def _sociable(sites: Iterable[str], members: Collection[str], shy: Collection[str]) -> list[str]:
    """Those of `sites` that are no members, and can have a link with each of these."""
    is_one_shy = any(site in shy for site in members)
    return [site for site in sites if site not in members and not (is_one_shy and site in shy)]


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
        check_apart(members := (home, *others[:count]), shy)
        return members
    left = sorted(set(free) - {home})
    members = _with_more((home,), count, settings, left, hub, rtt, shy)
    if len(members) <= count:
        why = " and can be linked with each other" if len(left) >= count else ""
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
    while len(chosen) < len(members) + count and (left := _sociable(free, chosen, shy)):
        far = {site: min(distance(site, one, hub, rtt) for one in chosen) for site in left}
        chosen.append(pick(left, key=lambda site: far[site]))
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
    others = [member for member in members if member != site]
    left = [name for name in _sociable(free, others, shy) if name != site]
    others += left[: len(members) - len(others)]
    return tuple(others) or None
