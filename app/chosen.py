"""A chosen model with the settings that apply to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from hearth.app.library.local import FoundModel, Library
from hearth.app.library.sources import find_sources
from hearth.app.paths import Paths, find_paths
from hearth.app.settings import ModelUse, Settings
from hearth.app.settings_keys import LOADING
from hearth.backends.contract.models import ModelSettings, ModelSpec, is_heads
from hearth.backends.errors import CorruptFile, ModelNotFound, SettingsError, UnsupportedModel
from hearth.backends.remote.errors import RemoteOffline


@dataclass(frozen=True, slots=True)
class Chosen:
    """A model that a front end uses. Two with equal `spec` share one worker."""

    found: FoundModel
    use: ModelUse
    spec: ModelSpec


def library_of(paths: Paths, settings: Settings) -> Library:
    """The models on this machine, and the remote models that `settings` name."""
    folders = cast("tuple[str, ...]", settings.all()["library_folders"].value)
    return Library(
        paths.models,
        remotes=settings.remotes.values(),
        aliases=settings.aliases,
        sources=find_sources(folders=folders),
        facts_file=paths.facts_file,
    )


def with_settings(found: FoundModel, settings: Settings) -> Chosen:
    """`found` with the settings that apply to it.

    Raises:
        SettingsError: its template file cannot be read, or its draft model is on another machine.
        ModelNotFound: its draft model is not on this machine.
        RemoteOffline: it is on another machine, and Hearth is offline.
    """
    use = settings.for_model(found.name)
    if found.remote is not None:
        if settings.offline and not found.remote.is_loopback:
            raise RemoteOffline(
                f"{found.name} is at {found.remote.url}, not on this machine, and Hearth is"
                f" offline ({settings.all()['offline'].origin}).",
                "Leave that out, or ask a model that is here.",
                remote=found.remote.name,
            )
        # Loading options in a settings file are meant for files; typed ones are passed on, so that
        # a notice reports that they are ignored.
        is_typed = any(use.origins[key.name].startswith(("-", "LLM(")) for key in LOADING)
        load = use.load if is_typed else ModelSettings()
        return Chosen(found, use, ModelSpec(found.remote.url, found.name, "remote", load))
    load = replace(use.load, draft=_draft(use, settings))
    return Chosen(found, use, ModelSpec(str(found.path), found.name, use.backend, load))


def _draft(use: ModelUse, settings: Settings) -> str:
    """The path of the draft model that `use` names; empty if it names none.

    Raises:
        ModelNotFound, UnsupportedModel, CorruptFile: as `Library.resolve`.
        SettingsError: the draft model is on another machine.
    """
    name = use.load.draft
    if not name:
        return ""
    if is_heads(Path(name)):
        path = Path(name).expanduser().absolute()
        if not path.is_file():
            raise ModelNotFound(
                f"{use.origins['draft']}: there is no file {path}.",
                "`hearth train-medusa MODEL --self` makes heads for a model.",
            )
        return str(path)
    try:
        model = library_of(find_paths(), settings).resolve(name)
    except (ModelNotFound, UnsupportedModel, CorruptFile) as error:
        error.message = f"The setting draft ({use.origins['draft']}): {error.message}"
        raise
    if model.remote is not None:
        raise SettingsError(
            f"{use.origins['draft']}: {name} is on another machine, so it cannot draft here.",
            "Choose a model that `hearth list` shows as a file.",
        )
    return str(model.path)
