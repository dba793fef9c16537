"""Which topics plain subscribers want."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from skerry.errors import Unavailable
from skerry.fabric.interest import Interest, matched, tree_of
from tests.conftest import until

token = st.sampled_from("abc")
topic = st.lists(token, min_size=1, max_size=4).map("/".join)
pattern = st.builds(
    lambda tokens, end: "t." + ".".join([*tokens, *end]),
    st.lists(st.one_of(token, st.just("*")), min_size=1, max_size=4),
    st.sampled_from([[], [">"]]),
)


def could_match(topic: str, pattern: str) -> bool:
    """The same, slowly: try the topic, and sub-topics as deep as the pattern is."""
    words = pattern.split(".")[1:]
    own = topic.split("/")
    for depth in range(len(words) + 2):
        below = [words[n] if n < len(words) else "x" for n in range(len(own), len(own) + depth)]
        if _matches([*own, *("x" if word in "*>" else word for word in below)], words):
            return True
    return False


def _matches(tokens: list[str], words: list[str]) -> bool:
    for at, word in enumerate(words):
        if word == ">":
            return len(tokens) > at
        if at == len(tokens) or word not in ("*", tokens[at]):
            return False
    return len(tokens) == len(words)


@given(st.sets(topic, max_size=8), st.lists(pattern, max_size=4))
def test_matching_is_that_of_trying_every_topic(topics: set[str], patterns: list[str]) -> None:
    slowly = {t for t in topics if any(could_match(t, p) for p in patterns)}
    assert matched(tree_of(topics), patterns) == slowly


def test_what_mqtt_patterns_become() -> None:
    topics = tree_of(["sensors", "area/1/logs", "area/2/logs"])
    assert matched(topics, ["t.sensors.>", "t.sensors"]) == {"sensors"}  # t/sensors/#
    assert matched(topics, ["t.sensors.roof.temp"]) == {"sensors"}
    assert matched(topics, ["t.area.*.logs"]) == {"area/1/logs", "area/2/logs"}
    assert matched(topics, ["t.area.1"]) == set()
    assert matched(topics, ["t.>"]) == {"sensors", "area/1/logs", "area/2/logs"}
    assert matched(topics, ["t", "e.>", ">", "_INBOX.t.>"]) == set()


class FakeSystem:
    """An engine whose subscriptions we say; counts how often they are listed."""

    def __init__(self) -> None:
        self.changes = 0
        self.subjects: set[str] = set()
        self.listed = 0

    def subscribe(self, *subjects: str) -> None:
        self.changes += 1
        self.subjects = set(subjects)

    async def subscription_counts(self) -> tuple[int, int]:
        return self.changes, 0

    async def subscribed(self) -> set[str]:
        self.listed += 1
        return self.subjects


async def test_a_wanted_topic_is_asked_for_again_while_somebody_subscribes() -> None:
    system, asked, topics = FakeSystem(), list[str](), ["a", "b"]

    async def want(name: str) -> None:
        asked.append(name)

    interest = Interest(system, lambda: topics, want, life=40)  # type: ignore[arg-type]

    async def look(now: float) -> list[str]:
        asked.clear()
        await interest.look(now)
        await asyncio.sleep(0)
        return sorted(asked)

    assert await look(0) == []
    system.subscribe("t.a.x", "_INBOX.y")
    assert await look(1) == ["a"]
    assert await look(2) == []
    assert await look(11) == ["a"]
    assert system.listed == 2  # only when something changed
    system.subscribe("t.>")
    assert await look(12) == ["b"]
    topics.append("c")  # made while somebody waits for it
    assert await look(13) == ["c"]
    system.subscribe()
    assert await look(100) == []
    await interest.close()


async def test_what_could_not_be_fetched_is_asked_for_at_the_next_look() -> None:
    system, tries = FakeSystem(), list[str]()

    async def want(name: str) -> None:
        tries.append(name)
        raise Unavailable("the home is away")

    interest = Interest(system, lambda: ["a"], want, life=40)  # type: ignore[arg-type]
    system.subscribe("t.a")
    for now in range(3):
        await interest.look(now)
        await until(lambda: not interest._fetching)
    assert tries == ["a"] * 3
    await interest.close()
