"""How renderer and helper talk: JSON values, each after its length in four bytes (big-endian)."""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO, Final

_LENGTH: Final = struct.Struct(">I")
LARGEST_FRAME_BYTES: Final = 64 * 1024 * 1024


def frame(value: Any) -> bytes:
    """`value` as it travels.

    Raises:
        ValueError: it takes more than 64 MiB.
    """
    data = json.dumps(value).encode()
    if len(data) > LARGEST_FRAME_BYTES:
        raise ValueError(f"a frame of {len(data):,} bytes")
    return _LENGTH.pack(len(data)) + data


def write(stream: BinaryIO, data: bytes) -> None:
    """Send a frame and flush; raises `OSError` if the other side is gone."""
    stream.write(data)
    stream.flush()


def read(stream: BinaryIO) -> Any:
    """The next value.

    Raises:
        EOFError: the other side closed the stream.
        ValueError: the frame is longer than 64 MiB, or is not JSON.
    """
    (size,) = _LENGTH.unpack(_read_exactly(stream, _LENGTH.size))
    if size > LARGEST_FRAME_BYTES:
        raise ValueError(f"a frame of {size:,} bytes")
    return json.loads(_read_exactly(stream, size))


def _read_exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the stream ended")
    return data
