"""Reading an untrusted header: every length is checked against the remaining bytes before use."""

from __future__ import annotations

import struct
import sys
from array import array
from pathlib import Path
from typing import BinaryIO

from hearth.quant.gguf.faults import corrupt
from hearth.quant.gguf.types import NUMBER_FORMATS, ValueType
from hearth.quant.gguf.values import NumberArray, StringArray

MAX_HEADER_BYTES = 128 << 20
"""Maximum bytes of metadata and tensor list. A vocabulary of 262,144 tokens needs about 16 MB."""

_FIRST_READ_BYTES = 1 << 20
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_LENGTH_BYTES = 8


class HeaderCursor:
    """A position in the header of a GGUF file, which is read in doubling steps as needed.

    Methods that read take the name of the field for error messages, and raise `CorruptFile` if the
    field extends beyond the file or beyond `MAX_HEADER_BYTES`.
    """

    def __init__(self, stream: BinaryIO, size: int, path: Path) -> None:
        """`size`: bytes of the whole file that `stream` reads."""
        self.path = path
        self.size = size
        self.pos = 0
        self.buffer = bytearray()
        self._stream = stream

    @property
    def remaining(self) -> int:
        """Bytes of the file from here to its end."""
        return self.size - self.pos

    def u32(self, field: str) -> int:
        value: int = _U32.unpack_from(self.buffer, self._take(4, field))[0]
        return value

    def u64(self, field: str) -> int:
        value: int = _U64.unpack_from(self.buffer, self._take(8, field))[0]
        return value

    def number(self, kind: ValueType, field: str) -> int | float | bool:
        """One value of a fixed-size type; a boolean must be 0 or 1."""
        code = struct.Struct("<" + NUMBER_FORMATS[kind])
        value: int | float = code.unpack_from(self.buffer, self._take(code.size, field))[0]
        if kind is not ValueType.BOOL:
            return value
        if value not in (0, 1):
            raise corrupt(self.path, field, f"a boolean is {value}, not 0 or 1")
        return bool(value)

    def text(self, field: str, longest: int | None = None) -> bytes:
        """The bytes of one length-prefixed string of at most `longest` bytes."""
        length = self.u64(f"{field} length")
        if longest is not None and length > longest:
            raise corrupt(
                self.path, f"{field} length", f"{length:,} bytes, at most {longest:,} allowed"
            )
        start = self._take(length, field)
        return bytes(self.buffer[start : start + length])

    def strings(self, field: str, count: int) -> StringArray:
        """`count` strings, which are scanned once and not copied."""
        self._fits(count, _LENGTH_BYTES, field)
        starts = array("Q", bytes(8 * (count + 1)))
        unpack, buffer, pos, loaded = _U64.unpack_from, self.buffer, self.pos, len(self.buffer)
        for index in range(count):
            start = pos + _LENGTH_BYTES
            if start > loaded:
                self._load(pos, start, field)
                loaded = len(buffer)
            starts[index] = start
            pos = start + unpack(buffer, pos)[0]
            if pos > self.size:
                length = pos - start
                self.pos = start
                raise corrupt(
                    self.path,
                    f"{field}[{index}] length",
                    f"{length:,} bytes, but only {self.remaining:,} are left in the file",
                )
        if pos > loaded:
            self._load(self.pos, pos, field)
        self.pos = pos
        starts[count] = pos + _LENGTH_BYTES
        return StringArray(buffer, starts)

    def numbers(self, field: str, kind: ValueType, count: int) -> NumberArray:
        """`count` values of a fixed-size type."""
        code = NUMBER_FORMATS[kind]
        width = struct.calcsize("<" + code)
        self._fits(count, width, field)
        start = self._take(count * width, field)
        data: array[int] = array(code)
        data.frombytes(bytes(self.buffer[start : start + count * width]))
        if sys.byteorder == "big":
            data.byteswap()
        if kind is ValueType.BOOL and count and max(data) > 1:
            raise corrupt(self.path, field, f"a boolean is {max(data)}, not 0 or 1")
        return NumberArray(kind, data)

    def finish(self) -> None:
        """Drop bytes that were read beyond the header."""
        del self.buffer[self.pos :]

    def _fits(self, count: int, width: int, field: str) -> None:
        if count > self.remaining // width:
            raise corrupt(
                self.path,
                f"{field} count",
                f"{count:,} elements of at least {width} bytes, but only {self.remaining:,} bytes "
                "are left in the file",
            )

    def _take(self, length: int, field: str) -> int:
        """Advance by `length` bytes and return their start in `buffer`."""
        start = self.pos
        end = start + length
        if end > len(self.buffer):
            self._load(start, end, field)
        self.pos = end
        return start

    def _load(self, start: int, end: int, field: str) -> None:
        """Fill `buffer` up to `end`, for a field that starts at `start`."""
        if end > self.size:
            raise corrupt(
                self.path,
                field,
                f"needs {end - start:,} bytes at byte {start:,}, but the file ends at byte "
                f"{self.size:,}",
            )
        if end > MAX_HEADER_BYTES:
            raise corrupt(
                self.path,
                field,
                f"the header reaches byte {end:,}, at most {MAX_HEADER_BYTES:,} allowed",
            )
        loaded = len(self.buffer)
        wanted = min(self.size, MAX_HEADER_BYTES, max(end, 2 * loaded, _FIRST_READ_BYTES))
        self.buffer += self._stream.read(wanted - loaded)
        if len(self.buffer) < end:
            raise corrupt(self.path, field, f"the file shrank to {len(self.buffer):,} bytes")
