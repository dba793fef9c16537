"""Join tokens and what a site remembers, without an engine."""

from __future__ import annotations

import base64
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.config import VERSION, SiteSettings
from skerry.engine.address import Address
from skerry.engine.binary import find_binary
from skerry.engine.conf import Ports
from skerry.engine.folder import Folder
from skerry.engine.nkeys import new_pair
from skerry.errors import BadSetting, FolderCorrupt, JoinRefused, NotInFabric, SiteTaken
from skerry.fabric.join import (
    MARK,
    JoinRequest,
    Membership,
    Pass,
    begin,
    check_joiner,
    check_token,
    make_token,
    read_token,
    site_record,
)
from skerry.model.fabric import PROTOCOL

ADDRESS = Address(site="hub", host="hub.example", port=4222, user="join", password="pass")
FABRIC = Membership(id="f1", name="coast", coordination="hub", secret="known only here")
TOKEN = make_token(FABRIC, ADDRESS)
LAB = site_record(SiteSettings(site="lab", data=Path("/nowhere")), Ports(1, None, None))


def write_token(given: Pass) -> str:
    """A token that says what `given` does, as anyone can write one."""
    return MARK + base64.urlsafe_b64encode(msgspec.json.encode(given)).decode().rstrip("=")


def test_a_token_says_where_to_go_and_how_long_it_is_good() -> None:
    before = time.time()
    given = check_token(FABRIC, make_token(FABRIC, ADDRESS, life=60))
    assert given.address == ADDRESS
    assert given.fabric == "f1"
    assert before + 60 <= given.expires <= time.time() + 60


def test_no_two_tokens_are_the_same() -> None:
    tokens = {make_token(FABRIC, ADDRESS) for _ in range(100)}
    assert len({read_token(token).id for token in tokens}) == len(tokens) == 100


@pytest.mark.parametrize("life", [0, 0.99, -1, 366 * 24 * 3600, float("nan"), float("inf")])
def test_a_life_out_of_range_is_refused(life: float) -> None:
    with pytest.raises(BadSetting, match="1 second to 365 days"):
        make_token(FABRIC, ADDRESS, life)


def test_only_the_coordination_site_makes_tokens() -> None:
    joined = msgspec.structs.replace(FABRIC, secret="")
    with pytest.raises(NotInFabric, match="coordination site hub"):
        make_token(joined, ADDRESS)


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "another"},
        {"fabric": "f2"},
        {"expires": 1e12},
        {"address": msgspec.structs.replace(ADDRESS, host="evil.example")},
        {"mac": ""},
        {"mac": "0" * 64},
        {"mac": "schlüssel"},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_a_changed_token_is_refused(changes: dict[str, object]) -> None:
    given = msgspec.structs.replace(read_token(make_token(FABRIC, ADDRESS)), **changes)
    with pytest.raises(JoinRefused, match="not one of this fabric's"):
        check_token(FABRIC, write_token(given))


@pytest.mark.parametrize("changes", [{"secret": "guessed"}, {"id": "f2"}], ids=["secret", "fabric"])
def test_a_token_of_another_fabric_is_refused(changes: dict[str, str]) -> None:
    other = msgspec.structs.replace(FABRIC, **changes)
    with pytest.raises(JoinRefused, match="not one of this fabric's"):
        check_token(FABRIC, make_token(other, ADDRESS))


def test_an_expired_token_says_when_it_did() -> None:
    token = make_token(FABRIC, ADDRESS, life=1)
    while time.time() <= read_token(token).expires:
        time.sleep(0.01)
    with pytest.raises(JoinRefused, match=r"expired at 20\d\d-\d\d-\d\dT") as caught:
        check_token(FABRIC, token)
    assert "skerry fabric token" in caught.value.advice


@given(st.data())
def test_a_token_cut_short_or_misspelled_is_never_good(data: st.DataObject) -> None:
    token = TOKEN
    where = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.characters())
    for wrong in (token[:where], token[:where] + other + token[where + 1 :]):
        try:
            same = read_token(wrong) == read_token(token)
        except BadSetting:
            continue
        if not same:  # the last letter has bits that mean nothing
            with pytest.raises((JoinRefused, BadSetting)):
                check_token(FABRIC, wrong)


@given(st.text() | st.text().map(MARK.__add__) | st.binary().map(lambda b: MARK + b.hex()))
def test_any_other_text_is_no_token(text: str) -> None:
    with pytest.raises(BadSetting, match="no join token"):
        read_token(text)


def test_a_membership_is_remembered_and_kept_private(tmp_path: Path) -> None:
    known = msgspec.structs.replace(FABRIC, seeds={"hub": "SU…"}, link_port=7422)
    known.save(tmp_path)
    assert Membership.load(tmp_path) == known
    assert (tmp_path / "fabric.json").stat().st_mode & 0o777 == 0o600


def test_a_folder_without_a_membership_is_in_no_fabric(tmp_path: Path) -> None:
    assert Membership.load(tmp_path) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff\xfe"])
def test_a_damaged_membership_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "fabric.json").write_bytes(content)
    with pytest.raises(FolderCorrupt, match=r"fabric\.json"):
        Membership.load(tmp_path)


def test_a_fabric_begins_once(tmp_path: Path) -> None:
    folder = Folder.open(tmp_path, "hub", find_binary()[1])
    try:
        first = begin(folder, "coast")
        assert (first.coordination, first.coordinator) == ("hub", None)
        assert len(first.secret) >= 32
        with pytest.raises(BadSetting, match="already part of the fabric 'coast'"):
            begin(folder, "shore")
        assert Membership.load(tmp_path) == first
    finally:
        folder.close()


def request(**changes: object) -> JoinRequest:
    """What a site asks that is as it should be, but for `changes` of it."""
    key = str(changes.pop("key", new_pair()[1]))
    return JoinRequest(token="t", site=msgspec.structs.replace(LAB, **changes), key=key)


def test_a_joiner_of_another_protocol_hears_both_versions() -> None:
    check_joiner(request(), None)
    with pytest.raises(JoinRefused) as caught:
        check_joiner(request(protocol=PROTOCOL + 1, version="9.9.9"), None)
    for part in ("9.9.9", f"protocol {PROTOCOL + 1}", VERSION, f"protocol {PROTOCOL}"):
        assert part in caught.value.what


def test_a_joiner_needs_a_name_of_its_own() -> None:
    with pytest.raises(SiteTaken, match="'lab'"):
        check_joiner(request(), LAB)
