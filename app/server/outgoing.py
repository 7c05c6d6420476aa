"""A transport that combines writes to one client."""

from __future__ import annotations

import asyncio
from typing import Any


class Outgoing(asyncio.Transport):
    """A client's transport that can hold back what is written, so that the head and the body of a
    response are sent as one packet.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._held: list[bytes] = []
        self._holding = False

    def hold(self) -> None:
        """Hold back what is written, until `release`."""
        self._holding = True

    def release(self) -> None:
        """Write what was held back in one piece, and stop holding back."""
        self._holding = False
        if self._held:
            data = b"".join(self._held)
            self._held.clear()
            if not self._transport.is_closing():
                self._transport.write(data)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write `data`, at once or at the next `release`."""
        if self._holding:
            self._held.append(bytes(data))
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close after everything has been sent."""
        self.release()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def is_closing(self) -> bool:
        """Whether it is closed or closing."""
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As asyncio's."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """As asyncio's."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """As asyncio's."""
        self._transport.resume_reading()
