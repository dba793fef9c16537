"""Moving a topic to another home, or to other members.

The sites that are new get the log while the home goes on. Then the home is shut for the last
events, some milliseconds, and the directory says where the topic lives from now on. Whatever fails
before that leaves the topic where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec

from skerry.directory.store import Store
from skerry.errors import Conflict, MoveFailed, SkerryError, Unavailable
from skerry.fabric.tasks import Tasks
from skerry.model.fabric import TopicEntry, topic_key
from skerry.model.names import TopicText
from skerry.model.promotion import State, may_cut_over, next_epoch
from skerry.model.topic import TopicSettings

FREEZE = 5.0
"""Seconds that a home stays shut for a move before it opens again by itself."""
PRECOPY = 60.0
"""Seconds that the new home may take to get the log before the move is given up."""
HEARD = 2.0
"""Seconds that may pass before somebody listens at a site that is up."""
SETTLE_TIME = 5.0
"""Seconds that a site may take to make its log what an entry says."""

Ask = Callable[..., Awaitable[bytes]]


class FreezeRequest(msgspec.Struct):
    """Asks a home to shut for a move."""

    name: TopicText
    epoch: int
    lease: float = FREEZE


class Reached(msgspec.Struct):
    """Asks a copy to say how far it is once it holds `last` of an epoch, or `timeout` seconds are
    over."""

    name: TopicText
    epoch: int
    last: int
    timeout: float


class Moves:
    """Moves topics, each when it is asked to; `ask` asks a site's agent."""

    def __init__(self, store: Store, ask: Ask) -> None:
        self._store = store
        self._ask = ask
        self._tasks = Tasks("a move")

    async def close(self) -> None:
        """Stop; a home that is shut opens again by itself."""
        await self._tasks.close()

    async def move(
        self, entry: TopicEntry, members: tuple[str, ...], settings: TopicSettings | None = None
    ) -> TopicEntry:
        """Give the topic these members, the home first, and these settings, if they are to be
        others; return its new entry, which is written and which its sites have yet to be told. If
        that fails, everything is as before, and the home opens again."""
        await self._precopy(entry, members)
        frozen = False
        try:
            body = FreezeRequest(entry.name, entry.epoch)
            last = msgspec.json.decode(
                await self._ask(entry.home, "peer.freeze", body, timeout=FREEZE / 2), type=int
            )
            frozen = True
            home = await self._wait_for(entry, members, last)
            current = self._store.get(topic_key(entry.name), TopicEntry)
            if current != entry:
                raise Conflict(f"{entry.name} was changed meanwhile", "Try again.")
            fresh = next_epoch(entry, members, last, home, goes_on=members[0] == entry.home)
            if settings is not None:
                fresh = msgspec.structs.replace(fresh, settings=settings)
            await self._store.put(topic_key(entry.name), fresh)
        except BaseException:
            if frozen:  # it opens again by itself; sooner is better
                self._tasks.spawn(self._reopen(entry))
            raise
        return fresh

    async def _reopen(self, entry: TopicEntry) -> None:
        """A move failed behind the freeze: the same home goes on in a new epoch."""
        with contextlib.suppress(SkerryError):
            data = await self._ask(entry.home, "peer.state", {"name": entry.name})
            state = msgspec.json.decode(data, type=State)
            current = self._store.get(topic_key(entry.name), TopicEntry)
            if current == entry:
                await self._store.put(
                    topic_key(entry.name), next_epoch(entry, entry.members, state.last)
                )

    async def _precopy(self, entry: TopicEntry, members: tuple[str, ...]) -> None:
        """Have the members that are new get the log, while the home goes on."""
        fresh = [site for site in members if site not in entry.members]
        wanted = msgspec.structs.replace(entry, members=(*entry.members, *fresh))
        for site in fresh:
            await self._ask_again(site, "peer.prepare", wanted, SETTLE_TIME)
        deadline = asyncio.get_running_loop().time() + PRECOPY
        behind = set(members) - {entry.home}
        behind = {site for site in behind if site in fresh or site == members[0]}
        while behind:
            current = self._store.get(topic_key(entry.name), TopicEntry)
            if current is None or current.epoch != entry.epoch:  # then nobody gets to `entry.epoch`
                raise Conflict(f"{entry.name} was changed meanwhile", "Try again.")
            home = await self._state(entry.home, entry.name)
            if home is None:
                raise MoveFailed(f"{entry.home} has no log of {entry.name}")
            for site in list(behind):
                state = await self._state(site, entry.name)
                if state is None:  # it is just replacing a log of its own
                    await self._ask(site, "peer.prepare", wanted, timeout=SETTLE_TIME)
                elif state.full and site == members[0]:
                    raise MoveFailed(f"the disk of {site} is full")
                elif (state.split or state.doubted) and site == members[0]:
                    continue  # it leads once its log is in one piece, and has all that it had
                elif state.label == entry.epoch and state.last >= home.last:
                    behind.discard(site)
            if asyncio.get_running_loop().time() > deadline:
                raise MoveFailed(f"{', '.join(sorted(behind))} did not get the log in time")
            if behind:
                await asyncio.sleep(0.02)

    async def _state(self, site: str, name: str) -> State | None:
        data = await self._ask_again(site, "peer.state", {"name": name}, 2.0)
        return msgspec.json.decode(data, type=State | None)

    async def _ask_again(self, site: str, service: str, body: object, timeout: float) -> bytes:
        """Ask a site that is linked, for a while. Its beats may come before its engine has told
        ours that somebody listens there: seen once in 169 runs right after a start. And one that
        does not answer in time is asked once more, for nothing is lost by that, and a link that
        ends takes a question along."""
        deadline = asyncio.get_running_loop().time() + HEARD + timeout
        while True:
            try:
                return await self._ask(site, service, body, timeout=timeout)
            except Unavailable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(0.02)

    async def _wait_for(self, entry: TopicEntry, members: tuple[str, ...], last: int) -> State:
        """Until the new home, and enough of the next members, hold the frozen log. What the new
        home told of itself."""

        async def reached(site: str) -> State | None:
            with contextlib.suppress(SkerryError):
                body = Reached(entry.name, entry.epoch, last, FREEZE / 2)
                data = await self._ask(site, "peer.reached", body, timeout=FREEZE / 2 + 0.5)
                return msgspec.json.decode(data, type=State | None)
            return None

        asked = {asyncio.create_task(reached(site)): site for site in members}
        states: dict[str, State] = {}
        try:
            for done in asyncio.as_completed(list(asked)):
                state = await done
                if state is not None:
                    states[state.site] = state
                if may_cut_over(members, states, entry.epoch, last):
                    return states[members[0]]
        finally:
            for task in asked:
                task.cancel()
        raise MoveFailed("the next home did not get the last events in time")
