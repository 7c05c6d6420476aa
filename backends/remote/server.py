"""`RemoteServer`: where a remote model is, and how to request it."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from hearth.backends.errors import HearthError
from hearth.backends.remote.errors import RemoteKeyMissing

Kind = Literal["hearth", "vllm", "sglang", "llama-server", "openai", "other"]
"""Kinds of servers, which support different parameters (`backends.remote.dialects`)."""

_MOST_KEY_BYTES = 4096
_LOOK = "Look into the log of that server."
_E = TypeVar("_E", bound=HearthError)


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """One model of an OpenAI-style server. The key itself is never kept here."""

    name: str
    """Name of the model here."""
    url: str
    """Base URL of the API without a trailing slash, such as "http://10.0.0.5:8000/v1"."""
    model: str = ""
    """Name of the model on the server; empty: the only model that the server has."""
    server: Kind | None = None
    """Kind of the server; None: detected from the list of its models."""
    key_env: str = ""
    """Environment variable with the API key."""
    key_file: Path | None = None
    """File with the API key, readable by its owner only."""
    timeout_s: float = 600.0
    """Longest time without data, and an upper limit of the time to connect."""

    @property
    def host(self) -> str:
        """The host's name or address."""
        return urlsplit(self.url).hostname or ""

    @property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine."""
        return is_loopback(self.host)

    @property
    def root(self) -> str:
        """Base URL of endpoints that are not part of OpenAI's API."""
        return self.url.removesuffix("/v1")

    @property
    def key_source(self) -> str:
        """Where the key is stored, in words; empty if there is none."""
        if self.key_env:
            return f"the variable {self.key_env}"
        return f"the file {self.key_file}" if self.key_file is not None else ""

    def error(self, kind: type[_E], what: str, hint: str = _LOOK, **data: Any) -> _E:
        """An error of `kind` whose message begins with this server's name."""
        return kind(f"{self.name} {what}", hint, remote=self.name, **data)

    def key(self) -> str:
        """The API key, read again on each call; empty if none is declared.

        Raises:
            RemoteKeyMissing: the variable or the file is missing, empty or not a single line of
                ASCII, or other users may read the file. No message contains a part of the key.
        """
        if self.key_env:
            raw_key = os.environ.get(self.key_env, "")
        elif self.key_file is not None:
            raw_key = self._read(self.key_file)
        else:
            return ""
        key = raw_key.strip()
        if not key:
            raise self._missing("is not set" if self.key_env else "is empty")
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise self._missing("holds something else than one key")
        return key

    def _read(self, path: Path) -> str:
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                data = file.read(_MOST_KEY_BYTES)
        except OSError as error:
            raise self._missing(f"cannot be read ({error.strerror})") from error
        if sys.platform != "win32" and stat.S_IMODE(mode) & 0o077:
            raise self._missing("can be read by others (chmod 600 cures that)")
        return data.decode("utf-8", "replace")

    def _missing(self, why: str) -> RemoteKeyMissing:
        source = self.key_source
        return RemoteKeyMissing(
            f"{source[0].upper()}{source[1:]}, which should have the key of {self.name}, {why}.",
            "Set it where Hearth is started."
            if self.key_env
            else "Write the key into it, readable for you alone.",
            remote=self.name,
        )


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine, by a loopback address or as "localhost"."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
