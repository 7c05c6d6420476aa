"""The private local socket of the host: a Unix socket (0600 in a 0700 folder), or a named pipe on
Windows; never TCP.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from hearth.backends.errors import HostUnreachable

# sun_path holds 108 bytes on Linux and 104 on macOS, including the terminating NUL.
_UNIX_PATH_MAX_BYTES = 100

OnClient = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class HostPlace:
    """The folders of a host: for its socket and lock, its logs, and its cache."""

    runtime_dir: Path
    log_dir: Path
    cache_dir: Path

    @property
    def lock_path(self) -> Path:
        """The lock file that the host holds as long as it runs."""
        return self.runtime_dir / "host.lock"

    @property
    def address(self) -> str:
        """Path of the socket (a short one in the temporary folder if `runtime_dir` is too long), or
        name of the pipe.
        """
        key = hashlib.sha256(str(self.runtime_dir.absolute()).encode()).hexdigest()[:16]
        if sys.platform == "win32":
            return rf"\\.\pipe\hearth-{key}"
        path = self.runtime_dir / "host.sock"
        if len(os.fsencode(path)) <= _UNIX_PATH_MAX_BYTES:
            return str(path)
        return str(Path(tempfile.gettempdir()) / f"hearth-{os.getuid()}-{key}" / "host.sock")

    def prepare(self) -> None:
        """Create the folders, private to the user.

        Raises:
            HostUnreachable: a folder cannot be made, or another user owns that of the socket.
        """
        for folder in (self.runtime_dir, self.log_dir, self.cache_dir):
            _make(folder)
        if sys.platform == "win32":
            return
        folder = Path(self.address).parent
        _make(folder)
        folder_stat = folder.lstat()
        if not stat.S_ISDIR(folder_stat.st_mode) or folder_stat.st_uid != os.getuid():
            raise HostUnreachable(
                f"{folder} is not a folder of yours.",
                "Remove it, or set HEARTH_HOME to a folder that is.",
            )
        folder.chmod(0o700)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise HostUnreachable(
            f"The folder {folder} cannot be made: {error.strerror or error}.",
            "Set HEARTH_HOME to a folder that you can write to.",
        ) from error


async def listen(place: HostPlace, on_client: OnClient) -> asyncio.AbstractServer | None:
    """Accept connections at the address of `place` with `on_client`. The caller holds the lock, so
    an existing socket file is stale.

    Returns the server, or None on Windows, where the pipe exists as long as the process.
    """
    if sys.platform == "win32":
        loop = asyncio.get_running_loop()

        def protocol() -> asyncio.StreamReaderProtocol:
            return asyncio.StreamReaderProtocol(asyncio.StreamReader(), on_client)

        await loop.start_serving_pipe(protocol, place.address)  # type: ignore[attr-defined]
        return None
    path = Path(place.address)
    path.unlink(missing_ok=True)
    old_mask = os.umask(0o177)
    try:
        return await asyncio.start_unix_server(on_client, path=str(path))
    finally:
        os.umask(old_mask)


async def connect(place: HostPlace) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the host. Raises OSError if no host is listening."""
    if sys.platform == "win32":
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.create_pipe_connection(  # type: ignore[attr-defined]
            lambda: protocol, place.address
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
    return await asyncio.open_unix_connection(place.address)
