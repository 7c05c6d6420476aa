"""Remote models: `[remotes."name"]` of the settings file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast, get_args
from urllib.parse import urlsplit

from hearth.app.library.local import BUNDLED, MODEL_SUFFIXES
from hearth.app.settings_keys import LOADING, Key, Value
from hearth.backends.errors import SettingsError
from hearth.backends.remote.server import Kind, RemoteServer

REMOTE_KEYS: Final = (
    Key("url", "text", "the base of its API, such as http://10.0.0.5:8000/v1", default=""),
    Key("model", "text", "what the other end calls the model; empty: it has only one", default=""),
    Key(
        "server",
        "text",
        "what it is, and so what it understands; auto: told by its list of models",
        choices=get_args(Kind),
        auto=True,
    ),
    Key("key_env", "text", "environment variable that has its API key", default=""),
    Key("key_file", "text", "file, readable for you alone, that has its API key", default=""),
    Key(
        "timeout_s",
        "float",
        "longest silence in seconds before it is given up",
        above=0,
        high=86_400,
        default=600.0,
    ),
)
UNSET_SAMPLING: Final[Mapping[str, Value]] = {"top_k": 0, "min_p": 0.0, "repetition_window": -1}
"""Defaults for remote models: steps that OpenAI's API lacks are off."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,127}")


def remote_server(name: str, given: Mapping[str, Value], place: str, folder: Path) -> RemoteServer:
    """The server of one table.

    Args:
        name: what the model is called here.
        given: the table's values, of the types of `REMOTE_KEYS`.
        place: the table, for messages.
        folder: where a relative `key_file` is.

    Raises:
        SettingsError: the name or the URL cannot be used, or there are two keys.
    """
    if not _NAME.fullmatch(name) or name.lower().endswith(MODEL_SUFFIXES):
        raise SettingsError(
            f"{place}: {name!r} cannot be the name of a model.",
            "Use letters, digits and . _ : @ / + -, and begin with a letter or digit.",
        )
    if name.lower() in BUNDLED:
        raise SettingsError(f"{place}: {name} comes with Hearth.", "Choose another name.")
    values: dict[str, Any] = {key.name: given.get(key.name, key.default) for key in REMOTE_KEYS}
    if values["key_env"] and values["key_file"]:
        raise SettingsError(f"{place}: there are key_env and key_file.", "Leave one of them.")
    file = values["key_file"]
    return RemoteServer(
        name,
        _url(str(values["url"]), place),
        model=values["model"],
        server=cast("Kind | None", values["server"]),
        key_env=values["key_env"],
        key_file=folder / Path(file).expanduser() if file else None,
        timeout_s=values["timeout_s"],
    )


def _url(text: str, place: str) -> str:
    """The base of an API without a slash at its end; a host alone stands for its /v1."""
    try:
        parts = urlsplit(text)
        well_formed = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        well_formed = False
    if not well_formed or not text.isascii() or not text.isprintable() or " " in text:
        raise SettingsError(
            f"{place}: url: expected an address such as http://10.0.0.5:8000/v1.",
            "Write http:// or https://, the host, and /v1 for most servers.",
        )
    if parts.username is not None or parts.password is not None:
        raise SettingsError(
            f"{place}: url: it has a name or password in it.",
            "Put the key into a variable, and name that as key_env.",
        )
    if parts.query or parts.fragment:
        raise SettingsError(f"{place}: url: it has a ? or # in it.", "End it at the path.")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"


def refuse_loading(name: str, settings: Iterable[str], place: str) -> None:
    """Raise `SettingsError` if the table of a remote model says how to load it."""
    loading = {key.name for key in LOADING} | {"chat_template"}
    for setting in settings:
        if setting in loading:
            raise SettingsError(
                f"{place}: {setting}: {name} is a remote model, which its own server loads.",
                "Leave it out, or tell that server.",
            )
