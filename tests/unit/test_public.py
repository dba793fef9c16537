"""The public names are exactly these, documented, and the errors form the tree that is drawn."""

from __future__ import annotations

import inspect

import skerry
import skerry.errors
import skerry.sync
import skerry.testing
from skerry.errors import SkerryError

PUBLIC = {
    "Client",
    "Event",
    "Feed",
    "Joined",
    "Left",
    "Missed",
    "Packer",
    "Publisher",
    "Received",
    "SkerryError",
    "Subscription",
    "Topic",
    "TopicSettings",
    "connect",
    "errors",
    "function",
    "pipeline",
}


def test_the_public_names_are_these() -> None:
    assert set(skerry.__all__) == PUBLIC
    assert all(getattr(skerry, name) for name in PUBLIC)
    assert set(skerry.sync.__all__) == {
        "SyncClient",
        "SyncFeed",
        "SyncPacker",
        "SyncPublisher",
        "SyncQuery",
        "SyncSubscription",
        "connect",
    }
    assert set(skerry.testing.__all__) == {
        "LocalFabric", "LocalSite", "Traffic", "Wan", "WanFabric"
    }  # fmt: skip


def test_every_public_thing_has_a_docstring() -> None:
    for name in PUBLIC - {"errors"}:
        thing = getattr(skerry, name)
        assert thing.__doc__, name
        for method, value in inspect.getmembers(thing, inspect.isfunction):
            if not method.startswith("_"):
                assert value.__doc__, f"{name}.{method}"


def test_the_synchronous_face_has_the_same_names() -> None:
    def names(kind: type) -> set[str]:
        return {n for n in dir(kind) if not n.startswith("_")}

    assert names(skerry.Client) - {"open", "address"} == names(skerry.sync.SyncClient)
    for name in names(skerry.sync.SyncClient) - {"site", "close", "publisher"}:
        theirs = inspect.signature(getattr(skerry.Client, name))
        ours = inspect.signature(getattr(skerry.sync.SyncClient, name))
        assert list(theirs.parameters) == list(ours.parameters), name


def test_the_error_tree_is_drawn_whole() -> None:
    drawn = skerry.errors.__doc__ or ""
    for name, thing in vars(skerry.errors).items():
        if inspect.isclass(thing) and issubclass(thing, SkerryError):
            assert name in drawn, name


def test_an_error_says_what_happened_and_what_to_do() -> None:
    error = skerry.errors.AgedOut("gone", "Read from 5.", 5)
    assert str(error) == "gone\nRead from 5."
    assert (error.what, error.advice, error.first) == ("gone", "Read from 5.", 5)
