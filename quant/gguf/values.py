"""Compact metadata arrays: strings as slices of the header, numbers as typed arrays."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterator
from itertools import pairwise

from hearth.quant.gguf.types import ValueType


class StringArray:
    """The strings of a metadata array, decoded on access.

    It holds the header's bytes and one offset per string, so that a vocabulary of 150,000 tokens
    takes about 1.2 MB in addition to the header.
    """

    __slots__ = ("_buffer", "_starts")

    element_type = ValueType.STRING

    def __init__(self, buffer: bytearray, starts: array[int]) -> None:
        """`starts`: [n + 1] where each string's bytes begin, and where a string after the last one
        would begin.
        """
        self._buffer = buffer
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts) - 1

    def raw(self, index: int) -> bytes:
        """The bytes of one string, `0 <= index < len(self)`. Raises `IndexError` outside."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        # A string ends where the eight-byte length of the next one begins.
        return bytes(self._buffer[self._starts[index] : self._starts[index + 1] - 8])

    def raw_strings(self) -> list[bytes]:
        """The bytes of all strings."""
        data = bytes(self._buffer)
        return [data[begin : following - 8] for begin, following in pairwise(self._starts)]

    @property
    def longest_bytes(self) -> int:
        """Bytes of the longest string; 0 if there is none."""
        ends = self._starts[1:]
        return max(map(operator.sub, ends, self._starts), default=8) - 8

    def __getitem__(self, index: int) -> str:
        """One string; bytes that are not UTF-8 become U+FFFD."""
        return self.raw(index).decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        return (raw.decode("utf-8", "replace") for raw in self.raw_strings())


class NumberArray:
    """The numbers of a metadata array in their own width."""

    __slots__ = ("_data", "element_type")

    def __init__(self, element_type: ValueType, data: array[int] | array[float]) -> None:
        self.element_type = element_type
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> int | float | bool:
        """One number; a `bool` for boolean arrays. Raises `IndexError` outside."""
        value = self._data[index]
        return bool(value) if self.element_type is ValueType.BOOL else value

    def __iter__(self) -> Iterator[int | float | bool]:
        return (self[index] for index in range(len(self)))
