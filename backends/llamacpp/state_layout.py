"""Saved key-value memory between llama.cpp's two layouts: with flash attention the values of a
token are contiguous, without it those of a channel.

The format is llama.cpp's own (`llama_kv_cache::state_write` in llama-kv-cache.cpp), read here as
far as one memory of full attention goes. What is not exactly that is refused, never guessed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hearth.backends.llamacpp.context import State

_SEQUENCE_MAGIC = 0xAF143CD8
"""What a state of one sequence begins with (`io_magic` in llama-context.cpp)."""
_ELEMENT_BYTES = {0: 4, 1: 2}
"""Of float32 and float16; blocks of quantized values cannot be transposed."""


class UnknownLayout(Exception):
    """These are not the bytes of one memory of full attention."""


@dataclass(frozen=True, slots=True)
class _Values:
    """The values of one layer."""

    start: int
    """Where they begin, after their head."""
    channels: int
    type: int

    def nbytes(self, cells: int) -> int:
        return self.channels * cells * _ELEMENT_BYTES[self.type]


def turned(state: State, *, by_channel: bool) -> State:
    """`state`, of a sequence or a whole context, with its values by channel (for attention without
    flash) or by token. It has as many bytes, and nothing else of that size is made meanwhile.

    Raises:
        UnknownLayout: it is not understood, or has that layout already.
    """
    reader = _Reader(state)
    cells = reader.skip_to_layers()
    if cells == 0:
        return state
    at = reader.at
    if reader.integer() != (not by_channel):
        raise UnknownLayout("the values have that layout already")
    values = list(reader.values(cells, by_channel=not by_channel))
    out = np.empty_like(state)  # either layout takes as much, also of its heads
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
    """Walks over the bytes of a state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.at = 0
        self.values_at = 0
        """Where the values of the first layer begin, with their head."""

    def integer(self) -> int:
        return int(self._unpack("<I")[0])

    def skip_to_layers(self) -> int:
        """Pass over what comes before keys and values; returns how many cells follow."""
        head = self.integer()
        self._skip(4 if head == _SEQUENCE_MAGIC else head)  # an id, or the model's architecture
        if self.integer() != 1:
            raise UnknownLayout("several streams")
        cells = self.integer()
        for _ in range(cells):
            _position, sequences = self._unpack("<iI")
            self._skip(4 * sequences)
        return cells

    def values(self, cells: int, *, by_channel: bool) -> Iterator[_Values]:
        """The values of every layer, after all keys; they end where the state does."""
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
