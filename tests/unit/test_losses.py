"""When the leader takes a site for lost."""

from __future__ import annotations

from skerry.fabric.losses import ABSENT, ABSENT_WAYS, ALONE, Losses, Lost

SITES = ["hub", "farm", "lab"]


def losses(*observers: str, silence: float = 0.8, way: float = 0.0) -> Losses:
    return Losses("hub", lambda site: observers, lambda site: silence, lambda site: way)


def test_a_refused_connection_is_proof() -> None:
    known = losses("lab")
    known.observe(Lost("farm", "lab", "refused"))
    assert known.dead == {"farm"}
    assert known.why("farm") == "lab: refused"


def test_a_closed_link_takes_a_second_observer_if_there_is_one() -> None:
    known = losses("lab")
    known.observe(Lost("farm", "hub", "closed"))
    assert not known.dead
    known.observe(Lost("farm", "lab", "silent"))
    assert known.dead == {"farm"}
    alone = losses()
    alone.observe(Lost("farm", "hub", "closed"))
    assert alone.dead == {"farm"}


def test_others_alone_prove_nothing() -> None:
    """The leader still hears the site: what they lost is their own link."""
    known = losses("lab", "mill")
    for observer in ("lab", "mill"):
        known.observe(Lost("farm", observer, "closed"))
    known.look(SITES, ["farm", "lab"], 0.0)
    known.look(SITES, ["farm", "lab"], 100.0)
    assert not known.dead


def test_time_replaces_the_second_observer() -> None:
    known = losses("lab")
    known.observe(Lost("farm", "hub", "silent"))
    known.look(SITES, ["lab"], 10.0)
    known.look(SITES, ["lab"], 10.0 + ALONE * 0.8)
    assert not known.dead
    known.look(SITES, ["lab"], 10.1 + ALONE * 0.8)
    assert known.dead == {"farm"}


def test_a_far_site_may_be_silent_for_longer() -> None:
    known = losses("lab", silence=2.5)
    known.observe(Lost("farm", "hub", "silent"))
    known.look(SITES, ["lab"], 0.0)
    known.look(SITES, ["lab"], ALONE * 2.5)
    assert not known.dead
    known.look(SITES, ["lab"], ALONE * 2.5 + 0.1)
    assert known.dead == {"farm"}


def test_a_far_site_may_take_longer_to_come() -> None:
    known = losses("lab", way=2.0)
    known.look(SITES, ["lab"], 0.0)
    known.look(SITES, ["lab"], ABSENT + ABSENT_WAYS * 2.0)
    assert not known.dead
    known.look(SITES, ["lab"], ABSENT + ABSENT_WAYS * 2.0 + 0.1)
    assert known.dead == {"farm"}


def test_a_site_that_never_came_is_lost() -> None:
    known = losses("lab")
    known.look(SITES, ["lab"], 0.0)
    known.look(SITES, ["lab"], ABSENT)
    assert not known.dead
    known.look(SITES, ["lab"], ABSENT + 0.1)
    assert known.dead == {"farm"}


def test_a_site_is_back_when_the_leader_hears_it() -> None:
    known = losses("lab")
    known.observe(Lost("farm", "hub", "closed"))
    known.observe(Lost("farm", "lab", "closed"))
    known.observe(Lost("farm", "lab", "heard"))
    assert known.dead == {"farm"}
    known.observe(Lost("farm", "hub", "heard"))
    assert not known.dead


def test_nobody_tells_the_leader_of_itself() -> None:
    known = losses()
    known.observe(Lost("hub", "lab", "refused"))
    assert not known.dead
