"""Which topics are meant: a name, or a pattern with MQTT's wildcards.

A plain name means a topic or sub-topic and all below it, as everywhere in Skerry. In a pattern `+`
stands for one level and `#`, at the end, for any number of levels, none included; below what a
pattern without `#` names, nothing is read.
"""

from __future__ import annotations

import msgspec

from skerry.errors import BadName
from skerry.model.names import check_topic, is_within, stored_subject


class Pattern(msgspec.Struct, frozen=True):
    """A topic's name, or a pattern of names."""

    text: str

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Read a name or pattern; `BadName` if it is none."""
        tokens = text.split("/")
        if "#" in tokens[:-1]:
            raise BadName(f"the pattern {text!r} has # before its end", "Use + for one level.")
        plain = ["x" if token in ("+", "#") else token for token in tokens]
        check_topic("/".join(plain))
        return cls(text)

    @property
    def is_plain(self) -> bool:
        """Whether it has no wildcard."""
        return not any(token in ("+", "#") for token in self.text.split("/"))

    def matches(self, name: str) -> bool:
        """Whether events published to `name` are meant."""
        if self.is_plain:
            return is_within(name, self.text)
        tokens, own = name.split("/"), self.text.split("/")
        if own[-1] == "#":
            own = own[:-1]
            if len(tokens) < len(own):
                return False
            tokens = tokens[: len(own)]
        return len(tokens) == len(own) and all(
            mine in ("+", theirs) for mine, theirs in zip(own, tokens, strict=True)
        )

    def subjects(self, topic: str) -> tuple[str, ...] | None:
        """What of the log of `topic` is meant, as filters of the engine: () is all of it, None is
        nothing."""
        tokens, own = topic.split("/"), self.text.split("/")
        open_ended = self.is_plain or own[-1] == "#"
        if own[-1] == "#":
            own = own[:-1]
        shared = min(len(tokens), len(own))
        if any(
            mine not in ("+", theirs)
            for mine, theirs in zip(own[:shared], tokens[:shared], strict=True)
        ):
            return None
        if len(own) <= len(tokens):
            if open_ended:
                return ()
            return (stored_subject(topic),) if len(own) == len(tokens) else None
        rest = [level.replace("+", "*") for level in own[len(tokens) :]]
        subject = ".".join([stored_subject(topic), *rest])
        return (subject, f"{subject}.>") if open_ended else (subject,)
