"""Numbers as people write them: sizes, durations, indexes."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from skerry.errors import BadIndex, BadSetting

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE | re.ASCII)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_size(text: str) -> int:
    """`512`, `64KB`, `1.5GB`, `1GiB` → bytes. KB is 1000 bytes, KiB is 1024."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise BadSetting(f"{text!r} is not a size", "Write one such as 500MB or 2GiB.")
    number, prefix, binary = match.groups()
    power = " kmgt".index(prefix.lower()) if prefix else 0
    return int(float(number) * (1024 if binary else 1000) ** power)


def parse_duration(text: str) -> float:
    """`250ms`, `90s`, `1h30m`, `7d`, or a plain number of seconds → seconds."""
    compact = text.replace(" ", "")
    if re.fullmatch(r"\d+(\.\d+)?", compact, re.ASCII):
        return float(compact)
    parts = _DURATION.findall(compact)
    if not parts or "".join(n + u for n, u in parts) != compact:
        raise BadSetting(f"{text!r} is not a duration", "Write one such as 30s, 12h or 7d.")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def parse_time(text: str, now: datetime) -> datetime:
    """An ISO 8601 time (`2026-11-15T08:00Z`), or a duration before `now` (`10m`)."""
    try:
        return _aware(datetime.fromisoformat(text))
    except ValueError:
        pass
    try:
        return datetime.fromtimestamp(now.timestamp() - parse_duration(text), UTC)
    except BadSetting:
        raise BadSetting(
            f"{text!r} is neither a time nor a duration",
            "Write 2026-11-15T08:00Z, or 10m for ten minutes ago.",
        ) from None


def _aware(time: datetime) -> datetime:
    return time if time.tzinfo else time.astimezone()


def show_size(count: float) -> str:
    """Bytes as a person reads them: `1.5 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def show_duration(seconds: float) -> str:
    """Seconds as a person reads them: `7d`, `1h30m`, `250ms`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    text, rest = "", round(seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" if count else ""
    return text


def check_index(value: object, what: str = "an index") -> int:
    """Return `value` as an index (a whole number from 1 up); else raise `BadIndex`."""
    if isinstance(value, str):
        if not re.fullmatch(r"-?\d+", value, re.ASCII):
            raise BadIndex(f"{what} is a whole number, not {value!r}")
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadIndex(f"{what} is a whole number, not {value!r}")
    if value < 1:
        raise BadIndex(
            f"{what} is 1 or more, not {value}", "The first event of a topic has index 1."
        )
    return value
