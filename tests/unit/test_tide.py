"""What a site remembers of its logs: a folder that was set back is noticed, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skerry.engine.tide import POWER_CUT, Tide


def streams(last: int, *topics: str) -> list[dict[str, Any]]:
    """What the engine says of the logs of some topics."""
    return [
        {
            "config": {"name": f"t~{topic}"},
            "created": "2026-01-01T00:00:00Z",
            "state": {"last_seq": last},
        }
        for topic in topics or "t"
    ]


def tide_of(folder: Path, notes: int, heard: int | None = 0) -> Tide:
    """A tide that was written down some times while other sites were there."""
    tide = Tide(folder)
    if heard is not None:
        tide.hear(tide.folder, heard)
    for last in range(1, notes + 1):
        tide.note(streams(last))
    return tide


def begun(folder: Path, *topics: str) -> Tide:
    """That of a site that has just begun."""
    tide = Tide(folder)
    tide.look(streams(9, *topics))
    return tide


def hear(tide: Tide, number: int) -> bool:
    """Another site was told a number of the very same folder."""
    return tide.hear(tide.folder, number)


def test_an_older_folder_is_noticed_once(tmp_path: Path) -> None:
    assert tide_of(tmp_path, 3).number == 3
    tide = begun(tmp_path)
    assert hear(tide, 4)
    assert tide.doubted == {"t": 4}
    assert not hear(tide, 4)
    assert hear(tide, 5)  # another site knows better still
    tide.settle("t", 4)
    assert tide.doubted == {"t": 5}
    tide.settle("t", 5)
    assert not tide.doubted


def test_a_folder_that_is_as_new_as_others_have_heard_is_believed(tmp_path: Path) -> None:
    tide_of(tmp_path, 3).close()
    tide = begun(tmp_path)
    assert not hear(tide, 0)
    assert not hear(tide, 3)
    assert not tide.doubted


def test_what_is_told_of_another_folder_says_nothing(tmp_path: Path) -> None:
    """A site of this name was struck, and joined again with an empty folder."""
    tide = begun(tmp_path)
    assert not tide.hear("another", 500)
    tide.note(streams(2))
    assert tide.number == 1
    assert Tide(tmp_path).folder == tide.folder


@pytest.mark.parametrize("is_early", [False, True])
def test_logs_that_were_not_written_down_yet_are_in_doubt_too(
    tmp_path: Path, is_early: bool
) -> None:
    """However early it is heard."""
    tide_of(tmp_path, 3)
    tide = Tide(tmp_path)
    if is_early:
        hear(tide, 9)
    tide.look(streams(9, "t", "newer"))
    if not is_early:
        hear(tide, 9)
    assert tide.doubted == {"t": 9, "newer": 9}


def test_it_stays_an_older_one_until_its_logs_have_all_again(tmp_path: Path) -> None:
    tide_of(tmp_path, 3)
    tide = begun(tmp_path)
    hear(tide, 9)
    tide.note(streams(7))
    tide.note([])  # an engine that has only just begun need not know all
    assert tide.number == 3
    assert hear(begun(tmp_path), 9)  # also after another start
    tide.settle("t", 9)
    tide.note(streams(8))
    assert tide.number == 10
    assert not hear(begun(tmp_path), 9)


def test_what_another_site_knew_is_not_forgotten_when_both_start_anew(tmp_path: Path) -> None:
    tide_of(tmp_path, 3)
    hear(begun(tmp_path), 9)
    tide = begun(tmp_path)
    assert tide.doubted == {"t": 9}
    hear(tide, 0)
    tide.settle("t", 9)
    tide.note(streams(10))
    assert not begun(tmp_path).doubted


def test_a_log_that_is_not_here_any_more_is_in_no_doubt(tmp_path: Path) -> None:
    tide_of(tmp_path, 3)
    tide = begun(tmp_path)
    hear(tide, 9)
    tide.forget("t")
    assert not tide.doubted


def test_a_site_that_hears_of_nobody_does_not_count_on(tmp_path: Path) -> None:
    """Else an older folder would soon have the number that others know."""
    tide_of(tmp_path, 3)
    tide = tide_of(tmp_path, 9, heard=None)
    assert tide.number == 3
    assert hear(tide, 4)


def test_a_power_cut_may_take_the_newest_notes(tmp_path: Path) -> None:
    tide_of(tmp_path, 3)
    for ahead, is_older in ((POWER_CUT, False), (POWER_CUT + 1, True)):
        tide = after_power_cut(tmp_path)
        assert hear(tide, 3 + ahead) == is_older


def test_it_may_have_taken_them_also_once_the_site_counts_on(tmp_path: Path) -> None:
    """The coordination site lost power as well and remembers nothing; a third one does."""
    tide_of(tmp_path, 3)
    tide = after_power_cut(tmp_path)
    hear(tide, 0)
    tide.note(streams(4))
    assert tide.number == 4
    assert not hear(tide, 3 + POWER_CUT)


def test_a_power_cut_takes_nothing_that_is_flushed(tmp_path: Path) -> None:
    tide_of(tmp_path, 3)
    tide = after_power_cut(tmp_path, is_flushed=True)
    assert hear(tide, 4)


def after_power_cut(folder: Path, is_flushed: bool = False) -> Tide:
    """That of a site whose machine went down."""

    class Again(Tide):
        def _read(self) -> Any:
            return "another boot", super()._read()[1]

    return Again(folder, is_flushed)
