"""How a site is started: what was asked for, and what its data folder remembers of the last time.

`settings.json` in the data folder holds what `skerry up` was told, now or before, and nothing of
what it was not: a default that changes with a version still does. It is written once the site is
up, so that options which do not work are not remembered.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from skerry.config import SiteSettings
from skerry.engine.address import write_secret
from skerry.engine.folder import SiteFile, unwritable
from skerry.errors import FolderCorrupt
from skerry.model.fabric import Tier
from skerry.model.topic import Durability

FILE = "settings.json"


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a site as `SiteSettings` has them; those that nobody gave are unset. `None` is
    given too: no such listener, no such limit."""

    host: str | UnsetType = UNSET
    advertise: str | UnsetType | None = UNSET
    port: int | UnsetType = UNSET
    mqtt_port: int | UnsetType | None = UNSET
    websocket_port: int | UnsetType | None = UNSET
    plain: bool | UnsetType = UNSET
    durability: Durability | UnsetType = UNSET
    max_store: int | UnsetType | None = UNSET
    max_event_bytes: int | UnsetType = UNSET
    tls_cert: str | UnsetType | None = UNSET
    tls_key: str | UnsetType | None = UNSET
    tier: Tier | UnsetType = UNSET
    link_port: int | UnsetType | None = UNSET
    silence: float | UnsetType = UNSET
    insecure: bool | UnsetType = UNSET
    engine: str | UnsetType | None = UNSET
    """The URL of an engine that the user runs, which may hold a password."""

    def given(self) -> dict[str, Any]:
        """Those that are set."""
        return {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not UNSET
        }

    def over(self, earlier: Options) -> Options:
        """These, and of those that are not set the earlier ones."""
        return Options(**{**earlier.given(), **self.given()})

    def settings(self, site: str, data: Path) -> SiteSettings:
        """What they make of a site, with the defaults for all else."""
        found = self.given()
        found.pop("engine", None)
        for name in ("tls_cert", "tls_key"):
            if found.get(name) is not None:
                found[name] = Path(found[name])
        return SiteSettings(site=site, data=data, **found).check()


def remembered(data: Path) -> Options:
    """What the site in this folder was started with last; nothing is set if it never was."""
    file = data / FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=Options)
    except FileNotFoundError:
        return Options()
    except (OSError, ValueError) as error:
        raise FolderCorrupt(
            f"{file} cannot be read: {error}",
            "Correct it, or delete it and give `skerry up` its options once more.",
        ) from None


def remember(data: Path, options: Options) -> None:
    """Have the next start find these."""
    try:
        write_secret(data / FILE, msgspec.json.format(msgspec.json.encode(options), indent=2))
    except OSError as error:
        raise unwritable(data, error) from None


def site_of(data: Path) -> str | None:
    """The site whose data folder this is, where there is one; what is wrong with its file, the one
    who opens the folder says."""
    try:
        return msgspec.json.decode((data / "site.json").read_bytes(), type=SiteFile).site
    except (OSError, ValueError):
        return None
