"""Converts saved KV states between llama.cpp's two layouts.

With flash attention the values of a token are contiguous, without it those of a channel.

The format is llama.cpp's own (`llama_kv_cache::state_write` in llama-kv-cache.cpp). Only states of
a single memory of full attention are supported; everything else is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hearth.backends.llamacpp.context import State

_SEQUENCE_MAGIC = 0xAF143CD8
"""First word of a state of one sequence (`io_magic` in llama-context.cpp)."""
_ELEMENT_BYTES = {0: 4, 1: 2}
"""Bytes of float32 and float16; blocks of quantized values cannot be transposed."""


class UnknownLayout(Exception):
    """The bytes are not a state of a single memory of full attention."""


@dataclass(frozen=True, slots=True)
class _Values:
    """The values of one layer."""

    start: int
    """Offset of the values, after their header."""
    channels: int
    type: int

    def nbytes(self, cells: int) -> int:
        return self.channels * cells * _ELEMENT_BYTES[self.type]


def transposed(state: State, *, by_channel: bool) -> State:
    """Convert the state of a sequence or a whole context to the other layout.

    Values become contiguous by channel (for attention without flash) or by token. The result has
    the same size, and no other copy of this size is made.

    Raises:
        UnknownLayout: the state is not understood, or already has the layout.
    """
    reader = _Reader(state)
    cells = reader.skip_to_layers()
    if cells == 0:
        return state
    at = reader.at
    if reader.integer() != (not by_channel):
        raise UnknownLayout("the values have that layout already")
    values = list(reader.values(cells, by_channel=not by_channel))
    out = np.empty_like(state)  # Both layouts have the same size, including headers.
    out[: reader.values_at] = state[: reader.values_at]
    out[at : at + 4] = _bytes("<I", by_channel)
    for layer in values:
        size = _ELEMENT_BYTES[layer.type]
        if by_channel:
            head = _bytes("<iII", layer.type, size, layer.channels)
        else:
            head = _bytes("<iQ", layer.type, size * layer.channels)
        out[layer.start - len(head) : layer.start] = head
        place = slice(layer.start, layer.start + layer.nbytes(cells))
        shape = (cells, layer.channels) if by_channel else (layer.channels, cells)
        turned_values = out[place].view(f"u{size}").reshape(shape[::-1])
        turned_values[...] = state[place].view(f"u{size}").reshape(shape).T
    return out


class _Reader:
    """Parses the bytes of a state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.at = 0
        self.values_at = 0
        """Offset of the values of the first layer, including their header."""

    def integer(self) -> int:
        return int(self._unpack("<I")[0])

    def skip_to_layers(self) -> int:
        """Skip everything before keys and values; return the number of cells."""
        head = self.integer()
        self._skip(4 if head == _SEQUENCE_MAGIC else head)  # An id, or the model's architecture.
        if self.integer() != 1:
            raise UnknownLayout("several streams")
        cells = self.integer()
        for _ in range(cells):
            _position, sequences = self._unpack("<iI")
            self._skip(4 * sequences)
        return cells

    def values(self, cells: int, *, by_channel: bool) -> Iterator[_Values]:
        """The values of every layer, which follow all keys and end the state."""
        layers = self.integer()
        for _ in range(layers):
            _type, row_bytes = self._unpack("<iQ")
            self._skip(cells * row_bytes)
        self.values_at = self.at
        for _ in range(layers):
            layer = self._by_channel() if by_channel else self._by_token()
            self._skip(layer.nbytes(cells))
            yield layer
        if self.at != len(self._state):
            raise UnknownLayout(f"{len(self._state) - self.at} bytes are left")

    def _by_channel(self) -> _Values:
        kind, size, channels = self._unpack("<iII")
        if _ELEMENT_BYTES.get(kind) != size:
            raise UnknownLayout(f"values of type {kind}, {size} bytes each")
        return _Values(self.at, channels, kind)

    def _by_token(self) -> _Values:
        kind, row_bytes = self._unpack("<iQ")
        size = _ELEMENT_BYTES.get(kind)
        if size is None or row_bytes % size:
            raise UnknownLayout(f"values of type {kind}, {row_bytes} bytes a token")
        return _Values(self.at, row_bytes // size, kind)

    def _unpack(self, form: str) -> tuple[int, ...]:
        start = self.at
        self._skip(struct.calcsize(form))
        return struct.unpack(form, self._state[start : self.at].tobytes())

    def _skip(self, count: int) -> None:
        if count > len(self._state) - self.at:
            raise UnknownLayout("it ends early")
        self.at += count


def _bytes(form: str, *values: int) -> State:
    return np.frombuffer(struct.pack(form, *values), np.uint8)
