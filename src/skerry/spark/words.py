"""Many short texts of one length, looked at eight bytes at a time.

A text is a row of words of 64 bits, its first byte the lowest of the first word. To compare a
thousand texts with a template, or to read a number of eight digits out of each, takes as many steps
as for one, each step one operation on a column. The tricks with whole words are old; those for
digits are in Lemire's "Quickly parsing eight digits" (2018).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_U = np.uint64


def _bytes(value: int) -> np.uint64:
    return _U(value * 0x0101010101010101)


_ZEROS = _bytes(0x30)
_SIXES = _bytes(0x06)
_HIGH = _bytes(0xF0)
_ONES = _bytes(0x01)
_TOPS = _bytes(0x80)
_RETURNS = _bytes(0x0D)
_PAIR = _U(0x000000FF000000FF)


class Words:
    """The texts of `length` bytes that begin at `starts`."""

    def __init__(self, buffer: npt.NDArray[np.uint8], starts: Numbers, length: int) -> None:
        self._length = length
        size = -(-length // 8) * 8
        self._count = size // 8
        self._inside: Mask = starts <= len(buffer) - size
        """Texts whose last word is not all there are left to others."""
        if len(buffer) < size:
            self._columns = np.zeros((self._count, len(starts)), _U)
            return
        if not self._inside.all():
            starts = np.where(self._inside, starts, 0)
        rows = np.lib.stride_tricks.sliding_window_view(buffer, size)[starts]
        self._columns = np.ascontiguousarray(rows.view("<u8").T)

    def have(self, template: bytes, where: Mask) -> Mask:
        """Which texts have the template's bytes in the places that `where` marks."""
        expected, masks = self._laid(np.frombuffer(template, np.uint8)), self._mask(where)
        wrong = np.zeros(len(self._inside), _U)
        for column, word, mask in zip(self._columns, expected, masks, strict=True):
            if mask:
                wrong |= (column ^ word) & mask
        return self._inside & np.equal(wrong, 0)

    def have_digits(self, where: Mask) -> Mask:
        """Which texts have digits in all the places that `where` marks."""
        wrong = np.zeros(len(self._inside), _U)
        for column, mask in zip(self._columns, self._mask(where), strict=True):
            if mask:
                digits = column ^ _ZEROS
                wrong |= (digits | (digits + _SIXES)) & (mask & _HIGH)
        return self._inside & np.equal(wrong, 0)

    def lack_returns(self, where: Mask) -> Mask:
        """Which texts have no carriage return in the places that `where` marks. One with such
        a byte elsewhere may be left out as well."""
        wrong = np.zeros(len(self._inside), _U)
        for column, mask in zip(self._columns, self._mask(where), strict=True):
            if mask:
                zero = column ^ _RETURNS
                wrong |= (zero - _ONES) & ~zero & (mask & _TOPS)
        return self._inside & np.equal(wrong, 0)

    def number(self, left: int, right: int) -> Numbers:
        """The numbers between two places, at most 19 digits; anything where there are others."""
        total = np.zeros(len(self._inside), _U)
        scale = 1
        while right > left:
            count = min(8, right - left)
            total += self._eight(right, count) * _U(scale)
            right -= count
            scale *= 10**8
        return total.view(np.int64)

    def _eight(self, right: int, count: int) -> Any:
        """The number made of the `count` digits, eight at the most, that end at `right`."""
        place, shift = divmod(right - 8, 8) if right >= 8 else (0, 0)
        word = self._columns[place]
        if shift:
            low, high = _U(8 * shift), _U(64 - 8 * shift)
            word = (word >> low) | (self._columns[place + 1] << high)
        if right < 8:
            word = word << _U(8 * (8 - right))
        word = word ^ _ZEROS
        if count < 8:
            unused = 8 * (8 - count)
            word = (word >> _U(unused)) << _U(unused)
        word = word * _U(10) + (word >> _U(8))
        return (
            (word & _PAIR) * _U(100 + (1000000 << 32))
            + ((word >> _U(16)) & _PAIR) * _U(1 + (10000 << 32))
        ) >> _U(32)

    def _laid(self, text: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
        laid = np.zeros(8 * self._count, np.uint8)
        laid[: len(text)] = text
        return laid.view("<u8")

    def _mask(self, where: Mask) -> npt.NDArray[np.uint64]:
        return self._laid(where.astype(np.uint8) * np.uint8(255))
