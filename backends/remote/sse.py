"""Parses server-sent events from bytes, by the WHATWG specification of event streams."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MOST_EVENT_BYTES: Final = 8 << 20
"""Limit for a line, and for the data of one event."""
_LINE_END: Final = re.compile(rb"[\r\n]")


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event; comments, which start with a colon, are events with the name ":" here."""

    data: str
    name: str = ""


class TooLong(Exception):
    """A line or an event has more than `MOST_EVENT_BYTES`."""


class EventReader:
    """Takes the pieces of a body, split anywhere, and returns the complete events."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._is_first = True
        self._searched = 0
        self._after_return = False
        self._data: list[bytes] = []
        self._size = 0
        self._name = ""

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """The events that `piece` completes. Raises `TooLong`."""
        self._rest += piece
        begin = 0
        while (end := _LINE_END.search(self._rest, max(begin, self._searched))) is not None:
            line = bytes(self._rest[begin : end.start()])
            second_half = self._after_return and end[0] == b"\n" and not line
            self._after_return = end[0] == b"\r"
            begin = end.end()
            if second_half:
                continue
            if self._is_first:  # .NET's StreamWriter begins with a byte order mark.
                self._is_first, line = False, line.removeprefix(BOM_UTF8)
            event = self._line(line)
            if event is not None:
                yield event
        if begin:
            del self._rest[:begin]
        self._searched = len(self._rest)
        if self._searched > MOST_EVENT_BYTES:
            raise TooLong

    def end(self) -> Iterator[ServerEvent]:
        """The last event, if its lines are complete and only the final empty line is missing."""
        if self._data and not self._rest:
            yield self._dispatch()

    def _line(self, line: bytes) -> ServerEvent | None:
        if not line:
            if self._data:
                return self._dispatch()
            self._name = ""
            return None
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not field:
            return ServerEvent(value.decode("utf-8", "replace"), ":")
        if field in (b"data", b"error"):  # llama-server once sent errors as a field of their own
            self._size += len(value)
            if self._size > MOST_EVENT_BYTES:
                raise TooLong
            self._data.append(value)
            self._name = "error" if field == b"error" else self._name
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        return None

    def _dispatch(self) -> ServerEvent:
        event = ServerEvent(b"\n".join(self._data).decode("utf-8", "replace"), self._name)
        self._data, self._size, self._name = [], 0, ""
        return event
