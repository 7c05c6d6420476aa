"""Records which sockets a program opens to others, in this process and in those that it starts."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "SOCKETS_OPENED"


def guard(note: Callable[[str], None], put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Report every connection except those of Unix sockets, and every name look-up, to `note`.

    Args:
        note: called with the attempt, before it is made.
        put: sets an attribute.
    """

    def noting(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            of = args[0] if isinstance(args[0], socket.socket) else None
            if of is None or of.family != getattr(socket, "AF_UNIX", None):
                note(f"{what} {args[-1] if of is not None else args[:2]}")
            return function(*args, **kwargs)

        return call

    kind = type("socket", (socket.socket,), {})
    for name in ("connect", "connect_ex", "sendto", "sendmsg", "bind"):
        put(kind, name, noting(name, getattr(socket.socket, name)))
    put(socket, "socket", kind)
    put(socket, "getaddrinfo", noting("getaddrinfo", socket.getaddrinfo))
    put(socket, "gethostbyname", noting("gethostbyname", socket.gethostbyname))


def guarded_env(folder: Path) -> dict[str, str]:
    """Variables with which every Python process records its attempts in `folder`/sockets."""
    site = folder / "site"
    site.mkdir()
    here = Path(__file__).parent
    (site / "sitecustomize.py").write_text(
        f"import sys\nsys.path.append({str(here)!r})\nimport sockets\nsockets.begin()\n"
        f"sys.path.remove({str(here)!r})\n"
    )
    before = os.environ.get("PYTHONPATH", "")
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(site), before))),
        VARIABLE: str(folder / "sockets"),
    }


def begin() -> None:
    """In a process with `guarded_env`: record its name, and its attempts from now on."""
    path = os.environ[VARIABLE]

    def note(text: str) -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {text}\n")

    note("began " + " ".join(sys.orig_argv))
    guard(note)
