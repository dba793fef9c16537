"""The checksum of a stream's description, and mending one that a crash left behind.

The engine keeps a stream's configuration in `meta.inf` and its checksum in `meta.sum`, and writes
one after the other. If it is killed in between, the two do not fit, and at the next start it leaves
the whole stream out (20 of 60 kills in the midst of updates). Each file by itself is written whole,
so a description that is not older than its checksum, and can be read, is good: an update was cut
short. Any other misfit is damage, and stays for `Site` to report.

The checksum is HighwayHash-64, keyed with the SHA-256 of the stream's name.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from pathlib import Path

import msgspec

log = logging.getLogger("skerry.engine")

RECENT = 1_000_000_000
"""Nanoseconds before the last update of all in which another may have been under way."""

_WORD = 0xFFFFFFFFFFFFFFFF
_HALF = 0xFFFFFFFF
_MUL0 = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_MUL1 = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)


class _Described(msgspec.Struct):
    name: str


def mend(folder: Path) -> list[str]:
    """Write the checksums that are missing below `folder`, an engine's store, because the engine
    was killed; return the streams. Only while no engine runs on it."""
    try:
        written = {file: file.stat().st_mtime_ns for file in folder.glob("*/streams/*/meta.inf")}
    except OSError:
        return []
    last = max(written.values(), default=0)
    mended = []
    for description, when in sorted(written.items()):
        checksum = description.with_name("meta.sum")
        try:
            if when < last - RECENT or when < checksum.stat().st_mtime_ns:
                continue
            data = description.read_bytes()
            name = msgspec.json.decode(data, type=_Described).name
            wanted = checksum_of(name, data)
            if name != description.parent.name or checksum.read_text() == wanted:
                continue
            fresh = checksum.with_name("meta.sum.new")
            fresh.write_text(wanted)
            fresh.replace(checksum)
        except (OSError, ValueError):
            continue  # no checksum at all: a creation that was cut short; or damage
        log.warning("the description of stream %s was written as the engine died; mended", name)
        mended.append(name)
    return mended


def checksum_of(stream: str, data: bytes) -> str:
    """The checksum that the engine expects of a stream's description."""
    hasher = _HighwayHash(hashlib.sha256(stream.encode()).digest())
    return struct.pack("<Q", hasher.digest(data)).hex()


class _HighwayHash:
    """HighwayHash-64 (Alakuijala, Cox, Wassenberg 2016), in the words of its portable version."""

    def __init__(self, key: bytes) -> None:
        words = struct.unpack("<4Q", key)
        self._mul0 = list(_MUL0)
        self._mul1 = list(_MUL1)
        self._v0 = [mul ^ word for mul, word in zip(_MUL0, words, strict=True)]
        self._v1 = [mul ^ _swap(word) for mul, word in zip(_MUL1, words, strict=True)]

    def digest(self, data: bytes) -> int:
        """The hash of `data`; to be asked once."""
        whole = len(data) - len(data) % 32
        for place in range(0, whole, 32):
            self._update(struct.unpack_from("<4Q", data, place))
        if rest := data[whole:]:
            self._last(rest)
        for _ in range(4):
            v0 = self._v0
            self._update((_swap(v0[2]), _swap(v0[3]), _swap(v0[0]), _swap(v0[1])))
        return int(self._v0[0] + self._v1[0] + self._mul0[0] + self._mul1[0]) & _WORD

    def _update(self, lanes: tuple[int, ...]) -> None:
        v0, v1, mul0, mul1 = self._v0, self._v1, self._mul0, self._mul1
        for i in range(4):
            v1[i] = (v1[i] + mul0[i] + lanes[i]) & _WORD
            mul0[i] ^= (v1[i] & _HALF) * (v0[i] >> 32)
            v0[i] = (v0[i] + mul1[i]) & _WORD
            mul1[i] ^= (v0[i] & _HALF) * (v1[i] >> 32)
        for source, target in ((v1, v0), (v0, v1)):
            for i in (0, 2):
                low, high = _zip(source[i + 1], source[i])
                target[i] = (target[i] + low) & _WORD
                target[i + 1] = (target[i + 1] + high) & _WORD

    def _last(self, rest: bytes) -> None:
        size, loose = len(rest), len(rest) & 3
        self._v0 = [(word + (size << 32) + size) & _WORD for word in self._v0]
        self._v1 = [_rotate(word >> 32, size) << 32 | _rotate(word, size) for word in self._v1]
        packet = bytearray(32)
        packet[: size - loose] = rest[: size - loose]
        if size & 16:
            packet[28:] = rest[-4:]
        elif loose:
            tail = rest[size - loose :]
            packet[16:19] = bytes((tail[0], tail[loose >> 1], tail[loose - 1]))
        self._update(struct.unpack("<4Q", packet))


def _swap(word: int) -> int:
    return (word >> 32) | (word & _HALF) << 32


def _rotate(half: int, by: int) -> int:
    half &= _HALF
    return (half << by | half >> (32 - by)) & _HALF


def _zip(one: int, zero: int) -> tuple[int, int]:
    """The bytes of two words, mixed."""
    a, b = zero.to_bytes(8, "little"), one.to_bytes(8, "little")
    low = bytes((a[3], b[4], a[2], a[5], b[6], a[1], b[7], a[0]))
    high = bytes((b[3], a[4], b[2], b[5], b[1], a[6], b[0], a[7]))
    return int.from_bytes(low, "little"), int.from_bytes(high, "little")
