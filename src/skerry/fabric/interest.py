"""Plain subscribers get a copy: whatever an MQTT, NATS or WebSocket client here subscribes to.

Theory of operation. The SDK asks the agent for a copy before it reads; a plain client just
subscribes to `t.…`, and the engine tells nobody. So we look: whether subscriptions came or went
since the last time, which the engine counts, and only then which they are. Every topic that one of
them could match, itself or by a sub-topic, is wanted, now and again for as long as that holds;
a copy that is not wanted for a while is removed like one that nobody reads.

Looking costs the engine 3 µs a subscription (88 ms for 30 000, measured), so the more there are the
less often we look.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from skerry.engine.link import Down
from skerry.engine.system import System
from skerry.errors import SkerryError
from skerry.fabric.tasks import Tasks

log = logging.getLogger("skerry.fabric")

LOOK = 1.0
"""Seconds between looks; a subscriber waits so long for its copy, and as long as that takes."""
SHARE = 0.02
MOST = 10.0
"""The part of the time that looking may take; and seconds between looks at the most, for on a busy
machine a look takes long and costs little."""
AT_ONCE = 8
"""Copies that are fetched at the same time."""

_TOPIC = ""  # no token is empty

Tree = dict[str, Any]
"""Topics by token; `_TOPIC` holds the name of the one that ends here."""


def tree_of(topics: Iterable[str]) -> Tree:
    """Topics, ready to be matched."""
    root: Tree = {}
    for topic in topics:
        node = root
        for token in topic.split("/"):
            node = node.setdefault(token, {})
        node[_TOPIC] = topic
    return root


def matched(tree: Tree, subjects: Iterable[str]) -> set[str]:
    """The topics of which at least one event, on the topic or on a sub-topic, could be delivered to
    a subscriber of one of `subjects`."""
    found: set[str] = set()
    for subject in subjects:
        if subject.startswith("t."):
            found.update(_walk(tree, subject.split("."), 1))
    return found


def _walk(node: Tree, tokens: list[str], at: int) -> Iterator[str]:
    if _TOPIC in node:  # what follows in the subject names its sub-topics
        yield node[_TOPIC]
    if at == len(tokens):
        return
    word = tokens[at]
    if word == ">":
        for name, child in node.items():
            if name != _TOPIC:
                yield from _walk(child, tokens, at)
    elif word == "*":
        for name, child in node.items():
            if name != _TOPIC:
                yield from _walk(child, tokens, at + 1)
    elif word in node:
        yield from _walk(node[word], tokens, at + 1)


class Interest:
    """Keeps what plain clients of this site subscribe to wanted.

    `topics` lists the fabric's topics; `want` has a copy of one kept here for the next `life`
    seconds, and may take its time or fail, then it is asked again at the next look.
    """

    def __init__(
        self,
        system: System,
        topics: Callable[[], Iterable[str]],
        want: Callable[[str], Awaitable[object]],
        life: float,
    ) -> None:
        self._system = system
        self._topics = topics
        self._want = want
        self._renew = life / 4
        self._counts = (-1, -1)
        self._names: set[str] = set()
        self._tree: Tree = {}
        self._subjects: set[str] = set()
        self._wanted: set[str] = set()
        self._due: dict[str, float] = {}
        """When each wanted topic is asked for again."""
        self._fetching: set[str] = set()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks = Tasks("fetching for plain subscribers")

    def start(self) -> None:
        """Begin to look."""
        self._tasks.spawn(self._keep())

    @property
    def wanted(self) -> set[str]:
        """The topics that plain clients of this site subscribe to."""
        return self._wanted

    async def close(self) -> None:
        """Stop; copies stay."""
        await self._tasks.close()

    async def _keep(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            with contextlib.suppress(SkerryError, Down):
                await self.look(began)
            took = clock() - began
            most = min(MOST, self._renew)  # else copies end before they are wanted again
            await asyncio.sleep(max(min(LOOK, most), min(took / SHARE, most)))

    async def look(self, now: float) -> None:
        """See who subscribes to what, and ask for the copies that are due."""
        counts = await self._system.subscription_counts()
        if counts != self._counts:
            everything = await self._system.subscribed()
            subjects = {subject for subject in everything if subject.startswith("t.")}
            self._counts = counts
        else:
            subjects = self._subjects
        names = set(self._topics()) if subjects else self._names
        if names != self._names:
            self._names, self._tree = names, tree_of(names)
        elif subjects == self._subjects:
            self._ask(now)
            return
        self._subjects = subjects
        self._wanted = matched(self._tree, subjects)
        self._due = {name: when for name, when in self._due.items() if name in self._wanted}
        self._ask(now)

    def _ask(self, now: float) -> None:
        for name in self._wanted:
            if self._due.get(name, now) <= now and name not in self._fetching:
                self._due[name] = now + self._renew
                self._fetching.add(name)
                self._tasks.spawn(self._fetch(name))

    async def _fetch(self, name: str) -> None:
        try:
            async with self._slots:
                await self._want(name)
        except (SkerryError, Down) as error:
            self._due.pop(name, None)
            log.debug("no copy of %s for plain subscribers yet: %s", name, error)
        finally:
            self._fetching.discard(name)
