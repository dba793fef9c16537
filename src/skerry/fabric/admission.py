"""How the coordination site lets others join; see `skerry.fabric.join` for their side."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import msgspec

from skerry.directory.store import Store
from skerry.engine.address import Address
from skerry.engine.folder import Folder
from skerry.errors import JoinRefused
from skerry.fabric.join import (
    JoinRequest,
    Membership,
    Used,
    Welcome,
    check_joiner,
    check_token,
    make_token,
)
from skerry.fabric.links import Links
from skerry.model.control import TokenRequest
from skerry.model.fabric import LinkRecord, SiteRecord, link_key, site_key

log = logging.getLogger("skerry.fabric")


class Admission:
    """Gives out tokens, and takes in the sites that come with them."""

    def __init__(self, membership: Membership, folder: Folder, store: Store, links: Links) -> None:
        self._membership = membership
        self._folder = folder
        self._store = store
        self._links = links

    def token(self, request: TokenRequest) -> str:
        """A token for one site."""
        address = Address.load(self._folder.credentials / "join.json")
        return make_token(self._membership, address, request.life)

    async def join(self, request: JoinRequest) -> Welcome:
        """Take a site in. Asked again by the same site, because an answer was lost, it says the
        same."""
        here, name = self._store.site, request.site.name
        given = check_token(self._membership, request.token)
        token_key = f"token.{given.id}"
        used = self._store.get(token_key, Used)
        mine = Used(name, request.key)
        known = self._store.get(site_key(name), SiteRecord)
        link = self._store.get(link_key(here, name), LinkRecord)
        # A site of that name may have taken the place of the one that came with it.
        is_another = known is None or (link is not None and link.key != request.key)
        if used is not None and (used != mine or is_another):
            raise JoinRefused(
                f"the join token was used by site {used.site}",
                "A token is for one site. Make another: `skerry fabric token`.",
            )
        if used is None:
            check_joiner(request, known)
            left = max(given.expires - datetime.now(UTC).timestamp(), 1.0) + 60
            await self._store.put(token_key, mine, revision=0, ttl=left)
        record = msgspec.structs.replace(request.site, joined=datetime.now(UTC), draining=False)
        await self._store.put(site_key(name), record)
        link = LinkRecord(
            dialer=name,
            acceptor=here,
            key=request.key,
            ready=True,
            wanted_by=tuple(sorted((name, here))),
        )
        await self._store.put(link_key(here, name), link)
        await self._links.settle()
        log.warning("site %s joined", name)
        coordinator = self._store.get(site_key(here), SiteRecord)
        assert coordinator is not None
        return Welcome(
            fabric=self._membership.id, name=self._membership.name, coordinator=coordinator
        )
