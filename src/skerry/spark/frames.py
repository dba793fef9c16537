"""Takes apart what the engine sends to a reader, thousands of messages at a time.

Theory of operation. A message is a control line, a block of headers, and a payload:

    HMSG e.sensors.roof 1 $JS.ACK.<stream>.<consumer>.1.<index>.<n>.<time>.<pending> 44 172\\r\\n

Only its control line says where a message ends, so a reader has to go from one to the next; in
Python that costs about a microsecond each. Instead every line that looks like a control line is
found at once and taken apart in columns: lines of one layout form a matrix, which is looked at as
words of eight bytes (`skerry.spark.words`). Then the walk is checked rather than walked: a run of
lines is good as far as each line says that its message ends where the next one begins. A payload
may hold whatever it likes, lines that look like ours included: no message's end points at them, so
they are passed over.

`split_slowly` is the same without the art. Tests compare the two on thousands of random inputs.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from skerry.spark.words import Numbers, Words

_LINE = re.compile(
    rb"(?:H(?=MSG \S+ \d+ \S+ \d+ \d+\r))?MSG (\S+) \d+ (\$JS\.ACK\.\S+?)"
    rb"\.(\d+)\.(\d+)\.(\d+)\.(\d+) (?:(\d+) )?(\d+)\r\n"
)
"""Subject, beginning of the reply, index, number, time, pending, size of the headers, size."""
SUBJECT, _, INDEX, NUMBER, TIME, PENDING, HEAD, SIZE = range(1, 9)

_FEW = 6
"""Lines of one layout below which taking them one by one is cheaper."""
_SHORTEST = 40
"""Bytes of the shortest control line of an event."""


class Frames(NamedTuple):
    """Events by place and number: one element an event, places counted in the bytes given."""

    subject: Numbers
    subject_end: Numbers
    indexes: Numbers
    times: Numbers
    """Nanoseconds since 1970."""
    pending: Numbers
    """How many events the engine had for the reader behind this one."""
    head: Numbers
    value: Numbers
    """Where the payload begins, and the headers end."""
    end: Numbers


class Other(NamedTuple):
    """What is not an event: the answer to a request, a status, or a line such as PING."""

    subject: bytes
    head: bytes
    data: bytes


class Chunk(NamedTuple):
    """What was in some bytes. From `used` on there is the beginning of another message."""

    frames: Frames
    others: list[Other]
    used: int


def split(data: bytes) -> Chunk:
    """Take `data` apart, beginning with a control line."""
    buffer = np.frombuffer(data, np.uint8)
    newlines = np.flatnonzero(buffer == 10)
    if not len(newlines):
        return Chunk(_gather([]), [], 0)
    starts = np.empty_like(newlines)
    starts[0] = 0
    starts[1:] = newlines[:-1] + 1
    likely = newlines - starts >= _SHORTEST
    starts, ends = starts[likely], newlines[likely]
    first = buffer[starts]
    likely = ((first == 72) & (buffer[starts + 4] == 32)) | (
        (first == 77) & (buffer[starts + 3] == 32)
    )
    starts, ends = starts[likely], ends[likely]
    lines, good = _lines(data, buffer, starts, ends)
    follow = lines.end + 2
    linked = np.zeros(len(starts), bool)
    if len(starts):
        linked[:-1] = good[:-1] & good[1:] & (follow[:-1] == starts[1:])
    breaks = np.flatnonzero(~linked)

    runs: list[Frames] = []
    others: list[Other] = []
    place, size = 0, len(data)
    while place < size:
        at = int(np.searchsorted(starts, place))
        if at < len(starts) and starts[at] == place and good[at]:
            last = int(breaks[np.searchsorted(breaks, at)])
            whole = follow[last] <= size
            if (behind := last + 1 if whole else last) > at:
                runs.append(Frames(*(column[at:behind] for column in lines)))
            place = int(follow[last]) if whole else int(starts[last])
            if not whole:
                break
        elif (step := _other(data, place)) is None:
            break
        else:
            others.append(step[0])
            place = step[1]
    return Chunk(_gather(runs), others, place)


def split_slowly(data: bytes) -> Chunk:
    """What `split` does, one message after the other."""
    rows: list[tuple[int, ...]] = []
    others: list[Other] = []
    place = 0
    while place < len(data):
        match = _LINE.match(data, place)
        if match is None:
            if (step := _other(data, place)) is None:
                break
            others.append(step[0])
            place = step[1]
            continue
        row = _row(match)
        if row[-1] + 2 > len(data):
            break
        rows.append(row)
        place = row[-1] + 2
    table = np.array(rows, np.int64).reshape(len(rows), len(Frames._fields))
    return Chunk(Frames(*table.T), others, place)


def _row(match: re.Match[bytes]) -> tuple[int, ...]:
    head = match.end()
    value = head + int(match[HEAD] or 0)
    return (
        match.start(SUBJECT), match.end(SUBJECT), int(match[INDEX]), int(match[TIME]),
        int(match[PENDING]), head, value, head + int(match[SIZE]),
    )  # fmt: skip


def _other(data: bytes, place: int) -> tuple[Other, int] | None:
    """What else begins at `place`, and where the next begins; None if it is not all there."""
    line_end = data.find(b"\n", place)
    if line_end < 0:
        return None
    words = data[place : line_end - 1].split(b" ")
    if words[0] not in (b"MSG", b"HMSG"):
        return Other(b"", b"", data[place : line_end - 1]), line_end + 1
    end = line_end + 1 + int(words[-1])
    if end + 2 > len(data):
        return None
    value = line_end + 1 + (int(words[-2]) if words[0] == b"HMSG" else 0)
    return Other(words[1], data[line_end + 1 : value], data[value:end]), end + 2


def _gather(runs: list[Frames]) -> Frames:
    if len(runs) == 1:
        return runs[0]
    if not runs:
        return Frames(*(np.zeros(0, np.int64) for _ in Frames._fields))
    return Frames(*(np.concatenate(columns) for columns in zip(*runs, strict=True)))


def _lines(
    data: bytes, buffer: npt.NDArray[np.uint8], starts: Numbers, ends: Numbers
) -> tuple[Frames, npt.NDArray[np.bool_]]:
    """Take control lines apart, and tell which of them are ones."""
    count = len(starts)
    table = np.zeros((len(Frames._fields), count), np.int64)
    good = np.zeros(count, bool)
    lengths = ends - starts + 1
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        while len(rows):
            match = _LINE.match(data, int(starts[rows[0]]), int(ends[rows[0]]) + 1)
            if match is None or match.end() != ends[rows[0]] + 1:
                rows = rows[1:]
                continue
            if len(rows) < _FEW:
                table[:, rows[0]] = _row(match)
                good[rows[0]] = True
                rows = rows[1:]
                continue
            same, columns = _layout(match, buffer, starts[rows], int(length))
            table[:, rows[same]] = columns[:, same]
            good[rows[same]] = True
            rows = rows[~same]
    return Frames(*table), good


def _layout(
    match: re.Match[bytes], buffer: npt.NDArray[np.uint8], starts: Numbers, length: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any]]:
    """Take apart the lines at `starts` as if each were laid out as the first, and tell which are:
    those with the same bytes wherever there is neither a number nor the subject."""
    begin = match.start()
    words = Words(buffer, starts, length)
    fixed = np.ones(length, bool)
    digits = np.zeros(length, bool)
    fixed[match.start(SUBJECT) - begin : match.end(SUBJECT) - begin] = False
    numbers: dict[int, Any] = {HEAD: 0}
    for group in (INDEX, NUMBER, TIME, PENDING, HEAD, SIZE):
        if match[group] is None:
            continue
        left, right = match.start(group) - begin, match.end(group) - begin
        fixed[left:right] = False
        digits[left:right] = True
        if group != NUMBER:
            numbers[group] = words.number(left, right)
    same = words.have(match[0], fixed) & words.have_digits(digits)
    head = starts + length
    columns = np.empty((len(Frames._fields), len(starts)), np.int64)
    columns[0] = starts + (match.start(SUBJECT) - begin)
    columns[1] = starts + (match.end(SUBJECT) - begin)
    columns[2], columns[3], columns[4] = numbers[INDEX], numbers[TIME], numbers[PENDING]
    columns[5], columns[6], columns[7] = head, head + numbers[HEAD], head + numbers[SIZE]
    return same, columns
