"""The socket that the endpoint listens on; opened first, so that a busy port is said before a model
is loaded.
"""

from __future__ import annotations

import errno
import socket

from hearth.backends.errors import HearthError


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
            "If another hearth serve runs there, use that one; else take another port:"
            f" --port {other}."
        )
    if error.errno == errno.EACCES:
        return "Ports below 1024 need rights of their own: take another, such as --port 4242."
    return "Leave --host at 127.0.0.1, or name an address of this machine."
