"""The sockets that the server listens on, and their URLs.

The sockets are opened first, so that a busy port is reported before a model is loaded.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

from hearth.app.paths import private_folder
from hearth.backends.errors import HearthError

_LONGEST_PATH_BYTES: Final = 100
"""sun_path holds 108 bytes on Linux and 104 on macOS, the closing NUL included."""
_ONLY_FOR_ME: Final = 0o177
_OTHERS_WRITE: Final = 0o022
_BRIDGES: Final = ("docker", "br-", "veth", "virbr", "cni", "flannel")
"""Prefixes of the names of virtual interfaces (containers, virtual machines)."""


class CannotListen(HearthError):
    """The server cannot listen on that address or port."""

    code = "cannot_listen"


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to the first address of `host`, IPv4 before IPv6; port 0 picks a free one.

    Raises:
        CannotListen: this machine has no such address, or `host` is no host name; the port is in
            use or needs privileges.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(addresses, key=lambda one: one[0] != socket.AF_INET)
        return socket.create_server(address[:2], family=family)
    except (OSError, UnicodeError) as error:
        reason, cure = _explanation(error, port)
        raise CannotListen(
            f"Hearth cannot listen on {_authority(host, port)}: {reason}.", cure
        ) from error


@contextmanager
def listen_at(path: Path) -> Iterator[socket.socket]:
    """A Unix socket at `path` that only this user can connect to; its file is removed at the end.

    A stale socket file is replaced. A missing folder is created for this user alone.

    Raises:
        CannotListen: another file or a live socket is at `path`; other users can write to the
            folder, and so replace the socket; the system has no Unix sockets.
    """
    path = path.absolute()
    if sys.platform == "win32" or not hasattr(socket, "AF_UNIX"):
        raise CannotListen("This system does not support Unix sockets.", "Omit --uds.")
    try:
        _check_folder(private_folder(path.parent))
        _clear(path)
        listener = _bind(path)
    except OSError as error:
        raise CannotListen(
            f"Hearth cannot listen on {path}: {error.strerror or error}.",
            "Choose another path with --uds.",
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
    status = folder.stat()
    if status.st_uid not in (os.geteuid(), 0) or (
        status.st_mode & _OTHERS_WRITE and not status.st_mode & stat.S_ISVTX
    ):
        raise CannotListen(
            f"Other users can replace the files in {folder}.",
            "Choose a path in a folder of your own with --uds; a missing folder is created.",
        )


def _clear(path: Path) -> None:
    """Remove the socket file of a server that no longer runs."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise CannotListen(f"{path} exists and is not a socket.", "Choose another path.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.settimeout(1)
        try:
            other.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise CannotListen(
        f"Another server is listening on {path}.",
        "Use that server, or choose another path with --uds.",
    )


def _bind(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > _LONGEST_PATH_BYTES:
        raise CannotListen(
            f"The path of the socket is longer than {_LONGEST_PATH_BYTES} bytes: {path}.",
            "Choose a shorter one with --uds.",
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
    status = path.lstat()
    return status.st_dev, status.st_ino


def roots_of(listener: socket.socket, host: str) -> list[str]:
    """The URLs, without a path, at which a socket opened for `host` can be reached.

    One URL for `host`, or one for every address of this machine if the socket listens on all.
    """
    address, port = listener.getsockname()[:2]
    hosts = [host]
    if ipaddress.ip_address(address).is_unspecified:
        loopback = "127.0.0.1" if listener.family == socket.AF_INET else "::1"
        hosts = lan_addresses(listener.family) or [loopback]
    return [f"http://{_authority(one, port)}" for one in hosts]


def lan_addresses(family: int) -> list[str]:
    """The addresses of this machine's active network interfaces.

    Loopback and link-local addresses are left out; those of virtual bridges, which other machines
    cannot reach, come last.
    """
    active = psutil.net_if_stats()
    interfaces = sorted(psutil.net_if_addrs().items(), key=lambda one: one[0].startswith(_BRIDGES))
    return [
        entry.address
        for name, entries in interfaces
        if name in active and active[name].isup
        for entry in entries
        if entry.family == family and _is_reachable(entry.address)
    ]


def _is_reachable(text: str) -> bool:
    if "%" in text:  # link-local IPv6 with its interface
        return False
    address = ipaddress.ip_address(text)
    return not (address.is_loopback or address.is_link_local)


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _explanation(error: OSError | UnicodeError, port: int) -> tuple[str, str]:
    """The reason of `error`, and what to do about it."""
    cure = "Leave --host (setting serve_host) at 127.0.0.1, or give an address of this machine."
    if isinstance(error, UnicodeError):
        return "it is not a valid host name", cure
    if error.errno == errno.EADDRINUSE:
        other = port + 1 if port < 65535 else port - 1
        return (
            "the port is in use",
            "If that is another hearth serve, use it; otherwise choose another port with"
            f" --port {other} or the setting serve_port.",
        )
    if error.errno == errno.EACCES:
        cure = (
            "Ports below 1024 need privileges: choose another with --port 4242 or the setting"
            " serve_port."
        )
    return error.strerror or str(error), cure
