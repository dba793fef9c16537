"""What simple clients hold at their site: queries, whose differences they are told, and feeds.

A query's result is returned, and its client listed among those who are told differences, without
anything else happening in between; all of it goes to the client over one connection. So a client
that takes its messages in order always knows the result. With each feed it is told where the engine
tells of the feed's events, and again when that place changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec

from skerry.errors import BadQuery, BadSetting, SkerryError, Unavailable
from skerry.fabric.tasks import Tasks
from skerry.feeds.site import Feeds
from skerry.feeds.view import HELD
from skerry.model.control import Differences, QueryRequest, RenewRequest
from skerry.model.feeds import Feed
from skerry.model.names import feed_subject, topic_of_stream
from skerry.model.simple import Query, log_of, written
from skerry.query import language

if TYPE_CHECKING:
    from skerry.fabric.fabric import Fabric

QUERIES = 100
"""Queries that one client may hold. One query asks for many feeds, not many for one."""
PAGE_BYTES = 64 * 1024
"""Bytes of a page of a result, beyond the first feed: what small devices can still take."""
RENEW = 5.0
"""Seconds between two renewals of what one client holds, however many requests it sends."""
REACH = 15.0
"""Seconds between two requests for links to the homes of feeds that match; links that nobody asks
for go after a minute."""

Say = Callable[[str, dict[str, Any], bool], None]
"""Tells a client a message, in MsgPack or not."""


class Places(NamedTuple):
    """What a site knows of where feeds are."""

    home_of: Callable[[str], str | None]
    """The home of a feed log; None: it is not known yet."""
    reach: Callable[[str], None]
    """Asks for a link to a site, for a while."""
    deliver_plain: bool
    """Whether the engine here delivers topics on `t.…`."""

    @classmethod
    def known_to(cls, site: str, fabric: Fabric | None, deliver_plain: bool) -> Self:
        """What `site` knows, which may be part of a fabric."""
        if fabric is None:
            return cls(lambda name: site, lambda peer: None, deliver_plain)

        def home_of(name: str) -> str | None:
            entry = fabric.copies.entry(name)
            return None if entry is None else entry.home

        return cls(home_of, fabric.links.want, deliver_plain)


class _Asked(msgspec.Struct):
    """A query as one client holds it."""

    query: language.Query
    packed: bool
    """Whether it is told in MsgPack."""
    logs: set[str] = msgspec.field(default_factory=set)
    """The feed logs of the feeds that it was told of."""


class _Session(msgspec.Struct):
    """What one client holds."""

    renewed: float
    has_feeds: bool = False
    queries: dict[str, _Asked] = msgspec.field(default_factory=dict)


class Held:
    """What all simple clients of a site hold."""

    def __init__(self, feeds: Feeds, places: Places, say: Say) -> None:
        self._feeds = feeds
        self._places = places
        self._say = say
        self._sessions: dict[str, _Session] = {}
        self._told: dict[str, dict[str, _Asked]] = {}
        """By query: the clients that are told of it."""
        self._homes: dict[str, str | None] = {}
        """Where clients were told that feed logs are."""
        self._reached = 0.0
        self._tasks = Tasks("the telling of moves")
        feeds.tells.append(self._on_differences)

    async def close(self) -> None:
        """Tell nothing any more."""
        await self._tasks.close()

    def session(self, client: str) -> _Session:
        """What a client holds."""
        if client not in self._sessions:
            self._sessions[client] = _Session(_now())
        return self._sessions[client]

    # Queries

    async def query(self, client: str, request: Query, packed: bool) -> dict[str, Any]:
        """A page of a query's result; differences from now on are told. What this returns must be
        told at once."""
        query = language.parse(request.text)
        if query.needs_payload:
            raise BadQuery(
                "the query asks for what events hold, and a simple client gets events directly "
                "from the engine, which does not look into them",
                "Leave the terms about payload out and look at the events you get, or use the SDK.",
            )
        held = self._sessions.get(client)
        if held is not None and len(held.queries) >= QUERIES and query.key not in held.queries:
            raise BadSetting(
                f"{client} holds {QUERIES} queries already", "End one, or join several with or."
            )
        asked = QueryRequest(holder=owner_of(client), text=request.text, after=request.after)
        answer = await self._feeds.open_query(asked)
        entry = self._hold(client, query, packed)
        feeds: list[dict[str, Any]] = []
        size = 0
        for feed in answer.feeds:
            told = self._described(feed, entry)
            size += len(written(told, packed))
            if feeds and size > PAGE_BYTES:
                break
            feeds.append(told)
        more = answer.more or len(feeds) < len(answer.feeds)
        return {"query": query.key, "feeds": feeds, **({"more": True} if more else {})}

    def end(self, client: str, key: str) -> None:
        """Tell a client of a query no more."""
        session = self._sessions.get(client)
        if session is not None and session.queries.pop(key, None) is not None:
            self._release(client, key)

    def _hold(self, client: str, query: language.Query, packed: bool) -> _Asked:
        session = self.session(client)
        entry = session.queries.get(query.key)
        if entry is None or entry.packed != packed:
            entry = session.queries[query.key] = _Asked(query, packed)
            self._told.setdefault(query.key, {})[client] = entry
        return entry

    def _on_differences(self, key: str, differences: Differences) -> None:
        for client, asked in self._told.get(key, {}).items():
            message: dict[str, Any] = {"query": key}
            if differences.left:
                message["left"] = [feed.id for feed in differences.left]
            if differences.joined:
                message["joined"] = [self._described(feed, asked) for feed in differences.joined]
            self._say(client, message, asked.packed)

    # Where feeds are

    def on_entry(self, key: str, value: bytes | None) -> None:
        """A topic's entry in the directory changed."""
        name = topic_of_stream(key.partition(".")[2])
        if name not in self._homes or self._homes[name] == self._places.home_of(name):
            return
        self._listen(name)
        for client, session in self._sessions.items():
            for asked in session.queries.values():
                if name in asked.logs:
                    self._tasks.spawn(self._tell_moved(client, asked, name))

    async def _tell_moved(self, client: str, asked: _Asked, name: str) -> None:
        """Tell where the feeds of a log are to be listened to now."""
        after, more = "", True
        while more and self._told.get(asked.query.key, {}).get(client) is asked:
            feeds, more = self._feeds.view.page(asked.query, after)
            moved = [
                {"id": feed.id, "listen": self._listen(feed.topic)}
                for feed in feeds
                if log_of(feed.topic) == name
            ]
            if moved:
                self._say(client, {"query": asked.query.key, "moved": moved}, asked.packed)
            after = feeds[-1].id if feeds else ""
            await asyncio.sleep(0)

    def _described(self, feed: Feed, asked: _Asked) -> dict[str, Any]:
        if (name := log_of(feed.topic)) is not None:
            asked.logs.add(name)
        return {"id": feed.id, "metadata": feed.metadata, "listen": self._listen(feed.topic)}

    def _listen(self, topic: str) -> str | None:
        """Where the engine tells of a feed's events, as MQTT writes it; None: nowhere."""
        name = log_of(topic)
        if name is None:
            return f"t/{topic}" if self._places.deliver_plain else None
        home = self._places.home_of(name)
        if home is not None and self._homes.get(name) != home:
            self._places.reach(home)
        self._homes[name] = home
        return None if home is None else feed_subject(home, topic).replace(".", "/")

    # Who is there

    async def keep(self, client: str) -> None:
        """Any request is a sign of life: what the client holds stays."""
        session = self._sessions.get(client)
        if session is None or _now() - session.renewed < RENEW:
            return
        session.renewed = _now()
        for key in list(session.queries):
            if self._feeds.renew_query(QueryRequest(holder=owner_of(client), key=key)) is None:
                self.end(client, key)
        if session.has_feeds:
            session.has_feeds = bool(await self._feeds.renew(RenewRequest(owner=owner_of(client))))

    async def renew(self, client: str) -> dict[str, Any]:
        """What a client holds."""
        feeds = await self._feeds.renew(RenewRequest(owner=owner_of(client)))
        if feeds:
            self.session(client).has_feeds = True
        session = self._sessions.get(client)
        return {"feeds": feeds, "queries": list(session.queries) if session else []}

    def look(self) -> None:
        """Let go of what silent clients hold; keep links for the others."""
        now = _now()
        for client, session in list(self._sessions.items()):
            if now - session.renewed > HELD:
                self._end_all(client, f"{client} was silent for {HELD:.0f} s")
        if now - self._reached >= REACH:
            self._reached = now
            asked = (a for s in self._sessions.values() for a in s.queries.values())
            for home in {self._homes.get(name) for one in asked for name in one.logs}:
                if home is not None:
                    self._places.reach(home)

    def end_all(self, why: str) -> None:
        """Let go of everything; tell all clients to ask anew."""
        for client in list(self._sessions):
            self._end_all(client, why)

    def _end_all(self, client: str, why: str) -> None:
        error = fault_of(Unavailable(f"the query is not held any more: {why}", "Ask it anew."))
        for key, asked in self._sessions.pop(client).queries.items():
            self._release(client, key)
            self._say(client, {"query": key, "ended": error}, asked.packed)

    def _release(self, client: str, key: str) -> None:
        self._feeds.close_query(QueryRequest(holder=owner_of(client), key=key))
        told = self._told.get(key, {})
        told.pop(client, None)
        if not told:
            self._told.pop(key, None)


def owner_of(client: str) -> str:
    """Who owns the feeds of a client."""
    return f"plain:{client}"


def fault_of(error: SkerryError) -> dict[str, str]:
    """An error as clients are told."""
    return {"kind": type(error).__name__, "what": error.what, "advice": error.advice}


def _now() -> float:
    return asyncio.get_running_loop().time()
