"""What `skerry up` shows of the fabric: which one, which sites are linked, what is here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skerry.cli.output import count

if TYPE_CHECKING:
    from rich.text import Text

    from skerry.site import Site


def membership(site: Site) -> str:
    """Which fabric the site is part of, as what; empty if it stands alone."""
    if site.fabric is None:
        return ""
    text = f"{site.fabric.membership.name}, {site.settings.tier}"
    return f"{text}, coordinates" if _coordinates(site) else text


def linked(site: Site) -> str:
    """With whom it is linked."""
    peers = sorted(site.fabric.links.up) if site.fabric is not None else []
    return f"linked to {count(len(peers), 'site')}" + (f" ({', '.join(peers)})" if peers else "")


def fabric_line(site: Site) -> Text | None:
    """The line below the status line; None if the site stands alone."""
    from rich.text import Text

    if site.fabric is None:
        return None
    homes, copies = site.fabric.copies.count()
    parts = [
        f"fabric {membership(site)}",
        linked(site),
        count(homes, "home"),
        "1 copy" if copies == 1 else f"{copies:,} copies",
    ]
    line = Text("\n      " + " · ".join(parts))
    if not _sees_coordination(site):
        line.append(f"  {site.fabric.store.origin} IS AWAY", "bold yellow")
    return line


class Links:
    """The site's links, as seen at each tick. What is shorter is in the log."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._up = self._now()
        self._saw = _sees_coordination(site)

    def look(self) -> list[str]:
        """What is new since the last look, in words."""
        if self._site.fabric is None:
            return []
        before, self._up = self._up, self._now()
        origin, news = self._site.fabric.store.origin, []
        if fresh := sorted(self._up - before):
            news.append(f"link to {', '.join(fresh)} is up; {linked(self._site)}")
        if gone := sorted(before - self._up):
            news.append(f"link to {', '.join(gone)} is gone; {linked(self._site)}")
        saw, self._saw = self._saw, _sees_coordination(self._site)
        if saw and not self._saw:
            news.append(
                f"THE COORDINATION SITE {origin} IS AWAY; topics go on as they say with "
                "--on-partition, and none can be created or moved"
            )
        return news

    def _now(self) -> set[str]:
        return set(self._site.fabric.links.up) if self._site.fabric is not None else set()


def _coordinates(site: Site) -> bool:
    return site.fabric is not None and site.fabric.store.origin == site.settings.site


def _sees_coordination(site: Site) -> bool:
    if site.fabric is None or _coordinates(site):
        return True
    return site.fabric.store.origin in site.fabric.links.up
