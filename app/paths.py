"""The one module that defines paths: of settings, models, state, caches and logs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hearth.backends.errors import HearthError

if TYPE_CHECKING:
    from hearth.backends.machine.local_socket import HostPlace

HOME_VARIABLE = "HEARTH_HOME"


class FolderUnusable(HearthError):
    """One of Hearth's own folders is not a folder, cannot be created, or is not writable."""

    code = "folder_unusable"


@dataclass(frozen=True, slots=True)
class Paths:
    """Hearth's folders and files. None of them need exist; `private_folder` creates one.

    Attributes:
        settings_file: the user's settings.
        models: the library folder.
        smollm2_file: the model that the set-up downloads; it gets this name only when it is
            complete.
        chats_file: the history of chats.
        downloads_file: the download queue.
        presets_file: the saved presets.
        tuned_file: the results of `hearth bench --tune`.
        facts_file: cached facts from the headers of models.
        kv_cache: keys and values of chats, in parts.
        api_key_file: the key that `hearth serve --generate-key` made.
    """

    config: Path
    data: Path
    state: Path
    cache: Path
    log: Path

    @property
    def settings_file(self) -> Path:
        return self.config / "settings.toml"

    @property
    def models(self) -> Path:
        return self.data / "models"

    @property
    def smollm2_file(self) -> Path:
        return self.models / "smollm2" / "smollm2.gguf"

    @property
    def chats_file(self) -> Path:
        return self.data / "chats.db"

    @property
    def downloads_file(self) -> Path:
        return self.state / "downloads.json"

    @property
    def presets_file(self) -> Path:
        return self.config / "presets.json"

    @property
    def tuned_file(self) -> Path:
        return self.state / "tuned.json"

    @property
    def facts_file(self) -> Path:
        return self.cache / "models.json"

    @property
    def kv_cache(self) -> Path:
        from hearth.backends.engine.kv.disk_files import FOLDER

        return self.cache / FOLDER

    @property
    def api_key_file(self) -> Path:
        return self.state / "api-key"

    def host_place(self) -> HostPlace:
        """Where the host process has its socket, logs and caches."""
        from hearth.backends.machine.local_socket import HostPlace

        return HostPlace(runtime_dir=self.state / "run", log_dir=self.log, cache_dir=self.cache)


def find_paths(environ: Mapping[str, str] | None = None) -> Paths:
    """The folders of this user on this platform.

    `HEARTH_HOME` puts all of them below one folder. Otherwise they are the platform's own
    (platformdirs). The `XDG_*` variables are honoured on Linux and, if set, on macOS.

    Args:
        environ: where to look for `HEARTH_HOME` and `XDG_*`; default: the environment of the
            process.
    """
    environ = os.environ if environ is None else environ
    home = environ.get(HOME_VARIABLE)
    if home:
        root = Path(home).expanduser().absolute()
        return Paths(root / "config", root / "data", root / "state", root / "cache", root / "log")
    from platformdirs import PlatformDirs

    dirs = PlatformDirs("hearth", appauthor=False)
    return Paths(
        config=_xdg(environ, "XDG_CONFIG_HOME") or Path(dirs.user_config_dir),
        data=_xdg(environ, "XDG_DATA_HOME") or Path(dirs.user_data_dir),
        state=_xdg(environ, "XDG_STATE_HOME") or Path(dirs.user_state_dir),
        cache=_xdg(environ, "XDG_CACHE_HOME") or Path(dirs.user_cache_dir),
        log=_xdg(environ, "XDG_STATE_HOME", "log") or Path(dirs.user_log_dir),
    )


def _xdg(environ: Mapping[str, str], variable: str, *parts: str) -> Path | None:
    """The folder below an absolute `XDG_*` path, honoured on macOS too; None without one."""
    base = environ.get(variable, "")
    return (
        Path(base, "hearth", *parts) if base.startswith("/") and sys.platform != "win32" else None
    )


def private_folder(path: Path) -> Path:
    """Create `path` and its missing parents, each accessible only to its owner; returns it."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    return path


def own_folder(path: Path) -> Path:
    """`private_folder` for one of `Paths`, checked to be writable.

    Raises:
        FolderUnusable: it cannot be created, is a file, or is not writable.
    """
    try:
        private_folder(path)
        if path.is_dir() and os.access(path, os.W_OK | os.X_OK):
            return path
        why = "cannot be written to" if path.is_dir() else "is not a folder"
    except OSError as error:
        why = f"cannot be made: {error.strerror or error}"
    raise FolderUnusable(
        f"{path} {why}.",
        "Move away what is in its place, give yourself the right to write there, or set "
        f"{HOME_VARIABLE} to another folder.",
    )
