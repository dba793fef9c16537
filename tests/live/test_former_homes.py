"""What was a home's stream is empty soon after: nobody takes that for the log."""

from __future__ import annotations

import pytest

from skerry.engine.address import find_address
from skerry.errors import Conflict, Unavailable
from skerry.feeds.home import Homes
from skerry.functions.access import Access
from skerry.functions.journal import Position, Progress, Record
from skerry.functions.ledger import Ledger
from tests.live.fabrics import three_sites
from tests.live.former import hold, leave, let_go


async def test_a_former_home_is_not_asked_what_a_feed_published() -> None:
    """It would seem that nothing was, or that it aged out."""
    async with (
        three_sites() as fabric,
        fabric.connect("hub", "admin") as admin,
        fabric.connect("hub") as client,
    ):
        await client.create_topic("t", home="farm", replicas=1, spread=["lab"])
        for n in range(3):
            await client.publish("t", str(n), ack="quorum")
        opened = client._open
        homes = Homes(opened.jetstream, opened.routes, opened.reader)

        async def behind() -> list[int]:
            return [event.index async for event in homes.behind("t", 1)]

        assert (await homes.newest("t"), await behind()) == (3, [2, 3])
        old = await leave(fabric, admin, "t", "lab")
        hold(opened.routes, old)
        with pytest.raises(Unavailable, match="not the home of t"):
            await behind()
        with pytest.raises(Unavailable, match="not the home of t"):
            await homes.newest("t")
        with pytest.raises(Unavailable, match="not the home of t"):
            await homes.latest("t")
        let_go(opened.routes, old)
        assert (await homes.newest("t"), await behind()) == (3, [2, 3])


async def test_a_home_that_goes_on_in_another_epoch_is_still_asked() -> None:
    async with (
        three_sites() as fabric,
        fabric.connect("hub", "admin") as admin,
        fabric.connect("hub") as client,
    ):
        await client.create_topic("t", home="farm")
        assert await client.publish("t", "x", ack="quorum") == 1
        opened = client._open
        homes = Homes(opened.jetstream, opened.routes, opened.reader)
        old = await opened.routes.find("t")
        assert old is not None
        await admin.move_topic("t", "farm", replicas=["lab"])
        hold(opened.routes, old)
        assert (await homes.newest("t"), await homes.latest("t")) == (1, 1)


async def test_a_journal_is_not_read_where_its_home_was() -> None:
    """A function that was given an empty one would begin at the beginning."""
    async with three_sites() as fabric, fabric.connect("hub", "admin") as admin:
        await admin.create_topic("j", home="farm", replicas=1, spread=["lab"], keep_last=1)
        access = await Access.open(find_address(fabric["hub"].data, "functions"))
        try:
            ledger = Ledger(access, "j")
            await ledger.open()
            progress = Progress(Position(7, 1))
            await ledger.write(Record(1, 0, progress))
            old = await leave(fabric, admin, "j", "lab")
            with pytest.raises(Unavailable, match="not the home of j"):
                await ledger._read(old)
            with pytest.raises(Unavailable, match="not the home of j"):
                await ledger._last_claim(old)
            with pytest.raises(Unavailable, match="not the home of j"):
                await access.stream("j", old)
            now = await access.routes.find("j")
            assert now is not None
            assert now.home == "lab"
            await ledger.renew()
            assert (await ledger._read(now)).progress == progress
            assert await ledger._last_claim(now) == ledger._claim
            ledger.close()
        finally:
            await access.close()


async def test_a_journal_whose_claim_is_gone_was_not_read_whole() -> None:
    async with three_sites() as fabric, fabric.connect("hub", "admin") as admin:
        await admin.create_topic("j", home="farm", keep_last=1)
        access = await Access.open(find_address(fabric["hub"].data, "functions"))
        try:
            first, second = Ledger(access, "j"), Ledger(access, "j")
            await first.open()
            await second.open()
            entry = await access.routes.find("j")
            with pytest.raises(Conflict, match="another host claimed the journal j"):
                await first._read(entry)
            await second._read(entry)
            first.close()
            second.close()
        finally:
            await access.close()
