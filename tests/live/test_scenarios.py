"""The examples `uav` and `mmog`, small: real clients that move, and topics that follow them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from examples.mmog.__main__ import LivePlayers
from examples.roaming import command, report
from examples.roaming.judge import windows
from examples.roaming.world import World, homes_of, latency_of
from examples.uav.__main__ import LiveSwarms
from skerry.sim.roaming import STEP, hashed_homes
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


@pytest.mark.parametrize("kind", [FewSwarms, FewPlayers])
async def test_topics_follow_clients_that_move(kind: type[World], tmp_path: Path) -> None:
    """ePulsar, section 5.8: what the oracle of all pairs would move has moved to where all of its
    clients are near enough, and the picture shows it."""
    make = partial(kind, SEED)  # type: ignore[call-arg]
    played = await command.play(make, 9.0, 20.0, SEED, lambda text: None)
    placed, hashed, pairs = (played.runs[rule] for rule in ("placement", "hashing", "all-pairs"))
    assert placed.moves
    assert not hashed.moves
    world = make()
    first = hashed_homes(world, SEED)
    homes = homes_of(placed, first)
    ways = latency_of(world, played.where, homes, played.lines)
    for move in placed.moves:
        # When it was decided its clients may have been elsewhere, but not before the last step
        # in which they came.
        step = min(int(move.at / STEP), len(placed.seconds) - 1)
        assert (played.where.subscribes[: step + 1, move.topic, move.target]).any()
    assert {move.topic for move in pairs.moves if move.at == 0} <= {m.topic for m in placed.moves}
    assert np.nanmean(ways > world.bound) < 1
    assert windows(placed, played.where)
    picture = tmp_path / "picture.png"
    panels = make().panels(len(placed.seconds))
    report.draw("few", placed, played.where, played.lines, panels, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
