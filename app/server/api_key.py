"""The API key: checking one that the user sets, reading one from a file, generating one."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import stat
import sys
import tempfile
from pathlib import Path
from typing import Final

from hearth.backends.errors import InvalidParameter, SettingsError

KEY_BITS: Final = 256
LEAST_CHARACTERS: Final = 16
"""Minimum length of a key that a user sets, if other machines can reach the server."""
_MOST_BYTES: Final = 4096
_KEY: Final = re.compile(r"[!-~]+")
_READ_ONLY: Final = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NONBLOCK", 0)
)


class KeyFileError(SettingsError):
    """The API key file cannot be used, or cannot be used safely."""

    code = "key_file"


def check_key(key: str) -> str:
    """`key`. Raises `InvalidParameter` if it cannot be sent in a header."""
    if not _KEY.fullmatch(key):
        raise InvalidParameter(
            "api_key",
            "The API key must consist of visible ASCII characters, without spaces.",
            "hearth serve --generate-key creates one.",
        )
    return key


def read_key(path: Path) -> str:
    """The key in the file `path`: its only line.

    Raises:
        KeyFileError: the file is missing, is a link, is readable by other users, or belongs to
            another user.
        InvalidParameter: the file does not contain a key.
    """
    try:
        handle = os.open(path, _READ_ONLY)
    except OSError as error:
        raise KeyFileError(
            f"The key file {path} cannot be read: {error.strerror or error}.",
            "Give the file itself, not a link. --generate-key creates it if it does not exist.",
        ) from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise KeyFileError(f"{path} is not a file.", "Give a file that contains the key.")
        if sys.platform != "win32" and status.st_mode & 0o077:
            raise KeyFileError(
                f"Other users can read the key file {path}.",
                f"Replace the key, as it may be known, and run chmod 600 {shlex.quote(str(path))}.",
            )
        if sys.platform != "win32" and status.st_uid not in (os.geteuid(), 0):
            raise KeyFileError(
                f"The key file {path} belongs to another user.", "Use a file of your own."
            )
        content = os.read(handle, _MOST_BYTES)
    finally:
        os.close(handle)
    return check_key(content.decode("latin-1").rstrip("\r\n"))


def kept_key(path: Path) -> str:
    """The key in the file `path`, which is created atomically, with mode 0600, if it is missing.

    Args:
        path: in a folder that exists.

    Raises:
        KeyFileError: the file cannot be created, or as in `read_key`.
    """
    try:
        if not os.path.lexists(path):
            _make(path)
    except OSError as error:
        raise KeyFileError(
            f"The key file {path} cannot be created: {error.strerror or error}.",
            "Choose another path with --api-key-file.",
        ) from error
    return read_key(path)


def _make(path: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name) as file:  # 0600
        file.write(f"{secrets.token_urlsafe(KEY_BITS // 8)}\n".encode("ascii"))
        file.flush()
        os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # Another process was first; its key is used.
            os.link(file.name, path)
