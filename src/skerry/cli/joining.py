"""What `skerry up` is told of the fabric: the token to join with, the port for links."""

from __future__ import annotations

import sys
from pathlib import Path

from skerry.config import DEFAULT_LINK_PORT
from skerry.errors import BadSetting
from skerry.fabric.join import Membership, read_token
from skerry.model.fabric import Tier


def find_token(join: str | None, file: Path | None) -> str | None:
    """The token that was given, one way or the other."""
    if file is None:
        return None if join is None else join.strip()
    if join is not None:
        raise BadSetting(
            "there are two join tokens", "Give one of --join-file, $SKERRY_JOIN and --join."
        )
    if str(file) == "-":
        return sys.stdin.read().strip()
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(
            f"the join token cannot be read from {file}: {_why(error)}", "Check path and owner."
        ) from None


def _why(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is no text"


def check_token(token: str, data: Path, membership: Membership | None) -> None:
    """Raise `BadSetting` if `token` cannot be one, or if it is for another fabric than the one that
    this site is part of. For the same fabric it may be given again and again, and is not used."""
    given = read_token(token)
    if membership is not None and given.fabric != membership.id:
        raise BadSetting(
            f"{data} is part of the fabric {membership.name!r}, and the join token is another's",
            "Start it without the token, or choose another folder with --data.",
        )


def find_link_port(
    site: str, tier: Tier, port: int | None, membership: Membership | None
) -> tuple[int | None, str]:
    """The port to take links on, None for none; and what a person should be told of the choice."""
    if port is not None:
        return port, ""
    if tier == "hub" and membership is not None and membership.coordination == site:
        # Other sites remember where this one takes links.
        port = membership.link_port or DEFAULT_LINK_PORT
        return port, f"taking links on port {port}; choose another with --link-port"
    return None, ""


def check_links(port: int | None, token: str | None, membership: Membership | None) -> None:
    """Raise `BadSetting` if nobody could ever link to this site."""
    if port is not None and token is None and membership is None:
        raise BadSetting(
            "this site is part of no fabric, so no other site can link to it",
            "Begin one with `skerry fabric init`, join one with --join, or start it without links.",
        )
