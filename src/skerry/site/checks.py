"""What a site is started with, looked over before anything is started."""

from __future__ import annotations

import ssl
from pathlib import Path

from skerry.engine.process import check_port, free_port
from skerry.errors import BadSetting


def check_tls(cert: Path, key: Path) -> None:
    """Raise unless these are a certificate and its key."""
    for file in (cert, key):
        try:
            file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise BadSetting(
                f"the TLS file {file} cannot be read: {error}",
                "Give a PEM file, and check its owner and permissions.",
            ) from None
    try:
        no_passphrase = bytes  # rather than to ask for one
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, no_passphrase)
    except (OSError, ValueError) as error:
        raise BadSetting(
            f"{cert} and {key} are no certificate and its key: {error}",
            "Give the chain and the matching key in PEM format, without a passphrase.",
        ) from None


def maybe_port(host: str, port: int | None, option: str) -> int | None:
    """The same of a listener that there may be."""
    return None if port is None else port_of(host, port, option)


def port_of(host: str, port: int, option: str) -> int:
    """A port that can be listened on; 0: a free one."""
    if port == 0:
        return free_port(host)
    if not 0 < port < 65536:
        raise BadSetting(f"a port is 0 to 65535, not {port}", f"Correct {option}.")
    check_port(host, port, option)
    return port
