"""The sockets that the endpoint listens on; opened first, so that a busy port is said before a
model is loaded.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hearth.app.paths import private_folder
from hearth.backends.errors import HearthError

_LONGEST_PATH_BYTES: Final = 100
"""sun_path holds 108 bytes on Linux and 104 on macOS, the closing NUL included."""
_ONLY_FOR_ME: Final = 0o177
_OTHERS_WRITE: Final = 0o022


class CannotListen(HearthError):
    """The address or port cannot be used."""

    code = "cannot_listen"


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to the first address of `host`, IPv4 before IPv6; port 0 takes a free one.

    Raises:
        CannotListen: no such address here, the port is in use, or it needs rights.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise CannotListen(
            f"Hearth cannot listen on {_authority(host, port)}: {_reason(error)}.",
            _cure(error, port),
        ) from error


@contextmanager
def listen_at(path: Path) -> Iterator[socket.socket]:
    """A Unix socket at `path` that only this user can connect to; its file is removed at the end.

    A socket file that nobody listens on any more is replaced. A folder that is missing is made for
    this user alone.

    Raises:
        CannotListen: something else lies there, or somebody listens; others can write to the
            folder, and so could put their own socket in its place; there are no such sockets here.
    """
    path = path.absolute()
    if sys.platform == "win32" or not hasattr(socket, "AF_UNIX"):
        raise CannotListen("There are no Unix sockets on this system.", "Leave out --uds.")
    try:
        _check_folder(private_folder(path.parent))
        _clear(path)
        listener = _bind(path)
    except OSError as error:
        raise CannotListen(
            f"Hearth cannot listen on {path}: {error.strerror or error}.",
            "Name another file with --uds.",
        ) from error
    own = _identity(path)
    with listener:
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):
                if _identity(path) == own:
                    path.unlink()


def _check_folder(folder: Path) -> None:
    found = folder.stat()
    if found.st_uid not in (os.geteuid(), 0) or (
        found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX
    ):
        raise CannotListen(
            f"Others can replace the files in {folder}.",
            "Name a file in a folder of your own with --uds; a folder that is missing is made.",
        )


def _clear(path: Path) -> None:
    """Remove the socket file of a server that is gone."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise CannotListen(f"{path} is there already, and is no socket.", "Name another file.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.settimeout(1)
        try:
            other.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise CannotListen(
        f"Another server listens on {path}.", "Use that one, or name another file with --uds."
    )


def _bind(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > _LONGEST_PATH_BYTES:
        raise CannotListen(
            f"The path of the socket is longer than {_LONGEST_PATH_BYTES} bytes: {path}.",
            "Name a shorter one with --uds.",
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(_ONLY_FOR_ME)
    try:
        listener.bind(str(path))
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(mask)
    listener.listen()
    return listener


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def address_of(listener: socket.socket) -> str:
    """The IP address that `listener` is bound to."""
    return str(listener.getsockname()[0])


def url_of(listener: socket.socket, host: str) -> str:
    """The address that people give to their programs, for a socket opened for `host`."""
    return f"http://{_authority(host, listener.getsockname()[1])}/v1"


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is in use"
    return error.strerror or str(error)


def _cure(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        other = port + 1 if port < 65535 else port - 1
        return (
            "If another hearth serve runs there, use that one; else take another port, with"
            f" --port {other} or the setting serve_port."
        )
    if error.errno == errno.EACCES:
        return (
            "Ports below 1024 need rights of their own: take another, with --port 4242 or the"
            " setting serve_port."
        )
    return (
        "Leave the address (--host, the setting serve_host) at 127.0.0.1, or name one of this"
        " machine."
    )
