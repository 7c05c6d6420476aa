"""The API key: where it comes from, and how one is made and kept."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import sys
import tempfile
from pathlib import Path
from typing import Final

from hearth.backends.errors import InvalidParameter, SettingsError

KEY_BITS: Final = 256
_MOST_BYTES: Final = 4096
_KEY: Final = re.compile(r"[!-~]+")
_READ_ONLY: Final = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NONBLOCK", 0)
)


class KeyFileError(SettingsError):
    """The file of the API key cannot be used, or not safely."""

    code = "key_file"


def check_key(key: str) -> str:
    """`key`, which fits a header. Raises `InvalidParameter` if it does not."""
    if not _KEY.fullmatch(key):
        raise InvalidParameter(
            "api_key",
            "The API key must be of visible ASCII characters, without spaces.",
            "hearth serve --generate-key makes one.",
        )
    return key


def read_key(path: Path) -> str:
    """The key in the file `path`: its only line.

    Raises:
        KeyFileError: there is none, it is a link, or others can read it.
        InvalidParameter: what it holds is no key.
    """
    try:
        handle = os.open(path, _READ_ONLY)
    except OSError as error:
        raise KeyFileError(
            f"The key file {path} cannot be read: {error.strerror or error}.",
            "Name the file itself, not a link; --generate-key makes one where there is none.",
        ) from error
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise KeyFileError(f"{path} is not a file.", "Name a file that holds the key.")
        if sys.platform != "win32" and found.st_mode & 0o077:
            raise KeyFileError(
                f"Others can read the key file {path}.",
                f"It may be known already: make another key, and chmod 600 {path}.",
            )
        if sys.platform != "win32" and found.st_uid not in (os.geteuid(), 0):
            raise KeyFileError(f"The key file {path} belongs to somebody else.", "Use your own.")
        content = os.read(handle, _MOST_BYTES)
    finally:
        os.close(handle)
    return check_key(content.decode("latin-1").rstrip("\r\n"))


def kept_key(path: Path) -> str:
    """The key in the file `path`, made there if there is none: 0600, whole or not at all.

    Args:
        path: in a folder that exists.

    Raises:
        KeyFileError: it cannot be made, or not be read as `read_key` says.
    """
    try:
        if not os.path.lexists(path):
            _make(path)
    except OSError as error:
        raise KeyFileError(
            f"The key file {path} cannot be made: {error.strerror or error}.",
            "Name another place with --api-key-file.",
        ) from error
    return read_key(path)


def _make(path: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name) as file:  # 0600
        file.write(f"{secrets.token_urlsafe(KEY_BITS // 8)}\n".encode("ascii"))
        file.flush()
        os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # Somebody else was first: theirs holds.
            os.link(file.name, path)
