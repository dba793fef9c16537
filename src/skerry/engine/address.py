"""Where an engine is and who to be there: an address, and the connection file that carries it."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from skerry.config import DEFAULT_PORT, default_data
from skerry.errors import BadSetting, FolderCorrupt, Unavailable


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Host, port and credentials of one site's engine. Secrets never show in its text form."""

    site: str
    host: str
    port: int
    user: str = ""
    password: str = ""
    token: str = ""
    tls: bool = False
    ca: str = ""
    """PEM text of certificates to trust besides the system's."""
    verify: str = ""
    """The name that the engine's certificate must be valid for, where that is not `host`."""

    def __str__(self) -> str:
        return f"{'tls' if self.tls else 'nats'}://{host_port(self.host, self.port)}"

    def __repr__(self) -> str:
        return f"<Address {self} site={self.site} user={self.user}>"

    def tls_context(self) -> ssl.SSLContext:
        """Verifies the engine's certificate against the system's authorities and `ca`, which may
        be the certificate itself."""
        context = ssl.create_default_context()
        if self.ca:
            context.load_verify_locations(cadata=self.ca)
            # Python 3.13 and newer set this by themselves; without it only roots are trusted.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context

    def save(self, path: Path) -> None:
        """Write the connection file, readable by its owner only."""
        write_secret(path, msgspec.json.format(msgspec.json.encode(self), indent=2))

    @classmethod
    def load(cls, path: Path) -> Address:
        """Read a connection file."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise BadSetting(
                f"cannot read the connection file {path}: {error.strerror}",
                "Check its path; only its owner may read it.",
            ) from None
        except ValueError as error:  # no JSON, no UTF-8, or not these fields
            raise FolderCorrupt(
                f"{path} is no connection file: {error}",
                "Copy it anew from credentials/ in the site's data folder. At the site itself, "
                "remove it: the next start makes another, with a new password.",
            ) from None

    @classmethod
    def parse(cls, url: str, site: str = "local") -> Address:
        """Read `nats://user:password@host:port`, or `tls://…`."""
        parts = urlsplit(url)
        try:
            port = parts.port or DEFAULT_PORT
        except ValueError:
            port = 0
        if parts.scheme not in ("nats", "tls") or not parts.hostname or not port:
            raise BadSetting(f"{_hidden(url)!r} is no engine address", "Write nats://host:4222.")
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return cls(
            site=site,
            host=parts.hostname,
            port=port,
            user=user if password else "",
            password=password,
            token="" if password else user,
            tls=parts.scheme == "tls",
        )


def find_address(target: str | Path | Address | None = None, user: str = "sdk") -> Address:
    """The address that `target` means.

    `target` is an address, a `nats://` URL (with `?site=name` unless the site is called `local`),
    a connection file or a site's data folder. None: what `$SKERRY_CONNECT` says, or else the
    default data folder.
    """
    if isinstance(target, Address):
        return target
    target = target or os.environ.get("SKERRY_CONNECT") or default_data()
    if isinstance(target, str) and "://" in target:
        url, _, query = target.partition("?")
        site = query.removeprefix("site=") if query.startswith("site=") else "local"
        return Address.parse(url, site)
    path = Path(target).expanduser()
    if path.is_dir() or not path.exists():
        file = path / "credentials" / f"{user}.json"
        if not file.exists():
            raise Unavailable(
                f"no site was ever started in {path}",
                "Start one with `skerry up`, or name one with --connect.",
            )
        path = file
    return Address.load(path)


def host_port(host: str, port: int) -> str:
    """`127.0.0.1:4222`, and `[::1]:4222` for IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def write_secret(path: Path, content: bytes) -> None:
    """Replace `path` by `content` in one step, readable and writable by its owner only."""
    if path.exists() and path.stat().st_mode & 0o777 == 0o600 and path.read_bytes() == content:
        return
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def read_secret(path: Path) -> bytes | None:
    """What `write_secret` wrote there; None: nothing is there."""
    return path.read_bytes() if path.exists() else None


def _hidden(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    return f"{scheme}://…@{rest.rpartition('@')[2]}" if mark and "@" in rest else url
