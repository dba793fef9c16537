"""The examples `uav` and `mmog`, small: real clients that move, and topics that follow them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from examples.mmog.__main__ import LivePlayers
from examples.roaming import command, report
from examples.roaming.world import World
from examples.uav.__main__ import LiveSwarms
from skerry.testing import Wan

pytestmark = pytest.mark.skipif(
    Wan.unavailable() is not None, reason=f"no emulated WAN: {Wan.unavailable()}"
)
SEED = 1


class FewSwarms(LiveSwarms):
    """Two, fast: each is in another zone every few seconds."""

    SWARMS, MEMBERS, SPEED = 2, 2, 700.0


class FewPlayers(LivePlayers):
    """Six in two groups in three cities, who do not stay for long."""

    PLAYERS, GROUPS, STAYS = 6, 2, (3.0, 6.0)
    NAMES: tuple[str, ...] = ("New York", "Los Angeles", "Seattle")


@pytest.mark.long
@pytest.mark.parametrize("kind", [FewSwarms, FewPlayers])
async def test_topics_follow_their_clients(kind: Callable[[int], World], tmp_path: Path) -> None:
    """ePulsar, section 5.8: topics leave the homes that they began at where those are too far away,
    and go to where they have clients; and the picture shows it."""
    make = partial(kind, SEED)
    played = await command.play(make, 6.0, 20.0, SEED, lambda text: None)
    placed, hashed, pairs = (played.runs[rule] for rule in ("placement", "hashing", "all-pairs"))
    assert not hashed.moves
    at_first = {move.topic for move in pairs.moves if move.at == 0}
    assert at_first & {move.topic for move in placed.moves}
    used = played.where.publishes | played.where.subscribes
    assert all(used[:, move.topic, move.target].any() for move in placed.moves)
    picture = tmp_path / "picture.png"
    panels = make().panels(len(placed.seconds))
    report.draw("few", placed, played.where, played.lines, panels, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
