"""Key pairs as the engine writes them: Ed25519 in base 32, with a prefix and a checksum."""

from __future__ import annotations

import base64
import binascii

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_SEED = 18 << 3
_USER = 20 << 3


def new_pair() -> tuple[str, str]:
    """A fresh seed, which is a secret, and its public key."""
    key = Ed25519PrivateKey.generate()
    prefix = bytes([_SEED | (_USER >> 5), (_USER & 31) << 3])
    seed = _text(prefix + key.private_bytes_raw())
    return seed, public_key(seed)


def public_key(seed: str) -> str:
    """The public key of a seed."""
    raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    key = Ed25519PrivateKey.from_private_bytes(raw[2:-2])
    return _text(bytes([_USER]) + key.public_key().public_bytes_raw())


def is_public_key(text: str) -> bool:
    """Whether `text` is a user's public key, checksum included."""
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except ValueError:
        return False
    body, check = raw[:-2], raw[-2:]
    return (
        len(body) == 33
        and body[0] == _USER
        and check == binascii.crc_hqx(body, 0).to_bytes(2, "little")
    )


def _text(raw: bytes) -> str:
    checked = raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")
    return base64.b32encode(checked).decode().rstrip("=")
