"""How helpers and those who ask them talk: a line of JSON for each value, as jobs do."""

from __future__ import annotations

import json
from typing import Any, BinaryIO, Final

LARGEST_FRAME_BYTES: Final = 64 * 1024 * 1024


def frame(value: Any) -> bytes:
    """`value` as it travels. Raises `ValueError` if it takes more than 64 MiB."""
    data = json.dumps(value).encode() + b"\n"
    if len(data) > LARGEST_FRAME_BYTES:
        raise ValueError(f"a frame of {len(data):,} bytes")
    return data


def read(stream: BinaryIO) -> Any:
    """The next value. Raises `EOFError` at the end of the stream, `ValueError` if it is no JSON or
    more than 64 MiB.
    """
    line = stream.readline(LARGEST_FRAME_BYTES)
    if not line:
        raise EOFError("the stream ended")
    return json.loads(line)
