"""What is demanded of a topic that somebody wants to make or change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from skerry.errors import BadSetting, TopicExists, TopicOverlap
from skerry.model.names import is_within
from skerry.model.topic import TopicSettings


def settings_of(name: str, given: dict[str, Any]) -> TopicSettings:
    """Settings as they came over the wire."""
    try:
        return msgspec.convert(given, TopicSettings, strict=True)
    except msgspec.ValidationError as error:
        raise BadSetting(f"the settings of {name} are wrong: {error}") from None


def check_same(name: str, known: TopicSettings, wanted: TopicSettings) -> None:
    """Raise unless a topic that exists is as somebody wants to make it."""
    differences = known.differences(wanted)
    if differences:
        raise TopicExists(
            f"topic {name} exists with other settings: "
            + "; ".join(f"{k} is {a}, not {b}" for k, (a, b) in differences.items()),
            f"Change it with `skerry topic set {name}`, or create it with the same settings.",
            differences,
        )


def check_overlap(name: str, others: Iterable[str]) -> None:
    """Raise if a new topic would share its log with one of `others`."""
    for other in others:
        if is_within(name, other):
            raise TopicOverlap(
                f"{name} is already a sub-topic of {other} and shares its log",
                f"Publish to {name} as it is; to give it a log of its own, delete {other}.",
            )
        if is_within(other, name):
            raise TopicOverlap(
                f"{name} would take in the existing topic {other}",
                f"Choose another name, or delete {other} first.",
            )
