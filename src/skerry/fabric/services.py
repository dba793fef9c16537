"""What may be asked of a site in a fabric, by whom: one table, and the answers that take several
parts of the site.

`open.…` is for clients, `admin.…` for administrators, `peer.…` for the agents of other sites, and
`peer.lead.…` for the one that leads. What clients ask the leader for goes through their own site.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from skerry.errors import SkerryError, Unavailable
from skerry.fabric.control import Control
from skerry.fabric.following import Holding
from skerry.fabric.join import JoinRequest
from skerry.fabric.leader import Leader, RenewRequest, SealRequest
from skerry.fabric.losses import Lost
from skerry.fabric.moves import FreezeRequest, Reached
from skerry.fabric.outbox import SourceRequest
from skerry.log.topics import unknown_topic
from skerry.model.control import (
    CreateRequest,
    MoveRequest,
    ProgressRequest,
    Reach,
    RttRequest,
    SiteInfo,
    SiteName,
    TokenRequest,
    TopicName,
    TopicRequest,
    Want,
)
from skerry.model.demands import settings_of
from skerry.model.fabric import Presence, SiteRecord, TopicEntry, up_key
from skerry.model.names import SubscriptionText, TopicText, check_not_own
from skerry.model.topic import Topic

if TYPE_CHECKING:
    from skerry.fabric.fabric import Fabric

T = TypeVar("T")
_Durable: type[tuple[str, str]] = tuple[TopicText, SubscriptionText]

FIND_TIME = 3.0
"""Seconds that a topic which is not known here is looked for."""


class Taking(msgspec.Struct):
    """Asks for a durable subscription, to go on with it elsewhere."""

    name: TopicText
    subscription: SubscriptionText


class Services:
    """The services of one site."""

    def __init__(self, part: Fabric) -> None:
        self._part = part
        self._copies = part.copies
        self._readers = part.readers
        self._links = part.links
        self._store = part.store

    def register(self, control: Control) -> None:
        """Have `control` serve them all."""
        self._for_clients(control)
        self._for_peers(control)
        if self._part.leader is not None:
            self._at_the_leader(control, self._part.leader)

    def _for_clients(self, control: Control) -> None:
        serve, copies = control.serve, self._copies
        serve("open.topic.create", TopicRequest, self._create)
        serve("open.topic.show", TopicName, self._show)
        serve("open.topic.list", None, self._list)
        serve("open.topic.find", TopicName, self._find)
        serve("open.topic.want", Want, self._want)
        serve("open.topic.first", TopicName, self._first)
        serve("open.reach", Reach, self._reach)
        serve("open.progress", ProgressRequest, self._part.progress.watch)
        serve("open.sites", None, self._sites)
        serve("open.links", None, self._links.list)
        serve("open.rtt", RttRequest, self._part.distances.rtt)
        serve("open.coordinate", None, self._part.distances.info)
        serve("open.unsubscribe", _Durable, lambda r: copies.durables.forget(*r))
        serve("admin.topic.create", TopicRequest, self._create_any)
        serve("admin.topic.set", TopicRequest, self._change)
        serve("admin.topic.delete", TopicName, self._led("topic.delete", NoneType))
        serve("admin.topic.move", MoveRequest, self._move)
        serve("admin.fabric.token", TokenRequest, self._led("token", str))
        serve("admin.site.drain", SiteName, self._led("site.drain", list[str]))
        serve("admin.site.undrain", SiteName, self._led("site.undrain", NoneType))
        serve("admin.site.remove", SiteName, self._led("site.remove", NoneType))

    def _for_peers(self, control: Control) -> None:
        serve, copies, outbox = control.serve, self._copies, self._part.outbox
        serve("peer.seal", SealRequest, lambda r: copies.seal_all(r.topics))
        serve("peer.sealed", list[str], copies.sealed)
        serve("peer.state", TopicName, lambda r: copies.state(r.name))
        serve("peer.reached", Reached, lambda r: copies.reached(r.name, r.epoch, r.last, r.timeout))
        serve("peer.freeze", FreezeRequest, lambda r: copies.freeze(r.name, r.epoch, r.lease))
        serve("peer.settle", TopicEntry, copies.settle)
        serve("peer.prepare", TopicEntry, copies.prepare)
        serve("peer.source", SourceRequest, outbox.read)
        serve("peer.taken", SourceRequest, outbox.taken)
        serve(
            "peer.subscription.take",
            Taking,
            lambda r: copies.durables.take(r.name, r.subscription),
        )
        serve("peer.homes", None, copies.streams)
        serve("peer.hold", TopicName, lambda r: self._readers.ensure(r.name))
        serve("peer.tide", str, self._part.links.tide_of)
        serve("peer.holding", TopicName, lambda r: copies.following.holding(r.name))
        serve("peer.removed", None, self._part.removed)

    def _at_the_leader(self, control: Control, leader: Leader) -> None:
        serve = control.serve
        serve("join", JoinRequest, self._part.admission.join)
        serve("peer.lost", Lost, leader.observe)
        serve("peer.lead.topic.create", CreateRequest, leader.create)
        serve("peer.lead.topic.set", CreateRequest, leader.change)
        serve("peer.lead.topic.delete", TopicName, lambda r: leader.delete(r.name))
        serve("peer.lead.topic.move", MoveRequest, leader.move)
        serve("peer.lead.topic.renew", RenewRequest, leader.renew)
        serve("peer.lead.topic.list", None, self._all_topics)
        serve("peer.lead.sites", None, self._all_sites)
        serve("peer.lead.site.drain", SiteName, lambda r: leader.drain(r.site))
        serve("peer.lead.site.undrain", SiteName, lambda r: leader.undrain(r.site))
        serve("peer.lead.site.remove", SiteName, lambda r: leader.remove(r.site))
        serve("peer.lead.token", TokenRequest, self._part.admission.token)

    def _led(self, name: str, kind: type[T]) -> Callable[[object], Awaitable[T]]:
        """A service that only asks the leader."""
        return lambda request: self._part.lead(name, kind, request)

    # Topics

    async def _create(self, request: TopicRequest) -> Topic:
        check_not_own(request.name)
        return await self._create_any(request)

    async def _create_any(self, request: TopicRequest) -> Topic:
        """Also what Skerry keeps for itself."""
        settings_of(request.name, request.settings).check()
        return await self._ask_for("topic.create", request)

    async def _change(self, request: TopicRequest) -> Topic:
        return await self._ask_for("topic.set", request)

    async def _ask_for(self, name: str, request: TopicRequest) -> Topic:
        body = CreateRequest(request.name, request.settings, self._part.site)
        return await self._topic(await self._part.lead(name, TopicEntry, body))

    async def _move(self, request: MoveRequest) -> Topic:
        return await self._topic(await self._part.lead("topic.move", TopicEntry, request))

    async def _topic(self, entry: TopicEntry) -> Topic:
        return as_topic(entry, await self._readers.look(entry))

    async def _show(self, request: TopicName) -> Topic:
        entry = self._copies.entry(request.name)
        if entry is None:
            raise unknown_topic(request.name)
        return await self._topic(entry)

    async def _list(self) -> list[Topic]:
        with contextlib.suppress(Unavailable):
            return await self._part.lead("topic.list", list[Topic], timeout=10)
        return [await self._topic(entry) for entry in self._entries()]

    def _entries(self) -> list[TopicEntry]:
        return sorted(self._store.all("topic.", TopicEntry).values(), key=lambda e: e.name)

    async def _all_topics(self) -> list[Topic]:
        """Every topic, with the state that its home tells."""
        entries = self._entries()
        homes = sorted({entry.home for entry in entries})

        async def ask(site: str) -> dict[str, Any]:
            with contextlib.suppress(SkerryError):
                data = await self._part.ask(site, "peer.homes", timeout=5)
                return msgspec.json.decode(data, type=dict[str, Any])
            return {}

        infos = dict(zip(homes, await asyncio.gather(*map(ask, homes)), strict=True))
        return [as_topic(entry, infos[entry.home].get(entry.stream)) for entry in entries]

    async def _find(self, request: TopicName) -> bool:
        """Whether there is a topic of that name; asked when a client's site does not know it.
        Raises `Unavailable` if nobody can tell."""
        name = request.name
        if self._copies.owner(name) is not None:
            return True
        is_fresh = False
        with contextlib.suppress(SkerryError, TimeoutError):
            async with asyncio.timeout(FIND_TIME):
                await self._part.opened()  # before, topics of this site may not be there yet
            is_fresh = await self._store.fresh(FIND_TIME)
        is_fresh &= not self._copies.is_about_to_be(name)
        if self._copies.owner(name) is None and not is_fresh:
            raise Unavailable(
                f"site {self._copies.site} knows no topic {name}, and cannot ask whether it is new",
                "Is the coordination site up and linked? Look with `skerry links`.",
            )
        return self._copies.owner(name) is not None

    async def _want(self, request: Want) -> TopicEntry:
        # Before, a log here may be that of a home which was replaced, and its reader would be given
        # others' indexes once more.
        await self._part.opened()
        await self._find(TopicName(request.name))
        entry = await self._readers.ensure(request.name)
        if request.durable is not None:
            await self._copies.durables.fetch(entry, request.durable)
        return entry

    async def _first(self, request: TopicName) -> int | None:
        """The first index that the home keeps; None if it does not tell."""
        entry = self._copies.entry(request.name)
        if entry is not None:
            with contextlib.suppress(SkerryError):
                data = await self._part.ask(entry.home, "peer.holding", request)
                holding = msgspec.json.decode(data, type=Holding | None)
                return holding.first if holding is not None else None
        return None

    # Sites

    def _reach(self, request: Reach) -> list[str]:
        for site in request.sites:
            self._links.want(site)
        return [site for site in request.sites if not self._links.can_reach(site)]

    async def _sites(self) -> list[SiteInfo]:
        with contextlib.suppress(Unavailable):
            return await self._part.lead("sites", list[SiteInfo], timeout=5)
        return self._all_sites()

    def _all_sites(self) -> list[SiteInfo]:
        homes = Counter(entry.home for entry in self._store.all("topic.", TopicEntry).values())
        found = []
        for name, record in sorted(self._store.all("site.", SiteRecord).items()):
            presence = self._store.get(up_key(name), Presence)
            rtt = self._links.rtt.get(name)
            found.append(
                SiteInfo(
                    site=name,
                    tier=record.tier,
                    up=name == self._part.site or name in self._links.up,
                    coordinates=name == self._store.origin,
                    draining=record.draining,
                    version=record.version,
                    link=record.link,
                    homes=homes[name],
                    copies=presence.copies if presence else 0,
                    rtt_ms=None if rtt is None else round(rtt * 1000, 3),
                )
            )
        return found


def as_topic(entry: TopicEntry, info: dict[str, Any] | None) -> Topic:
    """A topic for people and programs: its entry, and the state of one of its copies."""
    state = info["state"] if info else {}
    return Topic(
        name=entry.name,
        home=entry.home,
        settings=entry.settings,
        created=datetime.fromisoformat(info["created"]) if info else datetime.fromtimestamp(0, UTC),
        events=state.get("messages", 0),
        bytes=state.get("bytes", 0),
        first_index=max(state.get("first_seq", 1), 1),
        latest_index=state.get("last_seq", 0),
        subscriptions=state.get("consumer_count", 0),
        epoch=entry.epoch,
        replicas=entry.members[1:],
    )
